"""Tests of the sink without Spark and without a log: the columns of a batch, the identity of a write, and the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tutti import limits, transactions
from tutti.batching.encoder import validated_batch
from tutti.errors import Refused, Unknown, UsageError
from tutti.transactions import StagedBatch
from tutti_spark.sink import sink, topic_batches
from tutti_spark.sink.options import SinkOptions, check_columns, parse
from tutti_spark.sink.sink import BatchSink, StagedRecords, StreamSink
from tutti_spark.sink.topic_batches import Accumulator, by_topic

NOW_US = 1_700_000_000_000_000
URL = "tutti://h:1"


def shaped(large: bool, rows: int = 4) -> pa.RecordBatch:
    """All columns, as Spark hands them over; `large`: with `spark.sql.execution.arrow.useLargeVarTypes`."""
    text, binary = (pa.large_string(), pa.large_binary()) if large else (pa.string(), pa.binary())
    pair = pa.struct([pa.field("key", text), pa.field("value", binary)])
    columns = {
        "value": pa.array([f"v{n}" for n in range(rows)], text),
        "key": pa.array([None if n % 2 else b"k%d" % n for n in range(rows)], binary),
        "topic": pa.array([f"t{n % 2}" for n in range(rows)], text),
        "timestamp": pa.array([None if n % 3 else n for n in range(rows)], pa.timestamp("us", "UTC")),
        "headers": pa.array([[{"key": "h", "value": b"%d" % n}] * n for n in range(rows)], pa.list_(pair)),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def of(value: Sequence[bytes | None], topic: Sequence[str | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(value, pa.binary()), pa.array(topic, pa.string())], names=["value", "topic"])


def told(n: int) -> dict[str, Any]:
    """Row `n` of `shaped` as it goes into the log."""
    headers = [{"key": "h", "value": b"%d" % n}] * n
    return {"key": None if n % 2 else b"k%d" % n, "value": b"v%d" % n, "timestamp": NOW_US if n % 3 else n, "headers": headers}


def in_log(records: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the records that the client makes of a batch."""
    made = validated_batch(records, 0).batch
    fields = made.set_column(2, "timestamp", made.column(2).cast(pa.int64()))
    return [row | {"headers": row["headers"] or []} for row in fields.to_pylist()]


@pytest.fixture(autouse=True)
def _present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_batches, "time", SimpleNamespace(time_ns=lambda: NOW_US * 1000))


@pytest.mark.parametrize("large", [False, True])
def test_records_of_spark_go_into_the_log_unchanged(large: bool) -> None:
    """Proves that text becomes bytes, a null time the present one, and that of a slice nothing else is taken."""
    batch = shaped(large, 9)
    ((topic, records),) = by_topic(batch.slice(2, 5), "all")
    assert topic == "all"
    assert in_log(records) == [told(n) for n in range(2, 7)]
    found = {topic: in_log(records) for topic, records in by_topic(batch.slice(3, 4), None)}
    assert found == {"t1": [told(3), told(5)], "t0": [told(4), told(6)]}


def test_missing_columns_are_left_to_the_client() -> None:
    """Proves that no column is made up, and that one topic of all records costs no copy."""
    batch = of([b"a", None], ["t", "t"])
    ((topic, records),) = by_topic(batch, None)
    assert (topic, records.schema.names) == ("t", ["value"])
    assert records.column("value").to_pylist() == [b"a", None]
    data = [held.column("value").buffers()[2] for held in (records, batch)]
    assert data[0] is not None
    assert data[0].address == getattr(data[1], "address", None)


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_records_keep_their_order_in_each_topic(topics: list[str]) -> None:
    """Proves that each record is in the batch of its topic, once and in its turn."""
    found = list(by_topic(of([b"%d" % number for number in range(len(topics))], topics), None))
    assert len(found) == len(set(topics))
    assert bool(list(by_topic(of([b""] * len(topics), topics), "all"))) == bool(topics)
    for topic, records in found:
        assert records.column("value").to_pylist() == [b"%d" % number for number, name in enumerate(topics) if name == topic]


def test_a_record_without_a_topic_is_refused() -> None:
    batch = of([b"a", b"b"], ["t", None])
    with pytest.raises(UsageError, match="the column 'topic' of a record is null"):
        list(by_topic(batch, None))
    assert [topic for topic, _ in by_topic(batch, "all")] == ["all"]


def gathered(batches: Sequence[pa.RecordBatch], topic: str | None = None) -> list[tuple[str, list[Any]]]:
    """What leaves an accumulator, in its order: topics and values."""
    waiting = Accumulator(topic)
    left = [ready for batch in batches for ready in waiting.add(batch)]
    return [(name, records.column("value").to_pylist()) for name, records in [*left, *waiting.drain()]]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=12), max_size=8), st.integers(1, 40), st.integers(1, 200))
def test_records_leave_once_and_in_their_order_whatever_the_limits(topics: list[list[str]], enough: int, most: int) -> None:
    numbers = iter(range(100))
    batches = [of([b"%d" % next(numbers) for _ in names], names) for names in topics]
    rows = [(name, value) for batch in batches for name, value in zip(*(batch.column(c).to_pylist() for c in (1, 0)), strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_batches, "SLICE_BYTES", enough)
        patch.setattr(topic_batches, "INPUT_BYTES_MAX", most)
        found = gathered(batches)
    for topic in "abc":
        assert [value for name, values in found if name == topic for value in values] == [v for name, v in rows if name == topic]


def test_many_topics_of_many_small_batches_are_one_batch_each() -> None:
    """A transaction has a limit of batches, and Spark hands over some thousand rows at a time."""
    topics = [f"t{number}" for number in range(50)]
    found = gathered([of([b"v"] * 50, topics) for _ in range(20)])
    assert sorted(found) == sorted((topic, [b"v"] * 20) for topic in topics)
    assert gathered([of([b"v"], ["x"]) for _ in range(20)], "all") == [("all", [b"v"] * 20)]


def test_a_topic_leaves_when_it_has_enough_and_all_leave_when_a_task_holds_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that memory is bounded by what came, and not by what waits: a slice keeps the whole batch that it was cut from."""
    batch = of([b"x" * 100] * 9 + [b"y"], ["large"] * 9 + ["small"])
    monkeypatch.setattr(topic_batches, "SLICE_BYTES", 500)
    monkeypatch.setattr(topic_batches, "INPUT_BYTES_MAX", 3 * batch.nbytes)
    waiting = Accumulator(None)
    left = [[(topic, records.num_rows) for topic, records in waiting.add(batch)] for _ in range(4)]
    assert left == [[("large", 9)], [("large", 9)], [("large", 9), ("small", 3)], [("large", 9)]]
    assert [(topic, records.num_rows) for topic, records in waiting.drain()] == [("small", 1)]


def part(topic: str, records: int, position: int = 0) -> StagedBatch:
    return StagedBatch(position, topic, records, 0, 0)


class Log:
    """Stands for gateways: what was committed, by whom; whose answers are lost before or behind a commit; who was forgotten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: list[str] = []  # of each commit in turn: "" nothing, "before", "behind"
        self.opened: list[str | None] = []
        self.progress: dict[str | None, bytes] = {}
        self.committed: list[tuple[str | None, dict[str, Any], list[int]]] = []
        self.forgotten: list[list[str]] = []
        self.shown: list[bytes] = []
        self.closed = 0
        monkeypatch.setattr(sink, "Transactor", lambda url, producer, connect_timeout, credentials: self._of(producer))
        monkeypatch.setattr(sink, "AdminClient", lambda url, patience, credentials: self)

    def _of(self, name: str | None) -> Log:
        self.opened.append(name)
        self.name = name or "~random"
        return self

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self) -> Any:
        return SimpleNamespace(progress=self.progress.get(self.opened[-1], b""))

    def commit(self, parts: Sequence[StagedBatch], progress: bytes) -> Any:
        lost = self.lost.pop(0) if self.lost else ""
        if lost != "before":
            self.committed.append((self.opened[-1], orjson.loads(progress), [part.position for part in parts]))
            self.progress[self.opened[-1]] = progress

        def result() -> None:
            if lost:
                raise Unknown("has no outcome after 60 s")

        return SimpleNamespace(result=result)

    def forget(self, producers: Sequence[str], instances: Sequence[bytes]) -> None:
        assert len(producers) == len(instances)
        self.forgotten.append(list(producers))
        self.shown += instances

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


STAGED: list[WriterCommitMessage | None] = [
    StagedRecords("p1", (part("t", 2, 10),), {"t": 4}, "q", 3),
    None,
    StagedRecords("", (), {}, "q", 3),
    StagedRecords("p2", (part("t", 1, 11),), {"t": 2}, "q", 3),
]


@pytest.mark.parametrize(("lost", "opened"), [([], 1), (["before"], 2), (["behind"], 2)])
def test_a_commit_with_a_lost_answer_is_looked_up_in_the_log(log: Log, lost: list[str], opened: int) -> None:
    """Proves that a micro-batch is committed once, in the order of its tasks, whether its first commit came through or not."""
    log.lost = list(lost)
    StreamSink(SinkOptions(URL)).commit(STAGED, 3)
    assert log.opened == ["spark-q"] * opened
    ((whose, done, positions),) = log.committed
    assert (whose, done["batch"], done["records"], done["at"], positions) == ("spark-q", 3, 3, 10, [10, 11])
    assert log.forgotten == [["p1", "p2"]]
    StreamSink(SinkOptions(URL)).commit(STAGED, 3)
    assert len(log.committed) == 1


def test_a_commit_without_an_answer_fails_and_names_how_to_find_its_outcome(log: Log) -> None:
    """Proves that it ends, and that batches that may be visible are not released."""
    log.lost = ["before"] * 9
    told = r"batch 3 of .spark-q. with 3 records is in the log \(has no outcome after 60 s\): repeat the same write"
    with pytest.raises(Unknown, match=told):
        StreamSink(SinkOptions(URL)).commit(STAGED, 3)
    assert len(log.opened) == 2
    assert log.forgotten == []


def test_a_write_without_a_name_is_never_committed_again(log: Log) -> None:
    """Proves that a write that cannot be looked up in the log is not sent twice, and that the message claims nothing else."""
    log.lost = ["behind"] * 9
    with pytest.raises(Unknown, match="check the log for its records before you repeat the write; a write with the option writeId"):
        BatchSink(SinkOptions(URL)).commit([StagedRecords("p1", (part("t", 2),), {"t": 4})])
    assert [name for name, _, _ in log.committed] == [None]


@pytest.mark.parametrize(
    ("query", "write_id", "name", "number"),
    [
        ("", "", None, {}),
        ("", "w", "spark-write-w", {}),
        ("q", "", "spark-q", {"batch": 3, "run": "r"}),
        ("q", "w", "spark-q-w", {"batch": 3, "run": "r"}),
    ],
)
def test_a_batch_write_is_known_by_its_name_or_its_micro_batch(
    log: Log, query: str, write_id: str, name: str | None, number: dict[str, Any]
) -> None:
    of = (query, 3, "r") if query else ("", -1, "")
    BatchSink(SinkOptions(URL, write_id=write_id)).commit([StagedRecords("p1", (part("t", 2),), {"t": 4}, *of)])
    ((whose, done, _),) = log.committed
    assert whose == name
    assert {key: value for key, value in done.items() if key in ("batch", "run", "write")} == number


def in_foreach_batch(log: Log, run: str, at: int, topic: str = "t") -> None:
    BatchSink(SinkOptions(URL)).commit([StagedRecords("p1", (part(topic, 2, at),), {topic: 4}, "q", 3, run)])


def test_the_second_write_of_each_run_is_refused(log: Log, staging: list[FakeStaging]) -> None:
    """Proves that it is in the run that wrote the first, and in each later one, which leaves its mark; it was lost in silence."""
    in_foreach_batch(log, "r1", 1)
    for run in ("r1", "r2", "r3"):
        if run != "r1":
            in_foreach_batch(log, run, 2)
            log.progress["spark-q"] = staging[-1].marked  # what the gateways do
            assert staging[-1].closed
        with pytest.raises(Refused, match="second write without a writeId"):
            in_foreach_batch(log, run, 3)
    assert len(log.committed) == 1
    assert len(staging) == 2
    kept = [{key: value for key, value in orjson.loads(mark.marked).items() if key not in ("run", "at")} for mark in staging]
    first = {key: value for key, value in log.committed[0][1].items() if key not in ("run", "at")}
    assert kept == [first, first]


def test_a_write_in_foreach_batch_of_an_unknown_run_needs_a_name(log: Log) -> None:
    with pytest.raises(UsageError, match=r"replaced the job group .* Give the write a writeId"):
        in_foreach_batch(log, "", 1)
    BatchSink(SinkOptions(URL, write_id="w")).commit([StagedRecords("p1", (part("t", 2),), {"t": 4}, "q", 3)])
    assert [name for name, _, _ in log.committed] == ["spark-q-w"]


def test_without_staged_batches_no_request_is_sent(log: Log) -> None:
    StreamSink(SinkOptions(URL)).commit([StagedRecords("", (), {}, "q", 3)], 3)
    BatchSink(SinkOptions(URL)).commit([None])
    assert (log.opened, log.forgotten) == ([], [])
    with pytest.raises(UsageError, match="did not name the query"):
        StreamSink(SinkOptions(URL)).commit([StagedRecords("", (), {})], 3)


def test_an_abort_releases_everything_in_as_many_requests_as_needed(log: Log) -> None:
    many: list[WriterCommitMessage | None] = [
        StagedRecords(f"p{number}", (), {}) for number in range(limits.DELETE_PRODUCERS_MAX + 1)
    ]
    StreamSink(SinkOptions(URL)).abort([None, *many], 0)
    BatchSink(SinkOptions(URL)).abort(many)
    assert [len(names) for names in log.forgotten] == 2 * [limits.DELETE_PRODUCERS_MAX, 1]
    assert log.closed == 4


class FakeStaging:
    """Takes what is staged; a receipt is a part."""

    made: list[FakeStaging]
    log: Log

    def __init__(self, url: str, producer: str | None = None, *, connect_timeout: float, credentials: None) -> None:
        FakeStaging.made.append(self)
        self.name = producer or f"~{len(FakeStaging.made)}"
        self.instance = b"%016d" % len(FakeStaging.made)
        self.closed = False
        self.marked = b""

    def __enter__(self) -> FakeStaging:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self) -> Any:
        return SimpleNamespace(progress=FakeStaging.log.progress.get(self.name, b""))

    def send_batch(self, topic: str, records: pa.RecordBatch, progress: bytes) -> Any:
        self.marked = progress
        return SimpleNamespace(result=lambda: None)

    def stage(self, topic: str, records: pa.RecordBatch) -> list[StagedBatch]:
        return [part(topic, records.num_rows)]

    @staticmethod
    def parts(receipts: list[StagedBatch]) -> list[StagedBatch]:
        return receipts

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def staging(log: Log, monkeypatch: pytest.MonkeyPatch) -> list[FakeStaging]:
    FakeStaging.made, FakeStaging.log = [], log
    for module in (sink, transactions):
        monkeypatch.setattr(module, "StagingProducer", FakeStaging)
    monkeypatch.setattr(transactions, "Producer", lambda url, producer, connect_timeout, credentials: log._of(producer))
    return FakeStaging.made


def test_a_task_reports_its_staged_batches_and_their_micro_batch(
    log: Log, staging: list[FakeStaging], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that bytes are counted by topic, keys with values, in slices too; and that a task without rows connects to nobody."""
    empty = shaped(False, 0)
    assert StreamSink(SinkOptions(URL)).write(iter([empty])) == StagedRecords("", (), {})
    assert staging == []
    run = "0d7a2c88-93c9-4d9f-a6c4-1a7a9d3f0c11"
    said = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0", "spark.jobGroup.id": run}
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=said.get))
    found = StreamSink(SinkOptions(URL)).write(iter([shaped(False).slice(1), empty, shaped(False)]))
    assert found.parts == (part("t1", 4), part("t0", 3))
    assert found.payload == {"t1": 2 * 4, "t0": 2 + 2 + 2 * 4}
    assert (found.producer, found.query, found.batch, found.run, found.instance) == ("~1", "q", 0, run, b"%016d" % 1)
    said["spark.jobGroup.id"] = "my jobs"
    assert StreamSink(SinkOptions(URL)).write(iter([])).run == ""
    assert staging[0].closed
    assert log.forgotten == []


def test_a_failing_task_releases_its_staged_batches(log: Log, staging: list[FakeStaging], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_batches, "SLICE_BYTES", 1)  # so that something is staged by then

    def rows() -> Iterator[pa.RecordBatch]:
        yield shaped(False)
        raise OSError("the shuffle is gone")

    with pytest.raises(OSError, match="the shuffle is gone"):
        BatchSink(SinkOptions(URL, topic="t")).write(rows())
    assert (log.forgotten, log.shown) == ([["~1"]], [b"%016d" % 1])
    assert staging[0].closed


def test_a_task_that_stages_too_many_batches_gets_a_remedy(
    log: Log, staging: list[FakeStaging], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: FakeStaging, _topic: str, _records: pa.RecordBatch) -> list[StagedBatch]:
        raise Refused("16384 staged batches wait", "limit")

    monkeypatch.setattr(FakeStaging, "stage", refuse)
    with pytest.raises(Refused, match=r"16384 staged batches wait\. Each task stages at least one batch .* repartition by topic"):
        BatchSink(SinkOptions(URL, topic="t")).write(iter([shaped(False)]))
    assert log.forgotten == [["~1"]]


GIVEN = {"gateways": URL}


def test_options_of_a_write() -> None:
    """Proves that names are taken in any case, and that Spark's own are not taken for ours."""
    assert parse(GIVEN, stream=True) == SinkOptions(URL)
    given = {"GATEWAYS": f" {URL} ", "Topic": "t", "writeid": "w-1", "checkpointLocation": "/c", "queryName": "q"}
    assert parse(given, stream=False) == SinkOptions(URL, "t", "w-1")


@pytest.mark.parametrize(
    ("options", "stream", "message"),
    [
        ({}, False, "a write needs the option 'gateways': an address tutti://"),
        ({"gateways": "h"}, False, r"option 'gateways' is 'h' \(.*\); it takes an address tutti://"),
        (GIVEN | {"topic": "a b"}, False, r"option 'topic' is 'a b' \(.*\); it takes a topic's name"),
        (GIVEN | {"writeId": "a/b"}, False, r"option 'writeId' is 'a/b' \(.*\); it takes a name of this write"),
        (
            GIVEN | {"writeId": "w" * 201},
            False,
            r"option 'writeId' is 'www.* \(201 characters\); it takes a name of this write, of up to",
        ),
        (GIVEN | {"writeId": "w"}, True, r"'writeId' \('w'\) does not apply to a stream: checkpoint"),
        (GIVEN | {"path": "/x"}, False, r"option 'path' \('/x'\) is not accepted: a write goes to gateways"),
        (
            GIVEN | {"topics": "a"},
            False,
            "in the column 'topic': use `topic`. Options of a write are gateways, topic",
        ),
        (GIVEN | {"topik": "a"}, False, "did you mean 'topic'"),
        (GIVEN | {"acks": "all"}, False, "the name is unknown"),
    ],
)
def test_options_that_a_write_refuses(options: dict[str, str], stream: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(options, stream=stream)


TEXT, BINARY, NUMBER = StringType(), BinaryType(), IntegerType()


def headers(key: str = "key", name: DataType = TEXT, value: DataType = BINARY) -> DataType:
    return ArrayType(StructType([StructField(key, name), StructField("value", value)]))


def check(columns: list[tuple[str, DataType]], topic: str | None = None, overwrite: bool = False) -> None:
    check_columns(StructType([StructField(*column) for column in columns]), SinkOptions(URL, topic), overwrite=overwrite)


VALUE = ("value", TEXT)
ALL = [VALUE, ("key", BINARY), ("topic", TEXT), ("timestamp", TimestampType()), ("headers", headers())]


def test_columns_of_a_write() -> None:
    check(ALL)
    check([("value", BINARY), ("key", TEXT)], "t")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("key", TEXT)], "the column 'value' is missing: the DataFrame has key"),
        ([VALUE, ("id", NUMBER)], "column 'id' is not accepted: a write accepts value, key, topic, timestamp, headers"),
        ([VALUE, VALUE], "a column occurs twice in value, value"),
        ([("value", NUMBER)], "column 'value' has type int; it takes string or binary"),
        ([VALUE, ("key", NUMBER)], "column 'key' has type int; it takes string or binary"),
        ([VALUE, ("topic", BINARY)], "column 'topic' has type binary; it takes string"),
        ([VALUE, ("timestamp", TimestampNTZType())], "column 'timestamp' has type timestamp_ntz; it takes timestamp"),
        ([VALUE, ("headers", TEXT)], "column 'headers' has type string; it takes array<struct<key:string,value:binary>>"),
        ([VALUE, ("headers", headers("name"))], "column 'headers' has type array<struct<name"),
        ([VALUE, ("headers", headers(name=BINARY))], "column 'headers' has type array<struct<key:binary"),
        ([VALUE, ("headers", headers(value=TEXT))], "column 'headers' has type array<struct<key:string,value:string>>"),
        ([VALUE], "the write has no topic"),
    ],
)
def test_columns_that_a_write_refuses(columns: list[tuple[str, DataType]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(columns)


def test_nothing_is_written_over() -> None:
    with pytest.raises(UsageError, match=r"the log is append-only: .*foreachBatch"):
        check(ALL, overwrite=True)
