"""Archiver: writes closed ranges of a log to an archive, and commits an offset after each, so that retention can remove them.

The manifests alone define the content of the archive. The archiver adds all records of the log that no manifest describes, also
between existing ranges, for example after the loss of a manifest. A range ends at a tick in the log, or before it
exceeds a number of bytes. So two archivers with the same settings that start at the same offset write equal ranges.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tutti import limits
from tutti.archive.catalog import Archive
from tutti.archive.layout import Manifest
from tutti.archive.writer import RangeBuffer, add_range
from tutti.data.scan_request import ScanBatch
from tutti.errors import Damaged, DiskFull, OffsetOutOfRange, Refused, TuttiError, Unavailable, WrongDirectory
from tutti.runtime.backoff import Backoff

LOG = logging.getLogger("tutti.archive")


class LogFrontier(Protocol):
    """The frontier of a log, with its uuid and its first offset."""

    @property
    def log(self) -> str:
        """Uuid of the log, hex; empty until the log exists."""

    @property
    def start(self) -> int:
        """First offset that the log holds."""

    @property
    def offset(self) -> int:
        """Offset after the last committed record."""

    @property
    def stale(self) -> bool:
        """True if other gateways may have committed more records."""


class ArchivedLog(Protocol):
    """Interface to the log that an archiver reads."""

    def frontier(self) -> LogFrontier:
        """Return the current start and end of the log; wait until the log exists."""

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Source.tick_end`."""

    def bytes_end(self, start: int, end: int, bytes_max: int) -> int:
        """Return the end of the longest prefix of [start, end) with at most `bytes_max` bytes, at least one batch."""

    def records(self, start: int, end: int) -> Iterator[ScanBatch]:
        """Yield the records [start, end) with all columns."""

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers."""

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        """Commit the offset of a named reader; `back` allows an offset below the committed one."""


class Settings(NamedTuple):
    """Settings of an archiver.

    Attributes:
        name: name of the reader whose committed offset protects records above it from retention until they are archived.
        ticks: end a range at each tick whose number is divisible by this.
        bytes: end a range before the batch with which it would exceed this size.
        skip_lost: continue after records that retention removed before they were archived; if false, fail.
    """

    name: str
    ticks: int = limits.ARCHIVE_RANGE_TICKS
    bytes: int = limits.ARCHIVE_RANGE_BYTES
    skip_lost: bool = False


class Archiver:
    """Archives one log.

    Attributes:
        offset: offset below which all records of the log are archived.
        frontier: frontier of the log at the last request.
        ranges, records, bytes: amounts that this process has added to the archive.
        failures: number of waits after a failure.
        trouble: reason why the archiver waits now; empty if it does not.
    """

    def __init__(self, source: ArchivedLog, archive: Archive, settings: Settings) -> None:
        """Prepare to archive from the first record that is in the log and not in the archive."""
        self._source = source
        self._archive = archive
        self._settings = settings
        self._committed = -1
        self._commit_at = 0.0
        self._start = self._reported_lost = 0
        self.offset = archive.end
        self.frontier = 0
        self.ranges = self.records = self.bytes = self.failures = 0
        self.trouble = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Archive each range when it is closed, until `stop` is set; retry after failures of the log or the archive.

        Call `ready` once, when the log and the archive have answered.

        Raises:
            OffsetOutOfRange: retention removed records before they were archived.
            WrongDirectory: the archive belongs to a different log.
            Damaged: a frame of the log that the archiver reads is corrupt.
        """
        backoff = Backoff(limits.ARCHIVE_RETRY_US_MIN / 1e6, limits.ARCHIVE_RETRY_US_MAX / 1e6)
        begun = False
        while not stop.is_set():
            try:
                if not begun:
                    self.begin()
                    begun = True
                    ready()
                added = self.step()
                self.trouble = ""
                backoff.reset()
                if added is None:
                    stop.wait(limits.ARCHIVE_POLL_US / 1e6)
            except (Unavailable, DiskFull) as error:
                self._report_wait(error)
                stop.wait(backoff.next_s())
        with contextlib.suppress(Unavailable):  # a failure does not matter, because the next start commits the same offset
            self._commit()

    def run_once(self) -> None:
        """Archive all ranges that are closed now.

        Raises:
            Unavailable: the log or the archive did not answer; all earlier ranges are archived.
            DiskFull: the archive's disk is full; all earlier ranges are archived.
            OffsetOutOfRange: retention removed records before they were archived.
            WrongDirectory: the archive belongs to a different log.
            Damaged: a frame of the log that the archiver reads is corrupt.
        """
        self.begin()
        while self.step() is not None:
            pass
        self._commit()

    def begin(self) -> None:
        """Check that the archive belongs to the log; lower the named reader's offset if it is above the end of the archive."""
        saved = self._committed_offset()
        archive = self._archive
        archive.refresh()
        frontier = self._source.frontier()
        if frontier.log != archive.log:
            raise WrongDirectory(
                f"{archive.where} is the archive of log {archive.log}, but the gateways have log {frontier.log}: "
                "use another archive"
            )
        if archive.last_end > frontier.offset and frontier.stale:
            raise Unavailable(
                f"{archive.where} ends at offset {archive.last_end}, but the log ends at {frontier.offset} at gateways cut off "
                "from the majority of their group: the archiver waits for the majority"
            )
        if archive.last_end > frontier.offset:
            raise WrongDirectory(
                f"{archive.where} ends at offset {archive.last_end}, but the log ends at {frontier.offset}: the gateways lost the "
                "end of the log, or an older state was restored; the archiver stops"
            )
        for first, end in archive.holes():
            if first < frontier.start:
                LOG.warning(
                    "records %d to %d are missing in %s, and the log no longer has them: restore their range from a copy",
                    *(first, min(end, frontier.start) - 1, archive.where),
                )
        position, _ = self._first_gap(frontier)
        self._lower_offset(saved, position)
        self.offset = position

    def _first_gap(self, frontier: LogFrontier) -> tuple[int, int | None]:
        """Return the first range [first, end) of the log that the archive lacks; end is None if no archived range follows."""
        self.frontier = frontier.offset
        archive = self._archive
        self._start = max(self._start, frontier.start)  # never decreases, although another gateway may still have older records
        if archive.spans and archive.last_end < self._start:
            lost = f"retention removed records {archive.last_end} to {self._start - 1} before they were archived"
            if not self._settings.skip_lost:
                raise OffsetOutOfRange(
                    f"{lost}: add {self._settings.name!r} to [retention] keep_for of all gateways, then continue after the gap "
                    'with lost = "skip", or use another archive'
                )
            if self._reported_lost < self._start:
                LOG.warning("%s: the archive continues after them", lost)
                self._reported_lost = self._start
        return archive.missing_at(self._start)

    def _committed_offset(self) -> int:
        """Return the named reader's offset.

        Call this before listing the archive: otherwise, if another archiver added a range and committed its end in between, the
        offset would seem too high.
        """
        return self._source.readers().get(self._settings.name, 0)

    def _lower_offset(self, saved: int, position: int) -> None:
        """Lower a committed offset that is above the end of the archive, so that retention keeps the records between the two."""
        if saved > position:
            LOG.warning(
                "reader %s committed offset %d, but %s lacks record %d: another archive, or lost ranges; lowering the offset",
                *(self._settings.name, saved, self._archive.where, position),
            )
            self._source.save_offset(self._settings.name, position, True)
            self._committed = position

    def step(self) -> Manifest | None:
        """Archive the next closed range; return None if no range is closed."""
        closed = self._next_closed()
        if closed is not None:
            self._archive.refresh(soon=True)  # so that this process skips a range that another archiver has added
            closed = self._next_closed()
        if closed is None:
            self._commit()
            return None
        start, end = closed
        buffer = RangeBuffer(start)
        for found in self._source.records(start, end):
            buffer.append(found.batch)
            if buffer.is_full:
                break
        if buffer.end == start:  # no record, although the range is not empty: the log's answer is incomplete
            raise Unavailable(f"the log returned no record of [{start}, {end}): retrying")
        manifest = self._add_range(buffer)
        self.offset = manifest.end
        self.ranges += 1
        self.records += manifest.end - manifest.first
        self.bytes += buffer.raw_bytes
        self._commit(soon=True)
        return manifest

    def _add_range(self, buffer: RangeBuffer) -> Manifest:
        try:
            return add_range(self._archive, buffer)
        # The bytes read back differ from those written. No manifest names these files, so a retry is safe.
        except Damaged as error:
            raise Unavailable(str(error)) from error

    def _next_closed(self) -> tuple[int, int] | None:
        """Return the next range if it is closed, else None; set `offset` to the start of the next range."""
        frontier = self._source.frontier()
        start, gap_end = self._first_gap(frontier)
        if start < self.offset:  # a range that was archived has disappeared
            saved = self._committed_offset()
            self._archive.refresh()
            start, gap_end = self._first_gap(frontier)
            self._lower_offset(saved, start)
        self.offset = start
        end = frontier.offset if gap_end is None else min(gap_end, frontier.offset)
        if end <= start:
            return None
        # Only the content of the log determines where a range ends, so two archivers write equal ranges.
        upto = self._source.bytes_end(start, end, self._settings.bytes)
        tick = self._source.tick_end(start, start, upto, self._settings.ticks)
        if tick > start:
            return start, tick
        # A range without a tick at which to end is closed if it has its full size, or ends where an existing range begins.
        return (start, upto) if upto < frontier.offset or end == gap_end else None

    def _commit(self, *, soon: bool = False) -> None:
        """Commit the named reader's offset if it has changed; with `soon`, at most once per second."""
        now = time.monotonic()
        if self.offset == self._committed or (soon and now < self._commit_at):
            return
        if not self._archive.spans:
            return
        try:
            self._source.save_offset(self._settings.name, self.offset)
        except Refused as error:
            if error.code != "offset":
                raise Unavailable(str(error)) from error
            # The log refuses to lower the offset, because another archiver has committed a higher one.
        self._committed, self._commit_at = self.offset, now + limits.ARCHIVE_COMMIT_US / 1e6

    def _report_wait(self, error: TuttiError) -> None:
        self.failures += 1
        if str(error) != self.trouble:
            LOG.warning("waiting at offset %d: %s", self.offset, error)
        self.trouble = str(error)
