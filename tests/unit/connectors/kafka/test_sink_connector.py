"""Tests of kafka-out with a fake Kafka and a fake log: each record once and in order, despite refusals,
disconnects and takeovers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tutti.data.frames.columns import schema_of
from tutti.errors import ConfigError, Fenced, OffsetOutOfRange, Unavailable
from tutti.runtime.backoff import Backoff
from tutti_connect import limits as shared_limits
from tutti_connect.kafka import config as configs
from tutti_connect.kafka import limits
from tutti_connect.kafka.errors import RecordRejected, RetryTransaction, TopicRejected
from tutti_connect.kafka.metrics import SinkMetrics
from tutti_connect.kafka.sink.connector import SinkConnector
from tutti_connect.kafka.sink.messages import COLUMNS, OutgoingRecord, sizes
from tutti_connect.kafka.sink.position import Position

LOG = "ab" * 16


class Killed(BaseException):
    """The process ends here."""


class Kafka:
    """What is committed in Kafka, and what is refused there; sinks of several instances write to it."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int]] = []  # target, offset of the log
        self.position: Position | None = None
        self.poison: set[int] = set()
        self.large: set[int] = set()
        self.closed: dict[str, str] = {}  # topics that take no record -> where that is found out: "target" or "commit"
        self.position_closed = False
        self.newest = 0
        self.commits: list[int] = []
        self.trouble: Callable[[str], None] = lambda where: None


class FakeWriter:
    """As `tutti_connect.kafka.sink.producer.KafkaWriter`; `trouble(where)` may raise at each step."""

    def __init__(self, kafka: Kafka, instance: str = "one") -> None:
        self.kafka, self.instance = kafka, instance
        self.batch_bytes = 1_000_000
        self._open: list[tuple[str, int]] | None = None
        self._claimed = False
        self._number = 0

    def open(self) -> Position | None:
        self.abandon()
        self.kafka.trouble("open")
        position = self.kafka.position
        if self._claimed and position is not None and position.instance != self.instance:
            raise Fenced("another instance has taken over")
        self.kafka.newest += 1
        self._number = self.kafka.newest
        return position

    def target_of(self, topic: str) -> str:
        self.kafka.trouble("target")
        if self.kafka.closed.get(topic) == "target":
            raise TopicRejected(f"topic {topic} is reserved for Kafka")
        return topic

    def begin(self) -> None:
        assert self._open is None, "one transaction at a time"
        self._open = []

    def add(self, target: str, records: list[OutgoingRecord]) -> list[tuple[OutgoingRecord, str]]:
        assert self._open is not None
        self.kafka.trouble("add")
        self._open += [(target, record.offset) for record in records if record.offset not in self.kafka.large]
        return [(record, "too large for the client") for record in records if record.offset in self.kafka.large]

    def commit(self, log: str, following: int, stop: threading.Event) -> None:
        given, self._open = self._open, None
        assert given is not None
        if self._number != self.kafka.newest:
            raise RetryTransaction("fenced")
        if any(offset in self.kafka.poison for _, offset in given):
            raise RecordRejected("too large for the topic")
        if self.kafka.position_closed or any(self.kafka.closed.get(target) == "commit" for target, _ in given):
            raise TopicRejected("Topic authorization failed")
        self.kafka.trouble("commit")
        self.kafka.records += given
        self.kafka.commits.append(len(given))
        self.kafka.position = Position(log, following, self.instance)
        self._claimed = True
        self.kafka.trouble("committed")

    def abandon(self) -> None:
        self._open = None


def batch(
    offsets: list[int], topics: list[str] | None = None, times: list[int] | None = None, large: Container[int] = ()
) -> pa.RecordBatch:
    count = len(offsets)
    data: dict[str, Any] = {
        "offset": offsets,
        "topic": topics or ["t"] * count,
        "key": [None] * count,
        "value": [bytes(2_000_000 if offset in large else 10) for offset in offsets],
        "timestamp": times or [1_700_000_000_000_000] * count,
        "headers": [None] * count,
    }
    return pa.RecordBatch.from_pydict(data, schema=schema_of(COLUMNS))


class FakeLog:
    """Records [start, end) of one log; topics not asked for are passed over."""

    def __init__(self, end: int, wanted: Callable[[int], bool] = lambda offset: True, rows: int = 7) -> None:
        self.uuid, self.start, self.end, self.rows = LOG, 0, end, rows
        self.wanted = wanted
        self.large: set[int] = set()
        self.trouble: Callable[[str], None] = lambda where: None
        self.done: Callable[[], None] = lambda: None

    def span(self) -> tuple[str, int, int]:
        self.trouble("span")
        return self.uuid, self.start, self.end

    def read(self, uuid: str, start: int) -> FakeReading:
        assert uuid == self.uuid
        return FakeReading(self, start)


class FakeReading:
    def __init__(self, log: FakeLog, start: int) -> None:
        self._log, self.position = log, start

    def poll(self, timeout: float) -> pa.RecordBatch | None:
        self._log.trouble("poll")
        if self.position < self._log.start:
            raise OffsetOutOfRange("below the log")
        while self.position < self._log.end:
            last = min(self._log.end, self.position + self._log.rows)
            offsets = [offset for offset in range(self.position, last) if self._log.wanted(offset)]
            self.position = last
            if offsets:
                return batch(offsets, ["t" if offset % 3 else "u" for offset in offsets], large=self._log.large)
        self._log.done()
        return None

    def close(self) -> None:
        """Nothing to let go of."""


class Clock:
    """Advances by a tenth of a second at each read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def outflow_of(tmp_path: Path, log: FakeLog, kafka: Kafka, instance: str = "one", **more: Any) -> SinkConnector:
    transaction = configs.Transaction(records=more.pop("records", 20), wait_ms=10_000)
    target = configs.Target(servers="127.0.0.1:9092")
    config = configs.SinkConfig("out", "tutti://127.0.0.1:1", target, str(tmp_path / "q"), transaction=transaction, **more)
    return SinkConnector(config, log, FakeWriter(kafka, instance), Clock())


def run(outflow: SinkConnector, log: FakeLog, idle: int = 1) -> list[str]:
    """Run until there was nothing to read `idle` times, and return the log lines."""
    stop, said = threading.Event(), list[str]()
    left = [idle]

    def done() -> None:
        left[0] -= 1
        if left[0] <= 0:
            stop.set()

    log.done = done
    outflow.run(stop, lambda: said.append("ready"))
    return said


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without waits."""
    monkeypatch.setattr(limits, "RETRY_S_MIN", 0.0)


def test_all_records_go_in_order_in_bounded_transactions(tmp_path: Path) -> None:
    log, kafka = FakeLog(100), Kafka()
    outflow = outflow_of(tmp_path, log, kafka)
    assert run(outflow, log) == ["ready"]
    assert kafka.records == [("t" if offset % 3 else "u", offset) for offset in range(100)]
    assert kafka.commits == [0, 20, 20, 20, 20, 20]
    assert kafka.position == Position(LOG, 100, "one")
    assert (outflow.records, outflow.next, outflow.frontier, outflow.failures) == (100, 100, 100, 0)
    registry = CollectorRegistry()
    registry.register(SinkMetrics(outflow))
    assert b'tutti_kafka_out_records_total{connector="out"} 100.0' in generate_latest(registry)


def test_bytes_bound_a_transaction_and_a_record_larger_than_that_goes_alone(tmp_path: Path) -> None:
    log, kafka = FakeLog(6), Kafka()
    outflow = outflow_of(tmp_path, log, kafka)
    small = configs.Transaction(bytes=int(sizes(batch([0, 1])).sum()), wait_ms=10_000)
    outflow.config = configs.SinkConfig("out", "u", outflow.config.kafka, str(tmp_path), transaction=small)
    run(outflow, log)
    assert kafka.commits == [0, 2, 2, 2]
    kafka.records.clear()
    outflow.config = configs.SinkConfig("out", "u", outflow.config.kafka, str(tmp_path), transaction=configs.Transaction(bytes=1))
    kafka.position = None
    run(outflow, log)
    assert [offset for _, offset in kafka.records] == list(range(6))


@pytest.mark.parametrize("seed", range(40))
def test_despite_any_failure_each_record_is_there_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """Proves it for failures and ends of the process at any step, refused records among them, and one instance after another."""
    chance = Random(seed)
    log, kafka = FakeLog(chance.randrange(1, 300), rows=chance.randrange(1, 40)), Kafka()
    kafka.poison = {chance.randrange(300) for _ in range(chance.randrange(4))}
    kafka.large = {chance.randrange(300) for _ in range(chance.randrange(4))}
    left = [chance.randrange(60)]

    def trouble(where: str) -> None:
        if left[0] and chance.random() < 0.2:
            left[0] -= 1
            raise chance.choice([RetryTransaction, Unavailable, OSError, Killed])(where)

    kafka.trouble = log.trouble = trouble
    for number in range(200):
        try:
            run(outflow_of(tmp_path, log, kafka, str(number), records=chance.randrange(1, 50)), log)
        except (Killed, Unavailable, OSError):
            continue
        if kafka.position is not None and kafka.position.next == log.end:
            break  # it may have been told to end before its last transaction failed
    else:
        pytest.fail("it never came through")
    refused = kafka.poison | kafka.large
    assert [offset for _, offset in kafka.records] == [offset for offset in range(log.end) if offset not in refused]
    assert sum(kafka.commits) == len(kafka.records)
    aside = {int(file.name.split("-")[1]) for file in (tmp_path / "q").iterdir()}
    assert aside == {offset for offset in refused if offset < log.end}


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_a_record_that_may_be_too_large_is_sent_alone(tmp_path: Path, rows: int) -> None:
    """Proves that one transaction fails for an oversized record, and none if it is accepted."""
    log, kafka = FakeLog(50, rows=rows), Kafka()
    log.large, kafka.poison = {20, 33}, {33}
    outflow = outflow_of(tmp_path, log, kafka, records=10)
    opened = list[str]()
    kafka.trouble = lambda where: opened.append(where) if where == "open" else None
    run(outflow, log)
    assert [offset for _, offset in kafka.records] == [offset for offset in range(50) if offset != 33]
    assert (len(opened), outflow.failures) == (2, 0)
    assert 1 in kafka.commits


def test_a_refused_record_costs_few_transactions(tmp_path: Path) -> None:
    log, kafka = FakeLog(10_000, rows=1000), Kafka()
    kafka.poison = {7777}
    outflow = outflow_of(tmp_path, log, kafka, records=10_000)
    run(outflow, log)
    assert len(kafka.records) == outflow.records == 9_999
    assert len(kafka.commits) < 25
    assert outflow.failures == 0


def test_a_connector_ends_after_a_takeover(tmp_path: Path) -> None:
    """Proves that it does not fence the newer one."""
    log, kafka = FakeLog(50), Kafka()
    old, new = (outflow_of(tmp_path, log, kafka, name) for name in ("old", "new"))

    def takes_over() -> None:
        log.end = 60
        run(new, log)
        log.end, log.done = 70, lambda: None

    log.done = takes_over
    with pytest.raises(Fenced):
        old.run(threading.Event(), lambda: None)
    assert kafka.position == Position(LOG, 60, "new")
    run(new, log)
    assert [offset for _, offset in kafka.records] == list(range(70))


def test_the_position_moves_over_records_that_are_not_asked_for(tmp_path: Path) -> None:
    """Proves that trimmed records of other topics do not count as lost."""
    log, kafka = FakeLog(1000, wanted=lambda offset: offset < 10), Kafka()
    run(outflow_of(tmp_path, log, kafka), log, idle=100)
    assert kafka.position == Position(LOG, 1000, "one")
    assert len(kafka.commits) <= 4


def test_the_position_is_kept_once_a_while_where_nothing_is_for_it(tmp_path: Path) -> None:
    """Proves it for a log in which others write: no transaction each turn, and none that tells what Kafka knows already."""
    log, kafka = FakeLog(10, wanted=lambda offset: offset < 10), Kafka()
    outflow = outflow_of(tmp_path, log, kafka)
    stop, left = threading.Event(), [200]

    def goes_by() -> None:
        left[0] -= 1
        log.end += 10 if left[0] > 50 else 0  # at last nothing comes any more
        if not left[0]:
            stop.set()

    log.done = goes_by
    outflow.run(stop, lambda: None)
    assert kafka.position == Position(LOG, log.end, "one")
    idle = kafka.commits[2:]
    assert idle.count(0) == len(idle)
    assert 3 < len(idle) < 20


def test_records_removed_before_they_were_sent_are_reported(tmp_path: Path) -> None:
    log, kafka = FakeLog(50), Kafka()
    run(outflow_of(tmp_path, log, kafka), log)
    log.start, log.end = 60, 90
    with pytest.raises(ConfigError, match=r"begins at offset 60, but Kafka has it up to 50: records 50 to 59 were deleted"):
        run(outflow_of(tmp_path, log, kafka), log)
    run(outflow_of(tmp_path, log, kafka, lost="skip"), log)
    assert [offset for _, offset in kafka.records] == [*range(50), *range(60, 90)]


def test_records_removed_while_they_are_read_are_reported(tmp_path: Path) -> None:
    log, kafka = FakeLog(50), Kafka()

    def cut() -> None:
        log.start, log.end = 70, 90
        log.done = lambda: None

    outflow = outflow_of(tmp_path, log, kafka)
    log.done = cut
    with pytest.raises(ConfigError, match="records 50 to 69 were deleted"):
        outflow.run(threading.Event(), lambda: None)


def test_another_log_and_gateways_that_lag(tmp_path: Path) -> None:
    log, kafka = FakeLog(50), Kafka()
    run(outflow_of(tmp_path, log, kafka), log)
    log.end = 40
    with pytest.raises(Unavailable, match="ends at 40 at the gateways that answer, but Kafka has it up to 50"):
        run(outflow_of(tmp_path, log, kafka), log)
    log.uuid = "cd" * 16
    with pytest.raises(ConfigError, match="give the connector another `name`"):
        run(outflow_of(tmp_path, log, kafka), log)


def test_it_begins_at_the_configured_offset(tmp_path: Path) -> None:
    log, kafka = FakeLog(50), Kafka()
    run(outflow_of(tmp_path, log, kafka, start="latest"), log)
    assert (kafka.records, kafka.position) == ([], Position(LOG, 50, "one"))


def test_a_full_quarantine_holds_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limits, "QUARANTINED_MAX", 1)
    log, kafka = FakeLog(50), Kafka()
    kafka.large = {3, 30}
    outflow = outflow_of(tmp_path, log, kafka, records=10)
    stop = threading.Event()

    def trouble(where: str) -> None:
        if where == "open" and outflow.failures == 5:
            next((tmp_path / "q").iterdir()).unlink()

    kafka.trouble, log.done = trouble, stop.set
    outflow.run(stop, lambda: None)
    assert [offset for _, offset in kafka.records] == [offset for offset in range(50) if offset not in {3, 30}]
    assert (outflow.failures, outflow.records) == (5, 48)


def test_a_problem_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that a repeated problem is one line, whatever numbers it contains, and that its end is logged."""
    log, kafka = FakeLog(50), Kafka()
    left = [20]

    def trouble(where: str) -> None:
        if where == "open" and kafka.commits and left[0]:
            left[0] -= 1
            raise RetryTransaction(f"Kafka at 127.0.0.1:9092: timed out after {left[0]} s")
        if where == "committed" and len(kafka.commits) == 2:
            kafka.commits.append(-1)
            raise RetryTransaction("gone")

    kafka.trouble = trouble
    with caplog.at_level("INFO"):
        run(outflow_of(tmp_path, log, kafka), log)
    told = [record.message for record in caplog.records if "restarts" in record.message or "continues" in record.message]
    assert len(told) == 3, told
    assert [offset for _, offset in kafka.records] == list(range(50))


class Stop(threading.Event):
    """Notes how long it is waited for, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self.is_set()


def test_a_commit_resets_the_backoff(tmp_path: Path) -> None:
    log, kafka, stop = FakeLog(60), Kafka(), Stop()
    outflow = outflow_of(tmp_path, log, kafka)
    outflow._backoff = Backoff(1.0, 60.0)
    early, late = [RetryTransaction("gone")] * 3, [RetryTransaction("gone")]

    def trouble(where: str) -> None:
        fails = late if kafka.records else early  # behind the first commit of records, and before it
        if where == "add" and fails:
            raise fails.pop()

    kafka.trouble, log.done = trouble, stop.set
    outflow.run(stop, lambda: None)
    assert [wait for wait in stop.waited if wait >= 1] == [1, 2, 4, 1]
    assert [offset for _, offset in kafka.records] == list(range(60))
