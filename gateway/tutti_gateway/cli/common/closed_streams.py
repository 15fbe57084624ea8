"""Replacement of standard streams that the parent process closed (`tutti ... 2>&-`).

Python sets such a stream to None, and the next file opened gets its descriptor. Without replacement, text that a library writes to
descriptor 2 would end up in that file.
"""

from __future__ import annotations

import io
import os
import sys


def replace_closed_streams() -> None:
    """Open the null device on each closed standard descriptor; text written to a closed standard error is discarded."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # open() returns the lowest free descriptor, which is this one
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"), "utf-8", write_through=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
