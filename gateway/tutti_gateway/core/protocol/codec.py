"""Encoding of events, actions and messages as bytes, for recorded runs and for the transport.

A frame is encoded as on disk. A frame without a position has a view, position and header CRC of zero.

A recorded run omits the bodies of batches (*lean* encoding). The stack uses only the length and CRC of a batch's body, so a replay
can use other bytes with the same length and CRC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from tutti import limits
from tutti.data.frames.body_stub import BYTES_MIN, stub_body
from tutti.data.frames.frame import (
    HEADER_SIZE,
    Buffer,
    Frame,
    Kind,
    crc32c,
    decode_frame,
    decode_header,
    payload_crc,
    progress_length_at,
)
from tutti.errors import FormatError
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.core.protocol.messages import Message

Value = TypeVar("Value")


def _to_plain(value: Any) -> Any:
    if isinstance(value, Frame):
        return value.to_bytes()
    raise NotImplementedError(f"{type(value).__name__} is not part of an event, action or message")


def _from_plain(kind: type, value: Any) -> Any:
    if kind is Frame:
        frame = decode_frame(value)
        if frame.size != len(value):
            raise FormatError(f"a frame has {frame.size} bytes according to its header, but its record has {len(value)} bytes")
        return frame
    raise NotImplementedError(f"{kind.__name__} is not part of an event, action or message")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event, dec_hook=_from_plain)
_ACTIONS: msgspec.msgpack.Decoder[list[Action]] = msgspec.msgpack.Decoder(list[Action], dec_hook=_from_plain)
_MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=_from_plain)


def _to_lean(value: Any) -> Any:
    if not isinstance(value, Frame):
        raise NotImplementedError(f"{type(value).__name__} is not part of an event, action or message")
    header = value.packed_header()
    left_out = value.kind == Kind.BATCH and len(value.body) == value.body_length >= BYTES_MIN
    return header + value.progress if left_out else b"".join((header, value.progress, value.body))


def _to_lean_whole(value: Any) -> Any:
    """Encode like `_to_lean`, but include a body that does not match its header, so that a replay detects the mismatch too."""
    if isinstance(value, Frame) and value.kind == Kind.BATCH and payload_crc(value.progress, value.body) != value.body_crc:
        return b"".join((value.packed_header(), value.progress, value.body))
    return _to_lean(value)


def _from_lean(kind: type, value: Any) -> Any:
    if kind is not Frame:
        raise NotImplementedError(f"{kind.__name__} is not part of an event, action or message")
    frame = decode_header(value)
    body_at = HEADER_SIZE + progress_length_at(value)
    length = frame.body_length
    if len(value) < body_at or length > limits.MESSAGE_BYTES_MAX:
        raise FormatError(f"{len(value)} bytes are not a frame with a body of {length} bytes")
    frame.progress = bytes(value[HEADER_SIZE:body_at])
    if frame.kind == Kind.BATCH and len(value) == body_at and length >= BYTES_MIN:
        frame.body = stub_body(length, frame.body_crc, crc32c(frame.progress))
    else:
        frame.body = memoryview(value)[body_at:]
    return frame


_LEAN_EVENT_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_lean_whole)
# A replay compares the bytes of actions, so the elements of equal sets must be written in the same order.
_LEAN_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_lean, order="deterministic")
_LEAN_EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event, dec_hook=_from_lean)
_LEAN_ACTIONS: msgspec.msgpack.Decoder[list[Action]] = msgspec.msgpack.Decoder(list[Action], dec_hook=_from_lean)


def encode(value: Event | Message | list[Action]) -> bytes:
    """Encode an event, a message, or the actions of a step as bytes."""
    return _ENCODER.encode(value)


def decode_event(data: bytes) -> Event:
    """Return the event in `data`.

    Raises:
        FormatError: the bytes are not an event.
    """
    return _decode(_EVENTS, data)


def decode_actions(data: bytes) -> list[Action]:
    """Return the actions of a step in `data`.

    Raises:
        FormatError: the bytes are not actions.
    """
    return _decode(_ACTIONS, data)


def decode_message(data: bytes) -> Message:
    """Return the message in `data`.

    Raises:
        FormatError: the bytes are not a message.
    """
    return _decode(_MESSAGES, data)


def encode_lean_event(event: Event) -> bytes:
    """Encode an event as bytes, without the bodies of batches."""
    return _LEAN_EVENT_ENCODER.encode(event)


def encode_lean_actions(actions: Sequence[Action]) -> bytes:
    """Encode the actions of a step as bytes, without the bodies of batches."""
    return _LEAN_ENCODER.encode(actions)


def decode_lean_event(data: Buffer) -> Event:
    """Return the event in `data`, with each omitted body replaced by bytes of the same length and CRC.

    Raises:
        FormatError: `encode_lean_event` cannot have returned these bytes.
    """
    return _decode(_LEAN_EVENTS, data)


def decode_lean_actions(data: Buffer) -> list[Action]:
    """Return the actions in `data`, with each omitted body replaced by bytes of the same length and CRC.

    Raises:
        FormatError: `encode_lean_actions` cannot have returned these bytes.
    """
    return _decode(_LEAN_ACTIONS, data)


def _decode(decoder: msgspec.msgpack.Decoder[Value], data: Buffer) -> Value:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the record is malformed: {error}") from error
