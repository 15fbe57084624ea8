"""Reader: committed records in offset order, as batches or one by one, live or from files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from tutti import limits
from tutti.common.address import parse_url
from tutti.common.credentials import Credentials, given
from tutti.common.durations import Deadline, check_seconds, check_wait
from tutti.data.frames.columns import check_columns
from tutti.data.names import check_name
from tutti.errors import OffsetOutOfRange, Unavailable, UsageError
from tutti.reading.cursor import Cursor, Reading
from tutti.reading.lane_cursors import Origins, lane_named
from tutti.sources.files import Files, Paths
from tutti.sources.flight import Reads
from tutti.sources.source import Frontier, Piece, Place, Source, begun, check_topics, place_of


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
            what a named reader saved, as a gateway confirms it with a majority of its group, else "earliest".
        end: where to stop (exclusive), likewise; without one the frontier at this moment, or never with `follow`.
        follow: wait for records that are not committed yet.
        columns: only these columns, in this order; None is all, as in Spark.
        name: of the reader, whose position `save` commits.
        path: in place of a url: a data directory, or several of one log, with gateways up or down.
        archive: of the log: a directory or a URL (s3://BUCKET/DIR). What retention has removed is read there, then what the log
            holds, without a seam. Without url and path the archive alone is read, up to where it goes.
        ordering: "total", or "unordered": records that were sent so, from the lanes of the gateways that took them. Each batch is
            of one lane, offsets are that lane's, and the column `gateway` names its origin.
        origin: of unordered ones: a gateway, whose newest lane is read, or a lane as `position` names it; None reads all lanes, one
            after another, and while following new ones as they appear. `start` and `end` are offsets only with an origin.
        connect_timeout: seconds to find a gateway; no more than `patience`.
        patience: seconds that it looks for a gateway later on before it raises `Unavailable`.
        credentials: what it is let in with: a `Credentials`, or the path of a file with them; those that `TUTTI_TOKEN_FILE` names
            when left out.

    Raises:
        UsageError, ConfigError: an argument is wrong.
        NotAllowed: the credentials are not known, or not for these topics.
        OffsetOutOfRange: start or end lies beyond the frontier or below what the log holds.
        Unavailable: no gateway answered; the message says what was met at each, and after how long. Or the log has not begun, as
            before its group is founded; who follows waits for that. Or no gateway can confirm what a named reader saved: give it
            a `start` to read what there is.
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
        archive: str | os.PathLike[str] | None = None,
        ordering: str = "total",
        origin: str | None = None,
        connect_timeout: float = limits.CONNECT_TIMEOUT_US / 1e6,
        patience: float = limits.READ_RETRY_US / 1e6,
        credentials: Credentials | str | Path | None = None,
    ) -> None:
        """Connect and find the range."""
        _check_ordering(ordering, origin, name, path, archive)
        if (url is not None and path is not None) or (url is path is archive is None):
            raise UsageError("a reader takes a url or path=, one of them, and archive= with it or alone")
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
        self._gateways: Reads | None = None
        if url is not None:
            self._gateways = Reads(parse_url(url), connect_timeout, patience, credentials=given(credentials))
        self._source: Source = source_of(self._gateways, path, archive)
        self._goes_back = start is not None  # by its first save: a late copy of an earlier one must not take back a later one
        self._silent_since: float | None = None
        self._deadline = Deadline()
        self._closed = False
        self._lane = ""
        self._unordered = ordering == "unordered"
        self._reading = self._found(ordering, origin, start, end, connect_timeout)
        self._check_topics(connect_timeout)

    def _found(self, ordering: str, origin: str | None, start: Place | None, end: Place | None, timeout: float) -> Reading:
        """What there is to read."""
        how = self._follow, self._topics, self._columns, self._patience
        lane = ""
        # From now on one log, and gateways that know the names in it as far as this one does; who follows waits for it to begin.
        frontier = self._source.frontier() if self._follow else begun(self._source, min(timeout, self._patience))
        self._log = frontier.log
        if ordering == "unordered" and self._gateways is not None:
            if origin is None:
                return Origins(self._gateways, start, end, *how)
            info = lane_named(self._gateways, origin)
            lane, self._source = info.lane, self._gateways.of_lane(info)
            frontier = self._source.frontier()
        first = self._first(start, frontier)
        return Cursor(self._source, first, self._last(end, frontier, first), *how, lane)

    def _check_topics(self, timeout: float) -> None:
        """Ask for the topics at the frontier where the range holds nothing; any other range asks as it is read.

        Raises:
            UsageError: one of them does not exist.
            Unavailable: no gateway answered within `timeout` seconds.
        """
        if self._topics is None or self._follow or not self._reading.finished():
            return
        self._deadline.within(timeout)
        end = self._source.frontier().offset
        for _ in self._source.pieces(end, end, self._topics, self._columns, left=self._deadline.left):
            pass  # nothing: the range is empty

    def _first(self, start: Place | None, frontier: Frontier) -> int:
        if start is None and self._name is not None:
            saved = self._saved(self._name)
            if saved is not None and saved < frontier.start:
                raise OffsetOutOfRange(
                    f"reader {self._name!r} has committed offset {saved}, and the log begins at {frontier.start}: records {saved} "
                    f"to {frontier.start - 1} were removed unread; name their archive, if there is one, or give start='earliest' "
                    "to go on behind them"
                )
            if saved is not None:
                return saved
        return place_of(self._source, "start", "earliest" if start is None else start, frontier)

    def _saved(self, name: str) -> int | None:
        """The offset that the reader of a name committed last; None if there is none."""
        try:
            return self._source.readers().get(name)
        except Unavailable as error:
            raise type(error)(
                f"where reader {name!r} begins is not known, as no gateway that can confirm it answers: {error}. Wait for a "
                "gateway that is in touch with a majority of its group, or give `start` to read what there is"
            ) from error

    def _last(self, end: Place | None, frontier: Frontier, first: int) -> int | None:
        if end is None:
            return None if self._follow else max(frontier.offset, first)
        last = place_of(self._source, "end", end, frontier, beyond_ok=self._follow)
        if last < first:
            raise OffsetOutOfRange(f"the range ends at offset {last}, before it begins at {first}")
        return last

    @property
    def position(self) -> Any:
        """The offset to go on from: all records below it were given, or are not of the topics asked for.

        Of all lanes, a dict: lane -> offset.
        """
        return self._reading.position

    @property
    def end(self) -> Any:
        """The offset to stop before; None when following without end. The range is read when `position` has reached it.

        Of all lanes, a dict, as `position`.
        """
        return self._reading.end

    @property
    def log(self) -> str:
        """Uuid of the log, hex: its offsets mean nothing in another one. "" if it had not begun when this was opened."""
        return self._log

    @property
    def lane(self) -> str:
        """The lane of the last batch, as `position` of all lanes names it; empty before the first one, and for ordered records."""
        return self._lane

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The reader itself: it goes on where it is."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch; waits for it when following."""
        piece = self._next(float("inf"))
        if piece is None:
            raise StopIteration
        self._reading.advance(piece.next)
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
        self._reading.advance(piece.next)
        return piece.batch

    def records(self) -> Iterator[Record]:
        """One record after another, in place of batches: easy, and 100 times slower. `position` is behind each that was given."""
        while (piece := self._next(float("inf"))) is not None:
            batch, given = piece.batch, self._reading.mark
            columns = {name: _values(batch.column(name), name) for name in batch.schema.names}
            for offset, *row in zip(piece.offsets(), *columns.values(), strict=True):
                if self._reading.mark != given:
                    break  # somebody else went on from there
                self._reading.advance(offset + 1)
                given = self._reading.mark
                yield Record(**dict(zip(columns, row, strict=True)))

    def save(self) -> None:
        """Commit the position under the reader's name; durable when this returns. The next reader of that name begins there.

        Raises:
            UsageError: the reader has no name, reads files, or is closed.
            Refused: another reader of that name is further (code "offset"). Only one that was told where to start goes back.
        """
        self._check_open()
        if self._unordered:
            raise UsageError(_SAVES_NOTHING)
        if self._name is None:
            raise UsageError("this reader has no name: give one, as in Reader(..., name='loader')")
        if self._gateways is None:
            raise UsageError("a reader of files cannot save its position: it goes through the log, which a gateway writes")
        self._gateways.save_offset(self._name, self.position, self._goes_back)
        self._goes_back = False

    def close(self) -> None:
        """Stop; connections and files are let go. `position` and `end` stay; whatever else is asked raises `UsageError`."""
        self._closed = True
        self._reading.close()
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

    def _next(self, timeout: float) -> Piece | None:
        """What comes next from the position on, which is left where it is; None if nothing came in time or the range is read.

        Raises:
            Unavailable: no gateway answered for the reader's patience.
            UsageError: the reader is closed.
        """
        self._check_open()
        self._deadline.within(timeout)
        while not self._reading.finished():
            try:
                opened = self._reading.open(self._deadline)
                piece = self._reading.piece() if opened else None
            except Unavailable as error:
                if self._deadline.left():
                    raise  # its own patience is over
                silence = self._silence()
                if silence >= self._patience:
                    raise type(error)(f"{error} (and so it was at each poll, for {silence:.1f} s)") from error
                return None  # this poll's time is over, and the next one goes on looking
            self._silent_since = None
            if piece is not None:
                self._lane = self._reading.lane
                return piece
            if not (opened or self._deadline.left()):
                return None
        return None

    def _silence(self) -> float:
        """Seconds since the first poll in a row that no gateway answered."""
        now = time.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        return now - self._silent_since


_SAVES_NOTHING = "a reader of unordered records has no name and saves nothing: keep its `position` yourself"


def _check_ordering(ordering: object, origin: object, name: str | None, path: Paths | None, archive: object) -> None:
    """Refuse what does not go together.

    Raises:
        UsageError: the message says what.
    """
    if ordering not in ("total", "unordered"):
        raise UsageError(f"ordering={ordering!r} is not known: use 'total' or 'unordered'")
    if ordering == "total":
        if origin is not None:
            raise UsageError(f"origin={origin!r} is of unordered records: give ordering='unordered', too")
        return
    if origin is not None and (not isinstance(origin, str) or not origin):
        raise UsageError(f"origin is the name of a gateway, or of a lane, not {origin!r}")
    if name is not None:
        raise UsageError(_SAVES_NOTHING)
    if path is not None:
        raise UsageError("unordered records are read from gateways: give a url in place of path=")
    if archive is not None:
        raise UsageError("unordered records are not archived: leave archive= out")


def source_of(gateways: Reads | None, path: Paths | None, archive: str | os.PathLike[str] | None) -> Source:
    """What records are read from: gateways, or directories, or an archive, or the last together with one of them.

    Raises:
        TuttiError: as these do.
    """
    log = gateways if gateways is not None or path is None else Files(path)
    if archive is None and log is not None:
        return log
    from tutti.archive.catalog import Archive  # noqa: PLC0415 - who reads no archive loads no Parquet
    from tutti.sources.archive import ArchiveSource  # noqa: PLC0415
    from tutti.sources.tiered import Archived  # noqa: PLC0415

    held = Archive(archive if archive is not None else "")
    return ArchiveSource(held) if log is None else Archived(log, held)


def _values(column: pa.Array[Any], name: str) -> list[Any]:
    values = column.to_pylist()
    if name == "headers":
        return [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in values]
    return values
