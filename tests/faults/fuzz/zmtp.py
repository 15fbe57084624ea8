"""Enough of ZMTP 3.0 (RFC 23) to say by hand what no ZeroMQ library would send."""

from __future__ import annotations

import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
MORE, LONG, COMMAND = 1, 2, 4


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame on the wire."""
    if len(body) > 255:
        return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body
    return bytes([flags, len(body)]) + body


def ready(socket_type: bytes = b"DEALER") -> bytes:
    """The READY command of the NULL mechanism."""
    metadata = b"\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
    return frame(b"\x05READY" + metadata, COMMAND)


def connect(port: int, *, handshake: bool = True) -> socket.socket:
    """A connection, as a DEALER if `handshake`."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    if handshake:
        connection.sendall(GREETING + ready())
        received = b""
        while len(received) < len(GREETING) + 2:
            received += connection.recv(1000)
    return connection
