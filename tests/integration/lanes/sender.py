"""A client at the level of the wire protocol: it sends unordered batches to one gateway and keeps the answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Self, TypeVar, overload

import msgspec
import zmq

from tests.unit.node.fakes import batch_frame
from tutti.data.client_protocol import (
    PROTOCOL,
    Denied,
    EpochOpened,
    FromGateway,
    Hello,
    OpenProducer,
    OpenTopic,
    TopicOpened,
    Welcome,
    decode_from_gateway,
    decode_receipts,
    encode_control,
    encode_submit,
)

Answer = TypeVar("Answer")
WAIT_S = 30.0


class Sender:
    """One session of one producer, with a topic. A batch is a record; `sent` and `acknowledged` are by sequence.

    Attributes:
        acknowledged: sequence -> offset in the lane.
        told: other answers, in the order in which they came.
    """

    def __init__(self, port: int, producer: str, instance: bytes = b"", epoch: int = 1) -> None:
        """Connect; `open` begins the epoch."""
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self.name = producer
        self.instance = instance or os.urandom(16)
        self.epoch = epoch
        self.number = self.topic = self._request = 0
        self.acknowledged: dict[int, int] = {}
        self.told: list[FromGateway] = []
        self.lane = ""

    def open(self, topic: str = "t") -> Self:
        """Say Hello, begin the epoch and open the topic; the gateway may be busy with a view for a while."""
        self._send(Hello(PROTOCOL, "test", os.urandom(16)))
        self.lane = self._answer(Welcome).lane
        self.number = self._ask(lambda request: OpenProducer(request, self.name, self.instance, self.epoch), EpochOpened).producer
        self.topic = self._ask(lambda request: OpenTopic(request, topic), TopicOpened).topic
        return self

    def _ask(self, make: Callable[[int], msgspec.Struct], kind: type[Answer]) -> Answer:
        deadline = time.monotonic() + WAIT_S
        while True:
            self._request += 1
            self._send(make(self._request))
            answer = self._answer(kind, or_denied=True)
            if not isinstance(answer, Denied):
                return answer
            assert answer.retry, answer
            assert time.monotonic() < deadline, answer

    def _send(self, message: msgspec.Struct) -> None:
        self._socket.send(encode_control(message))

    def submit(self, first: int, count: int = 1, *, unordered: bool = True) -> None:
        """Send batches of one record each, whose value names producer and sequence."""
        frames = [
            batch_frame(
                [f"{self.name}-{sequence}".encode()], producer=self.number, epoch=self.epoch, sequence=sequence, topic=self.topic
            )
            for sequence in range(first, first + count)
        ]
        self._socket.send_multipart(encode_submit(frames, unordered=unordered))

    def read(self, timeout_s: float) -> bool:
        """Receive one message of the gateway; return False if none came."""
        if not self._socket.poll(round(timeout_s * 1000)):
            return False
        data = self._socket.recv()
        if data[:1] == b"R":
            for _, first, offset, _, count in decode_receipts(data):
                assert count == 1
                self.acknowledged.setdefault(first, offset)
        else:
            self.told.append(decode_from_gateway(data))
        return True

    @overload
    def _answer(self, kind: type[Answer]) -> Answer: ...

    @overload
    def _answer(self, kind: type[Answer], *, or_denied: bool) -> Answer | Denied: ...

    def _answer(self, kind: type[Answer], *, or_denied: bool = False) -> Answer | Denied:
        """The next answer of a kind."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for answer in self.told:
                if isinstance(answer, kind) or (or_denied and isinstance(answer, Denied)):
                    self.told.remove(answer)
                    return answer
            self.read(0.1)
        raise AssertionError(f"no {kind} came, but {self.told}")

    def send_until(self, last: int, window: int = 16, timeout_s: float = WAIT_S) -> None:
        """Wait for the acknowledgement of everything up to a sequence: unanswered batches are resent in order,
        as any client does.
        """
        deadline = time.monotonic() + timeout_s
        while (low := self.missing(last)) is not None:
            assert time.monotonic() < deadline, f"{self.name}: {low} of {last} is not acknowledged; {self.told[-3:]}"
            self.submit(low, min(window, last - low + 1))
            if not self.read(1.0):
                continue
            while self.read(0.02):
                pass

    def missing(self, last: int) -> int | None:
        """The first sequence up to `last` that is not acknowledged."""
        return next((sequence for sequence in range(1, last + 1) if sequence not in self.acknowledged), None)

    def close(self) -> None:
        """Let the connection go."""
        self._socket.close()
