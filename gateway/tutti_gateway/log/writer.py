"""The log writer: appends frames, makes them durable with group syncs, and indexes them when they are decided.

The node's disk thread owns the writer. Other threads may call only `frontier` and `heartbeat`, because these two touch no file of
the log and only write to the live page. After a failed write or sync, the writer refuses every call with `DiskFailed` and never
retries the same data, because the content of the page cache is unknown. `DiskFull` is not fatal: the caller frees space and repeats
the call. Only a full disk that a sync reports is fatal, because the synced data is already lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti.errors import DiskFailed, DiskFull, invariant
from tutti.log.files.data_directory import LogDirectory
from tutti.log.files.disk_space import DiskSpace, failure_of, failure_of_start, is_disk_full
from tutti.log.files.layout import MARK_SLOTS, SegmentHeader, read_header
from tutti.log.files.live_page import LivePage
from tutti.log.files.options import FreeSpace, LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.hard_state import HardStateFile
from tutti.log.read.segment_view import ReadLimit
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.log.upkeep import quarantine
from tutti_gateway.log.upkeep.retention import LogRetention
from tutti_gateway.log.upkeep.scrubber import LogScrubber
from tutti_gateway.log.write import truncate
from tutti_gateway.log.write.frame_fetch import FrameFetcher
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.install_snapshot import finish_replacement, replace_log
from tutti_gateway.log.write.preallocator import SegmentPreallocator
from tutti_gateway.log.write.recovery import RecoveredLog, lost_promises, recover
from tutti_gateway.log.write.segment import (
    Segment,
    begin_segment,
    log_uuid_of,
    new_segment,
    not_yet_written,
    prepared_paths,
    reopen_segment,
    size_of_next,
)
from tutti_gateway.log.write.vote_mark_tracker import End, MarkTracker

_US = 1_000_000


class LogWriter:
    """Writes the log of one data directory. Create it with `open`.

    Attributes:
        scrubber: finds and repairs corrupt frames of this log.
        retention: removes old segments of this log.
        published: last decided position that the previous run published, if this lane has lost its end before that position; else
            0.
    """

    def __init__(self, directory: LogDirectory, options: LogOptions, storage: Storage, found: RecoveredLog, live: LivePage) -> None:
        """Create a writer that continues the log at the end that recovery found."""
        self._directory = directory
        self._path = directory.path
        self._options = options
        self._storage = storage
        self._live = live
        self._failed = ""
        self._log = found.recovered.log
        self._hard_state = HardStateFile(self._path, storage, found.stored)
        frontier = (found.state.position, found.state.next_offset)
        self._marks = MarkTracker(found.end, frontier, found.mark, found.recovered.damage)
        self._end: End = found.end
        # Each write to a lane carries a mark, because the thread that writes all lanes may have no idle time for marks.
        self._late_us = 0 if options.lane else limits.MARK_LATE_US
        self._synced_at = time.monotonic()
        self._corrupt_tail = found.recovered.damage is not None  # True while corrupt bytes follow the end of the log
        self._later, self.published = found.later, found.published
        self._truncating = False  # True during a truncation or replacement, and after one that failed halfway
        # If the last segment has exactly the size of the reserve, an earlier run used the reserve as this segment.
        sizes = [read_header(self._path, segment.first).size for segment in found.segments[-1:]]
        self._disk_space = DiskSpace(self._path, options, storage, reserve_used=sizes == [options.reserved_bytes])
        self._preallocator = SegmentPreallocator(self._path, options, storage)
        self._segments = [reopen_segment(self._path, segment, storage) for segment in found.segments]
        for segment, later in zip(self._segments, self._segments[1:], strict=False):
            segment.last = later.first - 1
        self._indexer = Indexer(self._path, options, storage, self._disk_space, found, self._segments)
        self._fetcher = FrameFetcher(self._path, storage, self._segments, found.recovered.tail)
        self.retention = LogRetention(self._path, options, storage, self._disk_space, live, self._segments, self._indexer)
        self.scrubber = LogScrubber(
            self._path, storage, options, self._segments, self._indexer, self._translating, live.bump_generation
        )

    @classmethod
    def open(
        cls, directory: LogDirectory, options: LogOptions | None = None, storage: Storage | None = None
    ) -> tuple[Self, Recovered]:
        """Recover the log of a directory and return a writer that appends to it, with the recovered state.

        Raises:
            Damaged: durable data is corrupt or missing.
            WrongDirectory: the directory holds segments of another log, or a newer release wrote it.
            DiskFull, DiskFailed: the disk is full, or it failed.
        """
        options, storage = options or LogOptions(), storage or Storage()
        try:
            live = LivePage(directory.path)
        except OSError as error:
            raise failure_of("making the live page of", directory.path, error) from error
        try:
            finish_replacement(directory.path, storage, options)
            args = directory.path, storage, options
            # The live page is never synced, so `previous_frontier` returns zeros if the host has rebooted after the previous run.
            found = recover(*args, log=directory.log, live=live.previous_frontier(), failed=live.last_run_failed)
            # A disk that has lost its promises could vote twice. It becomes a new disk, which votes only after a roster change.
            (directory.become_new_disk if lost_promises(found.recovered, directory) else directory.declare_original)()
            writer = cls(directory, options, storage, found, live)
            writer._begin(found)
        except OSError as error:
            failure = failure_of_start(directory.path, error)
            # The next start reads this record, and writes the tail again instead of trusting the page cache.
            if isinstance(failure, DiskFailed):
                live.record_failure()
            live.close()
            raise failure from error
        except BaseException:
            live.close()
            raise
        return writer, found.recovered

    def _begin(self, found: RecoveredLog) -> None:
        self._indexer.complete(found)
        if self._log:
            self._directory.store_log_uuid(self._log)
        self._preallocator.remove_unusable()
        if self._options.prepared_segments:
            if not self._segments and not prepared_paths(self._path):
                self._preallocator.prepare_one(patient=False)  # makes the first writes of a new gateway faster
            self._preallocator.start()
        self._live.publish(self._indexer.state, self._segments[-1].first if self._segments else 0)

    # Writing

    def append(self, frames: Sequence[Frame], *, must: bool = False) -> None:
        """Append frames to the log in order, without a sync and without a copy.

        Frames that the log already holds are skipped, so the caller can repeat the same call after `DiskFull`. Corrupt bytes after
        the end of the log are quarantined first. Marks continue to record the end of the corrupt range until the log reaches that
        position again.

        Args:
            frames: consecutive frames that follow the end of the log.
            must: True if the frames must be written even when the disk is full; batches may then also use the reserve.

        Raises:
            DiskFull: the disk has too little free space for the frames.
            DiskFailed: the disk failed, now or earlier.
        """
        self._check_usable()
        left = not_yet_written(frames, self._end)
        if not left:
            return
        self._preallocator.log_written()
        try:
            if not self._segments:
                # A lane uses its incarnation as its uuid; the uuid of the ordered log is in the log's first frame.
                self._log = self._options.lane or log_uuid_of(left[0])
                self._begin_segment(left[0])
            if self._corrupt_tail:
                self._quarantine_tail()
            if self._marks.contradicted(left):
                self._lower_mark()
            while left:
                left = self._append_some(left, must)
        except (OSError, DiskFull) as error:
            raise self._translated("writing to", error) from error

    def _append_some(self, frames: Sequence[Frame], must: bool) -> Sequence[Frame]:
        """Write as many frames as fit into the last segment.

        If frames are left over, begin a new segment, and return the frames that are left over.
        """
        if self._disk_space.in_reserve and not must and any(frame.kind == Kind.BATCH for frame in frames):
            raise DiskFull(
                f"the disk of {self._path} is full and the reserve is only for frames that must be written: free some space"
            )
        segment = self._segments[-1]
        parts, file_positions, file_position, end = segment.fitting(frames, self._end)
        left = frames[len(file_positions) :]
        if file_positions:
            self._storage.write(segment.fd, parts, segment.file_position)
            # The mark covers frames of earlier syncs. The next sync, which these frames need anyway, makes the mark durable.
            if self._marks.due(time.monotonic(), self._late_us):
                self._write_slot(segment)
            segment.file_position = file_position
            segment.undecided.extend(file_positions)
            self._fetcher.appended(frames[: len(file_positions)] if left else frames)
            self._end = end
        if left:
            self._roll(left[0])
        return left

    def _lower_mark(self) -> None:
        """Lower the mark to the durable end, before a different frame is written at the last position of the corrupt range.

        With the old mark, the next start would find a wrong chain value at the mark, and would report mixed files.
        """
        mark = self._marks.next(self._marks.durable)
        self._hard_state.write(self._hard_state.hard_state, mark, self._hard_state.segment)
        self._marks.set(mark)
        self._marks.damage = None

    def _roll(self, frame: Frame) -> None:
        """Begin the next segment after a sync of all earlier frames, so that only the last segment can be torn."""
        self.sync()
        self._begin_segment(frame)

    def _begin_segment(self, frame: Frame) -> None:
        position, _, chain = self._end
        first, size = position + 1, size_of_next(self._options, self._segments[-1].size if self._segments else 0, frame)
        prepared = prepared_paths(self._path)
        # The mark may cover the whole log before the new segment, because `_roll` has synced these frames.
        mark = self._marks.next()
        try:
            source = prepared[0] if prepared else None
            fd = begin_segment(self._path, self._storage, SegmentHeader(self._log, first, chain, size), mark, source)
        except OSError as error:
            # The reserve is a zero-filled file, so it can become the segment without free space.
            source = self._disk_space.use_reserve() if is_disk_full(error) else None
            if source is None:
                raise
            size = self._options.reserved_bytes
            fd = begin_segment(self._path, self._storage, SegmentHeader(self._log, first, chain, size), mark, source)
        if prepared:
            self._preallocator.segment_used()
        self._live.segment(first)
        # The last segment was empty but too small for the frame, so the new, larger segment has replaced it under the same name.
        if self._segments and self._segments[-1].first == first:
            # Readers may have mapped the old file, so a new generation makes them map the new file.
            self._close_segments([self._segments.pop()])
            self._live.bump_generation()
        elif self._segments:
            self._segments[-1].last = position
        self._marks.set(mark)
        self._segments.append(new_segment(self._path, self._storage, first, fd, size))
        # The first segment needs no record in the hard state: the log's uuid in the identity file shows that the segment exists.
        if position:
            self._hard_state.write(self._hard_state.hard_state, mark, first)
        if self._indexer.state.position == position:
            self._indexer.pass_boundaries()

    def sync(self) -> None:
        """Make all appended frames durable.

        Raises:
            DiskFull: the frames are durable, but the disk has no space for the mark, which must also become durable.
            DiskFailed: the disk failed, now or earlier.
        """
        self._check_usable()
        if not self._segments:
            return
        try:
            self._sync()
            # The mark needs its own sync, because it may cover only frames that an earlier sync made durable.
            if self._options.vote_mark == "strict" and self._marks.newest.position < self._marks.durable[0]:
                self._write_slot(self._segments[-1])
                self._sync()
        except (OSError, DiskFull) as error:
            raise self._translated("syncing", error) from error

    def _sync(self) -> None:
        end, segment = self._end, self._segments[-1]
        self._storage.make_durable(segment.fd)
        self._synced_at = time.monotonic()
        if self._marks.synced(end, self._synced_at):
            # The next mark overwrites the older of the two slots, so that a torn write leaves the newest mark valid.
            segment.slot = 1 - segment.slot
        # `idle`, which refreshes the identity file, is not called while the writer is busy, so a sync also refreshes the file.
        self._directory.refresh_identity(limits.IDENTITY_FRESH_BUSY_US)

    def _write_slot(self, segment: Segment) -> None:
        """Write a mark that covers the frames of earlier syncs, at most once between two syncs."""
        if self._marks.written is None and self._marks.stale:
            mark = self._marks.next()
            self._storage.write(segment.fd, [mark.to_bytes()], MARK_SLOTS[segment.slot])
            self._marks.written = mark

    def write_hard_state(self, hard_state: HardState) -> None:
        """Make the hard state durable, together with the current mark. Accepting a view ends a reported corruption.

        Raises:
            DiskFull: the disk has too little free space.
            DiskFailed: the disk failed, now or earlier.
        """
        self._check_usable()
        with self._translating("writing the hard state of"):
            accepts = hard_state.accepted > self._hard_state.hard_state.accepted
            # The lowered mark no longer covers the lost bytes, so a later start would report a short segment file as corrupt.
            if accepts and self._corrupt_tail:
                quarantine.restore_size(self._storage, self._segments[-1])
            # When this member accepts a view, the group has abandoned the corrupt end, so the mark records the durable end again.
            mark = self._marks.next(self._marks.durable if accepts else None)
            segment = self._hard_state.segment
            # The next start removes the segments in `_later`, so the hard state must not contain one of them as the newest segment.
            if accepts and self._later:
                segment = self._segments[-1].first
            self._hard_state.write(hard_state, mark, segment)
            self._directory.refresh_identity(limits.IDENTITY_FRESH_US)
            self._marks.newest = mark
            if accepts:
                self._marks.damage = None

    @property
    def corrupt_end(self) -> Damage | None:
        """The corrupt range at the end of the log, until it is overwritten or abandoned; None if there is none."""
        return self._marks.damage

    # Truncating

    def truncate(self, position: int) -> None:
        """Truncate the log after `position`, durably. Corrupt bytes after the end are quarantined, and marks no longer cover them.

        Raises:
            InvariantViolated: a frame after `position` is decided, or the log does not reach `position`.
            Damaged: the frames up to `position` cannot be read.
            DiskFull: the disk is full and the reserve is used up; repeat the same call later.
            DiskFailed: the disk failed, now or earlier.
        """
        self._check_usable()
        decided, last = self._marks.frontier[0], self._end[0]
        invariant(
            decided <= position <= last,
            f"cannot truncate the log after position {position}: it is decided up to {decided} and ends at {last}",
        )
        # Callers rely on a durable end, so the log is synced even if no frame must be removed.
        if position == last and self._marks.damage is None:
            if self._marks.durable != self._end:
                self.sync()
            return
        self._preallocator.log_written()
        with self._translating("truncating"):
            self._quarantine_tail()
            # The remaining frames must be durable first, because the lowered mark records them as durable.
            self._sync()
            end = truncate.end_at(self._path, self._segments, self._indexer.end, position)
            self._disk_space.with_reserve(lambda: self._truncate(end), "a truncation")

    def _truncate(self, end: End) -> None:
        """Truncate on disk first and in memory last, so that the call can be repeated after a failure."""
        self._truncating = True
        position = end[0]
        # A segment that begins directly after the new end stays, because a snapshot of the segment's start may already exist.
        remaining = [segment for segment in self._segments if position and segment.first <= position + 1]
        removed = self._segments[len(remaining) :]
        file_positions = remaining[-1].file_positions_after(position, self._indexer.state.position) if remaining else []
        mark = self._marks.next(end)
        if not remaining:
            self._directory.store_log_uuid(b"")  # an empty log has no uuid, so a log with another uuid may begin in this directory
        truncate.truncate_files(
            self._path, self._storage, self._hard_state, mark, remaining[-1] if remaining else None, file_positions, removed
        )
        self._close_segments(removed)
        del self._segments[len(remaining) :]
        if remaining:
            remaining[-1].drop_last(len(file_positions))
        self._marks.truncated(end, mark)
        self._fetcher.truncated(position)
        self._end = end
        self._log = self._log if remaining else b""
        self._live.truncated(remaining[-1].first if remaining else 0)
        self._truncating = False

    def _quarantine_tail(self) -> None:
        """Quarantine corrupt bytes after the end of the log, before new frames overwrite them.

        An interrupted call can be repeated, because the marks still cover the corrupt range.
        """
        if not self._corrupt_tail:
            return
        segment = self._segments[-1]
        self._sync()
        # A tail of zeros is not copied, because it contains nothing that an operator could examine.
        if self._later or not quarantine.is_zero_after_frames(self._storage, segment):
            mark = self._marks.next()
            quarantine.quarantine_tail(self._path, self._storage, self._hard_state, mark, segment, self._later)
            self._marks.set(mark)
            self._fetcher.truncated(self._end[0])
            self._live.truncated(segment.first)
        self._corrupt_tail, self._later = False, []

    def replace(self, snapshot: bytes) -> None:
        """Replace the log with a snapshot of another gateway's decided log, durably.

        Args:
            snapshot: a `LogState` as bytes. The position of this state must be after the decided position of this log.

        Raises:
            DiskFull: the disk is full and the reserve is used up; repeat the same call later.
            DiskFailed: the disk failed, now or earlier.
        """
        self._check_usable()
        state = LogState.from_bytes(snapshot)
        decided, end = self._marks.frontier[0], (state.position, state.view, state.chain)
        invariant(
            decided < state.position,
            f"the snapshot ends at position {state.position}, but the log here is already decided up to {decided}",
        )
        self._truncating = True
        args = self._path, self._storage, self._options, self._hard_state, state, self._marks.sequence_of_next()
        with self._translating("replacing"):
            segment, mark = self._disk_space.with_reserve(lambda: replace_log(*args), "a snapshot")
        self._close_segments(self._segments)
        self._segments[:] = [segment]
        self._end, self._log, self._corrupt_tail, self._later = end, self._options.lane or state.log, False, []
        self._marks.log_replaced(end, (state.position, state.next_offset), mark)
        self._indexer.log_replaced(state)
        self._fetcher.truncated(0)
        self._directory.store_log_uuid(self._log)
        self.retention.log_replaced()
        self._live.log_replaced(state)
        self._truncating = False

    def _close_segments(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.index.close()
            self._storage.close(segment.fd)

    # Reading back

    def read(self, first: int, last: int) -> tuple[tuple[Frame, ...], int]:
        """Return durable frames from `first` on, and the last position among them that no later ABORT can void.

        `FrameFetcher.read` describes the result in detail.
        """
        # A peer relies on this disk to keep each frame that it gets from here, so only durable frames are returned.
        upto = ReadLimit(self._indexer.state.position, self._indexer.indexed)
        return self._fetcher.read(first, min(last, self._marks.durable[0]), upto)

    # Deciding

    def frontier(self, position: int, offset: int) -> None:
        """Publish the frontier to readers. The node calls this method before any receipt is sent, possibly from another thread.

        Args:
            position: last decided position.
            offset: offset after the last decided record.
        """
        self._marks.frontier = (position, offset)
        self._live.frontier(position, offset)

    def heartbeat(self, time_us: int) -> None:
        """Write the gateway's heartbeat, wall clock in us, to the live page. Another thread may call this method."""
        self._live.heartbeat(time_us)

    def decided(self, frames: Sequence[Frame], offsets: Sequence[int], aborted: Collection[int] = frozenset()) -> None:
        """Index a run of decided frames.

        After `DiskFull`, the caller must repeat the same call before it indexes the next frames. The repeated call skips index rows
        that are already written.

        Args:
            frames: decided frames in order.
            offsets: offset of each frame in `frames`.
            aborted: positions of the void batches in `frames`.

        Raises:
            DiskFull: the disk is full and the reserve is used up.
            DiskFailed: the index could not be written, or the disk failed earlier.
        """
        self._check_usable()
        try:
            self._indexer.index(frames, offsets, aborted)
            self._fetcher.decided(self._indexer.state.position)
            if frames and not self._directory.log:
                self._directory.store_log_uuid(self._log)
            self._live.indexed(self._indexer.state)
            # Files are removed only when a durable mark covers the TRIM, because the next start must find the TRIM.
            self.retention.remove_trimmed(self._marks.newest.frontier_position)
        except (OSError, DiskFull) as error:
            raise self._translated("indexing", error) from error

    # Background work

    def idle(self) -> bool:
        """Do background work while no request is queued. Return True if work is left; the caller must then call again within 10 ms.

        A call writes an outdated mark if the last sync was at least 7 ms ago. If the mark is current and the last sync was at least
        200 ms ago, the call refreshes an outdated identity file. Every call also removes trimmed files.

        Raises:
            DiskFull: the disk has no space for the mark.
            DiskFailed: the disk failed, now or earlier.
        """
        self._check_usable()
        if self._truncating or not self._segments:
            return False
        rest_us = (time.monotonic() - self._synced_at) * _US
        with self._translating("marking"):
            if self._marks.stale or self._marks.durable != self._end:
                # A write of frames within this time carries the mark, so that the mark needs no sync of its own.
                if rest_us < limits.MARK_IDLE_US - limits.MARK_LATE_US:
                    return True
                self._write_slot(self._segments[-1])
                self._sync()
            elif rest_us >= limits.IDENTITY_IDLE_US:
                # The refresh replaces the identity file, so an older copy of the directory names a file that no longer exists.
                self._directory.refresh_if_stale(limits.IDENTITY_FRESH_US)
        with self._translating("trimming"):
            return self.retention.remove_trimmed(self._marks.newest.frontier_position) or self._marks.stale

    def space(self) -> FreeSpace:
        """Return the free disk space, and whether new messages must be refused because it is low."""
        return self._disk_space.space()

    def close(self) -> None:
        """Write a current mark if needed, and close all files.

        The method does not sync appended frames: the gateway has promised only synced frames to its peers.
        """
        self._preallocator.close()
        try:
            # Without a current mark, the next start would treat later corruption of the last frames as a torn write.
            if not self._failed and not self._truncating and self._segments and self._marks.stale:
                with self._translating("marking"):
                    self._write_slot(self._segments[-1])
                    self._sync()
        finally:
            self._close_segments(self._segments)
            self._hard_state.close()
            self._live.close()

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed(self._failed)

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        """Convert system errors that the block raises to errors of the log.

        `append`, `sync` and `decided` have their own `except` clauses, because a context manager would cost too much time there.
        """
        try:
            yield
        except (OSError, DiskFull) as error:
            raise self._translated(what, error) from error

    def _translated(self, what: str, error: OSError | DiskFull) -> DiskFull | DiskFailed:
        """Convert a system error to an error of the log. If the error is not a full disk, the writer refuses all further calls."""
        failure = error if isinstance(error, DiskFull) else failure_of(what, self._path, error)
        if isinstance(failure, DiskFailed):
            self._failed = str(failure)
            self._live.record_failure()
        return failure
