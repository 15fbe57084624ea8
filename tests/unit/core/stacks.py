"""Stacks of one and of three members, in the states in which the core tests start."""

from __future__ import annotations

import msgspec

from tests.transcripts.group import ENTROPY, Group, Member, incarnation
from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.events import EpochAsked, Identity, Recovered, StackConfig, Started, TopicAsked

VIEW = 1 << 16 | 1


def started(members: dict[str, str], state: LogState | None = None, tail: tuple[Frame, ...] = ()) -> Started:
    identity = Identity("g1", incarnation("g1"), "test", members)
    return Started(identity, ENTROPY, Recovered(b"", HardState(), state or LogState(), tail))


def alone(**config: int) -> tuple[Group, Member]:
    group = Group(msgspec.structs.replace(StackConfig(), **config))
    member = group.start_alone("g1")
    group.settle()
    return group, member


def opened(**config: int) -> tuple[Group, Member]:
    """With producer 1 at epoch 1 for session 1, and topic 1."""
    group, member = alone(**config)
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    return group, member


def batches(first: int, count: int, body: bytes | memoryview = b"body") -> tuple[Frame, ...]:
    return tuple(
        Frame(Kind.BATCH, body, producer=1, epoch=1, first_sequence=first + place, count=1, topic=1) for place in range(count)
    )


def answers(member: Member, kind: type[Answer]) -> list[Answer]:
    return [answer for _, answer in member.replies if isinstance(answer, kind)]


def three(**config: int) -> Group:
    group = Group(msgspec.structs.replace(StackConfig(), **config))
    group.start_group(["g1", "g2", "g3"], VIEW)
    group.settle()
    return group
