"""The received-table at the log's end: what the decided state says, and what the undecided frames behind it add.

Only producers with something undecided have a line here; all others are read from the decided `LogState`. So the
table is never copied, and a line goes when its last frame is decided. `rebuild` makes the same from the frames alone: a start and a
cut use it, and a property test holds both against `LogState.apply`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from tutti import limits as common_limits
from tutti.data.frames.bodies import (
    AbortBody,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    ViewBody,
    decode_body,
)
from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti.data.log_state import LogState, Staged, staged_of
from tutti.errors import FormatError, InvariantViolated
from tutti_gateway.core import limits


class LineState(enum.Enum):
    """Where a producer's epoch is at the log's end."""

    OPEN = "open"
    OPENING = "opening"  # its EPOCH is ordered and not decided
    CLOSED = "closed"  # an ABORT ended it


class LineInput(enum.Enum):
    """What moves a producer's line."""

    BATCH = "BATCH or TXN ordered"
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
        """A batch, or a TXN, that follows is ordered."""
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
        next_producer, next_topic, floor, start, tick, tick_time, dirty: as in `LogState`, at the log's end.
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
        self._staged: dict[int, Staged] = {}  # undecided
        self._visible: dict[int, Frame] = {}  # position of a staged batch -> the undecided TXN that makes it visible
        self.next_producer, self.next_topic, self.floor = state.next_producer, state.next_topic, state.floor
        self.tick, self.tick_time, self.dirty = state.tick, state.tick_time, state.dirty
        self.start = state.start
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
            FormatError: it does not follow from what is before it, or its body is none of its kind: nobody may have ordered it.
                Nothing has changed.
        """
        if frame.kind not in SEQUENCED:
            _TAKE[frame.kind](self, frame)
            return
        line = self._known(frame)
        if (
            line.state is LineState.CLOSED
            or line.epoch != frame.epoch
            or line.sequence + 1 != frame.first_sequence
            or not frame.count
            or not self.topic_known(frame.topic)
        ):
            raise FormatError(f"{frame!r} does not follow epoch {line.epoch} ({line.state.value}), sequence {line.sequence}")
        if frame.kind == Kind.TXN:
            _follows(not (why := self.not_visible(frame)), f"{frame!r}: {why}")
        line.on(LineInput.BATCH)
        self.lines[line.number] = line
        line.extend(frame)
        if frame.transactional:
            self.stage(frame)
        else:
            self.dirty = True

    def stage(self, frame: Frame) -> None:
        """A staged batch, or a TXN, is ordered."""
        if frame.staged:
            self._staged[frame.position] = staged_of(frame)
        else:
            self._visible.update(dict.fromkeys(decode_body(TxnBody, frame.body).staged, frame))
            self.dirty = True

    @property
    def staged_count(self) -> int:
        """How many batches are staged."""
        return len(self._state.staged) + len(self._staged) - len(self._visible)

    def not_visible(self, frame: Frame, decided: bool = False) -> str:
        """Why the batches of a TXN cannot be made visible at the log's end; empty if they can.

        Args:
            frame: the TXN.
            decided: each of them has to be decided here, as whoever orders it must see to: an ABORT may void what is not.

        Raises:
            FormatError: its body is none.
        """
        if frame.flags:
            return f"a transaction has flags {frame.flags}"
        body = decode_body(TxnBody, frame.body)
        undecided = {} if decided else self._staged
        if not body.good(common_limits.STAGED_BATCHES_MAX):
            return f"a transaction has {len(body.staged)} staged batches with {len(body.counts)} counts, or one of them twice"
        parts: list[Staged] = []
        for position, count in zip(body.staged, body.counts, strict=True):
            part = undecided.get(position) or self._state.staged.get(position)
            line = None if part is None or position in self._visible else self.line(part.producer)
            if part is None or line is None or line.epoch != part.epoch or position < self.start:
                return f"nothing is staged at position {position} (any more)"
            if part.count != count:
                return f"there are not {count} records staged at position {position}"
            parts.append(part)
        said = frame.topic, frame.count, frame.min_timestamp, frame.max_timestamp
        first, last = min(part.first_time for part in parts), max(part.last_time for part in parts)
        fits = said == (parts[0].topic, sum(body.counts), first, last)
        return "" if fits else "the header has another first topic, count, first or last time than the staged batches"

    def stage_decided(self, frame: Frame) -> None:
        """A staged batch, or a TXN, is decided: the decided state tells of it from here on; or the batch is void."""
        if frame.staged:
            self._staged.pop(frame.position, None)
        else:
            for position in decode_body(TxnBody, frame.body).staged:
                self._visible.pop(position, None)

    def _abort(self, frame: Frame) -> None:
        line, body = self._known(frame), decode_body(AbortBody, frame.body)
        entry = body.entry
        _follows(
            (line.state, LineInput.ABORT) in LINE
            and line.epoch == entry.epoch == frame.epoch
            and 0 <= entry.sequence <= line.sequence
            and self._state.position < body.position < frame.position,
            f"{frame!r} aborts from {body.position} on and goes back to epoch {entry.epoch}, sequence {entry.sequence}; "
            f"the table has epoch {line.epoch} ({line.state.value}), sequence {line.sequence} behind {self._state.position}",
        )
        void = [at for at, part in self._staged.items() if at >= body.position and part.producer == frame.producer]
        _follows(
            not any(at in self._visible for at in void)
            and not any(txn.producer == frame.producer and txn.position >= body.position for txn in self._visible.values()),
            f"{frame!r} aborts from {body.position} on, and a TXN stands behind that, or makes visible what does",
        )
        line.on(LineInput.ABORT)
        self.lines[line.number] = line
        line.instance, line.epoch = entry.instance, entry.epoch
        line.sequence, line.progress = entry.sequence, entry.progress
        line.undecided += 1
        for at in void:
            del self._staged[at]

    def _tick(self, frame: Frame) -> None:
        body = decode_body(TickBody, frame.body)
        _follows(body.number == self.tick + 1, f"tick {body.number} follows tick {self.tick}")
        _follows(self.tick_time <= body.time_us <= limits.POSITION_MAX, f"the time of tick {body.number} goes back")
        self.tick, self.tick_time, self.dirty = body.number, body.time_us, False

    def _trim(self, frame: Frame) -> None:
        # One that was ordered before may name a place below: a log that was taken over as a snapshot begins further up already.
        body = decode_body(TrimBody, frame.body)
        _follows(
            0 < body.position < frame.position and 0 <= body.offset <= limits.POSITION_MAX,
            f"{frame!r} has the log begin with position {body.position} at offset {body.offset}",
        )
        self.start = max(self.start, body.position)

    def _topic(self, frame: Frame) -> None:
        name = decode_body(TopicBody, frame.body).name
        _follows(frame.topic == self.next_topic, f"{frame!r} is not topic {self.next_topic}")
        _follows(name and name not in self.names.topics, f"{frame!r} gives the name {name!r} again")
        self.next_topic += 1
        self.names.apply(frame)

    def _offsets(self, frame: Frame) -> None:
        readers = decode_body(OffsetsBody, frame.body).readers
        good = all(0 <= offset <= limits.POSITION_MAX for offset in readers.values())
        _follows(good and len(readers) <= limits.READERS_MAX, f"{frame!r} has offsets that cannot be")
        for reader in readers:
            self._commits[reader] = frame.position
            if reader not in self._state.readers:
                self.new_readers[reader] = None

    def _view(self, frame: Frame) -> None:
        _follows(_are_gateways(decode_body(ViewBody, frame.body).members), f"{frame!r} names no members")

    def _roster(self, frame: Frame) -> None:
        body, state = decode_body(RosterBody, frame.body), self._state
        _follows(
            _are_gateways([voter.number for voter in body.voters])
            and len({voter.name for voter in body.voters}) == len(body.voters)
            and any(voter.voting for voter in body.voters),
            f"{frame!r} names no voters",
        )
        _follows(
            len(body.log) == _LOG_BYTES and (not state.log or (state.log, state.group) == (body.log, body.group)),
            f"{frame!r} is of log {body.log.hex()} of group {body.group!r}",
        )

    def commit(self, reader: str) -> int:
        """Where the log's end has the reader's last offset commit: not behind the position returned; 0 if it has none.

        Where it stands exactly is known of what came since this table was made. Whoever asks from behind that place knows the rest.
        """
        return self._commits.get(reader, self._begin if reader in self._state.readers else 0)

    def offset_decided(self, reader: str) -> None:
        """An offset commit of the reader is decided."""
        self.new_readers.pop(reader, None)

    def _known(self, frame: Frame) -> Line:
        line = self.line(frame.producer)
        if line is None:
            raise FormatError(f"{frame!r} is of a producer that the log does not know")
        return line

    def _epoch(self, frame: Frame) -> None:
        body = decode_body(EpochBody, frame.body)
        line = self.line(frame.producer)
        if line is None:
            _follows(frame.producer == self.next_producer, f"{frame!r} is not producer {self.next_producer}")
            _follows(frame.epoch > self.floor, f"epoch {frame.epoch} is not above the floor {self.floor}")
            _follows(not body.sequence, f"{frame!r} is new and begins after sequence {body.sequence}")
            _follows(body.name and body.name not in self.names.producers, f"{frame!r} gives the name {body.name!r} again")
            self.next_producer += 1
            line = Line(frame.producer, body.name, body.instance, frame.epoch, 0, b"")
            line.state = LineState.OPENING
        else:
            _follows(body.name == line.name, f"{frame!r} calls {line.name!r} {body.name!r}")
            _follows(frame.epoch > line.epoch, f"{frame!r} begins an epoch that is not above {line.epoch}")
            _follows(
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
        unknown = [number for number in body.producers if not self.line(number)]
        _follows(not unknown, f"{frame!r} forgets producers {unknown[:3]}, which the log does not know")
        _follows(
            len(set(body.producers)) == len(body.producers) and 0 <= body.floor <= limits.EPOCH_MAX,
            f"{frame!r} forgets a producer twice, or raises the floor to {body.floor}",
        )
        for number in body.producers:
            self.forgotten[number] = None
        self.floor = max(self.floor, body.floor)
        self.names.apply(frame)

    def settle(self, line: Line) -> None:
        """Nothing of the producer is undecided: it needs no line of its own."""
        if not line.undecided:
            self.lines.pop(line.number, None)


_TAKE: dict[int, Callable[[Received, Frame], None]] = {
    Kind.VIEW: Received._view,
    Kind.ROSTER: Received._roster,
    Kind.EPOCH: Received._epoch,
    Kind.TOPIC: Received._topic,
    Kind.FORGET: Received._forget,
    Kind.ABORT: Received._abort,
    Kind.TICK: Received._tick,
    Kind.TRIM: Received._trim,
    Kind.OFFSETS: Received._offsets,
}
_LOG_BYTES = 16  # of a log's uuid


def _follows(condition: object, text: str) -> None:
    if not condition:
        raise FormatError(text)


def _are_gateways(numbers: Sequence[int]) -> bool:
    """Whether these are the numbers of some gateways, each once."""
    return 0 < len(set(numbers)) == len(numbers) and all(0 < number <= limits.GATEWAY_MAX for number in numbers)
