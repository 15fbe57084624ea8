"""Messages of the client port: what producers, readers and tools say to a gateway, and what it answers.

One message is one ZMTP message. Its first byte tells its form:

- `C` control: msgpack of one tagged struct of this module.
- `S` submit: a run of frames of one producer or several, headers packed so that they are parsed at once.
- `U` submit unordered: the same for the lane of the gateway that is asked. A session sends one of both forms.
- `R` receipts: packed rows, the answer to submitted frames that committed.

Submit: `S` or `U`, mode u8, frame count u16, zero u32, then the packed headers (96 bytes each; view, position, origin and header
CRC are zero), then the progresses back to back without padding. Bodies follow back to back in the same part (mode 0, each padded
to 8 bytes) or as one further part each (mode 1).

Receipts: `R`, three zeros, row count u32, then rows (producer u64, first sequence u64, offset i64, epoch u32, count u32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import msgspec

from tutti.data.frames.frame import HEADER_SIZE, SEQUENCED, Buffer, Frame, decode_header, padded, progress_length_at
from tutti.errors import FormatError

PROTOCOL = 1
CONTROL, SUBMIT, SUBMIT_UNORDERED, RECEIPTS = b"C", b"S", b"U", b"R"
INLINE, PARTS = 0, 1
INLINE_BYTES_MAX = 8192  # larger bodies travel as parts of their own, uncopied
OFFSET_UNKNOWN = -1  # committed, and before the start of the log, or not behind each other

_SUBMIT = struct.Struct("<cBHI")
_RECEIPTS = struct.Struct("<c3xI")
_RECEIPT = struct.Struct("<QQqII")


class Hello(msgspec.Struct, frozen=True, tag="Hello"):
    """First message of a connection: protocol version, name and version of the client, and its session (16 random bytes); the token
    that lets it in, where one is wanted, by an encrypted connection alone.
    """

    protocol: int
    client: str
    session: bytes
    token: str = ""

    def __repr__(self) -> str:
        """Without the token: this may land in a log."""
        return f"Hello(protocol={self.protocol}, client={self.client!r})"


class OpenProducer(msgspec.Struct, frozen=True, tag="OpenProducer"):
    """Begin `epoch` of the producer `name` for `instance` (16 random bytes); the same again gets the same answer."""

    request: int
    name: str
    instance: bytes
    epoch: int


class OpenTopic(msgspec.Struct, frozen=True, tag="OpenTopic"):
    """Ask for the topic's number; a new topic is registered through the log."""

    request: int
    name: str


class SaveOffset(msgspec.Struct, frozen=True, tag="SaveOffset"):
    """A named reader's offset commit; below what it committed before it is refused, unless the reader wants to go `back`."""

    request: int
    reader: str
    offset: int
    back: bool = False


class Forget(msgspec.Struct, frozen=True, tag="Forget"):
    """Take producers out of the received-table, through the log. `instances` of producers without a name, one each, show that they
    are the asker's own where a token alone would not let it.
    """

    request: int
    names: tuple[str, ...]
    instances: tuple[bytes, ...] = ()


class Fence(msgspec.Struct, frozen=True, tag="Fence"):
    """End the current epoch of a producer by beginning the next one for nobody."""

    request: int
    name: str


class Status(msgspec.Struct, frozen=True, tag="Status"):
    """Ask for the gateway's status (JSON)."""

    request: int


class Producers(msgspec.Struct, frozen=True, tag="Producers"):
    """Ask for the received-table (JSON)."""

    request: int


class Members(msgspec.Struct, frozen=True, tag="Members"):
    """Ask for the gateways of the group, as this one knows them (JSON)."""

    request: int


class ChangeRoster(msgspec.Struct, frozen=True, tag="ChangeRoster"):
    """Change one gateway of the roster, through the log: `change` is "add" (`name` at `address`, HOST:P), "remove" or "replace"
    (`name` lost its disk; `incarnation`, 16 bytes, is the one to be replaced, so that asking twice is asking once). Done when a
    majority of the new roster knows it durably.
    """

    request: int
    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""


class ForceRoster(msgspec.Struct, frozen=True, tag="ForceRoster"):
    """A majority of the roster is gone for good: the gateways `names` (1 to 63), the one that is asked among them, are all that
    remains from now on. What only the others had is lost. Refused while a majority is heard, or may still come. Done when it is
    decided.
    """

    request: int
    names: tuple[str, ...]


class Leave(msgspec.Struct, frozen=True, tag="Leave"):
    """Tell the gateway `name`, which must be the one that is asked, to leave the group in order and end. Done when it begins to."""

    request: int
    name: str


class Bye(msgspec.Struct, frozen=True, tag="Bye"):
    """The client closes its session."""


class Welcome(msgspec.Struct, frozen=True, tag="Welcome"):
    """Answer to Hello: who this is, where everything else is, and the limits a client keeps to. It comes without a Hello, too, when
    the gateways or this one's state have changed.

    `gateways` are all of the group, this one included: name -> tutti://HOST:P; `silent` names those that this one does not hear.
    `lane` is this gateway's own lane, NUMBER-INCARNATIONHEX, empty while it has none: it takes no unordered batches then.
    """

    protocol: int
    gateway: str
    group: str
    log: str
    state: str
    version: str
    reads: str
    admin: str
    gateways: dict[str, str]
    window_bytes: int
    frame_bytes_max: int
    raw_bytes_max: int
    silent: tuple[str, ...] = ()
    lane: str = ""


class Committed(msgspec.Struct, frozen=True, tag="Committed"):
    """A batch committed at `offset` (-1: committed, where is no longer known). Packed as a receipt row on the wire."""

    producer: int
    epoch: int
    first_sequence: int
    count: int
    offset: int


class Duplicate(msgspec.Struct, frozen=True, tag="Duplicate"):
    """The batch committed before; the driver looks its offset up and answers Committed. Never on the wire."""

    producer: int
    epoch: int
    first_sequence: int
    count: int


class AbortedAnswer(msgspec.Struct, frozen=True, tag="Aborted"):
    """The batch is in no committed log, ever; its epoch is closed."""

    producer: int
    epoch: int
    first_sequence: int
    count: int
    reason: str


class FencedAnswer(msgspec.Struct, frozen=True, tag="Fenced"):
    """The producer's epoch is now `epoch`, begun by another instance; the outcome of `first_sequence` (0: of none) is not known."""

    producer: int
    epoch: int
    first_sequence: int


class Expected(msgspec.Struct, frozen=True, tag="Expected"):
    """A gap or an overlap: send again from `sequence` (the next one that will be taken)."""

    producer: int
    epoch: int
    sequence: int


class RefusedAnswer(msgspec.Struct, frozen=True, tag="Refused"):
    """A batch was not taken; nothing of it is or will be in the log by this sending. `retry`: the same may be sent again later."""

    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class EpochOpened(msgspec.Struct, frozen=True, tag="EpochOpened"):
    """The epoch began: the producer's number, and the last committed sequence and progress (`Producer.resume`)."""

    request: int
    producer: int
    epoch: int
    sequence: int
    progress: bytes


class EpochFenced(msgspec.Struct, frozen=True, tag="EpochFenced"):
    """The epoch was not begun: `epoch` is current, and another instance's."""

    request: int
    epoch: int


class TopicOpened(msgspec.Struct, frozen=True, tag="TopicOpened"):
    """The topic's number."""

    request: int
    topic: int


class Done(msgspec.Struct, frozen=True, tag="Done"):
    """The request took effect, durably."""

    request: int


class Denied(msgspec.Struct, frozen=True, tag="Denied"):
    """The request (0: the last message) was not taken. Codes: hello, protocol, malformed, name, epoch, offset,
    unknown, limit, roster, token, rights; busy, space, not_primary, leaving, halted, behind (these pass: `retry`).
    """

    request: int
    code: str
    reason: str
    retry: bool = False


class StatusAnswer(msgspec.Struct, frozen=True, tag="StatusAnswer"):
    """Status, producers or members, as JSON."""

    request: int
    json: bytes


Rosters = ChangeRoster | ForceRoster | Leave
Request = Hello | OpenProducer | OpenTopic | SaveOffset | Forget | Fence | Status | Producers | Members | Rosters | Bye
RequestAnswer = EpochOpened | EpochFenced | TopicOpened | Done | Denied
Answer = Committed | Duplicate | AbortedAnswer | FencedAnswer | Expected | RefusedAnswer | RequestAnswer
FromGateway = (
    Welcome
    | AbortedAnswer
    | FencedAnswer
    | Expected
    | RefusedAnswer
    | EpochOpened
    | EpochFenced
    | TopicOpened
    | Done
    | Denied
    | StatusAnswer
)

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS: msgspec.msgpack.Decoder[FromGateway] = msgspec.msgpack.Decoder(FromGateway)


def encode_control(message: msgspec.Struct) -> bytes:
    """One control message."""
    return CONTROL + _ENCODER.encode(message)


def decode_request(data: Buffer) -> Request:
    """The request in a control message (its first byte is not looked at).

    Raises:
        FormatError: the bytes are no request of this protocol.
    """
    try:
        return _REQUESTS.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"a control message is malformed: {error}") from error


def decode_from_gateway(data: Buffer) -> FromGateway:
    """The answer in a control message (its first byte is not looked at).

    Raises:
        FormatError: the bytes are no answer of this protocol.
    """
    try:
        return _ANSWERS.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"a gateway's message is malformed: {error}") from error


def encode_submit(frames: Sequence[Frame], unordered: bool = False) -> list[Buffer]:
    """The parts of one submit message, `unordered` for the gateway's lane.

    Bodies up to 8 KiB are joined into the first part if all are, else each is a part.
    """
    form = SUBMIT_UNORDERED if unordered else SUBMIT
    if len(frames) == 1:
        return _encode_lone(frames[0], form)
    inline = all(frame.body_length <= INLINE_BYTES_MAX for frame in frames)
    first: list[Buffer] = [_SUBMIT.pack(form, INLINE if inline else PARTS, len(frames), 0)]
    first.extend(frame.packed_header() for frame in frames)
    first.extend(frame.progress for frame in frames if frame.progress)
    if inline:
        for frame in frames:
            first.append(frame.body)
            if frame.body_length & 7:
                first.append(bytes(-frame.body_length & 7))
        return [b"".join(first)]
    return [b"".join(first), *(frame.body for frame in frames)]


def _encode_lone(frame: Frame, form: bytes) -> list[Buffer]:
    """The parts of a submit message of one frame: with few records under way, all are."""
    header, length = frame.packed_header(), frame.body_length
    if length > INLINE_BYTES_MAX:
        return [b"".join((_SUBMIT.pack(form, PARTS, 1, 0), header, frame.progress)), frame.body]
    return [b"".join((_SUBMIT.pack(form, INLINE, 1, 0), header, frame.progress, frame.body, bytes(-length & 7)))]


def decode_submit(parts: Sequence[Buffer]) -> list[Frame]:
    """The frames of a submit message (`S` or `U`), bodies as views of the parts. Of their content only the form is checked.

    Raises:
        FormatError: counts and lengths do not agree with what is there, or a frame is not an unplaced BATCH or TXN.
    """
    data = parts[0]
    if len(data) < _SUBMIT.size:
        raise FormatError(f"a submit message of {len(data)} bytes is too short")
    _, mode, count, _ = _SUBMIT.unpack_from(data, 0)
    if mode not in (INLINE, PARTS) or count == 0:
        raise FormatError(f"a submit message has mode {mode} and {count} frames")
    if len(parts) != (1 if mode == INLINE else 1 + count):
        raise FormatError(f"a submit message of {count} frames (mode {mode}) has {len(parts)} parts")
    frames = [decode_header(data, _SUBMIT.size + number * HEADER_SIZE) for number in range(count)]
    at = _SUBMIT.size + count * HEADER_SIZE
    view = memoryview(data)
    for number, frame in enumerate(frames):
        if frame.kind not in SEQUENCED or frame.position or frame.view or frame.origin:
            raise FormatError(f"a submitted frame is no unplaced batch: {frame!r}")
        length = progress_length_at(data, _SUBMIT.size + number * HEADER_SIZE)
        if length:
            frame.progress = bytes(view[at : at + length])
            at += length
    for number, frame in enumerate(frames):
        if mode == PARTS:
            frame.body = memoryview(parts[1 + number])
        else:
            frame.body = view[at : at + frame.body_length]
            at += padded(frame.body_length)
        if len(frame.body) != frame.body_length:
            raise FormatError(f"the body of frame {number} has {len(frame.body)} bytes and its header says {frame.body_length}")
    if at != len(data):
        raise FormatError(f"a submit message has {len(data)} bytes in its first part where {at} were announced")
    return frames


def encode_receipts(answers: Sequence[Committed]) -> bytes:
    """One receipts message."""
    pack = _RECEIPT.pack
    rows = [pack(a.producer, a.first_sequence, a.offset, a.epoch, a.count) for a in answers]
    return b"".join([_RECEIPTS.pack(RECEIPTS, len(rows)), *rows])


def decode_receipts(data: Buffer) -> Iterable[tuple[int, int, int, int, int]]:
    """Rows of a receipts message: (producer, first sequence, offset, epoch, count).

    Raises:
        FormatError: the length does not fit the count.
    """
    if len(data) < _RECEIPTS.size:
        raise FormatError(f"a receipts message of {len(data)} bytes is too short")
    _, count = _RECEIPTS.unpack_from(data, 0)
    if len(data) != _RECEIPTS.size + count * _RECEIPT.size:
        raise FormatError(f"a receipts message of {count} rows has {len(data)} bytes")
    return _RECEIPT.iter_unpack(memoryview(data)[_RECEIPTS.size :])
