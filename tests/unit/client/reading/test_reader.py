"""Tests of readers with gateways that fail on demand: each offset comes once after any disconnect, and no visible record is
missing.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.ports import free_port
from tests.support.processes import in_child
from tests.unit.client.fake_flight_server import ReadableGateway, always, error_of, read_values, values
from tests.unit.client.fake_gateway import LOG_UUID
from tutti import limits
from tutti.data.frames.columns import COLUMNS, schema_of
from tutti.data.scan_request import ScanRequest
from tutti.errors import Behind, ConfigError, Damaged, OffsetOutOfRange, Refused, TuttiError, Unavailable, UsageError
from tutti.reader import Reader, Record
from tutti.sources.flight import FlightSource
from tutti.sources.source import Frontier, Range, Topic


@pytest.fixture
def gateway() -> Iterator[ReadableGateway]:
    with ReadableGateway(records=20) as fake:
        yield fake


def test_a_range_in_offset_order(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=3, end=15) as reader:
        assert (reader.position, reader.end) == (3, 15)
        batches = list(reader)
        assert reader.position == 15
        assert next(reader, None) is None
    assert values(batches) == list(range(3, 15))
    assert all(batch.schema == schema_of(COLUMNS) and batch.schema.metadata is None for batch in batches)


def test_without_end_the_frontier_at_open(gateway: ReadableGateway) -> None:
    with Reader(gateway.url) as reader:
        gateway.add(5)
        assert values(reader) == list(range(20))


def test_topics_and_columns(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, topics=["b"], columns=["value"], start=4) as reader:
        batches = list(reader)
        assert reader.position == 20
    assert values(batches) == list(range(5, 20, 2))
    assert {tuple(batch.schema.names) for batch in batches} == {("value",)}


def test_the_position_is_after_each_returned_batch(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, topics=["a"], columns=["value"]) as reader:
        positions = [reader.position for _ in reader]
    assert positions == [7, 15, 19]


def test_topics_of_an_empty_range_are_asked_for_unless_it_is_followed(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, topics=["a"], start="latest") as reader:
        assert list(reader) == []

    def fail(what: str) -> None:
        if what == "do_get":
            raise error_of("unknown_topic", "this log has no topic 'nope'")

    gateway.reads.fail = fail
    for start, end in (("latest", None), (5, 5)):
        with pytest.raises(UsageError, match="no topic 'nope'"):
            Reader(gateway.url, topics=["nope"], start=start, end=end)
    asked = [ticket for what, ticket in gateway.reads.asked if what == "do_get"]
    assert [(ticket["start"], ticket["end"], ticket["absent_ok"]) for ticket in asked] == [(20, 20, False)] * 3
    with Reader(gateway.url, topics=["nope"], start="latest", follow=True) as reader:
        assert reader.position == 20
    with Reader(gateway.url, start="latest") as reader:
        assert list(reader) == []


def test_places(gateway: ReadableGateway) -> None:
    assert Reader(gateway.url, start="latest", follow=True).position == 20
    assert Reader(gateway.url, start="earliest").position == 0
    at = datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
    with Reader(gateway.url, start=at, end=datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)) as reader:
        assert values(reader) == [7, 8]
    with Reader(gateway.url, start=20) as reader:
        assert list(reader) == []
    gateway.reads.start = 5
    assert Reader(gateway.url).position == 5


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"start": 21}, OffsetOutOfRange, "start=21 is above the frontier: the log is committed up to offset 20"),
        ({"end": 21}, OffsetOutOfRange, "end=21 is above the frontier"),
        ({"start": -1}, OffsetOutOfRange, "never negative"),
        ({"start": 7, "end": 5}, OffsetOutOfRange, "offset 5, is below its start, offset 7"),
        ({"start": "5"}, UsageError, "start='5' is not a position"),
        ({"start": 5.0}, UsageError, "start=5.0 is not a position"),
        ({"end": True}, UsageError, "end=True is not a position"),
        ({"start": datetime(2024, 1, 1)}, UsageError, "has no zone"),  # noqa: DTZ001 - what is tested
        ({"columns": ["offse"]}, UsageError, "did you mean 'offset'"),
        ({"columns": []}, UsageError, "columns is empty"),
        ({"topics": "a"}, UsageError, "use ['a']"),
        ({"topics": 5}, UsageError, "topics must be a list of names, not int (5)"),
        ({"columns": 5}, UsageError, "columns must be a list of names, not int (5)"),
        ({"follow": "yes"}, UsageError, "follow must be True or False, not 'yes'"),
        ({"topics": []}, UsageError, "topics is empty"),
        ({"topics": ["a b"]}, UsageError, "contains ' '"),
        ({"name": "a b"}, UsageError, "reader name"),
        ({"ordering": "x"}, UsageError, "not supported"),
        ({"origin": "g1"}, UsageError, "add ordering='unordered'"),
        ({"ordering": "unordered", "origin": ""}, UsageError, "origin='' must be the name of a gateway or of a lane"),
        ({"ordering": "unordered", "origin": 1}, UsageError, "origin=1 must be the name"),
        ({"ordering": "unordered", "name": "loader"}, UsageError, "cannot have a name"),
        ({"ordering": "unordered", "start": 5}, UsageError, "start=5 is an offset, which only counts in one lane"),
        ({"ordering": "unordered", "end": 5}, UsageError, "end=5 is an offset"),
        ({"ordering": "unordered", "start": "soon"}, UsageError, "start='soon' is not a position"),
        ({"ordering": "unordered", "origin": "g7"}, UsageError, "origin 'g7' has no lane: no gateway has a lane yet"),
        ({"path": "somewhere"}, UsageError, "exactly one of"),
    ],
)
def test_wrong_arguments_are_reported(
    gateway: ReadableGateway, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=re.escape(said)):
        Reader(gateway.url, **arguments)


def test_without_a_url_the_environment_names_the_gateways(
    gateway: ReadableGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUTTI_URL", gateway.url)
    with Reader(start=0) as reader:
        assert gateway.url in repr(reader)
    with pytest.raises(TuttiError, match="none"):
        Reader(path=tmp_path / "none")
    with pytest.raises(TuttiError, match="none"):
        Reader(archive=tmp_path / "none")


@pytest.mark.parametrize("url", [5, ["tutti://127.0.0.1:7400"], b"tutti://127.0.0.1:7400"])
def test_a_url_that_is_not_text_is_reported(url: Any) -> None:
    with pytest.raises(ConfigError, match=f"a url must be text, not {type(url).__name__}"):
        Reader(url)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (5, "path must be a data directory or a list of them, not int (5)"),
        (b"data", "path must be a data directory or a list of them, not bytes (b'data')"),
        ([], "at least one data directory"),
        ([5], "5 is not the path of a data directory"),
        ("a\0b", r"'a\x00b' is not the path of a data directory"),
        ("", "'' is not the path of a data directory"),
    ],
)
def test_an_invalid_path_is_reported(path: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Reader(path=path)


def test_follow_continues_with_later_commits(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start="latest", follow=True, end=24) as reader:
        assert reader.poll(timeout=0.05) is None
        threading.Timer(0.1, gateway.add, (2,)).start()
        batch = reader.poll(timeout=10)
        assert values([batch]) == [20, 21]
        threading.Timer(0.1, gateway.add, (10,)).start()
        assert values(reader) == [22, 23]
        assert reader.poll(timeout=10) is None
        assert (reader.position, reader.end) == (24, 24)


def test_follow_of_a_topic_moves_on_over_others(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, topics=["nothing yet".replace(" ", "-")], start=0, follow=True) as reader:
        assert reader.poll(timeout=0.05) is None
        assert reader.position == 20


def test_records_one_by_one(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=3, end=5) as reader:
        first, second = reader.records()
    assert first == Record(3, "b", None, b"3", datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), [("h", b"v")], "fake", "p", 4, 65537, 0)
    assert second.offset == 4
    with Reader(gateway.url, start=3, end=4, columns=["value", "offset"]) as reader:
        (only,) = reader.records()
    assert (only.value, only.offset, only.topic) == (b"3", 3, None)


def test_a_named_reader_saves_and_continues(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, name="loader") as reader:
        assert reader.position == 0
        next(reader)
        reader.save()
    assert gateway.reads.saved == {"loader": 4}
    with Reader(gateway.url, name="loader") as reader:
        assert values(reader) == list(range(4, 20))
    assert Reader(gateway.url, name="loader", start=1).position == 1
    with Reader(gateway.url) as reader, pytest.raises(UsageError, match="has no name"):
        reader.save()


def test_a_broken_stream_continues_at_its_position(gateway: ReadableGateway) -> None:
    for topics, expected in ((None, list(range(20))), (["b"], list(range(1, 20, 2)))):
        gateway.reads.cut_after = 4
        with Reader(gateway.url, topics=topics, columns=["value"]) as reader:
            assert values(reader) == expected
        assert gateway.reads.cut_after is None


def test_a_reads_process_that_comes_back_elsewhere_is_found(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=0, follow=True) as reader:
        seen = values([reader.poll(10)])
        gateway.restart_reads()
        gateway.add(3)
        while len(seen) < 23:
            batch = reader.poll(10)
            assert batch is not None
            seen += values([batch])
    assert seen == list(range(23))


def test_another_gateway_of_the_url_continues(gateway: ReadableGateway) -> None:
    with ReadableGateway(records=20) as other:
        with Reader(f"{gateway.url},127.0.0.1:{other.gateway.port}", start=0) as reader:
            gateway.reads.cut_after = 4
            seen = values([next(reader)])
            gateway.reads.fail = always("busy")
            seen += values(reader)
        assert seen == list(range(20))
        assert any(what == "do_get" for what, _ in other.reads.asked)


def test_a_gateway_that_lags_is_not_believed(gateway: ReadableGateway) -> None:
    with ReadableGateway(records=10) as behind:
        url = f"{gateway.url},127.0.0.1:{behind.gateway.port}"
        reads = FlightSource(url, timeout=2.0)
        assert reads.frontier().offset == 20
        gateway.reads.fail = always("stopping")
        with pytest.raises(Behind, match="20 was seen"):
            reads.frontier()
        behind.add(10)
        assert reads.frontier().offset == 20
        assert {asked["seen"] for what, asked in behind.reads.asked if what == "frontier"} == {20}


def test_a_gateway_of_another_log_is_refused(gateway: ReadableGateway) -> None:
    with ReadableGateway(records=20, log="b" * 32) as other:
        reads = FlightSource(f"{gateway.url},127.0.0.1:{other.gateway.port}")
        assert reads.frontier().log == LOG_UUID
        gateway.reads.fail = always("stopping")
        with pytest.raises(Refused, match="different groups") as caught:
            reads.frontier()
        assert caught.value.code == "log"
        with pytest.raises(Refused, match="different groups"):
            list(reads.scan(ScanRequest(0, 5)))


def test_unreachable_gateways_are_listed_with_names_and_times() -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match=re.escape("answered a read within 0.5 s: 127.0.0.1:1: ")):
        Reader("tutti://127.0.0.1:1", connect_timeout=0.5)
    assert time.monotonic() - began < 6


@pytest.mark.parametrize("options", [{"patience": 1.5}, {"connect_timeout": 1.5}])
def test_each_address_is_listed_once_with_its_failure_and_the_shorter_wait_holds(options: dict[str, float]) -> None:
    began, port = time.monotonic(), free_port()
    with pytest.raises(Unavailable) as caught:
        Reader(f"tutti://127.0.0.1:1,127.0.0.1:{port}", **options)  # type: ignore[arg-type]  # of seconds
    refused = "connection refused"
    said = f"no gateway answered a read within 1.5 s: 127.0.0.1:1: {refused}; 127.0.0.1:{port}: {refused}"
    assert str(caught.value) == f"{said}. Start the gateway where connections are refused, or correct the port"
    assert time.monotonic() - began < limits.CONNECT_TIMEOUT_US / 1e6


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda url: Reader(url, patience=float("nan")), "patience must be a number of seconds from 0 to 9223372036, not nan"),
        (lambda url: Reader(url, connect_timeout=-1), "connect_timeout must be a number of seconds from 0 to 9223372036, not -1"),
        (lambda url: Reader(url).poll("1"), "timeout must be a number of seconds up to"),  # type: ignore[arg-type]  # the mistake,
    ],
)
def test_an_invalid_duration_is_reported(gateway: ReadableGateway, call: Callable[[str], object], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        call(gateway.url)


def test_patience_ends(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=0, follow=True, patience=0.4) as reader:
        gateway.reads.cut_after = 4
        assert values([reader.poll(10)]) == [0, 1, 2, 3]
        gateway.reads.fail = always("unavailable")
        began = time.monotonic()
        with pytest.raises(Unavailable, match="unavailable all the time"):
            list(reader)
        assert 0.3 < time.monotonic() - began < 8
    gateway.reads.fail = lambda what: None
    with Reader(gateway.url, start="latest", follow=True, patience=30) as reader:
        gateway.reads.fail = always("unavailable")
        began = time.monotonic()
        assert reader.poll(0.2) is None
        assert time.monotonic() - began < 5
        gateway.reads.fail = lambda what: None
        gateway.add(1)
        assert values([reader.poll(10)]) == [20]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("below_start", OffsetOutOfRange),
        ("beyond_frontier", OffsetOutOfRange),
        ("unknown_topic", UsageError),
        ("malformed", UsageError),
        ("damaged", Damaged),
        ("refused", Refused),
    ],
)
def test_errors_of_a_gateway_are_raised_as_their_type(gateway: ReadableGateway, code: str, error: type[TuttiError]) -> None:
    reads = FlightSource(gateway.url)
    gateway.reads.fail = always(code)
    with pytest.raises(error, match="all the time"):
        list(reads.scan(ScanRequest(0, 5)))
    with pytest.raises(error, match="all the time"):
        reads.topics()


def test_corruption_is_raised_after_all_good_records_before_it(gateway: ReadableGateway) -> None:
    batches = gateway.reads._batches

    def damaged(asked: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from list(batches(asked, schema))[:2]
        raise error_of("damaged", "position 9 fails its CRC", offset=8)

    gateway.reads._batches = damaged  # type: ignore[method-assign]  # the damage
    with Reader(gateway.url) as reader:
        seen: list[int] = []
        with pytest.raises(Damaged, match="position 9"):  # noqa: PT012 - the loop is what raises
            for batch in reader:
                seen += values([batch])
        assert seen == list(range(8))
        assert reader.position == 8


def test_questions(gateway: ReadableGateway) -> None:
    with FlightSource(gateway.url) as reads:
        assert reads.frontier() == Frontier(LOG_UUID, 0, 20, 22, 5, 1, "primary")
        assert reads.plan(ScanRequest(0, 20), splits=2) == [Range(0, 20, 20, 1)]
        assert reads.offset_for_time(7_000_000) == 7
        assert reads.offset_for_time(datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)) == 7
        assert reads.topics() == [Topic("t", 1, 2, 3, 4, 5, 6)]
        assert reads.readers() == {}
        threading.Timer(0.1, gateway.add, (1,)).start()
        assert reads.frontier(beyond=20, timeout=10).offset == 21
        began = time.monotonic()
        assert reads.frontier(beyond=21, timeout=0.1).offset == 21
        assert time.monotonic() - began < 5


def test_threads_share_the_connection_of_the_process(gateway: ReadableGateway) -> None:
    found: list[list[int]] = []
    reads = FlightSource(gateway.url)
    threads = [threading.Thread(target=lambda: found.append(read_values(reads, 0, 20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [list(range(20))] * 8
    assert len(gateway.gateway.requests(type(gateway.gateway.heard[0]))) <= 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_when_it_reads(gateway: ReadableGateway) -> None:
    assert FlightSource(gateway.url).frontier().offset == 20

    def read() -> str:
        return str(FlightSource(gateway.url).frontier())

    assert re.match(rf"UsageError: process \d+ was forked from process {os.getpid()}.*spawn", in_child(read))
