"""Tests of producers and readers with a real gateway: the promises of the interface, word for word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.gateway_process import GatewayProcess
from tutti import (
    Aborted,
    ConfigError,
    Fenced,
    OffsetOutOfRange,
    Producer,
    Reader,
    Receipt,
    Refused,
    TooLarge,
    Unknown,
    UsageError,
    limits,
)
from tutti.data.scan_request import ScanRequest
from tutti.io.admin import AdminClient
from tutti.sources.files import FileSource
from tutti.sources.flight import FlightSource


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as process:
        yield process


def values(batches: Any) -> list[Any]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_from_send_to_read(gateway: GatewayProcess) -> None:
    stamp = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    with Producer(gateway.url, producer="jfk-departures") as p:
        first = p.send("flights", b"value", key=b"k", timestamp=stamp, headers=[("a", b"b"), ("c", None)]).result(timeout=10)
        receipts = [p.send("flights", b"%d" % number) for number in range(5000)]
        assert p.flush(timeout=20) == 0
        assert [receipt.result(0) for receipt in receipts] == list(range(first + 1, first + 5001))
    with Reader(gateway.url, topics=["flights"], start=first, end=first + 1) as r:
        (record,) = r.records()
    assert (record.offset, record.topic, record.key, record.value) == (first, "flights", b"k", b"value")
    assert (record.timestamp, record.headers) == (stamp, [("a", b"b"), ("c", None)])
    assert (record.gateway, record.producer, record.sequence, record.view) == ("g1", "jfk-departures", 1, 1 << 16 | 1)
    with Reader(gateway.url, topics=["flights"], start=first + 1) as r:
        assert values(r) == [b"%d" % number for number in range(5000)]
        assert r.position == r.end


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_batches_and_compression(gateway: GatewayProcess, compression: Any) -> None:
    rows = [b"%d" % number * 20 for number in range(3000)]
    batch = pa.record_batch({"key": pa.array(rows, pa.binary()), "value": pa.array(rows, pa.large_binary())})
    with Producer(gateway.url, compression=compression) as p:
        receipt = p.send_batch("batches", batch)
        offset = receipt.result(10)
        assert receipt.count == 3000
        assert p.send("batches", rows[0]).result(10) == offset + 3000
    with Reader(gateway.url, start=offset, end=offset + 3001, columns=["value"]) as r:
        assert values(r) == [*rows, rows[0]]


def test_the_largest_that_goes_and_the_smallest_that_does_not(gateway: GatewayProcess) -> None:
    largest = b"x" * limits.RECORD_BYTES_MAX
    with Producer(gateway.url) as p:
        offset = p.send("large", largest).result(20)
        with pytest.raises(TooLarge, match="4194304"):
            p.send("large", largest + b"x").result(20)
        batch = pa.record_batch({"value": pa.array([b"y" * (limits.BODY_BYTES_MAX // 4 - 200)] * 4, pa.binary())})
        assert p.send_batch("large", batch).result(20) == offset + 1
        with pytest.raises(TooLarge, match="8388608"):
            p.send_batch("large", pa.record_batch({"value": pa.array([b"y" * (limits.BODY_BYTES_MAX // 4)] * 4)})).result(20)
        assert p.send("large", b"after").result(20) == offset + 5
    with Reader(gateway.url, start=offset, end=offset + 6, columns=["value"]) as r:
        assert [len(value) for value in values(r)] == [len(largest), *[limits.BODY_BYTES_MAX // 4 - 200] * 4, 5]


def test_resume_and_fencing(gateway: GatewayProcess) -> None:
    with Producer(gateway.url, producer="resuming") as old:
        assert old.resume() == (0, b"")
        old.send("r", b"1", progress=b"one").result(10)
        old.send("r", b"2", progress=b"\x00\xff" * 128).result(10)
        with Producer(gateway.url, producer="resuming") as new:
            assert new.resume() == (2, b"\x00\xff" * 128)
            assert new.epoch == old.epoch + 1
            with pytest.raises(Fenced, match="another instance"):
                old.send("r", b"too late").result(10)
            new.send("r", b"3", progress=b"three")
    with Producer(gateway.url, producer="resuming") as p:
        assert p.resume() == (3, b"three")
    with Reader(gateway.url, topics=["r"]) as r:
        assert [(record.value, record.sequence) for record in r.records()] == [(b"1", 1), (b"2", 2), (b"3", 3)]


def test_an_operator_fences_and_forgets(gateway: GatewayProcess) -> None:
    with AdminClient(gateway.url) as control, Producer(gateway.url, producer="fenced") as p:
        p.send("f", b"1").result(10)
        control.fence("fenced")
        with pytest.raises(Fenced):
            p.send("f", b"2").result(10)
        line = next(line for line in control.producers() if line["name"] == "fenced")
        assert (line["epoch"], line["sequence"]) == (2, 1)
        control.forget(["fenced"])
        assert "fenced" not in [line["name"] for line in control.producers()]
        with pytest.raises(Refused, match="no-such"):
            control.fence("no-such")
        with Producer(gateway.url, producer="fenced") as again:
            assert again.resume() == (0, b"")
            assert again.epoch > 2


def test_start_times_and_named_readers(gateway: GatewayProcess) -> None:
    begin = datetime.now(UTC)
    with Producer(gateway.url) as p:
        first = p.send("places", b"0", timestamp=begin).result(10)
        p.send("places", b"1", timestamp=begin + timedelta(days=1)).result(10)
    with Reader(gateway.url, topics=["places"], start=begin + timedelta(hours=1)) as r:
        assert values(r) == [b"1"]
    with Reader(gateway.url, topics=["places"], start=first, name="loader", columns=["value"]) as r:
        assert values(r) == [b"0", b"1"]
        r.save()
    with Reader(gateway.url, topics=["places"], name="loader") as r:
        assert values(r) == []
        saved = r.position
    with FlightSource(gateway.url) as reads:
        assert reads.readers() == {"loader": saved}
        frontier = reads.frontier()
    mistakes: list[dict[str, Any]] = [{"start": frontier.offset + 1}, {"end": frontier.offset + 1}, {"start": -1}]
    for wrong in mistakes:
        with pytest.raises(OffsetOutOfRange, match=str(next(iter(wrong.values())))):
            Reader(gateway.url, **wrong)
    with pytest.raises(UsageError, match="did you mean 'places'"):
        list(Reader(gateway.url, topics=["place"]))


def test_follow_delivers_each_commit(gateway: GatewayProcess) -> None:
    with Reader(gateway.url, topics=["followed"], start="latest", follow=True, columns=["value"]) as r, Producer(gateway.url) as p:
        assert r.poll(0.1) is None
        for number in range(20):
            p.send("followed", b"%d" % number).result(10)
            batch = r.poll(10)
            assert batch is not None
            assert values([batch]) == [b"%d" % number]


def test_latest_is_resolved_before_a_reader_is_returned(gateway: GatewayProcess) -> None:
    """Proves that what commits right after the constructor is read, ordered and unordered, also where it was not polled before."""
    with Producer(gateway.url) as producer:
        for ordering in ("total", "unordered"):
            producer.send("at-once", b"before", ordering=ordering).result(30)
            with Reader(gateway.url, start="latest", follow=True, columns=["value"], ordering=ordering) as reader:
                producer.send("at-once", b"after", ordering=ordering).result(30)
                batch = reader.poll(30)
                assert batch is not None
                assert values([batch]) == [b"after"]


def test_reading_files_equals_reading_the_gateway(gateway: GatewayProcess) -> None:
    with Producer(gateway.url) as p:
        for number in range(500):
            p.send(f"t{number % 3}", b"%d" % number)
    with FlightSource(gateway.url) as reads, FileSource(gateway.data) as files:
        served, read = reads.frontier(), files.frontier()
        assert (served.log, served.start, served.offset) == (read.log, read.start, read.offset)
        assert reads.topics() == files.topics()
        assert reads.readers() == files.readers()
        ends = [source.tick_end(0, served.offset // 2, served.offset, 1) for source in (reads, files)]
        assert ends[0] == ends[1]
        for topics in (None, ("t1",)):
            ends = [source.bytes_end(10, served.offset, 3_000, topics) for source in (reads, files)]
            assert ends[0] == ends[1]
            assert 10 < ends[0] < served.offset
        everything = ScanRequest(0, served.offset)
        assert reads.plan(everything, split_bytes=10_000) == files.plan(everything, split_bytes=10_000)
        for topics in (None, ("t1",)):
            request = ScanRequest(0, served.offset, topics)
            tables = [pa.Table.from_batches(found.batch for found in source.scan(request)) for source in (reads, files)]
            assert tables[0].equals(tables[1])
        now = datetime.now(UTC)
        assert reads.offset_for_time(now) == files.offset_for_time(now)
        threading.Timer(0.1, _send_one, (gateway.url,)).start()
        assert files.frontier(beyond=read.offset, timeout=10).offset == read.offset + 1
    with Reader(path=gateway.data, start="latest", follow=True, columns=["value"]) as r:
        threading.Timer(0.1, _send_one, (gateway.url,)).start()
        assert values([r.poll(10)]) == [b"one"]
        with pytest.raises(UsageError, match="cannot save"):
            Reader(path=gateway.data, name="x").save()


def _send_one(url: str) -> None:
    with Producer(url) as p:
        p.send("t1", b"one")


def test_every_wrong_port_of_a_gateway_names_the_right_one(gateway: GatewayProcess) -> None:
    for above in (2, 3):
        with pytest.raises(ConfigError, match=f"{above} lower by default: tutti://127.0.0.1:{gateway.port}"):
            Producer(f"tutti://127.0.0.1:{gateway.port + above}")
        with pytest.raises(ConfigError, match=f"tutti://127.0.0.1:{gateway.port}"):
            Reader(f"tutti://127.0.0.1:{gateway.port + above}")


def test_kills_are_pauses(tmp_path: Path) -> None:
    with (
        GatewayProcess(tmp_path) as gateway,
        Reader(gateway.url, topics=["t"], start=0, follow=True, columns=["offset", "value"]) as reader,
        Producer(gateway.url, producer="p") as producer,
    ):
        stop = threading.Event()
        receipts: list[Receipt] = []

        def send() -> None:
            while not stop.wait(0.0005):
                receipts.append(producer.send("t", b"%d" % len(receipts), progress=b"%d" % len(receipts)))

        read: list[tuple[Any, Any]] = []

        def read_until(count: int) -> None:
            while len(read) < count:
                batch = reader.poll(10)
                if batch is not None:
                    read.extend(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for _ in range(3):
                read_until(len(read) + 100)
                gateway.kill()
                gateway.start()
            read_until(len(read) + 100)
        finally:
            stop.set()
            thread.join()
        assert producer.flush(30) == 0
        offsets = [receipt.result(0) for receipt in receipts]
        assert producer.resume() == (len(receipts), b"%d" % (len(receipts) - 1))
        read_until(len(receipts))
        assert read == [(offset, b"%d" % number) for number, offset in enumerate(offsets)]
        assert reader.position == offsets[-1] + 1
        producer.close()
        gateway.stop()
        with Reader(path=gateway.data, topics=["t"], columns=["offset", "value"]) as r:
            assert [(record.offset, record.value) for record in r.records()] == read


def test_records_fail_if_their_gateway_stays_away_until_the_delivery_timeout(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as gateway:
        producer = Producer(gateway.url, delivery_timeout=4.0)
        producer.send("t", b"1").result(10)
        gateway.kill()
        receipt = producer.send("t", b"2")
        with pytest.raises(TimeoutError):
            receipt.result(timeout=0.1)
        with pytest.raises((Aborted, Unknown), match=r"(within|after) 4 s \(delivery_timeout\).*connection refused"):
            receipt.result(timeout=10)
        producer.close()
