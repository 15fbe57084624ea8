"""A fake Kafka and a fake log, with a kafka-in connector between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tutti.errors import Aborted, Fenced, TuttiError
from tutti_connect.kafka import config as configs
from tutti_connect.kafka.source.batches import Source
from tutti_connect.kafka.source.connector import SourceConnector
from tutti_connect.kafka.source.consumer import Consumed
from tutti_connect.kafka.source.partition_copy import Key

CLUSTER, TOPIC = "cluster", "topic-id"


class Message:
    """As Kafka's client gives them; the value says the offset."""

    def __init__(self, key: Key, offset: int) -> None:
        self._key, self._offset = key, offset

    def topic(self) -> str:
        return self._key[0]

    def partition(self) -> int:
        return self._key[1]

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"%d" % self._offset

    def key(self) -> bytes | None:
        return None

    def headers(self) -> Any:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 2**60 if self._offset % 100 == 66 else 5  # which no log takes


class Kafka:
    """Topics whose partitions are alike: offsets that hold records, edges, and what groups have noted. One member has all of them.

    Attributes:
        again: whether what was consumed last comes once more before what is next, as where it was on its way when places changed.
    """

    def __init__(self, partitions: int, offsets: Iterable[int], high: int, topics: tuple[str, ...] = ("t",)) -> None:
        self.offsets, self.low, self.high_ = sorted(offsets), 0, high
        self.names = topics
        self.keys: list[Key] = [(topic, number) for topic in topics for number in range(partitions)]
        self.again: Callable[[], bool] = lambda: False
        self.notes: dict[Key, tuple[int, str]] = {}
        self.trouble: Callable[[str], None] = lambda where: None
        self.topic_id, self.cluster = TOPIC, CLUSTER
        self.open_from: int | None = None  # where a transaction begins that is open


class Member:
    """As `tutti_connect.kafka.source.consumer.KafkaSource`."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._places: dict[Key, int] = {}
        self._paused: set[Key] = set()
        self._last: dict[Key, list[Any]] = {}
        self._assigned: Callable[[list[Key]], None] | None = None
        self.idle: Callable[[], None] = lambda: None

    def topics(self) -> dict[str, Source]:
        return {name: Source(self.kafka.cluster, self.kafka.topic_id, name) for name in self.kafka.names}

    def offset_range(self, key: Key) -> tuple[int, int]:
        self.kafka.trouble("edges")
        return self.kafka.low, self.kafka.high_

    def end_offsets(self, topic: str) -> dict[int, int]:
        self.kafka.trouble("ends")
        end = self.kafka.high_ if self.kafka.open_from is None else self.kafka.open_from
        return {number: end for name, number in self.kafka.keys if name == topic}

    def group_offsets(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        return {key: self.kafka.notes.get(key, (-1, "")) for key in keys}

    def subscribe(self, assigned: Callable[[list[Key]], None], revoked: Callable[[], None], lost: Callable[[], None]) -> None:
        self._assigned, self.revoked, self._lost = assigned, revoked, lost

    def consume(self) -> Consumed:
        if self._assigned is not None:
            self._assigned(self.kafka.keys)
            self._assigned = None
        time.sleep(0.0005)
        self.kafka.trouble("consume")
        consumed = Consumed([], [], [])
        for key, place in list(self._places.items()):
            if key in self._paused:
                continue
            if self.kafka.again():
                consumed.messages.extend(message for message in self._last.get(key, []) if message.offset() < place)
            if place < self.kafka.low:
                consumed.missing.append((key, "out of range"))
                continue
            here = [offset for offset in self.kafka.offsets if offset >= place][:7]
            self._last[key] = [Message(key, offset) for offset in here]
            consumed.messages.extend(self._last[key])
            self._places[key] = here[-1] + 1 if here else self.kafka.high_
            if not here and place <= self.kafka.high_:
                consumed.ended.append((key, self.kafka.high_))
        self.idle()
        return consumed

    def assign(self, offsets: Mapping[Key, int]) -> None:
        self._places = dict(offsets)
        self._paused.clear()

    def pause(self, keys: Iterable[Key]) -> None:
        self._paused |= set(keys)

    def resume(self, keys: Iterable[Key]) -> None:
        self._paused -= set(keys)

    def high_watermark(self, key: Key) -> int:
        return self.kafka.high_

    def commit_offsets(self, offsets: Mapping[Key, tuple[int, str]], *, wait: bool) -> None:
        self.kafka.notes.update(offsets)

    def close(self) -> None:
        """Nothing to let go of."""


class Log:
    """What is committed: of each producer its records and its progress; the newest epoch alone commits."""

    def __init__(self) -> None:
        self.records: dict[str, list[int]] = {}
        self.progress: dict[str, bytes] = {}
        self.epochs: dict[str, int] = {}
        self.trouble: Callable[[str], None] = lambda where: None
        self.held: list[Callable[[], None]] | None = None  # what is on its way, where it is held
        self.rooms: list[int] = []  # that producers were given, in bytes
        self.closing: Callable[[], None] = lambda: None

    def answer(self) -> None:
        """Answer as a gateway that is asked for its name."""
        self.trouble("answer")

    def open(self, name: str, room: int) -> Any:
        self.trouble("open")
        self.rooms.append(room)
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return Producer(self, name, self.epochs[name])

    def commit(self, name: str, _topic: str, decide: Callable[[bytes], bytes]) -> bytes:
        """As `tutti.transactions.commit_progress`."""
        self.trouble("commit")
        self.epochs[name] = self.epochs.get(name, 0) + 1
        if progress := decide(self.progress.get(name, b"")):
            self.trouble("committed")
            self.progress[name] = progress
        return progress

    def release(self) -> None:
        """Deliver the records in flight."""
        held, self.held = self.held or [], None
        for deliver in held:
            deliver()


class Receipt:
    def __init__(self, count: int) -> None:
        self.count, self.error = count, None

    def done(self) -> bool:
        return False


class Resume:
    def __init__(self, progress: bytes) -> None:
        self.progress = progress


class Producer:
    def __init__(self, log: Log, name: str, epoch: int) -> None:
        self._log, self.name, self._epoch, self._broken = log, name, epoch, False

    def resume(self) -> Resume:
        return Resume(self._log.progress.get(self.name, b""))

    def send_batch(self, _topic: str, records: Any, progress: bytes, on_delivery: Any) -> Receipt:
        self._log.trouble("send")
        receipt = Receipt(records.num_rows)
        values = [int(value) for value in records.column("value").to_pylist()]
        if self._log.held is not None:
            self._log.held.append(lambda: self._deliver(values, progress, on_delivery, receipt))
        else:
            self._deliver(values, progress, on_delivery, receipt)
        return receipt

    def _deliver(self, values: list[int], progress: bytes, on_delivery: Any, receipt: Receipt) -> None:
        error: TuttiError | None = None
        try:
            if self._broken:
                raise Aborted("behind one that failed")
            if self._log.epochs[self.name] != self._epoch:
                raise Fenced("a newer one")
            self._log.trouble("deliver")
        except TuttiError as raised:
            self._broken, error = True, raised
        else:
            self._log.records.setdefault(self.name, []).extend(values)
            self._log.progress[self.name] = progress
        on_delivery(error, receipt)

    def flush(self, timeout: float) -> int:
        return 0

    def close(self) -> None:
        """Nothing to let go of."""
        self._log.closing()


def connector_of(tmp_path: Path, kafka: Kafka, log: Log, **more: Any) -> tuple[SourceConnector, Member]:
    member = Member(kafka)
    config = configs.SourceConfig(
        "in", "tutti://127.0.0.1:1", configs.Source("127.0.0.1:1", [*kafka.names], **more), str(tmp_path / "q")
    )
    return SourceConnector(config, member, log.open, log.answer, log.commit), member


def run(connector: SourceConnector, member: Member, until: Callable[[], bool]) -> None:
    """Until something is so; it has to be soon."""
    stop, deadline = threading.Event(), time.monotonic() + 30

    def idle() -> None:
        if until() or time.monotonic() > deadline:
            stop.set()

    member.idle = idle
    connector.run(stop, lambda: None)
    assert time.monotonic() < deadline


def done(connector: SourceConnector, kafka: Kafka) -> Callable[[], bool]:
    """Whether all of Kafka is in the log."""
    return lambda: (
        len(connector.partitions) == len(kafka.keys)
        and all(one.committed == kafka.high_ for one in connector.partitions.values())
    )  # fmt: skip
