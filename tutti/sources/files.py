"""A `Source` that reads the committed log from data directories, whether the gateways are running or not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from types import TracebackType
from typing import Self, TypeVar

from tutti import limits
from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest, check_topics
from tutti.errors import Behind, Damaged, DirectoryRefused, OffsetOutOfRange, TuttiError, UsageError, WrongDirectory
from tutti.log.files.lane_paths import lane_of_path
from tutti.log.read.micro_batch_ends import bytes_end, tick_end
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.sources.source import Frontier, Range, Topic, time_us_of

Answer = TypeVar("Answer")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_PAUSE_S = 0.005
_PAUSE_DOWN_S = 0.1  # a longer pause, because each poll without a running gateway scans the directory again
_UNREADABLE = (Damaged, DirectoryRefused)


class FileSource:
    """Reads one data directory, or several of one log. After an error in one directory, a scan continues in another one.

    A directory whose gateway is down is readable up to the last frontier that the gateway stored, at most one heartbeat old. This
    class neither changes nor locks the directories. Thread-safe.

    Args:
        paths: a directory, or several.

    Raises (all methods):
        DirectoryRefused: no directory is readable.
        WrongDirectory: a path is not a gateway's data directory, or is the directory of a lane, or the directories have different
            logs.
        OffsetOutOfRange: the log does not hold the offsets.
        UsageError: an argument is wrong.
        Damaged: the data is corrupt in every directory that holds it.
    """

    def __init__(self, paths: Paths) -> None:
        """Open the directories."""
        self._readers = [LogReader(path) for path in _directories(paths)]
        logs = {reader.log: reader.path for reader in self._readers if reader.log}
        if len(logs) > 1:
            found = ", ".join(f"{path} holds log {log}" for log, path in logs.items())
            raise WrongDirectory(f"the directories hold different logs: {found}. Give directories of one log")
        self._seen = 0  # highest frontier returned so far; a directory with a lower frontier must not answer (rule C7)

    # -- requests

    @property
    def paths(self) -> list[str]:
        """The directories."""
        return [reader.path for reader in self._readers]

    def written_by(self) -> str:
        """Return the name of the running local gateway that writes the first directory; "" if none is visible."""
        return self._readers[0].name if self._readers[0].frontier().live else ""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Always empty: files need no gateway."""
        return ()

    responsive = addresses

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the highest frontier of the directories; with `beyond`, wait up to `timeout` seconds until it is above `beyond`.

        Directories need no gateway, so `patience` has no effect.
        """
        deadline = time.monotonic() + timeout
        while True:
            found, live = self._query(self._frontier)
            self._seen = max(self._seen, found.offset)
            left = deadline - time.monotonic()
            if beyond is None or found.offset > beyond or left <= 0:
                return found
            time.sleep(min(_PAUSE_S if live else _PAUSE_DOWN_S, left))

    def plan(self, request: ScanRequest, splits: int | None = None, split_bytes: int | None = None) -> list[Range]:
        """As `Source.plan`."""
        if splits is None and split_bytes is None:
            split_bytes = limits.SPLIT_BYTES
        return self._query(lambda reader: reader.plan(request.start, request.end, request.topics, split_bytes, splits))

    def offset_for_time(self, time: int | datetime) -> int:
        """Return the offset of the first record at or after a time (us since 1970 UTC, or an aware datetime), else the frontier."""
        time_us = time_us_of(time)
        return self._query(lambda reader: reader.offset_for_time(time_us))

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Source.tick_end`."""

        def query(reader: LogReader) -> int:
            reader.check_range(start, end)
            return tick_end(reader.ticks, start, limit, end, every)

        return self._query(query)

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """As `Source.bytes_end`."""
        chosen = check_topics(topics)
        return self._query(lambda reader: bytes_end(reader.rows(start, end, chosen), start, end, bytes_max))

    def topics(self, upto: int = 0) -> list[Topic]:
        """Return all topics, from a directory whose frontier is at least `upto`.

        Raises:
            Behind: every directory ends below `upto`.
        """
        self._seen = max(self._seen, upto)
        return [
            Topic(one.name, one.records, one.bytes, one.first_offset, one.last_offset, one.first_time, one.last_time)
            for one in self._query(LogReader.topics)
        ]

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers."""
        return dict(self._query(LogReader.state).readers)

    # -- records

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        """As `Source.scan`. Directories need no gateway, so the request's limit on waiting for gateways has no effect."""
        if request.topics is not None and not request.absent_ok:
            self._check_topics_exist(request.topics)
        position = request.start
        unreadable: dict[str, TuttiError] = {}
        while True:
            reader, upto = self._directory_for(position, request.end, unreadable)
            sequential = position > request.start
            fetched = scan(reader, position, upto, topics=request.topics, columns=request.fetched_columns, sequential=sequential)
            try:
                for batch in fetched:
                    found = request.scan_batch(batch, position)
                    position = found.next
                    yield found
                position = upto  # the records between the last batch and `upto` belong to other topics
                if position >= request.end:
                    return
            except _UNREADABLE as error:
                unreadable[reader.path] = error  # the loop continues at `position` in another directory

    def _directory_for(self, position: int, end: int, unreadable: dict[str, TuttiError]) -> tuple[LogReader, int]:
        """Return the readable directory with the highest frontier that holds `position`, and its end within the range."""
        found: list[tuple[int, LogReader]] = []
        for reader in self._readers:
            try:
                frontier = reader.frontier().offset
            except _UNREADABLE as error:
                unreadable.setdefault(reader.path, error)
                continue
            # The last condition accepts an empty range at the frontier, where no directory has a record.
            if reader.path not in unreadable and (reader.start <= position < frontier or position == end == frontier):
                found.append((min(frontier, end), reader))
        if found:
            upto, reader = max(found, key=lambda one: one[0])
            return reader, upto
        if unreadable:
            raise next(iter(unreadable.values()))
        # No directory has the position, so let the directory with the highest frontier raise the error of its range check.
        best = max(self._readers, key=lambda reader: reader.frontier().offset)
        best.check_range(position, end)
        if position >= end:
            return best, end
        raise OffsetOutOfRange(f"no directory holds offset {position}: searched {', '.join(self.paths)}")

    def _check_topics_exist(self, topics: Sequence[str]) -> None:
        if len(self._query(lambda reader: reader.topic_numbers(topics))) == len(set(topics)):
            return
        known = [topic.name for topic in self.topics()]
        for name in topics:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known topics: {', '.join(sorted(known)[:10]) or 'none yet'}"
                raise UsageError(f"the log in {', '.join(self.paths)} has no topic {name!r}: {hint}")

    def close(self) -> None:
        """Close the files; batches already returned stay valid."""
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Self:
        """Return the source itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the files."""
        self.close()

    @staticmethod
    def _frontier(reader: LogReader) -> tuple[Frontier, bool]:
        found = reader.frontier()
        frontier = Frontier(reader.log, reader.start, found.offset, found.position, found.time_us, found.tick, "files")
        return frontier, found.live

    def _query(self, query: Callable[[LogReader], Answer]) -> Answer:
        """Query the directory with the highest frontier.

        If that directory is unreadable or corrupt, query the directory with the next lower frontier, but no directory with a
        frontier below `_seen`.
        """
        failed: TuttiError | None = None
        found: list[tuple[int, int]] = []
        for index, reader in enumerate(self._readers):
            try:
                found.append((reader.frontier().offset, -index))
            except _UNREADABLE as error:
                failed = failed or error
        for offset, index in sorted(found, reverse=True):
            if offset < self._seen:  # all remaining directories have even lower frontiers
                path = self._readers[-index].path
                failed = failed or Behind(
                    f"{path} ends at offset {offset}, below the frontier {self._seen} seen before: check whether it is an old copy"
                )
                break
            try:
                return query(self._readers[-index])
            except _UNREADABLE as error:
                failed = failed or error
        raise failed or DirectoryRefused(f"none of the data directories is readable: {', '.join(self.paths)}")


def _directories(paths: object) -> list[str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths) if isinstance(paths, Iterable) else None
    if several is None or isinstance(paths, bytes):
        raise UsageError(f"path must be a data directory or a list of them, not {type(paths).__name__} ({paths!r})")
    if not several:
        raise UsageError("path is an empty list: give at least one data directory")
    for path in several:
        if not isinstance(path, str | os.PathLike) or "\0" in (named := os.fspath(path)) or not named:
            raise UsageError(f"{path!r} is not the path of a data directory: give its path as text")
        lane = lane_of_path(os.path.realpath(path))
        if lane is not None:
            raise WrongDirectory(
                f"{named} is the directory of a lane of unordered records. Read a lane from gateways by url "
                f"(tutti tail --unordered --origin {lane[1].text}); the ordered log of that gateway is in {lane[0]}"
            )
    return [os.fspath(path) for path in several]
