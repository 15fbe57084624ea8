"""Replaces standard streams that the parent process closed (`tutti ... 2>&-`) with the null device.

Without the replacement, the next file that the process opens gets the free descriptor 0, 1 or 2. A library that writes a message to
descriptor 2 would then write into that file.
"""

from __future__ import annotations

import io
import os
import sys


def replace_closed_streams() -> None:
    """Open the null device on each closed standard descriptor, and discard text that is written to a closed standard error."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # open() returns the lowest free descriptor, which is the closed one
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"), "utf-8", write_through=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
