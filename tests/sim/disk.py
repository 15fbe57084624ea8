"""A disk as the contract of `actions.Persist` says: ordered operations, one sync for many, and what a crash leaves of them.

Operations are done one after the other, each takes time: a cut (vote mark lowered, then the log), scalars, or the frames of all
Persists that wait (written into the page cache, then synced). A killed process leaves the page cache; a power loss leaves what was
synced and any beginning of the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.sim.lane_store import LaneStore
from tests.sim.schedule import MS, SECOND, Schedule
from tests.sim.trims import Trims
from tests.sim.violation import Violation
from tests.sim.watch import Watch
from tutti.data.frames.bodies import AbortBody, decode_body
from tutti.data.frames.frame import Frame, Kind, chained
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Persist, ReadLog, ReadSnapshot, RepairLog
from tutti_gateway.core.protocol.events import Event, LogCorrupt, LogRead, Persisted, Recovered, SpaceChanged, WriteFailed
from tutti_gateway.core.protocol.messages import Damage

LOOKED_AT = 200  # decided positions at the end of the log that a start looks at
SCRUB_S = 4.0  # so long a disk takes to look at all of its log, about


class Mark(NamedTuple):
    """The vote mark: everything up to the position was synced."""

    position: int = 0
    view: int = 0
    chain: int = 0


class Disk:
    """One gateway's disk, and the thread that uses it.

    Attributes:
        frames: the log, position 1 first, synced or not. durable: how much of it is synced.
        scalars, mark, watermark: as they are durably.
        frontier: the last position that was delivered: what the next write tells the watermark.
        rotten: positions that cannot be read. mended: how many were written again.
        sync_us: what one sync takes, about. stalled_until: nothing gets done before.
        weak: it lost something that was synced (wiped or rotten), so that nobody may rely on it for now.
    """

    SYNC_AT_START = True  # what a start reads it makes durable; a test of the checkers turns it off

    def __init__(self, name: str, schedule: Schedule, chance: Random, watch: Watch, sync_us: float) -> None:
        self.name = name
        self._schedule, self._chance, self._watch = schedule, chance, watch
        self.sync_us = sync_us
        self.stalled_until = 0
        self.full = self.fails = self.low = False
        self.weak = False
        self.mended = 0
        self._scrub_chance = Random(f"scrub {name}")  # of its own: what is looked at changes nothing of what is written
        lane_chance = Random()
        lane_chance.setstate(chance.getstate())  # of its own: what lanes need changes nothing of a log
        self.lanes = LaneStore(self, schedule, lane_chance)
        trim_chance = Random()
        trim_chance.setstate(chance.getstate())
        self.trims = Trims(trim_chance)
        self.blank()

    def blank(self) -> None:
        """Nothing was ever written."""
        self.lanes.blank()
        self.trims.blank()
        self.frames: list[Frame] = []
        self.durable = 0
        self.scalars = HardState()
        self.mark = Mark()
        self.watermark = self.frontier = 0
        self._since = 0  # when the first sync ended that the mark does not name
        self.rotten: set[int] = set()
        self._queue: deque[tuple[Persist, int]] = deque()
        self._busy = False
        self._dead = False
        self._life = getattr(self, "_life", 0) + 1  # of the process that uses it: nothing of an earlier one reaches it
        self._report: Callable[[Event], None] = lambda event: None
        self._under_way: tuple[str, Persist | None] = ("", None)
        self._settling = False
        self._watermarks = [0]  # that there were, each a place where a decision stopped
        self._lost = (0, 0)  # decided positions that were found rotten, and are wanted from others
        self._state_at: Callable[[int], LogState] = lambda position: LogState()

    @property
    def dead(self) -> bool:
        """Whether a write failed, so that nothing more is written in this run."""
        return self._dead

    # What the process wants

    def persist(self, action: Persist) -> None:
        """Do what the action says, behind what was asked before."""
        self._queue.append((action, self.frontier))
        if not self._busy:
            self._next()

    def read(self, action: ReadLog) -> None:
        """Read from the log."""
        delay = self._chance.uniform(0.05, 2) * MS + max(0, self.stalled_until - self._schedule.now)
        self._schedule.after(delay, self._have_read, self._life, action)

    def _have_read(self, life: int, action: ReadLog) -> None:
        if life != self._life:
            return
        found: list[Frame] = []
        size = 0
        last = action.last if action.first > self.trims.start else 0
        for position in range(action.first, min(last, self.durable) + 1):
            if position in self.rotten:
                break
            frame = self.frames[position - 1]
            size += frame.size
            if found and size > limits.FETCH_BYTES:
                break
            found.append(frame)
        self._report(LogRead(action.token, tuple(found), self._stop(action, action.first + len(found) - 1)))

    def read_snapshot(self, action: ReadSnapshot) -> None:
        """Read the state with which the log begins."""
        delay = self._chance.uniform(0.05, 2) * MS + max(0, self.stalled_until - self._schedule.now)
        self._schedule.after(delay, self._have_read_snapshot, self._life, action)

    def _have_read_snapshot(self, life: int, action: ReadSnapshot) -> None:
        if life == self._life:
            self._report(self.trims.read(action, self._state_at))

    def _stop(self, action: ReadLog, stop: int) -> int:
        """The last position up to `stop` that no ABORT up to the asked last one reaches over."""
        aborts = [
            (decode_body(AbortBody, frame.body).position, frame.position)
            for frame in self.frames[action.first - 1 : min(action.last, self.durable)]
            if frame.kind == Kind.ABORT
        ]
        for first, position in reversed(aborts):
            if first <= stop < position:
                stop = first - 1
        return max(stop, action.first - 1)

    # What was decided and cannot be read any more

    def _scrub(self, life: int) -> None:
        """Look at the whole log, slowly: what was decided and is rotten is wanted from others."""
        if life != self._life:
            return
        if not self._lost[0] and not self._dead:
            self._tell_lost(0)
        self._schedule.after(self._scrub_chance.uniform(0.2, 2) * SCRUB_S * SECOND, self._scrub, life)

    def _tell_lost(self, behind: int) -> None:
        """The next range that is lost behind a position, or that none is."""
        lost = sorted(position for position in self.rotten if behind < position <= self.frontier)
        if not lost and not self._lost[0]:
            return
        first = last = lost[0] if lost else 0
        while last + 1 in lost:
            last += 1
        self._lost = (first, last)
        self._report(LogCorrupt(first, last))

    def mend(self, action: RepairLog) -> None:
        """Write again what was lost."""
        if action.frames[0].position != self._lost[0]:
            raise Violation(f"{self.name} is to repair {action.frames[0]!r}, but reported {self._lost}")
        self._schedule.after(self.sync_us * (0.5 + self._scrub_chance.random()), self._have_mended, self._life, action)

    def _have_mended(self, life: int, action: RepairLog) -> None:
        if life != self._life or self._dead:
            return
        if self._scrub_chance.random() < 0.1:
            self._tell_lost(0)  # not all that is written comes to the disk
            return
        for frame in action.frames:
            if frame.header != self.frames[frame.position - 1].header:
                raise Violation(f"{self.name} repairs with {frame!r}, but had {self.frames[frame.position - 1]!r}")
            self.rotten.discard(frame.position)
            self.mended += 1
        self._tell_lost(0)

    def space(self, low: bool) -> None:
        """The disk runs low, or has room again."""
        self.low = low
        self._report(SpaceChanged(low, "little is free" if low else ""))

    # The thread

    def _time(self, syncs: float = 1) -> float:
        chance = self._chance
        took = syncs * self.sync_us * (0.5 + chance.random())
        if chance.random() < 0.005:
            took *= 20
        return took + max(0, self.stalled_until - self._schedule.now)

    def _next(self) -> None:
        """Begin the next operation."""
        self._busy = False
        if self._dead or not self._queue:
            if not self._dead and not self._settling:
                self._settling = True
                self._schedule.after(limits.MARK_IDLE_US - limits.MARK_LATE_US, self._settle, self._life)
            return
        self._busy = True
        action, frontier = self._queue[0]
        if action.snapshot:
            self._under_way = ("replace", action)
            self._schedule.after(self._time(4), self._have_replaced, self._life, action)
        elif action.cut is not None:
            self._under_way = ("cut", action)
            self._schedule.after(self._time(), self._mark_lowered, self._life, action)
        elif action.scalars is not None:
            self._under_way = ("scalars", action)
            self._schedule.after(self._time(), self._scalars_written, self._life, action, frontier)
        else:
            self._write()

    def _failed(self) -> bool:
        """Whether this operation fails, as the fault says; then nothing more is written in this run."""
        if not self.fails:
            return False
        self.fails = False
        self._dead = True
        self._queue.clear()
        what, action = self._under_way
        if what == "scalars" and action is not None and action.scalars is not None and self._chance.random() < 0.5:
            self._store(action.scalars, 0)
        self._report(WriteFailed("input/output error"))
        return True

    def _have_replaced(self, life: int, action: Persist) -> None:
        if life != self._life or self._failed():
            return
        self._replace(LogState.from_bytes(action.snapshot))
        self._queue[0] = (Persist(action.token, action.frames, action.scalars, action.cut), self._queue[0][1])
        self._next()

    def _replace(self, state: LogState) -> None:
        self.frames = self._watch.replaced(self, state)
        self.durable = self.watermark = state.position
        self.mark = self._mark_at(state.position)
        self.rotten, self._watermarks = set(), [state.position]
        self.trims.replaced(state.position)

    def _mark_lowered(self, life: int, action: Persist) -> None:
        if life != self._life or self._failed():
            return
        behind = action.cut or 0
        self._lower(behind)
        self._under_way = ("cut lowered", action)
        self._schedule.after(self._time(), self._have_cut, life, action)

    def _lower(self, behind: int) -> None:
        if behind < self.mark.position:
            self.mark = self._mark_at(min(behind, len(self.frames)))

    def _mark_at(self, position: int) -> Mark:
        if not position:
            return Mark()
        frame = self.frames[position - 1]
        return Mark(position, frame.view, frame.header_crc)

    def _have_cut(self, life: int, action: Persist) -> None:
        if life != self._life or self._failed():
            return
        self._cut(action.cut or 0)
        self._queue[0] = (Persist(action.token, action.frames, action.scalars), self._queue[0][1])
        self._next()

    def _cut(self, behind: int) -> None:
        if behind > len(self.frames):
            raise Violation(f"{self.name} truncates its log after {behind}, but it ends at {len(self.frames)}")
        self._watch.cut(self, behind)
        del self.frames[behind:]
        self.trims.cut(behind)
        self.durable = min(self.durable, behind)
        self.rotten = {position for position in self.rotten if position <= behind}

    def _scalars_written(self, life: int, action: Persist, frontier: int) -> None:
        if life != self._life or self._failed() or action.scalars is None:
            return
        self._store(action.scalars, frontier)
        self._queue[0] = (Persist(action.token, action.frames), frontier)
        self._next()

    def _store(self, scalars: HardState, frontier: int) -> None:
        self._watch.scalars_written(self, scalars)
        accepts = scalars.accepted > self.scalars.accepted
        self.scalars = scalars
        if accepts or self.durable >= self.mark.position:
            self.mark = self._mark_at(self.durable)
        self._decided_to(frontier)

    def _write(self) -> None:
        """Write the frames of all Persists that wait and ask for nothing else, and sync them once."""
        if self.full and any(frame.kind == Kind.BATCH for frame in self._queue[0][0].frames):
            self._schedule.after(limits.DISK_FULL_WAIT_US, self._try_again, self._life)
            return
        frames: list[Frame] = []
        while self._queue:
            action, _ = self._queue[0]
            if action.cut is not None or action.scalars is not None or action.snapshot:
                break
            frames += action.frames
            token = action.token
            self._queue.popleft()
        if not frames:  # scalars are a file of their own: their sync says nothing of the log
            self._report(Persisted(token))
            self._next()
            return
        log = self.frames
        for frame in frames:
            if frame.position != len(log) + 1 or not chained(frame, log[-1].header_crc if log else 0):
                raise Violation(f"{self.name} writes {frame!r} after position {len(log)}, which it does not continue")
            log.append(frame)
        self._watch.written(self, tuple(frames))
        self.trims.wrote(frames[0].position, frames[-1].position)
        rides = self._mark_at(self.durable)
        self._under_way = ("sync", None)
        late = self._schedule.now - self._since >= limits.MARK_LATE_US
        due = late or self.durable - self.mark.position >= limits.MARK_FRAMES
        self._schedule.after(self._time(), self._synced, self._life, token, rides if due else None, self.frontier)

    def _try_again(self, life: int) -> None:
        if life == self._life:
            self._next()

    def _synced(self, life: int, token: int, rides: Mark | None, frontier: int) -> None:
        if life != self._life or self._failed():
            return
        if rides is not None or self.mark.position >= self.durable:
            self._since = self._schedule.now
        self.durable = len(self.frames)
        if rides is not None:
            self.mark = rides if rides.position >= self.mark.position else self.mark
            self._decided_to(frontier)
        self._report(Persisted(token))
        self._next()

    def _settle(self, life: int) -> None:
        """Idle: bring mark and watermark up to date."""
        if life != self._life:
            return
        self._settling = False
        if not self._busy and not self._dead:
            if self.durable >= self.mark.position:
                self.mark = self._mark_at(self.durable)
            self._decided_to(min(self.frontier, self.durable))

    def _decided_to(self, frontier: int) -> None:
        """The watermark moves, durably."""
        if frontier > self.watermark:
            self.watermark = frontier
            self._watermarks.append(frontier)
            self._trim()

    def _trim(self) -> None:
        """What is to go by now goes."""
        before, start = self.trims.start, self.trims.go(self.watermark, self.frames)
        if start > before:
            self._watermarks = [start] + [watermark for watermark in self._watermarks if watermark > start]
            self.rotten = {position for position in self.rotten if position > start}
            if 0 < self._lost[0] <= start:
                self._tell_lost(0)

    # What happens to it

    def kill(self) -> None:
        """The process is gone: the page cache stays, and what was under way is done or not."""
        chance = self._chance
        what, action = self._under_way if self._busy else ("", None)
        if what == "scalars" and action is not None and action.scalars is not None and chance.random() < 0.5:
            self._store(action.scalars, 0)
        elif what.startswith("cut") and action is not None and chance.random() < 0.5:
            self._lower(action.cut or 0)
            if what == "cut lowered":
                self._cut(action.cut or 0)
        elif what == "replace" and action is not None and chance.random() < 0.5:
            self._replace(LogState.from_bytes(action.snapshot))
        if chance.random() < 0.5:
            self._keep(chance.randint(min(self.durable, len(self.frames)), len(self.frames)))
        self.lanes.kill()
        self._over()

    def power(self) -> None:
        """No power: what was synced is there, and any beginning of the rest."""
        self.kill()
        self._keep(self._chance.randint(self.durable, len(self.frames)) if self._chance.random() < 0.5 else self.durable)
        self.lanes.power()
        self._over()

    def _keep(self, end: int) -> None:
        del self.frames[end:]
        self.trims.cut(end)

    def _over(self) -> None:
        self._life += 1
        self._queue.clear()
        self._busy = self._dead = self._settling = False
        self.fails = False
        self._lost = (0, 0)
        self._report = lambda event: None
        self.rotten = {position for position in self.rotten if position <= len(self.frames)}

    # Starting

    def _step_back(self) -> None:
        """What a start looks at may be rotten although it was decided: then it begins at a watermark before that."""
        looked_at = self.watermark - LOOKED_AT
        rotten = min((position for position in self.rotten if looked_at < position <= self.watermark), default=0)
        if rotten and self.mark.position >= self.watermark:
            self.watermark = max(mark for mark in self._watermarks if mark < rotten)

    def _move_mark_on(self) -> None:
        """What stands whole behind the mark was synced a moment before the end, whatever is damaged before it."""
        last = self.mark.position
        while last < len(self.frames) and last + 1 not in self.rotten:
            last += 1
        if last > self.mark.position:
            self.mark = self._mark_at(last)

    def recover(self, report: Callable[[Event], None], state_at: Callable[[int], LogState]) -> Recovered:
        """What a start finds; `report` is told what comes of its Persists, `state_at` is the log's state by position."""
        self._over()
        self._report, self._state_at = report, state_at
        self._step_back()
        self._schedule.after(self._scrub_chance.random() * SCRUB_S * SECOND, self._scrub, self._life)
        self.frontier = self.watermark
        rotten = min((position for position in self.rotten if position > self.watermark), default=0)
        if rotten:
            self._move_mark_on()
            self._keep(rotten - 1)
            self.rotten = {position for position in self.rotten if position < rotten}
        end = len(self.frames)
        if self.SYNC_AT_START:
            self.durable = end
        self.durable = min(self.durable, end)
        damage = Damage(end + 1, *self.mark) if end < self.mark.position else None
        state = state_at(self.watermark)
        self.trims.recovered(state)
        lanes = self.lanes.recover(report)
        return Recovered(state.log, self.scalars, state, tuple(self.frames[self.watermark :]), damage, lanes)
