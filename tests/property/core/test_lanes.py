"""Properties of lanes under random networks, disks and memberships: a lane is the same everywhere, atomic, first in first out, and
without duplicates. It continues in any part of the group, and after the faults stop every gateway has all of it.
"""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.lanes.lane_group import PRODUCERS, Group
from tutti.data.client_protocol import Committed, Duplicate, Expected, RefusedAnswer
from tutti.data.frames.frame import Kind, decode_frame
from tutti_gateway.core.protocol.messages import LaneFetched, LaneMessage, Post

SESSION = 1


class Clients:
    """Producers of every gateway's lane. They send again, under the same sequences, whatever has no outcome."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.sent: dict[tuple[int, int], list[bytes]] = {}  # (gateway, producer) -> bodies, by sequence
        self.done: dict[tuple[int, int], int] = {}
        self.committed: set[bytes] = set()

    def produce(self, number: int, producer: int, count: int, random: Random) -> None:
        bodies = self.sent.setdefault((number, producer), [])
        first = len(bodies)
        for place in range(count):
            bodies.append(f"{number}.{self.group[number].disk}/{producer}/{first + place + 1}".encode() * random.randint(1, 3))
        self.send(number, producer, first)

    def send(self, number: int, producer: int, first: int) -> None:
        bodies = self.sent.get((number, producer), [])
        batches = [(producer, place + 1, bodies[place]) for place in range(first, len(bodies))]
        if batches and self.group[number].layer is not None:
            self.group.submit(number, *batches, session=SESSION)

    def again(self, number: int, producer: int) -> None:
        """Resend, from the last certain sequence or from an earlier one."""
        self.send(number, producer, max(0, self.done.get((number, producer), 0) - self.group.random.randint(0, 2)))

    def read(self) -> None:
        """Process the answers."""
        for number, gateway in self.group.gateways.items():
            for _, answer in gateway.answers:
                if isinstance(answer, Committed | Duplicate):
                    key = number, answer.producer
                    last = answer.first_sequence + answer.count - 1
                    self.done[key] = max(self.done.get(key, 0), last)
                    self.committed.add(self.sent[key][last - 1])
                else:
                    assert isinstance(answer, Expected | RefusedAnswer), answer
            gateway.answers.clear()


class Run:
    """One example: a group, its clients, and random moves of both."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.group = Group(random.choice([1, 2, 3, 3, 5]), seed)
        self.clients = Clients(self.group)
        self.loss = random.choice([0, 0, 0.05, 0.3])
        self.double = random.choice([0, 0.2])
        self.reorder = random.choice([False, False, True])
        self.crashes = random.choice([0, 0.3, 1])
        self.splits = random.choice([0, 0.3, 1])
        self.wipes = random.choice([0, 0, 0.3])
        self.damage = random.choice([0, 0, 0.1])
        self.lows = random.choice([0, 0, 0.3])
        self.numbers = list(self.group.gateways)

    def move(self) -> None:
        random, group = self.random, self.group
        number = random.choice(self.numbers)
        up = group[number].layer is not None
        match random.randint(0, 23):
            case 0 | 1 | 2:
                if up:
                    self.clients.produce(number, random.randint(1, PRODUCERS), random.randint(1, 4), random)
            case 3:
                self.clients.again(number, random.randint(1, PRODUCERS))
            case 4 | 5 | 6:
                if up:
                    group.sync(number, random.randint(1, 3))
            case 7 | 8 | 9:
                group.tell(number)
            case 10 | 11:
                group.beat(number)
            case 12:
                if random.random() < self.crashes and up:
                    group.crash(number)
            case 13:
                if not up:
                    group.start(number)
            case 14:
                if random.random() < self.splits:
                    self.split()
            case 15:
                group.split()
            case 16:
                if random.random() < self.wipes / 4 and up:
                    self.wipe(number)
            case 17:
                layer = group[number].layer
                if random.random() < self.lows and layer is not None:
                    layer.space(random.choice(["", "the disk runs low"]))
            case 18 if group[number].reads and up:
                group.read(number)
            case _:
                for _ in range(random.randint(1, 6)):
                    self.arrive()
        self.clients.read()

    def wipe(self, number: int) -> None:
        """Wipe its disk, and expect nothing more of the batches sent into its lane."""
        self.group.wipe(number)
        self.clients.sent = {key: bodies for key, bodies in self.clients.sent.items() if key[0] != number}
        self.clients.done = {key: last for key, last in self.clients.done.items() if key[0] != number}

    def split(self) -> None:
        """Partition the network: complete parts, or some links, or one direction only."""
        if self.random.random() < 0.5:
            one = {number for number in self.numbers if self.random.random() < 0.5}
            self.group.split(one, set(self.numbers) - one)
        else:
            self.group.cuts.add((self.random.choice(self.numbers), self.random.choice(self.numbers)))

    def arrive(self) -> None:
        """Let a message arrive, once, twice or corrupt, or lose it."""
        network = self.group.network
        if not network:
            return
        place = self.random.randrange(len(network)) if self.reorder else 0
        chance = self.random.random()
        if chance < self.loss:
            network.pop(place)
        elif chance < self.loss + self.damage and isinstance(network[place][2], Post | LaneFetched):
            sender, to, message = network[place]
            network[place] = sender, to, damaged(message, self.random)
            self.group.deliver(place)
        else:
            self.group.deliver(place, keep=self.random.random() < self.double)

    def calm(self) -> None:
        """Stop further faults, with dead members and the partition as they are: each part continues, including lanes of others, and
        all members of a part know what one of them knows as decided.
        """
        group = self.group
        parts: dict[int, set[int]] = {}
        for number in self.numbers:
            parts.setdefault(self.random.randint(0, 2), set()).add(number)
        group.split(*parts.values())
        for gateway in group.gateways.values():
            if gateway.layer is not None:
                gateway.layer.space("")
        group.settle(30)
        self.clients.read()
        healing = group.healing  # a part without all that may have more of a lane waits for them
        for number, gateway in group.gateways.items():
            if gateway.layer is not None and number not in healing:
                for producer in range(1, PRODUCERS + 1):
                    self.clients.again(number, producer)
                self.clients.produce(number, 1, 2, self.random)
        group.settle(10)
        self.clients.read()
        for part in parts.values():
            up = [number for number in part if group[number].layer is not None]
            for number in set(up) - healing:
                bodies = self.clients.sent[number, 1]
                assert self.clients.done.get((number, 1)) == len(bodies), f"gateway {number} does not go on in {part}"
            for key in {key for key, _ in group.decided}:
                ends = {number: group[number].seen.get(key, 0) for number in up}
                assert len(set(ends.values())) <= 1, f"lane {key} ends at {ends}"

    def heal(self) -> None:
        """Stop all faults, and wait until everything completes."""
        group = self.group
        group.split()
        for number, gateway in group.gateways.items():
            if gateway.layer is None:
                group.start(number)
        group.settle(30)
        self.clients.read()
        for _ in range(3):
            for number, producer in list(self.clients.sent):
                self.clients.again(number, producer)
            group.settle(15)
            self.clients.read()

    def check(self) -> None:
        """Check that all members have every lane completely, with every promised record once and in order."""
        group = self.group
        for (number, producer), bodies in self.clients.sent.items():
            assert self.clients.done.get((number, producer), 0) == len(bodies), f"gateway {number} owes an answer"
            key = group[number].key
            for other in group.gateways:
                lane = group.lane(other, key)
                assert [body for body in lane if body in bodies] == bodies, f"gateway {other} has another lane than {number}"
        for key in {key for key, _ in group.decided}:
            ends = {other: gateway.seen.get(key, 0) for other, gateway in group.gateways.items()}
            assert len(set(ends.values())) == 1, f"lane {key} ends at {ends}"
        taken: set[tuple[object, int, int]] = set()
        sequences: dict[tuple[object, int], int] = {}
        for (key, _), frame in sorted(group.decided.items()):
            if frame.kind == Kind.BATCH:
                record = key, frame.producer, frame.first_sequence
                assert record not in taken
                taken.add(record)
                before = sequences.get((key, frame.producer), 0)
                assert frame.first_sequence == before + 1, f"{frame!r} follows sequence {before}"
                sequences[key, frame.producer] = frame.last_sequence


def damaged(message: LaneMessage, random: Random) -> LaneMessage:
    """The message with another body in one of its frames."""
    assert isinstance(message, Post | LaneFetched)
    frames = list(message.frames)
    place = random.randrange(len(frames))
    copy = decode_frame(frames[place].to_bytes())
    copy.body = b"?" * copy.body_length
    frames[place] = copy
    return msgspec.structs.replace(message, frames=tuple(frames))


def run(seed: int, moves: int = 400) -> Run:
    example = Run(seed)
    for _ in range(moves):
        example.move()
    example.calm()
    example.heal()
    example.check()
    return example


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_lanes_are_equal_on_all_gateways(seed: int) -> None:
    assert run(seed).group.network == []
