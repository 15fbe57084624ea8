"""Files: the committed log read from data directories, with their gateways up or down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from tutti import limits
from tutti.common.address import Address
from tutti.data.frames.columns import check_columns, schema_of
from tutti.errors import Behind, Damaged, DirectoryRefused, OffsetOutOfRange, TuttiError, UsageError, WrongDirectory
from tutti.log.files.lane_paths import lane_at
from tutti.log.read.batch_limits import bytes_end, tick_end
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.sources.source import Frontier, Piece, Range, Topic, check_topics, scan_of, time_us_of

Answer = TypeVar("Answer")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_PAUSE_S = 0.005
_PAUSE_DOWN_S = 0.1  # with its gateway down a directory is read anew at each look, and only a gateway that starts changes it
_UNREADABLE = (Damaged, DirectoryRefused)


class Files:
    """Reads one data directory, or several of one log: any that holds a range serves it, and where one is damaged another goes on.

    With its gateway down, a directory ends at the watermark that it stored last (a heartbeat old at most). Nothing in the
    directories is changed or locked. Thread-safe.

    Args:
        paths: a directory, or several.

    Raises (all methods):
        DirectoryRefused: none can be read any more.
        WrongDirectory: a path is no data directory of a gateway, or that of a lane, or they are of different logs.
        OffsetOutOfRange, UsageError: what was asked is not there, or is wrong.
        Damaged: what was asked is damaged in every directory that holds it.
    """

    def __init__(self, paths: Paths) -> None:
        """Open the directories."""
        self._readers = [LogReader(path) for path in _directories(paths)]
        logs = {reader.log: reader.path for reader in self._readers if reader.log}
        if len(logs) > 1:
            told = ", ".join(f"{path} holds log {log}" for log, path in logs.items())
            raise WrongDirectory(f"the directories are of different logs: {told}")
        self._seen = 0  # the highest frontier that was shown: a directory that ends below it answers nothing (C7)

    # -- questions

    @property
    def paths(self) -> list[str]:
        """The directories."""
        return [reader.path for reader in self._readers]

    def written_by(self) -> str:
        """Name of the gateway that runs on this machine now and writes the first directory; "" when none is seen to."""
        return self._readers[0].name if self._readers[0].frontier().live else ""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """None: files are read."""
        return ()

    heard = addresses

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """How far the log is committed, as the directory says that is furthest; with `beyond`, once it is above that offset.

        It waits up to `timeout` seconds for that; `patience` is for gateways.
        """
        deadline = time.monotonic() + timeout
        while True:
            found, live = self._ask(self._frontier)
            self._seen = max(self._seen, found.offset)
            left = deadline - time.monotonic()
            if beyond is None or found.offset > beyond or left <= 0:
                return found
            time.sleep(min(_PAUSE_S if live else _PAUSE_DOWN_S, left))

    def plan(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        splits: int | None = None,
        split_bytes: int | None = None,
    ) -> list[Range]:
        """The range cut into parts that can be read side by side, between batches; at most one of `splits`, `split_bytes`."""
        if splits is None and split_bytes is None:
            split_bytes = limits.SPLIT_BYTES
        chosen = check_topics(topics)
        return self._ask(lambda reader: reader.plan(start, end, chosen, split_bytes, splits))

    def offset_for_time(self, time: int | datetime) -> int:
        """Offset of the first record at or after a time (us since 1970, UTC, or an aware datetime), else the frontier."""
        time_us = time_us_of(time)
        return self._ask(lambda reader: reader.offset_for_time(time_us))

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Offset of the last tick above `start` up to `limit`, else of the first up to `end`; `start` when there is none.

        Only ticks whose number `every` divides count.
        """

        def ask(reader: LogReader) -> int:
            reader.check_range(start, end)
            return tick_end(reader.ticks, start, limit, end, every)

        return self._ask(ask)

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """Offset where what begins with [start, end) ends so that it has `bytes_max` bytes of `topics` at most, or one batch."""
        chosen = check_topics(topics)
        return self._ask(lambda reader: bytes_end(reader.rows(start, end, chosen), start, end, bytes_max))

    def topics(self, upto: int = 0) -> list[Topic]:
        """All topics: also those whose first record lies below `upto`, where the log is known to go so far."""
        self._seen = max(self._seen, upto)
        return [
            Topic(one.name, one.records, one.bytes, one.first_offset, one.last_offset, one.first_time, one.last_time)
            for one in self._ask(LogReader.topics)
        ]

    def readers(self) -> dict[str, int]:
        """What named readers saved."""
        return dict(self._ask(LogReader.state).readers)

    # -- records

    def scan(
        self,
        start: int,
        end: int | None = None,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        absent_ok: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Records [start, end) in offset order, as batches of exactly `schema_of(columns)`; arguments as in `Reads.scan`."""
        return scan_of(self, start, end, topics, columns, follow, absent_ok)

    def pieces(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        absent_ok: bool = False,
        left: Callable[[], float] | None = None,
    ) -> Iterator[Piece]:
        """As `scan` of a range that is committed, with the offset to go on from after each batch; `left` is for gateways."""
        wanted = check_columns(columns)
        chosen = check_topics(topics)
        if chosen is not None and not absent_ok:
            self._check_known(chosen)
        schema = schema_of(wanted)
        # Offsets of all records follow each other; of some topics' records they do not, and are asked for to know where to go on.
        asked = (*wanted, "offset") if chosen is not None and "offset" not in wanted else wanted
        position = start
        unreadable: dict[str, TuttiError] = {}
        while True:
            reader, upto = self._holder(position, end, unreadable)
            try:
                for batch in scan(reader, position, upto, topics=chosen, columns=asked, goes_on=position > start):
                    offsets = batch.column("offset") if chosen is not None else None
                    position = position + batch.num_rows if offsets is None else offsets[-1].as_py() + 1
                    if len(asked) != len(wanted):
                        batch = pa.RecordBatch.from_arrays([batch.column(name) for name in wanted], schema=schema)
                    yield Piece(batch, position, offsets)
                position = upto
                if position >= end:
                    return
            except _UNREADABLE as error:
                unreadable[reader.path] = error

    def _holder(self, position: int, end: int, unreadable: dict[str, TuttiError]) -> tuple[LogReader, int]:
        """A directory that holds `position`, furthest first, and how far it goes; not one that is unreadable there."""
        found: list[tuple[int, LogReader]] = []
        for reader in self._readers:
            try:
                frontier = reader.frontier().offset
            except _UNREADABLE as error:
                unreadable.setdefault(reader.path, error)
                continue
            if reader.path not in unreadable and (reader.start <= position < frontier or position == end == frontier):
                found.append((min(frontier, end), reader))
        if found:
            upto, reader = max(found, key=lambda one: one[0])
            return reader, upto
        if unreadable:
            raise next(iter(unreadable.values()))
        # None holds it: the one that is furthest says so, in its words.
        best = max(self._readers, key=lambda reader: reader.frontier().offset)
        best.check_range(position, end)
        if position >= end:
            return best, end
        raise OffsetOutOfRange(f"no directory holds offset {position}: {', '.join(self.paths)}")

    def _check_known(self, topics: Sequence[str]) -> None:
        if len(self._ask(lambda reader: reader.topic_numbers(topics))) == len(set(topics)):
            return
        known = [topic.name for topic in self.topics()]
        for name in topics:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known)[:10]) or 'none yet'}"
                raise UsageError(f"there is no topic {name!r} in {', '.join(self.paths)}: {hint}")

    def close(self) -> None:
        """Let the files go; batches that were given stay good."""
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    @staticmethod
    def _frontier(reader: LogReader) -> tuple[Frontier, bool]:
        found = reader.frontier()
        told = Frontier(reader.log, reader.start, found.offset, found.position, found.time_us, found.tick, "files")
        return told, found.live

    def _ask(self, question: Callable[[LogReader], Answer]) -> Answer:
        """Ask the directory that is furthest; where that cannot be read, or is damaged, the next one that is not behind."""
        failed: TuttiError | None = None
        found: list[tuple[int, int]] = []
        for index, reader in enumerate(self._readers):
            try:
                found.append((reader.frontier().offset, -index))
            except _UNREADABLE as error:
                failed = failed or error
        for offset, index in sorted(found, reverse=True):
            if offset < self._seen:
                path = self._readers[-index].path
                failed = failed or Behind(
                    f"{path} ends at offset {offset} and {self._seen} was seen: is it a copy of an older state?"
                )
                break
            try:
                return question(self._readers[-index])
            except _UNREADABLE as error:
                failed = failed or error
        raise failed or DirectoryRefused(f"no directory could be read: {', '.join(self.paths)}")


def _directories(paths: object) -> list[str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths) if isinstance(paths, Iterable) else None
    if several is None or isinstance(paths, bytes):
        raise UsageError(f"path is a data directory or a list of them, as text, not {type(paths).__name__} ({paths!r})")
    if not several:
        raise UsageError("no data directory was named")
    for path in several:
        if not isinstance(path, str | os.PathLike) or "\0" in (named := os.fspath(path)) or not named:
            raise UsageError(f"{path!r} names no data directory: give its path, as text")
        lane = lane_at(os.path.realpath(path))
        if lane is not None:
            raise WrongDirectory(
                f"{named} is the directory of a lane of unordered records, which are read from gateways by their url "
                f"(tutti tail --unordered --origin {lane[1].text}); the ordered log of that gateway is in {lane[0]}"
            )
    return [os.fspath(path) for path in several]
