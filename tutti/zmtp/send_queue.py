"""What is to be sent by one connection: in as few system calls as can be, nothing copied, in order, and never waiting."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque

from tutti.data.frames.frame import Buffer
from tutti.zmtp.framing import Formed

_MS = 1000
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

    def forget(self) -> None:
        """Let go of what waits."""
        self._waiting.clear()
        self._gone = self.bytes = 0

    def leave(self, seconds: float) -> None:
        """Send what waits, which has so long to leave."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        with contextlib.suppress(OSError):  # it broke: nothing more leaves
            while self and (left := until - time.monotonic()) > 0 and poll.poll(left * _MS):
                self.send()

    def _next(self) -> list[Buffer]:
        """Of what waits, as much as goes at once; never nothing while something does."""
        buffers: list[Buffer] = []
        skip = self._gone
        for message in self._waiting:
            for buffer in message.buffers:
                length = len(buffer)
                if skip >= length:
                    skip -= length
                    continue
                buffers.append(memoryview(buffer)[skip:] if skip else buffer)
                skip = 0
                if len(buffers) == _BUFFERS_MAX:
                    return buffers
        return buffers
