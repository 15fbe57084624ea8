"""The client port: a ZeroMQ ROUTER, drained in bounded batches, that never blocks the socket thread.

ZeroMQ queues what a client sends, which its window bounds; one that keeps to no window could fill the memory, so the gateway
watches its own size and calls `reopen`, which closes every connection and drops what they queued. Clients connect again by
themselves and send again what was not answered.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import zmq

from gateway.core import limits
from gateway.data.frame import Buffer
from gateway.errors import TuttiError
from gateway.node.ports import PortInUse, in_use_text

#: Flags as numbers: ZeroMQ's names cost a microsecond where they are joined.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
PARTS_MAX = 1 + limits.FRAMES_A_MESSAGE_MAX


class Sent(enum.Enum):
    """What became of an answer: it left, it was dropped because the client's queue is full, or the client is gone."""

    LEFT = 1
    FULL = 2
    GONE = 3


class Message(NamedTuple):
    """One message of a client. `parts` is empty if it had too many parts, or too large ones in sum."""

    routing: bytes
    parts: list[Buffer]
    size: int


class ClientPort:
    """The ROUTER that clients connect to. Owned by one thread."""

    def __init__(self, host: str, port: int) -> None:
        """Bind.

        Raises:
            PortInUse: the address is taken.
            TuttiError: it cannot be bound for another reason.
        """
        self._host, self._number = host, port
        self._endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._context = zmq.Context(io_threads=1)
        self.listening = False
        self._socket = self._open()
        try:
            self.listen()
        except TuttiError:
            self._socket.close(0)
            self._context.term()
            raise

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket, for the poller; another one after `reopen`."""
        return self._socket

    def _open(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.set(zmq.LINGER, limits.LINGER_MS_MAX)
        # Without a bound of its own: a client's window is one, and `reopen` another. A connection that breaks while ZeroMQ
        # waits for room in a full queue ends the process at the next heartbeat (libzmq 4.3.5, `Assertion failed: !_io_error`).
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.SNDHWM, limits.SEND_HIGH_WATER_MARK)
        socket.set(zmq.MAXMSGSIZE, limits.MESSAGE_BYTES_MAX)
        socket.set(zmq.ROUTER_MANDATORY, 1)  # a send to somebody who is gone is told
        socket.set(zmq.HANDSHAKE_IVL, limits.HANDSHAKE_MS_MAX)
        socket.set(zmq.HEARTBEAT_IVL, limits.CONNECTION_BEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, limits.CONNECTION_SILENT_MS_MAX)
        socket.set(zmq.IPV6, int(":" in self._host))
        return socket

    def listen(self) -> None:
        """Listen, at first or again.

        Raises:
            PortInUse: the address is taken.
            TuttiError: it cannot be had for another reason.
        """
        try:
            self._socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise PortInUse(in_use_text(self._host, self._number, "clients")) from error
            raise TuttiError(
                f"the client port {self._endpoint} cannot be opened: {error.strerror}; set `listen` to an address of this host"
            ) from error
        self.listening = True

    def refuse(self) -> None:
        """Stop listening: nobody can connect any more, and who is connected stays so."""
        self._socket.unbind(self._socket.get_string(zmq.LAST_ENDPOINT))
        self.listening = False

    def drain(self, messages_max: int, bytes_max: int) -> list[Message]:
        """Messages that are there, without waiting: up to `messages_max`, and none more once they have `bytes_max` bytes."""
        messages: list[Message] = []
        size = 0
        receive = self._socket.recv
        while len(messages) < messages_max and size < bytes_max:
            try:
                routing = receive(_LAST)
            except zmq.Again:
                break
            message = self._rest(routing)
            messages.append(message)
            size += message.size
        return messages

    def _rest(self, routing: bytes) -> Message:
        """The parts behind the sender's; they arrived together, so this does not wait."""
        receive = self._socket.recv
        part = receive(copy=False)
        size = len(part)
        parts: list[Buffer] = [part.buffer]
        kept = True
        while part.more:
            part = receive(copy=False)
            size += len(part)
            if kept and (len(parts) == PARTS_MAX or size > limits.MESSAGE_BYTES_MAX):
                kept = False
                parts.clear()
            if kept:
                parts.append(part.buffer)
        return Message(routing, parts, size)

    def send(self, routing: bytes, data: bytes) -> Sent:
        """Send one answer, or drop it; never waits."""
        send = self._socket.send
        try:
            send(routing, _MORE)
            send(data, _LAST)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.GONE
        return Sent.LEFT

    def reopen(self) -> None:
        """Close every connection, drop what is queued for them and by them, and listen again, if it listened."""
        listened = self.listening
        self._socket.close(0)
        self.listening = False
        # The old socket lets go of its address in ZeroMQ's own time.
        self._context.term()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._open()
        if listened:  # else who had it refuse sets descriptors aside first
            self.listen()

    def close(self) -> None:
        """Stop listening; answers that were sent have a moment to leave. Harmless when it is closed already."""
        self._socket.close()
        self._context.term()
