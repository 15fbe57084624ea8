"""What is to be sent by one connection: in as few system calls as can be, nothing copied, in order, and never waiting."""

from __future__ import annotations

import socket
from collections import deque

from gateway.data.frame import Buffer
from gateway.zmtp.form import Formed

_BUFFERS_MAX = 512  # of one system call; the kernel takes twice as many


class Outgoing:
    """Messages that wait for room in the kernel. Who puts them bounds how many.

    Attributes:
        bytes: that wait.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Nothing waits."""
        self._socket = connection
        self._waiting: deque[Formed] = deque()
        self._gone = 0  # bytes of the first one that left
        self.bytes = 0

    def __len__(self) -> int:
        """How many messages wait, one that left in part among them."""
        return len(self._waiting)

    def put(self, message: Formed) -> None:
        """Have a message wait for the next `send`."""
        self._waiting.append(message)
        self.bytes += message.size

    def send(self) -> None:
        """Send what waits, as far as the kernel takes it.

        Raises:
            OSError: the connection is no more.
        """
        waiting = self._waiting
        while waiting:
            try:
                gone = self._socket.sendmsg(self._next())
            except BlockingIOError:
                return
            self.bytes -= gone
            gone += self._gone
            while waiting and gone >= waiting[0].size:
                gone -= waiting.popleft().size
            self._gone = gone

    def _next(self) -> list[Buffer]:
        """Of what waits, as much as goes at once."""
        buffers: list[Buffer] = []
        for message in self._waiting:
            buffers += message.buffers
            if len(buffers) >= _BUFFERS_MAX:
                del buffers[_BUFFERS_MAX:]
                break
        skip = self._gone
        while skip:
            first = buffers[0]
            if skip < len(first):
                buffers[0] = memoryview(first)[skip:]
                break
            skip -= len(first)
            del buffers[0]
        return buffers
