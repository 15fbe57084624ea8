"""Lanes in the simulator: what a disk keeps of them, and the checks of what may never happen to them (gateway/core/unordered).

The lanes of a disk follow the rules of its log (`disk.py`): operations are done one after the other, one sync serves many, a killed
process leaves the page cache, and a power loss what was synced and any beginning of the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gateway.core import limits
from gateway.core.actions import DeliverUnordered, MendLane, PersistLane, ReadLane, Reply
from gateway.core.events import Event, LaneLog, LanePersisted, LaneRead, LaneRotted
from gateway.core.messages import Message, Post, Posted
from gateway.data.bodies import ViewBody, decode_body
from gateway.data.frame import Frame, Kind, chained
from gateway.data.wire import Committed, Duplicate
from tests.sim.schedule import MS, SECOND, Schedule
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.disk import Disk
    from tests.sim.gateways import Gateway, Process
    from tests.sim.world import World

Key = tuple[int, bytes]  # origin's number, incarnation of its disk
SCRUB_S = 4.0  # so long a disk takes to look at all of its lanes, about


class Lane:
    """One lane on one disk.

    Attributes:
        frames: position 1 first, synced or not; durable: how many of them are synced.
        attempt: of the own lane, the highest that is durable.
        shown: last position delivered by the process; kept: how much of that a start will know.
        rotten: positions that cannot be read; lost: the range of them that was told, 0 and 0 for none.
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.durable = self.attempt = self.shown = self.kept = 0
        self.rotten: set[int] = set()
        self.lost = (0, 0)

    def log(self, key: Key) -> LaneLog:
        """What a start finds."""
        before = self.frames[: self.kept]
        return LaneLog(
            origin=key[0],
            incarnation=key[1],
            attempt=max(self.attempt, self.frames[-1].view if self.frames else 0),
            position=self.kept,
            chain=before[-1].header_crc if before else 0,
            offset=sum(frame.count for frame in before),
            tail=tuple(self.frames[self.kept :]),
            lines={frame.producer: (frame.epoch, frame.last_sequence) for frame in before if frame.kind == Kind.BATCH},
        )


class LaneStore:
    """All lanes of one disk, and the thread that writes them."""

    def __init__(self, disk: Disk, schedule: Schedule, chance: Random) -> None:
        self._disk = disk
        self._schedule = schedule
        self._chance = chance
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
            last = min(action.last, lane.durable, *(position - 1 for position in lane.rotten if position >= action.first))
            found = lane.frames[action.first - 1 : last]
            self._report(LaneRead(action.token, tuple(found[: self._chance.randint(1, 200)])))

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
            self._report(LaneRotted(*key, first, last))

    def mend(self, action: MendLane) -> None:
        """Write again what was lost."""
        self._schedule.after(self._disk.sync_us * (0.5 + self._chance_of_rot.random()), self._have_mended, self._life, action)

    def _have_mended(self, life: int, action: MendLane) -> None:
        key = action.origin, action.incarnation
        lane = self.lane(key)
        if life != self._life or self._disk.dead:
            return
        if self._chance_of_rot.random() < 0.9:  # not all that is written comes to the disk
            for frame in action.frames:
                if frame.header != lane.frames[frame.position - 1].header:
                    raise Violation(f"{self._disk.name} mends with {frame!r} and had {lane.frames[frame.position - 1]!r}")
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
        if self._queue[0].cut is not None:
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
        while self._queue and self._queue[0].cut is None:
            action = self._queue.popleft()
            self._writing.append(action)
            log = self.lane((action.origin, action.incarnation)).frames
            for frame in action.frames:
                if frame.position != len(log) + 1 or not chained(frame, log[-1].header_crc if log else 0):
                    raise Violation(f"{self._disk.name} writes {frame!r} in a lane behind position {len(log)}")
                log.append(frame)
        self._schedule.after(self._time(), self._synced, self._life)

    def _synced(self, life: int) -> None:
        if life != self._life or self._disk.dead:
            return
        for action in self._writing:
            self._note(action)
            lane = self.lane((action.origin, action.incarnation))
            lane.durable = len(lane.frames)
        token = self._writing[-1].token
        self._writing = []
        self._report(LanePersisted(token))
        self._next()

    def _note(self, action: PersistLane) -> None:
        lane = self.lane((action.origin, action.incarnation))
        lane.attempt = max(lane.attempt, action.attempt or 0)

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
                f"{self._disk.name} cuts lane {action.origin} behind {behind}; it has {len(lane.frames)}, and showed {lane.shown}"
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

    def kill(self) -> None:
        """The process is gone: the page cache stays, and what was under way is done or not."""
        chance = self._chance
        if self._busy and not self._writing and self._queue and self._queue[0].cut is not None and chance.random() < 0.5:
            self._cut(self._queue[0])
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


class Decided(NamedTuple):
    """A lane as its members showed it first. `batches`: (producer, epoch, sequence) -> (offset, position) of every record."""

    frames: list[Frame]
    offsets: list[int]
    batches: dict[tuple[int, int, int], tuple[int, int]]
    last: dict[str, int]  # of each client, the number of its last token


class LaneChecks:
    """What may never happen to lanes, looked at as it happens.

    Attributes:
        sessions: (process, session) of clients that send into a lane.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._lanes: dict[Key, Decided] = {}
        self._attempts: dict[tuple[Key, int], tuple[tuple[int, ...], dict[str, bytes]]] = {}  # -> members, and their disks
        self.sessions: set[tuple[Process, int]] = set()

    def carry_out(self, process: Process, action: PersistLane | ReadLane | MendLane | DeliverUnordered) -> None:
        """Do what a process wants done with lanes."""
        store = process.gateway.disk.lanes
        if isinstance(action, PersistLane):
            for frame in action.frames:
                if frame.kind == Kind.VIEW:
                    self._attempt(process, (action.origin, action.incarnation), frame)
            store.persist(action)
        elif isinstance(action, ReadLane):
            store.read(action)
        elif isinstance(action, MendLane):
            store.mend(action)
        else:
            self._delivered(process, action)

    def _attempt(self, process: Process, key: Key, frame: Frame) -> None:
        """An attempt has the same members for everybody; nobody voted before it was written for the first time."""
        members = decode_body(ViewBody, frame.body).members
        names = self._world.log.names
        for running in self._world.running:  # a ROSTER that is not decided yet may name who takes part
            if running.process is not None:
                names = running.process.names | {running.process.me: running.name} | names
        disks = {names[number]: self._world.gateways[names[number]].incarnation for number in members if number in names}
        known = self._attempts.setdefault((key, frame.view), (members, disks))
        if known[0] != members:
            raise Violation(f"{process.gateway.name} has attempt {frame.view} of {members} in lane {key[0]}, others of {known[0]}")

    def sent(self, process: Process, to: int, message: Message) -> None:
        """No YES before its copy is durable; nothing of an attempt before the NO that ended the last one is."""
        lanes = process.gateway.disk.lanes.lanes
        if isinstance(message, Posted) and message.up_to:
            lane = lanes.get((to, message.incarnation), Lane())
            if lane.durable < message.up_to:
                raise Violation(f"{process.gateway.name} says {message}, and {lane.durable} is durable")
        elif isinstance(message, Post):
            lane = lanes.get((message.frames[-1].origin, message.incarnation), Lane())
            if message.frames[-1].view > lane.attempt:
                raise Violation(f"{process.gateway.name} posts {message.frames[-1]!r}, and attempt {lane.attempt} is durable")

    def _delivered(self, process: Process, action: DeliverUnordered) -> None:
        key = action.origin, action.incarnation
        decided = self._lanes.setdefault(key, Decided([], [], {}, {}))
        lane = process.gateway.disk.lanes.lane(key)
        name, offset = process.gateway.name, action.first_offset
        for frame in action.frames:
            if frame.position != lane.shown + 1 or lane.durable < frame.position:
                raise Violation(f"{name} delivers {frame!r} of lane {key[0]} behind {lane.shown}, {lane.durable} is durable")
            if frame.position > len(decided.frames):
                self._new(process, key, decided, frame, offset)
            first, at = decided.frames[frame.position - 1], decided.offsets[frame.position - 1]
            if frame.header != first.header or bytes(frame.body) != bytes(first.body) or offset != at:
                raise Violation(f"{name} delivers {frame!r} at {offset} of lane {key[0]}, and others had {first!r} at {at}")
            lane.shown = frame.position
            offset += frame.count

    def _new(self, process: Process, key: Key, decided: Decided, frame: Frame, offset: int) -> None:
        """Nobody showed it before: all members of its attempt have it durably, and it goes on where its producer was."""
        name = process.gateway.name
        for member, disk in self._attempts[key, frame.view][1].items():
            gateway = self._world.gateways[member]
            lane = gateway.disk.lanes.lanes.get(key, Lane())
            held = lane.durable >= frame.position and lane.frames[frame.position - 1].header == frame.header
            if gateway.incarnation == disk and not held:
                raise Violation(f"{name} decides {frame!r} of lane {key[0]}, and {member} does not have it")
        decided.frames.append(frame)
        decided.offsets.append(offset)
        world = self._world
        world.counts["lane frames"] += 1
        world.counts["lane frames without a view"] += not process.primary
        world.counts["lane attempts"] += frame.kind == Kind.VIEW
        if frame.kind != Kind.BATCH:
            return
        for place, token in enumerate(bytes(frame.body).decode().split(",")):
            client, number = token.rsplit("-", 1)
            if int(number) <= decided.last.get(client, 0):
                raise Violation(f"{token} is decided in lane {key[0]} behind {client}-{decided.last[client]}")
            decided.last[client] = int(number)
            record = frame.producer, frame.epoch, frame.first_sequence + place
            if decided.batches.setdefault(record, (offset + place, frame.position)) != (offset + place, frame.position):
                raise Violation(f"{name} decides sequence {record} of lane {key[0]} twice")

    def replied(self, process: Process, reply: Reply) -> bool:
        """What is acknowledged is decided in the gateway's lane; False if the session sends into the ordered log."""
        if (process, reply.session) not in self.sessions:
            return False
        # One that was removed and added again has a lane under each number; what it says is of the one that it began with.
        own = [(key, decided) for key, decided in self._lanes.items() if key[1] == process.gateway.incarnation]
        for answer in reply.answers:
            if isinstance(answer, Committed | Duplicate):
                for place in range(answer.count):
                    record = answer.producer, answer.epoch, answer.first_sequence + place
                    found = [(key, decided.batches[record]) for key, decided in own if record in decided.batches]
                    shown = [at for key, (at, position) in found if position <= process.gateway.disk.lanes.lane(key).shown]
                    if not shown:
                        raise Violation(f"{process.gateway.name} says {answer}, and its lane has not decided it")
                    if isinstance(answer, Committed) and shown != [answer.offset + place]:
                        raise Violation(f"{process.gateway.name} says {answer}, and it is at offset {shown}")
                self._world.counts["lane receipts"] += 1
        return True

    # The end

    def differ(self) -> str:
        """Where lanes are not the same everywhere, or lack what was decided while all disks that had it live; empty: nowhere."""
        gateways = list(self._members())
        for key, decided in self._lanes.items():
            reach = {gateway.name: gateway.disk.lanes.lanes.get(key, Lane()).shown for gateway in gateways}
            if len(set(reach.values())) > 1 and _given(gateways, key, min(reach.values()) + 1):
                return f"lane {key[0]} is decided up to {reach}"
            if unmended := self._unmended(key, gateways):
                return unmended
            end = max(reach.values(), default=0)
            if end < len(decided.frames) and self._lives(key, decided.frames[end]):
                return f"lane {key[0]} was decided up to {len(decided.frames)} and is up to {end} everywhere"
        return ""

    def _unmended(self, key: Key, gateways: Sequence[Gateway]) -> str:
        """What a gateway cannot read though another can give it; empty: nothing."""
        for gateway in gateways:
            for position in gateway.disk.lanes.lanes.get(key, Lane()).rotten:
                if _given(gateways, key, position):
                    return f"{gateway.name} cannot read position {position} of lane {key[0]}"
        return ""

    def _members(self) -> Iterator[Gateway]:
        """Gateways that the roster names, with the disks that they have."""
        world = self._world
        for voter in world.log.state.roster.values():
            gateway = world.gateways[voter.name]
            if gateway.process is not None and gateway.incarnation == voter.incarnation:
                yield gateway

    def _lives(self, key: Key, frame: Frame) -> bool:
        """Whether all disks that had the frame are there."""
        present = {gateway.name: gateway.incarnation for gateway in self._members()}
        return all(present.get(name) == disk for name, disk in self._attempts[key, frame.view][1].items())


def _given(gateways: Sequence[Gateway], key: Key, position: int) -> bool:
    """Whether any of them can give a decided frame of a lane: one that rotted where nobody else had it yet is lost."""
    lanes = [gateway.disk.lanes.lanes.get(key, Lane()) for gateway in gateways]
    return any(lane.shown >= position and position not in lane.rotten for lane in lanes)
