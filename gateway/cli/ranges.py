"""From the ends of a range as users write them to offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cli.options import Bound
from gateway.errors import UsageError

if TYPE_CHECKING:
    from gateway.client.source import Source


def resolve(source: Source, start: Bound, end: Bound) -> tuple[int, int]:
    """The offsets of [start, end) in the log of `source`; "latest" is its frontier.

    Raises:
        OffsetOutOfRange: an end is not in the log.
        UsageError: the end lies before the start.
    """
    from gateway.client.source import place_of

    frontier = source.frontier()
    low, high = place_of(source, "start", start, frontier), place_of(source, "end", end, frontier)
    if low > high:
        raise UsageError(f"the range ends at offset {high} and starts behind that, at {low}: exchange --start and --end")
    return low, high
