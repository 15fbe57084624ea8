"""Archiver: writes closed ranges of a log to an archive, and commits an offset after each, so that retention can remove them.

The manifests alone define the content of the archive. The archiver adds every range that the log has and no manifest describes.
Such a range may lie between existing ranges, for example after the loss of a manifest. The ticks and sizes in the log determine
where a range ends, so all archivers that start at the same offset produce the same ranges.
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
    """Interface of the log that an archiver reads."""

    def frontier(self) -> LogFrontier:
        """Return the start and the end of the log at present."""

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Source.tick_end`."""

    def bytes_end(self, start: int, end: int, bytes_max: int) -> int:
        """Return the end of the longest prefix of [start, end) with at most `bytes_max` bytes, at least one batch."""

    def records(self, start: int, end: int) -> Iterator[ScanBatch]:
        """Yield the records [start, end) with all columns."""

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers."""

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        """Commit the offset of a named reader; `back` allows a lower one."""


class Settings(NamedTuple):
    """Settings of an archiver.

    Attributes:
        name: named reader whose committed offset is the end of the archive.
        ticks: a range ends at each tick whose number is divisible by `ticks`.
        bytes: a range also ends before the batch that would exceed this size.
        skip_lost: continue after records that retention removed before they were archived.
    """

    name: str
    ticks: int = limits.ARCHIVE_RANGE_TICKS
    bytes: int = limits.ARCHIVE_RANGE_BYTES
    skip_lost: bool = False


class Archiver:
    """Archives one log.

    Attributes:
        offset: all records of the log below it are archived.
        frontier: frontier of the log when it was last requested.
        ranges, records, bytes: amounts that this process has added to the archive.
        failures: number of waits after a failure.
        trouble: reason of the current wait; empty without one.
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
        """Archive ranges as they close until `stop` is set. Call `ready` once the log and the archive have answered. Retry after
        failures.

        Raises:
            OffsetOutOfRange: retention removed records before they were archived.
            WrongDirectory: the archive belongs to a different log.
            Damaged: a needed part of the archive is corrupt.
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
        with contextlib.suppress(Unavailable):  # the next start commits the same offset
            self._commit()

    def run_once(self) -> None:
        """Archive all ranges that are closed now.

        Raises:
            Unavailable: log or archive did not answer; all earlier ranges are archived.
            DiskFull: the archive's disk is full; all earlier ranges are archived.
            OffsetOutOfRange, WrongDirectory, Damaged: as `run`.
        """
        self.begin()
        while self.step() is not None:
            pass
        self._commit()

    def begin(self) -> None:
        """Check that archive and log belong together, and correct the named reader's offset to the end of the archive."""
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
        """Return the first range [first, end) that is in the log and not in the archive; end None means the end of the log."""
        self.frontier = frontier.offset
        archive = self._archive
        self._start = max(self._start, frontier.start)  # another gateway may have an older start
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
        """Return the named reader's offset. Call this before listing the archive, because another archiver may be running."""
        return self._source.readers().get(self._settings.name, 0)

    def _lower_offset(self, saved: int, position: int) -> None:
        """Lower the reader's offset to the end of the archive, before retention removes more records."""
        if saved > position:
            LOG.warning(
                "reader %s committed offset %d, but %s lacks record %d: another archive, or lost ranges; lowering the offset",
                *(self._settings.name, saved, self._archive.where, position),
            )
            self._source.save_offset(self._settings.name, position, True)
            self._committed = position

    def step(self) -> Manifest | None:
        """Archive the next closed range; return None if there is none."""
        closed = self._next_closed()
        if closed is not None:
            self._archive.refresh(soon=True)  # another archiver may have added or removed ranges
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
        if buffer.end == start:  # the range has records, but the log returned none: its answer is incomplete
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
        # the store returned other bytes than were written; no manifest names the files, so a retry is safe
        except Damaged as error:
            raise Unavailable(str(error)) from error

    def _next_closed(self) -> tuple[int, int] | None:
        """Return the next range if it is closed, and set `offset` to its start."""
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
        # Log content alone decides where a range ends, so all archivers write the same ranges.
        upto = self._source.bytes_end(start, end, self._settings.bytes)
        tick = self._source.tick_end(start, start, upto, self._settings.ticks)
        if tick > start:
            return start, tick
        # A gap before an existing range is closed regardless of ticks.
        return (start, upto) if upto < frontier.offset or end == gap_end else None

    def _commit(self, *, soon: bool = False) -> None:
        """Commit the reader's offset if it moved; with `soon`, at most once per second."""
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
            # Another archiver has committed a higher offset.
        self._committed, self._commit_at = self.offset, now + limits.ARCHIVE_COMMIT_US / 1e6

    def _report_wait(self, error: TuttiError) -> None:
        self.failures += 1
        if str(error) != self.trouble:
            LOG.warning("waiting at offset %d: %s", self.offset, error)
        self.trouble = str(error)
