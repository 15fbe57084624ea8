"""The client port: receives requests and sends replies over plain sockets, in the socket thread and in bounded batches.

Clients use ZMTP, each as a DEALER that connects to a ZeroMQ ROUTER. Messages of a client stay in the kernel until the gateway
drains them; the client's window limits their number too. Replies that a client does not read wait in a bounded queue. If the
gateway exceeds its memory limit, it calls `reopen`, which closes every connection. Clients then reconnect, and send their
unanswered batches again.
"""

from __future__ import annotations

import contextlib
import errno
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tutti import limits as common_limits
from tutti.errors import TuttiError
from tutti.zmtp.listener import open_port
from tutti.zmtp.server import Message, SendResult, Server
from tutti.zmtp.server_connection import PortLimits
from tutti_gateway.core import limits
from tutti_gateway.node.common.port_check import PortInUse, in_use_text

if TYPE_CHECKING:  # the import loads the crypto library, which only a gateway with keys needs
    from tutti.zmtp.curve import KeyPair

__all__ = ["PARTS_MAX", "ClientPort", "Message", "SendResult"]

PARTS_MAX = 1 + common_limits.FRAMES_A_MESSAGE_MAX
_US_PER_MS, _NS_PER_US = 1000, 1000
_LIMITS = PortLimits(
    name="client port",
    connections_max=limits.CLIENT_CONNECTIONS_MAX,
    assembly_bytes_max=limits.CLIENT_ASSEMBLY_BYTES_MAX,
    parts_max=PARTS_MAX,
    # The server keeps the connection after an oversized message, so that the handler can answer with an error that has the limits.
    skips_oversized=True,
    queued_max=limits.SEND_HIGH_WATER_MARK,
    pause_above_bytes=limits.CLIENT_HELD_BACK_BYTES,
    queued_bytes_max=limits.CLIENT_ANSWERS_BYTES_MAX,
    # Clients leave two shares of descriptors free: one for connections of other gateways, one for the log and other files.
    descriptor_shares=2,
    heartbeat_us=limits.CONNECTION_BEAT_MS * _US_PER_MS,
    heartbeats_max=limits.CONNECTION_SILENT_MS_MAX // limits.CONNECTION_BEAT_MS,
)


def _clock_us() -> int:
    return time.monotonic_ns() // _NS_PER_US


class ClientPort:
    """The port to which clients connect. One thread owns it.

    Attributes:
        fd: readable when there are messages to `drain`, or replies to `flush`.
        writable_fd: readable when there are replies to `flush`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        keys: KeyPair | None = None,
        is_known: Callable[[bytes], bool] | None = None,
        may_read: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Listen on an address.

        Args:
            host: address to bind.
            port: number of the port; 0 selects a free port.
            keys: key pair of this gateway, with which clients may encrypt; None for a port without encryption.
            is_known: returns True for the routing id of an authenticated connection, or is None for a port without authentication.
            may_read: returns True for the routing id of a connection that may be read now; None if all may be read.

        Raises:
            PortInUse: another process uses the address.
            TuttiError: the port cannot be opened for another reason.
        """
        self._host, self._number = host, port
        # A dict keeps each text once, so that a flood of bad connections causes one warning a second.
        self._warnings: dict[str, None] = {}
        with contextlib.ExitStack() as opened:
            try:
                self._epoll = opened.enter_context(select.epoll())
                self._server = Server(
                    _LIMITS,
                    self._epoll,
                    _clock_us,
                    is_known=is_known,
                    may_read=may_read,
                    warn=lambda reason: self._warnings.update({reason: None}),
                    keys=keys,
                )
            except OSError as error:
                raise TuttiError(
                    f"the client port cannot be polled, because epoll failed: {error.strerror}; raise the limit of open files"
                ) from error
            opened.callback(self._server.close, 0)
            self.fd, self.writable_fd = self._epoll.fileno(), self._server.writable_fd
            self._listen()
            opened.pop_all()

    @property
    def number(self) -> int:
        """The number of the port."""
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
        self._server.acceptor.listen(listener)

    def drain(self, messages_max: int, bytes_max: int) -> list[Message]:
        """Return the messages that have arrived, without waiting.

        Stop at `messages_max` messages or `bytes_max` bytes, but include all messages that arrived together with the last one.
        """
        server = self._server
        server.handle_events(self._epoll.poll(0))
        return [
            # An oversized message is returned without parts, which the handler answers with an error that has the limits.
            message if message.size <= common_limits.MESSAGE_BYTES_MAX else message._replace(parts=[])
            for message in server.receive(messages_max, bytes_max)
        ]

    def flush(self) -> None:
        """Send the queued replies for which the kernel has free buffer space. Do not receive."""
        self._server.flush()

    @property
    def refused(self) -> int:
        """Number of connections that were refused because of the connection limit or a lack of file descriptors."""
        return self._server.acceptor.refused

    @property
    def unread(self) -> bool:
        """True if there are messages to drain although `fd` is not readable."""
        return self._server.unread

    def send(self, routing: bytes, data: bytes) -> SendResult:
        """Send one reply, or drop it if the client's queue is full. Never wait."""
        return self._server.send(routing, data)

    def peer(self, routing: bytes) -> bytes | None:
        """Return the public key with which a client encrypts, or None for an unencrypted connection."""
        return self._server.peer_key(routing)

    def maintain(self, *, reads: bool) -> list[str]:
        """Send heartbeats and close silent connections. Return new warnings for the operator. Called about once a second.

        Args:
            reads: whether the gateway drains the port. If it does not, a connection may seem silent, and stays open.
        """
        self._server.maintain(reads=reads)
        warnings, self._warnings = list(self._warnings), {}
        return warnings

    def reopen(self) -> None:
        """Close every connection, and drop the received messages and the queued replies."""
        self._server.clear()

    def close(self) -> None:
        """Stop listening, and allow a short time for sending queued replies. A second call has no effect."""
        if not self._epoll.closed:
            self._server.close(_clock_us() + limits.LINGER_MS_MAX * _US_PER_MS)
            self._epoll.close()
