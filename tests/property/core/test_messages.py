"""Properties of wrong messages: no message, with any field values and in any state of the group, stops a step, grows a table or a
log line, or blocks the group. Bytes become a message or a `FormatError`, and nothing large. A member's claims about itself are
trusted: gateways fail by stopping, not by lying. So the tests send no votes, decisions and frames that would be right if they were
true.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.core.test_codec import all_messages
from tests.property.core.test_codec_bytes import all_views
from tests.transcripts.network import Letter
from tests.transcripts.watch import Watch
from tests.transcripts.whole import Gateway, Pace, Whole
from tutti import limits as common_limits
from tutti.data.client_protocol import TopicOpened
from tutti.data.frames.bodies import (
    AbortBody,
    Entry,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    ViewBody,
    encode_body,
)
from tutti.data.frames.frame import Frame, Kind
from tutti.data.view_id import counter_of, view_of
from tutti_gateway.core import limits
from tutti_gateway.core.order.received_table import ProducerLine
from tutti_gateway.core.protocol import messages
from tutti_gateway.core.protocol.actions import Action, Dropped, Persist
from tutti_gateway.core.protocol.events import EpochAsked, Received, StackConfig, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.core.range_map import RangeMap
from tutti_gateway.core.view.peers import Peer

NAMES = ("g1", "g2", "g3")
CONFIG = StackConfig(tick_interval_us=common_limits.TICK_INTERVAL_US)
BEAT_US = limits.HEARTBEAT_US
VIEW = 1 << 16 | 1
PHASES = ("blank", "young", "primary", "busy", "headless", "restarted", "wiped")


class Blind(Watch):
    """Looks at nothing: what members are told here is not true."""

    def writes(self, gateway: Gateway, action: Persist) -> None:
        """Nothing is looked at."""

    def sees(self, gateway: Gateway, action: Action) -> None:
        """Nothing is looked at."""

    def ended(self, gateway: Gateway, config: StackConfig) -> None:
        """Nothing is looked at."""


class Silent(Whole):
    """Tells nothing of letters: what stands in them has no words."""

    def _arrives(self, letter: Letter) -> None:
        gateway = self.members[letter.to]
        number = gateway.numbers.get(letter.sender)
        if gateway.stack is not None and number is not None:
            self.step(gateway, Received(number, letter.message, letter.incarnation))


class Trio:
    """Three real stacks, and the number of reports for each kind of drop."""

    def __init__(self, phase: str) -> None:
        self.told: list[Dropped] = []
        self.world = Silent(CONFIG, self._tell, Pace())
        self.world.watch = Blind(self.world.members)
        self.topics = 0
        self.wiped = ""  # it is no voter any more, and learns
        for name in NAMES:
            self.world.add(name, {other: f"{other}:7400" for other in NAMES})
            self.world.start(name)
        if phase == "blank":
            return
        self.beats(2 if phase == "young" else 15)
        if phase in ("primary", "busy", "headless", "restarted", "wiped"):
            assert self.decides(), "the group does not begin"
        if phase == "busy":
            self.world.slow("g3", True)
            self.submit()
            self.beats(1)
        elif phase not in ("young", "primary"):
            first = self.world.members["g1"].view
            assert first is not None
            self.world.kill(NAMES[first.coordinator - 1], 0)
            self.beats(4 if phase == "headless" else 12)
            if phase != "headless":
                if phase == "wiped":
                    self.wiped = NAMES[first.coordinator - 1]
                    self.world.wipe(self.wiped)
                self.world.start(NAMES[first.coordinator - 1])
                self.beats(1)

    def _tell(self, name: str, what: Action | str) -> None:
        if isinstance(what, Dropped):
            self.told.append(what)

    @property
    def up(self) -> list[Gateway]:
        return [gateway for gateway in self.world.members.values() if gateway.stack is not None]

    def beats(self, count: int) -> None:
        self.world.run(self.world.mono_us + count * BEAT_US)

    def submit(self) -> None:
        self.topics += 1
        for gateway in self.up:
            self.world.step(gateway, TopicAsked(1, self.topics, f"t{self.topics}"))
        gateway = next(one for one in reversed(self.up) if one.name != self.wiped)
        self.world.step(gateway, EpochAsked(2, 1000, "p", bytes(16), 1))
        frame = Frame(Kind.BATCH, b"body", producer=1, epoch=1, first_sequence=self.topics, count=1, topic=1)
        self.world.step(gateway, submitted(2, (frame,)))

    def decides(self) -> bool:
        """Return whether every running voter learns of a new decision within a while."""
        for name in NAMES:
            self.world.slow(name, False)
        for _ in range(40):
            self.submit()
            number = self.topics

            def answered(number: int = number) -> bool:
                opened = [
                    gateway
                    for gateway in self.up
                    if any(isinstance(one, TopicOpened) and one.request == number for _, one in gateway.replies)
                ]
                return {gateway.name for gateway in opened} >= {gateway.name for gateway in self.up} - {self.wiped}

            if self.world.run(self.world.mono_us + 10 * BEAT_US, answered):
                return True
        return False


# What is thrown


def wrong_bodies(state: Any) -> list[tuple[Kind, bytes, dict[str, int]]]:
    """Frames that no coordinator can have ordered next, by kind, body and header."""
    entry = Entry(b"", 1, 0, b"")
    everything = [
        (Kind.BATCH, b"body", {"producer": 77, "epoch": 1, "first_sequence": 1, "count": 1, "topic": 1}),
        (Kind.BATCH, b"body", {}),
        (Kind.VIEW, encode_body(ViewBody(())), {}),
        (Kind.VIEW, encode_body(ViewBody((1, 1))), {}),
        (Kind.ROSTER, encode_body(RosterBody("test", bytes(16), ())), {}),
        (Kind.ROSTER, encode_body(RosterBody("other", b"", ())), {}),
        (Kind.EPOCH, encode_body(EpochBody("p", b"", 0, b"")), {"producer": 99, "epoch": 1}),
        (Kind.EPOCH, encode_body(EpochBody("p", b"", 7, b"")), {"producer": state.next_producer, "epoch": 1}),
        (Kind.EPOCH, encode_body(EpochBody("", b"", 0, b"")), {"producer": state.next_producer, "epoch": 1}),
        (Kind.TOPIC, encode_body(TopicBody("t")), {"topic": 999}),
        (Kind.TOPIC, encode_body(TopicBody("")), {"topic": state.next_topic}),
        (Kind.FORGET, encode_body(ForgetBody((55,), 1)), {}),
        (Kind.FORGET, encode_body(ForgetBody((), 2**40)), {}),
        (Kind.ABORT, encode_body(AbortBody(1, "why", entry)), {"producer": 1, "epoch": 1}),
        (Kind.TICK, encode_body(TickBody(state.tick + 7, 2**62)), {}),
        (Kind.TICK, encode_body(TickBody(state.tick + 1, 2**64 - 1)), {}),
        (Kind.TRIM, encode_body(TrimBody(2**40, 0)), {}),
        (Kind.OFFSETS, encode_body(OffsetsBody({"r": -1})), {}),
    ]
    return [*everything, *((kind, b"\xc1 no body", {"producer": 1, "epoch": 1}) for kind in Kind if kind != Kind.BATCH)]


def fitting(draw: st.DrawFn, to: Gateway, sender: int) -> list[Message]:
    """Return messages that fit the state of the gateway, one of each kind."""
    context = to.running.layers.context
    window, standing = context.window, context.view_state
    view = standing.view or standing.promised or VIEW
    end, frontier = window.end, window.frontier
    higher = view_of(counter_of(view) + draw(st.integers(0, 3)), sender)
    batch = Frame(Kind.BATCH, b"body", producer=1, epoch=1, first_sequence=draw(small), count=1, topic=draw(small))
    table, members = tuple(window.runs), standing.members or (1, 2, 3)
    ask: Any = draw(
        st.sampled_from(
            [
                messages.AskEpoch("p", bytes(16), 2),
                messages.AskTopic("more"),
                messages.AskOffsets("r", 0, frontier),
                messages.AskForget((1,)),
                messages.AskRoster("remove", "g9"),
            ]
        )
    )
    beat = messages.Heartbeat(
        sent_us=5, view=view, members=members, promised=view, accepted=view, end=end, frontier=frontier, misses=draw(st.booleans())
    )
    run = draw(runs(window, view))
    first = run[0].position
    return [
        messages.Forward(view, (batch,)),
        messages.Asking(view, ask),
        messages.Order(view, run),
        messages.Echo(view, b"".join(frame.packed_header() for frame in run)),
        messages.Resend(view, 1, 1, 2),
        messages.Refuse(view, 1, 1, 1, "space", "why", True),
        messages.Deny(view, ask, "limit", "why", False),
        messages.Vote(view, frontier),
        messages.No(view, end, "no space"),
        messages.Confirm(view, frontier),
        beat,
        msgspec.structs.replace(beat, claim=higher, view=higher, promised=higher),
        messages.Probe(),
        messages.Propose(higher, (1, 2, 3)),
        messages.State(
            view=standing.promised, accepted=0, end=end, chain=window.chain, frontier=frontier, base=window.base, table=table
        ),
        messages.Reject(standing.promised, higher, "why"),
        messages.Install(view=higher, members=(1, 2, 3), end=end, chain=window.chain, base=window.base, table=table),
        messages.Fetch(standing.promised, max(frontier, 1), end + 1),
        messages.Fetch(0, max(frontier, 1), limits.POSITION_MAX),
        messages.Fetched(view=standing.promised, first=first, frames=run),
        messages.Fetched(view=0, first=first, frames=run, source=higher, stop=end),
        messages.FetchSnapshot(view=standing.promised, position=first, at=0),
        messages.FetchedSnapshot(view=0, position=end + 1, size=9, at=0, data=b"no state!", source=higher),
        messages.FetchedSnapshot(view=standing.promised, position=end + 1, size=9, at=0, data=b"no state!"),
        messages.Missing(view, ((max(frontier, 1), end + 3),)),
        messages.Repairing(view, ((end + 1, end + 3),)),
        messages.Repair(view, run),
        messages.Post(bytes(16), run),
        messages.Posted(to.disk.incarnation, 1, 1),
        messages.Settled(bytes(16), 1, 1),
        messages.LaneEnds((messages.LaneEnd(1, bytes(16), 5),)),
        messages.LaneFetch(1, bytes(16), 1),
        messages.LaneFetched(1, bytes(16), run),
        messages.LaneAsk(bytes(16), 7, 1, 1, 1),
        messages.LaneTail(to.disk.incarnation, 7, 1, 1, run),
    ]


NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 7, 0xFFFF, 0x10000, 70_000, 2**32, 2**62, 2**63, 2**64 - 1]
PLACES = ("up_to", "position", "end", "frontier", "watermark", "first", "last", "base", "sequence", "stop")


@st.composite
def thrown(draw: st.DrawFn, to: Gateway, sender: int) -> Any:
    """A message that fits, with one field that perhaps does not; or one of which hardly anything does."""
    if not draw(st.integers(0, 4)):
        return draw(all_messages | all_views)
    message: Any = draw(st.sampled_from(fitting(draw, to, sender)))
    if not message.__struct_fields__ or not draw(st.integers(0, 4)):
        return message
    field = draw(st.sampled_from(message.__struct_fields__))
    window = to.running.layers.context.window
    lie = isinstance(message, messages.Vote | messages.Confirm)  # of what is undecided: it could be true
    near = [] if lie else [window.frontier, window.end, window.end + 1, window.end + 3]
    old: Any = getattr(message, field)
    if isinstance(old, bool):
        value: Any = not old
    elif isinstance(old, int):
        numbers = [number for number in NUMBERS if not lie or field != "up_to" or number < 1 or number > 2**31]
        value = draw(st.sampled_from(numbers + (near if field in PLACES else [])))
    elif type(old) in (str, bytes):
        value = old * draw(st.sampled_from([0, 2, 100_000])) + old[: draw(st.integers(0, 2))]
    elif field in ("members", "hears"):
        value = draw(st.lists(st.sampled_from(NUMBERS), max_size=4).map(tuple))
    elif field in ("ranges", "table"):
        value = draw(st.lists(st.tuples(st.sampled_from(NUMBERS + near), st.sampled_from(NUMBERS + near)), max_size=3).map(tuple))
    elif field == "frames":
        frame = Frame(draw(st.sampled_from(list(Kind))), b"?", count=draw(small), first_sequence=draw(small))
        value = draw(st.sampled_from([(), old[1:], old[::-1], old + old, (*old, frame), (frame, *old), (frame,)]))
    elif field == "damage":
        value = messages.Damage(*draw(st.tuples(*[st.sampled_from(NUMBERS + near)] * 4)))
    elif field == "begin":
        position, attempt, chain, offset = draw(st.tuples(*[st.sampled_from(NUMBERS + near)] * 4))
        value = messages.LaneBegin(position, attempt, chain, offset, (1, 2, 3))
    elif field == "ask":
        value = messages.AskForget(tuple(draw(st.lists(st.sampled_from(NUMBERS), max_size=3))))
    else:
        value = ()
    bad: Message = msgspec.structs.replace(message, **{field: value})
    return bad


@st.composite
def runs(draw: st.DrawFn, window: Any, view: int) -> tuple[Frame, ...]:
    """Return an invalid run of frames: frames that continue the chain do not follow, or frames that would follow do not continue
    it.
    """
    first = draw(st.sampled_from([window.end + 1, window.frontier + 1, window.end + 3, window.end + 70_000, 1, 2**62]))
    chain = window.chain if first == window.end + 1 else 5
    frames = []
    for place in range(draw(st.integers(1, 3))):
        kind, body, fields = draw(st.sampled_from(wrong_bodies(window.state)))
        frame = Frame(kind, body, origin=draw(st.integers(0, 4)), **fields)  # type: ignore[arg-type] # all are numbers
        if draw(st.integers(0, 9)):
            frame.stamp(max(view, 0), first + place, chain)
            chain = frame.header_crc
        frames.append(frame)
    return tuple(frames)


small = st.integers(0, 5)


def size(thing: object, seen: set[int] | None = None) -> int:
    """How many entries all tables have that can be reached from an object of the core, without what frames hold."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | Frame | type | None):
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        return len(thing) + sum(size(one, seen) for pair in thing.items() for one in pair)
    if isinstance(thing, list | tuple | set | frozenset | deque):
        return len(thing) + sum(size(one, seen) for one in thing)
    if not type(thing).__module__.startswith(("tutti.", "tutti_gateway.")):
        return 0
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names = {*slots, *getattr(thing, "__dict__", ()), *getattr(thing, "__struct_fields__", ())}
    return sum(size(getattr(thing, name, None), seen) for name in names)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.sampled_from(PHASES), st.data())
def test_no_message_stops_a_group(phase: str, data: st.DataObject) -> None:
    trio = Trio(phase)
    for _ in range(data.draw(st.integers(5, 30))):
        gateway = data.draw(st.sampled_from(trio.up))
        others = [number for number in gateway.names if number] or [1]
        sender = data.draw(st.sampled_from([*others, *others, *others, 9]))
        incarnation = trio.world.members[gateway.names.get(sender, "g1")].disk.incarnation
        message = data.draw(thrown(gateway, sender))
        trio.world.step(gateway, Received(sender, message, data.draw(st.sampled_from([incarnation] * 5 + [b"?" * 16]))))
        if data.draw(st.booleans()):
            trio.beats(data.draw(st.integers(1, 3)))
    assert not [gateway.halted for gateway in trio.up if gateway.halted], "a message alone halts nobody"
    assert trio.decides(), f"the group does not go on after {phase}"


def test_a_member_with_a_promise_that_no_member_proposed_returns() -> None:
    """It waits for the coordinator that it hears."""
    trio = Trio("restarted")
    coordinator = next(gateway for gateway in trio.up if gateway.view is not None and gateway.view.coordinator == gateway.me)
    waiting = next(gateway for gateway in trio.up if gateway.view is None or not gateway.view.view)
    view = view_of(counter_of(waiting.running.layers.context.view_state.promised) + 9, coordinator.me)
    message = messages.Propose(view, (1, 2, 3))
    trio.world.step(waiting, Received(waiting.numbers[coordinator.name], message, coordinator.disk.incarnation))
    assert trio.decides()


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.sampled_from(("primary", "busy", "headless")), st.data())
def test_no_message_grows_a_table_or_floods_the_log(phase: str, data: st.DataObject) -> None:
    trio = Trio(phase)
    gateway = data.draw(st.sampled_from(trio.up))
    senders = [number for number in gateway.names if number]
    message = data.draw(thrown(gateway, senders[0]))
    for sender in senders:
        for _ in range(3):
            trio.world.step(gateway, Received(sender, message, b"?" * 16))
    trio.told.clear()
    before = size(gateway.running.layers)
    with patch.multiple(limits, REPAIR_RANGES_KEPT_MAX=8, BUFFERED_FRAMES_MAX=16):
        for count in range(300):
            trio.world.step(gateway, Received(senders[count % len(senders)], changed(message, count), b"?" * 16))
    after = size(gateway.running.layers)
    assert after - before < 250, f"{after - before} entries more"
    assert len(trio.told) <= 2 * len(senders), "told of once, and of what follows from it"


def changed(message: Message, count: int) -> Message:
    """The same message with other numbers."""
    numbers = {
        field: min(value + count, 2**64 - 1)
        for field in message.__struct_fields__
        if field in ("up_to", "position", "sequence", "producer", "end", "sent_us", "base", "chain")
        and isinstance(value := getattr(message, field), int)
    }
    return msgspec.structs.replace(message, **numbers)


def test_unknown_gateways_grow_no_table_and_are_logged_rarely() -> None:
    trio = Trio("primary")
    gateway = trio.up[0]
    before = size(gateway.running.layers)
    for sender in range(10, 10 + 2 * limits.DROPPED_KINDS_MAX):
        trio.world.step(gateway, Received(sender, messages.Probe(), b"?" * 16))
    outbox = gateway.running.layers.context.outbox
    assert size(gateway.running.layers) - before < limits.DROPPED_KINDS_MAX * 5 + 200
    assert len(trio.told) <= limits.DROPPED_KINDS_MAX + 1
    assert outbox.drops == 2 * limits.DROPPED_KINDS_MAX


def test_a_replaced_disk_contributes_nothing_for_its_member() -> None:
    trio = Trio("primary")
    assert trio.decides()
    for gateway in trio.up:
        view = gateway.view
        assert view is not None
        for sender in gateway.names:
            trio.world.step(gateway, Received(sender, messages.Vote(view.view, 1), b"?" * 16))
    assert {(one.kind, one.reason) for one in trio.told} == {("Vote", "it has another disk than when this view began")}
    assert trio.decides()


def test_a_disk_outside_the_roster_contributes_nothing_about_lanes() -> None:
    """A gateway with another disk is neither a source nor a voter, whatever its number."""
    trio = Trio("primary")
    assert trio.decides()
    gateway = trio.up[0]
    lane = b"l" * 16
    said = messages.LaneEnds((messages.LaneEnd(1, lane, 9),)), messages.Posted(lane, 1, 9), messages.LaneTail(lane, 1, 1, 9)
    for sender in gateway.names:
        for message in said:
            trio.world.step(gateway, Received(sender, message, b"?" * 16))
    reason = "it has another disk than the roster names: what that disk holds and votes for does not count"
    assert {(one.kind, one.reason) for one in trio.told} == {(type(message).__name__, reason) for message in said}


def test_the_growth_check_covers_the_tables() -> None:
    layers = Trio("primary").up[0].running.layers
    before = size(layers)
    layers.order.received.lines[7] = ProducerLine(7, "p", b"", 1, 0, b"")
    layers.order.receiver._buffered[9] = Frame(Kind.TICK, b"")
    layers.peers._peers[9] = Peer(9, "g9", "g9:1")
    gaps: RangeMap[None] = layers.order.receiver.gaps
    gaps.put(50, 60, None)
    assert size(layers) >= before + 4


# Bytes
