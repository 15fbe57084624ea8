"""Archiving a log: range after range, as they close, and a named reader's offset behind each, so that retention may let them go.

What is in the archive is what its manifests say, and nothing else is remembered: what the log has and they have not is archived,
also between ranges that are there (a manifest was lost, or removed as damaged). A range is closed by the log itself (its ticks and
bytes), so whoever archives the same log from the same offset on makes the same ranges.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from tutti import limits
from tutti.archive.catalog import Archive
from tutti.archive.layout import Manifest
from tutti.archive.writer import Gathered, add
from tutti.errors import Damaged, DiskFull, OffsetOutOfRange, Refused, TuttiError, Unavailable, WrongDirectory
from tutti.runtime.backoff import Doubling

LOG = logging.getLogger("tutti.archive")


class Piece(Protocol):
    """Records of a log, in order."""

    @property
    def batch(self) -> pa.RecordBatch:
        """With all columns."""


class Standing(Protocol):
    """How far a log is committed: its uuid (hex), the first offset that it still holds, and the one behind its last record."""

    @property
    def log(self) -> str:
        """Empty until it has begun."""

    @property
    def start(self) -> int:
        """First offset."""

    @property
    def offset(self) -> int:
        """The frontier."""

    @property
    def stale(self) -> bool:
        """Whether gateways may have committed more."""


class ArchivedLog(Protocol):
    """What an archiver asks of a log."""

    def frontier(self) -> Standing:
        """How far it is committed."""

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Offset of the last such tick above `start` up to `limit`, else of the first up to `end`; `start`: none."""

    def bytes_end(self, start: int, end: int, bytes_max: int) -> int:
        """Where what begins with [start, end) ends so that it has so many bytes at most, or one batch."""

    def records(self, start: int, end: int) -> Iterator[Piece]:
        """The records [start, end), with all columns."""

    def readers(self) -> dict[str, int]:
        """What named readers saved."""

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        """A named reader's offset commit."""


class Settings(NamedTuple):
    """How to archive.

    Attributes:
        name: of the named reader that says how far the archive is.
        ticks: a range ends at each tick whose number this divides.
        bytes: or before the batch with which it would have more than so many.
        skip_lost: go on behind records that retention removed before they were archived.
    """

    name: str
    ticks: int = limits.ARCHIVE_RANGE_TICKS
    bytes: int = limits.ARCHIVE_RANGE_BYTES
    skip_lost: bool = False


class Archiver:
    """Archives one log.

    Attributes:
        offset: all records below it that the log still has are archived.
        frontier: how far the log was, when it was asked last.
        ranges, records, bytes: what this process added.
        failures: how often it had to wait and begin a range again.
        trouble: why it waits; empty while it does not.
    """

    def __init__(self, source: ArchivedLog, archive: Archive, settings: Settings) -> None:
        """Go on with the first record that the log has and the archive has not."""
        self._source = source
        self._archive = archive
        self._settings = settings
        self._committed = -1
        self._commit_at = 0.0
        self._start = self._told_lost = 0
        self.offset = archive.end
        self.frontier = 0
        self.ranges = self.records = self.bytes = self.failures = 0
        self.trouble = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Archive what closes until `stop` is set; `ready` is called once both sides have answered. What fails for a while is tried
        again.

        Raises:
            OffsetOutOfRange: records were removed from the log before they were archived.
            WrongDirectory, Damaged: the archive is another log's, or is damaged where it was asked.
        """
        waits = Doubling(limits.ARCHIVE_RETRY_US_MIN / 1e6, limits.ARCHIVE_RETRY_US_MAX / 1e6)
        begun = False
        while not stop.is_set():
            try:
                if not begun:
                    self.begin()
                    begun = True
                    ready()
                added = self.step()
                self.trouble = ""
                waits.reset()
                if added is None:
                    stop.wait(limits.ARCHIVE_POLL_US / 1e6)
            except (Unavailable, DiskFull) as error:
                self._told(error)
                stop.wait(waits.next_s())
        with contextlib.suppress(Unavailable):  # a start says it again
            self._commit()

    def run_once(self) -> None:
        """Archive what is closed by now.

        Raises:
            Unavailable, DiskFull: something did not answer, or there was no room; all ranges before are archived.
            OffsetOutOfRange, WrongDirectory, Damaged: as `run`.
        """
        self.begin()
        while self.step() is not None:
            pass
        self._commit()

    def begin(self) -> None:
        """See that archive and log belong together, and that the named reader says what the archive holds."""
        saved = self._saved()
        archive = self._archive
        archive.refresh()
        standing = self._source.frontier()
        if standing.log != archive.log:
            raise WrongDirectory(
                f"{archive.where} is the archive of log {archive.log}, and the gateways have log {standing.log}: "
                "archive it elsewhere"
            )
        if archive.furthest > standing.offset and standing.stale:
            raise Unavailable(
                f"{archive.where} goes to offset {archive.furthest} and the log to {standing.offset} at gateways that are cut off "
                "from a majority of their group: the archiver waits until they are not"
            )
        if archive.furthest > standing.offset:
            raise WrongDirectory(
                f"{archive.where} goes to offset {archive.furthest} and the log to {standing.offset}: the gateways have lost their "
                "end, or were given an older state; nothing is archived"
            )
        for first, end in archive.holes():
            if first < standing.start:
                LOG.warning(
                    "records %d to %d are missing in %s, and the log has them no more: put their range back from a copy",
                    *(first, min(end, standing.start) - 1, archive.where),
                )
        place, _ = self._place(standing)
        self._go_back(saved, place)
        self.offset = place

    def _place(self, standing: Standing) -> tuple[int, int | None]:
        """The first records [first, end) that the log has and the archive has not; None: up to where the log goes."""
        self.frontier = standing.offset
        archive = self._archive
        self._start = max(self._start, standing.start)  # another gateway may know less
        if archive.spans and archive.furthest < self._start:
            lost = f"records {archive.furthest} to {self._start - 1} were removed from the log before they were archived"
            if not self._settings.skip_lost:
                raise OffsetOutOfRange(
                    f"{lost}: name {self._settings.name!r} in [retention] keep_for of all gateways, and go on behind them with "
                    'lost = "skip", or with another archive'
                )
            if self._told_lost < self._start:
                LOG.warning("%s: the archive goes on behind them", lost)
                self._told_lost = self._start
        return archive.missing_at(self._start)

    def _saved(self) -> int:
        """What the named reader says. To be asked before the archive is listed: another archiver may be at work."""
        return self._source.readers().get(self._settings.name, 0)

    def _go_back(self, saved: int, place: int) -> None:
        """Have the reader say no more than the archive holds, before anything more is removed."""
        if saved > place:
            LOG.warning(
                "reader %s has saved offset %d and %s has not record %d: another archive, or ranges are lost; the reader goes back",
                *(self._settings.name, saved, self._archive.where, place),
            )
            self._source.save_offset(self._settings.name, place, True)
            self._committed = place

    def step(self) -> Manifest | None:
        """Archive the next range; None if none is closed."""
        closed = self._closed()
        if closed is not None:
            self._archive.refresh(soon=True)  # somebody else may have done it, or a range be gone
            closed = self._closed()
        if closed is None:
            self._commit()
            return None
        start, end = closed
        gathered = Gathered(start)
        for piece in self._source.records(start, end):
            gathered.take(piece.batch)
            if gathered.is_full:
                break
        if gathered.end == start:
            raise Unavailable(f"the log gave no record of [{start}, {end})")
        manifest = self._added(gathered)
        self.offset = manifest.end
        self.ranges += 1
        self.records += manifest.end - manifest.first
        self.bytes += gathered.raw_bytes
        self._commit(soon=True)
        return manifest

    def _added(self, gathered: Gathered) -> Manifest:
        try:
            return add(self._archive, gathered)
        except Damaged as error:  # a disk or a network that does not keep what it took: nothing counts, and it is written again
            raise Unavailable(str(error)) from error

    def _closed(self) -> tuple[int, int] | None:
        """The next range, if it is closed: `offset` is its beginning then."""
        standing = self._source.frontier()
        start, behind = self._place(standing)
        if start < self.offset:  # what was there is gone
            saved = self._saved()
            self._archive.refresh()
            start, behind = self._place(standing)
            self._go_back(saved, start)
        self.offset = start
        end = standing.offset if behind is None else min(behind, standing.offset)
        if end <= start:
            return None
        upto = self._source.bytes_end(start, end, self._settings.bytes)
        tick = self._source.tick_end(start, start, upto, self._settings.ticks)
        if tick > start:
            return start, tick
        # What another range follows is closed, whatever the ticks say.
        return (start, upto) if upto < standing.offset or end == behind else None

    def _commit(self, *, soon: bool = False) -> None:
        """Save the reader's offset where it moved; `soon`: unless that was done within the last second."""
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
            # Another archiver has said more.
        self._committed, self._commit_at = self.offset, now + limits.ARCHIVE_COMMIT_US / 1e6

    def _told(self, error: TuttiError) -> None:
        self.failures += 1
        if str(error) != self.trouble:
            LOG.warning("waits at offset %d: %s", self.offset, error)
        self.trouble = str(error)
