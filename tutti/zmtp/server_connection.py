"""An accepted connection of a `Server`, and the limits of all connections of a port."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

from tutti.zmtp.frame_reader import FrameReader
from tutti.zmtp.framing import NullHandshake
from tutti.zmtp.send_queue import SendQueue

if TYPE_CHECKING:  # at run time, only ports with keys import the cryptography
    from tutti.zmtp.curve import CurveServerHandshake
    from tutti.zmtp.curve_stream import CurveReceiver


class PortLimits(NamedTuple):
    """Limits and options of a port.

    Attributes:
        name: name of the port in messages for the operator.
        connections_max: limit of concurrent connections; at the limit, a new connection replaces an inactive or unknown one, or is
            closed.
        assembly_bytes_max: bytes of all incomplete messages together; above this limit, the connection with the most bytes is
            closed.
        parts_max: limit of parts of a message.
        skips_oversized: report a message with too many parts or bytes without any parts; otherwise close its connection.
        queued_max: limit of queued messages for one connection.
        queued_bytes_max: queued bytes of all connections together; above this limit, the connection with the most bytes is closed.
        pause_above_bytes: queued bytes of one connection above which it is not read.
        descriptor_shares: shares of the process's spare descriptors that this port leaves free.
        by_identity: accept the routing id that a peer requests, so that a new connection replaces an earlier one with the same id
            (and the same key, if it encrypts); only for trusted peers, because the owner keeps state by routing id.
        heartbeat_us: interval of heartbeats; 0 for none.
        heartbeats_max: number of successive heartbeats without data after which a connection is closed.
    """

    name: str
    connections_max: int
    assembly_bytes_max: int
    parts_max: int
    skips_oversized: bool
    queued_max: int
    queued_bytes_max: int
    pause_above_bytes: int
    descriptor_shares: int
    by_identity: bool = False
    heartbeat_us: int = 0
    heartbeats_max: int = 0


class Connection:
    """An accepted connection.

    Attributes:
        routing: routing id; empty during the handshake.
        active: whether the connection has sent a message, or its key is accepted.
        peer_key: the peer's public key, or None if the peer does not encrypt.
    """

    __slots__ = (
        *(
            "accepted_us",
            "active",
            "awaits_writable",
            "broken",
            "handshake",
            "paused",
            "peer_key",
            "queued_bytes",
            "reader",
            "ready",
        ),
        *("received_since_heartbeat", "receiver", "routing", "send_queue", "silent_heartbeats", "socket"),
    )

    def __init__(self, sock: socket.socket, accepted_us: int, handshake: NullHandshake | CurveServerHandshake) -> None:
        self.socket = sock
        self.accepted_us = accepted_us
        self.handshake = handshake
        self.receiver: CurveReceiver | None = None
        self.peer_key: bytes | None = None
        self.reader: FrameReader | None = None
        self.send_queue = SendQueue(sock)
        self.broken = False  # True after a failed send; received messages may still be unread
        self.awaits_writable = False  # True while epoll watches for space in the socket buffer
        self.queued_bytes = 0  # size of `send_queue`, as included in the server's total
        self.paused = False  # True while the server does not read from the peer, because of a limit
        self.routing = b""
        self.active = False
        self.received_since_heartbeat = True
        self.silent_heartbeats = 0  # number of successive silent heartbeats
        self.ready = False  # True if the connection is in the server's queue of connections to read

    @property
    def assembly_bytes(self) -> int:
        """Memory that the incomplete message of this connection occupies, bytes."""
        encrypted = 0 if self.receiver is None else self.receiver.assembly_bytes
        return encrypted if self.reader is None else encrypted + self.reader.assembly_bytes
