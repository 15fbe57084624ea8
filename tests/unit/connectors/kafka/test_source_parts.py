"""Tests of the parts of kafka-in that need no Kafka: positions, batch ends, rejected messages, and the states of a partition."""

from __future__ import annotations

from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pytest

from tutti.batching.encoder import TIME_US_MAX, TIME_US_MIN
from tutti.data.frames.schema import encode_batch
from tutti.errors import Aborted, BufferFull, ConfigError, Fenced, FormatError, TuttiError
from tutti_connect.kafka import limits
from tutti_connect.kafka.config import load_source_config
from tutti_connect.kafka.source.batches import FrameBatch, to_batches
from tutti_connect.kafka.source.partition_copy import Event, Partition, State
from tutti_connect.kafka.source.position import KafkaPosition, check_same, producer_name


class Message:
    """As Kafka's client gives them."""

    def __init__(self, offset: int, value: bytes | None = b"v", key: bytes | None = None, headers: Any = None, time: Any = (1, 5)):
        self._all = offset, value, key, headers, time

    def offset(self) -> int:
        return int(self._all[0])

    def value(self) -> bytes | None:
        return self._all[1]

    def key(self) -> bytes | None:
        return self._all[2]

    def headers(self) -> Any:
        if isinstance(self._all[3], Exception):
            raise self._all[3]
        return self._all[3]

    def timestamp(self) -> Any:
        return self._all[4]

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0


def messages(*given: Message) -> Any:
    return list(given)


def test_a_place_comes_back_from_the_log() -> None:
    place = KafkaPosition("cluster", "topic", 17)
    assert KafkaPosition.decode(place.encode(), "p") == place
    assert len(KafkaPosition("x" * 22, "y" * 22, 2**63 - 1).encode()) <= 256
    with pytest.raises(FormatError, match="another `name`"):
        KafkaPosition.decode(b"somebody else's", "p")
    with pytest.raises(FormatError, match="is not from this connector"):
        KafkaPosition.decode(place.encode()[:-1] + b',"another":1}', "p")


@pytest.mark.parametrize(
    ("now", "told"),
    [(KafkaPosition("other", "t", 0), "this cluster has id other"), (KafkaPosition("c", "new", 0), "was created later")],
)
def test_another_topic_is_refused(now: KafkaPosition, told: str) -> None:
    check_same(KafkaPosition("c", "t", 9), KafkaPosition("c", "t", 0), "p", "t[0]")
    with pytest.raises(ConfigError, match=told):
        check_same(KafkaPosition("c", "t", 9), now, "p", "t[0]")


def test_names_of_producers_differ_and_are_valid() -> None:
    assert producer_name("in", "t", 3) == "in.t.3"
    long = {producer_name("in", "t" * 240 + end, number) for end in "ab" for number in (1, 12345)}
    assert len(long) == 4
    assert all(len(name) <= 249 for name in long)


def test_batches_are_complete_and_in_order() -> None:
    """Proves that each record is in one cut, that cuts end at their size, and that a larger record is one by itself."""
    sizes = [100, limits.FRAME_BYTES, 3 * limits.FRAME_BYTES, 7, 8]
    given = messages(*(Message(10 + 2 * number, bytes(size), b"k") for number, size in enumerate(sizes)))
    found, _ = to_batches(given)
    assert [len(value or b"") for cut in found for value in cut.records.column("value").to_pylist()] == sizes
    assert [cut.next for cut in found] == [11, 13, 15, 19]


def test_times_and_headers_are_those_of_kafka() -> None:
    given = messages(
        Message(0, None, None, [("a", None), ("b", b"1")], (1, 1_700_000_000_001)), Message(1, b"", b"", None, (0, -1))
    )
    (cut,), _ = to_batches(given)
    first, second = cut.records.to_pylist()
    assert (first["value"], first["key"], first["timestamp"].timestamp()) == (None, None, 1_700_000_000.001)
    assert first["headers"] == [{"key": "a", "value": None}, {"key": "b", "value": b"1"}]
    assert (second["value"], second["key"], second["headers"]) == (b"", b"", None)
    assert second["timestamp"].year >= 2024, "without a time of its own: the present"


def test_times_are_kept_within_the_range_of_the_log() -> None:
    """Proves that years 1 to 9999 are, that -1 (Kafka's "no time") is the present, and that nothing else is in quarantine."""
    given = [Message(number, time=(1, time)) for number, time in enumerate([-62_135_596_800_000, -2, -1, 253_402_300_799_999])]
    before_us = time_ns() // 1_000_000 * 1000
    (cut,), bad = to_batches(messages(*given))
    times: Any = cut.records.column("timestamp").cast(pa.int64()).to_pylist()
    first, second, none, last = times
    assert (bad, first, second, last) == ([], TIME_US_MIN, -2000, TIME_US_MAX // 1000 * 1000)
    assert before_us <= none <= time_ns() // 1000
    (early, late) = to_batches(messages(*(Message(0, time=(1, time)) for time in (-62_135_596_800_001, 253_402_300_800_000))))[1]
    assert "outside the years 1 to 9999" in early.reason
    assert "outside the years 1 to 9999" in late.reason


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Message(1, bytes(limits.RECORD_BYTES_MAX), b"k"), f"{limits.RECORD_BYTES_MAX + 1} bytes"),
        (Message(1, bytes(limits.RECORD_BYTES_MAX - 8), None, [("h", b"")]), "key, value and headers"),
        (Message(1, headers=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")), "not UTF-8"),
        (Message(1, headers=[("h", bytes(limits.RECORD_BYTES_MAX))]), "headers"),
        (Message(1, time=(1, 2**60)), "timestamp"),
    ],
)
def test_messages_that_no_log_accepts_are_named(message: Message, told: str) -> None:
    (cut,), (bad,) = to_batches(messages(Message(0, b"0"), message, Message(2, b"2")))
    assert (cut.records.column("value").to_pylist(), cut.next) == ([b"0", b"2"], 3)
    assert bad.message.offset() == 1
    assert told in bad.reason
    cuts, (alone,) = to_batches(messages(message))
    assert (cuts, alone.reason) == ([], bad.reason)


@pytest.mark.parametrize("headers", [[("a" * 500, b"b" * 500)] * 2, [("", None)] * 30, None])
def test_no_batch_is_too_large_for_a_frame(headers: Any) -> None:
    """Proves that headers count: a frame that the log refuses would be passed over by the next one's progress."""
    given = messages(*(Message(number, b"v" * 40, None, headers) for number in range(10_000)))
    found, _ = to_batches(given)
    assert sum(cut.records.num_rows for cut in found) == 10_000
    whole = [pa.RecordBatch.from_arrays(list(cut.records.columns), names=cut.records.schema.names) for cut in found]
    assert max(len(encode_batch(batch, None)) for batch in whole) < 2 * limits.FRAME_BYTES


def test_a_frame_refused_at_once_lets_no_other_pass() -> None:
    """Proves that nothing with a later progress is sent after a frame whose receipt has failed."""
    producer = FakeProducer(9)
    producer.refused = 1
    partition = flowing(producer)
    partition.queue([cut(12), cut(14), cut(16)], 16)
    with pytest.raises(Aborted, match="refused"):
        push(partition)
    assert [progress for progress, _ in producer.sent] == [b"12"]


class FakeProducer:
    """Accepts so many batches."""

    def __init__(self, length_max: int) -> None:
        self.room = length_max
        self.refused = -1  # the number of the one that fails at once
        self.sent: list[tuple[bytes, Any]] = []

    def send_batch(self, _topic: str, _records: Any, progress: bytes, on_delivery: Any) -> FakeReceipt:
        if len(self.sent) == self.room:
            raise BufferFull("full")
        if len(self.sent) == self.refused:
            return FakeReceipt(Aborted("refused"))
        self.sent.append((progress, on_delivery))
        return FakeReceipt()


class FakeReceipt:
    count = 2

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def done(self) -> bool:
        return self.error is not None


def flowing(producer: Any, at: int = 10) -> Partition:
    partition = Partition("t", 0, "t")
    partition.transition(Event.OPEN)
    partition.opened(producer, at, at)
    return partition


def cut(following: int) -> FrameBatch:
    return FrameBatch(pa.RecordBatch.from_pydict({"value": [b"a", b"b"]}), following)


def push(partition: Partition) -> None:
    partition.push(lambda following: str(following).encode())


def test_messages_without_buffer_space_wait_and_keep_their_order() -> None:
    producer = FakeProducer(2)
    partition = flowing(producer)
    partition.queue([cut(12), cut(14), cut(16)], 17)
    push(partition)
    assert ([progress for progress, _ in producer.sent], partition.full) == ([b"12", b"14"], True)
    assert (partition.next, partition.committed) == (17, 10)
    producer.room = 9
    push(partition)
    assert ([progress for progress, _ in producer.sent], partition.full) == ([b"12", b"14", b"16"], False)
    for _, outcome in producer.sent:
        outcome(None, FakeReceipt())
    assert (partition.committed, partition.records) == (16, 6)


def test_after_a_failed_frame_the_partition_restarts_after_the_last_commit() -> None:
    producer = FakeProducer(9)
    partition = flowing(producer)
    partition.queue([cut(12), cut(14)], 14)
    push(partition)
    (_, first), (_, second) = producer.sent
    first(None, FakeReceipt())
    second(Aborted("lost its coordinator"), FakeReceipt())
    with pytest.raises(Aborted):
        push(partition)
    partition.queue([cut(16)], 16)
    left: Any = partition.failed(Aborted("lost its coordinator"), 100.0)
    assert left is producer
    assert (partition.state, partition.full, partition.retry_at > 100.0) == (State.WAITING, False, True)
    again: Any = FakeProducer(9)
    partition.transition(Event.OPEN)
    partition.opened(again, 12, 12)
    first(None, FakeReceipt())  # of the old one: nobody's any more
    second(Aborted("late"), FakeReceipt())
    partition.queue([cut(14)], 14)
    push(partition)
    assert [progress for progress, _ in again.sent] == [b"14"]
    assert (partition.next, partition.committed, partition.failures) == (14, 12, 1)


def test_a_fenced_producer_waits_until_kafka_reports_it() -> None:
    partition = flowing(FakeProducer(1))
    partition.failed(Fenced("another one"), 0.0)
    assert partition.retry_at >= 5
    times = []
    for _ in range(8):
        partition.transition(Event.OPEN)
        partition.failed(Fenced("another one"), 0.0)
        times.append(partition.retry_at)
    assert times == sorted(times)
    assert times[-1] == 60


@pytest.mark.parametrize("error", [Aborted("lost its coordinator"), Fenced("another one")])
def test_a_commit_resets_the_backoff(error: TuttiError) -> None:
    producer = FakeProducer(9)
    partition = flowing(producer)
    partition.failed(error, 0.0)
    least = partition.retry_at
    for _ in range(3):
        partition.transition(Event.OPEN)
        partition.failed(error, 0.0)
    assert partition.retry_at > least
    again: Any = FakeProducer(9)
    partition.transition(Event.OPEN)
    partition.opened(again, 10, 10)
    partition.queue([cut(12)], 12)
    push(partition)
    again.sent[0][1](None, FakeReceipt())
    partition.failed(error, 0.0)
    assert partition.retry_at == least


def test_steps_that_make_no_sense_are_illegal() -> None:
    partition = Partition("t", 0, "t")
    for turn in (Event.OPENED, Event.FAILED):
        with pytest.raises(KeyError):
            partition.transition(turn)
    assert partition.revoked() is None
    assert partition.state is State.REVOKED


GOOD = 'name = "in"\ngateways = "tutti://127.0.0.1:7400"\nquarantine = "q"\n[kafka]\nservers = "127.0.0.1:9092"\ntopics = ["t"]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name = "in"', "gateways is missing"),
        (GOOD.replace('topics = ["t"]', ""), 'kafka.topics is missing: add it to [kafka], for example topics = ["orders"]'),
        (GOOD.replace('["t"]', '"t"'), 'it takes a list of texts, ["a", "b"]'),
        (GOOD + 'strat = "latest"\n', "did you mean start?"),
        (GOOD + 'start = "newest"\n', '"earliest" or "latest"'),
        (GOOD.replace('"in"', '"a b"'), "name is 'a b'"),
        (GOOD.replace('["t"]', '["t", "u", "t"]'), "kafka.topics has 't' twice"),
        (GOOD.replace('["t"]', '["^ord.*"]'), "kafka.topics has '^ord.*'"),
        (GOOD.replace('["t"]', '[""]'), "kafka.topics has ''"),
        (GOOD.replace('["t"]', "[]"), "one at least"),
        (GOOD.replace('"in"', '""'), "name is '': it takes text in \"quotes\" that is not empty"),
        ('topic = "a b"\n' + GOOD, "topic is 'a b'"),
        (GOOD.replace("tutti://127.0.0.1:7400", "localhost"), "gateways:"),
        (GOOD + "settings = 3\n", 'a table of names and values, { "a.name" = "value" }'),
        ("name = ", "is not TOML"),
    ],
)
def test_mistakes_in_the_configuration_are_reported(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "in.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_source_config(str(file))
    assert told in str(raised.value)


def test_the_example_is_right() -> None:
    assert load_source_config(str(Path(__file__).parents[4] / "conf" / "connectors" / "kafka-in.toml")).kafka.topics == ["orders"]
