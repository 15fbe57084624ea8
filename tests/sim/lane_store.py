"""What a disk of the simulator keeps of lanes.

The lanes of a disk follow the rules of its log (`disk.py`): operations are done one after the other, one sync serves many, a killed
process leaves the page cache, and a power loss what was synced and any beginning of the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tests.sim.schedule import MS, SECOND, Schedule
from tests.sim.violation import Violation
from tutti.data.frames.bodies import LaneViewBody, decode_body
from tutti.data.frames.frame import Frame, Kind, chained
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import LaneHeld, PersistLane, ReadLane, RepairLane
from tutti_gateway.core.protocol.events import Event, LaneCorrupt, LaneLog, LanePersisted, LaneRead, LostEnd
from tutti_gateway.core.protocol.messages import LaneBegin

if TYPE_CHECKING:
    from tests.sim.disk import Disk

Key = tuple[int, bytes]  # origin's number, incarnation of its disk
SCRUB_S = 4.0  # so long a disk takes to look at all of its lanes, about


class Decided(NamedTuple):
    """A lane as its members showed it first. `batches`: (producer, epoch, sequence) -> (offset, position) of every record."""

    frames: list[Frame]
    offsets: list[int]
    batches: dict[tuple[int, int, int], tuple[int, int]]
    last: dict[str, int]  # of each client, the number of its last token


class Lane:
    """One lane on one disk.

    Attributes:
        frames: position 1 first, synced or not; durable: how many of them are synced.
        attempt: of the own lane, the highest that is durable.
        shown: last position delivered by the process; kept: how much of that a start will know.
        start: last position that was let go.
        rotten: positions that cannot be read; lost: the range of them that was told, 0 and 0 for none.
        named: up to where a mark says for certain that it was durable.
        end: what the disk lost of its end, if it is the own lane; had: how many frames there were; heals: the last attempt then.
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.durable = self.attempt = self.shown = self.kept = self.start = 0
        self.rotten: set[int] = set()
        self.lost = (0, 0)
        self.named = self.had = self.heals = 0
        self.end: LostEnd | None = None

    def lose(self, first: int, marked: int) -> None:
        """Everything from a position on is gone, and a mark names a later one, or that."""
        at = self.frames[marked - 1]
        self.had = max(self.had, len(self.frames))
        self.heals = self.attempt = max(self.attempt, self.frames[-1].view)
        self.end = LostEnd(first, marked, at.view, at.header_crc, self.heals)
        del self.frames[first - 1 :]
        self.durable = first - 1
        self.shown, self.kept = min(self.shown, first - 1), min(self.kept, first - 1)
        self.rotten = {position for position in self.rotten if position < first}

    @property
    def healing(self) -> bool:
        """Whether something of its end may be missing: no attempt was promised since."""
        return 0 < self.heals == self.attempt

    def _lost_end(self) -> LostEnd | None:
        """What a start finds lost; behind the end, once that is as far as the mark."""
        if not self.healing or self.end is None:
            return None
        last = self.frames[-1]
        view = next(frame for frame in reversed(self.frames) if frame.kind == Kind.VIEW)
        lost = self.end
        if lost.last <= last.position:
            lost = LostEnd(0, last.position, last.view, last.header_crc, self.heals)
        body = decode_body(LaneViewBody, view.body)
        return msgspec.structs.replace(lost, first=last.position + 1, members=body.members, disks=body.disks)

    def begin(self) -> LaneBegin:
        """How it begins, once something of it was let go."""
        before, last = self.frames[: self.start], self.frames[self.start - 1]
        view = next(frame for frame in reversed(before) if frame.kind == Kind.VIEW)
        members = decode_body(LaneViewBody, view.body).members
        return LaneBegin(self.start, last.view, last.header_crc, sum(frame.count for frame in before), members)

    def log(self, key: Key) -> LaneLog:
        """What a start finds."""
        before = self.frames[: self.kept]
        lost, last = self._lost_end(), self.frames[-1].view if self.frames else 0
        return LaneLog(
            origin=key[0],
            incarnation=key[1],
            lost=lost,
            attempt=last if lost is not None else max(self.attempt, last),
            position=self.kept,
            chain=before[-1].header_crc if before else 0,
            offset=sum(frame.count for frame in before),
            tail=tuple(self.frames[self.kept :]),
            lines={frame.producer: (frame.epoch, frame.last_sequence) for frame in before if frame.kind == Kind.BATCH},
        )


def _gives(lane: Lane, frame: Frame) -> bool:
    """Whether another disk has the frame durably and says that it is decided: of who does not know that, nobody gets it."""
    at = frame.position
    return lane.start < at <= min(lane.durable, lane.shown) and at not in lane.rotten and lane.frames[at - 1].header == frame.header


class LaneStore:
    """All lanes of one disk, and the thread that writes them."""

    def __init__(self, disk: Disk, schedule: Schedule, chance: Random) -> None:
        self._disk = disk
        self._schedule = schedule
        self._chance = chance
        self.known: dict[Key, Decided] = {}  # all lanes, as they were shown
        self._chance_of_rot = Random(f"lanes of {disk.name}")  # of its own: what is looked at changes nothing of what is written
        self._life = 0
        self.blank()

    def blank(self) -> None:
        """Nothing was ever written."""
        self.lanes: dict[Key, Lane] = {}
        self._forget()

    def _forget(self) -> None:
        self._life += 1
        self._queue: deque[PersistLane] = deque()
        self._writing: list[PersistLane] = []
        self._busy = False
        self._report: Callable[[Event], None] = lambda event: None

    def lane(self, key: Key) -> Lane:
        """The lane, an empty one if there is none yet."""
        return self.lanes.setdefault(key, Lane())

    # What the process wants

    def persist(self, action: PersistLane) -> None:
        """Do what the action says, behind what was asked before."""
        self._queue.append(action)
        if not self._busy:
            self._next()

    def read(self, action: ReadLane) -> None:
        """Read from a lane."""
        self._schedule.after(self._time() + self._chance.uniform(0.05, 2) * MS, self._have_read, self._life, action)

    def _have_read(self, life: int, action: ReadLane) -> None:
        if life == self._life:
            lane = self.lane((action.origin, action.incarnation))
            if action.first <= lane.start:
                self._report(LaneRead(action.token, (), lane.begin()))
                return
            last = min(action.last, lane.durable, *(position - 1 for position in lane.rotten if position >= action.first))
            found = lane.frames[action.first - 1 : last]
            self._report(LaneRead(action.token, tuple(found[: self._chance.randint(1, 200)])))

    # What is let go

    def held(self, action: LaneHeld) -> None:
        """Every gateway has a lane up to a position: now and then it is let go up to there, or not so far."""
        lane = self.lane((action.origin, action.incarnation))
        last = min(action.position, lane.shown)
        if last > lane.start and self._chance_of_rot.random() < 0.2:
            lane.start = self._chance_of_rot.randint(lane.start + 1, last)
            lane.kept = max(lane.kept, lane.start)
            lane.rotten = {position for position in lane.rotten if position > lane.start}

    def _have_replaced(self, life: int) -> None:
        if life == self._life and not self._disk.dead:
            self._replace(self._queue[0])
            self._queue[0] = msgspec.structs.replace(self._queue[0], begin=None)
            self._next()

    def _replace(self, action: PersistLane) -> None:
        """The lane is what it was elsewhere, in the place of all that there was."""
        key, begin = (action.origin, action.incarnation), action.begin
        lane = self.lane(key)
        if begin is None or begin.position <= lane.shown:
            raise Violation(f"{self._disk.name} replaces lane {key[0]} by {begin}, but delivered it up to {lane.shown}")
        lane.frames = list(self.known[key].frames[: begin.position])
        last = lane.frames[-1]
        if (last.position, last.view, last.header_crc) != (begin.position, begin.attempt, begin.chain):
            raise Violation(f"{self._disk.name} replaces lane {key[0]} by {begin}, but {last!r} was decided there")
        lane.durable = lane.shown = lane.kept = lane.start = begin.position
        lane.rotten.clear()

    # What was decided and cannot be read any more

    def _scrub(self, life: int) -> None:
        """Look at all lanes, slowly."""
        if life == self._life:
            for key in self.lanes:
                self._tell_lost(key)
            self._schedule.after(self._chance_of_rot.uniform(0.2, 2) * SCRUB_S * SECOND, self._scrub, life)

    def _tell_lost(self, key: Key, *, again: bool = False) -> None:
        """The first range that is lost of a lane, or that nothing is any more."""
        lane = self.lanes[key]
        lost = sorted(position for position in lane.rotten if position <= lane.shown)
        first = last = lost[0] if lost else 0
        while last + 1 in lost:
            last += 1
        if again or lane.lost != (first, last):
            lane.lost = (first, last)
            self._report(LaneCorrupt(*key, first, last))

    def mend(self, action: RepairLane) -> None:
        """Write again what was lost."""
        self._schedule.after(self._disk.sync_us * (0.5 + self._chance_of_rot.random()), self._have_mended, self._life, action)

    def _have_mended(self, life: int, action: RepairLane) -> None:
        key = action.origin, action.incarnation
        lane = self.lane(key)
        if life != self._life or self._disk.dead:
            return
        if self._chance_of_rot.random() < 0.9:  # not all that is written comes to the disk
            for frame in action.frames:
                if frame.header != lane.frames[frame.position - 1].header:
                    raise Violation(f"{self._disk.name} repairs with {frame!r}, but had {lane.frames[frame.position - 1]!r}")
                lane.rotten.discard(frame.position)
                self._disk.mended += 1
        self._tell_lost(key, again=True)

    # The thread

    def _time(self) -> float:
        took = self._disk.sync_us * (0.5 + self._chance.random())
        return took + max(0, self._disk.stalled_until - self._schedule.now)

    def _next(self) -> None:
        self._busy = bool(self._queue) and not self._disk.dead
        if not self._busy:
            return
        if self._queue[0].begin is not None:
            self._schedule.after(self._time(), self._have_replaced, self._life)
        elif self._queue[0].cut is not None:
            self._schedule.after(self._time(), self._have_cut, self._life)
        elif self._disk.full and any(frame.kind == Kind.BATCH for frame in self._queue[0].frames):
            self._schedule.after(limits.DISK_FULL_WAIT_US, self._try_again, self._life)
        else:
            self._write()

    def _try_again(self, life: int) -> None:
        if life == self._life:
            self._next()

    def _write(self) -> None:
        """Write what waits and asks for no cut, and sync it once."""
        while self._queue and self._queue[0].cut is None and self._queue[0].begin is None:
            action = self._queue.popleft()
            self._writing.append(action)
            log = self.lane((action.origin, action.incarnation)).frames
            for frame in action.frames:
                if frame.position != len(log) + 1 or not chained(frame, log[-1].header_crc if log else 0):
                    raise Violation(f"{self._disk.name} writes {frame!r} in a lane after position {len(log)}")
                log.append(frame)
        self._schedule.after(self._time(), self._synced, self._life)

    def _synced(self, life: int) -> None:
        if life != self._life or self._disk.dead:
            return
        written = {(action.origin, action.incarnation): self.lane((action.origin, action.incarnation)) for action in self._writing}
        for lane in written.values():
            lane.named = max(lane.named, lane.durable)
        for action in self._writing:
            lane = written[action.origin, action.incarnation]
            if action.frames:
                lane.durable = action.frames[-1].position
            self._note(action)
        for lane in written.values():
            lane.durable = len(lane.frames)
        token = self._writing[-1].token
        self._writing = []
        self._report(LanePersisted(token))
        self._next()

    def _note(self, action: PersistLane) -> None:
        lane = self.lane((action.origin, action.incarnation))
        lane.attempt = max(lane.attempt, action.attempt or 0)
        if action.attempt is not None:  # scalars carry a mark
            lane.named = max(lane.named, lane.durable)

    def _have_cut(self, life: int) -> None:
        if life == self._life and not self._disk.dead:
            self._cut(self._queue[0])
            self._queue[0] = msgspec.structs.replace(self._queue[0], cut=None)
            self._next()

    def _cut(self, action: PersistLane) -> None:
        lane = self.lane((action.origin, action.incarnation))
        behind = action.cut or 0
        if behind < lane.shown or behind > len(lane.frames):
            raise Violation(
                f"{self._disk.name} truncates lane {action.origin} after {behind}; it has {len(lane.frames)}, showed {lane.shown}"
            )
        del lane.frames[behind:]
        lane.durable = min(lane.durable, behind)

    # What happens to it

    def rot(self, chance: Random) -> tuple[Key, int] | None:
        """A decided frame, known so by a start, cannot be read any more: of which lane, and where; None where there is none."""
        keys = sorted(key for key, lane in self.lanes.items() if lane.shown)
        if not keys:
            return None
        key = chance.choice(keys)
        lane = self.lanes[key]
        position = chance.randint(1, lane.shown)
        lane.rotten.add(position)
        lane.kept = max(lane.kept, position)
        return key, position

    def lose_end(self, key: Key, others: Sequence[Lane], chance: Random, *, behind: bool = False) -> int:
        """Without power now: the end of the own lane is gone, from the position that is returned on. 0: nothing is, as it is being
        healed, or others do not have all of it. `behind`: only frames behind the mark, as if those up to it were here again.
        """
        lane = self.lane(key)
        least, last = max(2, lane.start + 1), len(lane.frames)
        if last < least or lane.healing:
            return 0
        marked = chance.randint(max(lane.named, least), last) if lane.named <= last else last
        first = chance.randint(max(least, marked - chance.choice((1, 5, 50))), marked)
        if behind:
            marked = max(lane.named, least)
            first = marked + 1
            if first > last:
                return 0
        for position in range(first, last + 1):
            if not any(_gives(other, lane.frames[position - 1]) for other in others):
                return 0
        lane.lose(first, marked)
        return first

    def kill(self) -> None:
        """The process is gone: the page cache stays, and what was under way is done or not."""
        chance = self._chance
        if self._busy and not self._writing and self._queue and self._queue[0].cut is not None and chance.random() < 0.5:
            self._cut(self._queue[0])
        elif self._busy and not self._writing and self._queue and self._queue[0].begin is not None and chance.random() < 0.5:
            self._replace(self._queue[0])
        for action in self._writing:
            if chance.random() < 0.5:
                self._note(action)
        for lane in self.lanes.values():
            if chance.random() < 0.5:
                del lane.frames[chance.randint(lane.durable, len(lane.frames)) :]
            lane.kept = lane.shown = chance.randint(lane.kept, lane.shown)
        self._forget()

    def power(self) -> None:
        """No power, behind `kill`: what was synced is there, and any beginning of the rest."""
        for lane in self.lanes.values():
            end = self._chance.randint(lane.durable, len(lane.frames)) if self._chance.random() < 0.5 else lane.durable
            del lane.frames[end:]

    def recover(self, report: Callable[[Event], None]) -> tuple[LaneLog, ...]:
        """What a start finds, all of it synced."""
        self._forget()
        self._report = report
        for lane in self.lanes.values():
            lane.durable = len(lane.frames)
            lane.lost = (0, 0)
        self._schedule.after(self._chance_of_rot.random() * SCRUB_S * SECOND, self._scrub, self._life)
        return tuple(lane.log(key) for key, lane in self.lanes.items())
