"""Helpers of commands that read a range: convert the bounds to offsets, and add the reached offset to corruption errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tutti.errors import Damaged, UsageError
from tutti.reading.range_bounds import Bound

if TYPE_CHECKING:
    from tutti.sources.source import Source


def resolve(source: Source, start: Bound, end: Bound) -> tuple[int, int]:
    """Return the first offset of the range from `start` to `end` in the log of `source`, and the offset after its last record.

    Raises:
        OffsetOutOfRange: `start` or `end` is outside the log.
        UsageError: `end` is before `start`.
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
    """Extend the text of a corruption error that the block raises by the offset up to which the records are readable.

    Args:
        position: function that returns the offset up to which the block has read all records.
    """
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{error}; all records below offset {position()} are readable") from error
