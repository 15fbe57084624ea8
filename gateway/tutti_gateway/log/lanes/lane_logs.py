"""The lanes in a gateway's data directory (design, section 7).

Each lane has its own log, which uses the writer and the recovery of the ordered log. The directory
`DIR/lanes/NUMBER-INCARNATION/` has the files of a data directory except the lock. The log of a lane begins with a VIEW frame and
contains only VIEW and BATCH frames. The uuid of a lane's log is the incarnation in the lane's name. In the hard state of this
gateway's lane, `promised` is the highest attempt. In lanes of other gateways, `promised` is 0. Before the first write to its own
lane, the gateway stores the lane's name in the file `DIR/lane`, so that a start detects a missing lane.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

import msgspec

from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti.data.lane_name import NEW_LANE_REMEDY, LaneName
from tutti.data.log_state import LogState
from tutti.errors import Damaged, DiskFull, WrongDirectory
from tutti.log.files.data_directory import DataDirectory
from tutti.log.files.disk_space import failure_of
from tutti.log.files.lane_paths import OWN, lane_path, list_lanes, recorded_own_lane
from tutti.log.files.options import LogOptions
from tutti.log.files.parallel_fsync import sync_in_parallel
from tutti.log.files.storage import Storage
from tutti.log.format.snapshot import read_snapshot
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane, ReadLane, RepairLane
from tutti_gateway.core.protocol.events import LaneCorrupt, LaneLog, Recovered
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.log.lanes.lane_directory import open_lane_directory
from tutti_gateway.log.lanes.lane_recovery import LaneQuarantine, lost_end, lost_end_hard_state, lost_end_message, salvage
from tutti_gateway.log.lanes.lane_scrubber import LaneScrubber
from tutti_gateway.log.writer import LogWriter

US = 1_000_000


def path_of_disk(directory: str, incarnation: bytes) -> str:
    """Return the directory of a disk's lane.

    Raises:
        WrongDirectory: the data directory has no such lane.
    """
    for lane in list_lanes(directory):
        if lane.incarnation == incarnation:
            return lane_path(directory, lane)
    raise WrongDirectory(f"{directory} holds no lane of disk {incarnation.hex()}")


class LaneWriter(LogWriter):
    """Writes the log of a lane."""

    @property
    def at_rest(self) -> bool:
        """True if the lane has no background work: its mark is current, and no trimmed files are left."""
        return not self._marks.stale and self._marks.durable == self._end and not self.retention.files_left

    @property
    def last_decided(self) -> int:
        """Return the last decided position."""
        return self._indexer.state.position

    def apply_retention(self, replicated: int, now_us: int) -> bool:
        """Trim the frames that retention may remove and that every gateway of the roster has.

        Return True if frames were trimmed, or if trimmed files are left to remove.

        Args:
            replicated: last position of this lane that every gateway of the roster has.
            now_us: wall clock, us.
        """
        if self._truncating:
            return False  # the start of the lane may still change, because a failed truncation or replacement will be repeated
        watermark = self._marks.newest.frontier_position
        with self._translating("trimming"):
            trimmed = self.retention.trim_lane(replicated, watermark, now_us)
            return self.retention.remove_trimmed(watermark) or trimmed

    def frontier(self, position: int, offset: int) -> None:
        """Publish the frontier, unless a snapshot has already moved the lane to a later position."""
        if position > self._marks.frontier[0]:
            super().frontier(position, offset)

    def delete_producers(self, producers: Iterable[int]) -> None:
        """Delete the state of producers that the ordered log has deleted. Their numbers are never assigned again."""
        for number in producers:
            self._indexer.state.producers.pop(number, None)

    def delete_unknown_producers(self, known: Collection[int], following: int) -> None:
        """Delete the state of all producers that no longer exist in the ordered log.

        Args:
            known: numbers of the producers that exist in the ordered log.
            following: the next number that the ordered log assigns. Producers with this number or a higher one stay, because this
                gateway's ordered log can lag the lane and register them later.
        """
        self.delete_producers([one for one in self._indexer.state.producers if one not in known and one < following])


def _idle(writer: LaneWriter, left: list[bool]) -> None:
    left.append(writer.idle())


class LaneLogs:
    """All lanes of one gateway. One thread makes all calls, except `frontier`, which any thread may call.

    After `DiskFull`, the caller repeats the same call. After `DiskFailed`, no further call is allowed. If more than
    `LANES_OPEN_MAX` lanes are open, the least recently used one is closed.

    Attributes:
        messages: messages for the operator about corruption that was found at the start.
        starts: for each lane, the first offset that is not trimmed. Any thread may read this attribute.
        scrubber: checks and repairs the lanes.
    """

    def __init__(self, owner: DataDirectory, options: LogOptions | None = None, storage: Storage | None = None) -> None:
        """Create the object for the lanes in a gateway's directory. `start` opens the lanes."""
        self._owner = owner
        self._directory = owner.path
        self._incarnation = owner.incarnation
        self._options = replace(
            options or LogOptions(),
            segment_bytes=limits.LANE_SEGMENT_BYTES,
            first_segment_bytes=limits.LANE_SEGMENT_BYTES_FIRST,
            # A gateway may have 1024 lanes, and a prepared segment and a reserve for each of them would take tens of gigabytes.
            prepared_segments=0,
            reserved_bytes=0,
        )
        self._storage = storage or Storage()
        self._writers: OrderedDict[LaneName, LaneWriter] = OrderedDict()
        self._lock = threading.Lock()  # protects `_writers`, for `frontier`
        self._written: set[LaneName] = set()  # lanes with unsynced writes
        # highest attempt of each lane of this disk, which has one lane for each number that the gateway had
        self._attempts: dict[LaneName, int] = {}
        self._own_lane: LaneName | None = None
        self._number = 0  # number of this gateway; 0 while it is unknown
        self._replicated: dict[LaneName, int] = {}  # for each lane, the last position that every gateway of the roster has
        self._retention_due_s = 0.0
        self._retention_queue: deque[LaneName] = deque()  # lanes that retention has not checked yet in this round
        self._quarantine = LaneQuarantine(self._directory, self._storage)
        self.starts: dict[LaneName, int] = {}
        self.messages: list[str] = []
        self.scrubber = LaneScrubber(
            self._directory, self._storage, lambda lane: self._writer(lane).scrubber, lambda: list(self._writers)
        )

    # Starting

    def start(self, ordered: LogState | None = None) -> tuple[LaneLog, ...]:
        """Recover all lanes.

        If a lane of another gateway is corrupt, keep the valid part; the gateway fetches the rest later. If the end of this
        gateway's lane is lost, report the loss in the result, so that the gateway fetches the missing frames. If this gateway's
        lane has any other corruption, halt the lane.

        Args:
            ordered: state of the ordered log, with the number of this gateway and the producers that still exist.

        Raises:
            WrongDirectory: a newer release wrote a lane.
            DiskFull, DiskFailed: the disk is full, or it failed.
        """
        roster = ordered.roster if ordered is not None else {}
        self._number = next((number for number, one in roster.items() if one.incarnation == self._incarnation), 0)
        found = [self._find(lane) for lane in list_lanes(self._directory)]
        self.scrubber.start()
        if ordered is not None:
            # FORGET frames exist only in the ordered log, so a lane may still have producers that were deleted while it was closed.
            for writer in self._writers.values():
                writer.delete_unknown_producers(ordered.producers, ordered.next_producer)
        own = self._load_own()
        # A missing lane is halted, because a new lane with this name would assign the same positions to different records.
        if own is not None and self._is_own(own) and own not in [(log.origin, log.incarnation) for log in found]:
            path = lane_path(self._directory, own)
            found.append(self._halted(own, f"{path} is missing, but {os.path.join(self._directory, OWN)} names the lane"))
        return tuple(found)

    def _find(self, lane: LaneName) -> LaneLog:
        try:
            recovered = self._open(lane)[1]
        except Damaged as error:
            if self._is_own(lane):
                return self._halted(lane, str(error))
            with self._translating(lane):
                recovered = self._salvage_lane(lane, str(error))
        log = self._log_of(lane, recovered)
        lost = lost_end(recovered, self._attempts[lane], self._writers[lane].published) if self._is_own(lane) else None
        if lost is None:
            return log
        # The hard state records the loss, because a partly fetched log may look complete: it can reach its mark but lack frames.
        self._writers[lane].write_hard_state(lost_end_hard_state(lost))
        self.messages.append(lost_end_message(lane, lost))
        return msgspec.structs.replace(log, attempt=log.tail[-1].view if log.tail else recovered.state.view, lost=lost)

    def _is_own(self, lane: LaneName) -> bool:
        """True if the lane belongs to this disk and, if this gateway's number is known, to this number."""
        return lane.incarnation == self._incarnation and self._number in (0, lane.origin)

    def _log_of(self, lane: LaneName, recovered: Recovered) -> LaneLog:
        state, tail = recovered.state, recovered.tail
        attempt, lines = tail[-1].view if tail else state.view, {}
        if lane.incarnation == self._incarnation:
            # The promise of an attempt precedes its VIEW frame, so the hard state may be ahead of the frames (lanes, U13).
            attempt = self._attempts[lane] = max(attempt, recovered.scalars.promised)
            lines = {number: (line.epoch, line.sequence) for number, line in state.producers.items()}
        return LaneLog(
            origin=lane.origin,
            incarnation=lane.incarnation,
            attempt=attempt,
            position=state.position,
            chain=state.chain,
            offset=state.next_offset,
            tail=tail,
            lines=lines,
        )

    def _halted(self, lane: LaneName, reason: str) -> LaneLog:
        """Return the `LaneLog` of this gateway's lane in the state halted, and add the reason to the operator's messages."""
        # Decided frames may be missing on this disk, so a new frame could get the position of a decided frame.
        reason = f"the lane of this gateway accepts no more records: {reason}; if the files cannot be restored, {NEW_LANE_REMEDY}"
        self.messages.append(reason)
        return LaneLog(origin=lane.origin, incarnation=lane.incarnation, halted=reason)

    def _salvage_lane(self, lane: LaneName, reason: str) -> Recovered:
        """Quarantine a corrupt lane, and begin a new log with the lane's valid part. Other gateways have the remaining frames."""
        quarantined_path, removed = self._quarantine.add(lane)
        self.messages += removed
        writer, _ = self._open(lane)
        short = ""
        try:
            salvage(quarantined_path, writer)
        # An incomplete copy is not an error of the start, because other gateways have the missing frames.
        except (DiskFull, Damaged, WrongDirectory, OSError) as error:
            short = f"; no more of it could be copied ({error})"
        self._close(lane)
        # The lane is opened again, because only a recovery of the copy shows which frames are durable in it.
        recovered = self._open(lane)[1]
        self.messages.append(
            f"lane {lane.text} was corrupt and is fetched again from the other gateways after position "
            f"{recovered.state.position}; the old files are kept in {quarantined_path}, which may be removed when the lane is "
            f"complete: {reason}{short}"
        )
        return recovered

    def _load_own(self) -> LaneName | None:
        """Return the name of this gateway's lane if the lane has begun on this disk, else None."""
        lane = recorded_own_lane(self._directory)
        self._own_lane = lane if lane is not None and lane.incarnation == self._incarnation else None
        return self._own_lane

    # Open lanes

    def _open(self, lane: LaneName) -> tuple[LaneWriter, Recovered]:
        with self._translating(lane):
            lane_directory = open_lane_directory(self._owner, lane, self._storage)
        self.messages += [lane_directory.renewed] if lane_directory.renewed else []
        writer, recovered = LaneWriter.open(
            lane_directory, replace(self._options, lane=lane.incarnation, peers_can_repair=self._is_own(lane)), self._storage
        )
        with self._lock:
            self._writers[lane] = writer
        self.starts[lane] = writer.retention.start.offset
        if len(self._writers) > limits.LANES_OPEN_MAX:
            # The lanes of this disk stay open, because another thread may publish their frontiers at any time.
            others = [one for one in self._writers if one != lane and one.incarnation != self._incarnation]
            # A lane with unsynced writes must not be closed, so if every candidate has unsynced writes, all lanes are synced first.
            if self._written.issuperset(others):
                self.sync()
            self._close(next(one for one in others if one not in self._written))
        return writer, recovered

    def _close(self, lane: LaneName) -> None:
        with self._lock:
            writer = self._writers.pop(lane)
        writer.close()

    def _writer(self, lane: LaneName) -> LaneWriter:
        if lane not in self._writers:
            if lane.incarnation == self._incarnation and lane != self._own_lane:
                self._record_own(lane)
            self._open(lane)
        self._writers.move_to_end(lane)
        return self._writers[lane]

    def _record_own(self, lane: LaneName) -> None:
        """Store the name of this gateway's lane durably before the first write to the lane, so that a start detects its loss."""
        with self._translating(lane):
            open_lane_directory(self._owner, lane, self._storage)
            self._storage.replace_file(os.path.join(self._directory, OWN), f"{lane.text}\n".encode())
        self._own_lane = lane

    @contextlib.contextmanager
    def _translating(self, lane: LaneName) -> Iterator[None]:
        """Convert system errors that the block raises to errors of the log."""
        try:
            yield
        except OSError as error:
            raise failure_of("making", lane_path(self._directory, lane), error) from error

    # Actions of the protocol

    def persist(self, action: PersistLane) -> None:
        """Apply a persist action to its lane. The frames are only written; `sync` makes them durable.

        Raises:
            DiskFull: the disk is full; repeat the same call later.
            DiskFailed: the disk failed, now or earlier.
        """
        lane = LaneName(action.origin, action.incarnation)
        writer = self._writer(lane)
        # The lane lacks frames that the other gateways have trimmed, so it continues at the start of the others' copies.
        if action.begin is not None and writer.last_decided < action.begin.position:
            self._replace(lane, writer, action.begin)
        if action.cut is not None:
            writer.truncate(action.cut)
        # The lane counts as written even if the append fails, because the append may have written some of the frames.
        if action.frames:
            self._written.add(lane)
            writer.append(action.frames)
        if action.attempt is not None and action.attempt > self._attempts.get(lane, 0):
            # Earlier frames become durable before the promise, so a loss leaves only the last attempt in doubt (lanes, U30).
            self.sync()
            writer.write_hard_state(HardState(promised=action.attempt))
            self._attempts[lane] = action.attempt

    def _replace(self, lane: LaneName, writer: LaneWriter, begin: LaneBegin) -> None:
        state = LogState(
            position=begin.position,
            chain=begin.chain,
            next_offset=begin.offset,
            view=begin.attempt,
            members=begin.members,
        )
        # Without the lock, `frontier` in another thread could publish an older position after the replacement.
        with self._lock if lane.incarnation == self._incarnation else contextlib.nullcontext():
            writer.replace(state.to_bytes())
        self.starts[lane] = writer.retention.start.offset

    def sync(self) -> None:
        """Make all written frames durable."""
        # The fsyncs run in parallel, because a journalling file system commits parallel fsyncs with one journal write.
        sync_in_parallel([partial(self._sync, lane) for lane in self._written])

    def _sync(self, lane: LaneName) -> None:
        self._writers[lane].sync()
        self._written.discard(lane)

    def read(self, action: ReadLane) -> tuple[Frame, ...]:
        """Return durable frames from `action.first` on; none if that frame was trimmed or cannot be read."""
        writer = self._writer(LaneName(action.origin, action.incarnation))
        return () if action.first < writer.retention.start.first else writer.read(action.first, action.last)[0]

    def begin(self, action: ReadLane) -> LaneBegin | None:
        """Return the state at the start of a lane if the frame `action.first` was trimmed, else None."""
        lane = LaneName(action.origin, action.incarnation)
        first = self._writer(lane).retention.start.first
        if action.first >= first:
            return None
        snapshot = read_snapshot(lane_path(self._directory, lane), first)
        if snapshot is None:
            return None
        state = snapshot.state
        return LaneBegin(state.position, state.view, state.chain, state.next_offset, state.members)

    def set_replicated(self, action: LaneHeld) -> None:
        """Record the last position of a lane that every gateway of the roster has."""
        self._replicated[LaneName(action.origin, action.incarnation)] = action.position

    @property
    def damaged(self) -> dict[LaneName, str]:
        """Return a message for each lane that is suspected, corrupt or not scrubbed. Any thread may read this property."""
        return self.scrubber.damaged

    def suspect(self, incarnation: bytes) -> list[LaneName]:
        """Plan a scrub of a whole lane, because a read of the lane failed.

        Args:
            incarnation: the first bytes of the lane's incarnation.

        Returns:
            The lanes with this incarnation that were not suspected before.
        """
        lanes = [lane for lane in list_lanes(self._directory) if lane.incarnation.startswith(incarnation)]
        return [lane for lane in lanes if self.scrubber.suspect(lane)]

    @property
    def rounds(self) -> int:
        """Return the number of complete scrub rounds over all lanes."""
        return self.scrubber.rounds

    @property
    def urgent(self) -> bool:
        """True if a lane must be scrubbed soon."""
        return self.scrubber.urgent

    def scrub(self) -> LaneCorrupt | None:
        """Scrub the next piece of a lane. Return the lane's corrupt range if it has changed, else None."""
        return self.scrubber.scrub()

    def pop_messages(self) -> list[str]:
        """Return the messages for the operator that the scrub of the lanes has added since the last call."""
        return self.scrubber.pop_messages()

    def repair(self, action: RepairLane) -> LaneCorrupt:
        """Write fetched frames into the corrupt range of a lane, and return the range that is still corrupt."""
        return self.scrubber.repair(LaneName(action.origin, action.incarnation), action.frames)

    def frontier(self, lane: LaneName, position: int, offset: int) -> None:
        """Publish the frontier of this gateway's lane before any receipt is sent. Any thread may call this method."""
        if lane.incarnation == self._incarnation:
            with self._lock:
                self._writers[lane].frontier(position, offset)

    def decided(self, run: DeliverUnordered) -> None:
        """Index decided frames of a lane. If the lane belongs to another gateway, first publish the frontier.

        If a snapshot has replaced the lane, frames before the lane's new start are ignored.
        """
        lane = LaneName(run.origin, run.incarnation)
        writer = self._writer(lane)
        offsets, offset = [], run.first_offset
        for frame in run.frames:
            offsets.append(offset)
            offset += frame.count
        # The frontier of this gateway's own lane was published earlier, before the receipts for these frames were sent.
        if lane.incarnation != self._incarnation:
            writer.frontier(run.frames[-1].position, offset)
        writer.decided(run.frames, offsets)

    def forget(self, producers: Iterable[int]) -> None:
        """In all open lanes, delete the state of producers that the ordered log has deleted."""
        for writer in self._writers.values():
            writer.delete_producers(producers)

    def idle(self) -> bool:
        """Do background work while no request is queued.

        Return True if work is left; the caller must then call again within 10 ms.
        """
        left = [self.apply_retention() for _ in range(len(self._writers))]
        # Lanes at rest are skipped, because a thread for each of the many lanes would cost more than it gains.
        sync_in_parallel([partial(_idle, writer, left) for writer in self._writers.values() if not writer.at_rest])
        return any(left)

    def apply_retention(self) -> bool:
        """Trim the next lane as far as retention and the other gateways allow.

        Return True if frames were trimmed, or if trimmed files are left to remove. Each lane is checked every `RETENTION_CHECK_US`.
        A call checks only one lane, so that it delays the thread only briefly.

        Raises:
            DiskFull: the disk has no space for the new start of the lane.
            DiskFailed: the disk failed, now or earlier.
        """
        now = time.monotonic()
        if (
            not self._retention_queue
            and (self._options.retention_bytes or self._options.retention_us)
            and now >= self._retention_due_s
        ):
            self._retention_due_s = now + limits.RETENTION_CHECK_US / US
            self._retention_queue.extend(self._writers)
        lane = self._retention_queue.popleft() if self._retention_queue else None
        # Nothing is trimmed before every gateway of the roster has reported its copy of the lane (lanes, U26).
        if lane not in self._writers or lane not in self._replicated:
            return False
        trimmed = self._writers[lane].apply_retention(self._replicated[lane], self._storage.group_time_us())
        self.starts[lane] = self._writers[lane].retention.start.offset
        return trimmed

    def close(self) -> None:
        """Close all lanes, even if the disk fails for one of them."""
        with contextlib.ExitStack() as closing:
            for lane in list(self._writers):
                closing.callback(self._close, lane)
