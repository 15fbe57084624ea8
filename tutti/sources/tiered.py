"""Tiered reads: records that retention has removed come from the archive, and the rest from the log."""

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
from tutti.sources.source import Frontier, Range, ScanBatch, Source, Topic, check_topics, scan_source, time_us_of

Answer = TypeVar("Answer")


class TieredSource:
    """Reads a log, and its archive for records below the start of the log, even if retention removes records during the read.

    Args:
        log: gateways, or directories.
        archive: archive of the same log.
        begins: first offset of the log at the last check, if known. Each frontier request updates it.

    Attributes:
        log, begins: as the arguments.
    """

    def __init__(self, log: Source, archive: Archive, begins: int = 0) -> None:
        """Prepare, without a request."""
        self.log = log
        self._archive = ArchiveSource(archive)
        self.begins = begins

    @property
    def addresses(self) -> tuple[Address, ...]:
        """As `Source`, from the log."""
        return self.log.addresses

    @property
    def heard(self) -> tuple[Address, ...]:
        """As `Source`, from the log."""
        return self.log.heard

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the frontier of the log, with the start of the archive.

        Raises:
            WrongDirectory: the archive belongs to another log.
        """
        found = self.log.frontier(beyond, timeout, patience)
        archive = self._archive.archive
        if not found.log:
            return found
        if found.log != archive.log:
            raise WrongDirectory(
                f"{archive.where} is the archive of log {archive.log}, but the source is log {found.log}: name that log's archive"
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
        """Yield the records [start, end) in offset order; arguments as in `Reads.scan`."""
        return scan_source(self, start, end, topics, columns, follow, absent_ok)

    def pieces(
        self,
        start: int,
        end: int,
        topics: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        absent_ok: bool = False,
        left: Callable[[], float] | None = None,
    ) -> Iterator[ScanBatch]:
        """As `Source.pieces`, from archive and log."""
        if topics is not None and not absent_ok:
            self._check_known(check_topics(topics) or (), columns, left)

        def of_log(position: int) -> Iterator[ScanBatch]:
            return self.log.pieces(position, end, topics, columns, absent_ok, left)

        yield from read_tiered(self._archive.archive, self.begins, start, end, topics, columns, of_log, self._begins_now)

    def _begins_now(self) -> int:
        self.begins = max(self.begins, self.log.frontier().start)
        return self.begins

    def _check_known(self, topics: Sequence[str], columns: Sequence[str] | None, left: Callable[[], float] | None) -> None:
        """Check the topics against the log, which keeps topics whose records retention has removed."""
        end = self.log.frontier().offset
        for _ in self.log.pieces(end, end, topics, columns, left=left):
            pass

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """Return the answer to a request, with a retry if retention removes records meanwhile.

        Raises:
            OffsetOutOfRange: neither the archive nor the log holds the range.
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
        """Split a range into parts for parallel reads, each within the archive or within the log."""
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
        """Return the offset of the first record at or after a time (us since 1970 UTC, or an aware datetime), else the frontier."""
        self.frontier()
        if self._archive.archive.spans:
            found = self._archive.offset_at(time_us_of(time), self.begins)
            if found < self.begins:
                return found
        return self.log.offset_for_time(time)

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Source.tick_end`, over archive and log."""
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
        """True if a tick that counts lies between the records before and after `offset`, where archive and log meet."""
        if offset >= self.log.frontier().offset:
            return False
        behind = next(iter(self.log.pieces(offset, offset + 1, None, ("tick",)))).batch
        before = next(read(self._archive.archive, offset - 1, offset, None, ("tick",))).batch
        return bool(behind.column("tick")[0].as_py() // every > before.column("tick")[0].as_py() // every)

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """As `Source.bytes_end`; archived records count with their bytes in the files."""
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
        """Return all topics of the log, including those whose records retention has removed."""
        return self.log.topics(upto)

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers."""
        return self.log.readers()

    def close(self) -> None:
        """Release the log."""
        self.log.close()


def read_tiered(
    archive: Archive,
    begins: int,
    start: int,
    end: int,
    topics: Sequence[str] | None,
    columns: Sequence[str] | None,
    of_log: Callable[[int], Iterator[ScanBatch]],
    begins_now: Callable[[], int],
) -> Iterator[ScanBatch]:
    """As `Source.pieces` for [start, end): from the archive up to the start of the log, then from the log.

    Args:
        begins: start of the log at the last check.
        of_log: yields the log's records from an offset up to `end`.
        begins_now: returns the current start of the log.

    Raises:
        OffsetOutOfRange: neither the archive nor the log holds some of the records.
    """
    wanted, chosen = check_columns(columns), check_topics(topics)
    position = start
    while True:
        low = min(begins, end)
        if position < low:
            for part in read(archive, position, low, chosen, wanted):
                yield ScanBatch(*part)
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
                raise OffsetOutOfRange(f"{error}; and the archive {archive.where} ends at offset {archive.end}") from error
