"""The client port: what clients say and are told, by plain sockets in the node's own thread, in bounded batches, without waiting.

Clients speak ZMTP, each as the DEALER of a ZeroMQ ROUTER. What a client sends stays in the kernel until it is drained, which its
window bounds, too; answers that it does not read wait in a bounded queue. The gateway watches its own size and calls `reopen`,
which closes every connection; clients connect again by themselves and send again what was not answered.
"""

from __future__ import annotations

import contextlib
import errno
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tutti import limits as common_limits
from tutti.data.frames.frame import Buffer
from tutti.errors import TuttiError
from tutti.zmtp.connection import Terms
from tutti.zmtp.listener import open_port
from tutti.zmtp.server import Callers, Sent
from tutti_gateway.core import limits
from tutti_gateway.node.common.ports import PortInUse, in_use_text

if TYPE_CHECKING:  # the crypto, for those alone who have keys
    from tutti.zmtp.curve import Pair

__all__ = ["PARTS_MAX", "ClientPort", "Message", "Sent"]

PARTS_MAX = 1 + common_limits.FRAMES_A_MESSAGE_MAX
_US_PER_MS, _NS_PER_US = 1000, 1000
_TERMS = Terms(
    name="client port",
    connections=limits.CLIENT_CONNECTIONS_MAX,
    assembly_bytes=limits.CLIENT_ASSEMBLY_BYTES_MAX,
    parts=PARTS_MAX,
    forgives=True,
    waiting=limits.SEND_HIGH_WATER_MARK,
    held_back_bytes=limits.CLIENT_HELD_BACK_BYTES,
    waiting_bytes=limits.CLIENT_ANSWERS_BYTES_MAX,
    spares=2,
    beat_us=limits.CONNECTION_BEAT_MS * _US_PER_MS,
    beats=limits.CONNECTION_SILENT_MS_MAX // limits.CONNECTION_BEAT_MS,
)


class Message(NamedTuple):
    """One message of a client. `parts` is empty if it had too many parts, or too large ones in sum."""

    routing: bytes
    parts: list[Buffer]
    size: int


def _clock_us() -> int:
    return time.monotonic_ns() // _NS_PER_US


class ClientPort:
    """The port that clients connect to. Owned by one thread.

    Attributes:
        fd: readable when there is something to `drain`, or to `flush`.
        room_fd: readable when there is something to `flush`.
    """

    def __init__(self, host: str, port: int, keys: Pair | None = None, knows: Callable[[bytes], bool] | None = None) -> None:
        """Listen; port 0 is a free one. With `keys` clients may encrypt; `knows` tells who was let in, where not everybody is.

        Raises:
            PortInUse: the address is taken.
            TuttiError: it cannot be had for another reason.
        """
        self._host, self._number = host, port
        self._told: dict[str, None] = {}
        with contextlib.ExitStack() as opened:
            try:
                self._epoll = opened.enter_context(select.epoll())
                self._callers = Callers(
                    _TERMS, self._epoll, _clock_us, knows=knows, tell=lambda reason: self._told.update({reason: None}), keys=keys
                )
            except OSError as error:
                raise TuttiError(f"nothing can watch the client port: {error.strerror}; raise the limit of open files") from error
            opened.callback(self._callers.close, 0)
            self.fd, self.room_fd = self._epoll.fileno(), self._callers.room_fd
            self._listen()
            opened.pop_all()

    @property
    def number(self) -> int:
        """Of the port."""
        return self._number

    def _listen(self) -> None:
        try:
            listener = open_port(self._host, self._number, limits.CLIENT_CONNECTIONS_MAX)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(in_use_text(self._host, self._number, "clients")) from error
            raise TuttiError(
                f"the client port {self._host}:{self._number} cannot be opened: {error.strerror}; set `listen` to an address of "
                "this host"
            ) from error
        self._number = listener.getsockname()[1]
        self._callers.door.listen(listener)

    def drain(self, messages_max: int, bytes_max: int) -> list[Message]:
        """Messages that are there, without waiting: up to `messages_max`, or `bytes_max`, and what came with the last of them."""
        callers = self._callers
        for fd, mask in self._epoll.poll(0):
            callers.happened(fd, mask)
        return [
            Message(routing, parts if size <= common_limits.MESSAGE_BYTES_MAX else [], size)
            for routing, parts, size in callers.arrivals(messages_max, bytes_max)
        ]

    def flush(self) -> None:
        """Have answers leave for which there was no room before; nothing is taken."""
        self._callers.flush()

    @property
    def refused(self) -> int:
        """Counts connections for which there was no place, or no descriptor."""
        return self._callers.door.refused

    @property
    def unread(self) -> bool:
        """Whether there is something to drain of which `fd` does not tell."""
        return self._callers.unread

    def send(self, routing: bytes, data: bytes) -> Sent:
        """Send one answer, or drop it; never waits."""
        return self._callers.say(routing, data)

    def peer(self, routing: bytes) -> bytes | None:
        """The public key that a client encrypts with, None of one that does not."""
        return self._callers.peer(routing)

    def keep(self, *, reads: bool) -> list[str]:
        """Called about once a second: tell clients that their connections stand, and close those that are silent while they are
        read (`reads`). What an operator must know is returned, each thing once.
        """
        self._callers.keep(reads=reads)
        told, self._told = list(self._told), {}
        return told

    def reopen(self) -> None:
        """Close every connection, and drop what came and what waits for them."""
        self._callers.clear()

    def close(self) -> None:
        """Stop listening; answers that were sent have a moment to leave. Harmless when it is closed already."""
        if not self._epoll.closed:
            self._callers.close(_clock_us() + limits.LINGER_MS_MAX * _US_PER_MS)
            self._epoll.close()
