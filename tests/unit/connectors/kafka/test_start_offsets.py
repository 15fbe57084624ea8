"""Tests of `start = "latest"`: the start offsets of partitions are resolved once, before the first instance is ready, and stored in
the log.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.connectors.kafka.fake_kafka import CLUSTER, TOPIC, Kafka, Log, connector_of, done, run
from tutti.errors import ConfigError, Fenced, Refused, TuttiError, Unavailable
from tutti_connect.kafka import limits
from tutti_connect.kafka.source.position import KafkaPosition, offset_metadata


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits before it is tried again."""
    for name in ("RETRY_S_MIN", "RETRY_S_MAX", "FENCED_S_MIN", "FENCED_S_MAX"):
        monkeypatch.setattr(limits, name, 0.0)


def start_only(tmp_path: Path, kafka: Kafka, log: Log) -> None:
    """Run an instance that ends at its ready line, as if it was killed there: no partition was assigned to it."""
    connector, member = connector_of(tmp_path, kafka, log, start="latest")
    stop = threading.Event()
    connector.run(stop, stop.set)
    assert member._assigned is not None, "it was ready"


def finish(tmp_path: Path, kafka: Kafka, log: Log) -> None:
    """Run an instance until all of Kafka is in the log."""
    connector, member = connector_of(tmp_path, kafka, log, start="latest")
    run(connector, member, done(connector, kafka))


def grow(kafka: Kafka, high: int) -> None:
    """Add records up to an offset to each partition."""
    kafka.offsets, kafka.high_ = [*kafka.offsets, *range(kafka.high_, high)], high


def test_records_right_after_the_ready_line_are_copied(tmp_path: Path) -> None:
    """Proves it for records that are there before any partition is assigned."""
    kafka, log = Kafka(3, range(5), 5, ("t", "u")), Log()
    connector, member = connector_of(tmp_path, kafka, log, start="latest")
    stop = threading.Event()
    member.idle = lambda: stop.set() if done(connector, kafka)() else None
    connector.run(stop, lambda: grow(kafka, 8))
    assert log.records == {f"in.{topic}.{number}": [5, 6, 7] for topic, number in kafka.keys}


def test_the_start_survives_a_crash_right_after_the_ready_line(tmp_path: Path) -> None:
    """Proves it where no record came, also for a crash after that and a Kafka that has forgotten the group."""
    kafka, log = Kafka(2, range(5), 5), Log()
    start_only(tmp_path, kafka, log)
    grow(kafka, 7)
    start_only(tmp_path, kafka, log)
    grow(kafka, 9)
    kafka.notes.clear()
    finish(tmp_path, kafka, log)
    assert log.records == {"in.t.0": [5, 6, 7, 8], "in.t.1": [5, 6, 7, 8]}


def test_a_partition_that_is_added_later_starts_at_its_beginning(tmp_path: Path) -> None:
    """Proves it for one that is added while the first instance runs, and for one that is added while none runs."""
    kafka, log = Kafka(1, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log, start="latest")
    added: list[int] = []

    def add() -> bool:
        if not added and done(connector, kafka)():
            added.append(1)
            kafka.keys.append(("t", 1))
            member._assigned = connector._assigned
        return bool(added) and done(connector, kafka)()

    run(connector, member, add)
    kafka.keys.append(("t", 2))
    finish(tmp_path, kafka, log)
    assert log.records == {"in.t.1": list(range(5)), "in.t.2": list(range(5))}


def test_a_topic_that_is_named_later_starts_when_it_is_named(tmp_path: Path) -> None:
    kafka, log = Kafka(1, range(5), 5), Log()
    finish(tmp_path, kafka, log)
    kafka.names, kafka.keys = ("t", "u"), [("t", 0), ("u", 0)]
    grow(kafka, 8)
    start_only(tmp_path, kafka, log)
    grow(kafka, 9)
    finish(tmp_path, kafka, log)
    assert log.records == {"in.t.0": [5, 6, 7, 8], "in.u.0": [8]}


def test_records_of_a_transaction_that_is_open_at_the_start_are_copied(tmp_path: Path) -> None:
    """Proves that `latest` is what a reader of committed records sees: what becomes visible afterwards comes."""
    kafka, log = Kafka(1, range(5), 5), Log()
    kafka.open_from = 3
    start_only(tmp_path, kafka, log)
    finish(tmp_path, kafka, log)
    assert log.records == {"in.t.0": [3, 4]}


@pytest.mark.parametrize("where", ["ends", "commit", "committed"])
def test_it_is_not_ready_before_all_start_offsets_are_known(tmp_path: Path, where: str) -> None:
    """Proves that a partition without a leader, and gateways that are lost meanwhile, end the start; the next one completes it."""
    kafka, log = Kafka(3, range(5), 5, ("t", "u")), Log()
    left = [7 if where == "commit" else 2 if where == "committed" else 1]
    lock, heard = threading.Lock(), list[str]()

    def trouble(at: str) -> None:
        with lock:
            left[0] -= at == where
            if at == where and left[0] == 0:
                raise Unavailable("away")

    kafka.trouble = log.trouble = trouble
    connector, member = connector_of(tmp_path, kafka, log, start="latest")
    with pytest.raises(Unavailable, match="away"):
        connector.run(threading.Event(), lambda: heard.append("ready"))
    assert (heard, member._assigned) == ([], None)
    start_only(tmp_path, kafka, log)
    grow(kafka, 6)
    finish(tmp_path, kafka, log)
    assert log.records == {f"in.{topic}.{number}": [5] for topic, number in kafka.keys}


@pytest.mark.parametrize("error", [Fenced("a newer one"), Refused("its epoch is over", "staged")])
def test_two_instances_that_start_at_once_have_one_start(tmp_path: Path, error: TuttiError) -> None:
    """Proves that the one that is overtaken finds what the other resolved, and that records of the time between are taken."""
    kafka, log = Kafka(2, range(5), 5), Log()
    overtaken: list[int] = []

    def trouble(where: str) -> None:
        if where == "committed" and not overtaken:
            overtaken.append(1)
            start_only(tmp_path, kafka, log)
            grow(kafka, 7)
            raise error

    log.trouble = trouble
    finish(tmp_path, kafka, log)
    assert log.records == {"in.t.0": [5, 6], "in.t.1": [5, 6]}


def test_a_permanent_refusal_of_the_gateways_ends_the_start(tmp_path: Path) -> None:
    kafka, log = Kafka(1, range(5), 5), Log()

    def trouble(where: str) -> None:
        if where == "commit":
            raise Refused("the group knows 5 producers", "producers")

    log.trouble = trouble
    connector, _ = connector_of(tmp_path, kafka, log, start="latest")
    with pytest.raises(Refused, match="5 producers"):
        connector.run(threading.Event(), lambda: None)


@pytest.mark.parametrize(
    ("note", "taken"),
    [
        ("", [2, 3, 4]),  # as earlier releases left it
        (offset_metadata(KafkaPosition(CLUSTER, TOPIC, -1)), [2, 3, 4]),
        (offset_metadata(KafkaPosition(CLUSTER, "another", 2)), []),
    ],
)
def test_a_start_that_an_earlier_release_noted_in_kafka_counts(tmp_path: Path, note: str, taken: list[int]) -> None:
    kafka, log = Kafka(2, range(5), 5), Log()
    kafka.notes["t", 0] = (2, note)
    start_only(tmp_path, kafka, log)
    kafka.notes.clear()
    finish(tmp_path, kafka, log)
    assert log.records == ({"in.t.0": taken} if taken else {})


def test_a_recreated_topic_is_copied_from_its_beginning_once_that_is_confirmed(tmp_path: Path) -> None:
    """Proves that it is refused until the operator has the log forget the partition, and that nothing of it is skipped then."""
    kafka, log = Kafka(1, range(5), 5), Log()
    finish(tmp_path, kafka, log)
    kafka.topic_id, kafka.offsets, kafka.high_ = "again", [0, 1], 2
    kafka.notes["t", 0] = (5, offset_metadata(KafkaPosition(CLUSTER, TOPIC, 5)))  # noted by an instance that was late
    connector, member = connector_of(tmp_path, kafka, log, start="latest")
    with pytest.raises(ConfigError, match=r"was created later\. .* tutti producers forget in\.t\.0"):
        run(connector, member, lambda: False)
    del log.progress["in.t.0"]
    finish(tmp_path, kafka, log)
    assert log.records == {"in.t.0": [0, 1]}


def test_a_topic_of_another_kafka_is_refused(tmp_path: Path) -> None:
    kafka, log = Kafka(1, range(5), 5), Log()
    start_only(tmp_path, kafka, log)
    kafka.cluster = "other"
    connector, _ = connector_of(tmp_path, kafka, log, start="latest")
    with pytest.raises(ConfigError, match=r"the Kafka cluster with id cluster, .* tutti producers forget in\.t\.start"):
        connector.run(threading.Event(), lambda: None)
