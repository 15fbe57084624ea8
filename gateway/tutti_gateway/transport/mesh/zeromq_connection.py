"""A connection to one other gateway by ZeroMQ: a DEALER and its monitor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.data.frames.frame import Buffer
from tutti.zmtp.framing import Formed
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.backend import Kind, News
from tutti_gateway.transport.mesh.peer_link import Away, Link

_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_AWAY = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): Away.KEPT_OUT,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): Away.MISMATCH,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): Away.BROKEN_OFF,
}
_WATCHED = _UP | int(zmq.EVENT_DISCONNECTED) | sum(_AWAY)
#: Flags as numbers: ZeroMQ's names cost a microsecond where they are joined.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


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


class ZeroMQLine:
    """A connection to one other gateway. `fds` are what is polled of it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], link: Link, identity: bytes) -> None:
        """Make its socket; `connect` comes next.

        Raises:
            zmq.ZMQError: there is no descriptor for it; nothing of it is left.
        """
        self.link = link
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
        socket.set(zmq.HANDSHAKE_IVL, common_limits.HANDSHAKE_MS_MAX)
        notice_silence(socket)
        socket.copy_threshold = limits.MESH_ZERO_COPY_BYTES_MIN
        try:
            self.monitor = socket.get_monitor_socket(_WATCHED)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self.socket = socket
        self.fds = (int(self.monitor.get(zmq.FD)), int(socket.get(zmq.FD)))
        self.closed = False

    def connect(self, to: Address) -> None:
        """Begin to connect; the host is a number."""
        self.socket.set(zmq.IPV6, int(":" in to.host))
        try:
            self.socket.connect(f"tcp://{to}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error

    def put(self, messages: Sequence[Formed]) -> None:
        """Send messages, or lose them; never waits. Large parts are not copied: they must not change."""
        link = self.link
        for parts, size in messages:
            try:
                self._send(parts)
            except zmq.ZMQError:
                link.lost += 1
            else:
                link.sent += 1
                link.sent_bytes += size

    def _send(self, parts: Sequence[Buffer]) -> None:
        send = self.socket.send
        left = len(parts)
        for part in parts:  # only the first may find no room: ZeroMQ takes a message whole
            left -= 1
            flags = _MORE if left else _LAST
            if len(part) < limits.MESH_ZERO_COPY_BYTES_MIN:
                send(part, flags)
            else:
                send(uncopied(part), flags, copy=False)

    def say(self, data: bytes) -> None:
        """Send what is no message of the group."""
        with contextlib.suppress(zmq.ZMQError):  # no connection: it is said when there is one
            self.socket.send(data, zmq.NOBLOCK)

    def news(self) -> Iterator[News]:
        """What the connection's monitor tells, and the other end says."""
        while True:
            try:
                event = int(parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))["event"])
            except zmq.Again:
                break
            if event in _AWAY:
                yield News(self.link, Kind.AWAY, why=_AWAY[event])
            else:
                yield News(self.link, Kind.UP if event == _UP else Kind.DOWN)
        yield from self.heard()

    def heard(self) -> Iterator[News]:
        """What the other end says on a connection of this one's, which is why it takes nothing."""
        for _ in range(limits.REFUSALS_A_LOOK_MAX):
            if self.closed:
                return
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield News(self.link, Kind.SAID, data=b"" if self.socket.get(zmq.RCVMORE) else data)

    def close(self) -> None:
        """Let go of it."""
        self.closed = True
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()


def uncopied(part: Buffer) -> Buffer | zmq.Frame:
    """What a large part is sent by without a copy: as the message that ZeroMQ brought it in, if it is one whole. What is Python's
    own takes two hand-offs to a thread that waits until ZeroMQ has done with it.
    """
    whole: object = part.obj if isinstance(part, memoryview) else None
    return whole if isinstance(whole, zmq.Frame) and len(whole) == len(part) else part
