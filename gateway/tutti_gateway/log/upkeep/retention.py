"""Retention (design, section 6): proposes which old segments to remove, and removes them when a TRIM is decided.

A crash at any instant leaves a valid log. Files are removed only when a durable mark covers the TRIM, because the next start must
find the TRIM. Before the removal, the file `start` durably records the new start of the log, so files that remain after a crash
are ignored. The first remaining segment has a snapshot, and no ABORT or transaction refers to frames before this segment. Therefore
no start, no reader and no member that installs the snapshot needs older files.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tutti import limits as common_limits
from tutti.data.frames.bodies import TxnBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import FormatError
from tutti.log.files.disk_space import DiskSpace
from tutti.log.files.layout import list_positions, remove_before, segment_path, snapshot_path
from tutti.log.files.live_page import LivePage
from tutti.log.files.log_start import LogStart, read_start, write_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import decode_abort
from tutti.log.format.snapshot import STATE_AT, read_snapshot
from tutti.log.read.segment_catalog import Catalog
from tutti.log.read.segment_view import ReadLimit
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import TrimProposed
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.segment import Segment

NS_PER_US = 1000
SEGMENTS_REMOVED_A_STEP = 4  # number of segments removed in one step; with more, other work of the thread would wait too long
TXNS_A_STEP = 256  # number of transactions that are checked in one step
ROWS_A_STEP = 1 << 20  # number of index rows that are searched for transactions in one step


class _SegmentStart(NamedTuple):
    """A segment start at which the log may begin.

    Attributes:
        position: first position of the segment.
        offset: offset of the segment's first record. If `reach` is set, the offset after the last record of the TXN at `reach`.
        time_us: time of the last TICK before `position`, or before the TXN at `reach`; 0 if there is no such TICK.
        reach: position of the last TXN at or after `position` that makes batches before `position` visible; 0 if there is none.
        written_us: time at which this disk wrote the snapshot of the segment's start, us.
    """

    position: int
    offset: int
    time_us: int
    reach: int = 0
    written_us: int = 0


class _BackReference(NamedTuple):
    """A TXN that makes batches of earlier segments visible.

    Attributes:
        low: lowest position of the batches that the TXN makes visible.
        position: position of the TXN.
        offset: offset after the last record of the TXN.
        time_us: time of the last TICK before the TXN.
    """

    low: int
    position: int
    offset: int
    time_us: int


class _DueTrim(NamedTuple):
    """A decided TRIM that is not applied yet.

    Attributes:
        decided: a decided position at or after the position of the TRIM.
        position, offset: first position and first offset of the log after the TRIM.
    """

    decided: int
    position: int
    offset: int


class BlockedSegments(NamedTuple):
    """Segments that retention keeps because a named reader has not read them.

    Attributes:
        reader: name of the reader.
        offset: offset that the reader has committed; 0 if it has never committed one.
        bytes: total size of the blocked segments.
    """

    reader: str
    offset: int
    bytes: int

    @property
    def message(self) -> str:
        """Return the message for the operator."""
        return (
            f"retention would free {self.bytes // common_limits.MIB} MiB and waits for reader {self.reader!r}, which has committed "
            f"offset {self.offset}: start that reader, or remove its name from [retention] keep_for"
        )


class LogRetention:
    """Proposes trims of one log, and applies decided TRIMs. The writer's thread owns this object.

    Attributes:
        start: durable start of the log.
        blocked: segments that retention kept for a named reader at the last check, or None.
    """

    def __init__(
        self,
        directory: str,
        options: LogOptions,
        storage: Storage,
        disk_space: DiskSpace,
        live: LivePage,
        segments: Sequence[Segment],
        indexer: Indexer,
    ) -> None:
        """Create the retention of a log.

        Args:
            segments: the writer's list of segments that hold undecided frames.
            indexer: the writer's indexer, which has the state of the decided log.
        """
        self._segments = segments
        self._indexer = indexer
        self._directory = directory
        self._options = options
        self._storage = storage
        self._disk_space = disk_space
        self._live = live
        self.start = read_start(directory)
        self.blocked: BlockedSegments | None = None
        self._due: deque[_DueTrim] = deque()
        self._last_start = 1
        self._files_left = True  # files before the start may exist
        self._starts: dict[int, _SegmentStart] = {}
        self._back_references: list[_BackReference] = []  # TXNs up to position `_checked` that refer to earlier segments, in order
        self._checked = self._ticked = 0
        # first position of the newest segment, and (first position, bytes) of all segments
        self._sizes_cache: tuple[int, list[tuple[int, int]]] = (0, [])
        live.start(self.start.offset)
        self._decided()

    # Applying a TRIM

    def _decided(self) -> None:
        """Queue the newest TRIM if it was decided after the last call."""
        state = self._indexer.state
        if state.start > self._last_start:
            self._last_start = state.start
            if (state.start, state.start_offset) > self.start[:2]:
                self._due.append(_DueTrim(state.position, state.start, state.start_offset))

    def remove_trimmed(self, watermark: int) -> bool:
        """Remove some trimmed files, and return True if more trimmed files are left.

        Args:
            watermark: last decided position in a durable mark.

        Raises:
            OSError: the disk failed.
        """
        self._decided()
        due = None
        while self._due and self._due[0].decided <= watermark:
            due = self._due.popleft()
        # A later TRIM removes everything that the earlier ones remove, so only the last one is applied.
        if due is not None:
            self._apply(due)
        if self._files_left:
            self._files_left = remove_before(self._directory, self._storage, self.start.first, SEGMENTS_REMOVED_A_STEP)
        return self._files_left

    @property
    def files_left(self) -> bool:
        """True if files are left to remove."""
        return self._files_left

    def trim_lane(self, replicated: int, watermark: int, now_us: int) -> bool:
        """Trim a lane as far as retention allows, and return True if the start of the lane moved.

        Each gateway trims its copy of a lane alone, without a TRIM in the ordered log.

        Args:
            replicated: last position of the lane that every gateway of the roster has.
            watermark: last decided position of the lane in a durable mark.
            now_us: wall clock, us.

        Raises:
            OSError, DiskFull: the disk failed, or it is full.
        """
        proposed = self.propose(now_us)
        starts = proposed.places if proposed is not None else ()
        # Gateways that lack frames of the lane fetch them from this gateway, so only frames that every gateway has are removed.
        safe = [start for start in starts if start[0] - 1 <= min(replicated, watermark)]
        # The log can begin only at a segment with a valid snapshot, and the snapshot of a cached start may have been lost.
        newest = next((start for start in reversed(safe) if read_snapshot(self._directory, start[0]) is not None), None)
        if newest is None:
            return False
        self.set_start(LogStart(*newest))
        self._last_start = self.start.first
        return True

    def _apply(self, due: _DueTrim) -> None:
        firsts = list_positions(self._directory, "seg")
        offset = max(due.offset, self.start.offset)
        # If the log cannot begin at any of these segments, it keeps all segments, and only its first offset moves.
        good = (first for first in reversed(firsts) if self.start.first < first <= due.position and self._may_begin(first, offset))
        self.set_start(LogStart(next(good, self.start.first), offset))

    def _may_begin(self, first: int, offset: int) -> bool:
        """True if the log may begin with the segment `first`.

        The log may begin there under three conditions: the snapshot of the segment's start is valid, no later ABORT voids frames
        before the segment, and no record from `offset` on comes from a batch that was staged before the segment.
        """
        candidate = self._start_of(first)
        if candidate is None or not self._check_txns() or self._after_txns(candidate).offset > offset:
            return False
        last = self._indexer.indexed
        # An ABORT voids only undecided batches, and the number of undecided frames has a limit, so later ABORTs need no check.
        until = min(last, first + common_limits.UNDECIDED_FRAMES_MAX)
        try:
            for view, rows in Catalog(self._directory).positions(first, until, ReadLimit(last, last)):
                if any(decode_abort(view.frame(row)).start < first for row in rows[rows["kind"] == Kind.ABORT]):
                    return False
        except FormatError:
            return False  # the unreadable frame may be such an ABORT; a later call checks again, after the repair of the frame
        return True

    def set_start(self, start: LogStart) -> None:
        """Record the new start of the log durably, then publish it to readers."""
        # Callers remove files after this call. Without a durable start, a crash could leave a log that lacks its first files.
        self._disk_space.with_reserve(lambda: write_start(self._directory, start, self._storage), "a trim")
        self._live.start(start.offset)
        self.start = start
        self._files_left = True
        self._sizes_cache = (0, [])
        self._starts = {position: later for position, later in self._starts.items() if position > start.first}

    def log_replaced(self) -> None:
        """Record that a snapshot replaced the log, and read the new start of the log."""
        start = read_start(self._directory)
        self._due.clear()
        self._last_start = 1
        self.start = start
        self._starts.clear()
        self._back_references, self._checked, self._ticked = [], 0, 0
        self._sizes_cache = (0, [])
        self._files_left = True
        self._live.start(start.offset)

    # Sending the snapshot to other members

    def read_snapshot(self, position: int, at: int) -> tuple[int, int, bytes]:
        """Return a part of the snapshot with which the log begins (design, 5.4).

        Args:
            position: last position that the snapshot covers; 0 for the current first snapshot.
            at: first byte to return; at most `limits.FETCH_BYTES` bytes are returned.

        Returns:
            Last position that the snapshot covers, the size of the snapshot in bytes (0 if it does not exist), and the bytes read.
        """
        first = self.start.first
        # An untrimmed log begins without a snapshot. After a newer trim, the snapshot that the caller asks for no longer exists.
        if first == 1 or position not in (0, first - 1):
            return position, 0, b""
        path = snapshot_path(self._directory, first)
        fd = self._storage.open(path)
        try:
            size = self._storage.size(fd) - STATE_AT
            return first - 1, size, self._storage.read(fd, limits.FETCH_BYTES, STATE_AT + at)
        finally:
            self._storage.close(fd)

    # Proposing

    def propose(self, now_us: int) -> TrimProposed | None:
        """Return the trims that retention allows at wall clock `now_us`, or None.

        A trim removes only whole decided segments, and never the newest segment. If the log's files cannot be read, retention
        proposes nothing. Retention keeps all records that a reader in `keep_for` has not read, without a size limit: if these
        records fill the disk, the gateway refuses new records.
        """
        if not self._options.retention_bytes and not self._options.retention_us:
            return None
        decided = self._indexer.indexed
        try:
            segments = self._sizes()
        except OSError:
            return None
        remaining_bytes = sum(size for _, size in segments)
        starts: list[tuple[int, int]] = []
        reader, read = self._slowest_reader()
        forced = blocked_bytes = 0
        for (_, size), (position, _) in pairwise(segments):
            if position > decided or len(starts) == limits.TRIM_STARTS_MAX:
                break
            candidate = self._start_of(position)
            if candidate is not None:
                if not self._removable(remaining_bytes, candidate, now_us, 1):
                    break
                if not self._check_txns():
                    return None  # the next call continues, because one call checks only a limited number of transactions
                candidate = self._after_txns(candidate)
                # If the slowest reader in `keep_for` still needs records before this candidate, the segment stays.
                if candidate.offset > read:
                    blocked_bytes += size
                    remaining_bytes -= size
                    continue
                left = sum(size for first, size in segments if first > candidate.reach) if candidate.reach else remaining_bytes
                if self._removable(left, candidate, now_us, limits.RETENTION_LAG_FACTOR):
                    # This trim does not wait for a lagging voter, because its lag must not fill the disks of all other gateways.
                    forced = position
                    starts.append((position, candidate.offset))
                elif self._removable(left, candidate, now_us, 1) and not self._staged_before(position):
                    starts.append((position, candidate.offset))
            # If this segment has no valid snapshot, the log cannot begin here, but it may begin at a later segment.
            remaining_bytes -= size
        self.blocked = BlockedSegments(reader, read, blocked_bytes) if blocked_bytes else None
        starts = [start for start in starts if start[0] > self._last_start]
        return TrimProposed(tuple(starts), forced) if starts else None

    def _removable(self, remaining_bytes: int, candidate: _SegmentStart, now_us: int, factor: int) -> bool:
        """True if the configured limits allow removal of the segment before `candidate`. Ticks determine the age of the segment.

        Args:
            remaining_bytes: total bytes of the segments that count for the size limit.
            candidate: the start that the log has after the removal.
            now_us: wall clock, us.
            factor: number by which the configured limits are multiplied before the check.
        """
        options = self._options
        if options.retention_bytes and remaining_bytes > factor * options.retention_bytes:
            return True
        if not options.retention_us:
            return False
        since_us = self._since_us(candidate, now_us)
        return bool(since_us and now_us - since_us > factor * options.retention_us)

    def _since_us(self, candidate: _SegmentStart, now_us: int) -> int:
        """Return a time (us) at which all frames before the candidate already existed; 0 if no such time is known.

        Normally, the function returns the time of the last TICK before the candidate. If there is no such TICK, or if the TICK has
        a time in the future because of a wrong clock, the function uses a later candidate, because earlier frames are at least as
        old. If the TICK of the later candidate also has a time in the future, the function returns the time at which this disk
        wrote the snapshot of the later candidate.
        """
        if 0 < candidate.time_us <= now_us:
            return candidate.time_us
        for first, _ in self._sizes():
            later = self._start_of(first) if first >= max(candidate.position, candidate.reach) else None
            if later is not None:
                times = (later.time_us, later.written_us if later.time_us > now_us else 0)
                found = next((time_us for time_us in times if 0 < time_us <= now_us), 0)
                if found:
                    return found
        tick_us = self._indexer.state.tick_time
        return tick_us if tick_us <= now_us else 0

    def _slowest_reader(self) -> tuple[str, int]:
        """Return the slowest reader in `keep_for` and its committed offset, which is 0 if the reader has never committed one."""
        readers = self._indexer.state.readers
        # The option `keep_for` does not apply to lanes, because named readers exist only in the ordered log.
        names = () if self._options.lane else self._options.keep_for
        return min(((name, readers.get(name, 0)) for name in names), key=lambda one: one[1], default=("", limits.POSITION_MAX))

    def _sizes(self) -> list[tuple[int, int]]:
        # The sizes change only when a segment begins or a trim removes files, so they are cached until then.
        newest = self._segments[-1].first if self._segments else 0
        if self._sizes_cache[0] != newest:
            firsts = list_positions(self._directory, "seg")
            self._sizes_cache = newest, [(first, os.path.getsize(segment_path(self._directory, first))) for first in firsts]
        return self._sizes_cache[1]

    def _start_of(self, position: int) -> _SegmentStart | None:
        """Return the start of the segment at `position`, or None if the snapshot of this start is missing or corrupt."""
        candidate = self._starts.get(position)
        if candidate is None:
            snapshot = read_snapshot(self._directory, position)
            if snapshot is None:
                return None
            written_us = os.stat(snapshot_path(self._directory, position)).st_mtime_ns // NS_PER_US
            # A lane has no ticks, so the age is that of the snapshot file, written when all earlier frames were decided here.
            time_us = written_us if self._options.lane else snapshot.state.tick_time
            candidate = _SegmentStart(position, snapshot.state.next_offset, time_us, written_us=written_us)
            self._starts[position] = candidate
        return candidate

    # Transactions that refer to earlier segments

    def _staged_before(self, position: int) -> bool:
        """True if a staged batch before `position` may still become visible by a later TXN."""
        return any(staged < position for staged in self._indexer.state.staged)

    def _after_txns(self, candidate: _SegmentStart) -> _SegmentStart:
        """Return the candidate with its offset moved after all TXNs that make batches before the candidate visible."""
        over = [txn for txn in self._back_references if txn.low < candidate.position <= txn.position]
        return candidate if not over else _SegmentStart(candidate.position, over[-1].offset, over[-1].time_us, over[-1].position)

    def _check_txns(self) -> bool:
        """Check some of the TXNs that were decided after the last checked position, and return True if all TXNs are checked.

        The check stops at an unreadable frame, which may be a TXN, until the scrubber has repaired the frame.
        """
        last = self._indexer.indexed
        if self._options.lane or self._checked >= last:
            return True
        firsts = list_positions(self._directory, "seg")
        self._checked = max(self._checked, self.start.first - 1)
        self._back_references = [txn for txn in self._back_references if txn.position >= self.start.first]
        budget, until = TXNS_A_STEP, self._checked + ROWS_A_STEP
        try:
            for view, rows in Catalog(self._directory).positions(self._checked + 1, min(last, until), ReadLimit(last, last)):
                ticks = rows[rows["kind"] == Kind.TICK]
                txns = rows[rows["kind"] == Kind.TXN][:budget]
                for row in txns:
                    times = ticks["max_timestamp"][ticks["position"] < row["position"]]
                    self._note_back_reference(view.frame(row), row, int(times[-1]) if len(times) else self._ticked, firsts)
                budget -= len(txns)
                self._checked = int((rows if budget else txns)["position"][-1])
                before = ticks["max_timestamp"][ticks["position"] <= self._checked]
                self._ticked = int(before[-1]) if len(before) else self._ticked
                if not budget:
                    break
        except FormatError:
            return False
        return self._checked >= last

    def _note_back_reference(self, frame: Frame, row: np.void, time_us: int, firsts: Sequence[int]) -> None:
        """Record the TXN in `frame` if it makes batches of an earlier segment visible."""
        low = min(decode_body(TxnBody, frame.body).staged)
        at = bisect_right(firsts, low)
        if at < len(firsts) and firsts[at] <= frame.position:
            self._back_references.append(_BackReference(low, frame.position, int(row["offset"]) + int(row["count"]), time_us))
