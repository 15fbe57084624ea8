"""Reader: iterates over committed records in offset order, from gateways, data directories or an archive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa

from tutti import limits
from tutti.common.credentials import Credentials, given
from tutti.common.deadlines import Deadline, check_seconds, check_wait
from tutti.common.gateway_url import SCHEME, default_noted, url_or_default
from tutti.common.stats import ReaderStats
from tutti.data.frames.columns import check_columns, schema_of
from tutti.data.names import check_name
from tutti.data.scan_request import ScanBatch, ScanRequest, check_topics
from tutti.errors import OffsetOutOfRange, Unavailable, UsageError, install_remedy, misuse
from tutti.reading.cursor import Cursor, CursorProtocol
from tutti.reading.lane_cursors import LaneCursors, find_lane
from tutti.sources.files import FileSource, Paths
from tutti.sources.flight import NO_ANSWER, FlightSource
from tutti.sources.source import Bound, Frontier, Source, resolve_bound, wait_for_log

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Record(NamedTuple):
    """One committed record. A field is None if the reader does not select its column."""

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

    When the gateway fails, the reader continues from the same offset at another gateway, or at the same gateway after its restart.
    A reader never accepts a frontier below one that it has seen (guarantee C7). Use a reader from one thread at a time.

    A reader with an archive reads only those records from the archive that retention has removed from the log.

    Unordered records are in the lanes of the gateways. Each lane has its own offsets, and the column `gateway` names the origin.
    Without an `origin`, the reader reads all lanes one after another, and `start` and `end` cannot be offsets. With `follow`, the
    reader also reads lanes that appear later.

    Args:
        url: some gateways of the group, as tutti://HOST:P[,HOST:P...]. Without `path` and `archive`, the default is the environment
            variable `TUTTI_URL`, or tutti://127.0.0.1:7400.
        topics: topics to read (None: all).
        start: first position: an offset, "earliest", "latest", or an aware datetime (the first record at or after this time); by
            default the committed offset of a named reader, confirmed by a majority of the group, else "earliest".
        end: exclusive end of the range, in the same forms; by default the current frontier, or no end with `follow`.
        follow: wait for records that are not committed yet.
        columns: columns to return, in this order (None: all).
        name: name of the reader, under which `save` commits the position.
        path: a data directory, or several of one log, instead of a url; the gateways may be down.
        archive: archive of the log: a directory or a URL (s3://BUCKET/DIR); the only source if url and path are omitted.
        ordering: "total", or "unordered" for the unordered records in the gateways' lanes.
        origin: for unordered records: the name of a gateway (for its newest lane), or a lane as in the keys of `position`.
        connect_timeout: seconds to find a gateway when the reader opens, limited by `patience`.
        patience: seconds to search for a gateway later, before the reader raises `Unavailable`.
        credentials: a `Credentials`, or the path of a credentials file; by default the file that `TUTTI_TOKEN_FILE` names.

    Raises:
        UsageError, ConfigError: an argument is wrong.
        NotAllowed: the group does not know the credentials, or the credentials do not cover these topics.
        OffsetOutOfRange: start or end is above the frontier or below the start of the log.
        Unavailable: no gateway answered in time, and the message lists the failure of each gateway. Other causes: the group has no
            log yet (and `follow` is False), or no gateway can confirm the committed offset of a named reader without a `start`.
    """

    # An AsyncReader can close a reader while its constructor runs in another thread, so these attributes have their values before.
    _closed = False
    _gateways: FlightSource | None = None

    def __init__(
        self,
        url: str | None = None,
        topics: Sequence[str] | None = None,
        start: Bound | None = None,
        end: Bound | None = None,
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
        """Connect to a gateway and resolve the range."""
        self._deadline = Deadline()
        _check_ordering(ordering, origin, name, path, archive)
        if url is not None and path is not None:
            raise UsageError("a reader reads from exactly one of url and path=, or only from archive=; both can also have archive=")
        self._topics = check_topics(topics)
        for topic in self._topics or ():
            check_name("topic", topic)
        self._columns = check_columns(columns)
        self._name = check_name("reader", name) if name is not None else None
        check_seconds("connect_timeout", connect_timeout)
        check_seconds("patience", patience)
        if not isinstance(follow, bool):
            raise UsageError(f"follow must be True or False, not {follow!r}")
        self._follow = follow
        self._patience = patience
        if path is None and (url is not None or archive is None):
            subject = f"reader {self._name!r}" if self._name is not None else "reader"
            addresses = url_or_default(url)
            self._gateways = FlightSource(addresses, connect_timeout, patience, credentials=given(credentials), subject=subject)
            if self._closed:
                self._gateways.interrupt()
            self._origin = SCHEME + ",".join(map(str, addresses))
        else:
            self._origin = f"{path if path is not None else archive}"
        self._source: Source = source_of(self._gateways, path, archive)
        # Only the first save of a reader with a `start` may lower the committed offset.
        self._rewind = start is not None
        self._silent_since: float | None = None
        self._table_batches: list[pa.RecordBatch] = []  # batches that a failed `to_arrow` has read
        self._records_read = self._bytes_read = 0
        self._lane = ""
        self._unordered = ordering == "unordered"
        with default_noted(url if self._gateways is not None else ""):
            self._cursor = self._open_cursor(origin, start, end, connect_timeout)
        self._check_topics(connect_timeout)

    def _open_cursor(self, origin: str | None, start: Bound | None, end: Bound | None, timeout: float) -> CursorProtocol:
        """Return the cursor for the range; for all lanes, a `LaneCursors`."""
        options = self._follow, self._topics, self._columns, self._patience
        lane = ""
        # The first answer fixes the log's uuid, and a frontier below which no later answer is accepted.
        frontier = self._source.frontier() if self._follow else wait_for_log(self._source, min(timeout, self._patience))
        self._log = frontier.log
        if self._unordered and self._gateways is not None:
            if origin is None:
                return LaneCursors(self._gateways, start, end, *options)
            info = find_lane(self._gateways, origin)
            lane = info.lane
            self._gateways = self._source = self._gateways.lane_source(info)
            frontier = self._source.frontier()
        first = self._resolve_start(start, frontier)
        return Cursor(self._source, first, self._resolve_end(end, frontier, first), *options, lane)

    def _check_topics(self, timeout: float) -> None:
        """Check that the topics exist, if the range is empty. (A scan of a range with records checks the topics itself.)

        Raises:
            UsageError: a topic does not exist.
            Unavailable: no gateway answered within `timeout` seconds.
        """
        if self._topics is None or self._follow or not self._cursor.finished():
            return
        self._deadline.within(timeout)
        end = self._source.frontier().offset
        for _ in self._source.scan(ScanRequest(end, end, self._topics, self._columns, time_left=self._deadline.left)):
            pass

    def _resolve_start(self, start: Bound | None, frontier: Frontier) -> int:
        if start is None and self._name is not None:
            saved = self._committed_offset(self._name)
            if saved is not None and saved < frontier.start:
                raise OffsetOutOfRange(
                    f"reader {self._name!r} has committed offset {saved}, and the log begins at {frontier.start}: retention "
                    f"removed records {saved} to {frontier.start - 1} unread. Set archive= if an archive has these records, or "
                    "start='earliest' to skip them"
                )
            if saved is not None:
                return saved
        return resolve_bound(self._source, "start", "earliest" if start is None else start, frontier)

    def _committed_offset(self, name: str) -> int | None:
        """Return the last committed offset of a named reader; None if it never committed one."""
        try:
            return self._source.readers().get(name)
        except Unavailable as error:
            raise type(error)(
                f"the committed offset of reader {name!r} is unknown, because no gateway that can confirm it answers: {error}. "
                "Wait until a gateway reaches a majority of its group, or give `start` to read without confirmation"
            ) from error

    def _resolve_end(self, end: Bound | None, frontier: Frontier, first: int) -> int | None:
        if end is None:
            return None if self._follow else max(frontier.offset, first)
        last = resolve_bound(self._source, "end", end, frontier, beyond_ok=self._follow)
        if last < first:
            raise OffsetOutOfRange(f"the end of the range, offset {last}, is below its start, offset {first}")
        return last

    @property
    def position(self) -> Any:
        """The next offset to read: the reader has returned every selected record below this offset.

        For a reader of all lanes, a dict from lane to offset.
        """
        return self._cursor.position

    @property
    def end(self) -> Any:
        """The exclusive end offset; None for no end. The range is complete when `position` reaches the end.

        For a reader of all lanes, a dict from lane to offset.
        """
        return self._cursor.end

    @property
    def log(self) -> str:
        """The uuid (hex) of the log in which the offsets are valid; empty if the log did not exist when the reader opened."""
        return self._log

    @property
    def closed(self) -> bool:
        """True after `close`, and after the end of a `with` block."""
        return self._closed

    def stats(self) -> ReaderStats:
        """Return the current counters and gauges of the reader, also after `close`. The call needs no gateway."""
        gateways, position, lag = self._gateways, None, None
        connection = gateways.connection if gateways is not None else None
        if isinstance(self._cursor, LaneCursors):
            lag = self._cursor.lag
        elif isinstance(self._cursor, Cursor):
            position = self._cursor.position
            lag = max(0, gateways.seen - position) if gateways is not None else None
        return ReaderStats(
            name=self._name or "",
            gateway=gateways.gateway if gateways is not None else "",
            last_error=gateways.last_error if gateways is not None else "",
            connected=connection is not None and connection.connected,
            outage=connection.outage(time.monotonic()) if connection is not None else 0.0,
            reconnects=connection.reconnects if connection is not None else 0,
            failovers=connection.failovers if connection is not None else 0,
            records_read=self._records_read,
            bytes_read=self._bytes_read,
            position=position,
            lag=lag,
        )

    @property
    def lane(self) -> str:
        """The lane of the last batch, as in the keys of `position`; empty before the first batch, and for ordered records."""
        return self._lane

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return the reader itself, which continues at its position."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch; with `follow`, wait for it."""
        self._check_no_table()
        found = self._take(float("inf"))
        if found is None:
            raise StopIteration
        return found.batch

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """Return the next batch; None after `timeout` seconds without a batch, or at the end of the range (`position == end`).

        Raises:
            UsageError: `timeout` is not a number of seconds, or the reader is closed.
        """
        check_wait(timeout)
        self._check_no_table()
        found = self._take(timeout)
        return None if found is None else found.batch

    def records(self) -> Iterator[Record]:
        """Yield single records, 100 times slower than batches. `position` advances with each record."""
        self._check_no_table()
        while (found := self._next(float("inf"))) is not None:
            mark = self._cursor.mark
            for offset, record in records_of(found):
                if self._cursor.mark != mark:
                    break  # another call has moved the position, so the rest of this batch is not next
                self._cursor.advance(offset + 1)
                mark = self._cursor.mark
                yield record

    def to_arrow(self) -> pa.Table:
        """Read the rest of the range into one Arrow table, without copying the batches.

        The table has the columns and types of the reader's batches, and no rows if the range has no records. The whole range is in
        memory, so give `start`, `end` and `columns` to limit a large log. If an error ends the call, call it again: the second call
        continues, and its table also has the records that the first call has read. Until then, the other reading methods and `save`
        raise `UsageError`, because the position is after records that no call has returned.

        Raises:
            UsageError: the reader has `follow`, or the reader is closed.
            Unavailable: no gateway answered for `patience` seconds.
        """
        if self._follow:
            raise UsageError(
                "a reader with follow=True has no table, because it waits for new records: open a reader without follow"
            )
        self._check_open()
        while (found := self._take(float("inf"))) is not None:
            self._table_batches.append(found.batch)  # if an error ends the call, the list keeps the batches before the error
        batches, self._table_batches = self._table_batches, []
        return pa.Table.from_batches(batches, schema_of(self._columns))

    def to_pandas(self) -> pd.DataFrame:
        """Read the rest of the range into a pandas DataFrame, as `to_arrow` does; pandas then copies the columns.

        Raises:
            UsageError: pandas is not installed, the reader has `follow`, or the reader is closed.
            Unavailable: no gateway answered for `patience` seconds.
        """
        _import_library("pandas")
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Read the rest of the range into a Polars DataFrame, as `to_arrow` does. Polars copies only columns of text and bytes.

        Raises:
            UsageError: Polars is not installed, the reader has `follow`, or the reader is closed.
            Unavailable: no gateway answered for `patience` seconds.
        """
        polars = _import_library("polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow(), rechunk=False)
        return frame

    def save(self) -> None:
        """Commit the position under the reader's name, durably. The next reader with that name begins at the committed position.

        The first `save` of a reader with a `start` can lower the committed offset. Later saves cannot, so that a delayed retry does
        not undo a later save.

        Raises:
            UsageError: the reader has no name, reads files, or is closed.
            Refused: the committed offset is above the position (code "offset").
        """
        self._check_no_table()
        self._save(self.position)

    def _check_no_table(self) -> None:
        """Raise `UsageError` if `to_arrow` has read records that no call has returned."""
        if self._table_batches:
            raise UsageError("to_arrow failed and still has the records that it read: call it again, or create a new reader")

    def _save(self, position: Any) -> None:
        """Commit `position` as `save` does, even if the reader has moved on. Another thread may read at the same time."""
        self._check_open()
        if self._unordered:
            raise UsageError(_CANNOT_SAVE)
        if self._name is None:
            raise UsageError("this reader has no name to save under: create it with a name, as in Reader(..., name='loader')")
        if self._gateways is None:
            raise UsageError("a reader of files cannot save its position, because only a gateway writes to the log: read by url")
        self._gateways.save_offset(self._name, position, self._rewind)
        self._rewind = False

    def _interrupt(self) -> None:
        """End a call that another thread waits in, also the constructor. Later calls raise.

        An interrupted `_next` returns None, as at the end of its timeout. An interrupted constructor raises `Unavailable`.
        """
        self._closed = True
        if self._gateways is not None:
            self._gateways.interrupt()
        if hasattr(self, "_deadline"):  # otherwise the constructor has not started
            self._deadline.within(0.0)

    def close(self) -> None:
        """Release connections and files. Afterwards, `position` and `end` stay valid, and every other call raises `UsageError`."""
        self._closed = True
        if self._gateways is not None:
            self._gateways.end("the reader is closed")
        self._table_batches.clear()
        self._cursor.close()
        self._source.close()

    if not TYPE_CHECKING:  # a type checker reports these uses
        __aenter__ = __aexit__ = misuse("a Reader needs `with`: use `with Reader(...) as r`, or `async with AsyncReader(...)`")
        __aiter__ = misuse("a Reader needs `for`: use `for batch in reader`, or an AsyncReader")

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the reader."""
        self.close()

    def __repr__(self) -> str:
        """Return a one-line description: name, origin of the records, state, gateway, position and end."""
        return self._description("Reader", self.stats())

    def _description(self, kind: str, found: ReaderStats) -> str:
        state = "closed" if self._closed else f"connected to {found.gateway}" if found.connected else "without a gateway"
        name = f" {found.name!r}" if found.name else ""
        place = f"position {found.position}, end {self.end}" if found.position is not None else f"of lanes, lag {found.lag}"
        return f"<{kind}{name} of {self._origin}, {state}, {place}>"

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the reader is closed: create a new one")

    def _take(self, timeout: float) -> ScanBatch | None:
        """Return the next batch as `_next` does, and move the position after it."""
        found = self._next(timeout)
        if found is not None:
            self._cursor.advance(found.next)
        return found

    def _next(self, timeout: float) -> ScanBatch | None:
        """Return the next batch without moving the position; None after the timeout or at the end of the range.

        Raises:
            Unavailable: no gateway answered for `patience` seconds.
            UsageError: the reader is closed.
        """
        self._deadline.within(timeout)
        self._check_open()  # after the deadline is set, so that an `_interrupt` in another thread ends this call
        while not self._cursor.finished():
            try:
                opened = self._cursor.open(self._deadline)
                found = self._cursor.next_batch() if opened else None
            except Unavailable as error:
                if self._deadline.left():
                    raise  # `patience` has passed, not only the timeout of this poll
                silence = self._silence()
                if silence >= self._patience:
                    self._silent_since = None  # the next error comes only after another `patience` seconds
                    # The time in the error is that of one poll.
                    results = str(error).removeprefix(NO_ANSWER).partition(": ")[2] if str(error).startswith(NO_ANSWER) else error
                    raise type(error)(f"{NO_ANSWER} within {silence:.1f} s, and every poll has failed: {results}") from error
                return None  # only this poll timed out, so the next poll continues the search for a gateway
            self._silent_since = None
            if found is not None:
                self._lane = self._cursor.lane
                self._records_read += found.batch.num_rows
                self._bytes_read += found.batch.get_total_buffer_size()  # `nbytes` takes thirty times as long
                return found
            if not (opened or self._deadline.left()):
                return None
        return None

    def _silence(self) -> float:
        """Return the seconds since the first of the polls that failed in a row."""
        now = time.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        return now - self._silent_since


_CANNOT_SAVE = "a reader of unordered records cannot have a name or save its position: store its `position` yourself"


def _check_ordering(ordering: object, origin: object, name: str | None, path: Paths | None, archive: object) -> None:
    """Check that `ordering` and `origin` are valid and fit the other arguments.

    Raises:
        UsageError: an argument is wrong, or two arguments exclude each other.
    """
    if ordering not in ("total", "unordered"):
        raise UsageError(f"ordering={ordering!r} is not supported: use 'total' or 'unordered'")
    if ordering == "total":
        if origin is not None:
            raise UsageError(f"origin={origin!r} applies to unordered records only: add ordering='unordered'")
        return
    if origin is not None and (not isinstance(origin, str) or not origin):
        raise UsageError(f"origin={origin!r} must be the name of a gateway or of a lane")
    if name is not None:
        raise UsageError(_CANNOT_SAVE)
    if path is not None:
        raise UsageError("unordered records can be read only from gateways: give a url in place of path=")
    if archive is not None:
        raise UsageError("archives hold no unordered records: remove archive=")


def source_of(gateways: FlightSource | None, path: Paths | None, archive: str | os.PathLike[str] | None) -> Source:
    """Return the source of records: gateways, directories, an archive, or an archive together with gateways or directories.

    Raises:
        TuttiError: the directories or the archive cannot be opened.
    """
    log = gateways if gateways is not None or path is None else FileSource(path)
    if archive is None and log is not None:
        return log
    from tutti.archive.catalog import Archive  # noqa: PLC0415 - readers without an archive do not load Parquet
    from tutti.sources.archive import ArchiveSource  # noqa: PLC0415
    from tutti.sources.tiered import TieredSource  # noqa: PLC0415

    opened = Archive(archive if archive is not None else "")
    return ArchiveSource(opened) if log is None else TieredSource(log, opened)


def records_of(found: ScanBatch) -> Iterator[tuple[int, Record]]:
    """Yield the offset and the fields of each record in a batch."""
    columns = {name: _values(found.batch.column(name), name) for name in found.batch.schema.names}
    for offset, *row in zip(found.offsets(), *columns.values(), strict=True):
        yield offset, Record(**dict(zip(columns, row, strict=True)))


def _import_library(name: str) -> Any:
    """Import the library of a `to_` method before the reader reads any records.

    Raises:
        UsageError: the library is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"to_{name}() needs the package {name}, which is not installed: {install_remedy(name)}") from error


def _values(column: pa.Array[Any], name: str) -> list[Any]:
    values = column.to_pylist()
    if name == "headers":
        return [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in values]
    return values
