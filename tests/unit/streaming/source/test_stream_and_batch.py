"""Tests of the stream and batch readers over a fake log: where micro-batches end, what a plan covers, and what is serialised to
workers.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from tests.unit.streaming.fake_log import FakeLog, wait_until
from tutti import limits
from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import Damaged, OffsetOutOfRange, Refused, TuttiError, Unavailable, UsageError
from tutti.sources.locality import is_local_host
from tutti_spark.common.options import ReadOptions, parse
from tutti_spark.source import batch, partition_reader, stream
from tutti_spark.source.batch import BatchReader
from tutti_spark.source.open_log import source_of_log
from tutti_spark.source.planning import RecordsPartition, partition_count, partitions
from tutti_spark.source.stream import StreamReader

ALL = ReadAllAvailable()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    fake = FakeLog(100)
    monkeypatch.setattr(stream, "source_of", lambda options: fake)
    monkeypatch.setattr(batch, "source_of", lambda options: fake)
    return fake


@pytest.fixture
def readers() -> Iterator[list[StreamReader]]:
    made: list[StreamReader] = []
    yield made
    for reader in made:
        reader.stop()


def reading(readers: list[StreamReader], **options: Any) -> StreamReader:
    reader = StreamReader(ReadOptions(gateways="tutti://h:1", **options))
    readers.append(reader)
    return reader


def offset(at: int, begin: int, log: str = "log-1") -> dict[str, Any]:
    return {"log": log, "offset": at, "from": begin}


def covered(parts: list[InputPartition]) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in parts if isinstance(part, RecordsPartition)]


def test_a_query_from_its_start_to_the_frontier(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, start="earliest")
    start = reader.initialOffset()
    assert start == offset(0, 0)
    end = reader.latestOffset(start, ALL)
    assert end == offset(100, 0)
    assert covered(reader.partitions(start, end)) == [(0, 100)]
    assert reader.latestOffset(end, ALL) is end
    log.set(130)
    wait_until(lambda: reader.latestOffset(end, ALL) == offset(130, 100))
    told = reader.reportLatestOffset()
    assert told is not None
    assert (told["log"], told["offset"], told["lagRecords"]) == ("log-1", 130, 30)
    assert told["lagMs"] >= 0


def test_the_initial_offset_is_the_same_twice_though_the_log_grows(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, start="latest")
    assert reader.initialOffset() == offset(100, 100)
    log.set(150)
    wait_until(lambda: reader.latestOffset(offset(100, 100), ALL) == offset(150, 100))
    assert reader.initialOffset() == offset(100, 100)


def test_a_limit_holds(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, records_max=30)
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert reading(readers).getDefaultReadLimit() == ALL
    ends = [offset(0, 0)]
    while (end := reader.latestOffset(ends[-1], ReadMaxRows(30))) != ends[-1]:
        ends.append(end)
    assert [end["offset"] for end in ends] == [0, 30, 60, 90, 100]


def test_spark_is_informed_that_a_trigger_is_limited(readers: list[StreamReader]) -> None:
    """Else it could not be told from `Trigger.Once`, which takes all that there is."""
    limits_of = [({}, ALL), ({"records_max": 30, "bytes_max": 9}, ReadMaxRows(30)), ({"bytes_max": 9}, ReadMaxBytes(9))]
    limits_of.append(({"records_min": 5}, ReadMinRows(5)))
    for options, limit in limits_of:
        assert reading(readers, **options).getDefaultReadLimit() == limit


def test_a_limit_of_bytes_holds_and_is_asked_for_once_a_batch(log: FakeLog, readers: list[StreamReader]) -> None:
    log.record_bytes = 10
    reader = reading(readers, bytes_max=300, records_max=40, topics=("t",))
    limit = reader.getDefaultReadLimit()
    ends = [offset(0, 0)]
    while (end := reader.latestOffset(ends[-1], limit)) != ends[-1]:
        ends.append(end)
    assert [end["offset"] for end in ends] == [0, 30, 60, 90, 100]
    assert [asked for asked in log.asked if asked[0] == "bytes_end"][:2] == [
        ("bytes_end", 0, 40, 300, ("t",)),
        ("bytes_end", 30, 70, 300, ("t",)),
    ]
    assert reader.latestOffset(offset(0, 0), ALL) == offset(100, 0), "Trigger.Once"


def test_a_limit_of_bytes_counts_the_records_that_the_log_still_has(log: FakeLog, readers: list[StreamReader]) -> None:
    log.start = 50
    reader = reading(readers, bytes_max=20, fail_on_data_loss=False)
    assert reader.latestOffset(offset(10, 0), ReadMaxBytes(20)) == offset(70, 10)
    log.start = 100
    assert reading(readers, bytes_max=20).latestOffset(offset(10, 0), ReadMaxBytes(20)) == offset(100, 10)


def test_a_pattern_that_no_topic_matches_has_no_bytes(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, bytes_max=1, topics_pattern="none")
    assert reader.latestOffset(offset(0, 0), ReadMaxBytes(1)) == offset(100, 0)


def test_a_batch_of_so_many_bytes_ends_at_a_tick_and_nothing_is_asked_at_each_poll(
    log: FakeLog, readers: list[StreamReader]
) -> None:
    log.ticks, log.tick = [(1, 0, 20), (2, 0, 60)], 2
    reader = reading(readers, cut_ticks=1, bytes_max=30)
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(offset(0, 0), limit)
    assert end == offset(20, 0)
    last = reader.latestOffset(end, limit)
    assert last == offset(60, 20), "the next, as one alone exceeds the limit"
    asked = len(log.asked)
    for _ in range(100):
        assert reader.latestOffset(last, limit) is last
    assert sum(question[0] != "frontier" for question in log.asked[asked:]) == 2


def test_few_records_are_held_back_for_a_time(log: FakeLog, readers: list[StreamReader], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(stream, "monotonic", lambda: clock[0])
    reader = reading(readers, records_min=50, delay_ms=10_000)
    limit = reader.getDefaultReadLimit()
    start = offset(95, 95)
    end = reader.latestOffset(start, limit)
    assert end == offset(100, 95), "the first batch of a run is given at once"
    log.set(149)
    wait_until(lambda: reader._watch.frontier().offset == 149)
    clock[0] += 9.9
    assert reader.latestOffset(end, limit) is end
    clock[0] += 0.2
    late = reader.latestOffset(end, limit)
    assert late == offset(149, 100)
    log.set(199)
    wait_until(lambda: reader._watch.frontier().offset == 199)
    clock[0] += 20
    later = reader.latestOffset(late, limit)
    assert later == offset(199, 149)
    clock[0] += 20
    assert reader.latestOffset(later, limit) is later, "where there is nothing no batch is given, however long that lasts"


def test_enough_records_are_returned_at_once_and_a_run_that_ends_keeps_none_back(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, records_min=50, records_max=60)
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(offset(0, 0), limit)
    assert end == offset(60, 0)
    assert reader.latestOffset(end, limit) is end
    assert reader.latestOffset(end, ALL) == offset(100, 60), "Trigger.Once"
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, limit) == offset(100, 60)


def test_available_now_stops_where_the_log_was(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers)
    reader.prepareForTriggerAvailableNow()
    log.set(500)
    wait_until(lambda: reader.reportLatestOffset() is not None and reader._watch.frontier().offset == 500)
    end = reader.latestOffset(offset(0, 0), ALL)
    assert end == offset(100, 0)
    assert reader.latestOffset(end, ALL) is end
    late = offset(400, 400)  # "latest", asked for after the target was set
    assert reader.latestOffset(late, ALL) is late


def test_batches_end_at_ticks_and_ticks_are_not_asked_for_at_each_poll(log: FakeLog, readers: list[StreamReader]) -> None:
    log.ticks = [(1, 0, 20), (2, 0, 60), (3, 0, 90)]
    log.tick = 3
    reader = reading(readers, cut_ticks=1, records_max=50)
    end = reader.latestOffset(offset(0, 0), ReadMaxRows(50))
    assert end == offset(20, 0)
    end = reader.latestOffset(end, ReadMaxRows(50))
    assert end == offset(60, 20)
    last = reader.latestOffset(end, ReadMaxRows(50))
    assert last == offset(90, 60)
    for _ in range(100):
        assert reader.latestOffset(last, ReadMaxRows(50)) is last
    assert sum(asked[0] == "tick_end" for asked in log.asked) == 4


def test_a_tick_that_was_shown_before_its_records_ends_a_batch_once_they_are(log: FakeLog, readers: list[StreamReader]) -> None:
    log.set(10)
    log.tick, log.ticks = 1, [(1, 0, 12)]
    reader = reading(readers, cut_ticks=1)
    begin = offset(5, 5)
    for _ in range(3):
        assert reader.latestOffset(begin, ALL) is begin
    for upto in (11, 12):
        log.set(upto)
        wait_until(lambda upto=upto: reader._watch.frontier().offset == upto)
        assert reader.latestOffset(begin, ALL) == (begin if upto == 11 else offset(12, 5))
    assert [asked for asked in log.asked if asked[0] == "tick_end"] == [
        ("tick_end", 5, 10, 10, 1),
        ("tick_end", 9, 11, 11, 1),  # what was looked through is not looked through again
        ("tick_end", 10, 12, 12, 1),
    ]


def test_another_log_or_a_damaged_checkpoint_is_refused(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers)
    with pytest.raises(UsageError, match="log other"):
        reader.latestOffset(offset(500, 0, "other"), ALL)
    with pytest.raises(UsageError, match="log other"):
        reader.partitions(offset(0, 0, "other"), offset(10, 0, "other"))
    with pytest.raises(UsageError, match="not an offset of the source tutti"):
        reader.latestOffset({"t": {"0": 1}}, ALL)
    with pytest.raises(UsageError, match="corrupt"):
        reader.partitions(offset(50, 20), offset(40, 30))


def test_batch_0_is_planned_from_its_end(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, start="latest")
    assert reader.initialOffset() == offset(100, 100)
    assert covered(reader.partitions(reader.initialOffset(), offset(80, 50))) == [(50, 80)]


def test_a_start_beyond_the_frontier_is_refused(log: FakeLog, readers: list[StreamReader]) -> None:
    with pytest.raises(OffsetOutOfRange, match="'startingOffset' is 101"):
        reading(readers, start=101).initialOffset()
    assert reading(readers, start=100).initialOffset() == offset(100, 100)
    assert reading(readers, start=datetime(2013, 1, 1, tzinfo=UTC)).initialOffset() == offset(7, 7)


def test_lost_records_are_an_error_by_default(log: FakeLog, readers: list[StreamReader]) -> None:
    log.start = 40
    reader = reading(readers, start=10)
    with pytest.raises(OffsetOutOfRange, match="records 10 to 39 are no longer"):
        reader.initialOffset()
    with pytest.raises(OffsetOutOfRange, match="records 30 to 39 are no longer"):
        reader.partitions(offset(30, 0), offset(60, 30))
    lenient = reading(readers, start=10, fail_on_data_loss=False)
    with pytest.warns(UserWarning, match="records 10 to 39 are no longer in the log of .*: they are skipped"):
        assert lenient.initialOffset() == offset(40, 40)
    with pytest.warns(UserWarning, match="records 30 to 39"):
        assert covered(lenient.partitions(offset(30, 0), offset(60, 30))) == [(40, 60)]
    with pytest.warns(UserWarning, match="records 10 to 39"):
        assert lenient.partitions(offset(10, 0), offset(30, 10)) == []


def test_a_reader_is_serialised_without_its_open_resources(log: FakeLog, readers: list[StreamReader]) -> None:
    reader = reading(readers, columns=("offset",))
    reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - what Spark does
    assert copy._options == reader._options
    assert copy._frontier_watch is None
    reader.stop()
    reading(readers).stop()  # never used


def test_a_topic_that_does_not_exist_is_empty_with_a_warning(log: FakeLog, readers: list[StreamReader]) -> None:
    log.scan_failure = UsageError("this log has no topic 'ordres': did you mean 'orders'?")
    warned = "misspelt: this log has no topic 'ordres': did you mean 'orders'"
    stream_reader = reading(readers, topics=("ordres",))
    with pytest.warns(UserWarning, match=warned):
        assert stream_reader.latestOffset(offset(0, 0), ALL) == offset(100, 0)
    log.set(110)
    stream_reader.latestOffset(offset(100, 0), ALL)  # a second warning would be an error
    with pytest.warns(UserWarning, match=warned):
        assert covered(BatchReader(ReadOptions(gateways="tutti://h:1", topics=("ordres",))).partitions()) == [(0, 110)]
    BatchReader(ReadOptions(gateways="tutti://h:1")).partitions()


def test_a_failed_check_of_the_topics_does_not_end_the_read(log: FakeLog) -> None:
    log.scan_failure = Unavailable("no gateway knows all topics")
    assert covered(BatchReader(ReadOptions(gateways="tutti://h:1", topics=("a",))).partitions()) == [(0, 100)]
    [(_, request)] = [asked for asked in log.asked if asked[0] == "scan"]
    assert isinstance(request, ScanRequest)
    assert request.time_left is not None
    assert 0 <= request.time_left() <= 1.0


def test_large_ranges_and_wishes_are_planned_by_the_log(log: FakeLog) -> None:
    frontier = log.frontier()
    options = ReadOptions(gateways="tutti://h:1", topics=("a",))
    small = limits.SPARK_SMALL_RECORDS
    assert covered(partitions(log, frontier, 0, small, options)) == [(0, small)]
    assert not [asked for asked in log.asked if asked[0] == "plan"]
    assert covered(partitions(log, frontier, 0, 100, options)) == [(0, 100)]
    assert [asked for asked in log.asked if asked[0] == "plan"] == [("plan", 0, 100, ("a",), 1)]
    log.record_bytes = limits.SPARK_SPLIT_BYTES // 10  # few records, and each may have megabytes
    assert (
        len(partitions(log, frontier, 0, 100, options)) == partition_count(100 * log.record_bytes, len(os.sched_getaffinity(0))) > 4
    )
    wish = ReadOptions(gateways="tutti://h:1", partitions_min=2)
    assert covered(partitions(log, frontier, 0, 100, wish)) == [(0, 50), (50, 100)]
    assert partitions(log, frontier, 5, 5, wish) == []


@pytest.mark.parametrize(
    ("size", "processors", "splits"),
    [
        (0, 2, 1),
        (31, 2, 1),
        (32, 2, 2),
        (200, 2, 2),
        (1300, 2, 4),
        (1300, 8, 8),
        (70, 8, 4),
        (3000, 2, 16),
        (10**9, 2, 10_000),
    ],
)
def test_ranges_are_split_for_processors_and_for_size(size: int, processors: int, splits: int) -> None:
    assert partition_count(size << 20, processors) == splits


def test_a_pattern_matches_complete_names(log: FakeLog) -> None:
    log.names = ["flights", "flights2", "weather"]

    def topics(pattern: str) -> list[tuple[str, ...] | None]:
        options = ReadOptions(gateways="tutti://h:1", topics_pattern=pattern)
        parts = partitions(log, log.frontier(), 0, 10, options)
        return [part.topics for part in parts if isinstance(part, RecordsPartition)]

    assert topics("flights.") == [("flights2",)]
    assert ("topics", 10) in log.asked  # as the log knows them that goes as far as the range
    assert topics(".*") == [("flights", "flights2", "weather")]
    assert topics("fl") == []


def test_a_batch_read(log: FakeLog) -> None:
    def planned(**options: Any) -> list[tuple[int, int]]:
        return covered(BatchReader(ReadOptions(gateways="tutti://h:1", **options)).partitions())

    assert planned() == [(0, 100)]
    assert planned(start=20, end=30) == [(20, 30)]
    assert planned(start=30, end=30) == []
    assert planned(start="latest") == []
    assert planned(start=20, end=datetime(2013, 1, 1, tzinfo=UTC)) == []
    with pytest.raises(UsageError, match="'startingOffset' is 30, above 'endingOffset' 20"):
        planned(start=30, end=20)
    with pytest.raises(OffsetOutOfRange, match="'endingOffset' is 101"):
        planned(end=101)


def test_a_batch_read_of_a_log_that_has_not_begun_is_no_empty_one(log: FakeLog) -> None:
    log.set(offset=0, log="")
    with pytest.raises(Unavailable, match="holds no log yet"):
        BatchReader(ReadOptions(gateways="tutti://h:1")).partitions()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "30", "endingOffsets": "20"}, "'startingOffsets' is 30, above 'endingOffsets' 20"),
        ({"startingOffset": "30", "endingOffsets": "20"}, "'startingOffset' is 30, above 'endingOffsets' 20"),
        ({"startingOffsets": "101"}, "'startingOffsets' is 101, above"),
        ({"endingOffsets": "101"}, "'endingOffsets' is 101, above"),
    ],
)
def test_a_refused_range_names_the_options_as_given(log: FakeLog, given: dict[str, str], message: str) -> None:
    reader = BatchReader(parse({"gateways": "tutti://h:1"} | given, "batch"))
    with pytest.raises(UsageError, match=message):
        reader.partitions()


def test_a_task_knows_all_gateways_that_were_known_when_it_was_planned(log: FakeLog) -> None:
    log.set(100)
    log.addresses = (Address("other", 2), Address("h", 1))
    options = parse({"gateways": "tutti://h:1,spare:3", "startingOffset": "0"}, "batch")
    for partition in BatchReader(options).partitions():
        again = pickle.loads(pickle.dumps(partition))  # noqa: S301 - our own
        assert isinstance(again, RecordsPartition)
        source = source_of_log(options, again.log, again.end, again.gateways)
        assert [str(address) for address in source.addresses] == ["other:2", "h:1", "spare:3"]


def test_partitions_turn_to_different_gateways_and_to_silent_ones_last(log: FakeLog) -> None:
    log.addresses = (Address("b", 1), Address("dead", 1), Address("a", 1), Address("c", 1))
    log.responsive = (Address("a", 1), Address("b", 1), Address("c", 1))
    options = ReadOptions(gateways="tutti://a:1", partitions_min=4)
    parts = partitions(log, log.frontier(), 0, 100, options)
    turns = ["".join(host[0] for host, _ in part.gateways) for part in parts if isinstance(part, RecordsPartition)]
    assert turns == ["abcd", "bcad", "cabd", "abcd"]
    [small] = partitions(log, log.frontier(), 0, 3, ReadOptions(gateways="tutti://a:1"))
    assert isinstance(small, RecordsPartition)
    assert [host for host, _ in small.gateways] == ["a", "b", "c", "dead"]


def test_a_task_turns_to_the_gateways_of_its_own_host_first() -> None:
    options = ReadOptions(gateways="tutti://203.0.113.1:1")
    known = (("203.0.113.2", 1), ("127.0.0.1", 1), ("far.example", 1), (socket.gethostname(), 7), ("203.0.113.3", 1), ("::1", 1))
    found = [address.host for address in source_of_log(options, "log-1", 0, known).addresses]
    assert found[:3] == ["127.0.0.1", socket.gethostname(), "::1"]
    assert found[3:] == ["203.0.113.2", "far.example", "203.0.113.3", "203.0.113.1"]


@pytest.mark.parametrize("host", ["::", "224.0.0.1", "203.0.113.1", "2001:db8::1", "far.example"])
def test_addresses_that_are_not_this_host(host: str) -> None:
    assert not is_local_host(host)


def test_a_partition_is_read_on_its_own_log(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []

    def source(options: ReadOptions, uuid: str, seen: int, gateways: tuple[tuple[str, int], ...]) -> FakeLog:
        opened.append((uuid, seen, gateways))
        return log

    monkeypatch.setattr(partition_reader, "source_of_log", source)
    options = ReadOptions(gateways="tutti://h:1", columns=("offset",))
    batches = list(partition_reader.read_partition(options, RecordsPartition("log-1", 3, 6, ("a",), (("k", 2),))))
    assert [batch.column("offset").to_pylist() for batch in batches] == [[3, 4, 5]]
    assert opened == [("log-1", 6, (("k", 2),))]
    assert log.asked[-1] == ("scan", ScanRequest(3, 6, ("a",), ("offset",), absent_ok=True))
    assert list(partition_reader.read_partition(options, InputPartition(None))) == []


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (Unavailable("nobody answers"), "nobody answers; start one of these gateways"),
        (OffsetOutOfRange("the log begins at 90"), "the log begins at 90; retention has removed records"),
        (Damaged("position 7 fails its CRC", 7), "position 7 fails its CRC; another gateway may have intact copies"),
        (Refused("another log", "log"), "another log$"),
    ],
)
def test_the_error_of_a_task_names_the_unreadable_range(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch, error: TuttiError, advice: str
) -> None:
    """Proves that the error of a task names records, topics, gateway and log, and what to do, and is of the same kind as before."""

    def scan(request: ScanRequest) -> Iterator[ScanBatch]:
        yield from FakeLog().scan(replace(request, end=50))
        raise error

    log.addresses = (Address("far.example", 2), Address("h", 1))
    monkeypatch.setattr(log, "scan", scan)
    monkeypatch.setattr(partition_reader, "source_of_log", lambda *_: log)
    reading = partition_reader.read_partition(ReadOptions(gateways="tutti://h:1"), RecordsPartition("log-1", 30, 90, ("a", "b")))
    assert next(reading).num_rows == 20
    with pytest.raises(type(error), match=advice) as raised:
        next(reading)
    assert str(raised.value).startswith(
        "records 50 to 89 of topics a, b could not be read from gateway far.example:2 "
        "(the partition begins at 30, its log is log-1): "
    )
    assert getattr(raised.value, "code", "log") == "log"
    assert getattr(raised.value, "position", 7) == 7
