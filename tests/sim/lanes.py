"""The checks of what may never happen to lanes in the simulator (gateway/tutti_gateway/core/lanes).

`lane_store.py` is what a disk keeps of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.sim.lane_store import Decided, Key, Lane
from tests.sim.violation import Violation
from tutti.data.client_protocol import Committed, Duplicate
from tutti.data.frames.bodies import ViewBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane, ReadLane, RepairLane, Reply
from tutti_gateway.core.protocol.messages import Message, Post, Posted

if TYPE_CHECKING:
    from tests.sim.gateways import Gateway, Process
    from tests.sim.world import World


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

    def carry_out(self, process: Process, action: PersistLane | ReadLane | RepairLane | LaneHeld | DeliverUnordered) -> None:
        """Do what a process wants done with lanes."""
        store = process.gateway.disk.lanes
        store.known = self._lanes
        if isinstance(action, PersistLane):
            for frame in action.frames:
                if frame.kind == Kind.VIEW:
                    self._attempt(process, (action.origin, action.incarnation), frame)
            store.persist(action)
        elif isinstance(action, ReadLane):
            store.read(action)
        elif isinstance(action, RepairLane):
            store.mend(action)
        elif isinstance(action, LaneHeld):
            self._held(process, action)
            if not self.healing((action.origin, action.incarnation)):
                store.held(action)
        else:
            self._delivered(process, action)

    def _held(self, process: Process, action: LaneHeld) -> None:
        """What may be let go is held by every gateway that the process's log names, if it has its disk yet."""
        key = action.origin, action.incarnation
        for voter in process.stack.decided.roster.values():
            gateway = self._world.gateways[voter.name]
            lane = gateway.disk.lanes.lanes.get(key, Lane())
            if gateway.incarnation == voter.incarnation and max(lane.durable, lane.had) < action.position:
                raise Violation(
                    f"{process.gateway.name} lets lane {key[0]} go to {action.position}, but {voter.name} has only {lane.durable}"
                )
        self._world.counts["lanes held"] += 1

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
            raise Violation(
                f"{process.gateway.name} has attempt {frame.view} of {members} in lane {key[0]}, but other gateways have {known[0]}"
            )

    def sent(self, process: Process, to: int, message: Message) -> None:
        """No YES before its copy is durable; nothing of an attempt before the NO that ended the last one is."""
        lanes = process.gateway.disk.lanes.lanes
        if isinstance(message, Posted) and message.up_to:
            lane = lanes.get((to, message.incarnation), Lane())
            if lane.durable < message.up_to:
                raise Violation(f"{process.gateway.name} sends {message}, but only {lane.durable} is durable")
        elif isinstance(message, Post):
            lane = lanes.get((message.frames[-1].origin, message.incarnation), Lane())
            if message.frames[-1].view > lane.attempt:
                raise Violation(f"{process.gateway.name} sends {message.frames[-1]!r}, but attempt {lane.attempt} is durable")

    def _delivered(self, process: Process, action: DeliverUnordered) -> None:
        key = action.origin, action.incarnation
        decided = self._lanes.setdefault(key, Decided([], [], {}, {}))
        lane = process.gateway.disk.lanes.lane(key)
        name, offset = process.gateway.name, action.first_offset
        for frame in action.frames:
            if frame.position != lane.shown + 1 or lane.durable < frame.position:
                raise Violation(
                    f"{name} delivers {frame!r} of lane {key[0]} after {lane.shown}, but only {lane.durable} is durable"
                )
            if frame.position > len(decided.frames):
                self._new(process, key, decided, frame, offset)
            first, at = decided.frames[frame.position - 1], decided.offsets[frame.position - 1]
            if frame.header != first.header or bytes(frame.body) != bytes(first.body) or offset != at:
                raise Violation(f"{name} delivers {frame!r} at {offset} of lane {key[0]}, but others had {first!r} at {at}")
            lane.shown = frame.position
            offset += frame.count

    def _new(self, process: Process, key: Key, decided: Decided, frame: Frame, offset: int) -> None:
        """Nobody showed it before: all members of its attempt have it durably, and it goes on where its producer was."""
        name = process.gateway.name
        for member, disk in self._attempts[key, frame.view][1].items():
            gateway = self._world.gateways[member]
            lane = gateway.disk.lanes.lanes.get(key, Lane())
            held = lane.durable >= frame.position and lane.frames[frame.position - 1].header == frame.header
            held = held or (gateway.incarnation == key[1] and frame.position <= lane.had)  # it had it, and lost it
            if gateway.incarnation == disk and not held:
                raise Violation(f"{name} decides {frame!r} of lane {key[0]}, but {member} does not have it")
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
                raise Violation(f"{token} is decided in lane {key[0]} after {client}-{decided.last[client]}, which was sent later")
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
                        raise Violation(f"{process.gateway.name} answers {answer}, but its lane has not decided it")
                    if isinstance(answer, Committed) and shown != [answer.offset + place]:
                        raise Violation(f"{process.gateway.name} answers {answer}, but it is at offset {shown}")
                self._world.counts["lane receipts"] += 1
        return True

    # The end

    def differ(self) -> str:
        """Where lanes are not the same everywhere, or lack what was decided while all disks that had it live; empty: nowhere."""
        gateways = list(self._members())
        if unhealed := self._unhealed(gateways):
            return unhealed
        for key, decided in self._lanes.items():
            able = [gateway for gateway in gateways if not self._over(gateway, key, gateways)]
            reach = {gateway.name: gateway.disk.lanes.lanes.get(key, Lane()).shown for gateway in able}
            if len(set(reach.values())) > 1 and _given(gateways, key, min(reach.values()) + 1):
                return f"lane {key[0]} is decided up to {reach}"
            if unmended := self._unmended(key, gateways):
                return unmended
            end = max(reach.values(), default=0)
            if end < len(decided.frames) and self._lives(key, decided.frames[end]):
                return f"lane {key[0]} was decided up to {len(decided.frames)} and is up to {end} everywhere"
        return ""

    def healing(self, key: Key) -> bool:
        """Whether the disk whose lane it is lost its end, and not all of it is back."""
        gateways = self._world.gateways.values()
        return any(one.incarnation == key[1] and one.disk.lanes.lanes.get(key, Lane()).healing for one in gateways)

    @property
    def any_heals(self) -> bool:
        """Whether any lane is being healed."""
        return any(self.healing(key) for gateway in self._world.gateways.values() for key in gateway.disk.lanes.lanes)

    def lose_end(self, gateway: Gateway, givers: Sequence[Gateway] = ()) -> str:
        """The end of a gateway's own lane cannot be read any more; what and where, empty if nothing is that others have: `givers`,
        of whom only what stands behind the mark is wanted, or any member.
        """
        number = self._world.log.numbers.get(gateway.name, 0)
        keys = [key for key in gateway.disk.lanes.lanes if key == (number, gateway.incarnation)]
        others = [one for one in givers or self._members() if one is not gateway]
        if not keys or not others:
            return ""
        key = keys[0]
        gateway.power()
        lanes = [one.disk.lanes.lanes.get(key, Lane()) for one in others]
        chance = self._world.chance(f"end of a lane at {self._world.schedule.now}")
        first = gateway.disk.lanes.lose_end(key, lanes, chance, behind=bool(givers))
        self._world.counts["lane ends lost"] += bool(first)
        return f"lane {key[0]} of {gateway.name} is lost from position {first} on" if first else ""

    def _unhealed(self, gateways: Sequence[Gateway]) -> str:
        """A lane that waits though all disks of its last attempt are there, or all gateways that there are, and have what it lacks;
        empty: none.
        """
        everybody = len(gateways) == len(self._world.log.state.roster)
        for gateway in gateways:
            lanes = gateway.disk.lanes.lanes
            for key in [key for key in lanes if key[1] == gateway.incarnation and lanes[key].healing]:
                disks = self._attempts.get((key, lanes[key].heals), ((), {}))[1]
                present = {one.name: one.incarnation for one in gateways}
                process = gateway.process
                there = everybody or all(present.get(name) == disk for name, disk in disks.items())
                if process is not None and process.me == key[0] and there and not self._over(gateway, key, gateways):
                    return f"{gateway.name}: {process.stack.lane_halted}"
        return ""

    def _unmended(self, key: Key, gateways: Sequence[Gateway]) -> str:
        """What a gateway cannot read though another can give it, who has not let it go; empty: nothing. What stands behind what
        nobody can give waits for it.
        """
        for gateway in gateways:
            for position in sorted(gateway.disk.lanes.lanes.get(key, Lane()).rotten)[:1]:
                if _given(_kept(gateways, key, position), key, position):
                    return f"{gateway.name} cannot read position {position} of lane {key[0]}"
        return ""

    def _over(self, gateway: Gateway, key: Key, gateways: Sequence[Gateway]) -> bool:
        """Whether the lane is the gateway's own, and what its disk lost is nowhere: rotten at the last who had not let go."""
        lane, decided = gateway.disk.lanes.lanes.get(key, Lane()), self._lanes.get(key)
        if gateway.incarnation != key[1] or not lane.healing or decided is None or lane.shown >= len(decided.frames):
            return False
        position = lane.shown + 1
        return not _given(_kept(gateways, key, position), key, position)

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


def _kept(gateways: Sequence[Gateway], key: Key, position: int) -> list[Gateway]:
    """Who has not let go of a position of a lane."""
    return [gateway for gateway in gateways if gateway.disk.lanes.lanes.get(key, Lane()).start < position]


def _given(gateways: Sequence[Gateway], key: Key, position: int) -> bool:
    """Whether any of them can give a decided frame of a lane: one that rotted where nobody else had it yet is lost."""
    lanes = [gateway.disk.lanes.lanes.get(key, Lane()) for gateway in gateways]
    return any(lane.shown >= position and position not in lane.rotten for lane in lanes)
