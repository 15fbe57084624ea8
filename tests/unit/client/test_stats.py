"""Tests of `stats()` and `repr()` of producers and readers."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, always
from tests.unit.client.fake_gateway import FakeGateway, until
from tests.unit.client.two_gateways import Two
from tests.unit.client.two_gateways import send as send_unordered
from tutti import Fenced, NotAllowed, ProducerStats, Reader, TooLarge, UsageError
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.producer import Producer


def test_every_sent_record_is_acknowledged_failed_or_buffered() -> None:
    gate = threading.Event()

    def hold(heard: object) -> list[Any] | None:
        return [] if isinstance(heard, Frame) and not gate.is_set() else None

    with FakeGateway(rule=hold) as gateway, Producer(gateway.url, producer="p") as p:
        batch = pa.record_batch({"value": pa.array([b"abc"] * 5, pa.binary())})
        p.send_batch("t", batch)
        receipts = [p.send("t", b"0123456789", key=b"k") for _ in range(3)]
        with pytest.raises(TooLarge):
            p.send("t", bytes(5 << 20)).result(10)
        until(gateway.frames)
        found = p.stats()
        assert (found.records_sent, found.records_acknowledged, found.records_failed, found.records_buffered) == (9, 0, 1, 8)
        assert found.records_buffered == len(p)
        assert 5 <= found.records_in_flight <= 8
        assert found.bytes_in_flight > 0
        gate.set()
        assert receipts[-1].result(30) == 7
        p.flush(30)
        found = p.stats()
    assert (found.records_sent, found.records_acknowledged, found.records_failed, found.records_buffered) == (9, 8, 1, 0)
    assert (found.records_in_flight, found.bytes_in_flight, found.bytes_buffered) == (0, 0, 0)
    assert found.bytes_sent == found.bytes_acknowledged >= 3 * 11
    assert found.records_resent >= 5  # the held frames were sent again after a probe


def test_a_connected_producer() -> None:
    with FakeGateway() as gateway, Producer(gateway.url, producer="p") as p:
        p.send("t", b"1").result(10)
        found = until(lambda: (stats := p.stats()).connected and stats)
        assert (found.name, found.gateway, found.epoch) == ("p", f"127.0.0.1:{gateway.port}", 1)
        assert (found.outage, found.last_error, found.reconnects, found.failovers) == (0, "", 0, 0)
    assert p.stats().records_acknowledged == 1
    assert p.closed


def test_a_fail_over_is_counted_and_the_error_is_kept() -> None:
    two = Two()
    try:
        with Producer(two.g1.url, producer="p") as p:
            p.send("t", b"1").result(10)
            two.g1.stop()
            until(lambda: p.stats().failovers == 1)
            found = p.stats()
            assert (found.gateway, found.reconnects) == (f"127.0.0.1:{two.g2.port}", 1)
            assert f"127.0.0.1:{two.g1.port}: " in found.last_error
            p.send("t", b"2").result(10)
            assert p.stats().last_error == ""
    finally:
        two.close()


def test_an_outage_counts_its_seconds() -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        p.send("t", b"1").result(10)
        gateway.stop()
        first = until(lambda: p.stats().outage)
        assert until(lambda: p.stats().outage > first)
        found = p.stats()
        assert (found.connected, found.gateway) == (False, "")
        gateway.start()
        until(lambda: p.stats().connected)
        assert (p.stats().reconnects, p.stats().failovers) == (1, 0)


def test_a_producer_that_was_fenced_is_not_connected() -> None:
    def fence(heard: object) -> list[Any] | None:
        return [client_protocol.FencedAnswer(heard.producer, heard.epoch + 1, 1)] if isinstance(heard, Frame) else None

    with FakeGateway(rule=fence) as gateway:
        p = Producer(gateway.url, producer="p")
        with pytest.raises(Fenced):
            p.send("t", b"1").result(30)
        found = p.stats()
        assert (found.connected, found.gateway) == (False, "")
        assert found.last_error.startswith("producer 'p' is fenced: another instance began epoch 2")
        first = until(lambda: p.stats().outage)
        assert until(lambda: p.stats().outage > first)
        assert ", ended, epoch 1, " in repr(p)
        p.close()
        assert p.stats().last_error == found.last_error


def test_a_closed_producer_is_not_connected() -> None:
    with FakeGateway() as gateway, Producer(gateway.url, producer="p") as p:
        until(lambda: p.stats().connected)
    found = p.stats()
    assert (found.connected, found.gateway, found.last_error) == (False, "", "the producer is closed: open another")


def test_unordered_records_count_too() -> None:
    two = Two()
    try:
        with Producer(two.g1.url) as p:
            send_unordered(p, 1, 2, 3)[-1].result(10)
            p.send("t", b"4").result(10)
            p.flush(10)
            found = p.stats()
        assert (found.records_sent, found.records_acknowledged, found.records_in_flight) == (4, 4, 0)
    finally:
        two.close()


def test_a_spool_counts_what_it_holds(spool: Path) -> None:
    with FakeGateway() as gateway:
        gateway.stop()
        p = Producer(gateway.url, producer="p", spool=spool, delivery_timeout=0.1)
        p.send("t", b"1").spooled(30)
        found = p.stats()
        assert (found.records_spooled, found.records_sent, found.records_buffered) == (1, 1, 1)
        assert found.bytes_spooled > 0
        gateway.start()
        assert p.flush(30) == 0
        found = p.stats()
        assert (found.records_spooled, found.records_acknowledged, found.records_failed) == (0, 1, 0)
        p.close()


def test_aborted_records_have_failed() -> None:
    def abort(heard: object) -> list[Any] | None:
        if isinstance(heard, Frame) and heard.epoch == 1:
            return [client_protocol.AbortedAnswer(heard.producer, heard.epoch, heard.first_sequence, heard.count, "it is so")]
        return None

    with FakeGateway(rule=abort) as gateway:
        p = Producer(gateway.url)
        p.send("t", b"1")
        p.flush(30)
        found = p.stats()
        assert (found.records_sent, found.records_failed, found.records_buffered) == (1, 1, 0)
        p.close()


def test_statistics_are_values_that_an_application_can_pass_on() -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        found = p.stats()
    assert ProducerStats(**asdict(found)) == found
    with pytest.raises(AttributeError):
        found.epoch = 7  # type: ignore[misc]  # the test is about this error


def test_a_reader_counts_what_it_reads() -> None:
    with ReadableGateway(8) as gateway, Reader(gateway.url, name="loader", topics=["a"], follow=True, start=0) as r:
        assert (r.stats().position, r.stats().lag, r.stats().records_read) == (0, 8, 0)
        batch = r.poll(30)
        assert batch is not None
        found = r.stats()
        assert (found.name, found.gateway, found.connected) == ("loader", f"127.0.0.1:{gateway.gateway.port}", True)
        assert (found.records_read, found.bytes_read) == (batch.num_rows, batch.get_total_buffer_size())
        assert (found.position, found.lag) == (r.position, 8 - r.position)
    assert r.closed
    assert r.stats().records_read == batch.num_rows


def test_a_reader_counts_fail_overs() -> None:
    with (
        ReadableGateway(8) as near,
        ReadableGateway(8) as far,
        Reader(f"{near.url},127.0.0.1:{far.gateway.port}", follow=True, start=0) as r,
    ):
        assert r.poll(30) is not None
        near.gateway.stop()
        near.reads.stop()

        def failed_over() -> bool:
            r.poll(1)
            return r.stats().failovers > 0

        until(failed_over)
        found = r.stats()
        assert (found.reconnects, found.failovers, found.gateway) == (1, 1, f"127.0.0.1:{far.gateway.port}")
        assert found.last_error == "", "the other gateway has answered since"


def test_a_reader_that_lost_its_rights_is_not_connected() -> None:
    with ReadableGateway(8) as gateway, Reader(gateway.url, follow=True, start=0) as r:
        assert r.poll(30) is not None
        gateway.reads.fail = always("not_allowed")
        while r.position < 8:  # the stream was open already
            assert r.poll(30) is not None
        with pytest.raises(NotAllowed):
            r.poll(30)
        found = r.stats()
        assert (found.connected, found.gateway) == (False, "")
        assert found.last_error == f"127.0.0.1:{gateway.gateway.port}: not_allowed all the time"
        assert r.stats().outage > 0
        gateway.reads.fail = lambda what: None
        gateway.add(1)
        assert r.poll(30) is not None
        found = r.stats()
        assert (found.connected, found.outage, found.last_error, found.reconnects) == (True, 0.0, "", 1)
    found = r.stats()
    assert (found.connected, found.gateway, found.last_error) == (False, "", "the reader is closed")


def test_a_reader_without_a_majority_stays_at_the_gateway_that_answers() -> None:
    with ReadableGateway(8) as alone, ReadableGateway(8) as silent:
        addresses = f"{alone.url},127.0.0.1:{silent.gateway.port}"
        with Reader(addresses, follow=True, start=0) as r:
            while r.position < 8:
                r.poll(30)
            alone.reads.state = "minority"
            silent.gateway.stop()
            silent.reads.stop()
            until(lambda: r.poll(0.2) is None and "no gateway can confirm its frontier" in r.stats().last_error)
            seen = set()
            for _ in range(8):
                r.poll(0.05)
                found = r.stats()
                seen.add((found.connected, found.gateway))
            assert seen == {(True, f"127.0.0.1:{alone.gateway.port}")}
            alone.reads.state = "primary"
            alone.add(1)
            assert r.poll(30) is not None
            assert r.stats().last_error == ""


def test_what_a_producer_is_called() -> None:
    with FakeGateway() as gateway:
        with Producer(gateway.url, producer="p") as p:
            receipt = p.send("t", b"PAYLOAD", key=b"PAYLOAD")
            receipt.result(10)
            until(lambda: p.stats().connected)
            assert repr(p) == f"<Producer 'p' of {gateway.url}, connected to {gateway.url[8:]}, epoch 1, 0 records undelivered>"
            assert repr(receipt) == "<Receipt topic=t offset=0 count=1>"
        assert repr(p) == f"<Producer 'p' of {gateway.url}, closed, epoch 1, 0 records undelivered>"
    with pytest.raises(UsageError):
        Producer("tutti://127.0.0.1:1", on_full="never")  # type: ignore[arg-type]  # the test is about this error
    assert repr(Producer.__new__(Producer)) == "<Producer never opened>"


def test_what_a_reader_is_called() -> None:
    with ReadableGateway(8) as gateway:
        with Reader(gateway.url, name="loader", start=3) as r:
            assert repr(r) == f"<Reader 'loader' of {gateway.url}, connected to {gateway.url[8:]}, position 3, end 8>"
        assert repr(r) == f"<Reader 'loader' of {gateway.url}, closed, position 3, end 8>"
