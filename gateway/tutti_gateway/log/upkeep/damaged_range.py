"""Describes a range of decided frames that cannot be read, and makes its pages writable again (`scrubber.py`)."""

from __future__ import annotations

from typing import NamedTuple

from tutti.data.frames.frame import Frame
from tutti.log.files.layout import PAGE
from tutti.log.files.storage import Storage


class CorruptRange(NamedTuple):
    """A range of decided frames that cannot be read.

    Attributes:
        first, last: first and last position.
        place: file position of the first frame in its segment.
        chain: chain value of the frame before the range.
        end: file position after the last frame; 0 if it is unknown.
        following: the frame after the range, or None.
        after: chain value that the last frame must have; None if it is unknown.
    """

    first: int
    last: int
    place: int
    chain: int
    end: int = 0
    following: Frame | None = None
    after: int | None = None


def zero_unreadable_pages(storage: Storage, fd: int, start: int, end: int) -> None:
    """Overwrite each page of a range that the device cannot read with zeros.

    A write of a whole page needs no read first. The content of such a page is lost already.

    Args:
        start, end: file positions.
    """
    for page in range(start - start % PAGE, end, PAGE):
        try:
            storage.read(fd, PAGE, page)
        except OSError:
            storage.write(fd, [bytes(PAGE)], page)
