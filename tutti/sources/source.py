"""The `Source` interface to one committed log, and the types and functions that all sources share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tutti import limits
from tutti.common.address import Address
from tutti.errors import Behind, OffsetOutOfRange, Unavailable, UsageError
from tutti.log.read.splits import Range

#: Explanation in the error for gateways without a log.
NOT_FOUNDED = "the group is founded once all its gateways run; `tutti members` lists the missing ones"

_BEGIN_LOOK_S = 0.25  # interval between checks whether the log exists
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A position as callers give it: an offset, "earliest", "latest", or an aware time (the first record at or after it).
Bound = int | str | datetime

__all__ = [
    "Bound",
    "Frontier",
    "LaneInfo",
    "Range",
    "ScanBatch",
    "Source",
    "Topic",
    "begun",
    "check_topics",
    "resolve_bound",
    "time_us_of",
]


class Frontier(NamedTuple):
    """The committed end of a log, and the state of the gateway that reports it.

    Attributes:
        log: uuid of the log, hex.
        start: first offset that the log still holds.
        offset: the frontier: all records below it are committed.
        position: last decided position.
        time_us, tick: time (us, UTC) and number of the last tick, 0 before any.
        state: the gateway's state (primary, minority, ...); "files" for data directories.
        stale: True if no gateway could confirm the frontier with a majority, so other gateways may have more records.
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
        lane: NUMBER-INCARNATIONHEX: number of the origin, and incarnation of the origin's disk.
        gateway: name of the origin; "" while the log does not hold the name.
        newest: True if the origin writes this lane now.
        start, frontier: first offset, and first undecided offset.
        position: last decided position.
        halted: why the lane cannot grow at the reporting gateway; other gateways may have more of it.
        lost: why the reporting gateway cannot read the lane; only other gateways know its frontier.
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
    """A topic with the count and bytes of all records ever committed, and offsets and times (us, UTC) of two records.

    The first record is the first that the log still holds (-1 and 0 if it holds none). The last is the last ever committed.
    """

    name: str
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    first_time_us: int
    last_time_us: int


class ScanBatch(NamedTuple):
    """A batch of a scan, and the next offset to read after it.

    `column` holds the records' offsets if they have gaps.
    """

    batch: pa.RecordBatch
    next: int
    column: pa.Array[Any] | None = None

    def offsets(self) -> Iterable[int]:
        """Return the offset of each record."""
        if self.column is None:
            return range(self.next - self.batch.num_rows, self.next)
        offsets: list[int] = self.column.to_numpy().tolist()
        return offsets


class Source(Protocol):
    """Read access to one committed log."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The known gateways, the current one first; empty for files."""

    @property
    def heard(self) -> tuple[Address, ...]:
        """Those of `addresses` that answer, as far as is known, in a stable order; empty for files."""

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the frontier; with `beyond`, wait up to `timeout` seconds until the frontier is above that offset.

        `patience` limits the search for a gateway. Without `beyond`, the answer covers everything committed before the call, or is
        `stale`.
        """

    def scan(
        self,
        start: int,
        end: int | None = None,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        absent_ok: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records [start, end) in offset order.

        Args:
            start: first offset.
            end: exclusive end; None is the current frontier, or no end with `follow`.
            topics: only these; None is all.
            columns: only these, in this order; None is all.
            follow: wait for records that are committed later, until `end`.
            absent_ok: treat topics that do not exist as empty; with `follow` this is always so.
        """

    def pieces(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        absent_ok: bool = False,
        left: Callable[[], float] | None = None,
    ) -> Iterator[ScanBatch]:
        """As `scan`, with the next offset after each batch. `left` returns the remaining seconds to wait for a gateway."""

    def plan(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        splits: int | None = None,
        split_bytes: int | None = None,
    ) -> list[Range]:
        """Split a range between batches into parts for parallel reads."""

    def offset_for_time(self, time: int | datetime) -> int:
        """Return the offset of the first record at or after a time (us since 1970 UTC, or an aware datetime), else the frontier."""

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Return the offset of the last tick in (start, limit], else of the first tick in (limit, end], else `start`.

        Only ticks with a number divisible by `every` count.
        """

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """Return the end of the longest prefix of [start, end) with at most `bytes_max` bytes of `topics`, at least one batch."""

    def topics(self, upto: int = 0) -> list[Topic]:
        """Return all topics, including every topic with a record below `upto`, a frontier that is known to exist."""

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers. Gateways return them as of this call or later."""

    def close(self) -> None:
        """Release connections or files."""


def begun(source: Source, patience: float | None = None) -> Frontier:
    """Wait until the log exists, and return its frontier. A group has no log before it is founded.

    The wait for gateways is `patience` seconds, by default the read patience. Files are checked once.

    Raises:
        Unavailable: the log does not exist in time.
    """
    seconds = limits.CONNECT_TIMEOUT_US / 1e6 if patience is None else patience
    deadline = time.monotonic() + (seconds if source.addresses else 0.0)
    while not (frontier := source.frontier()).log:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable(_none_yet(source.addresses, seconds))
        time.sleep(min(left, _BEGIN_LOOK_S))
    return frontier


def _none_yet(addresses: Sequence[Address], seconds: float) -> str:
    if not addresses:
        return "the directory holds no log yet, because its gateway has not joined a founded group: start all gateways of the group"
    return f"there is no log at {', '.join(map(str, addresses))} after {seconds:g} s: {NOT_FOUNDED}"


def check_topics(topics: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the chosen topics as a tuple; None is all.

    Raises:
        UsageError: the argument is a text, not a list of names, or empty.
    """
    if topics is None:
        return None
    if isinstance(topics, str):
        raise UsageError(f"topics must be a list of names, not a text: use [{topics!r}]")
    if not isinstance(topics, Iterable):
        raise UsageError(f"topics must be a list of names, not {type(topics).__name__} ({topics!r})")
    chosen = tuple(topics)
    if not chosen:
        raise UsageError("topics is empty: name at least one topic, or omit topics to read all")
    return chosen


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


def resolve_bound(source: Source, what: str, place: object, frontier: Frontier, beyond_ok: bool = False) -> int:
    """Resolve a position to an offset. `what` ("start", "end") names it in errors; `beyond_ok` accepts an uncommitted offset.

    Raises:
        UsageError: the argument is not a position.
        OffsetOutOfRange: the offset is above the frontier or below the start of the log.
        Behind: the offset is above a stale frontier.
    """
    if isinstance(place, datetime):
        return source.offset_for_time(place)
    if place == "earliest":
        return frontier.start
    if place == "latest":
        return frontier.offset
    if isinstance(place, bool) or not isinstance(place, int):
        raise UsageError(f"{what}={place!r} is not a position in the log: use an offset, 'earliest', 'latest' or an aware datetime")
    if place < frontier.start:
        gone = "offsets are never negative"
        if place >= 0:
            gone = f"the log begins at {frontier.start}, and retention removed older records; if archived, name the archive"
        raise OffsetOutOfRange(f"{what}={place} is below the start of the log: {gone}")
    if place > frontier.offset and not beyond_ok:
        if frontier.stale:
            raise Behind(
                f"{what}={place} is above offset {frontier.offset}, the end of the log at a gateway that is cut off from the "
                f"majority of its group ({frontier.state}): name gateways of the majority, or wait until there is one"
            )
        raise OffsetOutOfRange(f"{what}={place} is above the frontier: the log is committed up to offset {frontier.offset}")
    return place


def scan_source(
    source: Source,
    start: int,
    end: int | None,
    topics: Sequence[str] | None,
    columns: Sequence[str] | None,
    follow: bool,
    absent_ok: bool,
    patience: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Implement `Source.scan` with `frontier` and `pieces`. With `follow`, `patience` limits each search for a gateway."""
    if not follow:
        for piece in source.pieces(start, source.frontier().offset if end is None else end, topics, columns, absent_ok):
            yield piece.batch
        return
    position = start
    while end is None or position < end:
        frontier = source.frontier(position, limits.LONG_POLL_US_MAX / 1e6, patience).offset
        upto = frontier if end is None else min(frontier, end)
        if upto > position:
            for piece in source.pieces(position, upto, topics, columns, absent_ok=True):
                yield piece.batch
            position = upto
