"""Tests of the send queue: messages leave complete and in order, however the socket splits them and however little space it has,
and a send never blocks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tutti.zmtp.framing import encode_message
from tutti.zmtp.send_queue import SendQueue

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two ends of a connection with small buffers."""
    here, there = socket.socketpair()
    with here, there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        here.setblocking(False)
        there.settimeout(10)
        yield here, there


@pytest.mark.parametrize("parts", [1, 255, 256, 257, 300, 512, 600, 1025])
@pytest.mark.parametrize("later", [[], [b"behind"]])
def test_messages_of_any_number_of_buffers_leave_whole(ends: Ends, parts: int, later: list[bytes]) -> None:
    here, there = ends
    outgoing = SendQueue(here)
    first = encode_message([bytes([number % 251]) * (9000 + number) for number in range(parts)])
    messages = [first, *(encode_message([part]) for part in later)]
    for message in messages:
        outgoing.append(message)
    wanted = b"".join(bytes(buffer) for message in messages for buffer in message.buffers)
    assert outgoing.bytes == len(wanted)
    got = bytearray()
    for _ in range(10 * len(wanted)):
        outgoing.send()
        if not outgoing and len(got) == len(wanted):
            break
        got += there.recv(1 << 20)
    assert got == wanted
    assert (len(outgoing), outgoing.bytes) == (0, 0)


def test_small_messages_leave_together_and_a_large_part_is_not_copied() -> None:
    class Socket:
        """Takes all that is sent."""

        calls: ClassVar[list[int]] = []

        def sendmsg(self, buffers: list[bytes]) -> int:
            self.calls.append(len(buffers))
            return sum(map(len, buffers))

    outgoing: Any = SendQueue(Socket())  # type: ignore[arg-type]  # the part of a socket that the queue uses
    for number in range(3):
        outgoing.append(encode_message([b"%d" % number]))
    outgoing.send()
    assert (Socket.calls, len(outgoing)) == ([3], 0)
    large = bytes(1 << 20)
    assert encode_message([large]).buffers[1] is large


def test_a_slow_reader_is_not_waited_for_beyond_the_limit(ends: Ends) -> None:
    here, _there = ends
    outgoing = SendQueue(here)
    outgoing.append(encode_message([bytes(1 << 20)]))
    began = time.monotonic()
    outgoing.linger(0.05)
    assert time.monotonic() < began + 5
    assert outgoing


def test_a_broken_connection_is_left_at_once(ends: Ends) -> None:
    here, there = ends
    outgoing = SendQueue(here)
    outgoing.append(encode_message([bytes(1 << 20)]))
    there.close()
    began = time.monotonic()
    outgoing.linger(60.0)
    assert time.monotonic() < began + 30
    with pytest.raises(OSError, match="Broken pipe"):
        outgoing.send()
