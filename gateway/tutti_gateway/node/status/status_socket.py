"""Where the reads process asks how this gateway is: a socket of their own, past all that waits at the client port.

A port that is not drained, because the disk is slow or a write failed, is when the answer is wanted most. A question is a token of
8 bytes; the answer is the token with the status behind it, packed where it is long: the socket takes no more than some 200 KiB at
once. The pair outlives the reads process: what one that died left unread carries a token that the next one never gave out. A
message of 16 bytes begins with a word: the frontier is to be confirmed, or a position of the log, or something in a lane, could not
be read. A longer one counts callers that were rejected.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tutti.data.status_socket import (
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


class StatusAsked(NamedTuple):
    """Somebody wants the status; whoever takes this calls `answer` with it."""

    answer: Callable[[bytes], None]


class IndexAsked(NamedTuple):
    """A reader wants the frontier confirmed; the thread that takes this calls `answer` with whether it is."""

    answer: Callable[[bool], None]


class Desk:
    """Takes questions in a thread of its own and hands them to the thread that knows."""

    def __init__(self) -> None:
        """Make the pair; `their_fd` is for the reads process."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread: threading.Thread | None = None

    @property
    def their_fd(self) -> int:
        """The end to ask at."""
        return self._theirs.fileno()

    def open(
        self,
        ask: Callable[[StatusAsked | IndexAsked], None],
        damaged: Callable[[int], None],
        lane_damaged: Callable[[bytes], None] = lambda incarnation: None,
        refused: Callable[[str, int], None] = lambda reason, times: None,
    ) -> None:
        """Hand on what is asked, also what was asked before, positions and lanes that could not be read, and rejected callers."""
        args = ask, damaged, lane_damaged, refused
        self._thread = threading.Thread(target=self._run, args=args, name="status-desk", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more questions."""
        self._ours.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._ours.close()
        self._theirs.close()

    def _run(
        self,
        ask: Callable[[StatusAsked | IndexAsked], None],
        damaged: Callable[[int], None],
        lane_damaged: Callable[[bytes], None],
        refused: Callable[[str, int], None],
    ) -> None:
        while len(token := self._ours.recv(WORD_BYTES_MAX)) >= TOKEN_BYTES:
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
                ask(IndexAsked(partial(self._answer_index, token[TOKEN_BYTES:])))
                continue
            ask(StatusAsked(lambda status, token=token: self._answer(token + _packed(status))))  # type: ignore[misc]  # bound at once

    def _answer_index(self, token: bytes, confirmed: bool) -> None:
        self._answer(token + (CONFIRMED if confirmed else UNCONFIRMED))

    def _answer(self, data: bytes) -> None:
        """Send it, unless nobody reads."""
        with contextlib.suppress(OSError):  # full, or closed meanwhile: who asked has given up
            self._ours.send(data, socket.MSG_DONTWAIT)


def _packed(status: bytes) -> bytes:
    return status if len(status) <= limits.STATUS_PLAIN_BYTES_MAX else PACKED + zlib.compress(status, zlib.Z_BEST_SPEED)
