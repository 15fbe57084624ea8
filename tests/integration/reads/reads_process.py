"""The environment of the reads process for its tests: a log that is being written, a fake gateway, and the process itself."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
import zmq
from pyarrow import flight

from tutti.data.client_protocol import PROTOCOL, Denied, Done, Hello, SaveOffset, Welcome, decode_request, encode_control
from tutti.data.frames.bodies import EpochBody, OffsetsBody, RosterBody, TickBody, TopicBody, ViewBody, Voter, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import raw_length_of
from tutti.data.frames.schema import BATCH_SCHEMA, compression_flags, encode_batch, timestamp_range
from tutti.data.log_state import LogState
from tutti.log.files.data_directory import open_directory
from tutti.log.files.options import LogOptions
from tutti_gateway.log.writer import LogWriter
from tutti_gateway.node.status.status_socket import ReadIndexRequest, StatusRequest, StatusSocketServer

ROOT = Path(__file__).resolve().parents[3]
VIEW = 1 << 16 | 1
TIME = 1_700_000_000_000_000  # of record 0, us; record n is n ms later
LOG = bytes(range(16))
VOTER = Voter(1, "jfk", b"i" * 16, "127.0.0.1:7400")
DEADLINE_S = 30


def until(condition: Callable[[], Any], what: str = "the condition never came true") -> Any:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return found


class LogMaker:
    """The writing side of a gateway: frames that are decided at once. Record n has value `value(n)`."""

    def __init__(self, path: Path, options: LogOptions | None = None) -> None:
        self.path = path
        self.directory = open_directory(str(path), gateway="jfk", group="ingest")
        self.writer, recovered = LogWriter.open(self.directory, options or LogOptions(segment_bytes=32 << 20, prepared_segments=0))
        self.state: LogState = recovered.state
        read_fd, self.notify_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.read_fd = read_fd
        if not self.state.position:
            self.put(
                [
                    Frame(Kind.ROSTER, encode_body(RosterBody("ingest", LOG, (VOTER,)))),
                    Frame(Kind.VIEW, encode_body(ViewBody((1,)))),
                ]
            )

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self.state.next_offset

    def put(self, frames: Sequence[Frame], *, tell: bool = True) -> None:
        """Write, sync and decide frames, and notify the readers."""
        offsets = []
        position, chain = self.state.position, self.state.chain
        for frame in frames:
            position += 1
            frame.stamp(VIEW, position, chain)
            chain = frame.header_crc
            offsets.append(self.state.apply(frame))
        self.writer.append(frames)
        self.writer.sync()
        self.writer.frontier(self.state.position, self.state.next_offset)
        self.writer.decided(frames, offsets)
        if tell:
            with contextlib.suppress(BlockingIOError):
                os.write(self.notify_fd, b"!")

    def topic(self, name: str) -> int:
        """The number of a topic, registered when it is new."""
        number = self.state.topic_number(name)
        if not number:
            number = self.state.next_topic
            self.put([Frame(Kind.TOPIC, encode_body(TopicBody(name)), topic=number)])
        return number

    def producer(self, name: str) -> int:
        """The number of a producer, its epoch begun when it is new."""
        number = self.state.producer_number(name)
        if not number:
            number = self.state.next_producer
            body = encode_body(EpochBody(name, b"p" * 16, 0, b""))
            self.put([Frame(Kind.EPOCH, body, producer=number, epoch=1)])
        return number

    def batch(
        self, topic: str, rows: int, *, producer: str = "ewr", compression: Literal["lz4", "zstd"] | None = None, after: int = 0
    ) -> Frame:
        """A frame of `rows` records; `after` records of the same producer come before it in the same put."""
        topic_number, producer_number = self.topic(topic), self.producer(producer)
        made = records(self.offset + after, rows)
        low, high = timestamp_range(made.column(2))
        body = memoryview(encode_batch(made, compression))
        return Frame(
            Kind.BATCH,
            body,
            flags=compression_flags(compression),
            producer=producer_number,
            epoch=1,
            first_sequence=self.state.producers[producer_number].sequence + 1 + after,
            count=rows,
            topic=topic_number,
            origin=1,
            min_timestamp=low,
            max_timestamp=high,
            raw_length=raw_length_of(body, made.num_rows),
        )

    def add(
        self,
        topic: str,
        rows: int,
        *,
        frames: int = 1,
        producer: str = "ewr",
        compression: Literal["lz4", "zstd"] | None = None,
        tell: bool = True,
    ) -> None:
        """Commit `frames` batches of `rows` records each."""
        made = [
            self.batch(topic, rows, producer=producer, compression=compression, after=rows * number) for number in range(frames)
        ]
        self.put(made, tell=tell)

    def bulk(self, topic: str, rows: int, frames: int) -> None:
        """Commit `frames` batches of `rows` records that all have the same content: large and quickly made."""
        first = self.batch(topic, rows)
        made = [first]
        for _ in range(frames - 1):
            frame = made[-1].unstamped()
            frame.first_sequence += rows
            made.append(frame)
        self.put(made)

    def tick(self) -> None:
        """Commit a TICK; its time is that of the next record."""
        body = TickBody(self.state.tick + 1, TIME + self.offset * 1000)
        self.put([Frame(Kind.TICK, encode_body(body))])

    def save(self, reader: str, offset: int) -> None:
        """Commit a named reader's offset."""
        self.put([Frame(Kind.OFFSETS, encode_body(OffsetsBody({reader: offset})))])

    def close(self) -> None:
        """Stop writing."""
        for fd in (self.notify_fd, self.read_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.writer.close()
        self.directory.close()


def value(offset: int) -> bytes:
    """The value of the record at an offset."""
    return b"%09d" % offset + b"x" * 91


def records(start: int, rows: int) -> pa.RecordBatch:
    """Records as a producer makes them: every third has no key, every fifth a header."""
    offsets = range(start, start + rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([None if n % 3 == 0 else b"k%d" % n for n in offsets], pa.binary()),
            pa.array([value(n) for n in offsets], pa.binary()),
            pa.array([TIME + n * 1000 for n in offsets], BATCH_SCHEMA.field("timestamp").type),
            pa.array(
                [[{"key": "n", "value": b"%d" % n}] if n % 5 == 0 else None for n in offsets], BATCH_SCHEMA.field("headers").type
            ),
        ],
        schema=BATCH_SCHEMA,
    )


class FakeGateway:
    """Answers Hello and SaveOffset at a client port, and the status at `status_fd`, as a gateway does; `state` None is silence."""

    def __init__(self) -> None:
        self.state: str | None = "primary"
        self.denies = ""
        self.gateways = {"jfk": "tutti://127.0.0.1:7400"}
        self.silent: list[str] = []
        self.saved: list[tuple[str, int]] = []
        self.asked = 0
        self.confirms: bool | None = True  # its frontier; None: no answer
        self.indexes = 0  # questions about that
        self.holds = False  # answers to them back
        self.held: list[Callable[[bool], None]] = []
        self.unreadable: list[int] = []
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._ended = threading.Event()
        self._desk = StatusSocketServer()
        self.status_fd = self._desk.their_fd
        self._desk.open(self._told, self.unreadable.append)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _told(self, asked: StatusRequest | ReadIndexRequest) -> None:
        if isinstance(asked, ReadIndexRequest):
            self.indexes += 1
            if self.holds:
                self.held.append(asked.answer)
            elif self.confirms is not None:
                asked.answer(self.confirms)
        elif self.state:
            self.asked += 1
            told = {"gateway": "jfk", "state": self.state, "frontier": 0, "gateways": self.gateways, "silent": self.silent}
            asked.answer(json.dumps(told).encode())

    @property
    def url(self) -> str:
        """Where it is."""
        return f"tutti://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()
        self._desk.close()
        self._socket.close(0)
        self._context.term()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(20):
                peer, data = self._socket.recv_multipart()
                answer = self._answer(decode_request(data)) if self.state else None
                if answer is not None:
                    self._socket.send_multipart([peer, encode_control(answer)])

    def _answer(self, request: object) -> msgspec.Struct | None:
        state = self.state or ""
        if isinstance(request, Hello):
            return Welcome(PROTOCOL, "jfk", "ingest", LOG.hex(), state, "0", "", "", {"jfk": self.url}, 4 << 20, 8 << 20, 32 << 20)
        if isinstance(request, SaveOffset):
            if self.denies:
                return Denied(request.request, self.denies, "not now")
            self.saved.append((request.reader, request.offset))
            return Done(request.request)
        return None


class ReadsProcess:
    """`python -m tutti_gateway.reads`, started as a gateway starts it."""

    def __init__(
        self,
        data: Path,
        gateway: FakeGateway,
        notify_fd: int,
        *,
        reads: str = "127.0.0.1:0",
        admin: str = "127.0.0.1:0",
        program: Sequence[str] = ("-m", "tutti_gateway.reads"),
    ) -> None:
        command = [sys.executable, *program, "--data", str(data), "--reads", reads, "--admin", admin]
        fds = [notify_fd, gateway.status_fd]
        command += ["--client", gateway.url, "--notify-fd", str(notify_fd), "--status-fd", str(gateway.status_fd)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, pass_fds=fds, cwd=ROOT, text=True)
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._drain = threading.Thread(target=self._read, daemon=True)
        self._drain.start()
        self.port = self.admin = 0

    def ready(self) -> ReadsProcess:
        """Wait until it listens."""
        while True:
            line = self._queue.get(timeout=DEADLINE_S)
            assert line is not None, self.lines
            if line.startswith("{") and "admin" in (told := json.loads(line)):
                self.port, self.admin = told["reads"], told["admin"]
                return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            self._queue.put(line)
        self._queue.put(None)

    @property
    def url(self) -> str:
        """Where Flight is."""
        return f"grpc://127.0.0.1:{self.port}"

    def page(self, path: str) -> tuple[int, Any]:
        """Status and body of an admin page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=DEADLINE_S) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read()
        return status, json.loads(body) if body.startswith(b"{") else body.decode()

    def pss_mb(self, key: str = "Pss:") -> float:
        """Its proportional set size, MB."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) / 1024
        raise AssertionError(key)

    def threads(self) -> int:
        """How many threads it has."""
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(DEADLINE_S)
        self._drain.join()
        if self.process.stderr:
            self.process.stderr.close()
        return code


def ask(client: flight.FlightClient, action: str, **fields: Any) -> Any:
    """One action's answer."""
    (result,) = client.do_action(flight.Action(action, json.dumps(fields).encode()))
    return json.loads(result.body.to_pybytes())


def read(client: flight.FlightClient, **ticket: Any) -> pa.Table:
    """All records of a ticket."""
    return client.do_get(flight.Ticket(json.dumps(ticket).encode())).read_all()


def offsets_of(chunk: Any) -> list[int]:
    """The first column of one chunk of a stream."""
    return list(chunk.data.column(0).to_pylist())


def refusal(call: Callable[[], Any]) -> tuple[type[BaseException], dict[str, Any]]:
    """The Flight error that a call ends with: its type and JSON."""
    with pytest.raises(flight.FlightError) as refused:
        call()
    assert "Traceback" not in str(refused.value)
    return refused.type, dict(json.loads(refused.value.extra_info))
