"""Properties of the loops of *order* over batches of many clients: they do what the decision tables say for each batch alone."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fast_paths.test_receiver import table
from tests.transcripts.group import Group, incarnation
from tests.unit.core.stacks import VIEW, three
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import SEQUENCED, STAGED, Frame, Kind
from tutti.errors import FormatError, InvariantViolated
from tutti_gateway.core import limits
from tutti_gateway.core.order.batch_admission import ADMISSION, VERDICT, Admission, Verdict, relation, seen
from tutti_gateway.core.order.forward_table import Queue
from tutti_gateway.core.order.layer import Ordering
from tutti_gateway.core.order.received_table import LineState, ProducerLine, ReceivedTable
from tutti_gateway.core.pending_window import weight
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    Event,
    ForgetAsked,
    Received,
    SessionClosed,
    Submitted,
    TimeAdvanced,
    TopicAsked,
)
from tutti_gateway.core.protocol.messages import Forward, No, Vote

PRODUCERS, UNKNOWN = (1, 2, 3), 9
BYTES_MAX, FRAMES_MAX = 3000, 6  # limits of undecided batches in some of the runs


class General:
    """The general path of *order*: one lookup and one entry of a decision table for each batch."""

    def __init__(self, order: Ordering) -> None:
        self._order = order
        order.forward.submit = self.submit  # type: ignore[method-assign]  # of this object alone
        order.sequencer.on_forward = self.on_forward  # type: ignore[method-assign]  # of this object alone
        order.decided = self.decided  # type: ignore[method-assign]  # of this object alone

    def submit(self, event: Submitted) -> None:
        forward = self._order.forward
        state = forward._window.state
        for session, frame in zip(event.sessions, event.frames, strict=True):
            line = state.producers.get(frame.producer)
            how = None
            if line is not None:
                how = relation(frame.epoch, frame.first_sequence, frame.last_sequence, line.epoch, line.sequence)
            admitted = line is not None and how is not None and ADMISSION[line.closed, how] is Admission.FORWARD
            if not admitted or frame.topic not in state.topics or forward.full:
                forward._reject(session, frame, line, forward.full)
                continue
            queue = forward.queue(frame.producer, frame.epoch)
            if queue is None:
                queue = forward.queues.setdefault(frame.producer, {})[frame.epoch] = Queue(frame.producer, frame.epoch)
                queue.sent_us = forward._outbox.now.mono_us
            queue.session = session
            if queue.add(frame):
                forward.count += 1
                forward.bytes += weight(frame)
                forward._unsent.append(frame)

    def on_forward(self, origin: int, frames: tuple[Frame, ...]) -> None:
        sequencer, received, window = self._order.sequencer, self._order.received, self._order._window
        end, chain, count, size = window.end, window.chain, len(window.frames), window.bytes
        ordered: list[Frame] = []
        for frame in frames if origin == sequencer._view_state.me else [one for one in frames if sequencer._is_good(one)]:
            line = received.line(frame.producer)
            verdict = None
            if line is not None:
                how = relation(frame.epoch, frame.first_sequence, frame.last_sequence, line.epoch, line.sequence)
                verdict = VERDICT[seen(line.state, frame.producer in sequencer._epochs), how]
            full = size >= sequencer._config.undecided_bytes_max or count >= limits.BATCH_UNDECIDED_FRAMES_MAX
            if line is None or verdict is not Verdict.ORDER or full:
                sequencer._judge(origin, frame, line)
                continue
            if frame.transactional and not sequencer._may_stage(origin, frame, line):
                continue
            frame.origin = origin
            frame.stamp(sequencer._view_state.view, end + 1, chain)
            received.apply(frame)
            end, chain, count, size = frame.position, frame.header_crc, count + 1, size + weight(frame)
            ordered.append(frame)
        if ordered:
            sequencer._below.append(ordered)
            sequencer.ordered += ordered

    def decided(self, run: tuple[Frame, ...], offsets: tuple[int, ...], void: frozenset[int]) -> None:
        order = self._order
        received, forward, sequencer = order.received, order.forward, order.sequencer
        resolved: dict[int, ProducerLine] = {}
        aborts: dict[int, Frame] = {}
        for frame, offset in zip(run, offsets, strict=True):
            if frame.kind not in SEQUENCED:
                order._frame_decided(frame, resolved, aborts)
                continue
            line = received.lines[frame.producer]
            line.undecided -= 1
            if not line.undecided:
                resolved[frame.producer] = line
            if frame.transactional:
                received.stage_decided(frame)
            queue = forward.queue(frame.producer, frame.epoch)
            if queue is not None and frame.position not in void:
                forward.committed(queue, frame, frame.position if frame.staged else offset)
        for frame in aborts.values():
            order._aborted(frame)
        for line in resolved.values():
            if not line.undecided:
                order.housekeeping.producer_seen(line.number)
                received.lines.pop(line.number, None)
                sequencer.producer_resolved(line)
        sequencer.space_freed()


class Side:
    """Coordinator g1 of a group of three, to whose clients and members the test gives a voice."""

    def __init__(self, *, general: bool, limited: bool) -> None:
        self.group: Group = three(undecided_bytes_max=BYTES_MAX) if limited else three()
        self.member = self.group.members["g1"]
        for number in PRODUCERS:
            self.group.step(self.member, EpochAsked(1, number, f"p{number}", incarnation(f"p{number}"), 1))
        self.group.step(self.member, TopicAsked(1, 9, "t"))
        self.group.settle()
        self.order = self.member.stack.layers.order
        self.window = self.member.stack.layers.context.window
        if general:
            General(self.order)
        if limited:
            self.order.forward._bytes_max = 2 * BYTES_MAX
        self.error = ""

    def step(self, event: Event) -> list[bytes]:
        try:
            return [codec.encode([action]) for action in self.group.step(self.member, event)]
        except (FormatError, InvariantViolated) as error:
            self.error = f"{type(error).__name__}: {error}"
            return []

    def persisted(self) -> list[bytes]:
        count = len(self.member.history)
        self.group.persisted(self.member)
        return [action for _, _, actions in self.member.history[count:] for action in actions]

    def state(self) -> dict[str, object]:
        forward, sequencer, window = self.order.forward, self.order.sequencer, self.window
        return {
            "forward": [
                (queue.producer, queue.epoch, queue.session, queue.sent_us, [frame.to_bytes() for frame in queue.frames])
                for queue in forward._all()
            ],
            "counts": (forward.count, forward.bytes, len(forward._unsent)),
            "window": (window.end, window.chain, window.bytes, [frame.to_bytes() for frame in window.frames], window.state),
            "received": table(self.order.received),
            "waiting": (sequencer._to_resend, sequencer._epochs, sequencer._epochs_count, sequencer._window_was_full),
            "seen": self.order.housekeeping.seen_us,
            "error": self.error,
        }


class Clients:
    """Batches that clients submit: most often the next one of a producer, sometimes again, cut otherwise, or with a fault."""

    def __init__(self, chance: Random, side: Side) -> None:
        self._chance = chance
        self._side = side
        self._next: Counter[tuple[int, int]] = Counter()  # producer and epoch -> the last sequence that was submitted
        self._sent: list[Frame] = []

    def frame(self) -> Frame:
        chance, state = self._chance, self._side.window.state
        if self._sent and chance.random() < 0.15:
            return chance.choice(self._sent[-8:]).unstamped()
        number = chance.choice((*PRODUCERS, chance.choice((*PRODUCERS, UNKNOWN))))
        line = state.producers.get(number)
        epoch = (line.epoch if line else 1) + chance.choice((0,) * 14 + (-1, 1))
        base = line.sequence if line and line.epoch == epoch else 0
        sequence = max(self._next[number, epoch], base) if chance.random() < 0.9 else base
        fields: dict[str, Any] = {
            "producer": number,
            "epoch": epoch,
            "first_sequence": max(1, sequence + 1 + chance.choice((0,) * 12 + (-1, 1, 5))),
            "topic": chance.choice((1,) * 12 + (7,)),
        }
        staged = [(position, one) for position, one in state.staged.items() if one.producer == number]
        if staged and chance.random() < 0.3:
            position, one = chance.choice(staged)
            fields |= {"count": one.count, "min_timestamp": one.first_time, "max_timestamp": one.last_time}
            frame = Frame(Kind.TXN, encode_body(TxnBody((position,), (one.count,))), **fields)
        else:
            flags = STAGED if chance.random() < 0.15 else 0
            frame = Frame(Kind.BATCH, bytes(chance.choice((0, 8, 900))), flags=flags, count=chance.randint(1, 3), **fields)
        self._next[number, epoch] = frame.last_sequence
        self._sent.append(frame)
        return frame.unstamped()

    def frames(self) -> list[Frame]:
        return [self.frame() for _ in range(self._chance.choice((1, 1, 3, 8)))]


def event_of(chance: Random, clients: Clients, side: Side) -> Event | None:
    """The next event of the coordinator; None if its disk reports its writes."""
    what = chance.choice(
        ("submitted",) * 8 + ("forward",) * 4 + ("persisted", "vote", "vote", "vote", "no", "epoch", "forget", "closed", "time")
    )
    end = side.window.end
    if what == "submitted":
        frames = clients.frames()
        return Submitted(tuple(chance.choice((1, 2, 3)) for _ in frames), tuple(frames))
    if what == "forward":
        return Received(2, Forward(VIEW, tuple(clients.frames())))
    if what == "vote":
        return Received(chance.choice((2, 3)), Vote(VIEW, chance.choice((end, end, end - 1))))
    if what == "no":
        batches = [frame.position for frame in side.window.frames if frame.kind == Kind.BATCH]
        return Received(3, No(VIEW, chance.choice(batches), "full")) if batches else None
    number = chance.choice(PRODUCERS)
    if what == "epoch":
        line = side.window.state.producers.get(number)
        return EpochAsked(4, chance.randrange(100), f"p{number}", incarnation("other"), line.epoch + 1 if line else 1)
    if what == "forget":
        return ForgetAsked(5, chance.randrange(100), (f"p{number}",))
    if what == "closed":
        return SessionClosed(chance.choice((2, 3)))
    return TimeAdvanced() if what == "time" else None


def copied(event: Event) -> Event:
    """The event with frames of its own, because the stack stamps them."""
    if isinstance(event, Submitted):
        return Submitted(event.sessions, tuple([frame.unstamped() for frame in event.frames]))
    if isinstance(event, Received) and isinstance(event.message, Forward):
        frames = tuple([frame.unstamped() for frame in event.message.frames])
        return Received(event.sender, Forward(event.message.view, frames))
    return event


@given(st.integers(0, 2**32))
@settings(max_examples=120)
def test_batches_of_many_clients_are_ordered_and_answered_as_the_tables_say_for_each(seed: int) -> None:
    chance = Random(seed)
    limited = chance.random() < 0.4
    fast, general = (Side(general=general, limited=limited) for general in (False, True))
    clients = Clients(chance, fast)
    with pytest.MonkeyPatch.context() as patch:
        if limited:
            patch.setattr(limits, "BATCH_UNDECIDED_FRAMES_MAX", FRAMES_MAX)
            patch.setattr(limits, "FORWARDED_FRAMES_MAX", 2 * FRAMES_MAX)
        for _ in range(40):
            event = event_of(chance, clients, fast)
            later_us = chance.choice((0, 0, 1000, limits.HEARTBEAT_US))
            for side in (fast, general):
                side.group.mono_us += later_us
            actions = [side.step(copied(event)) if event is not None else side.persisted() for side in (fast, general)]
            assert actions[0] == actions[1]
            assert fast.state() == general.state()
            if fast.error:
                break


def follows(received: ReceivedTable, frame: Frame) -> bool:
    """True if the batch can follow the log, by the rules of the table written one by one."""
    line = received.line(frame.producer)
    if line is None or line.state is LineState.CLOSED or not frame.count or not received.topic_known(frame.topic):
        return False
    return (frame.epoch, frame.first_sequence) == (line.epoch, line.sequence + 1)


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_the_received_table_accepts_a_batch_exactly_if_it_follows(seed: int) -> None:
    chance = Random(seed)
    side = Side(general=False, limited=False)
    clients = Clients(chance, side)
    window = side.window
    for _ in range(25):
        event = event_of(chance, clients, side)
        if event is None:
            side.persisted()
        else:
            side.step(copied(event))
        other = ReceivedTable(window.state)
        other.rebuild(window.frames)
        # Only a member that got wrong frames has such a FORGET, because no coordinator forgets a producer with undecided frames.
        if chance.random() < 0.2:
            other.forgotten[chance.choice(PRODUCERS)] = None
        for position, frame in enumerate(clients.frames(), window.end + 1):
            if frame.kind != Kind.BATCH:
                continue
            if chance.random() < 0.05:
                frame.count = 0
            frame.stamp(VIEW, position, window.chain)
            expected, line = follows(other, frame), other.line(frame.producer)
            try:
                other.apply(frame)
            except FormatError:
                assert not expected
                continue
            assert expected
            assert line is not None
            after = other.lines[frame.producer]
            assert (after.epoch, after.sequence, after.state) == (line.epoch, frame.last_sequence, LineState.OPEN)
            assert after.progress == (frame.progress or line.progress)
            assert (frame.position in other._staged) is frame.staged
            assert other.dirty or frame.staged
