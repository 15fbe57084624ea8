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
from tutti.data.client_protocol import Denied, EpochFenced, EpochOpened, Hello, OpenProducer, OpenTopic, TopicOpened, Welcome
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import encode_plain
from tutti.zmtp import framing

TOPIC = "bench"
VALUE_BYTES = 100
_WAIT_S = 30.0
_ATTEMPTS = 10  # to open an epoch, which another process with the same producers may open too
#: Values that occur nowhere else in a message: they mark the fields that the load generator sets.
_PRODUCER, _SEQUENCE, _EPOCH = 0x7A11_5EED_C0DE_0001, 0x3A11_5EED_C0DE_0002, 0x5EED_0003


class Session:
    """One connection of a producer.

    Attributes:
        producer: number of the producer.
        epoch: its open epoch.
        sequence: sequence of its next record.
        topic: number of the topic.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        """Connect, and open an epoch of the producer `name`, which takes the producer from an earlier session.

        Raises:
            SystemExit: the gateway refuses the session.
            OSError: the gateway cannot be reached, or does not answer.
        """
        self._socket = socket.create_connection((host, port), _WAIT_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._received = self._shake_hands()
            self._open(name)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _shake_hands(self) -> bytes:
        handshake = framing.NullHandshake(b"DEALER", b"ROUTER")
        self._socket.sendall(handshake.data_to_send())
        while (rest := handshake.receive_data(self._bytes())) is None:
            pass
        return rest

    def _open(self, name: str) -> None:
        self._ask(Hello(client_protocol.PROTOCOL, "tutti-bench", os.urandom(16)), Welcome)
        instance, epoch = os.urandom(16), 1
        for _ in range(_ATTEMPTS):
            answer = self._ask(OpenProducer(1, name, instance, epoch), EpochOpened, EpochFenced)
            if isinstance(answer, EpochOpened):
                self.producer, self.epoch, self.sequence = answer.producer, answer.epoch, answer.sequence + 1
                break
            epoch = answer.epoch + 1
        else:
            raise SystemExit(f"the producer {name} was taken by another process {_ATTEMPTS} times: run one load at a time")
        self.topic = self._ask(OpenTopic(2, TOPIC), TopicOpened).topic
        while self._received:  # the load generator must begin at the start of a frame
            self._answer()

    def _ask(self, request: msgspec.Struct, *kinds: type[msgspec.Struct]) -> Any:
        self._socket.sendall(framing.frame(client_protocol.encode_control(request)))
        while True:
            answer = self._answer()
            if isinstance(answer, kinds):
                return answer
            if isinstance(answer, Denied):
                raise SystemExit(f"the gateway refused {type(request).__name__}: {answer.reason} ({answer.code})")

    def _answer(self) -> client_protocol.FromGateway | None:
        """Return the next control message; None for a ZMTP command, which needs no answer during the setup."""
        while (found := _split(self._received)) is None:
            self._received += self._bytes()
        flags, data, self._received = found
        return None if flags & framing.COMMAND else client_protocol.decode_from_gateway(data)

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
    """Open `count` sessions at a gateway, each with a producer of its own; they close with the block.

    Each call takes over the producers of the call before, so that the log does not grow by producers.
    """
    with ExitStack() as opened:
        made = []
        for number in range(count):
            made.append(Session(host, port, f"load-{number}"))
            opened.callback(made[-1].close)
        yield made
