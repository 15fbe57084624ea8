"""The received-table at the log's end: what the decided state says, and what the undecided frames behind it add.

Only producers with something undecided have a line here; all others are read from the decided `LogState`. So the
table is never copied, and a line goes when its last frame is decided. `rebuild` makes the same from the frames alone: a start and a
cut use it, and a property test holds both against `LogState.apply`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from gateway.data.bodies import (
    AbortBody,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    TickBody,
    TopicBody,
    decode_body,
)
from gateway.data.frame import Frame, Kind
from gateway.data.state import LogState
from gateway.errors import InvariantViolated, invariant


class LineState(enum.Enum):
    """Where a producer's epoch is at the log's end."""

    OPEN = "open"
    OPENING = "opening"  # its EPOCH is ordered and not decided
    CLOSED = "closed"  # an ABORT ended it


class LineInput(enum.Enum):
    """What moves a producer's line."""

    BATCH = "BATCH ordered"
    EPOCH = "EPOCH ordered"
    EPOCH_DECIDED = "EPOCH decided"
    ABORT = "ABORT ordered"


#: What is absent cannot happen: no batch of an epoch that an ABORT closed, no ABORT before a batch. A member may hear of what comes
#: behind an EPOCH before it hears that the EPOCH is decided; that it was ordered shows that it is.
LINE: dict[tuple[LineState, LineInput], LineState] = {
    (LineState.OPEN, LineInput.BATCH): LineState.OPEN,
    (LineState.OPEN, LineInput.EPOCH): LineState.OPENING,
    (LineState.OPEN, LineInput.ABORT): LineState.CLOSED,
    (LineState.OPENING, LineInput.BATCH): LineState.OPEN,
    (LineState.OPENING, LineInput.EPOCH): LineState.OPENING,
    (LineState.OPENING, LineInput.EPOCH_DECIDED): LineState.OPEN,
    (LineState.CLOSED, LineInput.EPOCH): LineState.OPENING,
    (LineState.CLOSED, LineInput.ABORT): LineState.CLOSED,
}


class Line:
    """A producer at the log's end, as the log alone says. `undecided`: how many of its frames are."""

    __slots__ = ("epoch", "instance", "name", "number", "progress", "sequence", "state", "undecided")

    def __init__(self, number: int, name: str, instance: bytes, epoch: int, sequence: int, progress: bytes) -> None:
        self.number = number
        self.name = name
        self.instance = instance
        self.epoch = epoch
        self.sequence = sequence
        self.progress = progress
        self.state = LineState.OPEN
        self.undecided = 0

    def on(self, input_: LineInput) -> None:
        """Move along the table.

        Raises:
            InvariantViolated: the table has no such transition.
        """
        after = LINE.get((self.state, input_))
        if after is None:
            raise InvariantViolated(f"producer {self.number} is {self.state.value}: {input_.value!r} cannot happen")
        self.state = after

    def extend(self, frame: Frame) -> None:
        """A batch that follows is ordered."""
        self.sequence = frame.first_sequence + frame.count - 1
        self.progress = frame.progress or self.progress
        self.undecided += 1


class Names:
    """Numbers of producers and topics by name, as of some place in the log."""

    __slots__ = ("_names", "producers", "topics")

    def __init__(self, state: LogState) -> None:
        self._names = {number: producer.name for number, producer in state.producers.items()}
        self.producers = {name: number for number, name in self._names.items()}
        self.topics = {topic.name: number for number, topic in state.topics.items()}

    def apply(self, frame: Frame) -> None:
        """Take the next EPOCH, TOPIC or FORGET in."""
        if frame.kind == Kind.EPOCH:
            name = decode_body(EpochBody, frame.body).name
            self._names[frame.producer] = name
            self.producers[name] = frame.producer
        elif frame.kind == Kind.TOPIC:
            self.topics[decode_body(TopicBody, frame.body).name] = frame.topic
        elif frame.kind == Kind.FORGET:
            for number in decode_body(ForgetBody, frame.body).producers:
                self.producers.pop(self._names.pop(number), None)


class Received:
    """The table.

    Attributes:
        lines: producers with something undecided, by number.
        names: numbers by name.
        forgotten: producers that an undecided FORGET takes out.
        new_readers: those whose offset commits are all undecided.
        next_producer, next_topic, floor, tick, tick_time, dirty: as in `LogState`, at the log's end.
    """

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.rebuild(())

    def rebuild(self, undecided: Iterable[Frame]) -> None:
        """Forget everything and take it from the decided state and the frames behind it."""
        state = self._state
        self.lines: dict[int, Line] = {}
        self.names = Names(state)
        self.forgotten: dict[int, None] = {}
        self._commits: dict[str, int] = {}  # reader -> position of its last offset commit behind `_begin`
        self._begin = state.position
        self.new_readers: dict[str, None] = {}
        self.next_producer, self.next_topic, self.floor = state.next_producer, state.next_topic, state.floor
        self.tick, self.tick_time, self.dirty = state.tick, state.tick_time, state.dirty
        for frame in undecided:
            self.take(frame)

    def line(self, number: int) -> Line | None:
        """The producer's line, not yet held if it has nothing undecided; None if the log's end does not know it."""
        if number in self.forgotten:
            return None
        line = self.lines.get(number)
        if line is not None:
            return line
        producer = self._state.producers.get(number)
        if producer is None:
            return None
        line = Line(number, producer.name, producer.instance, producer.epoch, producer.sequence, producer.progress)
        if producer.closed:
            line.state = LineState.CLOSED
        return line

    def topic_known(self, number: int) -> bool:
        """Whether the log's end knows the topic."""
        return 0 < number < self.next_topic

    def take(self, frame: Frame) -> None:
        """Take the next frame of the log in.

        Raises:
            InvariantViolated: it does not follow from what is before it; nobody may have ordered it.
        """
        kind = frame.kind
        if kind == Kind.BATCH:
            line = self._held(frame)
            line.on(LineInput.BATCH)
            invariant(
                line.epoch == frame.epoch and line.sequence + 1 == frame.first_sequence and self.topic_known(frame.topic),
                f"{frame!r} does not follow epoch {line.epoch}, sequence {line.sequence}",
            )
            line.extend(frame)
            self.dirty = True
        elif kind == Kind.EPOCH:
            self._epoch(frame)
        elif kind == Kind.ABORT:
            line = self._held(frame)
            line.on(LineInput.ABORT)
            entry = decode_body(AbortBody, frame.body).entry
            line.instance, line.epoch = entry.instance, entry.epoch
            line.sequence, line.progress = entry.sequence, entry.progress
            line.undecided += 1
        elif kind == Kind.TICK:
            body = decode_body(TickBody, frame.body)
            invariant(body.number == self.tick + 1, f"tick {body.number} follows tick {self.tick}")
            invariant(body.time_us >= self.tick_time, f"the time of tick {body.number} goes back")
            self.tick, self.tick_time, self.dirty = body.number, body.time_us, False
        elif kind == Kind.TOPIC:
            invariant(frame.topic == self.next_topic, f"{frame!r} is not topic {self.next_topic}")
            self.next_topic += 1
            self.names.apply(frame)
        elif kind == Kind.FORGET:
            self._forget(frame)
        elif kind == Kind.OFFSETS:
            for reader in decode_body(OffsetsBody, frame.body).readers:
                self._commits[reader] = frame.position
                if reader not in self._state.readers:
                    self.new_readers[reader] = None

    def commit(self, reader: str) -> int:
        """Where the log's end has the reader's last offset commit: not behind the position returned; 0 if it has none.

        Where it stands exactly is known of what came since this table was made. Whoever asks from behind that place knows the rest.
        """
        return self._commits.get(reader, self._begin if reader in self._state.readers else 0)

    def offset_decided(self, reader: str) -> None:
        """An offset commit of the reader is decided."""
        self.new_readers.pop(reader, None)

    def _held(self, frame: Frame) -> Line:
        line = self.line(frame.producer)
        if line is None:
            raise InvariantViolated(f"{frame!r} is of a producer that the log does not know")
        self.lines[line.number] = line
        return line

    def _epoch(self, frame: Frame) -> None:
        body = decode_body(EpochBody, frame.body)
        line = self.line(frame.producer)
        if line is None:
            invariant(frame.producer == self.next_producer, f"{frame!r} is not producer {self.next_producer}")
            invariant(frame.epoch > self.floor, f"epoch {frame.epoch} is not above the floor {self.floor}")
            invariant(not body.sequence, f"{frame!r} is new and begins after sequence {body.sequence}")
            self.next_producer += 1
            line = Line(frame.producer, body.name, body.instance, frame.epoch, 0, b"")
            line.state = LineState.OPENING
        else:
            invariant(frame.epoch > line.epoch, f"{frame!r} begins an epoch that is not above {line.epoch}")
            invariant(
                body.sequence == line.sequence and body.progress == line.progress,
                f"{frame!r} goes on after sequence {body.sequence}, the table says {line.sequence}",
            )
            line.on(LineInput.EPOCH)
            line.epoch, line.instance = frame.epoch, body.instance
        line.undecided += 1
        self.lines[line.number] = line
        self.names.apply(frame)

    def _forget(self, frame: Frame) -> None:
        body = decode_body(ForgetBody, frame.body)
        for number in body.producers:
            invariant(self.line(number), f"{frame!r} forgets producer {number}, which the log does not know")
            self.forgotten[number] = None
        self.floor = max(self.floor, body.floor)
        self.names.apply(frame)

    def settle(self, line: Line) -> None:
        """Nothing of the producer is undecided: it needs no line of its own."""
        if not line.undecided:
            self.lines.pop(line.number, None)
