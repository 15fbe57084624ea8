"""Client protocol: the messages between clients (producers, readers, tools) and the client port of a gateway.

Each message is one ZMTP message, whose first byte gives the form of the message:

- `C` control: msgpack of one tagged struct of this module.
- `S` submit: frames of one or several producers, with packed headers for fast parsing.
- `U` submit unordered: like `S`, but for the lane of the gateway. A session uses either `S` or `U`, never both.
- `R` receipts: packed rows, one for each committed batch.

Submit: `S` or `U`, mode u8, frame count u16, zero u32, then the packed headers (96 bytes each; view, position, origin and header
CRC are zero), then the progress fields without padding. In mode 0, the bodies follow in the same part, each padded to 8 bytes. In
mode 1, each body is a separate part.

Receipts: `R`, three zeros, row count u32, then rows (producer u64, first sequence u64, offset i64, epoch u32, count u32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from tutti.data.frames.frame import (
    HEADER_SIZE,
    MAGIC,
    SEQUENCED,
    VERSION,
    Buffer,
    Frame,
    Kind,
    decode_header_and_length,
    padded,
)
from tutti.errors import FormatError

PROTOCOL = 1
CONTROL, SUBMIT, SUBMIT_UNORDERED, RECEIPTS = b"C", b"S", b"U", b"R"
INLINE, PARTS = 0, 1
INLINE_BYTES_MAX = 8192  # maximum size of a body in the first part; a larger body is a separate part, so that it is not copied
OFFSET_UNKNOWN = -1  # offset in a receipt of a committed batch whose records were trimmed or have no consecutive offsets

_SUBMIT = struct.Struct("<cBHI")
_SUBMIT_HEADS = {
    (unordered, mode): _SUBMIT.pack(SUBMIT_UNORDERED if unordered else SUBMIT, mode, 1, 0)
    for unordered in (False, True)
    for mode in (INLINE, PARTS)
}
_PADDING = tuple(map(bytes, range(8)))
# A submit message of one uncompressed batch begins with these bytes, up to and including the position in the frame header.
_LONE_HEAD = struct.pack("<cBHI4sBBHQQ", SUBMIT, INLINE, 1, 0, MAGIC, VERSION, int(Kind.BATCH), 0, 0, 0)
_LONE_FIELDS = struct.Struct("<QQqqIIIHHIIIIII")  # the rest of the frame header
_LONE_FIELDS_AT = len(_LONE_HEAD)
_LONE_BODY_AT = _LONE_FIELDS_AT + _LONE_FIELDS.size
_BATCH = int(Kind.BATCH)
_RECEIPTS = struct.Struct("<c3xI")
_ONE = (1).to_bytes(4, "little")  # the row count of a lone receipt
_LONE_RECEIPT = struct.Struct("<c3xIQQqII")
_RECEIPT = struct.Struct("<QQqII")


class Hello(msgspec.Struct, frozen=True, tag="Hello"):
    """First message of a connection.

    Attributes:
        protocol: protocol version.
        client: name and version of the client software.
        session: 16 random bytes that identify the session.
        token: token that authenticates the client, sent only over encrypted connections.
    """

    protocol: int
    client: str
    session: bytes
    token: str = ""

    def __repr__(self) -> str:
        """Return a text without the token, because the text may be written to a log."""
        return f"Hello(protocol={self.protocol}, client={self.client!r})"


class OpenProducer(msgspec.Struct, frozen=True, tag="OpenProducer"):
    """Open `epoch` of the producer `name` for `instance` (16 random bytes). A repeated request gets the same answer."""

    request: int
    name: str
    instance: bytes
    epoch: int


class OpenTopic(msgspec.Struct, frozen=True, tag="OpenTopic"):
    """Request the number of a topic. If the topic does not exist, the log registers it."""

    request: int
    name: str


class SaveOffset(msgspec.Struct, frozen=True, tag="SaveOffset"):
    """Commit the offset of a named reader. If `back` is False, the gateway refuses an offset below the committed offset."""

    request: int
    reader: str
    offset: int
    back: bool = False


class Forget(msgspec.Struct, frozen=True, tag="Forget"):
    """Remove producers from the received-table, through the log.

    `instances` contains the instance of each producer, which proves that the client owns these nameless producers. A client whose
    token grants the right to remove producers needs no proof.
    """

    request: int
    names: tuple[str, ...]
    instances: tuple[bytes, ...] = ()


class Fence(msgspec.Struct, frozen=True, tag="Fence"):
    """End the current epoch of a producer. The log then opens the next epoch, which belongs to no instance."""

    request: int
    name: str


class Status(msgspec.Struct, frozen=True, tag="Status"):
    """Request the gateway's status (JSON)."""

    request: int


class Producers(msgspec.Struct, frozen=True, tag="Producers"):
    """Request the received-table (JSON)."""

    request: int


class Members(msgspec.Struct, frozen=True, tag="Members"):
    """Request the members of the group that this gateway knows (JSON)."""

    request: int


class ChangeRoster(msgspec.Struct, frozen=True, tag="ChangeRoster"):
    """Change one gateway of the roster, through the log. The answer comes when a majority of the new roster has stored the change.

    Attributes:
        change: "add" for a new gateway, "remove", or "replace" for a gateway that lost its disk.
        name: name of the gateway to add, remove or replace.
        address: address (HOST:P) of a gateway to add.
        incarnation: incarnation (16 bytes) of the disk to replace, so that a repeated request has no second effect.
    """

    request: int
    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""


class ForceRoster(msgspec.Struct, frozen=True, tag="ForceRoster"):
    """Reduce the roster to `names` (1 to 63 gateways, including this one) after the permanent loss of a majority.

    Data that only the removed gateways had is lost. The gateway refuses the request while a majority is reachable or may still
    return. The answer comes when the new roster is decided.
    """

    request: int
    names: tuple[str, ...]


class Leave(msgspec.Struct, frozen=True, tag="Leave"):
    """Make the gateway `name`, which must be the receiver of this request, leave the group and stop.

    The answer comes when the shutdown starts.
    """

    request: int
    name: str


class Bye(msgspec.Struct, frozen=True, tag="Bye"):
    """Close the client's session."""


class Welcome(msgspec.Struct, frozen=True, tag="Welcome"):
    """Answer to Hello: the gateway's identity, addresses, and limits for the client. The gateway sends a new Welcome whenever the
    members or its state change.

    `gateways` maps the names of all members, including this gateway, to tutti://HOST:P. `silent` lists the members from which this
    gateway receives no heartbeats. `lane` is the name of the gateway's own lane (NUMBER-INCARNATIONHEX). If `lane` is empty, the
    gateway accepts no unordered batches now.

    `records_per_s` and `bytes_per_s` are the quotas of the client's token; 0 means no quota. `held_from` is the first sequence of
    the session's oldest batch that waits for a quota; the gateway holds this batch and all later ones. 0 means that none waits.
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
    records_per_s: int = 0
    bytes_per_s: int = 0
    held_from: int = 0


class Committed(msgspec.Struct, frozen=True, tag="Committed"):
    """A batch is committed at `offset`, or at an unknown offset if -1. On the wire, this answer is a packed receipt row."""

    producer: int
    epoch: int
    first_sequence: int
    count: int
    offset: int


class Duplicate(msgspec.Struct, frozen=True, tag="Duplicate"):
    """The batch was committed earlier.

    The gateway looks up the offset of the batch and answers Committed, so a Duplicate never reaches the client.
    """

    producer: int
    epoch: int
    first_sequence: int
    count: int


class AbortedAnswer(msgspec.Struct, frozen=True, tag="Aborted"):
    """The batch is permanently aborted, and the epoch of its producer is closed."""

    producer: int
    epoch: int
    first_sequence: int
    count: int
    reason: str


class FencedAnswer(msgspec.Struct, frozen=True, tag="Fenced"):
    """Another instance has opened `epoch` of the producer.

    The outcome of the batch that begins at `first_sequence` is unknown. If `first_sequence` is 0, no batch is affected.
    """

    producer: int
    epoch: int
    first_sequence: int


class Expected(msgspec.Struct, frozen=True, tag="Expected"):
    """The batch does not continue the sequences. The client must resend from `sequence` on, which the gateway accepts next."""

    producer: int
    epoch: int
    sequence: int


class RefusedAnswer(msgspec.Struct, frozen=True, tag="Refused"):
    """The gateway refused a batch, so this copy of the batch never reaches the log.

    If `retry` is true, the client may send the batch again later.
    """

    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class EpochOpened(msgspec.Struct, frozen=True, tag="EpochOpened"):
    """The requested epoch is open.

    The answer has the producer's number, and the last committed sequence and progress, which the client returns as
    `Producer.resume`.
    """

    request: int
    producer: int
    epoch: int
    sequence: int
    progress: bytes


class EpochFenced(msgspec.Struct, frozen=True, tag="EpochFenced"):
    """The requested epoch was not opened, because another instance owns the current epoch `epoch`."""

    request: int
    epoch: int


class TopicOpened(msgspec.Struct, frozen=True, tag="TopicOpened"):
    """Answer to OpenTopic, with the number of the topic."""

    request: int
    topic: int


class Done(msgspec.Struct, frozen=True, tag="Done"):
    """Answer to a request that has taken effect durably."""

    request: int


class Denied(msgspec.Struct, frozen=True, tag="Denied"):
    """The gateway refused the request with number `request`, or the last message if `request` is 0.

    A refusal is permanent, with one of the codes hello, protocol, malformed, name, epoch, offset, unknown, limit, roster, token and
    rights. If `retry` is true, the refusal is temporary, with one of the codes busy, space, not_primary, leaving, halted and
    behind.
    """

    request: int
    code: str
    reason: str
    retry: bool = False


class StatusAnswer(msgspec.Struct, frozen=True, tag="StatusAnswer"):
    """Answer to Status, Producers or Members, as JSON."""

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
    """Encode a control message."""
    return CONTROL + _ENCODER.encode(message)


def decode_request(data: Buffer) -> Request:
    """Decode the request in a control message. The first byte of the message is not checked.

    Raises:
        FormatError: the bytes are not a request of this protocol.
    """
    try:
        return _REQUESTS.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"a control message is malformed: {error}") from error


def decode_from_gateway(data: Buffer) -> FromGateway:
    """Decode the answer in a control message. The first byte of the message is not checked.

    Raises:
        FormatError: the bytes are not an answer of this protocol.
    """
    try:
        return _ANSWERS.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"a gateway's message is malformed: {error}") from error


def encode_submit(frames: Sequence[Frame], unordered: bool = False) -> list[Buffer]:
    """Encode a submit message as ZMTP parts. With `unordered`, the message is for the gateway's lane.

    If no body exceeds 8 KiB, all bodies are in the first part. Otherwise, each body is a separate part.
    """
    return join_submit([frame.packed_header() for frame in frames], frames, unordered)


class Content(Protocol):
    """The content of a submitted frame: a `Frame`, or a batch of a producer."""

    @property
    def progress(self) -> bytes:
        """The progress; b"" if the frame has none."""

    @property
    def body(self) -> Buffer:
        """The encoded body."""


def join_submit(headers: Sequence[bytes], contents: Sequence[Content], unordered: bool = False) -> list[Buffer]:
    """Join packed headers and the contents of their frames to a submit message, as `encode_submit` does."""
    # A message of one frame is the common case when few records are in flight.
    if len(headers) == 1:
        content = contents[0]
        body = content.body
        length = len(body)
        if length > INLINE_BYTES_MAX:
            return [b"".join((_SUBMIT_HEADS[unordered, PARTS], headers[0], content.progress)), body]
        return [b"".join((_SUBMIT_HEADS[unordered, INLINE], headers[0], content.progress, body, _PADDING[-length & 7]))]
    form = SUBMIT_UNORDERED if unordered else SUBMIT
    inline = all(len(content.body) <= INLINE_BYTES_MAX for content in contents)
    first: list[Buffer] = [_SUBMIT.pack(form, INLINE if inline else PARTS, len(headers), 0), *headers]
    first.extend(content.progress for content in contents if content.progress)
    if inline:
        for content in contents:
            first.append(content.body)
            if len(content.body) & 7:
                first.append(bytes(-len(content.body) & 7))
        return [b"".join(first)]
    return [b"".join(first), *(content.body for content in contents)]


def decode_lone_submit(data: Buffer) -> Frame | None:
    """Decode a submit message of one small uncompressed batch in one part. Return None for any other message (`decode_submit`).

    A client with one record in flight sends such messages. The length of a plain body is a multiple of 8, so the message has no
    padding. The body is copied, because a small copy is cheaper than a view.
    """
    if data.__class__ is not bytes or data[:_LONE_FIELDS_AT] != _LONE_HEAD or len(data) < _LONE_BODY_AT:
        return None
    frame = Frame.__new__(Frame)
    (
        frame.producer,
        frame.first_sequence,
        frame.min_timestamp,
        frame.max_timestamp,
        frame.epoch,
        frame.count,
        frame.topic,
        frame.origin,
        progress_length,
        frame.body_length,
        frame.raw_length,
        frame.body_crc,
        zero,
        zero_too,
        frame.header_crc,
    ) = _LONE_FIELDS.unpack_from(data, _LONE_FIELDS_AT)
    length = frame.body_length
    if frame.origin or progress_length or zero or zero_too or length > INLINE_BYTES_MAX or len(data) != _LONE_BODY_AT + length:
        return None
    frame.kind = _BATCH
    frame.flags = frame.view = frame.position = 0
    frame.header = frame.progress = b""
    frame.body = data[_LONE_BODY_AT:]
    return frame


def decode_submit(parts: Sequence[Buffer]) -> list[Frame]:
    """Decode the frames of a submit message (`S` or `U`). The bodies are views of the parts, and their content is not checked.

    Raises:
        FormatError: counts or lengths do not match the parts, or a frame is not a BATCH or TXN without a position.
    """
    data = parts[0]
    if len(data) < _SUBMIT.size:
        raise FormatError(f"a submit message of {len(data)} bytes is too short: it needs at least {_SUBMIT.size}")
    _, mode, count, _ = _SUBMIT.unpack_from(data, 0)
    if mode not in (INLINE, PARTS) or count == 0:
        raise FormatError(f"a submit message has mode {mode} and {count} frames: it needs mode 0 or 1, and at least one frame")
    if len(parts) != (1 if mode == INLINE else 1 + count):
        raise FormatError(f"a submit message of {count} frames in mode {mode} has the wrong number of parts, {len(parts)}")
    headers = [decode_header_and_length(data, _SUBMIT.size + number * HEADER_SIZE) for number in range(count)]
    at = _SUBMIT.size + count * HEADER_SIZE
    view = memoryview(data)
    for frame, length in headers:
        if frame.kind not in SEQUENCED or frame.position or frame.view or frame.origin:
            raise FormatError(f"a submitted frame must be a batch without a position, not {frame!r}")
        if length:
            frame.progress = bytes(view[at : at + length])
            at += length
    frames = [frame for frame, _ in headers]
    for number, frame in enumerate(frames):
        if mode == PARTS:
            frame.body = memoryview(parts[1 + number])
        else:
            frame.body = view[at : at + frame.body_length]
            at += padded(frame.body_length)
        if len(frame.body) != frame.body_length:
            raise FormatError(f"the body of frame {number} has {len(frame.body)} bytes, but its header has {frame.body_length}")
    if at != len(data):
        raise FormatError(f"the first part of a submit message has {len(data)} bytes instead of the declared {at}")
    return frames


def encode_receipts(answers: Sequence[Committed]) -> bytes:
    """Encode a receipts message."""
    if len(answers) == 1:
        (one,) = answers
        return _LONE_RECEIPT.pack(RECEIPTS, 1, one.producer, one.first_sequence, one.offset, one.epoch, one.count)
    pack = _RECEIPT.pack
    rows = [pack(a.producer, a.first_sequence, a.offset, a.epoch, a.count) for a in answers]
    return b"".join([_RECEIPTS.pack(RECEIPTS, len(rows)), *rows])


def decode_receipts(data: Buffer) -> Iterable[tuple[int, int, int, int, int]]:
    """Decode the rows of a receipts message: (producer, first sequence, offset, epoch, count).

    Raises:
        FormatError: the length of the message does not match the number of rows.
    """
    if len(data) == _LONE_RECEIPT.size and data[4 : _RECEIPTS.size] == _ONE:
        return (_RECEIPT.unpack_from(data, _RECEIPTS.size),)
    if len(data) < _RECEIPTS.size:
        raise FormatError(f"a receipts message of {len(data)} bytes is too short: it needs at least {_RECEIPTS.size}")
    _, count = _RECEIPTS.unpack_from(data, 0)
    if len(data) != _RECEIPTS.size + count * _RECEIPT.size:
        raise FormatError(f"a receipts message of {count} rows has the wrong length, {len(data)} bytes")
    return _RECEIPT.iter_unpack(memoryview(data)[_RECEIPTS.size :])
