"""Send queue of one connection: sends in order with few system calls, without copies, and never blocks."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque

from tutti.data.frames.frame import Buffer
from tutti.zmtp.framing import EncodedMessage

_MS = 1000
_BUFFERS_MAX = 512  # buffers of one system call, half of the kernel's limit IOV_MAX


class SendQueue:
    """Messages that wait for space in the socket buffer. Callers of `append` must limit the number and size of queued messages.

    Attributes:
        bytes: queued bytes.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Create an empty queue."""
        self._socket = connection
        self._queue: deque[EncodedMessage] = deque()
        self._sent_of_first = 0  # number of bytes of the first message that are already sent
        self.bytes = 0

    def __len__(self) -> int:
        """Return the number of queued messages, including one that is partly sent."""
        return len(self._queue)

    def append(self, message: EncodedMessage) -> None:
        """Queue a message for the next `send`."""
        self._queue.append(message)
        self.bytes += message.size

    def send_first(self, data: bytes) -> None:
        """Send one message at once, and queue the bytes that the socket buffer does not take. The queue must be empty.

        Raises:
            OSError: the connection is broken.
        """
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._queue.append(EncodedMessage([data], len(data)))
            self._sent_of_first, self.bytes = sent, len(data) - sent

    def send(self) -> None:
        """Send queued messages until the socket buffer is full.

        Raises:
            OSError: the connection is broken.
        """
        queue = self._queue
        while queue:
            try:
                sent = self._socket.sendmsg(self._next_buffers())
            except BlockingIOError:
                return
            self.bytes -= sent
            sent += self._sent_of_first
            while queue and sent >= queue[0].size:  # drop the messages that are completely sent
                sent -= queue.popleft().size
            self._sent_of_first = sent

    def clear(self) -> None:
        """Drop all queued messages."""
        self._queue.clear()
        self._sent_of_first = self.bytes = 0

    def linger(self, timeout_s: float) -> None:
        """Block until all queued messages are sent, but at most for `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        with contextlib.suppress(OSError):  # a broken connection ends the wait
            while self and (remaining := deadline - time.monotonic()) > 0 and poll.poll(remaining * _MS):
                self.send()

    def _next_buffers(self) -> list[Buffer]:
        """Return the buffers to send in the next system call."""
        first = self._queue[0].buffers
        if not self._sent_of_first and len(self._queue) == 1 and len(first) <= _BUFFERS_MAX:
            return first
        buffers: list[Buffer] = []
        skip = self._sent_of_first
        for message in self._queue:
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
