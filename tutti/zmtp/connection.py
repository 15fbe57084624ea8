"""One connection that came in at a port, and what all of them may take."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

from tutti.zmtp.frame_reader import Stream
from tutti.zmtp.framing import Handshake
from tutti.zmtp.send_queue import Outgoing

if TYPE_CHECKING:  # the crypto, for those alone who have keys
    from tutti.zmtp.curve import Listening
    from tutti.zmtp.curve_stream import Opening


class Terms(NamedTuple):
    """What callers may take.

    Attributes:
        name: of the port, for people.
        connections: at once; one more takes the place of who said nothing yet, or is not known; else it is closed.
        assembly_bytes: of messages that are not complete, of all together; above it who has most is cut off.
        parts: of a message.
        waiting_bytes: of messages that wait, of all together; above it who has most is cut off.
        held_back_bytes: that wait for one of them, above which nothing is read of it.
        spares: shares of the process's spare descriptors that these leave to others.
        forgives: a message of too many parts, or bytes, is handed out without any; otherwise its connection is closed, too.
        waiting: messages that wait for one of them.
        named: whether a caller may say what it is known as, and takes the place of the connection that said so before, with keys
            of one with the same key. Only where all are trusted: what is known of a connection, its session for one, is known by
            that name.
        beat_us: so often it is looked who said nothing; 0: never.
        beats: so many, one after another, in which nothing came end a connection.
    """

    name: str
    connections: int
    assembly_bytes: int
    parts: int
    forgives: bool
    waiting: int
    waiting_bytes: int
    held_back_bytes: int
    spares: int
    named: bool = False
    beat_us: int = 0
    beats: int = 0


class Caller:
    """A connection that came in. `routing` is empty until the handshake is over; `spoke`: there was a message, or its key was
    admitted; `peer`: the other end's public key, None for one that does not encrypt.
    """

    __slots__ = (
        *("broken", "full", "handshake", "heard", "held_back", "opening", "outgoing", "peer", "routing", "silent"),
        *("since_us", "socket", "spoke", "stream", "waiting_bytes", "waits"),
    )

    def __init__(self, connection: socket.socket, since_us: int, handshake: Handshake | Listening) -> None:
        self.socket = connection
        self.since_us = since_us
        self.handshake = handshake
        self.opening: Opening | None = None
        self.peer: bytes | None = None
        self.stream: Stream | None = None
        self.outgoing = Outgoing(connection)
        self.broken = False  # nothing can be said to it any more; what it said before may be unread
        self.full = False  # the kernel is to tell when there is room
        self.waiting_bytes = 0  # for it, as they were counted
        self.held_back = False  # nothing is read of it before it reads
        self.routing = b""
        self.spoke = False
        self.heard = True  # since the last beat
        self.silent = 0  # beats, one after another
        self.waits = False  # for its turn to be read

    @property
    def held(self) -> int:
        """Bytes of memory that its unfinished message has."""
        sealed = 0 if self.opening is None else self.opening.held
        return sealed if self.stream is None else sealed + self.stream.held
