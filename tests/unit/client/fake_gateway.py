"""A fake gateway for client tests: a small ROUTER loop that follows the rules of sequences and epochs, and misbehaves on demand.
`rule` sees every request and every frame first. It returns None for the normal handling, or the answers to send instead (an empty
list drops the message). Handled messages are in `heard`. The state survives `stop` and `start`, as a log does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import zmq

from tests.support.ports import free_port
from tutti import limits
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame, payload_crc
from tutti.data.frames.schema import validate_body
from tutti.producer import Producer

LOG_UUID = "7d1e5a34c0de4c64a43dd3c2c8b0f5aa"
Heard = Any  # a request or a Frame
Rule = Callable[[Heard], Iterable[Any] | None]


@dataclass
class Line:
    """A line of the received-table."""

    number: int
    instance: bytes
    epoch: int
    sequence: int = 0
    progress: bytes = b""
    closed: bool = False


@dataclass
class Committed:
    """One committed record."""

    topic: str
    value: bytes | None
    key: bytes | None
    producer: int
    sequence: int
    progress: bytes


@dataclass
class Log:
    """The state of a gateway on disk; several gateways of one group may share it."""

    uuid: str = LOG_UUID
    lines: dict[str, Line] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    records: list[Committed] = field(default_factory=list)
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)

    def values(self, topic: str | None = None) -> list[bytes | None]:
        return [record.value for record in self.records if topic in (None, record.topic)]


@dataclass
class Lane:
    """A gateway's own lane, on its disk: batches with their offsets, and of each producer the epoch and the last sequence."""

    name: str
    batches: list[tuple[Frame, list[bytes | None]]] = field(default_factory=list)
    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    offsets: dict[tuple[int, int, int], int] = field(default_factory=dict)
    frontier: int = 0

    def values(self) -> list[bytes | None]:
        return [value for _, found in self.batches for value in found]


class Rules:
    """A gateway's handling of messages, without a network."""

    def __init__(
        self,
        log: Log | None = None,
        *,
        rule: Rule | None = None,
        gateways: dict[str, str] | None = None,
        name: str = "fake",
        lane: str = "",
    ) -> None:
        self.log = log if log is not None else Log()
        self.name = name
        self.lane = Lane(lane) if lane else None
        self.state = "primary"
        self.forms: dict[bytes, bytes] = {}  # what each session submits
        self.rule = rule
        self.gateways = gateways or {}
        self.heard: list[Heard] = []
        self.window_bytes = limits.WINDOW_BYTES
        self.frame_bytes_max = limits.BODY_BYTES_MAX
        self.reads = ""
        self.known: set[bytes] = set()

    def frames(self) -> list[Frame]:
        """Return every received frame, in order."""
        return [heard for heard in self.heard if isinstance(heard, Frame)]

    def requests(self, kind: type) -> list[Any]:
        """Return every received request of that kind."""
        return [heard for heard in self.heard if isinstance(heard, kind)]

    def answers(self, routing: bytes, parts: list[bytes]) -> list[bytes]:
        form = parts[0][:1]
        if form in (client_protocol.SUBMIT, client_protocol.SUBMIT_UNORDERED):
            answers: list[Any] = []
            if routing not in self.known:
                answers.append(client_protocol.Denied(0, "hello", "say Hello first"))
            elif self.forms.setdefault(routing, form) != form:
                answers.append(client_protocol.Denied(0, "malformed", "a session sends one of both forms"))
            else:
                for frame in client_protocol.decode_submit(parts):
                    answers += self._ruled(frame, self._take if form == client_protocol.SUBMIT else self.take_unordered)
        else:
            request = client_protocol.decode_request(parts[0])
            if isinstance(request, client_protocol.Hello):
                self.known.add(routing)
            elif routing not in self.known:
                self.heard.append(request)
                return [client_protocol.encode_control(client_protocol.Denied(0, "hello", "say Hello first"))]
            answers = self._ruled(request, self._serve)
        out = []
        for answer in answers:
            if isinstance(answer, bytes):
                out.append(answer)
            elif isinstance(answer, client_protocol.Committed):
                out.append(client_protocol.encode_receipts([answer]))
            else:
                out.append(client_protocol.encode_control(answer))
        return out

    def _ruled(self, heard: Heard, default: Callable[[Any], list[Any]]) -> list[Any]:
        """Record a message in `heard` after its effect, so that a test that waits for it may change the rule."""
        ruled = self.rule(heard) if self.rule is not None else None
        answers = default(heard) if ruled is None else list(ruled)
        self.heard.append(heard)
        return answers

    def _serve(self, request: Any) -> list[Any]:
        log = self.log
        match request:
            case client_protocol.Hello():
                return [self.welcome()]
            case client_protocol.OpenProducer():
                line = log.lines.get(request.name)
                if line is None:
                    line = log.lines[request.name] = Line(len(log.lines) + 1, request.instance, request.epoch)
                elif (line.epoch, line.instance) != (request.epoch, request.instance):
                    if request.epoch <= line.epoch:
                        return [client_protocol.EpochFenced(request.request, line.epoch)]
                    line.epoch, line.instance, line.closed = request.epoch, request.instance, False
                return [client_protocol.EpochOpened(request.request, line.number, line.epoch, line.sequence, line.progress)]
            case client_protocol.OpenTopic():
                return [client_protocol.TopicOpened(request.request, log.topics.setdefault(request.name, len(log.topics) + 1))]
            case client_protocol.Status() | client_protocol.Producers():
                return [client_protocol.StatusAnswer(request.request, json.dumps({"state": "primary"}).encode())]
            case client_protocol.SaveOffset() | client_protocol.Forget() | client_protocol.Fence():
                return [client_protocol.Done(request.request)]
        return []

    def welcome(self) -> client_protocol.Welcome:
        return client_protocol.Welcome(
            protocol=client_protocol.PROTOCOL,
            gateway=self.name,
            group="test",
            log=self.log.uuid,
            state=self.state,
            version="0",
            reads=self.reads,
            admin="",
            gateways=self.gateways,
            window_bytes=self.window_bytes,
            frame_bytes_max=self.frame_bytes_max,
            raw_bytes_max=limits.RAW_BYTES_MAX,
            lane=self.lane.name if self.lane is not None else "",
        )

    def take_unordered(self, frame: Frame) -> list[Any]:
        """A batch for the lane."""
        (answer,) = self.judge(frame)
        if answer is None:
            answer = client_protocol.Committed(frame.producer, frame.epoch, frame.first_sequence, frame.count, self.decide(frame))
        return [answer]

    def judge(self, frame: Frame) -> list[Any]:
        """As `gateway/tutti_gateway/core/lanes` judges a batch for the lane; None if it is new and next."""
        assert self.lane is not None, "a client sends unordered batches only where there is a lane"
        lane, whose = self.lane, (frame.producer, frame.epoch, frame.first_sequence)
        line = next((line for line in self.log.lines.values() if line.number == frame.producer), None)
        if line is None or frame.epoch > line.epoch:
            code = "producer" if line is None else "epoch"
            return [client_protocol.RefusedAnswer(*whose, code, f"the {code} is not known here", retry=False)]
        epoch, last = lane.lines.get(frame.producer, (0, 0))
        if frame.epoch == epoch and frame.last_sequence <= last:
            return [client_protocol.Committed(frame.producer, frame.epoch, frame.first_sequence, frame.count, lane.offsets[whose])]
        if frame.epoch < max(epoch, line.epoch):
            return [client_protocol.FencedAnswer(frame.producer, line.epoch, frame.first_sequence)]
        last = last if frame.epoch == epoch else 0
        if frame.first_sequence != last + 1:
            return [client_protocol.Expected(frame.producer, frame.epoch, last + 1)]
        return [None]

    def decide(self, frame: Frame) -> int:
        """Put a batch into the lane for any sender, and return its offset."""
        assert self.lane is not None
        lane, offset = self.lane, self.lane.frontier
        batch = validate_body(frame, limits.RAW_BYTES_MAX)
        lane.batches.append((frame, batch.column(1).to_pylist()))
        lane.lines[frame.producer] = frame.epoch, frame.last_sequence
        lane.offsets[frame.producer, frame.epoch, frame.first_sequence] = offset
        lane.frontier += frame.count
        return offset

    def _take(self, frame: Frame) -> list[Any]:
        line = next((line for line in self.log.lines.values() if line.number == frame.producer), None)
        if line is None or frame.epoch < line.epoch:
            return [client_protocol.FencedAnswer(frame.producer, line.epoch if line else 1, frame.first_sequence)]
        if frame.last_sequence <= line.sequence:
            offset = self.log.offsets[frame.producer, frame.first_sequence]
        elif line.closed:
            return [client_protocol.AbortedAnswer(frame.producer, frame.epoch, frame.first_sequence, frame.count, "closed")]
        elif frame.first_sequence != line.sequence + 1:
            return [client_protocol.Expected(frame.producer, frame.epoch, line.sequence + 1)]
        else:
            offset = self.commit(frame, line)
        return [client_protocol.Committed(frame.producer, frame.epoch, frame.first_sequence, frame.count, offset)]

    def commit(self, frame: Frame, line: Line | None = None) -> int:
        """Commit a frame of any sender, and return the offset."""
        line = line or next(line for line in self.log.lines.values() if line.number == frame.producer)
        offset = len(self.log.records)
        names = {number: name for name, number in self.log.topics.items()}
        assert payload_crc(frame.progress, frame.body) == frame.body_crc
        batch = validate_body(frame, limits.RAW_BYTES_MAX)
        for number, (key, value) in enumerate(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)):
            sequence = frame.first_sequence + number
            self.log.offsets[frame.producer, sequence] = len(self.log.records)
            self.log.records.append(Committed(names[frame.topic], value, key, frame.producer, sequence, frame.progress))
        line.sequence = frame.last_sequence
        line.progress = frame.progress or line.progress
        return offset


class FakeGateway(Rules):
    """The rules behind a socket, in a thread."""

    def __init__(self, log: Log | None = None, **how: Any) -> None:
        """`how`: as of `Rules`."""
        super().__init__(log, **how)
        self._context = zmq.Context()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"tutti://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, again at the same port."""
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        deadline = time.monotonic() + 5
        while True:
            try:
                socket.bind(f"tcp://127.0.0.1:{self.port}")
                break
            except zmq.ZMQError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.known.clear()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(socket,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close every connection; unanswered requests stay unanswered."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def close(self) -> None:
        self.stop()
        self._context.term()

    def __enter__(self) -> FakeGateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- its thread

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while not self._stop.is_set():
                if not socket.poll(5):
                    continue
                routing, *parts = socket.recv_multipart()
                for answer in self.answers(routing, parts):
                    socket.send_multipart([routing, answer])
        finally:
            socket.close(0)


def deliver_within(producer: Producer, seconds: float) -> None:
    """What is sent from now on has so long, whatever the producer was made with: a test waits for one deadline and no other."""
    for feed in (producer._accumulator,) if producer._io is None else producer._io.accumulators:
        feed.options = feed.options._replace(delivery_timeout=seconds)


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not happen within {seconds} s")
        time.sleep(0.002)
    return value
