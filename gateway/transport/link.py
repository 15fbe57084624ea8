"""The way to one other gateway: a DEALER, its monitor, and what became of what was sent."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from gateway.core import limits
from gateway.core.messages import Message
from gateway.data.addresses import Address
from gateway.data.frame import Buffer

UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_KEPT_OUT = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_MISMATCH = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_BROKEN_OFF = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
NOT_SET_UP = _KEPT_OUT | _MISMATCH | _BROKEN_OFF
#: Flags as numbers: ZeroMQ's names cost a microsecond where they are joined.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_BROKEN_OFF_TOLD = 3  # in a row: one alone is a gateway that ends or starts


def notice_silence(socket: zmq.Socket[bytes]) -> None:
    """Break connections whose other end's host is silent for three beats, by the kernel's means, with data on its way or without.

    ZeroMQ's own heartbeats are not for it: one that is due on a broken connection whose queue is full ends the process (libzmq
    4.3.5, `Assertion failed: !_io_error`), and a gateway that stood still for some seconds has such connections.
    """
    seconds = limits.MESH_BEAT_MS // 1000
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, seconds)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, seconds)
    socket.set(zmq.TCP_KEEPALIVE_CNT, limits.MESH_BEATS_SILENT_MAX)
    socket.set(zmq.TCP_MAXRT, limits.MESH_BEATS_SILENT_MAX * limits.MESH_BEAT_MS)


class Link:
    """The way to one other gateway."""

    def __init__(self, number: int, name: str, address: str, key: str) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.key = key
        self.up = False
        self.awaits: Address | None = None  # its host's address is being looked up
        self.made_us = self.broke_us = 0  # when it was made, and broke last
        self.broken_off = 0
        self.queue: list[Message] = []
        self.sent = self.sent_bytes = self.lost = self.connects = 0
        self.received = self.received_bytes = 0
        self.refused = ""  # why nothing of this gateway gets there: what the other one says, or is in the way

    def open(self, context: zmq.Context[zmq.Socket[bytes]], identity: bytes) -> None:
        """Make its socket; `connect` comes next.

        Raises:
            zmq.ZMQError: there is no descriptor for it; nothing of it is left.
        """
        self.awaits = None
        socket = context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, limits.LINGER_MS_MAX)
        socket.set(zmq.SNDHWM, limits.MESH_HIGH_WATER_MARK)
        socket.set(zmq.RCVHWM, limits.MESH_STRANGERS_MAX)
        socket.set(zmq.MAXMSGSIZE, limits.REFUSAL_BYTES_MAX)  # nothing else comes here
        socket.set(zmq.IMMEDIATE, 1)
        socket.set(zmq.ROUTING_ID, identity)
        socket.set(zmq.RECONNECT_IVL, limits.MESH_RECONNECT_MS_MIN)
        socket.set(zmq.RECONNECT_IVL_MAX, limits.MESH_RECONNECT_MS_MAX)
        socket.set(zmq.CONNECT_TIMEOUT, limits.MESH_CONNECT_MS_MAX)
        socket.set(zmq.HANDSHAKE_IVL, limits.HANDSHAKE_MS_MAX)
        notice_silence(socket)
        socket.copy_threshold = limits.MESH_ZERO_COPY_BYTES_MIN
        try:
            self.monitor = socket.get_monitor_socket(UP | int(zmq.EVENT_DISCONNECTED) | NOT_SET_UP)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self.socket = socket
        self.fds = (int(self.monitor.get(zmq.FD)), int(socket.get(zmq.FD)))

    def connect(self, to: Address) -> None:
        """Begin to connect; the host is a number."""
        self.awaits = None
        self.socket.set(zmq.IPV6, int(":" in to.host))
        self.socket.connect(f"tcp://{to}")

    def put(self, parts: Sequence[Buffer]) -> None:
        """Send a message, or lose it; never waits. Large parts are not copied: they must not change."""
        send = self.socket.send
        left, size = len(parts), 0
        try:
            for part in parts:  # only the first may find no room: ZeroMQ takes a message whole
                left -= 1
                length = len(part)
                size += length
                flags = _MORE if left else _LAST
                if length < limits.MESH_ZERO_COPY_BYTES_MIN:
                    send(part, flags)
                else:
                    send(uncopied(part), flags, copy=False)
        except zmq.ZMQError:
            self.lost += 1
            return
        self.sent += 1
        self.sent_bytes += size

    def turned_away(self, event: int) -> str:
        """The connection was not set up; what an operator must know of it, empty if nothing yet."""
        self.broken_off += 1
        if event == _KEPT_OUT:
            return f"{self.address} does not let this gateway in: the public key of this one is not listed there"
        if event == _MISMATCH:
            return f"{self.address} is no gateway, or one side has keys and the other has none: give them to both"
        if self.broken_off < _BROKEN_OFF_TOLD:
            return ""
        return (
            f"{self.address} breaks off each connection while it is set up: it has another key than is listed for it here, one "
            "side has keys and the other has none, or it is no gateway"
        )

    def close(self) -> None:
        """Let go of it."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {
            "name": self.name,
            "up": self.up,
            "connects": self.connects,
            "sent": self.sent,
            "sent_bytes": self.sent_bytes,
            "lost": self.lost,
            "received": self.received,
            "received_bytes": self.received_bytes,
            "refused": self.refused,
        }


def uncopied(part: Buffer) -> Buffer | zmq.Frame:
    """What a large part is sent by without a copy: as the message that ZeroMQ brought it in, if it is one whole. What is Python's
    own takes two hand-offs to a thread that waits until ZeroMQ has done with it.
    """
    whole: object = part.obj if isinstance(part, memoryview) else None
    return whole if isinstance(whole, zmq.Frame) and len(whole) == len(part) else part
