"""Messages per decided frame, by kind and by size of the group: the real stacks under a steady load, no faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.sim.load import LAN_US, Group, Producer
from tests.sim.schedule import SECOND

KINDS = ("Forward", "Order", "Echo", "Vote", "Confirm")


class Load(NamedTuple):
    """Submits that a producer has under way at a time, and frames of each."""

    name: str
    flight: int
    run: int


LOADS = (Load("one at a time", 1, 1), Load("64 in flight", 64, 1), Load("16 a submit", 1, 16))


class Traffic(NamedTuple):
    """What a load cost: messages of each kind between members, while so many frames were decided."""

    members: int
    through: str
    load: Load
    sent: Counter[str]
    frames: int

    def each(self, kind: str) -> float:
        """Messages of the kind for each frame."""
        return self.sent[kind] / self.frames

    @property
    def all(self) -> float:
        """Messages for each frame, heartbeats left out."""
        return (self.sent.total() - self.sent["Heartbeat"]) / self.frames

    @property
    def law(self) -> float:
        """What it is for one submit at a time: ORDER or ECHO to each other member, YES and CONFIRM, and FORWARD from afar."""
        return (3 * (self.members - 1) + (self.through == "member")) / self.load.run

    @property
    def floor(self) -> float:
        """What is left of it when however many submits share YES and CONFIRM."""
        return (self.members - 1 + (self.through == "member")) / self.load.run


def measure(members: int, through: str, load: Load, frames: int) -> Traffic:
    """Load a group until so many frames are decided."""
    group = Group(members, LAN_US, seed=members)
    at = group.coordinator if through == "coordinator" else group.others(group.coordinator)[0]
    producer = Producer(group, "p", at)
    producer.keep(load.flight, load.run)
    world = group.world
    group.until(lambda: len(producer.committed) >= 2 * load.flight * load.run, "the load is steady", 1000)
    before, decided = _counts(world.counts), world.log.end
    group.until(lambda: world.log.end >= decided + frames, "frames are decided", 1000)
    return Traffic(members, through, load, _counts(world.counts) - before, world.log.end - decided)


def heartbeats(members: int, seconds: int = 10) -> float:
    """Heartbeats a second of a group that rests, of all members together."""
    group = Group(members, LAN_US, seed=members)
    group.run(SECOND)
    before = group.world.counts["Heartbeat"]
    group.run(seconds * SECOND)
    return (group.world.counts["Heartbeat"] - before) / seconds


def _counts(counts: Counter[str]) -> Counter[str]:
    """The messages among what a world counts."""
    return Counter({name: count for name, count in counts.items() if name[0].isupper()})


def table(sizes: Sequence[int], frames: int) -> Iterator[Traffic]:
    """All loads for all sizes; large groups get fewer frames."""
    for members in sizes:
        for load in LOADS:
            for through in ("coordinator", "member")[: min(members, 2)]:
                together = max(1, load.flight * load.run // 8)
                yield measure(members, through, load, together * max(100, min(frames, 4 * frames // members)))
