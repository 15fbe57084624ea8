"""Tests of kafka-in with a fake Kafka and a fake log: each record once and in order, despite failures, stops and takeovers."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from tests.unit.connectors.kafka.fake_kafka import CLUSTER, TOPIC, Kafka, Log, connector_of, done, run
from tutti.errors import Aborted, BufferFull, ConfigError, Fenced, Unavailable
from tutti_connect.kafka import limits
from tutti_connect.kafka.source.position import KafkaPosition, offset_metadata


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without waits."""
    for name in ("RETRY_S_MIN", "RETRY_S_MAX", "FENCED_S_MIN", "FENCED_S_MAX"):
        monkeypatch.setattr(limits, name, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_despite_any_failure_each_record_is_there_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """Proves it for topics, producers, openings and frames that fail at random, gaps in offsets, messages that come again, and an
    instance that follows another.
    """
    chance = Random(seed)
    high = chance.randrange(50, 400)
    names = ("t", "u", "v")[: chance.randrange(1, 4)]
    kafka, log = Kafka(chance.randrange(1, 4), (offset for offset in range(high) if chance.random() < 0.8), high, names), Log()
    kafka.again = lambda: chance.random() < 0.1
    left = [chance.randrange(40)]
    lock = threading.Lock()

    def trouble(where: str) -> None:
        with lock:
            if where == "answer" or not left[0] or chance.random() >= 0.1:  # who meets nobody at the start ends
                return
            left[0] -= 1
        if where == "send":
            raise chance.choice([BufferFull, Aborted])(where)
        if where != "consume":
            raise chance.choice([Aborted, Unavailable, Fenced])(where)

    log.trouble = kafka.trouble = trouble
    first, member = connector_of(tmp_path, kafka, log)
    looks = [chance.randrange(30)]

    def ends() -> bool:
        looks[0] -= 1
        return looks[0] < 0

    run(first, member, ends)
    second, member = connector_of(tmp_path, kafka, log)
    run(second, member, done(second, kafka))
    for topic, number in kafka.keys:
        assert log.records[f"in.{topic}.{number}"] == [offset for offset in kafka.offsets if offset % 100 != 66]
    assert second.quarantine.count == len(kafka.keys) * sum(offset % 100 == 66 for offset in kafka.offsets)


def test_it_is_ready_only_after_a_gateway_has_answered(tmp_path: Path) -> None:
    """Proves that it ends without one, without a ready line and without membership in Kafka's group."""
    kafka, log = Kafka(1, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log)
    heard: list[str] = []

    def trouble(where: str) -> None:
        heard.append(where)
        raise Unavailable("no gateway answers")

    log.trouble = trouble
    stop = threading.Event()

    def ready() -> None:
        heard.append("ready")
        stop.set()

    with pytest.raises(Unavailable, match="no gateway answers"):
        connector.run(stop, ready)
    assert (heard, member._assigned) == (["answer"], None)


def test_an_older_instance_is_fenced_and_nothing_is_doubled(tmp_path: Path) -> None:
    """Proves that its records in flight are in the log once when another instance starts."""
    kafka, log = Kafka(1, range(50), 50), Log()
    log.held = []
    old, member = connector_of(tmp_path, kafka, log)
    taken = threading.Event()

    def both() -> bool:
        if log.held and not taken.is_set():
            new, its_member = connector_of(tmp_path, kafka, log)
            held, log.held = log.held, None
            run(new, its_member, done(new, kafka))
            for deliver in held:
                deliver()
            taken.set()
        return taken.is_set() and old.partitions["t", 0].failures > 0

    run(old, member, both)
    assert log.records["in.t.0"] == list(range(50))


def test_the_position_moves_over_messages_that_are_not_records(tmp_path: Path) -> None:
    """Proves that a mark after the last record leaves no lag, and that its deletion by Kafka's retention is not
    reported as a loss.
    """
    kafka, log = Kafka(1, range(10), 12), Log()  # 10 and 11: the end of a transaction, and another one that was aborted
    connector, member = connector_of(tmp_path, kafka, log)
    run(connector, member, done(connector, kafka))
    assert KafkaPosition.decode(log.progress["in.t.0"], "p").next == 10, "what the log says stays as it is"
    assert kafka.notes["t", 0] == (12, offset_metadata(KafkaPosition(CLUSTER, TOPIC, 10)))
    kafka.low, kafka.offsets = 12, []
    again, member = connector_of(tmp_path, kafka, log)
    run(again, member, done(again, kafka))
    kafka.offsets, kafka.high_ = [12, 13], 14
    later, member = connector_of(tmp_path, kafka, log)
    run(later, member, done(later, kafka))
    assert log.records["in.t.0"] == [*range(10), 12, 13]


@pytest.mark.parametrize(
    ("offset", "note"),
    [
        (12, f"{TOPIC}:9"),  # of an older place: records may be behind it
        (12, "another:10"),  # of another topic of the name
        (12, ""),
        (11, f"{TOPIC}:10"),  # what came behind it is gone, too
    ],
)
def test_a_wrong_stored_offset_hides_no_loss(tmp_path: Path, offset: int, note: str) -> None:
    kafka, log = Kafka(1, range(10), 10), Log()
    connector, member = connector_of(tmp_path, kafka, log)
    run(connector, member, done(connector, kafka))
    kafka.low = kafka.high_ = 12
    kafka.offsets = []
    kafka.notes["t", 0] = (offset, note)
    again, member = connector_of(tmp_path, kafka, log)
    with pytest.raises(ConfigError, match=r'has offsets 12 to 12: .* set lost = "skip"'):
        run(again, member, lambda: False)
    skipping, member = connector_of(tmp_path, kafka, log, lost="skip")
    run(skipping, member, done(skipping, kafka))


def test_the_position_never_passes_records_in_flight(tmp_path: Path) -> None:
    """Proves that the end of a partition counts once everything before it is committed."""
    kafka, log = Kafka(1, range(5), 9), Log()
    log.held = []
    connector, member = connector_of(tmp_path, kafka, log)
    seen: list[int] = []

    def watched() -> bool:
        one = connector.partitions.get(("t", 0))
        if one is not None and one.next == 9:
            seen.append(one.committed)
            if len(seen) == 20:
                log.release()
        return bool(seen) and seen[-1] == 9

    run(connector, member, watched)
    assert set(seen[:20]) == {0}
    assert seen[-1] == 9


def test_partitions_are_handed_over_after_records_in_flight_are_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that Kafka assigns them to another instance no earlier, which would start too low and fail all of them."""
    monkeypatch.setattr(limits, "HANDOVER_S", 60.0)
    kafka, log = Kafka(3, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log)
    gate, closed = threading.Event(), list[bool]()
    log.closing = lambda: closed.append(gate.wait(30))
    seen: list[int] = []

    def handed_over() -> bool:
        if not seen and done(connector, kafka)():
            threading.Timer(0.1, gate.set).start()
            member.revoked()
            seen.append(len(closed))
        return bool(seen)

    run(connector, member, handed_over)
    assert (seen, closed, connector.partitions) == ([3], [True] * 3, {})


@pytest.mark.parametrize(("partitions", "room"), [(1, 40), (4, 25), (20, 10)])
def test_all_buffers_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, room: int) -> None:
    """Proves that partitions share the buffer memory, with a minimum and a maximum for each."""
    for name, size in (("ALL", 100), ("MIN", 10), ("MAX", 40)):
        monkeypatch.setattr(limits, f"BUFFER_BYTES_{name}", size)
    kafka, log = Kafka(partitions, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log)
    run(connector, member, done(connector, kafka))
    assert log.rooms == [room] * partitions


def test_a_topic_recreated_while_it_runs_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECK_S", 0.0)
    kafka, log = Kafka(1, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log)

    def anew() -> bool:
        if done(connector, kafka)():
            kafka.topic_id = "anew"
        return False

    with pytest.raises(ConfigError, match="has changed since this instance started"):
        run(connector, member, anew)


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_a_recreated_topic_is_reported_before_its_offsets_are_used(tmp_path: Path, lost: str) -> None:
    """Proves it for a partition that begins again: what the new topic has would come twice, once under the id of the old one."""
    kafka, log = Kafka(1, range(10), 10), Log()
    connector, member = connector_of(tmp_path, kafka, log, lost=lost)

    def anew() -> bool:
        if done(connector, kafka)() and kafka.topic_id == TOPIC:
            kafka.topic_id, kafka.offsets, kafka.low, kafka.high_ = "anew", list(range(20, 25)), 20, 25
        return False

    with pytest.raises(ConfigError, match="has changed since this instance started"):
        run(connector, member, anew)
    assert log.records["in.t.0"] == list(range(10))


def test_existing_messages_are_skipped_on_request(tmp_path: Path) -> None:
    """Proves that `latest` begins at the end, and again at the first start if no message came since."""
    kafka, log = Kafka(1, range(5), 5), Log()
    first, member = connector_of(tmp_path, kafka, log, start="latest")
    run(first, member, done(first, kafka))
    assert log.records == {}
    kafka.offsets, kafka.high_ = list(range(8)), 8
    second, member = connector_of(tmp_path, kafka, log, start="latest")
    run(second, member, done(second, kafka))
    assert log.records == {"in.t.0": [5, 6, 7]}
