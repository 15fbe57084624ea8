"""A log together with its archive: what retention has removed is read there, and what follows in the log, without a seam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

import pyarrow as pa

from tutti.archive.catalog import Archive
from tutti.archive.reader import read
from tutti.common.address import Address
from tutti.data.frames.columns import check_columns
from tutti.errors import OffsetOutOfRange, WrongDirectory
from tutti.sources.archive import ArchiveSource
from tutti.sources.source import Frontier, Piece, Range, Source, Topic, check_topics, scan_of, time_us_of

Answer = TypeVar("Answer")


class Archived:
    """A log and its archive. What the log still holds is read there, what lies below its start, in the archive: also where
    retention comes between planning and reading.

    Args:
        log: gateways, or directories.
        archive: of the same log.
        begins: the first offset that the log held when it was asked, where that is known; asked anew with each frontier.

    Attributes:
        log, begins: these.
    """

    def __init__(self, log: Source, archive: Archive, begins: int = 0) -> None:
        """Nothing is asked yet."""
        self.log = log
        self._archive = ArchiveSource(archive)
        self.begins = begins

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Those of the log."""
        return self.log.addresses

    @property
    def heard(self) -> tuple[Address, ...]:
        """Those of the log."""
        return self.log.heard

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """That of the log, which begins where the archive does.

        Raises:
            WrongDirectory: the archive is that of another log.
        """
        found = self.log.frontier(beyond, timeout, patience)
        archive = self._archive.archive
        if not found.log:
            return found
        if found.log != archive.log:
            raise WrongDirectory(
                f"{archive.where} is the archive of log {archive.log}, and log {found.log} is read: name the archive of that one"
            )
        self.begins = max(self.begins, found.start)
        if not archive.spans:
            archive.refresh(soon=True)
        return found._replace(start=min(archive.first, found.start)) if archive.spans else found

    def scan(
        self,
        start: int,
        end: int | None = None,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        absent_ok: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Records [start, end) in offset order; arguments as in `Reads.scan`."""
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
        """As `Source.pieces`, of both."""
        if topics is not None and not absent_ok:
            self._check_known(check_topics(topics) or (), columns, left)

        def of_log(position: int) -> Iterator[Piece]:
            return self.log.pieces(position, end, topics, columns, absent_ok, left)

        yield from across(self._archive.archive, self.begins, start, end, topics, columns, of_log, self._begins_now)

    def _begins_now(self) -> int:
        self.begins = max(self.begins, self.log.frontier().start)
        return self.begins

    def _check_known(self, topics: Sequence[str], columns: Sequence[str] | None, left: Callable[[], float] | None) -> None:
        """The log knows every topic that ever was."""
        end = self.log.frontier().offset
        for _ in self.log.pieces(end, end, topics, columns, left=left):
            pass

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """The answer, also where retention has come in between.

        Raises:
            OffsetOutOfRange: what was asked for is in neither.
        """
        while True:
            begins = self.begins
            try:
                return question()
            except OffsetOutOfRange:
                if self._begins_now() <= begins:
                    raise
                self._archive.archive.refresh()

    def plan(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        splits: int | None = None,
        split_bytes: int | None = None,
    ) -> list[Range]:
        """The range cut into parts that can be read side by side, each in the archive or in the log."""
        return self._asked(lambda: self._plan(start, end, topics, splits, split_bytes))

    def _plan(self, start: int, end: int, topics: Sequence[str] | None, splits: int | None, split_bytes: int | None) -> list[Range]:
        low = min(max(self.begins, start), end)
        if splits is None:
            found = self._archive.plan(start, low, topics, split_bytes=split_bytes)
            return found if low == end else [*found, *self.log.plan(low, end, topics, split_bytes=split_bytes)]
        if low == end:
            return self._archive.plan(start, end, topics, splits=splits)
        if start == low:
            return self.log.plan(start, end, topics, splits=splits)
        before = self._archive.bytes_of(start, low, topics)
        behind = sum(part.bytes for part in self.log.plan(low, end, topics, splits=1))
        mine = min(max(1, round(splits * before / max(before + behind, 1))), max(splits - 1, 1))
        return [
            *self._archive.plan(start, low, topics, splits=mine),
            *self.log.plan(low, end, topics, splits=max(splits - mine, 1)),
        ]

    def offset_for_time(self, time: int | datetime) -> int:
        """Offset of the first record at or after a time (us since 1970, UTC, or an aware datetime), else the frontier."""
        self.frontier()
        if self._archive.archive.spans:
            found = self._archive.offset_at(time_us_of(time), self.begins)
            if found < self.begins:
                return found
        return self.log.offset_for_time(time)

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Source.tick_end`, over both."""
        return self._asked(lambda: self._tick_end(start, limit, end, every))

    def _tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        low = self.begins
        if start >= low:
            return self.log.tick_end(start, limit, end, every)
        if limit > low and (found := self.log.tick_end(low, limit, limit, every)) > low:
            return found
        if limit >= low > start and self._tick_at(low, every):
            return low
        if limit > start and (found := self._archive.tick_end(start, min(limit, low), min(limit, low), every)) > start:
            return found
        begin = max(start, limit)
        if begin < low:
            upto = min(end, low)
            if (found := self._archive.tick_end(begin, begin, upto, every)) > begin:
                return found
            if end >= low and self._tick_at(low, every):
                return low
        behind = max(begin, low)
        found = self.log.tick_end(behind, behind, end, every) if end > behind else behind
        return found if found > behind else start

    def _tick_at(self, offset: int, every: int) -> bool:
        """Whether a tick that counts stands where the log begins and the archive ends: the records on both sides tell."""
        if offset >= self.log.frontier().offset:
            return False
        behind = next(iter(self.log.pieces(offset, offset + 1, None, ("tick",)))).batch
        before = next(read(self._archive.archive, offset - 1, offset, None, ("tick",))).batch
        return bool(behind.column("tick")[0].as_py() // every > before.column("tick")[0].as_py() // every)

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """As `Source.bytes_end`; what is in the archive weighs what its files do."""
        return self._asked(lambda: self._bytes_end(start, end, bytes_max, topics))

    def _bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None) -> int:
        low = min(self.begins, end)
        if start >= low:
            return self.log.bytes_end(start, end, bytes_max, topics)
        held = self._archive.bytes_of(start, low, topics)
        if held >= bytes_max or low == end:
            return self._archive.bytes_end(start, low, bytes_max, topics)
        return max(low, self.log.bytes_end(low, end, bytes_max - held, topics))

    def topics(self, upto: int = 0) -> list[Topic]:
        """All topics, as the log says: it knows those whose records have gone, too."""
        return self.log.topics(upto)

    def readers(self) -> dict[str, int]:
        """What named readers saved."""
        return self.log.readers()

    def close(self) -> None:
        """Let go of the log."""
        self.log.close()


def across(
    archive: Archive,
    begins: int,
    start: int,
    end: int,
    topics: Sequence[str] | None,
    columns: Sequence[str] | None,
    of_log: Callable[[int], Iterator[Piece]],
    begins_now: Callable[[], int],
) -> Iterator[Piece]:
    """The records [start, end), as `Source.pieces`: from the archive up to where the log begins, then from the log.

    Args:
        begins: where the log began when it was asked last.
        of_log: gives its records from an offset up to `end`.
        begins_now: asks it where it begins by now.

    Raises:
        OffsetOutOfRange: some of them are in neither.
    """
    wanted, chosen = check_columns(columns), check_topics(topics)
    position = start
    while True:
        low = min(begins, end)
        if position < low:
            for part in read(archive, position, low, chosen, wanted):
                yield Piece(*part)
                position = part.next
            position = low
        if position >= end > start:
            return
        try:
            for piece in of_log(position):
                yield piece
                position = piece.next
            return
        except OffsetOutOfRange as error:
            begins = begins_now()
            if begins <= position:
                raise
            archive.refresh()
            if archive.span_at(position) is None:
                raise OffsetOutOfRange(f"{error}; nor is it in the archive {archive.where}, which goes to {archive.end}") from error
