"""Tiered reads: records that retention has removed are read from the archive, and all others from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from tutti.archive.catalog import Archive
from tutti.archive.reader import read
from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import OffsetOutOfRange, WrongDirectory
from tutti.sources.archive import ArchiveSource
from tutti.sources.source import Frontier, Range, Source, Topic, time_us_of

Answer = TypeVar("Answer")


class TieredSource:
    """Reads a log, and the log's archive for records that retention has removed or removes during the read.

    Args:
        log: source of the log: gateways or data directories.
        archive: archive of the same log, for records that are no longer in the log.
        log_start: first offset of the log at the last check, if known.

    Attributes:
        log: source of the log.
        log_start: first offset of the log at the last request for the frontier.
    """

    def __init__(self, log: Source, archive: Archive, log_start: int = 0) -> None:
        """Prepare, without a request."""
        self.log = log
        self._archive = ArchiveSource(archive)
        self.log_start = log_start

    @property
    def addresses(self) -> tuple[Address, ...]:
        """As `Source`, from the log."""
        return self.log.addresses

    @property
    def responsive(self) -> tuple[Address, ...]:
        """As `Source`, from the log."""
        return self.log.responsive

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the frontier of the log, with the start of the archive.

        Raises:
            WrongDirectory: the archive belongs to a different log.
        """
        found = self.log.frontier(beyond, timeout, patience)
        archive = self._archive.archive
        if not found.log:
            return found
        if found.log != archive.log:
            raise WrongDirectory(
                f"{archive.where} is the archive of log {archive.log}, but the source is log {found.log}: "
                "use the archive of that log"
            )
        self.log_start = max(self.log_start, found.start)
        if not archive.spans:
            archive.refresh(soon=True)
        return found._replace(start=min(archive.first, found.start)) if archive.spans else found

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        """Scan as `Source.scan` does, in archive and log."""
        if request.topics is not None and not request.absent_ok:
            # Scan an empty range, so that the log checks the topics: the log still has topics whose records were removed.
            end = self.log.frontier().offset
            for _ in self.log.scan(replace(request, start=end, end=end)):
                pass
        yield from scan_tiered(self._archive.archive, self.log_start, request, self.log.scan, self._refresh_log_start)

    def _refresh_log_start(self) -> int:
        self.log_start = max(self.log_start, self.log.frontier().start)
        return self.log_start

    def _with_retries(self, query: Callable[[], Answer]) -> Answer:
        """Return the result of a query; repeat a query during which retention has moved the start of the log.

        Raises:
            OffsetOutOfRange: neither the archive nor the log holds the range.
        """
        while True:
            log_start = self.log_start
            try:
                return query()
            except OffsetOutOfRange:
                if self._refresh_log_start() <= log_start:
                    raise
                self._archive.archive.refresh()

    def plan(self, request: ScanRequest, splits: int | None = None, split_bytes: int | None = None) -> list[Range]:
        """Plan as `Source.plan` does; each part lies entirely in the archive or entirely in the log."""
        return self._with_retries(lambda: self._plan(request, splits, split_bytes))

    def _plan(self, request: ScanRequest, splits: int | None, split_bytes: int | None) -> list[Range]:
        border = min(max(self.log_start, request.start), request.end)
        archived, logged = replace(request, end=border), replace(request, start=border)
        if border == request.end:
            return self._archive.plan(archived, splits, split_bytes)
        if splits is None:
            return [*self._archive.plan(archived, split_bytes=split_bytes), *self.log.plan(logged, split_bytes=split_bytes)]
        if border == request.start:
            return self.log.plan(logged, splits)
        archived_bytes = self._archive.bytes_of(request.start, border, request.topics)
        logged_bytes = sum(part.bytes for part in self.log.plan(logged, splits=1))
        # Divide the splits between archive and log in proportion to their bytes, at least one split each.
        share = round(splits * archived_bytes / max(archived_bytes + logged_bytes, 1))
        archived_splits = min(max(1, share), max(splits - 1, 1))
        return [
            *self._archive.plan(archived, archived_splits),
            *self.log.plan(logged, max(splits - archived_splits, 1)),
        ]

    def offset_for_time(self, time: int | datetime) -> int:
        """Return the offset of the first record at or after a time (us since 1970 UTC, or an aware datetime), else the frontier."""
        self.frontier()  # called for its effects: it rejects the archive of another log, and updates `log_start`
        if self._archive.archive.spans:
            found = self._archive.offset_at(time_us_of(time), self.log_start)
            if found < self.log_start:
                return found
        return self.log.offset_for_time(time)

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Find a tick in the archive and the log, with the rules of `Source.tick_end`."""
        return self._with_retries(lambda: self._tick_end(start, limit, end, every))

    def _tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        border = self.log_start
        if start >= border:
            return self.log.tick_end(start, limit, end, every)
        # Find the last tick in (start, limit]: search the log, then the border between archive and log, then the archive.
        if limit > border and (found := self.log.tick_end(border, limit, limit, every)) > border:
            return found
        if limit >= border > start and self._has_tick_at(border, every):
            return border
        if limit > start and (found := self._archive.tick_end(start, min(limit, border), min(limit, border), every)) > start:
            return found
        # (start, limit] has no tick: find the first tick in (limit, end], in the archive, at the border, or in the log.
        first = max(start, limit)
        if first < border:
            if (found := self._archive.tick_end(first, first, min(end, border), every)) > first:
                return found
            if end >= border and self._has_tick_at(border, every):
                return border
        first = max(first, border)
        found = self.log.tick_end(first, first, end, every) if end > first else first
        return found if found > first else start

    def _has_tick_at(self, offset: int, every: int) -> bool:
        """True if a tick divisible by `every` is directly before the record at `offset`, the border between archive and log."""
        if offset >= self.log.frontier().offset:
            return False
        after = next(iter(self.log.scan(ScanRequest(offset, offset + 1, columns=("tick",))))).batch
        before = next(read(self._archive.archive, ScanRequest(offset - 1, offset, columns=("tick",)))).batch
        return bool(after.column("tick")[0].as_py() // every > before.column("tick")[0].as_py() // every)

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """As `Source.bytes_end`. The size of archived records is their size in the archive's files."""
        return self._with_retries(lambda: self._bytes_end(start, end, bytes_max, topics))

    def _bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None) -> int:
        border = min(self.log_start, end)
        if start >= border:
            return self.log.bytes_end(start, end, bytes_max, topics)
        archived = self._archive.bytes_of(start, border, topics)
        if archived >= bytes_max or border == end:
            return self._archive.bytes_end(start, border, bytes_max, topics)
        return max(border, self.log.bytes_end(border, end, bytes_max - archived, topics))

    def topics(self, upto: int = 0) -> list[Topic]:
        """Return all topics of the log, including topics whose records retention has removed."""
        return self.log.topics(upto)

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers."""
        return self.log.readers()

    def close(self) -> None:
        """Release the log."""
        self.log.close()


def scan_tiered(
    archive: Archive,
    log_start: int,
    request: ScanRequest,
    scan_log: Callable[[ScanRequest], Iterator[ScanBatch]],
    refresh_log_start: Callable[[], int],
) -> Iterator[ScanBatch]:
    """Scan as `Source.scan` does: first the archive, up to the start of the log, and then the log.

    Args:
        archive: archive of the log.
        log_start: start of the log at the last check.
        request: the request for the whole range.
        scan_log: function that scans the log.
        refresh_log_start: function that returns the current start of the log.

    Raises:
        OffsetOutOfRange: neither the archive nor the log holds some of the records.
    """
    position, end = request.start, request.end
    while True:
        archive_end = min(log_start, end)
        if position < archive_end:
            for batch in read(archive, replace(request, start=position, end=archive_end)):
                yield batch
                position = batch.next
            position = archive_end
        if position >= end > request.start:
            return
        try:
            for batch in scan_log(replace(request, start=position)):
                yield batch
                position = batch.next
            return
        except OffsetOutOfRange as error:
            # Retention has removed records during the scan: continue in the archive, or fail if the archive lacks them.
            log_start = refresh_log_start()
            if log_start <= position:
                raise
            archive.refresh()
            if archive.span_at(position) is None:
                raise OffsetOutOfRange(f"{error}; the archive {archive.where} ends at offset {archive.end}") from error
