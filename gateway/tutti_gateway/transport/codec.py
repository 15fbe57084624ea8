"""Encoding of messages as the parts of a ZMTP message, or as the payload of datagrams.

The first byte of the first part is the kind:

- `I` introduction: msgpack of `Introduction`.
- `C` control: msgpack of one message without frames.
- `F` frames: mode u8, frame count u16, head length u32; then the message without its frames (msgpack), padded to 8 bytes; then the
  frames one after another in their disk format. In mode 1, each body over 8 KiB is a separate part: sending a separate part takes
  longer than copying 8 KiB, but less time than copying a large body.
- `R` refusal: msgpack of `Refusal`, on the connection of the refused introduction.

This module checks the structure of received messages and the lengths in them. The core checks the content of frames and the CRC of
each body, and requests corrupt frames again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from tutti import limits as common_limits
from tutti.data.frames.frame import CRC_COPY_BELOW, HEADER_SIZE, Buffer, Frame, decode_header_and_length, padded
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Fetched, Forward, LaneFetched, LaneTail, Message, Order, Post, Repair
from tutti_gateway.transport.interface import Introduction

CONTROL, FRAMES, INTRODUCTION, REFUSAL = b"C", b"F", b"I", b"R"
JOINED, SEPARATE = 0, 1  # modes of kind F: all bodies in the first part, or large bodies in separate parts
WITH_FRAMES = (Forward, Order, Repair, Fetched, Post, LaneFetched, LaneTail)

_PREFIX = struct.Struct("<cBHI")  # 8 bytes long, so that the frames after the padded message are aligned as on disk
_PADDING = tuple(bytes(n) for n in range(8))


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a gateway refuses another gateway's messages; the other fields describe the refusing gateway."""

    protocol: int
    group: str
    gateway: str
    reason: str


# Only kind F may carry frames, because msgspec would encode a frame as an object instead of its disk format.
def _reject(value: object) -> object:
    raise NotImplementedError(f"a message without frames cannot contain a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_reject)
_MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=lambda kind, value: _reject(value))
_INTRODUCTIONS: msgspec.msgpack.Decoder[Introduction] = msgspec.msgpack.Decoder(Introduction)
_REFUSALS: msgspec.msgpack.Decoder[Refusal] = msgspec.msgpack.Decoder(Refusal)
_DECODE_ERRORS = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError, NotImplementedError)


def encode_introduction(introduction: Introduction) -> bytes:
    """Encode an introduction."""
    return INTRODUCTION + _ENCODER.encode(introduction)


def decode_introduction(data: Buffer) -> Introduction:
    """Decode an introduction, including its kind byte.

    Raises:
        FormatError: it is malformed.
    """
    try:
        return _INTRODUCTIONS.decode(memoryview(data)[1:])
    except _DECODE_ERRORS as error:
        raise FormatError(f"an introduction is malformed: {error}") from error


def encode_refusal(refusal: Refusal) -> bytes:
    """Encode a refusal."""
    return REFUSAL + _ENCODER.encode(refusal)


def decode_refusal(data: Buffer) -> Refusal:
    """Decode a refusal, including its kind byte.

    Raises:
        FormatError: the refusal is malformed or too long, or has unprintable characters, which must not reach the log.
    """
    try:
        refusal = _REFUSALS.decode(memoryview(data)[1:])
    except _DECODE_ERRORS as error:
        raise FormatError(f"a refusal is malformed: {error}") from error
    # A refusal is text of a peer, and control characters in the log could forge lines or change a terminal.
    if len(data) > limits.REFUSAL_BYTES_MAX or not f"{refusal.group}{refusal.gateway}{refusal.reason}".isprintable():
        raise FormatError(f"a refusal of {len(data)} bytes is too long, or has unprintable characters")
    return refusal


def encode(message: Message, *, single_part: bool = False) -> list[Buffer]:
    """Encode a message as parts. Large bodies become separate parts without a copy, so the caller must not change them.

    With `single_part`, all bodies are copied into the first part, for transports that carry only one part.
    """
    if not isinstance(message, WITH_FRAMES) or not message.frames:
        return [CONTROL + _ENCODER.encode(message)]
    frames = message.frames
    head = _ENCODER.encode(msgspec.structs.replace(message, frames=()))
    joined_max = common_limits.BODY_BYTES_MAX if single_part else limits.JOINED_BODY_BYTES_MAX
    # Both ends compare body lengths with one limit, so a single mode tells the receiver which bodies are separate parts.
    mode = SEPARATE if max([frame.body_length for frame in frames]) > joined_max else JOINED
    first: list[Buffer] = [_PREFIX.pack(FRAMES, mode, len(frames), len(head)), head, _PADDING[-len(head) & 7]]
    bodies: list[Buffer] = []
    for frame in frames:
        first.append(frame.header or frame.packed_header())
        if not frame.progress and not frame.body_length & 7 and frame.body_length <= joined_max:
            first.append(frame.body)  # the most frequent case
        elif frame.body_length > joined_max:
            first += (frame.progress, _PADDING[-len(frame.progress) & 7])
            bodies.append(frame.body)
        else:
            first += frame.extents()[1:]  # without the header, which is packed above
    return [b"".join(first), *bodies]


def decode(parts: Sequence[Buffer]) -> Message:
    """Decode a message. Its bodies are views of the parts.

    Raises:
        FormatError: the parts are not a message of this protocol.
    """
    data = parts[0]
    try:
        if data[:1] == CONTROL and len(parts) == 1:
            return _MESSAGES.decode(memoryview(data)[1:])
        if data[:1] != FRAMES or len(data) < _PREFIX.size:
            raise FormatError(f"{len(data)} bytes in {len(parts)} parts are not a message of this protocol")
        _, mode, count, length = _PREFIX.unpack_from(data, 0)
        message = _MESSAGES.decode(memoryview(data)[_PREFIX.size : _PREFIX.size + length])
    except _DECODE_ERRORS as error:
        raise FormatError(f"a message of a gateway is malformed: {error}") from error
    # A message that already has frames is malformed: frames inside of the msgpack part would bypass the checks below.
    if not isinstance(message, WITH_FRAMES) or message.frames or not count or mode not in (JOINED, SEPARATE):
        raise FormatError(f"a {type(message).__name__} cannot have {count} frames (mode {mode})")
    frames = _frames(
        parts,
        _PREFIX.size + padded(length),
        count,
        limits.JOINED_BODY_BYTES_MAX if mode == SEPARATE else common_limits.BODY_BYTES_MAX,
    )
    # The struct is frozen, but may change here, because no other code has a reference to the new message yet.
    msgspec.structs.force_setattr(message, "frames", tuple(frames))
    return message


def _frames(parts: Sequence[Buffer], offset: int, count: int, joined_max: int) -> list[Frame]:
    data = parts[0]
    view = memoryview(data)
    frames = []
    separate = 0
    for _ in range(count):
        frame, length = decode_header_and_length(data, offset)
        offset += HEADER_SIZE
        if length:
            frame.progress = bytes(view[offset : offset + length])
            offset += padded(length)
        size = frame.body_length
        if size > joined_max:
            separate += 1
            frame.body = memoryview(parts[separate]) if separate < len(parts) else b""  # the check below detects a missing part
        else:
            # The CRC library takes bytes, so a copy of a small body is cheaper than a view.
            frame.body = bytes(data[offset : offset + size]) if size < CRC_COPY_BELOW else view[offset : offset + size]
            offset += (size + 7) & ~7
        if len(frame.progress) != length or len(frame.body) != size:
            raise FormatError(f"the body of position {frame.position} has {len(frame.body)} bytes, not {size}")
        frames.append(frame)
    # Left-over bytes or parts belong to no frame, so the two ends disagree about the format.
    if offset != len(data) or separate != len(parts) - 1:
        raise FormatError(
            f"a message has {len(data)} bytes and {len(parts)} parts, and its frames need {offset} bytes and {1 + separate} parts"
        )
    return frames
