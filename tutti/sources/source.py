"""What a committed log can be asked for, whether gateways serve it (`Reads`) or its files are read (`Files`)."""

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

#: Why gateways have no log, and where to look.
NOT_FOUNDED = "the group is founded when all of its gateways are there, and `tutti members` says who is missing"

_BEGIN_LOOK_S = 0.25  # how often it is looked whether a log has begun
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A place in the log: an offset, "earliest", "latest", or the first record at or after an aware time.
Place = int | str | datetime

__all__ = ["Frontier", "LaneInfo", "Piece", "Place", "Range", "Source", "Topic", "begun", "check_topics", "place_of", "time_us_of"]


class Frontier(NamedTuple):
    """How far a log is committed.

    Attributes:
        log: uuid of the log, hex.
        start: first offset that it still holds.
        offset: the frontier: records below it are committed.
        position: last decided position.
        time_us, tick: time (us, UTC) and number of the last tick, 0 before any.
        state: of the gateway (primary, minority, ...); "files" when read from files.
        stale: no gateway could confirm with a majority of the group that this is all that is committed: others may have more.
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
    """A lane of unordered sends.

    Attributes:
        lane: NUMBER-INCARNATIONHEX: number of its origin, and incarnation of the disk there.
        gateway: name of the origin, "" while the log does not say it.
        newest: whether it is the one that the origin has now.
        start, frontier: its first offset, and where what is decided ends.
        position: last decided position.
        halted: why nothing can follow in it at the gateway that was asked: others may have more of it.
        lost: why that gateway cannot read it at all: only others can say how far it is.
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
    """A topic: records that were ever committed and their bytes; offset and time (us, UTC) of the first record that the log still
    holds (-1 and 0: it holds none), and of the last.
    """

    name: str
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    first_time_us: int
    last_time_us: int


class Piece(NamedTuple):
    """A batch of a scan, and the offset to go on from after it.

    `column` has its records' offsets where they do not follow each other.
    """

    batch: pa.RecordBatch
    next: int
    column: pa.Array[Any] | None = None

    def offsets(self) -> Iterable[int]:
        """The offset of each record."""
        if self.column is None:
            return range(self.next - self.batch.num_rows, self.next)
        offsets: list[int] = self.column.to_numpy().tolist()
        return offsets


class Source(Protocol):
    """Answers about one committed log."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The gateways that may be turned to, as far as they are known by now, the present one first; none for files."""

    @property
    def heard(self) -> tuple[Address, ...]:
        """Those of `addresses` that answer, as far as is known, in an order that stays; none for files."""

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """How far the log is committed; with `beyond`, once it is above that offset or `timeout` seconds are over.

        A gateway is looked for `patience` seconds. Without `beyond` it holds all that was committed before the question, or is
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
        """Records [start, end) in offset order.

        Args:
            start: first offset.
            end: offset to stop before; None is the frontier now, or never with `follow`.
            topics: only these; None is all.
            columns: only these, in this order; None is all.
            follow: continue with what is committed later, until `end`.
            absent_ok: topics that do not exist (yet) are empty; with `follow` they always are.
        """

    def pieces(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        absent_ok: bool = False,
        left: Callable[[], float] | None = None,
    ) -> Iterator[Piece]:
        """As `scan`, with the offset to go on from. `left` tells for how many seconds a gateway may be waited for now."""

    def plan(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        splits: int | None = None,
        split_bytes: int | None = None,
    ) -> list[Range]:
        """The range cut into parts that can be read side by side, between batches."""

    def offset_for_time(self, time: int | datetime) -> int:
        """Offset of the first record at or after a time (us since 1970, UTC, or an aware datetime), else the frontier."""

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Offset of the last tick above `start` up to `limit`, else of the first up to `end`; `start` when there is none.

        Only ticks whose number `every` divides count.
        """

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """Offset where what begins with [start, end) ends so that it has `bytes_max` bytes of `topics` at most, or one batch."""

    def topics(self, upto: int = 0) -> list[Topic]:
        """All topics: also those whose first record lies below `upto`, where the log is known to go so far."""

    def readers(self) -> dict[str, int]:
        """What named readers saved; of gateways, what they had saved when this was called, or later."""

    def close(self) -> None:
        """Let go of connections or files."""


def begun(source: Source, patience: float | None = None) -> Frontier:
    """How far a log is committed, once there is one: before its group is founded there is none, and that it is empty is no answer.

    Gateways are waited for up to `patience` seconds, by default as long as for one that does not answer; files stand as they are.

    Raises:
        Unavailable: there was none by then.
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
        return "no log has begun in the directory: its gateway was in no group yet that is founded; start it, and the others"
    return f"no log has begun at {', '.join(map(str, addresses))} within {seconds:g} s: {NOT_FOUNDED}"


def check_topics(topics: Sequence[str] | None) -> tuple[str, ...] | None:
    """Topics as they are asked for; None is all.

    Raises:
        UsageError: one text instead of several, no names, or none at all.
    """
    if topics is None:
        return None
    if isinstance(topics, str):
        raise UsageError(f"topics is a list of names, not a text: use [{topics!r}]")
    if not isinstance(topics, Iterable):
        raise UsageError(f"topics is a list of names, not {type(topics).__name__} ({topics!r})")
    chosen = tuple(topics)
    if not chosen:
        raise UsageError("topics is empty: name some, or leave it out for all")
    return chosen


def time_us_of(time: int | datetime) -> int:
    """A time in us since 1970, UTC.

    Raises:
        UsageError: a datetime without a zone.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise UsageError(f"the time {time.isoformat()} has no zone: give an aware datetime, as with tzinfo=UTC")
        return (time - _EPOCH) // timedelta(microseconds=1)
    return time


def place_of(source: Source, what: str, place: object, frontier: Frontier, beyond_ok: bool = False) -> int:
    """The offset of a place; `what` ("start", "end") names it in errors, `beyond_ok` takes one that is not committed yet.

    Raises:
        UsageError: it is no place.
        OffsetOutOfRange: it lies beyond the frontier or below what the log holds.
        Behind: it lies beyond the frontier, which is stale.
    """
    if isinstance(place, datetime):
        return source.offset_for_time(place)
    if place == "earliest":
        return frontier.start
    if place == "latest":
        return frontier.offset
    if isinstance(place, bool) or not isinstance(place, int):
        raise UsageError(f"{what}={place!r} is no place in the log: use an offset, 'earliest', 'latest' or an aware datetime")
    if place < frontier.start:
        gone = "there are no negative offsets"
        if place >= 0:
            gone = f"the log begins at {frontier.start}, what lay below was removed; where it was archived, name the archive"
        raise OffsetOutOfRange(f"{what}={place} is below the log: {gone}")
    if place > frontier.offset and not beyond_ok:
        if frontier.stale:
            raise Behind(
                f"{what}={place} lies beyond offset {frontier.offset}, up to which a gateway that is cut off from a majority of "
                f"its group ({frontier.state}) has the log: name gateways of the majority, or wait until there is one"
            )
        raise OffsetOutOfRange(f"{what}={place} lies beyond the frontier: the log is committed up to {frontier.offset}")
    return place


def scan_of(
    source: Source,
    start: int,
    end: int | None,
    topics: Sequence[str] | None,
    columns: Sequence[str] | None,
    follow: bool,
    absent_ok: bool,
    patience: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """What `scan` of a source is, made of its frontier and pieces. While it follows, a gateway is looked for `patience` seconds."""
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
