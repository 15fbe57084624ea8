"""A server port that the test drains."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack

from tutti.zmtp.curve import KeyPair
from tutti.zmtp.framing import GREETING, ready
from tutti.zmtp.listener import open_port
from tutti.zmtp.server import Server
from tutti.zmtp.server_connection import PortLimits

TERMS = PortLimits(
    name="port",
    connections_max=3,
    assembly_bytes_max=300_000,
    parts_max=4,
    skips_oversized=True,
    queued_max=8,
    queued_bytes_max=1 << 30,
    pause_above_bytes=1 << 30,
    descriptor_shares=1,
    heartbeat_us=1_000_000,
    heartbeats_max=3,
)
HELLO = GREETING + ready(b"DEALER", b"")
WAIT_S, DEADLINE_S = 10.0, 60.0
SHOOK = len(GREETING) + len(ready(b"ROUTER", b""))


class Port:
    """A port that a test drains, with a clock that it sets."""

    def __init__(
        self,
        terms: PortLimits = TERMS,
        is_known: Callable[[bytes], bool] | None = None,
        keys: KeyPair | None = None,
        accepts_key: Callable[[str, bytes], bool] | None = None,
        may_read: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self.now_us = 1
        self.told: list[str] = []
        self.epoll = select.epoll()
        self.server = Server(
            terms,
            self.epoll,
            lambda: self.now_us,
            is_known=is_known,
            may_read=may_read,
            warn=self.told.append,
            keys=keys,
            accepts_key=accepts_key,
        )
        listener = open_port("127.0.0.1", 0, 10)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.number = listener.getsockname()[1]
        self.server.acceptor.listen(listener)
        self._open = ExitStack()

    def call(self, said: bytes = HELLO) -> socket.socket:
        connection = self._open.enter_context(socket.create_connection(("127.0.0.1", self.number), WAIT_S))
        connection.sendall(said)
        return connection

    def hears(self, connection: socket.socket, said: bytes) -> None:
        """Say something and wait until all of it is in the kernel of this end."""
        connection.sendall(said)
        deadline = time.monotonic() + DEADLINE_S
        while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def look(self, timeout_s: float = WAIT_S) -> None:
        for fd, mask in self.epoll.poll(timeout_s):
            self.server.handle_event(fd, mask)

    def drain(self, messages_max: int = 100, bytes_max: int = 1 << 20) -> list[tuple[bytes, list[bytes], int]]:
        self.look(0)
        came = self.server.receive(messages_max, bytes_max)
        return [(routing, [bytes(part) for part in parts], size) for routing, parts, size in came]

    def has(self, count: int) -> None:
        """Wait until there are so many connections."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.server) != count:
            assert time.monotonic() < deadline, f"{len(self.server)} connections, not {count}"
            self.look()
            self.drain()

    def first(self, count: int = 1) -> list[tuple[bytes, list[bytes], int]]:
        """Wait for so many messages."""
        got: list[tuple[bytes, list[bytes], int]] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(got) < count:
            assert time.monotonic() < deadline, f"{len(got)} messages, not {count}"
            self.look(1.0)
            got += self.drain()
        return got

    def close(self) -> None:
        self._open.close()
        self.server.close(self.now_us)
        self.epoll.close()


def read_all(connection: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size and (more := connection.recv(size - len(got))):
        got += more
    return bytes(got)
