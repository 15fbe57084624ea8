"""The form of what goes over a connection: ZMTP 3.1 without encryption (RFC 37, mechanism NULL, RFC 23), without I/O.

Both sides send a greeting of 64 bytes and a READY command that says what they are; then each message is a run of frames:

```
0 flags u8: 1 another frame of this message follows, 2 the length has 8 bytes, 4 a command and no message
1 length u8, or u64 big-endian        then the frame itself
```

A gateway of a release that knows ZeroMQ alone says and takes the same.
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

_LONG_HEAD = struct.Struct(">BQ")
_VALUE_LENGTH = struct.Struct(">I")
_MECHANISM = b"NULL".ljust(20, b"\0")
_VERSION_AT, _MECHANISM_AT, _GREETING_BYTES = 10, 12, 64
GREETING = (b"\xff" + LENGTH.pack(1) + b"\x7f" + b"\x03\x01" + _MECHANISM).ljust(_GREETING_BYTES, b"\0")
_READY = b"\x05READY"
HANDSHAKE_BYTES_MAX = 1024
_JOINED_PART_MAX = 4 * limits.KIB  # larger parts are not copied to be sent


class Formed(NamedTuple):
    """One message as it goes over the wire, the same to everybody, and its bytes. Large buffers are not copied: they must not
    change.
    """

    buffers: list[Buffer]
    size: int


class Mismatch(FormatError):
    """The other end speaks something else, or one end has keys and the other has none."""


class OtherKey(Mismatch):
    """The other end has another key than the one that is meant."""


class Rejected(Mismatch):
    """The other end does not let this one in."""


def frame(data: Buffer, flags: int = 0) -> bytes:
    """One frame on the wire."""
    return b"".join((head(len(data), flags), data))


def head(length: int, flags: int) -> bytes:
    """What precedes a frame of that length on the wire."""
    return bytes((flags, length)) if length <= SHORT_MAX else _LONG_HEAD.pack(flags | LONG, length)


def form(parts: Sequence[Buffer]) -> Formed:
    """A message of those parts as buffers to send one after the other: small ones are joined, large ones are the parts."""
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    left = len(parts)
    for part in parts:
        left -= 1
        length = len(part)
        before = head(length, MORE if left else 0)
        size += len(before) + length
        if length <= _JOINED_PART_MAX:
            small += (before, part)
        else:
            small.append(before)
            buffers += (b"".join(small), part)
            small.clear()
    if small:
        buffers.append(b"".join(small))
    return Formed(buffers, size)


def ready(socket_type: bytes, identity: bytes) -> bytes:
    """The command behind the greeting."""
    return frame(_READY + property_of(b"Socket-Type", socket_type) + property_of(b"Identity", identity), COMMAND)


def property_of(name: bytes, value: bytes) -> bytes:
    """One of the things that an end says of itself."""
    return bytes((len(name),)) + name + _VALUE_LENGTH.pack(len(value)) + value


class Handshake:
    """What both ends say before the first message.

    Attributes:
        identity: what it wants to be known as; empty if it does not care. Known once the handshake is over.
    """

    box: None = None  # nothing is sealed
    peer = b""

    def __init__(self, socket_type: bytes, expected: bytes, identity: bytes = b"") -> None:
        """`socket_type` and `identity` are what this end says of itself; `expected` is the type that the other end is to have."""
        self._said = GREETING + ready(socket_type, identity)
        self._expected = expected
        self._came = b""
        self.identity = b""

    def take(self, data: bytes) -> bytes | None:
        """Take what came; what is behind the handshake once that is over, None before.

        Raises:
            Mismatch: it is no handshake of a gateway without keys.
        """
        came = self._came = self._came + data
        _check_greeting(came)
        at = _GREETING_BYTES
        if len(came) < at + 2:
            return None
        flags, length, start = came[at], came[at + 1], at + 2
        if flags == COMMAND | LONG:
            start = at + 1 + LENGTH.size
            if len(came) < start:
                return None
            length = LENGTH.unpack_from(came, at + 1)[0]
        elif flags != COMMAND:
            raise Mismatch(f"what follows the greeting is no command (flags {flags:#x})")
        if start + length > HANDSHAKE_BYTES_MAX:
            raise Mismatch(f"a command of {length} bytes follows the greeting")
        if len(came) < start + length:
            return None
        self._meet(came[start : start + length])
        return came[start + length :]

    def said(self) -> bytes:
        """What is to be said now: all of it at the beginning."""
        said, self._said = self._said, b""
        return said

    def _meet(self, command: bytes) -> None:
        if not command.startswith(_READY):
            raise Mismatch(f"the other end begins with {command[:20]!r}")
        self.identity = properties(command[len(_READY) :], self._expected).get(b"identity", b"")


def _check_greeting(came: bytes) -> None:
    """Whether what came so far is a greeting, or the beginning of one."""
    if came[:1] != GREETING[:1] or (len(came) > 9 and came[9] != GREETING[9]):
        raise Mismatch("what comes first is no greeting")
    if len(came) > _VERSION_AT and came[_VERSION_AT] < GREETING[_VERSION_AT]:
        raise Mismatch(f"the other end speaks version {came[_VERSION_AT]}")
    told = came[_MECHANISM_AT : _MECHANISM_AT + len(_MECHANISM)]
    if told != _MECHANISM[: len(told)]:
        raise Mismatch(f"the other end wants another mechanism: {told!r}")


def properties(command: bytes, expected: bytes) -> dict[bytes, bytes]:
    """What the other end says of itself, which has to be a socket of the `expected` type.

    Raises:
        Mismatch: it is of another type, or what it says is cut short.
    """
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(command):
        name_end = at + 1 + command[at]
        value_at = name_end + _VALUE_LENGTH.size
        if value_at > len(command):
            raise Mismatch("a property of the other end's is cut short")
        end = value_at + _VALUE_LENGTH.unpack_from(command, name_end)[0]
        if end > len(command):
            raise Mismatch("a property of the other end's is cut short")
        found[command[at + 1 : name_end].lower()] = command[value_at:end]
        at = end
    if found.get(b"socket-type") != expected:
        raise Mismatch(f"the other end is a {found.get(b'socket-type')!r}, not a {expected!r}")
    return found


_PING, _PONG = b"\x04PING", b"\x04PONG"
_CONTEXT_AT, _CONTEXT_MAX = len(_PING) + 2, 16  # behind the time to live
PING = frame(_PING + bytes(2), COMMAND)


def pong(command: bytes) -> bytes:
    """What to say to a command that asks whether this end is there; empty where it asks nothing."""
    asked = command.startswith(_PING)
    return frame(_PONG + command[_CONTEXT_AT : _CONTEXT_AT + _CONTEXT_MAX], COMMAND) if asked else b""
