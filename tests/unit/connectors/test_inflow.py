"""Proves the way in without Kafka and without gateways: each record once, in order, whatever fails, ends or takes over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connectors.kafka import config as configs
from connectors.kafka import limits
from connectors.kafka.inflow import Connector
from connectors.kafka.partition import Key
from connectors.kafka.place import Place, decode_place, note_of
from connectors.kafka.records import Source
from connectors.kafka.source import Consumed
from gateway.errors import Aborted, BufferFull, ConfigError, Fenced, TuttiError, Unavailable

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
        self.topic_id = TOPIC


class Member:
    """As `connectors.kafka.source.KafkaSource`."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._places: dict[Key, int] = {}
        self._paused: set[Key] = set()
        self._last: dict[Key, list[Any]] = {}
        self._assigned: Callable[[list[Key]], None] | None = None
        self.idle: Callable[[], None] = lambda: None

    def topics(self) -> dict[str, Source]:
        return {name: Source(CLUSTER, self.kafka.topic_id, name) for name in self.kafka.names}

    def edges(self, key: Key) -> tuple[int, int]:
        self.kafka.trouble("edges")
        return self.kafka.low, self.kafka.high_

    def noted(self, key: Key) -> tuple[int, str]:
        return self.kafka.notes.get(key, (-1, ""))

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

    def assign(self, places: Mapping[Key, int]) -> None:
        self._places = dict(places)
        self._paused.clear()

    def pause(self, keys: Iterable[Key]) -> None:
        self._paused |= set(keys)

    def resume(self, keys: Iterable[Key]) -> None:
        self._paused -= set(keys)

    def high(self, key: Key) -> int:
        return self.kafka.high_

    def note(self, places: Mapping[Key, tuple[int, str]], *, wait: bool) -> None:
        self.kafka.notes.update(places)

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
        """As a gateway that is asked who it is."""
        self.trouble("answer")

    def open(self, name: str, room: int) -> Any:
        self.trouble("open")
        self.rooms.append(room)
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return Producer(self, name, self.epochs[name])

    def release(self) -> None:
        """Deliver what is on its way."""
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


def connector_of(tmp_path: Path, kafka: Kafka, log: Log, **more: Any) -> tuple[Connector, Member]:
    member = Member(kafka)
    config = configs.Inflow("in", "tutti://127.0.0.1:1", configs.Source("127.0.0.1:1", [*kafka.names], **more), str(tmp_path / "q"))
    return Connector(config, member, log.open, log.answer), member


def run(connector: Connector, member: Member, until: Callable[[], bool]) -> None:
    """Until something is so; it has to be soon."""
    stop, deadline = threading.Event(), time.monotonic() + 30

    def idle() -> None:
        if until() or time.monotonic() > deadline:
            stop.set()

    member.idle = idle
    connector.run(stop, lambda: None)
    assert time.monotonic() < deadline


def done(connector: Connector, kafka: Kafka) -> Callable[[], bool]:
    """Whether all of Kafka is in the log."""
    return lambda: (
        len(connector.partitions) == len(kafka.keys)
        and all(one.committed == kafka.high_ for one in connector.partitions.values())
    )  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before trying again."""
    for name in ("RETRY_S_MIN", "RETRY_S_MAX", "FENCED_S_MIN", "FENCED_S_MAX"):
        monkeypatch.setattr(limits, name, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_each_record_is_there_once_and_in_order(tmp_path: Path, seed: int) -> None:
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


def test_it_is_ready_when_a_gateway_has_answered_too(tmp_path: Path) -> None:
    """Proves that it ends where none does, without a word that it is there, and without a place in Kafka's group."""
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
    """Proves that what it has on its way when another begins is in the log once."""
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


def test_the_place_moves_over_what_is_no_record(tmp_path: Path) -> None:
    """Proves that a mark behind the last record leaves no lag, and that Kafka's retention of all of it is not told as a loss."""
    kafka, log = Kafka(1, range(10), 12), Log()  # 10 and 11: the end of a transaction, and another one that was aborted
    connector, member = connector_of(tmp_path, kafka, log)
    run(connector, member, done(connector, kafka))
    assert decode_place(log.progress["in.t.0"], "p").next == 10, "what the log says stays as it is"
    assert kafka.notes["t", 0] == (12, note_of(Place(CLUSTER, TOPIC, 10)))
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
def test_a_note_that_says_something_else_hides_no_loss(tmp_path: Path, offset: int, note: str) -> None:
    kafka, log = Kafka(1, range(10), 10), Log()
    connector, member = connector_of(tmp_path, kafka, log)
    run(connector, member, done(connector, kafka))
    kafka.low = kafka.high_ = 12
    kafka.offsets = []
    kafka.notes["t", 0] = (offset, note)
    again, member = connector_of(tmp_path, kafka, log)
    with pytest.raises(ConfigError, match=r'has 12 to 12: .* set lost = "skip"'):
        run(again, member, lambda: False)
    skipping, member = connector_of(tmp_path, kafka, log, lost="skip")
    run(skipping, member, done(skipping, kafka))


def test_nothing_moves_over_what_is_on_its_way(tmp_path: Path) -> None:
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


def test_partitions_are_handed_over_when_what_is_on_its_way_is_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that Kafka gives them to another instance no earlier: it would begin behind less, and have all of it fail."""
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
    """Proves that partitions share the room that there is, with a least and a most for each."""
    for name, size in (("ALL", 100), ("MIN", 10), ("MAX", 40)):
        monkeypatch.setattr(limits, f"BUFFER_BYTES_{name}", size)
    kafka, log = Kafka(partitions, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log)
    run(connector, member, done(connector, kafka))
    assert log.rooms == [room] * partitions


def test_a_topic_made_anew_while_it_runs_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECK_S", 0.0)
    kafka, log = Kafka(1, range(5), 5), Log()
    connector, member = connector_of(tmp_path, kafka, log)

    def anew() -> bool:
        if done(connector, kafka)():
            kafka.topic_id = "anew"
        return False

    with pytest.raises(ConfigError, match="is another one than when this instance was started"):
        run(connector, member, anew)


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_a_topic_made_anew_is_told_before_its_offsets_are_believed(tmp_path: Path, lost: str) -> None:
    """Proves it for a partition that begins again: what the new topic has would come twice, once under the id of the old one."""
    kafka, log = Kafka(1, range(10), 10), Log()
    connector, member = connector_of(tmp_path, kafka, log, lost=lost)

    def anew() -> bool:
        if done(connector, kafka)() and kafka.topic_id == TOPIC:
            kafka.topic_id, kafka.offsets, kafka.low, kafka.high_ = "anew", list(range(20, 25)), 20, 25
        return False

    with pytest.raises(ConfigError, match="is another one than when this instance was started"):
        run(connector, member, anew)
    assert log.records["in.t.0"] == list(range(10))


def test_what_is_there_at_first_is_passed_over_where_that_is_asked_for(tmp_path: Path) -> None:
    """Proves that `latest` begins at the end, and where the first start began when nothing came since."""
    kafka, log = Kafka(1, range(5), 5), Log()
    first, member = connector_of(tmp_path, kafka, log, start="latest")
    run(first, member, done(first, kafka))
    assert log.records == {}
    kafka.offsets, kafka.high_ = list(range(8)), 8
    second, member = connector_of(tmp_path, kafka, log, start="latest")
    run(second, member, done(second, kafka))
    assert log.records == {"in.t.0": [5, 6, 7]}
