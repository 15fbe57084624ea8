"""Framing of ZMTP 3.1 (RFC 37) and its NULL handshake (RFC 23), without I/O.

Both peers send a greeting of 64 bytes and a READY command with their properties. After that, each message is a sequence of frames
with these fields:

```
0 flags u8: 1 another frame of this message follows, 2 the length has 8 bytes, 4 a command instead of a message
1 length u8, or u64 big-endian        then the content
```

The bytes are the same as those of a ZeroMQ socket, so a peer that uses libzmq sees no difference.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tutti import limits
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError

MORE, LONG, COMMAND = 1, 2, 4
LENGTH = struct.Struct(">Q")
SHORT_MAX = 255

_SHORT_HEADERS = tuple(bytes((0, length)) for length in range(SHORT_MAX + 1))
_LONG_HEAD = struct.Struct(">BQ")
_VALUE_LENGTH = struct.Struct(">I")
_MECHANISM = b"NULL".ljust(20, b"\0")
MECHANISM_AT, GREETING_BYTES = 12, 64
_VERSION_AT = 10
GREETING = (b"\xff" + LENGTH.pack(1) + b"\x7f" + b"\x03\x01" + _MECHANISM).ljust(GREETING_BYTES, b"\0")
_READY = b"\x05READY"
HANDSHAKE_BYTES_MAX = 1024
JOINED_PART_MAX = 4 * limits.KIB  # copying a larger part would take longer than sending it as a separate buffer


class EncodedMessage(NamedTuple):
    """One message as buffers for the wire, and their total size in bytes.

    Several connections may send the same message without a copy, so its buffers must not change.
    """

    buffers: list[Buffer]
    size: int


class HandshakeError(FormatError):
    """The peer uses a different protocol or mechanism, or violates the handshake."""


class UnknownServerKey(HandshakeError):
    """The server has none of the public keys that the client expects."""


class Rejected(HandshakeError):
    """The server does not accept the client's public key."""


def frame(data: Buffer, flags: int = 0) -> bytes:
    """Return one frame for the wire."""
    if not flags:
        length = len(data)
        return (_SHORT_HEADERS[length] if length <= SHORT_MAX else _LONG_HEAD.pack(LONG, length)) + data
    return b"".join((frame_header(len(data), flags), data))


def frame_header(length: int, flags: int) -> bytes:
    """Return the header of a frame with `length` bytes of content."""
    return bytes((flags, length)) if length <= SHORT_MAX else _LONG_HEAD.pack(flags | LONG, length)


def encode_message(parts: Sequence[Buffer]) -> EncodedMessage:
    """Encode a message with these parts: small parts are joined into one buffer, and each large part stays a separate buffer.

    The buffer before a large part ends with the part's frame header. `CurveSendQueue` relies on this order.
    """
    remaining = len(parts)
    if remaining == 1 and (length := len(parts[0])) <= JOINED_PART_MAX:
        data = b"".join((frame_header(length, 0), parts[0]))
        return EncodedMessage([data], len(data))
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for part in parts:
        remaining -= 1
        length = len(part)
        header = frame_header(length, MORE if remaining else 0)
        size += len(header) + length
        if length <= JOINED_PART_MAX:
            small += (header, part)
        else:
            small.append(header)
            buffers += (b"".join(small), part)
            small.clear()
    if small:
        buffers.append(b"".join(small))
    return EncodedMessage(buffers, size)


def ready(socket_type: bytes, identity: bytes) -> bytes:
    """Return the READY command of the NULL mechanism, the only command of its handshake (RFC 23)."""
    return frame(_READY + encode_property(b"Socket-Type", socket_type) + encode_property(b"Identity", identity), COMMAND)


def encode_property(name: bytes, value: bytes) -> bytes:
    """Return one metadata property of READY or INITIATE (RFC 23)."""
    return bytes((len(name),)) + name + _VALUE_LENGTH.pack(len(value)) + value


class NullHandshake:
    """The handshake of an unencrypted connection.

    Attributes:
        identity: routing id that the peer requests, empty for none; valid after the handshake.
    """

    box: None = None  # no encryption; a CURVE handshake has a `Box` here
    peer_key = b""

    def __init__(self, socket_type: bytes, expected: bytes, identity: bytes = b"") -> None:
        """Prepare the greeting and READY.

        Args:
            socket_type: type that this end states in READY, `ROUTER` or `DEALER`.
            expected: type that the peer must state.
            identity: routing id that this end requests.
        """
        self._outgoing = GREETING + ready(socket_type, identity)
        self._expected_type = expected
        self._received = b""
        self.identity = b""

    def receive_data(self, data: bytes) -> bytes | None:
        """Process received bytes. Return None until the handshake is complete, and then the bytes after it.

        Raises:
            HandshakeError: the bytes are not a NULL handshake.
        """
        received = self._received = self._received + data
        _check_greeting(received)
        found = split_command(received[GREETING_BYTES:])
        if found is None:
            return None
        command, rest = found
        self._receive_ready(command)
        return rest

    def data_to_send(self) -> bytes:
        """Return the bytes to send now. The first call returns all of them."""
        data, self._outgoing = self._outgoing, b""
        return data

    def _receive_ready(self, command: bytes) -> None:
        if not command.startswith(_READY):
            raise HandshakeError(f"the first command is {command[:20]!r}, not READY")
        self.identity = decode_properties(command[len(_READY) :], self._expected_type).get(b"identity", b"")


def check_signature(received: bytes) -> None:
    """Check the signature at the start of a greeting, as far as received: 0xff, 8 bytes that peers ignore, 0x7f (RFC 37).

    Raises:
        HandshakeError: the bytes are not the start of a ZMTP greeting.
    """
    if received[:1] != GREETING[:1] or (len(received) > 9 and received[9] != GREETING[9]):
        raise HandshakeError("the first bytes are not a ZMTP greeting")


def split_command(received: bytes) -> tuple[bytes, bytes] | None:
    """Return the first command of a handshake, and the bytes after it; None while the command is incomplete.

    Raises:
        HandshakeError: the bytes are not a command, or the command is too large.
    """
    if len(received) < 2:
        return None
    flags, length, start = received[0], received[1], 2
    if flags == COMMAND | LONG:  # libzmq sends a command above 255 bytes with a long header
        start = 1 + LENGTH.size
        if len(received) < start:
            return None
        length = LENGTH.unpack_from(received, 1)[0]
    elif flags != COMMAND:
        raise HandshakeError(f"the frame after the greeting is not a command (flags {flags:#x})")
    if start + length > HANDSHAKE_BYTES_MAX:
        raise HandshakeError(f"a command of the handshake has {length} bytes, above the limit of {HANDSHAKE_BYTES_MAX}")
    if len(received) < start + length:
        return None
    return received[start : start + length], received[start + length :]


def _check_greeting(received: bytes) -> None:
    """Check the received part of a greeting: signature, version and mechanism NULL."""
    check_signature(received)
    if len(received) > _VERSION_AT and received[_VERSION_AT] < GREETING[_VERSION_AT]:
        raise HandshakeError(f"the peer speaks ZMTP version {received[_VERSION_AT]}, and version 3 is required")
    mechanism = received[MECHANISM_AT : MECHANISM_AT + len(_MECHANISM)]
    if mechanism != _MECHANISM[: len(mechanism)]:
        raise HandshakeError(f"the peer uses another security mechanism: {mechanism!r}")


def decode_properties(command: bytes, expected: bytes) -> dict[bytes, bytes]:
    """Return the metadata properties of a peer by lower-case name.

    Raises:
        HandshakeError: the metadata is truncated, or the peer's socket type is not `expected`.
    """
    found: dict[bytes, bytes] = {}
    offset = 0
    while offset < len(command):
        name_end = offset + 1 + command[offset]
        value_at = name_end + _VALUE_LENGTH.size
        if value_at > len(command):
            raise HandshakeError("a property of the peer is truncated")
        end = value_at + _VALUE_LENGTH.unpack_from(command, name_end)[0]
        if end > len(command):
            raise HandshakeError("a property of the peer is truncated")
        found[command[offset + 1 : name_end].lower()] = command[value_at:end]
        offset = end
    if found.get(b"socket-type") != expected:
        raise HandshakeError(f"the peer is a {found.get(b'socket-type')!r} socket, not a {expected!r}")
    return found


_PING, _PONG = b"\x04PING", b"\x04PONG"
_CONTEXT_AT, _CONTEXT_MAX = len(_PING) + 2, 16  # the context of a PING begins after a time to live of two bytes (RFC 37)
PING = frame(_PING + bytes(2), COMMAND)


def pong(command: bytes) -> bytes:
    """Return the PONG for a PING, with the PING's context; empty for any other command (RFC 37)."""
    is_ping = command.startswith(_PING)
    return frame(_PONG + command[_CONTEXT_AT : _CONTEXT_AT + _CONTEXT_MAX], COMMAND) if is_ping else b""
