"""Events and actions as bytes, so that a run can be recorded and replayed, and messages can travel.

Frames are written as they are on disk; one without a place has view, position and header CRC zero.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gateway.core.actions import Action
from gateway.core.events import Event
from gateway.core.messages import Message
from gateway.data.frame import Frame, decode_frame
from gateway.errors import FormatError

Kind = TypeVar("Kind")


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


def _decode(decoder: msgspec.msgpack.Decoder[Kind], data: bytes) -> Kind:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the record is malformed: {error}") from error
