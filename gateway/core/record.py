"""Events and actions as bytes, so that a run can be recorded and replayed, and messages can travel.

Frames are written as they are on disk; one without a place has view, position and header CRC zero. In a recorded run the bodies of
batches are left out (*lean*): a stack never looks at them, their CRC is in the header, and zeros of the same length do the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from gateway.core import limits
from gateway.core.actions import Action
from gateway.core.events import Event
from gateway.core.messages import Message
from gateway.data.frame import HEADER_SIZE, Buffer, Frame, Kind, decode_frame, decode_header, progress_length_at
from gateway.errors import FormatError

Value = TypeVar("Value")


def _to_plain(value: Any) -> Any:
    if isinstance(value, Frame):
        return value.to_bytes()
    raise NotImplementedError(f"{type(value).__name__} is part of no event, action or message")


def _from_plain(kind: type, value: Any) -> Any:
    if kind is Frame:
        frame = decode_frame(value)
        if frame.size != len(value):
            raise FormatError(f"a frame of {frame.size} bytes comes with {len(value)}")
        return frame
    raise NotImplementedError(f"{kind.__name__} is part of no event, action or message")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event, dec_hook=_from_plain)
_ACTIONS: msgspec.msgpack.Decoder[list[Action]] = msgspec.msgpack.Decoder(list[Action], dec_hook=_from_plain)
_MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=_from_plain)


def _to_lean(value: Any) -> Any:
    if isinstance(value, Frame):
        header = value.packed_header()
        lean = value.kind == Kind.BATCH and len(value.body) == value.body_length
        return header + value.progress if lean else b"".join((header, value.progress, value.body))
    raise NotImplementedError(f"{type(value).__name__} is part of no event, action or message")


def _from_lean(kind: type, value: Any) -> Any:
    if kind is not Frame:
        raise NotImplementedError(f"{kind.__name__} is part of no event, action or message")
    frame = decode_header(value)
    body_at = HEADER_SIZE + progress_length_at(value)
    if len(value) < body_at or frame.body_length > limits.MESSAGE_BYTES_MAX:
        raise FormatError(f"{len(value)} bytes are no frame with a body of {frame.body_length} bytes")
    frame.progress = bytes(value[HEADER_SIZE:body_at])
    frame.body = (
        _zeros()[: frame.body_length] if frame.kind == Kind.BATCH and len(value) == body_at else memoryview(value)[body_at:]
    )
    return frame


@functools.cache
def _zeros() -> memoryview:
    """What stands for all bodies that were left out."""
    return memoryview(bytes(limits.MESSAGE_BYTES_MAX))


_LEAN_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_lean)
_LEAN_EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event, dec_hook=_from_lean)
_LEAN_ACTIONS: msgspec.msgpack.Decoder[list[Action]] = msgspec.msgpack.Decoder(list[Action], dec_hook=_from_lean)


def encode(value: Event | Message | list[Action]) -> bytes:
    """An event, a message, or the actions of a step."""
    return _ENCODER.encode(value)


def decode_event(data: bytes) -> Event:
    """The event in `data`.

    Raises:
        FormatError: the bytes are no event.
    """
    return _decode(_EVENTS, data)


def decode_actions(data: bytes) -> list[Action]:
    """The actions of a step in `data`.

    Raises:
        FormatError: the bytes are no actions.
    """
    return _decode(_ACTIONS, data)


def decode_message(data: bytes) -> Message:
    """The message in `data`.

    Raises:
        FormatError: the bytes are no message.
    """
    return _decode(_MESSAGES, data)


def encode_lean(value: Event | Sequence[Action]) -> bytes:
    """An event, or the actions of a step, without the bodies of batches."""
    return _LEAN_ENCODER.encode(value)


def decode_lean_event(data: Buffer) -> Event:
    """The event in `data`, with zeros for the bodies of batches.

    Raises:
        FormatError: the bytes are no event that `encode_lean` wrote.
    """
    return _decode(_LEAN_EVENTS, data)


def decode_lean_actions(data: Buffer) -> list[Action]:
    """The actions in `data`, with zeros for the bodies of batches.

    Raises:
        FormatError: the bytes are no actions that `encode_lean` wrote.
    """
    return _decode(_LEAN_ACTIONS, data)


def _decode(decoder: msgspec.msgpack.Decoder[Value], data: Buffer) -> Value:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the record is malformed: {error}") from error
