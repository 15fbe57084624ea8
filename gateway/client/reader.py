"""Reader: committed records in offset order, as batches or one by one, live or from files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from gateway.client.files import Files, Paths
from gateway.client.reads import Reads
from gateway.client.seconds import Deadline, check_seconds, check_wait
from gateway.client.source import Frontier, Piece, Place, check_topics, place_of
from gateway.client.url import parse_url
from gateway.core import limits
from gateway.data.columns import check_columns
from gateway.data.names import check_name
from gateway.errors import OffsetOutOfRange, Unavailable, UsageError


class Record(NamedTuple):
    """One committed record; fields of columns that were not asked for are None."""

    offset: int | None = None
    topic: str | None = None
    key: bytes | None = None
    value: bytes | None = None
    timestamp: datetime | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    gateway: str | None = None
    producer: str | None = None
    sequence: int | None = None
    view: int | None = None
    tick: int | None = None


class Reader:
    """Reads a range of the committed log, or follows it. An iterator of `pyarrow.RecordBatch`, and a context manager.

    When its gateway goes away it goes on at another one, or at the same when it is back, from the same offset; it is never shown
    less than it was before. Use it from one thread at a time.

    Args:
        url: `tutti://HOST:P[,HOST:P...]`.
        topics: only records of these topics; None is all.
        start: where to begin: an offset, "earliest", "latest", or an aware datetime (the first record at or after it). Without one:
            what a named reader saved, else "earliest".
        end: where to stop (exclusive), likewise; without one the frontier at this moment, or never with `follow`.
        follow: wait for records that are not committed yet.
        columns: only these columns, in this order; None is all, as in Spark.
        name: of the reader, whose position `save` commits.
        path: in place of a url: a data directory, or several of one log, with gateways up or down.
        ordering: "total"; "unordered" is not built yet.
        connect_timeout: seconds to find a gateway; no more than `patience`.
        patience: seconds that it looks for a gateway later on before it raises `Unavailable`.

    Raises:
        UsageError, ConfigError: an argument is wrong.
        OffsetOutOfRange: start or end lies beyond the frontier or below what the log holds.
        Unavailable: no gateway answered; the message says what was met at each, and after how long.
    """

    def __init__(
        self,
        url: str | None = None,
        topics: Sequence[str] | None = None,
        start: Place | None = None,
        end: Place | None = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        name: str | None = None,
        *,
        path: Paths | None = None,
        ordering: str = "total",
        connect_timeout: float = limits.CONNECT_TIMEOUT_US / 1e6,
        patience: float = limits.READ_RETRY_US / 1e6,
    ) -> None:
        """Connect and find the range."""
        if ordering != "total":
            hint = "is not built yet" if ordering == "unordered" else "is not known"
            raise UsageError(f"ordering={ordering!r} {hint}: use ordering='total'")
        if (url is None) == (path is None):
            raise UsageError("a reader takes a url or path=: one of them")
        self._topics = check_topics(topics)
        for topic in self._topics or ():
            check_name("topic", topic)
        self._columns = check_columns(columns)
        self._name = check_name("reader", name) if name is not None else None
        check_seconds("connect_timeout", connect_timeout)
        check_seconds("patience", patience)
        if not isinstance(follow, bool):
            raise UsageError(f"follow is True or False, not {follow!r}")
        self._follow = follow
        self._patience = patience
        self._source: Reads | Files
        if url is not None:
            self._source = Reads(parse_url(url), connect_timeout, patience)
        else:
            self._source = Files(path if path is not None else "")
        self._pieces: Iterator[Piece] | None = None
        self._goes_back = start is not None  # by its first save: a late copy of an earlier one must not take back a later one
        self._silent_since: float | None = None
        self._deadline = Deadline()
        self._closed = False
        frontier = self._source.frontier()
        self._position = self._first(start, frontier)
        self._end = self._last(end, frontier)
        self._upto = self._reached = self._position

    def _first(self, start: Place | None, frontier: Frontier) -> int:
        if start is None and self._name is not None:
            saved = self._source.readers().get(self._name)
            if saved is not None and saved < frontier.start:
                raise OffsetOutOfRange(
                    f"reader {self._name!r} has committed offset {saved}, and the log begins at {frontier.start}: records {saved} "
                    f"to {frontier.start - 1} were removed unread; give start='earliest' to go on behind them"
                )
            if saved is not None:
                return saved
        return place_of(self._source, "start", "earliest" if start is None else start, frontier)

    def _last(self, end: Place | None, frontier: Frontier) -> int | None:
        if end is None:
            return None if self._follow else max(frontier.offset, self._position)
        last = place_of(self._source, "end", end, frontier, beyond_ok=self._follow)
        if last < self._position:
            raise OffsetOutOfRange(f"the range ends at offset {last}, before it begins at {self._position}")
        return last

    @property
    def position(self) -> int:
        """The offset to go on from: all records below it were given, or are not of the topics asked for."""
        return self._position

    @property
    def end(self) -> int | None:
        """The offset to stop before; None when following without end. The range is read when `position` has reached it."""
        return self._end

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The reader itself: it goes on where it is."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch; waits for it when following."""
        piece = self._next(float("inf"))
        if piece is None:
            raise StopIteration
        self._position = piece.next
        return piece.batch

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """The next batch, or None if none came within `timeout` seconds or the range is read (`position == end`).

        Raises:
            UsageError: `timeout` is no number of seconds, or the reader is closed.
        """
        check_wait(timeout)
        piece = self._next(timeout)
        if piece is None:
            return None
        self._position = piece.next
        return piece.batch

    def records(self) -> Iterator[Record]:
        """One record after another, in place of batches: easy, and 100 times slower. `position` is behind each that was given."""
        while (piece := self._next(float("inf"))) is not None:
            batch, given = piece.batch, self._position
            columns = {name: _values(batch.column(name), name) for name in batch.schema.names}
            for offset, *row in zip(piece.offsets(), *columns.values(), strict=True):
                if self._position != given:
                    break  # somebody else went on from there
                self._position = given = offset + 1
                yield Record(**dict(zip(columns, row, strict=True)))

    def save(self) -> None:
        """Commit the position under the reader's name; durable when this returns. The next reader of that name begins there.

        Raises:
            UsageError: the reader has no name, reads files, or is closed.
            Refused: another reader of that name is further (code "offset"). Only one that was told where to start goes back.
        """
        self._check_open()
        if self._name is None:
            raise UsageError("this reader has no name: give one, as in Reader(..., name='loader')")
        if isinstance(self._source, Files):
            raise UsageError("a reader of files cannot save its position: it goes through the log, which a gateway writes")
        self._source.save_offset(self._name, self._position, self._goes_back)
        self._goes_back = False

    def close(self) -> None:
        """Stop; connections and files are let go. `position` and `end` stay; whatever else is asked raises `UsageError`."""
        self._pieces = None
        self._closed = True
        self._source.close()

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the reader is closed: open another")

    def _finished(self) -> bool:
        return self._end is not None and self._position >= self._end

    def _next(self, timeout: float) -> Piece | None:
        """What comes next from the position on, which is left where it is; None if nothing came in time or the range is read.

        Raises:
            Unavailable: no gateway answered for the reader's patience.
            UsageError: the reader is closed.
        """
        self._check_open()
        self._deadline.within(timeout)
        while not self._finished():
            try:
                opened = self._open()
                piece = self._piece() if opened else None
            except Unavailable as error:
                if self._deadline.left():
                    raise  # its own patience is over
                silence = self._silence()
                if silence >= self._patience:
                    raise type(error)(f"{error} (and so it was at each poll, for {silence:.1f} s)") from error
                return None  # this poll's time is over, and the next one goes on looking
            self._silent_since = None
            if piece is not None or not (opened or self._deadline.left()):
                return piece
        return None

    def _open(self) -> bool:
        """Read on from the position, as far as the log is committed; whether there is something."""
        if self._pieces is not None and self._reached == self._position:
            return True
        self._pieces = None  # a batch was left in its middle
        upto = self._end
        if self._follow:
            left = self._deadline.left()
            frontier = self._source.frontier(self._position, left, min(left, self._patience)).offset
            if frontier <= self._position:
                return False
            upto = frontier if upto is None else min(upto, frontier)
        self._upto = self._position if upto is None else upto
        self._reached = self._position
        self._pieces = self._source.pieces(
            self._position, self._upto, self._topics, self._columns, absent_ok=self._follow, left=self._deadline.left
        )
        return True

    def _piece(self) -> Piece | None:
        """The next one of what was opened; None behind the last, and the position is at its end then."""
        pieces, self._pieces = self._pieces, None  # what raises has ended: it is opened anew where it was
        piece = None if pieces is None else next(pieces, None)
        if piece is None:
            self._position = self._upto
        else:
            self._reached, self._pieces = piece.next, pieces
        return piece

    def _silence(self) -> float:
        """Seconds since the first poll in a row that no gateway answered."""
        now = time.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        return now - self._silent_since


def _values(column: pa.Array[Any], name: str) -> list[Any]:
    values = column.to_pylist()
    if name == "headers":
        return [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in values]
    return values
