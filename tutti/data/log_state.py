"""LogState: the complete state of a log up to a position, apart from the records themselves (design, section 3).

The protocol core, segment snapshots, recovery and readers all use this class, so that they derive the same state from the same log.
The state depends only on the applied frames and their order. In the state of a lane (design, section 7), only these fields are
used: position, offset, attempt (`view`), `members`, and each producer's epoch and sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from tutti.data.frames.bodies import (
    AbortBody,
    EpochBody,
    ForgetBody,
    LaneViewBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    Voter,
    decode_body,
)
from tutti.data.frames.frame import STAGED, Frame, Kind, crc32c
from tutti.errors import Damaged, FormatError, InvariantViolated

SNAPSHOT_MAGIC = b"TUTS"
SNAPSHOT_VERSION = 1
FORCED_NUMBERS = 256  # number of gateway numbers that a forced roster skips, because lost gateways may have assigned them
REMOVED_MAX = 64  # maximum number of removed voters that a state keeps
_BATCH = int(Kind.BATCH)
_HEAD = 16  # magic, version u32, length u32, CRC u32


class Topic(msgspec.Struct, array_like=True):
    """A topic: the number of its records, the bytes of their bodies, and the offset and time (us) of its first and last record.

    An offset of -1 means that the topic has no record yet.
    """

    name: str
    records: int = 0
    bytes: int = 0
    first_offset: int = -1
    last_offset: int = -1
    first_time: int = 0
    last_time: int = 0


class Producer(msgspec.Struct, array_like=True):
    """An entry of the received-table.

    `last_seen` is the time (us) of the last tick before the producer's last frame; 0 if no tick came before the frame.
    """

    name: str
    instance: bytes
    epoch: int
    sequence: int
    progress: bytes
    closed: bool = False
    last_seen: int = 0


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A staged batch that no TXN has made visible yet.

    The fields `topic` to `last_time` are the values that a TXN adds to the entry of the topic.
    """

    producer: int
    epoch: int
    count: int
    topic: int
    bytes: int
    first_time: int
    last_time: int


def staged_of(frame: Frame) -> Staged:
    """Return the state entry for a staged batch."""
    return Staged(
        frame.producer,
        frame.epoch,
        frame.count,
        frame.topic,
        frame.body_length,
        frame.min_timestamp,
        frame.max_timestamp,
    )


class LogState(msgspec.Struct, kw_only=True):
    """State of the log up to and including `position`.

    Attributes:
        position: last applied position; 0 before the first frame.
        chain: header CRC of the frame at `position`.
        next_offset: offset of the next committed record.
        tick, tick_time: number and time (us, UTC) of the last TICK; 0 before the first TICK.
        dirty: True if the log has records after the last tick.
        view, members: view id and members (gateway numbers, oldest first) of the last VIEW frame.
        group, log, roster: content of the last ROSTER frame.
        forced, forced_at: view and position of the last forced ROSTER; 0 without a forced ROSTER.
        topics, producers: entries of all topics and producers, by number.
        readers: committed offsets of named readers, by name.
        next_topic, next_producer, next_gateway: the next free numbers.
        floor: lower bound (exclusive) for the first epoch of every new producer, set by FORGET frames.
        start, start_offset: first position and first offset of the log, set by TRIM frames.
        staged: staged batches that no TXN has made visible yet, by position.
        disks: in a lane, the disks of `members` in the same order; empty if the VIEW does not contain them.
        removed: the last REMOVED_MAX removed voters, by name. Other gateways may need answers of a removed voter until its removal
            is durable on a majority. They identify the voter by number and incarnation.
    """

    position: int = 0
    chain: int = 0
    next_offset: int = 0
    tick: int = 0
    tick_time: int = 0
    dirty: bool = False
    view: int = 0
    members: tuple[int, ...] = ()
    group: str = ""
    log: bytes = b""
    roster: dict[int, Voter] = msgspec.field(default_factory=dict)
    forced: int = 0
    forced_at: int = 0
    topics: dict[int, Topic] = msgspec.field(default_factory=dict)
    producers: dict[int, Producer] = msgspec.field(default_factory=dict)
    readers: dict[str, int] = msgspec.field(default_factory=dict)
    next_topic: int = 1
    next_producer: int = 1
    next_gateway: int = 1
    floor: int = 0
    start: int = 1
    start_offset: int = 0
    staged: dict[int, Staged] = msgspec.field(default_factory=dict)
    disks: tuple[bytes, ...] = ()
    removed: dict[str, Voter] = msgspec.field(default_factory=dict)

    def apply(self, frame: Frame, aborted: bool = False) -> int:
        """Apply the next frame, and return the offset of its first record, or of the next record if the frame has none.

        Args:
            aborted: True if the frame is a BATCH that a later ABORT voids.

        Raises:
            FormatError: the body does not match the kind.
        """
        if frame.position != self.position + 1:
            # Without this error, a frame that is applied twice or out of order would corrupt the state silently.
            raise InvariantViolated(f"frame {frame.position} was applied, but position {self.position + 1} comes next")
        offset = self.next_offset
        if frame.kind == _BATCH:
            if not aborted:
                # A log without a roster is a lane, because the ordered log has a ROSTER before its first batch.
                (self._batch if self.roster else self._lane_batch)(frame, offset)
        else:
            _APPLY[frame.kind](self, frame)
        self.position = frame.position
        self.chain = frame.header_crc
        return offset

    def apply_run(self, frames: Sequence[Frame], aborted: Collection[int] = ()) -> tuple[int, ...]:
        """Apply the next frames, and return for each frame the offset that `apply` returns.

        Args:
            frames: the frames, in order.
            aborted: positions of the BATCHes that later ABORTs void.

        Raises:
            FormatError: a body does not match the kind of its frame.
        """
        producer_of, topics, tick_time = self.producers.get, self.topics, self.tick_time
        position, offset = self.position, self.next_offset
        offsets: list[int] = []
        last: Frame | None = None  # the last frame that this method has applied itself, while `self` does not contain its end yet
        for frame in frames:
            producer, topic = producer_of(frame.producer), topics.get(frame.topic)
            # The condition holds for nearly all frames. `apply` handles the other frames and finds the reason of an error.
            # A lane has no topics, so its batches are among the other frames.
            if (
                frame.kind == _BATCH
                and not frame.flags & STAGED
                and producer is not None
                and topic is not None
                and topic.first_offset >= 0
                and frame.position == position + 1
                and frame.epoch == producer.epoch
                and frame.first_sequence == producer.sequence + 1
                and not (aborted and frame.position in aborted)
            ):
                count = frame.count
                producer.sequence += count
                if frame.progress:
                    producer.progress = frame.progress
                producer.last_seen = tick_time
                offsets.append(offset)
                offset += count
                topic.records += count
                topic.bytes += frame.body_length
                topic.last_offset = offset - 1
                if frame.max_timestamp > topic.last_time:
                    topic.last_time = frame.max_timestamp
                position += 1
                last = frame
                continue
            if last is not None:
                self._move_to(last, offset)
                last = None
            offsets.append(self.apply(frame, frame.position in aborted))
            position, offset, tick_time = self.position, self.next_offset, self.tick_time
        if last is not None:
            self._move_to(last, offset)
        return tuple(offsets)

    def _move_to(self, batch: Frame, next_offset: int) -> None:
        self.position, self.chain = batch.position, batch.header_crc
        self.next_offset, self.dirty = next_offset, True

    def _advance_producer(self, frame: Frame) -> None:
        """Advance the producer's entry to the last sequence of the frame.

        Raises:
            FormatError: the frame does not continue the sequences of the entry.
        """
        producer = self.producers.get(frame.producer)
        if producer is None or producer.epoch != frame.epoch or producer.sequence + 1 != frame.first_sequence:
            raise FormatError(f"{frame!r} is not the next batch of its producer, for which the received-table has {producer!r}")
        producer.sequence = frame.first_sequence + frame.count - 1
        producer.progress = frame.progress or producer.progress
        producer.last_seen = self.tick_time

    def _batch(self, frame: Frame, offset: int) -> None:
        self._advance_producer(frame)
        topic = self.topics.get(frame.topic)
        if topic is None:
            raise FormatError(f"{frame!r} has a topic number that the log has not registered")
        if frame.staged:
            self.staged[frame.position] = staged_of(frame)
            return
        count = frame.count
        self.next_offset = end = offset + count
        if topic.first_offset < 0:
            topic.first_offset = offset
            topic.first_time = frame.min_timestamp
        topic.records += count
        topic.bytes += frame.body_length
        topic.last_offset = end - 1
        if frame.max_timestamp > topic.last_time:
            topic.last_time = frame.max_timestamp
        self.dirty = True

    def _txn(self, frame: Frame) -> None:
        """Apply a TXN: make its staged batches visible, in the order of the TXN."""
        body = decode_body(TxnBody, frame.body)
        parts = [self.staged[position] for position in body.staged if position in self.staged]
        if (
            len(set(body.staged)) < len(parts)
            or [part.count for part in parts] != list(body.counts)
            or sum(body.counts) != frame.count
        ):
            raise FormatError(f"{frame!r} lists batches that are not staged, or has a wrong number of records")
        self._advance_producer(frame)
        for position, part in zip(body.staged, parts, strict=True):
            del self.staged[position]
            topic = self.topics[part.topic]
            if topic.first_offset < 0:
                topic.first_offset = self.next_offset
                topic.first_time = part.first_time
            self.next_offset += part.count
            topic.records += part.count
            topic.bytes += part.bytes
            topic.last_offset = self.next_offset - 1
            topic.last_time = max(topic.last_time, part.last_time)
        self.dirty = True

    def _unstage(self, is_obsolete: Callable[[Staged], bool]) -> None:
        """Remove the staged batches for which `is_obsolete` returns true. No later TXN can make such batches visible."""
        if self.staged:
            self.staged = {position: part for position, part in self.staged.items() if not is_obsolete(part)}

    def _lane_batch(self, frame: Frame, offset: int) -> None:
        """Apply a batch of a lane (design, section 7).

        The state of a lane has no entries of topics and no names of producers, because only the ordered log registers these.
        """
        self.producers[frame.producer] = Producer("", b"", frame.epoch, frame.first_sequence + frame.count - 1, b"")
        self.next_offset = offset + frame.count

    def _view(self, frame: Frame) -> None:
        self.view = frame.view
        body = decode_body(LaneViewBody, frame.body)
        self.members, self.disks = body.members, body.disks

    def disk_of(self, number: int) -> bytes:
        """Return the incarnation of the disk that the roster assigns to a gateway; empty if the roster assigns none."""
        voter = self.roster.get(number)
        return voter.incarnation if voter is not None else b""

    def gateway_text(self, number: int) -> str:
        """Return a text for messages with the name of a gateway, or with its number if the gateway is not in the roster."""
        voter = self.roster.get(number)
        return f"gateway {voter.name!r}" if voter is not None else f"gateway {number}"

    def _roster(self, frame: Frame) -> None:
        body = decode_body(RosterBody, frame.body)
        self.group, self.log = body.group, body.log
        if body.forced:
            self.forced, self.forced_at = frame.view, frame.position
        before, self.roster = self.roster, {voter.number: voter for voter in body.voters}
        named = {voter.name for voter in body.voters}
        previous = {voter.name: voter for voter in before.values() if voter.voting}
        removed = [one for one in {**self.removed, **previous}.items() if one[0] not in named]
        self.removed = dict(removed[-REMOVED_MAX:])
        self.next_gateway = max(self.next_gateway, *(number + 1 for number in self.roster))
        if body.forced:
            self.next_gateway += FORCED_NUMBERS

    def _epoch(self, frame: Frame) -> None:
        body = decode_body(EpochBody, frame.body)
        self.producers[frame.producer] = Producer(
            body.name, body.instance, frame.epoch, body.sequence, body.progress, False, self.tick_time
        )
        self._unstage(lambda part: part.producer == frame.producer)
        self.next_producer = max(self.next_producer, frame.producer + 1)

    def _topic(self, frame: Frame) -> None:
        self.topics[frame.topic] = Topic(decode_body(TopicBody, frame.body).name)
        self.next_topic = max(self.next_topic, frame.topic + 1)

    def _forget(self, frame: Frame) -> None:
        body = decode_body(ForgetBody, frame.body)
        for number in body.producers:
            self.producers.pop(number, None)
        self._unstage(lambda part: part.producer not in self.producers)
        self.floor = max(self.floor, body.floor)

    def _abort(self, frame: Frame) -> None:
        entry = decode_body(AbortBody, frame.body).entry
        producer = self.producers.get(frame.producer)
        if producer is None:
            raise FormatError(f"{frame!r} has a producer number that the log has not registered")
        producer.instance, producer.epoch, producer.sequence = entry.instance, entry.epoch, entry.sequence
        producer.progress, producer.closed = entry.progress, True

    def _tick(self, frame: Frame) -> None:
        body = decode_body(TickBody, frame.body)
        self.tick, self.tick_time, self.dirty = body.number, body.time_us, False

    def _trim(self, frame: Frame) -> None:
        body = decode_body(TrimBody, frame.body)
        self.start, self.start_offset = max(self.start, body.position), max(self.start_offset, body.offset)
        if self.staged:
            self.staged = {position: part for position, part in self.staged.items() if position >= self.start}

    def _offsets(self, frame: Frame) -> None:
        self.readers.update(decode_body(OffsetsBody, frame.body).readers)

    def gateway_number(self, incarnation: bytes) -> int:
        """Return the number of the gateway that has, or had before its removal, the disk `incarnation`; 0 if unknown."""
        voters = [*self.roster.values(), *self.removed.values()]
        return next((voter.number for voter in voters if voter.incarnation == incarnation), 0)

    def topic_number(self, name: str) -> int:
        """Return the number of a topic; 0 if unknown."""
        return next((number for number, topic in self.topics.items() if topic.name == name), 0)

    def producer_number(self, name: str) -> int:
        """Return the number of a producer; 0 if unknown."""
        return next((number for number, producer in self.producers.items() if producer.name == name), 0)

    def copy(self) -> LogState:
        """Return an independent copy."""
        return _DECODER.decode(_ENCODER.encode(self))

    def become(self, other: LogState) -> None:
        """Replace the content by that of `other`. Do not use `other` after this call, because the two states share objects."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def to_bytes(self) -> bytes:
        """Encode a snapshot: magic, version, length and CRC32C, then msgpack."""
        data = _ENCODER.encode(self)
        head = SNAPSHOT_MAGIC + SNAPSHOT_VERSION.to_bytes(4, "little") + len(data).to_bytes(4, "little")
        return head + crc32c(data, crc32c(head)).to_bytes(4, "little") + data

    @classmethod
    def from_bytes(cls, data: bytes) -> LogState:
        """Decode a snapshot.

        Raises:
            Damaged: the magic number, the length or the CRC is wrong.
            FormatError: this release does not support the version, or the content is not a state.
        """
        if data[:4] != SNAPSHOT_MAGIC or len(data) < _HEAD:
            raise Damaged("a snapshot does not begin with its magic number")
        version = int.from_bytes(data[4:8], "little")
        length = int.from_bytes(data[8:12], "little")
        body = data[_HEAD : _HEAD + length]
        if len(body) != length or crc32c(body, crc32c(data[:12])) != int.from_bytes(data[12:_HEAD], "little"):
            raise Damaged("a snapshot fails its CRC")
        if version != SNAPSHOT_VERSION:
            raise FormatError(
                f"snapshot version {version} is not supported (this release supports {SNAPSHOT_VERSION}): use a newer release"
            )
        try:
            return _DECODER.decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(f"the content of a snapshot is not a valid log state: {error}") from error


_APPLY: dict[int, Callable[[LogState, Frame], None]] = {
    Kind.VIEW: LogState._view,
    Kind.ROSTER: LogState._roster,
    Kind.EPOCH: LogState._epoch,
    Kind.TOPIC: LogState._topic,
    Kind.FORGET: LogState._forget,
    Kind.ABORT: LogState._abort,
    Kind.TICK: LogState._tick,
    Kind.TRIM: LogState._trim,
    Kind.OFFSETS: LogState._offsets,
    Kind.TXN: LogState._txn,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[LogState] = msgspec.msgpack.Decoder(LogState)
