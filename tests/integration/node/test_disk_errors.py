"""Tests of a node with disk errors: it refuses records on a low or full disk and recovers, and halts on a failed disk but still
serves reads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.node.test_reply_after_sync import OPTIONS, Bench, opened
from tests.integration.node.volatile_disk import Platter
from tests.unit.node.fakes import batch_frame
from tutti.data.client_protocol import (
    EpochOpened,
    Hello,
    OpenProducer,
    OpenTopic,
    RefusedAnswer,
    TopicOpened,
    Welcome,
    encode_submit,
)
from tutti.data.frames.frame import Frame
from tutti.log.read.reader import LogReader
from tutti_gateway.core import limits


class Troubled(Platter):
    """A disk whose free space and errors the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 1 << 40
        self.sync_error = 0
        self.allocate_error = 0

    def free_bytes(self, path: str) -> int:
        return self.free

    def sync(self, fd: int) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        super().sync(fd)

    def allocate(self, fd: int, size: int) -> None:
        if self.allocate_error:
            raise OSError(self.allocate_error, os.strerror(self.allocate_error))
        super().allocate(fd, size)


class Client:
    """One producer over a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        assert isinstance(bench.ask(Hello(1, "test", b"s" * 16)), Welcome)
        producer = bench.ask(OpenProducer(1, "p", b"i" * 16, 1))
        topic = bench.ask(OpenTopic(2, "t"))
        assert isinstance(producer, EpochOpened)
        assert isinstance(topic, TopicOpened)
        self.producer, self.topic, self.sequence = producer.producer, topic.topic, 1

    def frame(self, value: bytes = b"x") -> Frame:
        return batch_frame([value], producer=self.producer, sequence=self.sequence, topic=self.topic)

    def send(self, value: bytes = b"x") -> list[object]:
        """Send the next record, run the disk, and return the answers; a receipt advances the sequence."""
        self.bench.turn([bytes(part) for part in encode_submit([self.frame(value)])])
        for _ in range(3):
            self.bench.disk.run_once()
            self.bench.turn()
        told: list[object] = list(self.bench.clients.told(b"client"))
        self.sequence += sum(isinstance(answer, tuple) for answer in told)
        return told


@pytest.fixture
def platter(monkeypatch: pytest.MonkeyPatch) -> Troubled:
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 0)
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    return Troubled()


@pytest.fixture
def client(tmp_path: Path, platter: Troubled) -> Iterator[Client]:
    with opened(tmp_path / "data", platter) as bench:
        yield Client(bench)


def committed(told: list[object]) -> bool:
    return len(told) == 1 and isinstance(told[0], tuple)


def test_a_low_disk_refuses_early_with_a_reason_and_recovers(client: Client, platter: Troubled) -> None:
    assert committed(client.send())
    platter.free = OPTIONS.disk_low_bytes - 1
    client.bench.disk.run_once()
    client.bench.turn()
    (refused,) = client.send()
    assert isinstance(refused, RefusedAnswer)
    assert (refused.code, refused.retry) == ("space", True)
    assert "free some space" in refused.reason
    assert client.bench.primary
    with_reads = LogReader(client.bench.path)
    assert with_reads.frontier().offset == 1
    with_reads.close()
    platter.free = 1 << 40
    client.bench.disk.run_once()
    client.bench.turn()
    assert committed(client.send())


def test_a_full_disk_keeps_accepted_records_and_continues_with_free_space(client: Client, platter: Troubled) -> None:
    while client.bench.disk.run_once():
        continue  # the index of what was decided so far has its room
    platter.allocate_error = errno.ENOSPC
    answers: list[object] = []
    large = os.urandom(3 << 20)
    for _ in range(12):  # into the second segment, for which there is no room
        answers += client.send(large)
        if client.bench.disk.full:
            break
    assert client.bench.disk.full
    assert client.bench.primary
    waiting = client.bench.driver.undecided_frames
    assert waiting == 1
    (refused,) = client.send()
    assert isinstance(refused, RefusedAnswer)
    platter.allocate_error = 0
    for _ in range(4):
        client.bench.disk.run_once()
        client.bench.turn()
    assert client.bench.driver.undecided_frames == 0
    (receipt,) = client.bench.clients.told(b"client")
    assert isinstance(receipt, tuple)
    client.sequence += 1
    assert committed(client.send())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_halts_at_once_acknowledges_nothing_and_leaves_reads_alone(
    client: Client, platter: Troubled, number: int
) -> None:
    assert committed(client.send())
    platter.sync_error = number
    assert client.send() == []
    driver = client.bench.driver
    assert driver.halted
    assert os.strerror(number) in driver.halted
    platter.sync_error = 0
    told = client.send()
    assert not any(isinstance(answer, tuple) for answer in told)
    reader = LogReader(client.bench.path)
    assert reader.frontier().offset == 1
    reader.close()
