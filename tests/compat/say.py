"""Messages of both protocols as bytes, one or two of each kind, always with the same content."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from tests.compat.facts import plain
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer, Frame, Kind
from tutti_gateway.core.protocol.messages import Message, Order
from tutti_gateway.transport import codec
from tutti_gateway.transport.interface import Introduction
from tutti_gateway.transport.multicast import datagrams

VIEW = 1 << 16 | 1
DATAGRAM, PAYLOAD = 600, bytes(range(250)) * 4  # bytes of a datagram, and what two of them hold
LARGE = 8200  # bytes of a body that travels as a part of its own


def said() -> dict[str, dict[str, Any]]:
    """What this release sends: name -> the parts of the message as hex, and what they say."""
    messages: dict[str, tuple[object, Sequence[Buffer]]] = {}
    for kind in get_args(Message):
        for variant in ("full", "least"):
            message = example(kind, variant)
            messages[f"group {kind.__name__} {variant}"] = message, codec.encode(message)
    for kind, write in ((Introduction, codec.encode_introduction), (codec.Refusal, codec.encode_refusal)):
        message = example(kind, "full")
        messages[f"group {kind.__name__}"] = message, [write(message)]
    for kind in client_kinds():
        message = example(kind, "full")
        messages[f"client {kind.__name__}"] = message, [client_protocol.encode_control(message)]
    for name, size in (("small", 10), ("large", LARGE)):
        frames = [_frame(place, size, placed=False) for place in (1, 2)]
        messages[f"client submit {name}"] = frames, client_protocol.encode_submit(frames)
        messages[f"client unordered {name}"] = frames, client_protocol.encode_submit(frames, unordered=True)
        order = Order(VIEW, tuple(_frame(place, size) for place in (1, 2)))
        messages[f"group Order {name}"] = order, codec.encode(order)
    for name, key in (("open", b""), ("sealed", bytes(range(32)))):
        parts = datagrams.Fragmenter("test", b"process1", key, DATAGRAM).fragment(datagrams.DATA, PAYLOAD)
        messages[f"datagram {name}"] = _datagrams(parts, key), parts
    receipts = client_protocol.encode_receipts(
        [client_protocol.Committed(1, 2, 3, 4, 5), client_protocol.Committed(6, 7, 8, 9, client_protocol.OFFSET_UNKNOWN)]
    )
    messages["client receipts"] = list(client_protocol.decode_receipts(receipts)), [receipts]
    return {name: {"parts": [bytes(part).hex() for part in parts], "says": plain(says)} for name, (says, parts) in messages.items()}


def heard(name: str, parts: Sequence[str]) -> Any:
    """What this release makes of such parts, as plain values.

    Raises:
        FormatError: it does not take them.
    """
    data: list[Buffer] = [bytes.fromhex(part) for part in parts]
    from_gateway = {kind.__name__ for kind in get_args(client_protocol.FromGateway)}
    match name.split():
        case ["group", "Introduction"]:
            return plain(codec.decode_introduction(data[0]))
        case ["group", "Refusal"]:
            return plain(codec.decode_refusal(data[0]))
        case ["group", *_]:
            return plain(codec.decode(data))
        case ["datagram", how]:
            return plain(_datagrams(data, bytes(range(32)) if how == "sealed" else b""))
        case ["client", "submit" | "unordered", _]:
            return plain(client_protocol.decode_submit(data))
        case ["client", "receipts"]:
            return plain(list(client_protocol.decode_receipts(data[0])))
        case ["client", kind] if kind in from_gateway:
            return plain(client_protocol.decode_from_gateway(data[0]))
    return plain(client_protocol.decode_request(data[0]))


def _datagrams(parts: Sequence[Buffer], key: bytes) -> list[object]:
    """Headers, then the payload that the datagrams hold together."""
    opened = [datagrams.verified_payload(bytes(part), key) for part in parts]
    headers = [datagrams.parse(part, datagrams.group_hash("test")) for part in parts]
    return [*headers, b"".join(payload for payload in opened if payload is not None)]


def client_kinds() -> Iterator[Any]:
    """What goes between clients and gateways as control messages."""
    yield from get_args(client_protocol.Request)
    yield from (kind for kind in get_args(client_protocol.FromGateway) if issubclass(kind, msgspec.Struct))


def example(kind: Any, variant: str) -> Any:
    """A message with something in every field ("full"), or in those alone that must be given ("least")."""
    hints = get_type_hints(kind)
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    names = [name for name in kind.__struct_fields__ if variant == "full" or name in required]
    return kind(**{name: _value(hints[name], place) for place, name in enumerate(names, 1)})


def _value(hint: Any, place: int) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(part for part in parts if part is not types.NoneType), place)
    if origin in (tuple, list):
        inner = [part for part in parts if part is not Ellipsis]
        values = [_value(part, place + more) for more, part in enumerate(inner if len(inner) > 1 else inner * 2)]
        return origin(values)
    if origin is dict:
        return {_value(parts[0], place): _value(parts[1], place)}
    if hint is Frame:
        return _frame(place, 10)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return example(hint, "full")
    return {int: place, bool: True, bytes: bytes([place]) * 16, str: f"text {place}", float: place / 2}[hint]


def _frame(place: int, size: int, *, placed: bool = True) -> Frame:
    body = bytes([place]) * size
    frame = Frame(Kind.BATCH, body, progress=b"progress", producer=1, epoch=1, first_sequence=place, count=1, topic=2)
    if placed:
        frame.origin = 3
        frame.stamp(VIEW, place, 7)
    return frame
