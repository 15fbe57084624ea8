"""Tests of a reader's position: it is after each returned record, also after an error. Polls end in time, a slow consumer keeps its
gateway, a gateway that lags or has another log is not used, and a closed reader raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, always, error_of, values
from tutti import limits
from tutti.data.client_protocol import Hello
from tutti.data.scan_request import ScanRequest
from tutti.errors import Behind, Damaged, OffsetOutOfRange, Refused, Unavailable, UsageError
from tutti.reader import Reader
from tutti.sources.flight import FlightSource


@pytest.fixture
def gateway() -> Iterator[ReadableGateway]:
    with ReadableGateway(records=20) as fake:
        yield fake


@pytest.mark.parametrize("topics", [None, ["b"]])
def test_the_position_is_after_each_returned_record(gateway: ReadableGateway, topics: list[str] | None) -> None:
    with Reader(gateway.url, topics=topics, columns=["value"], name="loader") as reader:
        for record in reader.records():
            assert reader.position == int(record.value or b"") + 1
            if record.value == b"5":
                reader.save()
                break
        assert gateway.reads.saved == {"loader": 6}
        batch = reader.poll(10)  # the rest of a batch that was left in its middle
        assert batch is not None
        assert values([batch])[0] == (6 if topics is None else 7)
    with Reader(gateway.url, start=0) as reader:
        records = reader.records()
        seen = [next(records).offset, next(records).offset]
        seen += values([next(reader)])  # somebody else goes on
        seen += [record.offset for record in records]
        assert seen == list(range(20))
        assert reader.position == 20


def test_a_failed_reader_continues_at_its_position(gateway: ReadableGateway) -> None:
    with Reader(gateway.url, start=0, patience=0.2) as reader:
        gateway.reads.cut_after = 4
        assert values([reader.poll(10)]) == [0, 1, 2, 3]
        gateway.reads.fail = always("damaged")
        for _ in range(2):
            with pytest.raises(Damaged):
                reader.poll(10)
            assert reader.position == 4
        gateway.reads.fail = lambda what: None
        assert values(reader) == list(range(4, 20))


@pytest.mark.parametrize("follow", [False, True])
def test_a_poll_ends_in_time_though_no_gateway_answers(gateway: ReadableGateway, follow: bool) -> None:
    with Reader(gateway.url, start=0, follow=follow, patience=60) as reader:
        gateway.reads.fail = always("unavailable")
        began = time.monotonic()
        assert reader.poll(0.2) is None
        assert time.monotonic() - began < 30, "a poll took as long as the reader's patience"
        gateway.reads.fail = lambda what: None
    with Reader(gateway.url, start=0, follow=follow, patience=1.5) as reader:
        gateway.reads.fail = always("unavailable")
        began = time.monotonic()
        said = r"^no gateway answered a read within \d+\.\d s, and every poll has failed: 127\.0\.0\.1:"
        with pytest.raises(Unavailable, match=said):  # noqa: PT012 - once that was so for the reader's patience
            while time.monotonic() - began < 60:
                assert reader.poll(0.2) is None
        assert time.monotonic() - began > 1.5
        assert reader.poll(0.2) is None, "the next error came before another 1.5 s had passed"
        gateway.reads.fail = lambda what: None
        assert values([reader.poll(10)]) == [0, 1, 2, 3]


@pytest.mark.parametrize("quiet", [True, False])
def test_each_answer_to_a_poll_restarts_the_timeout(gateway: ReadableGateway, quiet: bool) -> None:
    with Reader(gateway.url, start="latest" if quiet else 0, follow=quiet, patience=0.6) as reader:
        for _ in range(3):
            gateway.reads.fail = always("unavailable")
            assert reader.poll(0.1) is None  # and does not raise
            gateway.reads.fail = lambda what: None
            if quiet:
                assert reader.poll(0.1) is None  # nothing new, as the gateway says
            else:
                gateway.reads.cut_after = 4
                assert reader.poll(10) is not None
            time.sleep(0.7)


def test_a_waiting_reader_gets_an_error_when_its_gateway_stops_answering(gateway: ReadableGateway) -> None:
    """The answer before, that there was nothing new, was given once more: who followed waited for twice its patience."""

    def fail(what: str) -> None:
        if len(gateway.reads.asked) > 1:
            raise error_of("unavailable", "this gateway stands still")

    gateway.reads.fail = fail
    reads = FlightSource(gateway.url, patience=0.3)
    with pytest.raises(Unavailable, match=f"{gateway.gateway.port}: this gateway stands still"):
        reads.frontier(20, 60, 0.3)


def test_a_slow_consumer_keeps_its_gateway(gateway: ReadableGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_US_MAX", 1_500_000)
    reads, seen = FlightSource(gateway.url, patience=1), list[int]()
    for found in reads.scan(ScanRequest(0, 20)):
        time.sleep(1.6 if len(seen) < 8 else 0)  # longer than a stream may take
        seen += values([found.batch])
    assert seen == list(range(20))
    assert reads._route.rounds == 0
    assert len([asked for asked in gateway.gateway.heard if isinstance(asked, Hello)]) == 1


def test_each_stream_with_records_restarts_the_backoff(gateway: ReadableGateway) -> None:
    reads = FlightSource(gateway.url)
    batches = reads.scan(ScanRequest(0, 20))
    for _ in range(3):
        gateway.reads.cut_after = 4
        next(batches)
        assert reads._route.rounds == 0
    assert len(list(batches)) == 2


def test_only_a_reader_with_an_explicit_start_saves_a_lower_offset(gateway: ReadableGateway) -> None:
    gateway.reads.saved["loader"] = 4
    with Reader(gateway.url, name="loader") as reader:
        gateway.reads.saved["loader"] = 20
        next(reader)
        with pytest.raises(Refused, match="8 lies below") as caught:
            reader.save()
        assert caught.value.code == "offset"
    with Reader(gateway.url, name="loader", start=0) as reader:
        next(reader)
        reader.save()
        assert gateway.reads.saved == {"loader": 4}
        gateway.reads.saved["loader"] = 20
        next(reader)
        with pytest.raises(Refused, match="8 lies below"):
            reader.save()


def test_a_named_reader_whose_records_were_removed_raises_and_never_skips_them(gateway: ReadableGateway) -> None:
    gateway.reads.saved["loader"] = 4
    gateway.reads.start = 8
    with pytest.raises(OffsetOutOfRange, match=r"committed offset 4, .* begins at 8: retention removed records 4 to 7 unread"):
        Reader(gateway.url, name="loader")
    with Reader(gateway.url, name="loader", start="earliest") as reader:
        assert reader.position == 8
    gateway.reads.saved["loader"] = 8
    with Reader(gateway.url, name="loader") as reader:
        assert reader.position == 8


QUESTIONS: dict[str, Callable[[FlightSource], object]] = {
    "topics": FlightSource.topics,
    "readers": FlightSource.readers,
    "tick_end": lambda reads: reads.tick_end(0, 5, 20, 1),
    "bytes_end": lambda reads: reads.bytes_end(0, 20, 7),
    "offset_for_time": lambda reads: reads.offset_for_time(7),
    "plan": lambda reads: reads.plan(ScanRequest(0, 20)),
    "save_offset": lambda reads: reads.save_offset("loader", 3),
    "records": lambda reads: list(reads.scan(ScanRequest(0, 20))),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_no_request_is_answered_by_a_gateway_that_lags_or_has_another_log(
    gateway: ReadableGateway, question: Callable[[FlightSource], object]
) -> None:
    with ReadableGateway(records=10) as behind, ReadableGateway(records=20, log="b" * 32) as other:
        # The one is asked until the time is over, the other one is left at once.
        for next_one, seconds, error, said in ((behind, 1.0, Behind, "20 was seen"), (other, 30.0, Refused, "different groups")):
            gateway.reads.fail = lambda what: None
            reads = FlightSource(f"{gateway.url},127.0.0.1:{next_one.gateway.port}", timeout=seconds, patience=seconds)
            assert reads.frontier().offset == 20
            gateway.reads.fail = always("behind")
            with pytest.raises(error, match="was seen|all the time" if error is Behind else said):
                question(reads)


def test_topics_are_asked_of_a_gateway_that_goes_as_far_as_the_range(gateway: ReadableGateway) -> None:
    reads = FlightSource(gateway.url, timeout=1.0)
    with pytest.raises(Behind, match="25 was seen"):
        reads.topics(25)
    gateway.add(5)
    assert reads.topics(25)


@pytest.mark.parametrize(
    "use",
    [
        list,
        lambda reader: reader.poll(1),
        lambda reader: list(reader.records()),
        lambda reader: reader.save(),
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_a_closed_reader_raises_and_is_not_an_empty_one(
    gateway: ReadableGateway, follow: bool, use: Callable[[Reader], object]
) -> None:
    with Reader(gateway.url, start=0, end=20, follow=follow, name="loader") as reader:
        assert next(reader).num_rows == 4
    with pytest.raises(UsageError, match="the reader is closed: create a new one"):
        use(reader)
    assert (reader.position, reader.end) == (4, 20)
    reader.close()
