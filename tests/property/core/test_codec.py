"""Properties of the codec: every event, action and message decodes to what was encoded, and other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.data import client_protocol
from tutti.data.frames.body_stub import BYTES_MIN, stub_body
from tutti.data.frames.frame import Frame, Kind, crc32c, payload_crc
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState, Producer, Topic
from tutti.errors import FormatError
from tutti_gateway.core.protocol import actions, codec, events, messages

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=20)
ids = st.binary(min_size=16, max_size=16)


@st.composite
def frames(draw: st.DrawFn, placed: bool | None = None) -> Frame:
    frame = Frame(
        draw(st.sampled_from(list(Kind))),
        draw(st.binary(max_size=40)),
        progress=draw(st.binary(max_size=20)),
        producer=draw(u64),
        epoch=draw(u32),
        first_sequence=draw(u64),
        count=draw(u32),
        topic=draw(u32),
        origin=draw(u16),
        min_timestamp=draw(st.integers(-(2**63), 2**63 - 1)),
    )
    if draw(st.booleans()) if placed is None else placed:
        frame.stamp(draw(u64), draw(st.integers(1, 2**63)), draw(u32))
    return frame


runs = st.lists(frames(), max_size=3).map(tuple)
scalars = st.builds(HardState, u64, u64, u64)
states = st.builds(
    LogState,
    position=u64,
    dirty=st.booleans(),
    topics=st.dictionaries(u32, st.builds(Topic, names), max_size=2),
    producers=st.dictionaries(u32, st.builds(Producer, names, ids, u32, u64, st.binary(max_size=5)), max_size=2),
    readers=st.dictionaries(names, u64, max_size=2),
)
asks = st.one_of(
    st.builds(messages.AskEpoch, names, ids, u32),
    st.builds(messages.AskTopic, names),
    st.builds(messages.AskOffsets, names, u64, st.integers(-1, 2**62)),
    st.builds(messages.AskForget, st.lists(u64, max_size=3).map(tuple)),
)
all_messages = st.one_of(
    st.builds(messages.Forward, u64, runs),
    st.builds(messages.Asking, u64, asks),
    st.builds(messages.Order, u64, runs),
    st.builds(messages.Echo, u64, st.binary(max_size=96)),
    st.builds(messages.Resend, u64, u64, u32, u64),
    st.builds(messages.Refuse, u64, u64, u32, u64, names, names, st.booleans()),
    st.builds(messages.Deny, u64, asks, names, names, st.booleans()),
    st.builds(messages.Vote, u64, u64, names),
    st.builds(messages.No, u64, u64, names),
    st.builds(messages.Confirm, u64, u64),
    st.builds(messages.Post, ids, runs),
    st.builds(messages.Posted, ids, u64, u64, names, st.booleans()),
    st.builds(messages.Settled, ids, u64, u64),
    st.builds(messages.LaneEnds, st.lists(st.builds(messages.LaneEnd, u16, ids, u64), max_size=3).map(tuple)),
    st.builds(messages.LaneFetch, u16, ids, u64),
    st.builds(messages.LaneFetched, u16, ids, runs),
    st.builds(messages.LaneAsk, ids, u64, u64, u64, u64),
    st.builds(messages.LaneTail, ids, u64, u64, u64, runs),
)
lines = st.dictionaries(u32, st.tuples(u32, u64), max_size=2)
losses = st.none() | st.builds(events.LostEnd, u64, u64, u64, u32, u64, st.lists(u16, max_size=3).map(tuple), u64)
lanes = st.builds(
    events.LaneLog, origin=u16, incarnation=ids, attempt=u64, position=u64, chain=u32, tail=runs, lines=lines, lost=losses
)
all_events = st.one_of(
    st.builds(
        events.Started,
        st.builds(events.Identity, names, ids, names, st.dictionaries(names, names, max_size=2)),
        ids,
        st.builds(events.Recovered, ids, scalars, states, runs, st.none(), st.lists(lanes, max_size=2).map(tuple)),
    ),
    runs.flatmap(lambda run: st.builds(events.Submitted, st.tuples(*[u32] * len(run)), st.just(run))),
    st.builds(events.SubmittedAlone, u32, runs),
    st.builds(events.SubmittedUnordered, u32, runs),
    st.builds(events.EpochAsked, u32, u32, names, ids, u32),
    st.builds(events.TopicAsked, u32, u32, names),
    st.builds(events.OffsetsAsked, u32, u32, names, u64, st.booleans()),
    st.builds(events.ForgetAsked, u32, u32, st.lists(names, max_size=3).map(tuple)),
    st.builds(events.SessionClosed, u32),
    st.builds(events.Received, u16, all_messages),
    st.builds(events.Persisted, u64),
    st.builds(events.LanePersisted, u64),
    st.builds(events.LaneRead, u64, runs),
    st.builds(events.LaneCorrupt, u16, ids, u64, u64),
    st.builds(events.TimeAdvanced),
    st.builds(events.SpaceChanged, st.booleans(), names),
    st.builds(events.WriteFailed, names),
    st.builds(events.LeaveAsked),
)
answers = st.one_of(
    st.builds(client_protocol.Committed, u64, u32, u64, u32, st.integers(-1, 2**62)),
    st.builds(client_protocol.Duplicate, u64, u32, u64, u32),
    st.builds(client_protocol.AbortedAnswer, u64, u32, u64, u32, names),
    st.builds(client_protocol.FencedAnswer, u64, u32, u64),
    st.builds(client_protocol.Expected, u64, u32, u64),
    st.builds(client_protocol.RefusedAnswer, u64, u32, u64, names, names, st.booleans()),
    st.builds(client_protocol.EpochOpened, u32, u64, u32, u64, st.binary(max_size=8)),
    st.builds(client_protocol.EpochFenced, u32, u32),
    st.builds(client_protocol.TopicOpened, u32, u32),
    st.builds(client_protocol.Done, u32),
    st.builds(client_protocol.Denied, u32, names, names, st.booleans()),
)
all_actions = st.one_of(
    st.builds(actions.Persist, u64, runs, st.none() | scalars),
    st.builds(actions.PersistLane, u64, u16, ids, runs, st.none() | u64, st.none() | u64),
    st.builds(actions.ReadLane, u64, u16, ids, u64, u64),
    st.builds(actions.RepairLane, u16, ids, runs),
    st.builds(actions.LaneHeld, u16, ids, u64),
    st.builds(actions.DeliverUnordered, u16, ids, u64, runs),
    st.builds(actions.Send, u16, all_messages),
    st.builds(actions.Reply, u32, st.lists(answers, max_size=3).map(tuple)),
    st.builds(actions.Deliver, runs, st.lists(u64, max_size=3).map(tuple), st.frozensets(u64, max_size=3), u64),
    st.builds(actions.ViewInstalled, u64, st.lists(u16, max_size=3).map(tuple), u16, st.booleans()),
    st.builds(actions.Suspect, u16, names),
    st.builds(actions.SetTimer, u64),
    st.builds(actions.Halt, names),
    st.builds(actions.Stopped),
)


@given(all_events)
def test_an_event_round_trips(event: events.Event) -> None:
    assert codec.decode_event(codec.encode(event)) == event


@given(st.lists(all_actions, max_size=4))
def test_actions_round_trip(done: list[actions.Action]) -> None:
    assert codec.decode_actions(codec.encode(done)) == done


@given(all_messages)
def test_a_message_round_trips(message: messages.Message) -> None:
    assert codec.decode_message(codec.encode(message)) == message


@given(frames(), st.booleans())
def test_a_recorded_run_keeps_only_length_and_checksum_result_of_a_batch(frame: Frame, whole: bool) -> None:
    size = len(frame.body)
    if not whole:
        frame.body_crc ^= 1
        frame.header = b""
    data = codec.encode_lean_event(events.submitted(1, (frame,)))
    event = codec.decode_lean_event(data)
    assert isinstance(event, events.Submitted)
    again = event.frames[0]
    assert (again.packed_header(), again.progress, len(again.body)) == (frame.packed_header(), frame.progress, size)
    assert (payload_crc(again.progress, again.body) == again.body_crc) == whole
    left_out = frame.kind == Kind.BATCH and whole and size >= BYTES_MIN
    assert left_out or bytes(again.body) == bytes(frame.body)
    assert len(data) < 160 + len(frame.progress) + (0 if left_out else size)


@given(st.integers(BYTES_MIN, 200), u32, u32)
def test_a_substitute_body_has_the_given_length_and_crc(length: int, crc: int, before: int) -> None:
    body = stub_body(length, crc, before)
    assert (len(body), crc32c(body, before)) == (length, crc)


@given(all_events)
def test_a_recorded_event_reencodes_equally(event: events.Event) -> None:
    data = codec.encode_lean_event(event)
    assert codec.encode_lean_event(codec.decode_lean_event(data)) == data


@given(st.lists(all_actions, max_size=4))
def test_recorded_actions_reencode_equally(done: list[actions.Action]) -> None:
    data = codec.encode_lean_actions(done)
    assert codec.encode_lean_actions(codec.decode_lean_actions(data)) == data


def test_actions_that_are_equal_are_written_alike_in_whatever_order_their_sets_are_walked() -> None:
    one, other = (actions.Deliver((), (), frozenset(places), 0) for places in ((0, 8), (8, 0)))
    assert list(one.aborted) != list(other.aborted), "the two sets are walked in one order: choose others"
    assert codec.encode_lean_actions([one]) == codec.encode_lean_actions([other])


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    for decode in (
        codec.decode_event,
        codec.decode_actions,
        codec.decode_message,
        codec.decode_lean_event,
        codec.decode_lean_actions,
    ):
        try:
            value = decode(data)
        except FormatError:
            continue
        assert value in (events.TimeAdvanced(), events.LeaveAsked(), []), "only what has no content is so short by chance"


def test_a_truncated_frame_is_refused() -> None:
    frame = Frame(Kind.BATCH, b"body", producer=1)
    data = codec.encode(messages.Order(1, (frame,)))
    whole = frame.to_bytes()
    at = data.index(whole)
    with pytest.raises(FormatError):
        codec.decode_message(data[: at + 40])
