"""Status socket: answers the reads process over a socket pair, independent of the queue at the client port.

Operators need the status most while the client port is not drained, for example while the disk is slow or a write has failed.

A request for the status is a token of 8 bytes. The answer is the token followed by the status. Above a size limit the status is
compressed, because the socket accepts only about 200 KiB at once. A message of 16 bytes starts with a keyword, and requests a
confirmed frontier or reports an unreadable position of the log or of a lane. A longer message reports the number of rejected
callers. The socket pair outlives the reads process. The next process ignores answers that a dead process left unread, because their
tokens match none of its own requests.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tutti.data.status_messages import (
    CONFIRMED,
    DAMAGED,
    LANE_DAMAGED,
    PACKED,
    READ_INDEX,
    REFUSED,
    TOKEN_BYTES,
    UNCONFIRMED,
    WORD_BYTES_MAX,
)
from tutti_gateway.core import limits


class StatusRequest(NamedTuple):
    """A request for the status. The socket thread calls `answer` with the JSON."""

    answer: Callable[[bytes], None]


class ReadIndexRequest(NamedTuple):
    """A request to confirm the frontier. The socket thread calls `answer` with True if the frontier is confirmed."""

    answer: Callable[[bool], None]


class StatusSocketServer:
    """Receives requests of the reads process in a separate thread and passes them to the socket thread."""

    def __init__(self) -> None:
        """Create the socket pair. The reads process inherits `child_fd`."""
        # SEQPACKET keeps the boundaries of messages.
        self._socket, self._child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread: threading.Thread | None = None

    @property
    def child_fd(self) -> int:
        """The file descriptor for the reads process."""
        return self._child_socket.fileno()

    def open(
        self,
        ask: Callable[[StatusRequest | ReadIndexRequest], None],
        damaged: Callable[[int], None],
        lane_damaged: Callable[[bytes], None] = lambda incarnation: None,
        refused: Callable[[str, int], None] = lambda reason, times: None,
    ) -> None:
        """Start the thread, which also handles the requests that are already in the socket.

        Args:
            ask: receives requests for the status and for a confirmed frontier.
            damaged: receives positions of the log that could not be read.
            lane_damaged: receives the first bytes of the incarnation of a lane that could not be read.
            refused: receives a reason and the number of callers that were rejected for it.
        """
        args = ask, damaged, lane_damaged, refused
        self._thread = threading.Thread(target=self._run, args=args, name="status-socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the socket pair."""
        # Closing a socket does not wake a thread that blocks in `recv` on Linux, but a shutdown does.
        self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self._child_socket.close()

    def _run(
        self,
        ask: Callable[[StatusRequest | ReadIndexRequest], None],
        damaged: Callable[[int], None],
        lane_damaged: Callable[[bytes], None],
        refused: Callable[[str, int], None],
    ) -> None:
        # A message shorter than a token means that the socket was closed.
        while len(token := self._socket.recv(WORD_BYTES_MAX)) >= TOKEN_BYTES:
            if token.startswith(REFUSED) and len(token) > 2 * TOKEN_BYTES:
                refused(token[2 * TOKEN_BYTES :].decode(), int.from_bytes(token[TOKEN_BYTES : 2 * TOKEN_BYTES], "little"))
                continue
            if token.startswith(DAMAGED) and len(token) == 2 * TOKEN_BYTES:
                damaged(int.from_bytes(token[TOKEN_BYTES:], "little"))
                continue
            if token.startswith(LANE_DAMAGED) and len(token) == 2 * TOKEN_BYTES:
                lane_damaged(token[TOKEN_BYTES:])
                continue
            if token.startswith(READ_INDEX) and len(token) == 2 * TOKEN_BYTES:
                ask(ReadIndexRequest(partial(self._answer_index, token[TOKEN_BYTES:])))
                continue
            ask(StatusRequest(lambda status, token=token: self._answer(token + _packed(status))))  # type: ignore[misc]  # binds the token

    def _answer_index(self, token: bytes, confirmed: bool) -> None:
        self._answer(token + (CONFIRMED if confirmed else UNCONFIRMED))

    def _answer(self, data: bytes) -> None:
        """Send an answer, or drop it if the reads process does not read."""
        with contextlib.suppress(OSError):  # on a full or closed socket the answer is lost, and the request times out
            # The socket thread sends the answer, so a reads process that hangs must not block the send.
            self._socket.send(data, socket.MSG_DONTWAIT)


def _packed(status: bytes) -> bytes:
    # The socket thread compresses the status between two iterations, so speed counts more than size.
    return status if len(status) <= limits.STATUS_PLAIN_BYTES_MAX else PACKED + zlib.compress(status, zlib.Z_BEST_SPEED)
