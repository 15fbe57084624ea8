"""The lanes in a gateway's directory: one log each, written, found again and read as the ordered one is (design, section 7).

`DIR/lanes/NUMBER-INCARNATION/` has all that a data directory has but the lock, which is the gateway's. The log in it begins with a
VIEW frame and has only those and batches; its uuid is the incarnation. Of the scalars `promised` is the attempt, and stays 0 in the
lanes of others. `DIR/lane` names the own lane from before its first write, so that one that is gone is not taken for one that never
began.
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
from tutti.data.hard_state import Scalars
from tutti.data.lane_name import NEW_LANE, LaneName
from tutti.data.log_state import LogState
from tutti.errors import Damaged, DiskFull, WrongDirectory
from tutti.log.files.disk_space import failure_of
from tutti.log.files.lane_paths import OWN, lane_path, lanes_there, noted_lane
from tutti.log.files.options import LogOptions
from tutti.log.files.parallel_fsync import together
from tutti.log.files.storage import Storage
from tutti.log.format.snapshot import read_snapshot
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, MendLane, PersistLane, ReadLane
from tutti_gateway.core.protocol.events import LaneLog, LaneRotted, Recovered
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.log.lanes.lane_directory import Owner, open_home
from tutti_gateway.log.lanes.lane_scrubber import LaneMending
from tutti_gateway.log.lanes.lost_end import lost_end, note_of, told_of
from tutti_gateway.log.lanes.quarantine import LanesAside
from tutti_gateway.log.lanes.salvage import salvage
from tutti_gateway.log.writer import LogWriter

US = 1_000_000


def path_of_disk(directory: str, incarnation: bytes) -> str:
    """The directory of the lane of a disk.

    Raises:
        WrongDirectory: there is none.
    """
    for lane in lanes_there(directory):
        if lane.incarnation == incarnation:
            return lane_path(directory, lane)
    raise WrongDirectory(f"{directory} holds no lane of disk {incarnation.hex()}")


class LaneWriter(LogWriter):
    """The log of a lane, which keeps a line of each producer."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be done while it is idle: most lanes stand still most of the time."""
        return not self._marking.behind and self._marking.durable == self._end and not self.trimming.left

    @property
    def decided_to(self) -> int:
        """Last decided position."""
        return self._indexer.state.position

    def let_go(self, held: int, now_us: int) -> bool:
        """Let go of what retention says and every gateway of the roster has (last position `held`); whether anything goes."""
        if self._cutting:
            return False  # where it begins may be about to be another place
        watermark = self._marking.newest.frontier_position
        with self._watching("trimming"):
            goes = self.trimming.let_go(held, watermark, now_us)
            return self.trimming.carry_out(watermark) or goes

    def frontier(self, position: int, offset: int) -> None:
        """Show how far it is decided; what it has been replaced by may be further on than a run that was decided before that."""
        if position > self._marking.frontier[0]:
            super().frontier(position, offset)

    @property
    def producers(self) -> set[int]:
        """Those of which it keeps one."""
        return set(self._indexer.state.producers)

    def forget(self, producers: Iterable[int]) -> None:
        """The ordered log forgot these: their numbers never come again."""
        for number in producers:
            self._indexer.state.producers.pop(number, None)

    def keep(self, known: Collection[int], following: int) -> None:
        """Forget who is not among those that the ordered log knows; it gives numbers from `following` on next."""
        self.forget([one for one in self._indexer.state.producers if one not in known and one < following])


def _idle(writer: LaneWriter, left: list[bool]) -> None:
    left.append(writer.idle())


class LaneLogs:
    """All lanes of one gateway. One thread uses it, but for `frontier`; the writers of lanes that nobody writes to are closed.

    After `DiskFull` the same call comes again; after `DiskFailed` none may.

    Attributes:
        told: what a start had to do about damage, a sentence each, for the operator.
        starts: the first offset that each lane still has; any thread may read it.
        mending: what is decided in lanes and cannot be read here.
    """

    def __init__(self, owner: Owner, options: LogOptions | None = None, storage: Storage | None = None) -> None:
        """The lanes of a gateway's directory."""
        self._owner = owner
        self._directory = owner.path
        self._incarnation = owner.incarnation
        self._options = replace(
            options or LogOptions(),
            segment_bytes=limits.LANE_SEGMENT_BYTES,
            first_segment_bytes=limits.LANE_SEGMENT_BYTES_FIRST,
            prepared_segments=0,
            reserved_bytes=0,
        )
        self._storage = storage or Storage()
        self._writers: OrderedDict[LaneName, LaneWriter] = OrderedDict()
        self._lock = threading.Lock()  # of what is open, for `frontier`
        self._written: set[LaneName] = set()  # and not synced
        self._attempts: dict[LaneName, int] = {}  # of the own lanes: there is another one when this gateway got another number
        self._noted: LaneName | None = None
        self._number = 0  # of this gateway, 0 while the log does not say it
        self._held: dict[LaneName, int] = {}  # last position that every gateway of the roster has
        self._kept_at = 0.0
        self._kept: deque[LaneName] = deque()  # lanes that retention has yet to look at since then
        self._aside = LanesAside(self._directory, self._storage)
        self.starts: dict[LaneName, int] = {}
        self.told: list[str] = []
        self.mending = LaneMending(
            self._directory, self._storage, lambda lane: self._writer(lane).mender, lambda: list(self._writers)
        )

    # Starting

    def start(self, ordered: LogState | None = None) -> tuple[LaneLog, ...]:
        """What is there. Of a damaged lane of another gateway what is good stays, to be learned on from; the own one is halted.

        Args:
            ordered: what the ordered log says: which number this gateway has, and whom it forgot while this one was down.

        Raises:
            WrongDirectory: something was written by a newer release.
            DiskFull, DiskFailed: the disk has no room, or failed.
        """
        roster = ordered.roster if ordered is not None else {}
        self._number = next((number for number, one in roster.items() if one.incarnation == self._incarnation), 0)
        found = [self._find(lane) for lane in lanes_there(self._directory)]
        self.mending.start()
        if ordered is not None:
            for writer in self._writers.values():
                writer.keep(ordered.producers, ordered.next_producer)
        own = self._noted_own()
        if own is not None and self._own(own) and own not in [(log.origin, log.incarnation) for log in found]:
            path = lane_path(self._directory, own)
            found.append(self._halted(own, f"{path} is gone, and {os.path.join(self._directory, OWN)} says that it began"))
        return tuple(found)

    def _find(self, lane: LaneName) -> LaneLog:
        try:
            recovered = self._open(lane)[1]
        except Damaged as error:
            if self._own(lane):
                return self._halted(lane, str(error))
            with self._watching(lane):
                recovered = self._learn_again(lane, str(error))
        log = self._log_of(lane, recovered)
        lost = lost_end(recovered, self._attempts[lane], self._writers[lane].shown) if self._own(lane) else None
        if lost is None:
            return log
        self._writers[lane].write_scalars(note_of(lost))
        self.told.append(told_of(lane, lost))
        return msgspec.structs.replace(log, attempt=log.tail[-1].view if log.tail else recovered.state.view, lost=lost)

    def _own(self, lane: LaneName) -> bool:
        """Whether this gateway is the origin: with this disk, and under the number that it has, where that is known."""
        return lane.incarnation == self._incarnation and self._number in (0, lane.origin)

    def _log_of(self, lane: LaneName, recovered: Recovered) -> LaneLog:
        state, tail = recovered.state, recovered.tail
        attempt, lines = tail[-1].view if tail else state.view, {}
        if lane.incarnation == self._incarnation:
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
        """What was decided in the own lane is not all known here: nobody may go on with it."""
        reason = f"the lane of this gateway takes nothing more: {reason}; where that cannot be restored, {NEW_LANE}"
        self.told.append(reason)
        return LaneLog(origin=lane.origin, incarnation=lane.incarnation, halted=reason)

    def _learn_again(self, lane: LaneName, reason: str) -> Recovered:
        """Set a damaged lane aside, and begin anew with what is good of it: the others have all that was decided."""
        aside, removed = self._aside.take(lane)
        self.told += removed
        writer, _ = self._open(lane)
        short = ""
        try:
            salvage(aside, writer)
        except (DiskFull, Damaged, WrongDirectory, OSError) as error:  # the rest is learned later: no reason not to start
            short = f"; no more of it could be taken over ({error})"
        self._close(lane)
        recovered = self._open(lane)[1]
        self.told.append(
            f"lane {lane.text} was damaged and is learned again from the other gateways behind position "
            f"{recovered.state.position}; what was there is kept in {aside}, which may be removed when the lane is whole: "
            f"{reason}{short}"
        )
        return recovered

    def _noted_own(self) -> LaneName | None:
        """The own lane, if it ever began with this disk."""
        lane = noted_lane(self._directory)
        self._noted = lane if lane is not None and lane.incarnation == self._incarnation else None
        return self._noted

    # What is open

    def lines(self, lane: LaneName) -> set[int]:
        """The producers of which an open lane keeps a line."""
        return self._writers[lane].producers

    @property
    def open(self) -> int:
        """How many lanes are."""
        return len(self._writers)

    def _open(self, lane: LaneName) -> tuple[LaneWriter, Recovered]:
        with self._watching(lane):
            home = open_home(self._owner, lane, self._storage)
        self.told += [home.renewed] if home.renewed else []
        writer, recovered = LaneWriter.open(
            home, replace(self._options, lane=lane.incarnation, heals=self._own(lane)), self._storage
        )
        with self._lock:
            self._writers[lane] = writer
        self.starts[lane] = writer.trimming.start.offset
        if len(self._writers) > limits.LANES_OPEN_MAX:
            others = [one for one in self._writers if one != lane and one.incarnation != self._incarnation]
            if self._written.issuperset(others):  # one round may write more lanes than may be open
                self.sync()
            self._close(next(one for one in others if one not in self._written))
        return writer, recovered

    def _close(self, lane: LaneName) -> None:
        with self._lock:
            writer = self._writers.pop(lane)
        writer.close()

    def _writer(self, lane: LaneName) -> LaneWriter:
        if lane not in self._writers:
            if lane.incarnation == self._incarnation and lane != self._noted:
                self._note(lane)
            self._open(lane)
        self._writers.move_to_end(lane)
        return self._writers[lane]

    def _note(self, lane: LaneName) -> None:
        """The own lane begins: it is there, and that it must be is written down."""
        with self._watching(lane):
            open_home(self._owner, lane, self._storage)
            self._storage.replace_file(os.path.join(self._directory, OWN), f"{lane.text}\n".encode())
        self._noted = lane

    @contextlib.contextmanager
    def _watching(self, lane: LaneName) -> Iterator[None]:
        """Give errors of the system their meaning."""
        try:
            yield
        except OSError as error:
            raise failure_of("making", lane_path(self._directory, lane), error) from error

    # What is wanted

    def persist(self, action: PersistLane) -> None:
        """Carry an action out, but for the sync of its frames.

        Raises:
            DiskFull: there is no room; the same action is to come again.
            DiskFailed: the disk failed, now or before.
        """
        lane = LaneName(action.origin, action.incarnation)
        writer = self._writer(lane)
        if action.begin is not None and writer.decided_to < action.begin.position:
            self._replace(lane, writer, action.begin)
        if action.cut is not None:
            writer.cut(action.cut)
        if action.frames:
            self._written.add(lane)
            writer.append(action.frames)
        if action.attempt is not None and action.attempt > self._attempts.get(lane, 0):
            self.sync()
            writer.write_scalars(Scalars(promised=action.attempt))
            self._attempts[lane] = action.attempt

    def _replace(self, lane: LaneName, writer: LaneWriter, begin: LaneBegin) -> None:
        state = LogState(
            position=begin.position,
            chain=begin.chain,
            next_offset=begin.offset,
            view=begin.attempt,
            members=begin.members,
        )
        # `frontier`, of another thread, must not look at where the lane was and then show a run of before.
        with self._lock if lane.incarnation == self._incarnation else contextlib.nullcontext():
            writer.replace(state.to_bytes())
        self.starts[lane] = writer.trimming.start.offset

    def sync(self) -> None:
        """Make all that was written durable, of all lanes at a time."""
        together([partial(self._sync, lane) for lane in self._written])

    def _sync(self, lane: LaneName) -> None:
        self._writers[lane].sync()
        self._written.discard(lane)

    def read(self, action: ReadLane) -> tuple[Frame, ...]:
        """Durable frames from the first one on; none if they cannot be read."""
        writer = self._writer(LaneName(action.origin, action.incarnation))
        return () if action.first < writer.trimming.start.first else writer.read(action.first, action.last)[0]

    def begin(self, action: ReadLane) -> LaneBegin | None:
        """How a lane begins here, if what is to be read was let go."""
        lane = LaneName(action.origin, action.incarnation)
        first = self._writer(lane).trimming.start.first
        if action.first >= first:
            return None
        snapshot = read_snapshot(lane_path(self._directory, lane), first)
        if snapshot is None:
            return None
        state = snapshot.state
        return LaneBegin(state.position, state.view, state.chain, state.next_offset, state.members)

    def held(self, action: LaneHeld) -> None:
        """Every gateway of the roster has a lane up to a position."""
        self._held[LaneName(action.origin, action.incarnation)] = action.position

    @property
    def damaged(self) -> dict[LaneName, str]:
        """Lanes of which something decided cannot be read here, and what is done about it. Any thread may read it."""
        return self.mending.damaged

    def suspect(self, incarnation: bytes) -> list[LaneName]:
        """Somebody could not read a lane, whose incarnation begins so: all of it is looked at.

        Returns those of which this was not known.
        """
        lanes = [lane for lane in lanes_there(self._directory) if lane.incarnation.startswith(incarnation)]
        return [lane for lane in lanes if self.mending.suspect(lane)]

    @property
    def rounds(self) -> int:
        """How often all lanes were looked at."""
        return self.mending.rounds

    @property
    def hurried(self) -> bool:
        """Whether something is to be looked at soon."""
        return self.mending.hurried

    def look(self) -> LaneRotted | None:
        """Look at the next piece of what is decided: what came to be known as lost, or as lost no more."""
        return self.mending.look()

    def news(self) -> list[str]:
        """What became known of snapshots since it was asked for, a sentence each, for the operator."""
        return self.mending.news()

    def mend(self, action: MendLane) -> LaneRotted:
        """Write what was lost of a lane, in place; what is lost of it now."""
        return self.mending.mend(LaneName(action.origin, action.incarnation), action.frames)

    def frontier(self, lane: LaneName, position: int, offset: int) -> None:
        """Show how far the own lane is decided, before any receipt leaves. Called from any thread."""
        if lane.incarnation == self._incarnation:
            with self._lock:
                self._writers[lane].frontier(position, offset)

    def decided(self, run: DeliverUnordered) -> None:
        """Show how far another's lane is decided, and index what is. A run of before the lane was replaced changes nothing: it was
        let go elsewhere, and the lane begins behind it.
        """
        lane = LaneName(run.origin, run.incarnation)
        writer = self._writer(lane)
        offsets, offset = [], run.first_offset
        for frame in run.frames:
            offsets.append(offset)
            offset += frame.count
        if lane.incarnation != self._incarnation:
            writer.frontier(run.frames[-1].position, offset)
        writer.decided(run.frames, offsets)

    def forget(self, producers: Iterable[int]) -> None:
        """The ordered log forgot these producers."""
        for writer in self._writers.values():
            writer.forget(producers)

    def idle(self) -> bool:
        """What is to be done when nothing is queued; True while something is left: call again within 10 ms."""
        left = [self.let_go() for _ in range(len(self._writers))]
        together([partial(_idle, writer, left) for writer in self._writers.values() if not writer.at_rest])
        return any(left)

    def let_go(self) -> bool:
        """Let go of what retention says and everybody has of the next lane; whether files are to be removed.

        Each lane has its turn each `RETENTION_LOOK_US`; a call looks at one, so that it holds up no round of the thread for long.

        Raises:
            DiskFull: there is no room to write down where the lane begins.
            DiskFailed: the disk failed, now or before.
        """
        now = time.monotonic()
        if not self._kept and (self._options.retention_bytes or self._options.retention_us) and now >= self._kept_at:
            self._kept_at = now + limits.RETENTION_LOOK_US / US
            self._kept.extend(self._writers)
        lane = self._kept.popleft() if self._kept else None
        if lane not in self._writers or lane not in self._held:
            return False
        goes = self._writers[lane].let_go(self._held[lane], self._storage.group_time_us())
        self.starts[lane] = self._writers[lane].trimming.start.offset
        return goes

    def close(self) -> None:
        """Let everything go, all of it whatever the disk says to the mark of one."""
        with contextlib.ExitStack() as closing:
            for lane in list(self._writers):
                closing.callback(self._close, lane)
