"""Tests at the level of the node what a SIGKILL cannot show: no receipt leaves before its frame is durable, and after a power loss
at any moment the log has every acknowledged record. Stack, log and driver are real; sockets are recorded, and the disk loses
unsynced data.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.node.volatile_disk import Platter
from tests.unit.node.fakes import LOG, Clients, HandClock, LaneQueue, Lookups, batch_frame, message, network
from tutti.data.client_protocol import (
    PROTOCOL,
    EpochOpened,
    Hello,
    OpenProducer,
    OpenTopic,
    TopicOpened,
    Welcome,
    decode_receipts,
    encode_control,
    encode_submit,
)
from tutti.data.frames.frame import Frame, Kind
from tutti.log.files.data_directory import open_directory
from tutti.log.files.options import LogOptions
from tutti_gateway.core.protocol.events import Identity, Started
from tutti_gateway.core.stack import Stack
from tutti_gateway.log.writer import LogWriter
from tutti_gateway.node.clients.port import SendResult
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.disk.log_thread import LogThread
from tutti_gateway.node.driver import Driver, DriverInput
from tutti_gateway.node.status.status import StatusDocuments

OPTIONS = LogOptions(segment_bytes=32 << 20, prepared_segments=0, reserved_bytes=16 << 20, disk_low_bytes=64 << 20)
STEPS = 250
PRODUCERS = 3


class TooEarly(AssertionError):
    """A receipt left before its frame was durable."""


class Witness(Clients):
    """Clients that look at the disk the moment a receipt reaches them."""

    def __init__(self, platter: Platter) -> None:
        super().__init__()
        self._platter = platter
        self.acknowledged: dict[tuple[int, int], int] = {}

    def send(self, routing: bytes, data: bytes) -> SendResult:
        if data[:1] == b"R":
            for producer, first_sequence, offset, _, _ in decode_receipts(data):
                if (producer, first_sequence) not in self._platter.frames:
                    raise TooEarly(f"{producer}/{first_sequence} was acknowledged and is not durable")
                self.acknowledged[producer, first_sequence] = offset
        return super().send(routing, data)


class Documents(StatusDocuments):
    """Answers questions with nothing."""

    gateway = "g"

    def __init__(self) -> None:
        """There is nothing to tell."""

    def members(self) -> bytes:
        return b"[]"

    def welcome(self) -> Welcome:
        return Welcome(PROTOCOL, "g", "t", "", "", "", "", "", {}, 1, 1, 1)

    def status(self) -> bytes:
        return b"{}"

    def producers(self) -> bytes:
        return b"{}"

    def epoch_of(self, name: str) -> int:
        return 0


class Bench:
    """A gateway without sockets and threads: the disk's rounds happen when the test says so."""

    def __init__(self, path: Path, platter: Platter) -> None:
        self.path, self.platter = path, platter
        self.clients = Witness(platter)
        self.directory = open_directory(str(path), gateway="g", group="t", storage=platter)
        self.writer, recovered = LogWriter.open(self.directory, OPTIONS, platter)
        self.reports: list[DriverInput] = []
        self.disk = LogThread(self.writer, self.reports.append, lambda: None, LOG)
        self.clock = HandClock()
        self.driver = Driver(
            Stack(random.Random),
            clock=self.clock,
            disk=self.disk,
            lanes=LaneQueue(),
            clients=self.clients,
            lookups=Lookups(),
            lane_lookups=Lookups(),
            network=network(),
            frontier=self.writer.frontier,
            documents=lambda _state: Documents(),
            counters=GatewayCounters(),
            log=LOG,
            entropy=os.urandom(16),
        )
        identity = Identity("g", self.directory.incarnation, "t", {"g": "127.0.0.1:1"})
        self.driver.start(Started(identity, os.urandom(16), recovered))
        self.until(lambda: self.primary)

    @property
    def primary(self) -> bool:
        view = self.driver.view
        return view is not None and view.primary and not self.driver.halted

    def turn(self, *parts: list[bytes]) -> None:
        """Run one iteration of the socket thread, with the disk's reports so far."""
        self.clock.time_us += 1000
        happenings, self.reports[:] = list(self.reports), []
        self.driver.run_once([message(b"client", one) for one in parts], happenings)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(20):
            if condition():
                return
            self.disk.run_once()
            self.turn()
        raise AssertionError("it did not happen")

    def ask(self, request: object) -> object:
        """Ask something and get the answer."""
        answers: list[object] = []
        self.turn([encode_control(request)])  # type: ignore[arg-type]  # every request is a Struct

        def answered() -> bool:
            answers.extend(self.clients.told(b"client"))
            return bool(answers)

        self.until(answered)
        return answers[0]

    def close(self) -> None:
        self.writer.close()
        self.directory.close()


@contextlib.contextmanager
def opened(path: Path, platter: Platter) -> Iterator[Bench]:
    bench = Bench(path, platter)
    try:
        yield bench
    finally:
        bench.close()


def run(bench: Bench, chance: random.Random, image: Callable[[int], None]) -> None:
    """Submit from several producers and let the disk work, in an order that chance gives."""
    assert isinstance(bench.ask(Hello(PROTOCOL, "test", b"s" * 16)), Welcome)
    numbers = []
    for number in range(PRODUCERS):
        opened = bench.ask(OpenProducer(number, f"p{number}", os.urandom(16), 1))
        assert isinstance(opened, EpochOpened)
        numbers.append(opened.producer)
    topic = bench.ask(OpenTopic(9, "t"))
    assert isinstance(topic, TopicOpened)
    following = dict.fromkeys(numbers, 1)
    for step in range(STEPS):
        submits = []
        for _ in range(chance.choice((0, 1, 1, 3))):
            producer = chance.choice(numbers)
            frames: list[Frame] = []
            for _ in range(chance.choice((1, 1, 4))):
                values = [chance.randbytes(chance.choice((1, 50, 3000)))] * chance.choice((1, 5))
                frames.append(batch_frame(values, producer=producer, sequence=following[producer], topic=topic.topic))
                following[producer] += len(values)
            submits.append([bytes(part) for part in encode_submit(frames)])
        bench.turn(*submits)
        if chance.random() < 0.5:
            bench.disk.run_once()
        if chance.random() < 0.05:
            image(step)


def records_in(path: Path) -> dict[tuple[int, int], int]:
    """(producer, first sequence) -> offset of every batch that a start on the directory finds, decided or not."""
    platter = Platter()
    directory = open_directory(str(path), gateway="g", group="t", storage=platter)
    writer, recovered = LogWriter.open(directory, OPTIONS, platter)
    writer.close()
    directory.close()
    state = recovered.state
    found = {}
    for number, producer in state.producers.items():
        found.update({(number, sequence): -1 for sequence in range(1, producer.sequence + 1)})
    for frame in recovered.tail:
        offset = state.apply(frame)
        if frame.kind == Kind.BATCH:
            found[frame.producer, frame.first_sequence] = offset
    return found


@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_record_survives_a_power_loss_at_any_moment(tmp_path: Path, seed: int) -> None:
    platter = Platter()
    images: list[tuple[Path, dict[tuple[int, int], int]]] = []
    with opened(tmp_path / "data", platter) as bench:

        def image(step: int) -> None:
            target = tmp_path / f"image-{step}"
            platter.image(tmp_path / "data", target)
            images.append((target, dict(bench.clients.acknowledged)))

        run(bench, random.Random(seed), image)
        image(STEPS)
    assert len(images) > 5
    assert len(images[-1][1]) > 50
    for target, acknowledged in images:
        found = records_in(target)
        lost = [identity for identity in acknowledged if identity not in found]
        moved = [one for one, offset in acknowledged.items() if found.get(one, -1) not in (-1, offset)]
        assert (lost, moved) == ([], []), target


def test_a_disk_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    with pytest.raises(TooEarly), opened(tmp_path / "data", Platter(honest=False)) as bench:
        run(bench, random.Random(1), lambda _: None)
