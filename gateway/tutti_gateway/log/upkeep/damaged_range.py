"""What of a log was decided and cannot be read any more, and the place where it is written anew (`mending.py`)."""

from __future__ import annotations

from typing import NamedTuple

from tutti.data.frames.frame import Frame
from tutti.log.files.layout import PAGE
from tutti.log.files.storage import Storage


class Lost(NamedTuple):
    """Decided frames that cannot be read.

    Attributes:
        first, last: their positions.
        place: where the first one must stand in its segment; `chain` is the value before it.
        end: the byte behind the last one, 0 if that is not known.
        following: the frame behind them, or None; `after` is the chain value that the last one must have, None if nothing says it.
    """

    first: int
    last: int
    place: int
    chain: int
    end: int = 0
    following: Frame | None = None
    after: int | None = None


def make_readable(storage: Storage, fd: int, start: int, end: int) -> None:
    """Overwrite the pages between two places that the device cannot read with zeros, whole: what is written into a part of one
    would have to be read first. What stood in them is lost already.
    """
    for page in range(start - start % PAGE, end, PAGE):
        try:
            storage.read(fd, PAGE, page)
        except OSError:
            storage.write(fd, [bytes(PAGE)], page)
