"""From the ends of a range as users write them to offsets, and from damage in it to the offset where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tutti.errors import Damaged, UsageError
from tutti.reading.positions import Bound

if TYPE_CHECKING:
    from tutti.sources.source import Source


def resolve(source: Source, start: Bound, end: Bound) -> tuple[int, int]:
    """The offsets of [start, end) in the log of `source`; "latest" is its frontier.

    Raises:
        OffsetOutOfRange: an end is not in the log.
        UsageError: the end lies before the start.
        Unavailable: the log has not begun.
    """
    from tutti.sources.source import begun, place_of

    frontier = begun(source)
    low, high = place_of(source, "start", start, frontier), place_of(source, "end", end, frontier)
    if low > high:
        raise UsageError(f"the range ends at offset {high} and starts behind that, at {low}: exchange --start and --end")
    return low, high


@contextmanager
def offset_of_damage(position: Callable[[], int]) -> Iterator[None]:
    """Damage that is met in the block is told with the offset that reading had come to.

    Args:
        position: tells it: all records below were read.
    """
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{error}; all records below offset {position()} can be read") from error
