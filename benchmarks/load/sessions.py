"""Connections to the client port of a gateway that have said Hello and opened an epoch, ready for the load generator."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from benchmarks.load.generator import Message
from tutti.data import client_protocol
from tutti.data.client_protocol import Denied, EpochFenced, EpochOpened, Hello, OpenProducer, OpenTopic, TopicOpened
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import encode_plain
from tutti.zmtp import framing

TOPIC = "bench"
VALUE_BYTES = 100
_WAIT_S = 30.0
_EPOCH_REQUEST, _TOPIC_REQUEST = 1, 2
_ATTEMPTS = 10  # attempts to open an epoch, because another process may use the same producers
#: Values that occur nowhere else in a message, so that they mark the fields that the load generator sets.
_PRODUCER, _SEQUENCE, _EPOCH = 0x7A11_5EED_C0DE_0001, 0x3A11_5EED_C0DE_0002, 0x5EED_0003


class Session:
    """One connection of a producer. It is open after `advance` has returned True.

    Attributes:
        producer: number of the producer.
        epoch: its open epoch.
        sequence: sequence of its next record.
        topic: number of the topic.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        """Connect, and send all requests without waiting for an answer.

        Raises:
            OSError: the gateway cannot be reached.
        """
        self.producer = self.epoch = self.sequence = self.topic = 0
        self._name = name
        self._attempts = 0
        self._handshake: framing.NullHandshake | None = framing.NullHandshake(b"DEALER", b"ROUTER")
        self._received = b""
        self._socket = socket.create_connection((host, port), _WAIT_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(self._handshake.data_to_send())
            self._send(Hello(client_protocol.PROTOCOL, "tutti-bench", os.urandom(16)))
            self._send(OpenTopic(_TOPIC_REQUEST, TOPIC))
            self._request_epoch(1)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def advance(self) -> bool:
        """Wait for the answer to the epoch request. Return True if the epoch is open, and False if the next one is requested.

        An earlier session may own the current epoch of the producer. The next epoch takes the producer from that session.

        Raises:
            SystemExit: the gateway refuses a request, or closes the connection.
            OSError: the gateway does not answer.
        """
        answer = self._answer(EpochOpened, EpochFenced)
        if isinstance(answer, EpochFenced):
            self._request_epoch(answer.epoch + 1)
            return False
        self.producer, self.epoch, self.sequence = answer.producer, answer.epoch, answer.sequence + 1
        while not self.topic or self._received:  # the load generator must begin at the start of a frame
            self._read()
        return True

    def _request_epoch(self, epoch: int) -> None:
        self._attempts += 1
        if self._attempts > _ATTEMPTS:
            raise SystemExit(f"another process took the producer {self._name} {_ATTEMPTS} times: run one load at a time")
        self._send(OpenProducer(_EPOCH_REQUEST, self._name, os.urandom(16), epoch))

    def _send(self, request: msgspec.Struct) -> None:
        self._socket.sendall(framing.frame(client_protocol.encode_control(request)))

    def _answer(self, *kinds: type[msgspec.Struct]) -> Any:
        while not isinstance(answer := self._read(), kinds):
            pass
        return answer

    def _read(self) -> client_protocol.FromGateway | None:
        """Read the next frame: return its control message, or answer its command and return None."""
        if self._handshake is not None:
            while (rest := self._handshake.receive_data(self._bytes())) is None:
                pass
            self._handshake, self._received = None, rest
        while (found := _split(self._received)) is None:
            self._received += self._bytes()
        flags, data, self._received = found
        if flags & framing.COMMAND:
            self._socket.sendall(framing.pong(data))
            return None
        answer = client_protocol.decode_from_gateway(data)
        if isinstance(answer, Denied):
            raise SystemExit(f"the gateway refused a session of the load: {answer.reason} ({answer.code})")
        if isinstance(answer, TopicOpened):
            self.topic = answer.topic
        return answer

    def _bytes(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise SystemExit("the gateway closed a connection of the load during its setup")
        return data


def _split(received: bytes) -> tuple[int, bytes, bytes] | None:
    """Return flags and content of the first ZMTP frame, and the bytes after it; None while the frame is incomplete."""
    if len(received) < 2:
        return None
    flags, size, start = received[0], received[1], 2
    if flags & framing.LONG:
        start = 1 + framing.LENGTH.size
        if len(received) < start:
            return None
        (size,) = framing.LENGTH.unpack_from(received, 1)
    end = start + size
    return (flags, received[start:end], received[end:]) if len(received) >= end else None


def message_of(topic: int, size: int) -> Message:
    """Return the message of one record with a value of `size` bytes."""
    now_us = time.time_ns() // 1000
    body, raw_length = encode_plain(None, [bytes(size)], struct.pack("<q", now_us))
    frame = Frame(
        Kind.BATCH,
        body,
        producer=_PRODUCER,
        epoch=_EPOCH,
        first_sequence=_SEQUENCE,
        count=1,
        topic=topic,
        min_timestamp=now_us,
        max_timestamp=now_us,
        raw_length=raw_length,
    )
    data = b"".join(framing.encode_message(client_protocol.encode_submit([frame])).buffers)
    marks = struct.pack("<Q", _PRODUCER), struct.pack("<Q", _SEQUENCE), struct.pack("<I", _EPOCH)
    return Message(data, *map(data.index, marks))


@contextmanager
def sessions(port: int, count: int, host: str = "127.0.0.1") -> Iterator[list[Session]]:
    """Open `count` sessions at a gateway, each with a producer of its own. The sessions close at the end of the block.

    Each call takes over the producers of the previous call, so that the number of producers in the log does not grow.
    """
    with ExitStack() as opened:
        made = []
        for number in range(count):
            made.append(Session(host, port, f"load-{number}"))
            opened.callback(made[-1].close)
        # All requests are in flight at once. A gateway closes a connection that answers no heartbeats, and on a busy machine one
        # session after the other would take longer than that.
        waiting = made
        while waiting:
            waiting = [one for one in waiting if not one.advance()]
        yield made
