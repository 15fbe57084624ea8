"""A server at the other end of a socket pair, which answers the load generator as a test wants."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.load.generator import Message
from tutti.data.client_protocol import Committed, encode_receipts
from tutti.zmtp import framing

PRODUCER, EPOCH, SEQUENCE = 7, 3, 41
_FIELDS = struct.Struct("<QQI")
#: A message that consists of the fields that the load generator sets.
MESSAGE = Message(bytes(_FIELDS.size), producer_at=0, sequence_at=8, epoch_at=16)
_WAIT_S = 30.0


class Client:
    """The end that the load generator inherits."""

    producer, epoch, sequence = PRODUCER, EPOCH, SEQUENCE

    def __init__(self, end: socket.socket) -> None:
        """Take one end of a pair."""
        self.fileno = end.fileno


class Server:
    """The other end."""

    def __init__(self, end: socket.socket) -> None:
        """Take one end of a pair."""
        self.end = end

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes; fewer if the load generator has ended."""
        data = b""
        while len(data) < size and (more := self.end.recv(size - len(data))):
            data += more
        return data

    def fields(self) -> tuple[int, int, int]:
        """Read one MESSAGE, and return its producer, sequence and epoch."""
        producer, sequence, epoch = _FIELDS.unpack(self.read(_FIELDS.size))
        return producer, sequence, epoch

    def send(self, data: bytes, at_once: int = 1 << 20) -> None:
        """Send bytes, at most `at_once` in each piece."""
        for begin in range(0, len(data), at_once):
            self.end.sendall(data[begin : begin + at_once])


def receipts(*numbers: int, **fields: int) -> bytes:
    """Return a frame with the receipts of these records (0 is the first), with other values for some fields of the rows."""
    right = {"producer": PRODUCER, "epoch": EPOCH, "count": 1}
    rows = [Committed(**({**right, "first_sequence": SEQUENCE + number, "offset": number} | fields)) for number in numbers]
    return framing.frame(encode_receipts(rows))


@contextmanager
def serving(serve: Callable[[Server], object], buffer_bytes: int = 0) -> Iterator[Client]:
    """Run `serve` in a thread, and close the server's end when it returns.

    Args:
        serve: what the server does. An error of it is raised at the end of the block.
        buffer_bytes: size of the socket buffers; 0: the size that the system chooses.
    """
    ours, theirs = socket.socketpair()
    theirs.settimeout(_WAIT_S)
    if buffer_bytes:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    failed: list[Exception] = []

    def run() -> None:
        try:
            serve(Server(theirs))
        except (OSError, AssertionError, struct.error) as error:
            failed.append(error)
        finally:
            theirs.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with ours:
            yield Client(ours)
    finally:
        thread.join(_WAIT_S)
    assert not thread.is_alive()
    assert failed == []
