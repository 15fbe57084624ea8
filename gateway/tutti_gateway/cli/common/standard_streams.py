"""Standard streams that whoever started us has closed (`tutti ... 2>&-`).

Python has None in their place, and the next file that is opened gets their number: what a library writes for people would
end in it.
"""

from __future__ import annotations

import io
import os
import sys


def fill() -> None:
    """Let the numbers of closed streams be taken by the null device; what is said on a closed standard error is lost."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"), "utf-8", write_through=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
