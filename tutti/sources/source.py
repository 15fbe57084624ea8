"""The `Source` interface to one committed log, and the types and functions that all sources share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from tutti import limits
from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import Behind, OffsetOutOfRange, Unavailable, UsageError
from tutti.log.read.splits import Range

#: End of the error text if the gateways have no log yet.
NOT_FOUNDED = "the group is founded once all its gateways run; `tutti members` lists the missing ones"

_LOG_POLL_S = 0.25  # interval between checks whether the log exists
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A position as callers give it: an offset, "earliest", "latest", or an aware time (the first record at or after it).
Bound = int | str | datetime

__all__ = [
    "Bound",
    "Frontier",
    "LaneInfo",
    "Range",
    "Source",
    "Topic",
    "resolve_bound",
    "time_us_of",
    "wait_for_log",
]


class Frontier(NamedTuple):
    """The committed end of a log, and the state of the gateway that reports it.

    Attributes:
        log: uuid of the log, hex.
        start: first offset that is still in the log.
        offset: the frontier: all records below it are committed.
        position: last decided position.
        time_us, tick: time (us, UTC) and number of the last tick, 0 before the first.
        state: the gateway's state (primary, minority, ...); "files" for data directories.
        stale: whether no gateway could confirm the frontier with a majority, so that other gateways may have more records.
    """

    log: str
    start: int
    offset: int
    position: int
    time_us: int
    tick: int
    state: str
    stale: bool = False


class LaneInfo(NamedTuple):
    """A lane of unordered records, as one gateway reports it.

    Attributes:
        lane: name of the lane, from the number of its origin gateway and the incarnation of that gateway's disk.
        gateway: name of the origin; "" if the log does not have the name yet.
        newest: whether the origin writes this lane now.
        start, frontier: first offset, and first undecided offset.
        position: last decided position.
        halted: why the lane cannot grow at the reporting gateway; other gateways may have more records of the lane.
        lost: why the reporting gateway cannot read the lane; only other gateways know the lane's frontier.
    """

    lane: str
    gateway: str
    newest: bool
    start: int
    frontier: int
    position: int
    halted: str = ""
    lost: str = ""


class Topic(NamedTuple):
    """A topic with the number and bytes of all records ever committed, and its first and last record (offset; time in us, UTC).

    The `first_` fields describe the oldest record that retention has left, or are -1 and 0 without one. The `last_` fields describe
    the newest record ever committed, even if retention has removed it.
    """

    name: str
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    first_time_us: int
    last_time_us: int


class Source(Protocol):
    """Read access to one committed log."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The known gateways, the current one first; empty for files."""

    @property
    def responsive(self) -> tuple[Address, ...]:
        """The gateways that are not known to be silent, sorted by address; empty for files."""

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the frontier; with `beyond`, wait up to `timeout` seconds until the frontier is above `beyond`.

        Without `beyond`, the frontier is above all records committed before the call, or its field `stale` is True. The search for
        a gateway takes at most `patience` seconds.
        """

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        """Yield the requested records in offset order.

        Raises:
            UsageError: a topic does not exist.
            OffsetOutOfRange: the log does not hold the range.
        """

    def plan(self, request: ScanRequest, splits: int | None = None, split_bytes: int | None = None) -> list[Range]:
        """Split the requested range at batch boundaries into parts for parallel reads. Pass at most one of `splits` and
        `split_bytes`.

        Topics that do not exist count as empty.
        """

    def offset_for_time(self, time: int | datetime) -> int:
        """Return the offset of the first record at or after a time (us since 1970 UTC, or an aware datetime), else the frontier."""

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Return the offset of the last tick in (start, limit], else that of the first tick in (limit, end], else `start`.

        The search ignores ticks whose number is not divisible by `every`.
        """

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """Return the end of the longest prefix of [start, end) with at most `bytes_max` bytes of `topics`, but at least one
        batch.
        """

    def topics(self, upto: int = 0) -> list[Topic]:
        """Return all topics, including every topic with a record below `upto`. `upto` is a frontier that a gateway has reported."""

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers. Gateways return the offsets as of the time of this call or later."""

    def close(self) -> None:
        """Release connections or files."""


def wait_for_log(source: Source, patience: float | None = None) -> Frontier:
    """Wait until the log exists, and return its frontier. A group has no log before it is founded.

    The wait starts with this call and takes at most `patience` seconds (default `limits.CONNECT_TIMEOUT_US`). A source that reads
    files does not wait.

    Raises:
        Unavailable: the log does not exist at the end of the wait.
    """
    seconds = limits.CONNECT_TIMEOUT_US / 1e6 if patience is None else patience
    deadline = time.monotonic() + (seconds if source.addresses else 0.0)
    while not (frontier := source.frontier()).log:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable(_no_log_message(source.addresses, seconds))
        time.sleep(min(left, _LOG_POLL_S))
    return frontier


def _no_log_message(addresses: Sequence[Address], seconds: float) -> str:
    if not addresses:
        return "the directory holds no log yet, because its gateway has not joined a founded group: start all gateways of the group"
    return f"there is no log at {', '.join(map(str, addresses))} after {seconds:g} s: {NOT_FOUNDED}"


def time_us_of(time: int | datetime) -> int:
    """Return a time in us since 1970, UTC.

    Raises:
        UsageError: the datetime has no zone.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise UsageError(f"the time {time.isoformat()} has no zone: give an aware datetime, as with tzinfo=UTC")
        return (time - _EPOCH) // timedelta(microseconds=1)
    return time


def resolve_bound(source: Source, what: str, bound: object, frontier: Frontier, beyond_ok: bool = False) -> int:
    """Resolve a position to an offset.

    Args:
        source: the log.
        what: name of the position in errors, "start" or "end".
        bound: the position, as `Bound`.
        frontier: the current frontier of the log.
        beyond_ok: accept an offset above the frontier.

    Raises:
        UsageError: `bound` is not a position.
        OffsetOutOfRange: the offset is above the frontier or below the start of the log.
        Behind: the offset is above the frontier, but no majority confirmed the frontier, so another gateway may have the offset.
    """
    if isinstance(bound, datetime):
        return source.offset_for_time(bound)
    if bound == "earliest":
        return frontier.start
    if bound == "latest":
        return frontier.offset
    if isinstance(bound, bool) or not isinstance(bound, int):
        raise UsageError(f"{what}={bound!r} is not a position in the log: use an offset, 'earliest', 'latest' or an aware datetime")
    if bound < frontier.start:
        reason = "offsets are never negative"
        if bound >= 0:
            reason = f"the log begins at {frontier.start}, and retention removed older records; if archived, name the archive"
        raise OffsetOutOfRange(f"{what}={bound} is below the start of the log: {reason}")
    if bound > frontier.offset and not beyond_ok:
        if frontier.stale:  # a majority that this client cannot reach may have committed the offset
            raise Behind(
                f"{what}={bound} is above offset {frontier.offset}, the end of the log at a gateway that is cut off from the "
                f"majority of its group ({frontier.state}): connect to gateways of the majority, or wait until the group has one"
            )
        raise OffsetOutOfRange(f"{what}={bound} is above the frontier: the log is committed up to offset {frontier.offset}")
    return bound
