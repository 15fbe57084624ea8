"""The received-table: the state at the end of the log, with all undecided frames applied (protocol/order, O25).

The table stores an entry (a *line*) only for producers with undecided frames. For all other producers, it uses the decided
`LogState`. A line is removed when the producer's last frame is decided, so the table never copies the decided state. After a start
or a truncation, `rebuild` computes the table from the frames. A property test compares the incremental and the rebuilt table with
`LogState.apply`.
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
from tutti.data.frames.frame import SEQUENCED, STAGED, Frame, Kind
from tutti.data.log_state import LogState, Staged, staged_of
from tutti.errors import FormatError, InvariantViolated
from tutti_gateway.core import limits

_BATCH = int(Kind.BATCH)


class LineState(enum.Enum):
    """State of a producer's epoch at the end of the log."""

    OPEN = "open"
    OPENING = "opening"  # the EPOCH frame is ordered but not decided
    CLOSED = "closed"  # an ABORT frame ended the epoch


class LineInput(enum.Enum):
    """Frame that moves a producer's epoch to another state."""

    BATCH = "BATCH or TXN ordered"
    EPOCH = "EPOCH ordered"
    EPOCH_DECIDED = "EPOCH decided"
    ABORT = "ABORT ordered"


#: Two transitions are absent, because they cannot happen: a batch in a closed epoch, and an ABORT in an epoch without a batch.
#: The coordinator orders a batch only after the EPOCH is decided, so a batch proves that decision even before the CONFIRM arrives.
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


class ProducerLine:
    """Entry (line) of a producer at the end of the log. `undecided` is the number of the producer's undecided frames."""

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
        """Move the line to its next state in the table `LINE`.

        Raises:
            InvariantViolated: the table has no transition from the current state for this input.
        """
        after = LINE.get((self.state, input_))
        if after is None:
            raise InvariantViolated(f"producer {self.number} is {self.state.value}: {input_.value!r} is not allowed")
        self.state = after

    def extend(self, frame: Frame) -> None:
        """Update the line with an ordered batch or TXN, which must be next in sequence."""
        self.sequence = frame.first_sequence + frame.count - 1
        # A batch without progress does not change the producer's last progress.
        self.progress = frame.progress or self.progress
        self.undecided += 1


class Names:
    """Numbers of producers and topics by name, up to the last frame that `apply` has handled."""

    __slots__ = ("_names", "producers", "topics")

    def __init__(self, state: LogState) -> None:
        self._names = {number: producer.name for number, producer in state.producers.items()}
        self.producers = {name: number for number, name in self._names.items()}
        self.topics = {topic.name: number for number, topic in state.topics.items()}

    def apply(self, frame: Frame) -> None:
        """Add the name in an EPOCH or TOPIC frame, or remove the names of the producers in a FORGET frame."""
        if frame.kind == Kind.EPOCH:
            name = decode_body(EpochBody, frame.body).name
            self._names[frame.producer] = name
            self.producers[name] = frame.producer
        elif frame.kind == Kind.TOPIC:
            self.topics[decode_body(TopicBody, frame.body).name] = frame.topic
        elif frame.kind == Kind.FORGET:
            for number in decode_body(ForgetBody, frame.body).producers:
                self.producers.pop(self._names.pop(number), None)


class ReceivedTable:
    """State of producers, names and readers at the end of the log, with all undecided frames applied.

    Attributes:
        lines: lines of the producers with undecided frames, by producer number.
        names: numbers of producers and topics by name.
        forgotten: producers that an undecided FORGET removes.
        new_readers: readers whose first offset commit is undecided.
        next_producer, next_topic, floor, start, tick, tick_time, dirty: values of these fields of `LogState` after all undecided
            frames.
    """

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.rebuild(())

    def rebuild(self, undecided: Iterable[Frame]) -> None:
        """Rebuild the table from the decided state and the undecided frames after it."""
        state = self._state
        self.lines: dict[int, ProducerLine] = {}
        self.names = Names(state)
        self.forgotten: dict[int, None] = {}
        self._commits: dict[str, int] = {}  # reader -> position of its last offset commit, if `apply` has seen that commit
        self._begin = state.position
        self.new_readers: dict[str, None] = {}
        self._staged: dict[int, Staged] = {}  # undecided staged batches, by position
        self._visible: dict[int, Frame] = {}  # position of a staged batch -> the undecided TXN that makes it visible
        self.next_producer, self.next_topic, self.floor = state.next_producer, state.next_topic, state.floor
        self.tick, self.tick_time, self.dirty = state.tick, state.tick_time, state.dirty
        self.start = state.start
        for frame in undecided:
            self.apply(frame)

    def line(self, number: int) -> ProducerLine | None:
        """Return the producer's line, None if the producer is unknown at the end of the log.

        For a producer without undecided frames, the line is computed from the decided state and is not in the table.
        """
        # Even an undecided FORGET makes the producer unknown, because every new frame comes after that FORGET in the log.
        if number in self.forgotten:
            return None
        line = self.lines.get(number)
        if line is not None:
            return line
        producer = self._state.producers.get(number)
        if producer is None:
            return None
        line = ProducerLine(number, producer.name, producer.instance, producer.epoch, producer.sequence, producer.progress)
        # An epoch that an ABORT has closed accepts no further batch, so the producer needs a new EPOCH (order, O23).
        if producer.closed:
            line.state = LineState.CLOSED
        return line

    def topic_known(self, number: int) -> bool:
        """True if the topic number is registered at the end of the log."""
        return 0 < number < self.next_topic

    def apply(self, frame: Frame) -> None:
        """Apply the next frame of the log.

        Raises:
            FormatError: the frame cannot follow the log, or its body is invalid. The table is unchanged.
        """
        if frame.kind not in SEQUENCED:
            _APPLY[frame.kind](self, frame)
            return
        line = (not self.forgotten and self.lines.get(frame.producer)) or self._known(frame)
        if (
            line.state is LineState.CLOSED
            or line.epoch != frame.epoch
            or line.sequence + 1 != frame.first_sequence
            or not frame.count
            or not 0 < frame.topic < self.next_topic
        ):
            raise FormatError(f"{frame!r} does not follow epoch {line.epoch} ({line.state.value}), sequence {line.sequence}")
        if frame.kind == Kind.TXN:
            _follows(not (why := self.not_visible(frame)), f"{frame!r}: {why}")
        # In the state OPEN a batch changes nothing, so the table of transitions is only needed for the other states.
        if line.state is not LineState.OPEN:
            line.on(LineInput.BATCH)
        self.lines[line.number] = line
        line.extend(frame)
        if frame.kind != _BATCH or frame.flags & STAGED:  # as `frame.transactional`, without the call
            self.stage(frame)
        else:
            self.dirty = True

    def stage(self, frame: Frame) -> None:
        """Store an ordered staged batch, or a TXN that makes staged batches visible, until the frame is decided."""
        if frame.staged:
            self._staged[frame.position] = staged_of(frame)
        else:
            # With these entries, `not_visible` rejects a second TXN that contains one of the batches (order, O31).
            self._visible.update(dict.fromkeys(decode_body(TxnBody, frame.body).staged, frame))
            self.dirty = True

    @property
    def staged_count(self) -> int:
        """Number of staged batches, decided or not, that no TXN has made visible."""
        return len(self._state.staged) + len(self._staged) - len(self._visible)

    def not_visible(self, frame: Frame, decided: bool = False) -> str:
        """Return the reason why a TXN cannot make its batches visible at the end of the log; empty if it can.

        Args:
            frame: the TXN frame.
            decided: True if each batch must be decided in this log. The coordinator passes True, because an ABORT may void
                undecided batches.

        Raises:
            FormatError: the body is invalid.
        """
        if frame.flags:
            return f"a transaction has flags {frame.flags}"
        body = decode_body(TxnBody, frame.body)
        undecided = {} if decided else self._staged
        if not body.good(common_limits.STAGED_BATCHES_MAX):
            return f"a transaction has {len(body.staged)} staged batches with {len(body.counts)} counts, or names one batch twice"
        batches: list[Staged] = []
        for position, count in zip(body.staged, body.counts, strict=True):
            staged = undecided.get(position) or self._state.staged.get(position)
            # A new epoch of the producer, or a TRIM beyond the position, makes a staged batch invalid (order, O29 and O33).
            line = None if staged is None or position in self._visible else self.line(staged.producer)
            if staged is None or line is None or line.epoch != staged.epoch or position < self.start:
                return f"nothing is staged at position {position}, or no longer"
            if staged.count != count:
                return f"there are not {count} records staged at position {position}"
            batches.append(staged)
        # Readers plan their reads by the header of a TXN, so the header must agree with the batches that the TXN makes visible.
        header = frame.topic, frame.count, frame.min_timestamp, frame.max_timestamp
        first, last = min(staged.first_time for staged in batches), max(staged.last_time for staged in batches)
        fits = header == (batches[0].topic, sum(body.counts), first, last)
        return "" if fits else "the header has another first topic, count, first or last time than the staged batches"

    def stage_decided(self, frame: Frame) -> None:
        """Delete a decided staged batch or TXN from the table, because the decided `LogState` now contains its effect."""
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
            f"the table has epoch {line.epoch} ({line.state.value}), sequence {line.sequence} after {self._state.position}",
        )
        # An ABORT also voids staged batches, but never a TXN, and never a batch that a TXN makes visible (order, O31).
        void = [at for at, staged in self._staged.items() if at >= body.position and staged.producer == frame.producer]
        _follows(
            not any(at in self._visible for at in void)
            and not any(txn.producer == frame.producer and txn.position >= body.position for txn in self._visible.values()),
            f"{frame!r} aborts from {body.position} on, but a later TXN exists, or one that makes a later batch visible",
        )
        # An ABORT closes the epoch, and restores the producer's state before the aborted position (atomic, A11).
        line.on(LineInput.ABORT)
        self.lines[line.number] = line
        line.instance, line.epoch = entry.instance, entry.epoch
        line.sequence, line.progress = entry.sequence, entry.progress
        line.undecided += 1
        for at in void:
            del self._staged[at]

    def _tick(self, frame: Frame) -> None:
        body = decode_body(TickBody, frame.body)
        _follows(body.number == self.tick + 1, f"tick {body.number} cannot follow tick {self.tick}")
        # Readers rely on the rule that the time of a tick is never below that of an earlier tick.
        _follows(self.tick_time <= body.time_us <= limits.POSITION_MAX, f"the time of tick {body.number} goes back")
        self.tick, self.tick_time, self.dirty = body.number, body.time_us, False

    def _trim(self, frame: Frame) -> None:
        # If this log begins with a snapshot, its start may already be higher than the position in the TRIM, which is no error.
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
        _follows(good and len(readers) <= limits.READERS_MAX, f"{frame!r} has invalid offsets")
        for reader in readers:
            self._commits[reader] = frame.position
            if reader not in self._state.readers:
                self.new_readers[reader] = None

    def _view(self, frame: Frame) -> None:
        _follows(_are_gateways(decode_body(ViewBody, frame.body).members), f"{frame!r} does not name valid members")

    def _roster(self, frame: Frame) -> None:
        body, state = decode_body(RosterBody, frame.body), self._state
        _follows(
            _are_gateways([voter.number for voter in body.voters])
            and len({voter.name for voter in body.voters}) == len(body.voters)
            and any(voter.voting for voter in body.voters),
            f"{frame!r} does not name valid voters",
        )
        _follows(
            # A ROSTER that contains another uuid or group belongs to another log.
            len(body.log) == _LOG_BYTES and (not state.log or (state.log, state.group) == (body.log, body.group)),
            f"{frame!r} belongs to log {body.log.hex()} of group {body.group!r}",
        )

    def last_commit(self, reader: str) -> int:
        """Return the position of the reader's last offset commit, 0 if the reader has none.

        For a commit that was decided before the last `rebuild`, the exact position is unknown, so the result is an upper bound: the
        frontier at that rebuild.
        """
        return self._commits.get(reader, self._begin if reader in self._state.readers else 0)

    def offset_decided(self, reader: str) -> None:
        """Delete the reader from `new_readers`, because its offset commit is decided."""
        self.new_readers.pop(reader, None)

    def _known(self, frame: Frame) -> ProducerLine:
        line = self.line(frame.producer)
        if line is None:
            raise FormatError(f"{frame!r} belongs to a producer that is not in the log")
        return line

    def _epoch(self, frame: Frame) -> None:
        body = decode_body(EpochBody, frame.body)
        line = self.line(frame.producer)
        if line is None:
            _follows(frame.producer == self.next_producer, f"{frame!r} is not producer {self.next_producer}")
            # A late request could create a forgotten producer again, but its epoch is at or below the floor (order, O26).
            _follows(frame.epoch > self.floor, f"epoch {frame.epoch} is not above the floor {self.floor}")
            # A new producer has sent nothing, so its first sequence is 1.
            _follows(not body.sequence, f"{frame!r} is a new producer, but begins after sequence {body.sequence}")
            _follows(body.name and body.name not in self.names.producers, f"{frame!r} gives the name {body.name!r} again")
            self.next_producer += 1
            line = ProducerLine(frame.producer, body.name, body.instance, frame.epoch, 0, b"")
            line.state = LineState.OPENING
        else:
            _follows(body.name == line.name, f"{frame!r} calls {line.name!r} {body.name!r}")
            _follows(frame.epoch > line.epoch, f"{frame!r} begins an epoch that is not above {line.epoch}")
            _follows(
                # The new instance continues after the sequence and progress in the EPOCH, so these must agree with the log.
                body.sequence == line.sequence and body.progress == line.progress,
                f"{frame!r} continues after sequence {body.sequence}, but the table has {line.sequence}",
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


_APPLY: dict[int, Callable[[ReceivedTable, Frame], None]] = {
    Kind.VIEW: ReceivedTable._view,
    Kind.ROSTER: ReceivedTable._roster,
    Kind.EPOCH: ReceivedTable._epoch,
    Kind.TOPIC: ReceivedTable._topic,
    Kind.FORGET: ReceivedTable._forget,
    Kind.ABORT: ReceivedTable._abort,
    Kind.TICK: ReceivedTable._tick,
    Kind.TRIM: ReceivedTable._trim,
    Kind.OFFSETS: ReceivedTable._offsets,
}
_LOG_BYTES = 16  # bytes of a log's uuid


def _follows(condition: object, text: str) -> None:
    if not condition:
        raise FormatError(text)


def _are_gateways(numbers: Sequence[int]) -> bool:
    """True if the list contains at least one number, and all numbers are distinct, valid gateway numbers."""
    return 0 < len(set(numbers)) == len(numbers) and all(0 < number <= limits.GATEWAY_MAX for number in numbers)
