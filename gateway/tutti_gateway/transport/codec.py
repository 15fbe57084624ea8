"""Messages of the group as parts of one ZMTP message, or as one datagram's payload.

The first byte of the first part tells its form:

- `I` introduction: msgpack of `Introduction`.
- `C` control: msgpack of one message that holds no frames.
- `F` frames: mode u8, frame count u16, head length u32; then the message itself with no frames (msgpack), padded to 8 bytes; then
  the frames back to back as they stand on disk. In mode 1 each body over 8 KiB is a part of its own instead: a part costs more than
  a copy of 8 KiB, and less than one of a large body.
- `R` refusal: msgpack of `Refusal`, on the connection that the introduction came by.

What comes from a network is looked at here for its form and lengths. What frames mean, and each body's CRC, are the core's to
check: it asks for a damaged one again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from tutti import limits as common_limits
from tutti.data.frames.frame import HEADER_SIZE, Buffer, Frame, decode_header, padded, progress_length_at
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Fetched, Forward, LaneFetched, LaneTail, Message, Order, Post, Repair
from tutti_gateway.transport.interface import Introduction

CONTROL, FRAMES, INTRODUCTION, REFUSAL = b"C", b"F", b"I", b"R"
JOINED, APART = 0, 1
WITH_FRAMES = (Forward, Order, Repair, Fetched, Post, LaneFetched, LaneTail)

_PREFIX = struct.Struct("<cBHI")
_PADDING = tuple(bytes(n) for n in range(8))


class Refusal(msgspec.Struct, frozen=True):
    """Why messages of the gateway that introduced itself are not taken. `protocol`, `group`, `gateway` are the refuser's."""

    protocol: int
    group: str
    gateway: str
    reason: str


def _nothing(value: object) -> object:
    raise NotImplementedError(f"{type(value).__name__} is part of no message without frames")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_nothing)
_MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=lambda kind, value: _nothing(value))
_INTRODUCTIONS: msgspec.msgpack.Decoder[Introduction] = msgspec.msgpack.Decoder(Introduction)
_REFUSALS: msgspec.msgpack.Decoder[Refusal] = msgspec.msgpack.Decoder(Refusal)
_WRONG = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError, NotImplementedError)


def encode_introduction(introduction: Introduction) -> bytes:
    """The first message of a connection."""
    return INTRODUCTION + _ENCODER.encode(introduction)


def decode_introduction(data: Buffer) -> Introduction:
    """The introduction in `data`, whose first byte says that it is one.

    Raises:
        FormatError: it is malformed.
    """
    try:
        return _INTRODUCTIONS.decode(memoryview(data)[1:])
    except _WRONG as error:
        raise FormatError(f"an introduction is malformed: {error}") from error


def encode_refusal(refusal: Refusal) -> bytes:
    """The answer to an introduction that is not taken."""
    return REFUSAL + _ENCODER.encode(refusal)


def decode_refusal(data: Buffer) -> Refusal:
    """The refusal in `data`, whose first byte says that it is one.

    Raises:
        FormatError: it is malformed, or no text to show.
    """
    try:
        refusal = _REFUSALS.decode(memoryview(data)[1:])
    except _WRONG as error:
        raise FormatError(f"a refusal is malformed: {error}") from error
    if len(data) > limits.REFUSAL_BYTES_MAX or not f"{refusal.group}{refusal.gateway}{refusal.reason}".isprintable():
        raise FormatError(f"a refusal of {len(data)} bytes is too long, or has characters that cannot be shown")
    return refusal


def encode(message: Message, *, whole: bool = False) -> list[Buffer]:
    """The parts of a message, one alone if it has to be `whole`. Large bodies are parts of their own otherwise, uncopied: they must
    not change.
    """
    if not isinstance(message, WITH_FRAMES) or not message.frames:
        return [CONTROL + _ENCODER.encode(message)]
    frames = message.frames
    head = _ENCODER.encode(msgspec.structs.replace(message, frames=()))
    joined_max = common_limits.BODY_BYTES_MAX if whole else limits.JOINED_BODY_BYTES_MAX
    mode = APART if any(frame.body_length > joined_max for frame in frames) else JOINED
    first: list[Buffer] = [_PREFIX.pack(FRAMES, mode, len(frames), len(head)), head, _PADDING[-len(head) & 7]]
    bodies: list[Buffer] = []
    for frame in frames:
        first.append(frame.packed_header())
        if frame.body_length > joined_max:
            first += (frame.progress, _PADDING[-len(frame.progress) & 7])
            bodies.append(frame.body)
        else:
            first += frame.extents()[1:]
    return [b"".join(first), *bodies]


def decode(parts: Sequence[Buffer]) -> Message:
    """The message in `parts`; bodies are views of them.

    Raises:
        FormatError: the parts are no message of this protocol.
    """
    data = parts[0]
    try:
        if data[:1] == CONTROL and len(parts) == 1:
            return _MESSAGES.decode(memoryview(data)[1:])
        if data[:1] != FRAMES or len(data) < _PREFIX.size:
            raise FormatError(f"{len(data)} bytes in {len(parts)} parts are no message of this protocol")
        _, mode, count, length = _PREFIX.unpack_from(data, 0)
        message = _MESSAGES.decode(memoryview(data)[_PREFIX.size : _PREFIX.size + length])
    except _WRONG as error:
        raise FormatError(f"a message of a gateway is malformed: {error}") from error
    if not isinstance(message, WITH_FRAMES) or message.frames or not count or mode not in (JOINED, APART):
        raise FormatError(f"a {type(message).__name__} comes with {count} frames (mode {mode})")
    frames = _frames(
        parts, _PREFIX.size + padded(length), count, limits.JOINED_BODY_BYTES_MAX if mode == APART else common_limits.BODY_BYTES_MAX
    )
    msgspec.structs.force_setattr(message, "frames", tuple(frames))
    return message


def _frames(parts: Sequence[Buffer], at: int, count: int, joined_max: int) -> list[Frame]:
    data = parts[0]
    view = memoryview(data)
    frames = []
    apart = 0
    for _ in range(count):
        frame = decode_header(data, at)
        length = progress_length_at(data, at)
        at += HEADER_SIZE
        if length:
            frame.progress = bytes(view[at : at + length])
            at += padded(length)
        if frame.body_length > joined_max:
            apart += 1
            frame.body = memoryview(parts[apart]) if apart < len(parts) else b""
        else:
            frame.body = view[at : at + frame.body_length]
            at += padded(frame.body_length)
        if len(frame.progress) != length or len(frame.body) != frame.body_length:
            raise FormatError(f"the body of position {frame.position} has {len(frame.body)} bytes, not {frame.body_length}")
        frames.append(frame)
    if at != len(data) or apart != len(parts) - 1:
        raise FormatError(f"a message of {len(data)} bytes and {len(parts)} parts has {at} bytes and {1 + apart} parts announced")
    return frames
