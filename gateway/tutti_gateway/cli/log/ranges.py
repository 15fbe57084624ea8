"""Conversion of range bounds to offsets, and of corruption errors to errors that name an offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tutti.errors import Damaged, UsageError
from tutti.reading.range_bounds import Bound

if TYPE_CHECKING:
    from tutti.sources.source import Source


def resolve(source: Source, start: Bound, end: Bound) -> tuple[int, int]:
    """Return the offsets of [start, end) in the log of `source`; "latest" is its frontier.

    Raises:
        OffsetOutOfRange: a bound is outside the log.
        UsageError: the end is before the start.
        Unavailable: the log has not started.
    """
    from tutti.sources.source import resolve_bound, wait_for_log

    frontier = wait_for_log(source)
    low, high = resolve_bound(source, "start", start, frontier), resolve_bound(source, "end", end, frontier)
    if low > high:
        raise UsageError(f"the range starts at offset {low}, after its end {high}: exchange --start and --end")
    return low, high


@contextmanager
def offset_of_damage(position: Callable[[], int]) -> Iterator[None]:
    """Add the offset that reading had reached to a corruption error raised in the block.

    Args:
        position: returns the offset below which all records were read.
    """
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{error}; all records below offset {position()} are readable") from error
