"""Properties of the receiver's fast path: frames that arrive in sequence are appended as if each had been buffered first."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import VIEW, three
from tutti import limits as common_limits
from tutti.data.frames.bodies import EpochBody, TickBody, TopicBody, ViewBody, encode_body
from tutti.data.frames.frame import STAGED, Frame, Kind, decode_frame, payload_crc
from tutti.data.view_id import counter_of
from tutti.errors import FormatError, InvariantViolated
from tutti_gateway.core.order.received_table import ProducerLine, ReceivedTable
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.events import EpochAsked, Event, Received, TopicAsked
from tutti_gateway.core.protocol.messages import Confirm, Order, Repair

OTHER_VIEW = (counter_of(VIEW) + 1) << 16 | 1
FRAMES_MAX, BYTES_MAX = 6, 3000  # limits of the window in some of the runs


def opened() -> Group:
    """Three members with the producers 1 and 2 at epoch 1, and topic 1."""
    group = three()
    for number in (1, 2):
        group.step(group.members["g1"], EpochAsked(1, number, f"p{number}", incarnation(f"p{number}"), 1))
    group.step(group.members["g1"], TopicAsked(1, 3, "t"))
    group.settle()
    return group


class Stream:
    """Frames that a coordinator orders after the end of a log. `fork` makes a frame that continues the chain but is invalid."""

    def __init__(self, chance: Random, end: int, chain: int) -> None:
        self._chance = chance
        self.chain = chain  # before the first frame
        self._end, self._chain = end, chain
        self._lines = {1: [1, 0], 2: [1, 0]}  # producer -> its epoch and its last sequence
        self.frames: list[Frame] = []

    def fork(self) -> Stream:
        other = Stream(self._chance, self._end, self._chain)
        other.chain = self.chain
        other.frames, other._lines = list(self.frames), {number: list(line) for number, line in self._lines.items()}
        fault = self._chance.choice(("sequence", "epoch", "producer", "topic", "count", "tick", "order"))
        if fault == "tick":
            other.add(Frame(Kind.TICK, encode_body(TickBody(77, 1))))
        elif fault == "order" and len(other.frames) > 1:
            other.add(other.frames[-1].unstamped())
        else:
            other.batch(fault)
        return other

    def add(self, frame: Frame, view: int = VIEW) -> None:
        frame.origin = 1
        frame.stamp(view, self._end + 1, self._chain)
        self._end, self._chain = frame.position, frame.header_crc
        self.frames.append(frame)

    def batch(self, fault: str = "") -> None:
        chance = self._chance
        number = chance.choice((1, 2))
        epoch, sequence = self._lines[number]
        count = 0 if fault == "count" else chance.randint(1, 3)
        frame = Frame(
            Kind.BATCH,
            bytes(chance.choice((0, 3, 8, 100, 1500))),
            progress=chance.choice((b"", b"", b"at")),
            flags=STAGED if chance.random() < 0.1 else 0,
            producer=9 if fault == "producer" else number,
            epoch=epoch + (fault == "epoch"),
            first_sequence=sequence + 1 + (fault == "sequence"),
            count=count,
            topic=9 if fault == "topic" else 1,
        )
        self._lines[number][1] = frame.last_sequence
        self.add(frame)

    def extend(self, tick: int, topic: int) -> None:
        kind = self._chance.choice(("batch",) * 12 + ("tick", "view", "epoch", "topic", "other view"))
        if kind == "batch":
            self.batch()
        elif kind == "tick":
            self.add(Frame(Kind.TICK, encode_body(TickBody(tick, tick))))
        elif kind == "view":
            self.add(Frame(Kind.VIEW, encode_body(ViewBody((1, 2, 3)))))
        elif kind == "topic":
            self.add(Frame(Kind.TOPIC, encode_body(TopicBody(f"t{topic}")), topic=topic))
        elif kind == "epoch":
            line = self._lines[1]
            line[0] += 1
            body = EpochBody("p1", incarnation("p1"), line[1], b"")
            self.add(Frame(Kind.EPOCH, encode_body(body), producer=1, epoch=line[0]))
        elif not self.frames:
            self.add(Frame(Kind.TICK, encode_body(TickBody(tick, tick))), OTHER_VIEW)


def corrupt(frame: Frame, chance: Random) -> Frame:
    """A copy of the frame with another bit in its header or payload."""
    data = bytearray(frame.to_bytes())
    data[chance.choice((chance.randrange(96), chance.randrange(len(data))))] ^= 1 << chance.randrange(8)
    try:
        return decode_frame(bytes(data))
    except FormatError:
        return frame


def run_of(stream: Stream, chance: Random, end: int) -> tuple[Frame, ...]:
    """Some of the frames, most often from the end of the log on, sometimes with a frame lost, doubled, moved, corrupt or wrong."""
    frames = stream.frames
    next_index = max(0, end + 1 - frames[0].position)
    first = chance.choice((next_index, next_index, next_index, chance.randrange(len(frames)), max(0, next_index - 2)))
    run = frames[min(first, len(frames) - 1) :][: chance.choice((1, 2, 5, 20))]
    at = chance.randrange(len(run))
    how = chance.choice(("", "", "", "", "lost", "doubled", "moved", "corrupt", "corrupt", "view", "position"))
    if how == "lost":
        run = run[:at] + run[at + 1 :] or run
    elif how == "doubled":
        run = run[: at + 1] + run[at:]
    elif how == "moved":
        run = run[at:] + run[:at]
    elif how == "corrupt":
        run = [*run[:at], corrupt(run[at], chance), *run[at + 1 :]]
    elif how in ("view", "position"):
        other, position = run[at].unstamped(), run[at].position
        chain = stream.chain if run[at] is frames[0] else frames[position - frames[0].position - 1].header_crc
        other.stamp(OTHER_VIEW if how == "view" else VIEW, position + (how == "position") * chance.choice((-1, 1)), chain)
        run = [*run[:at], other, *run[at + 1 :]]
    return tuple(run)


def table(received: ReceivedTable) -> dict[str, object]:
    state = {name: value for name, value in vars(received).items() if name not in ("lines", "names", "_state")}
    lines = [[getattr(line, name) for name in ProducerLine.__slots__] for line in received.lines.values()]
    return {**state, "lines": lines, "names": (received.names.producers, received.names.topics)}


class Side:
    """Member g2 of a group, which receives what the test sends."""

    def __init__(self, *, general: bool, limited: str = "") -> None:
        self.group = opened()
        self.member: Member = self.group.members["g2"]
        layers = self.member.stack.layers
        self.window, self.receiver, self.received = layers.context.window, layers.order.receiver, layers.order.received
        self.repair = layers.repair
        if general:
            self.receiver._append_in_sequence = lambda frames: 0  # type: ignore[method-assign]  # of this object alone
            self.repair.end_of_step = self.repair.requester.update  # type: ignore[method-assign]  # of this object alone
        if limited == "bytes":
            self.receiver._window_bytes_max = BYTES_MAX
        self.error = ""

    def step(self, event: Event) -> list[bytes]:
        return self._guarded(lambda: [codec.encode([action]) for action in self.group.step(self.member, event)])

    def reported(self, sender: int, end: int) -> list[bytes]:
        self.receiver.log_end_reported(sender, end)
        return []

    def persisted(self) -> list[bytes]:
        count = len(self.member.history)

        def actions() -> list[bytes]:
            self.group.persisted(self.member)
            return [action for _, _, actions in self.member.history[count:] for action in actions]

        return self._guarded(actions)

    def _guarded(self, call: Callable[[], list[bytes]]) -> list[bytes]:
        try:
            return call()
        except (FormatError, InvariantViolated) as error:
            self.error = f"{type(error).__name__}: {error}"
            return []

    def state(self) -> dict[str, object]:
        receiver, window = self.receiver, self.window
        return {
            "window": (window.end, window.chain, window.bytes, [frame.to_bytes() for frame in window.frames], list(window.runs)),
            "gaps": list(receiver.gaps),
            "missing": receiver.missing(),
            "counts": (receiver.highest, receiver.streamed, receiver.discarded, receiver._buffered_bytes),
            "buffered": {position: frame.to_bytes() for position, frame in receiver._buffered.items()},
            "received": table(self.received),
            "asks at": self.repair.requester.deadline_us,
            "error": self.error,
        }


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_frames_in_sequence_are_appended_as_if_each_had_been_buffered(seed: int) -> None:
    chance = Random(seed)
    limited = chance.choice(("", "", "frames", "bytes"))
    sides = [Side(general=general, limited=limited) for general in (False, True)]
    window = sides[0].window
    good = Stream(chance, window.end, window.chain)
    streams = [good]
    for number in range(chance.randint(3, 25)):
        good.extend(number + 1, 2 + number)
        if chance.random() < 0.15:
            streams.append(good.fork())
    streams = [stream for stream in streams if stream.frames] or [good]
    if not good.frames:
        return
    with pytest.MonkeyPatch.context() as patch:
        if limited == "frames":
            patch.setattr(common_limits, "UNDECIDED_FRAMES_MAX", FRAMES_MAX)
        for _ in range(12):
            what = chance.choice(("order", "order", "order", "repair", "reported", "persisted", "confirm"))
            stream = chance.choice((good, good, good, chance.choice(streams)))
            run = run_of(stream, chance, window.end)
            sender, end = chance.choice((1, 1, 3)), window.end + chance.choice((0, 1, 3, 8))
            actions = []
            for side in sides:
                if what == "order":
                    actions.append(side.step(Received(1, Order(VIEW, run))))
                elif what == "repair":
                    actions.append(side.step(Received(sender, Repair(VIEW, run))))
                elif what == "reported":
                    actions.append(side.reported(sender, end))
                elif what == "persisted":
                    actions.append(side.persisted())
                else:
                    actions.append(side.step(Received(1, Confirm(VIEW, side.member.durable))))
            assert actions[0] == actions[1]
            assert sides[0].state() == sides[1].state()
            if sides[0].error:
                break


def test_frames_above_the_limit_of_the_window_are_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_limits, "UNDECIDED_FRAMES_MAX", FRAMES_MAX)
    sides = [Side(general=general, limited="frames") for general in (False, True)]
    stream = Stream(Random(1), sides[0].window.end, sides[0].window.chain)
    for _ in range(2 * FRAMES_MAX):
        stream.batch()
    for side in sides:
        side.step(Received(1, Order(VIEW, tuple(stream.frames))))
        assert len(side.window.frames) == FRAMES_MAX
    assert sides[0].state() == sides[1].state()


def test_the_crc_of_a_frame_covers_its_progress() -> None:
    sides = [Side(general=general) for general in (False, True)]
    end = sides[0].window.end
    stream = Stream(Random(1), end, sides[0].window.chain)
    frame = Frame(Kind.BATCH, b"body", progress=b"at", producer=1, epoch=1, first_sequence=1, count=1, topic=1)
    frame.body_crc = payload_crc(b"", frame.body)
    stream.add(frame)
    for side in sides:
        side.step(Received(1, Order(VIEW, (frame,))))
        assert side.window.end == end, "the frame counts as missing"
    assert sides[0].state() == sides[1].state()


def test_frames_in_sequence_take_the_fast_path() -> None:
    side = Side(general=False)
    stream = Stream(Random(1), side.window.end, side.window.chain)
    for _ in range(5):
        stream.batch()
    assert side.receiver._append_in_sequence(tuple(stream.frames)) == 5
    assert side.window.end == stream.frames[-1].position
