"""Tests of the message checks: every message that members send passes, and a message with an impossible field does not."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.message_checks import _CHECKS, far_ahead, malformed
from tutti_gateway.core.protocol.messages import (
    Ask,
    AskEpoch,
    AskForget,
    Asking,
    AskOffsets,
    AskRoster,
    AskTopic,
    Confirm,
    Damage,
    Deny,
    Echo,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Forward,
    Heartbeat,
    Install,
    Installed,
    LaneAsk,
    LaneBegin,
    LaneEnd,
    LaneEnds,
    LaneFetch,
    LaneFetched,
    LaneTail,
    Message,
    Missing,
    No,
    Order,
    Post,
    Posted,
    Probe,
    Propose,
    Refuse,
    Reject,
    Repair,
    Repairing,
    Resend,
    Settled,
    State,
    Vote,
)

VIEW = 3 << 16 | 1
ID = b"sixteen bytes ok"
HUGE = 2**63
VIEWS = (-1, 1, 0xFFFF, 7 << 16, 2**63 | 1, 2**64)
POSITIONS = (-1, HUGE, 2**64)
MEMBERS: tuple[Any, ...] = ((1, 1), (0, 1), (1, 0x10000), (1, -2), tuple(range(1, common_limits.ROSTER_MAX + 2)))
RANGES: tuple[Any, ...] = (
    (),
    ((2, 1),),
    ((0, 1),),
    ((3, 4), (1, 2)),
    ((1, 3), (3, 4)),
    ((1, HUGE),),
    tuple((n, n) for n in range(1, 66)),
)
LONG = "x" * (limits.REASON_CHARACTERS_MAX + 1)
TABLES: tuple[Any, ...] = (
    ((VIEW, 5), (VIEW, 6)),
    ((VIEW, 5), (VIEW + 0x10000, 5)),
    ((VIEW, 0),),
    ((VIEW, 10),),
    ((5, 1),),
    tuple((n << 16 | 1, n) for n in range(1, limits.VIEW_RUNS_MAX + 2)),
)


def run(*positions: int, body: bytes = b"body") -> tuple[Frame, ...]:
    frames = tuple(Frame(Kind.TICK, body, origin=1) for _ in positions)
    for frame, position in zip(frames, positions, strict=True):
        frame.stamp(VIEW, position, 0)
    return frames


def batch(**fields: int) -> Frame:
    fields = {"producer": 1, "epoch": 1, "first_sequence": 1, "count": 2, "topic": 1, **fields}
    return Frame(Kind.BATCH, b"body", **fields)  # type: ignore[arg-type] # all are numbers


RUNS: tuple[Any, ...] = (
    (),
    run(3, 5),
    run(4, 3),
    run(2**63, 2**63 + 1),
    (batch(),),
    run(*range(1, limits.FETCHED_FRAMES_MAX + 2)),
    run(3, body=bytes(common_limits.BODY_BYTES_MAX + 1)),
)
GOOD: tuple[Any, ...] = (
    Forward(VIEW, (batch(), batch(first_sequence=3))),
    *(
        Asking(VIEW, ask)
        for ask in (
            AskEpoch("p", ID, 1),
            AskTopic("t"),
            AskOffsets("r", 0, 0),
            AskForget((1, 2)),
            AskRoster("add", "g4", "g4:7400"),
            AskRoster("remove", "g4"),
        )
    ),
    Order(VIEW, run(3, 4)),
    Echo(VIEW, run(3)[0].header),
    Resend(VIEW, 1, 1, 1),
    Refuse(VIEW, 1, 1, 1, "space", "why", True),
    Deny(VIEW, AskTopic("t"), "limit", "why", False),
    Vote(VIEW, 0),
    Vote(VIEW, 9, "little is free"),
    No(VIEW, 9, "no space"),
    Confirm(VIEW, 0),
    Heartbeat(sent_us=0),
    Heartbeat(
        sent_us=9, echo_us=8, held_us=7, log=ID, config=6, view=VIEW, members=(1, 2), promised=VIEW, accepted=VIEW, claim=VIEW
    ),
    Heartbeat(sent_us=9, promised=VIEW + 9, accepted=VIEW, end=9, frontier=8, watermark=7, misses=False, hears=(2, 3), ready=True),
    Probe(),
    Propose(VIEW, (1, 2)),
    State(view=VIEW, accepted=0, end=0, chain=0, frontier=0, base=0, table=()),
    State(
        view=VIEW, accepted=VIEW, end=9, chain=5, frontier=4, base=2, table=((VIEW, 3), (VIEW + 9, 7)), damage=Damage(8, 9, VIEW, 5)
    ),
    Reject(VIEW, 0, "why"),
    Install(view=VIEW, members=(2, 1), end=9, chain=5, base=2, table=((VIEW, 3),)),
    Installed(VIEW),
    Fetch(0, 1, limits.POSITION_MAX),
    Fetch(VIEW, 1, 9),
    Fetched(view=0, first=3, frames=(), source=VIEW, stop=2),
    Fetched(view=VIEW, first=3, frames=run(3, 4)),
    FetchSnapshot(0, 7, 0),
    FetchSnapshot(VIEW, 7, limits.SNAPSHOT_BYTES_MAX),
    FetchedSnapshot(view=VIEW, position=7, size=9, at=4, data=b"12345"),
    Missing(VIEW, ((1, 1), (2, 5))),
    Missing(VIEW, ((1, limits.POSITION_MAX),), 3),
    Repairing(VIEW, ((1, 1),)),
    Repair(VIEW, run(3)),
    Post(ID, run(3)),
    Posted(ID, 1, 0, "little is free", True),
    Settled(ID, 0, 9),
    LaneEnds(()),
    LaneEnds((LaneEnd(1, ID, 0),)),
    LaneFetch(1, ID, 1),
    LaneFetched(1, ID, ()),
    LaneFetched(1, ID, run(3)),
    LaneFetched(1, ID, (), LaneBegin(5, 1, 7, 3, (1, 2))),
    LaneAsk(ID, 7, 1, 9),
    LaneAsk(ID, 7, 1, 9, 9),
    LaneTail(ID, 7, 0, 0),
    LaneTail(ID, 7, 1, 3, run(3)),
)
BEGINS = (
    LaneBegin(0, 1, 7, 3, (1,)),
    LaneBegin(5, 0, 7, 3, (1,)),
    LaneBegin(5, 1, -1, 3, (1,)),
    LaneBegin(5, 1, 7, -1, (1,)),
    LaneBegin(5, 1, 7, 3, (0,)),
    LaneBegin(5, 1, 7, 3, (1,) * 64),
)
BATCHES = (
    batch(count=0),
    batch(first_sequence=0),
    batch(first_sequence=2**63 - 1),
    batch(raw_length=common_limits.RAW_BYTES_MAX + 1),
    *run(3),
)
ASKS: tuple[Any, ...] = (
    AskEpoch("", ID, 1),
    AskEpoch("x" * 251, ID, 1),
    AskEpoch("p", b"", 1),
    AskEpoch("p", ID, 0),
    AskEpoch("p", ID, 2**32),
    AskTopic(""),
    AskTopic("x" * 251),
    AskOffsets("", 0, 0),
    AskOffsets("r", -1, 0),
    AskOffsets("r", 0, -1),
    AskOffsets("r", HUGE, 0),
    AskForget(()),
    AskForget((1, 1)),
    AskForget((0,)),
    AskForget(tuple(range(1, common_limits.DELETE_PRODUCERS_MAX + 2))),
    AskRoster("turn", "g4"),
    AskRoster("add", ""),
    AskRoster("add", "g4", "x" * 513),
    AskRoster("replace", "g4", "", b"short"),
)
#: By kind and field, what it cannot hold.
BAD: dict[type, dict[str, tuple[Any, ...]]] = {
    Forward: {"frames": ((), (batch(),) * (common_limits.FRAMES_A_MESSAGE_MAX + 1), *((batch(), bad) for bad in BATCHES))},
    Asking: {"ask": ASKS},
    Order: {"frames": RUNS},
    Echo: {"headers": (b"", bytes(95), bytes(96 * (common_limits.FRAMES_A_MESSAGE_MAX + 1)))},
    Resend: {"producer": (0, HUGE), "epoch": (0, 2**32), "sequence": (0, *POSITIONS)},
    Refuse: {"producer": (0, HUGE), "epoch": (-1, 2**32), "first_sequence": (0, HUGE), "code": ("x" * 65,), "reason": (LONG,)},
    Deny: {"ask": ASKS, "code": ("x" * 65,), "reason": (LONG,)},
    Vote: {"up_to": POSITIONS, "low": ("x" * (limits.SPACE_CHARACTERS_MAX + 1),)},
    No: {"position": (0, *POSITIONS), "reason": (LONG,)},
    Confirm: {"up_to": POSITIONS},
    Heartbeat: {
        "sent_us": (-1, HUGE),
        "echo_us": (-1, HUGE),
        "held_us": (-1, HUGE),
        "log": (b"short",),
        "config": (-1, 2**32),
        "promised": VIEWS,
        "accepted": VIEWS,
        "claim": VIEWS,
        "end": (-1, HUGE),
        "frontier": (10, HUGE),
        "watermark": (-1, 9),
        "members": ((1, 2),),
        "hears": MEMBERS,
    },
    Propose: {"members": (*MEMBERS, (2, 3), ())},
    State: {
        "accepted": (*VIEWS, VIEW + 1),
        "end": (-1, 3, HUGE),
        "chain": (-1, 2**32),
        "frontier": (-1, 10),
        "base": POSITIONS,
        "table": TABLES,
        "damage": (Damage(0, 9, VIEW, 5), Damage(9, 8, VIEW, 5), Damage(7, 8, VIEW, 5), Damage(8, 9, 1, 5), Damage(8, 9, VIEW, -1)),
    },
    Reject: {"promised": (-1, 1, 2**64), "reason": (LONG,)},
    Install: {"members": (*MEMBERS, (2, 3), ()), "end": POSITIONS, "chain": (-1, 2**32), "base": POSITIONS, "table": TABLES},
    Fetch: {"first": (-1, 0, 10), "last": (-1, 0, HUGE)},
    Fetched: {"first": (0, 2, HUGE), "frames": RUNS[1:], "source": (-1, 1), "stop": POSITIONS},
    FetchSnapshot: {"position": (0, *POSITIONS), "at": (-1, limits.SNAPSHOT_BYTES_MAX + 1)},
    FetchedSnapshot: {
        "position": (0, *POSITIONS),
        "size": (-1, 0, 4, limits.SNAPSHOT_BYTES_MAX + 1),
        "at": (-1, 9),
        "data": (b"", b"x" * (limits.FETCH_BYTES + 1)),
        "source": (-1, 1),
    },
    Missing: {"ranges": RANGES, "of": (-1, 0x10000)},
    Repairing: {"ranges": RANGES},
    Repair: {"frames": RUNS},
    Post: {"incarnation": (b"",), "frames": RUNS},
    Posted: {"incarnation": (b"",), "attempt": POSITIONS, "up_to": POSITIONS, "low": (LONG,)},
    Settled: {"incarnation": (b"",), "attempt": POSITIONS, "up_to": POSITIONS},
    LaneEnds: {"ends": ((LaneEnd(0, ID, 0),), (LaneEnd(1, b"", 0),), (LaneEnd(1, ID, -1),), (LaneEnd(1, ID, 0),) * 1025)},
    LaneFetch: {"origin": (0, 0x10000), "incarnation": (b"",), "first": (0, *POSITIONS)},
    LaneFetched: {"origin": (0, 0x10000), "incarnation": (b"",), "frames": RUNS[1:], "begin": BEGINS},
    LaneAsk: {"incarnation": (b"",), "attempt": POSITIONS, "up_to": POSITIONS, "behind": POSITIONS},
    LaneTail: {"incarnation": (b"",), "attempt": POSITIONS, "up_to": POSITIONS, "frames": RUNS[1:]},
}


def changed(message: Any, field: str, value: Any) -> Any:
    return msgspec.structs.replace(message, **{field: value})


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_messages_of_members_pass(message: Message) -> None:
    assert malformed(message) == ""


def test_every_kind_of_message_and_request_is_checked() -> None:
    assert set(_CHECKS) == set(get_args(Message)) == {type(message) for message in GOOD}
    assert set(BAD) == set(_CHECKS) - {Probe, Installed}, "whose fields are all views"
    assert {type(message.ask) for message in GOOD if isinstance(message, Asking)} == set(get_args(Ask))


@pytest.mark.parametrize("kind", sorted(BAD, key=str), ids=str)
def test_a_field_that_cannot_be_is_a_fault(kind: type) -> None:
    good = [message for message in GOOD if type(message) is kind][-1]
    for field, values in BAD[kind].items():
        for value in values:
            assert malformed(changed(good, field, value)), f"{field}={value!r}"


@pytest.mark.parametrize("view", VIEWS)
def test_no_message_of_an_impossible_view_passes(view: int) -> None:
    for message in GOOD:
        if "view" in message.__struct_fields__:
            assert malformed(changed(message, "view", view)), message


def test_a_value_that_is_not_a_message_is_a_fault() -> None:
    assert malformed(AskTopic("t")) == "AskTopic is not a message between gateways"  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(sent_us=0, promised=limits.VIEWS_AHEAD_MAX + 9 << 16 | 1),
        Heartbeat(sent_us=0, claim=limits.VIEWS_AHEAD_MAX + 9 << 16 | 1),
        Propose(limits.VIEWS_AHEAD_MAX + 9 << 16 | 1, (1, 2)),
        Reject(VIEW, limits.VIEWS_AHEAD_MAX + 9 << 16 | 1, "why"),
    ],
)
def test_a_view_far_above_the_promised_one_is_not_believed_but_by_a_blank_gateway(message: Message) -> None:
    assert malformed(message) == ""
    assert "too far above 3.1" in far_ahead(message, VIEW)
    assert far_ahead(message, 20 << 16 | 2) == ""
    assert far_ahead(message, 0) == ""
    assert far_ahead(Vote(2**62 | 1, 1), VIEW) == ""
