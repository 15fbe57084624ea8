"""Tests of the lines of a producer about gateways that answer, and give its records no outcome."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec
import pytest

from tests.unit.client.fake_gateway import FakeGateway, until
from tests.unit.client.two_gateways import Two
from tests.unit.client.two_gateways import send as send_unordered
from tutti import limits
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.delivery import session
from tutti.io import session_connection
from tutti.producer import Producer


class Lines:
    """The lines of producers so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "tutti.client.producer")
        self._caplog = caplog

    def __len__(self) -> int:
        return len(self.told())

    def told(self) -> list[str]:
        return [f"{one.levelname} {one.getMessage()}" for one in list(self._caplog.records)]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


def test_records_without_outcomes_are_an_outage(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_connection, "_STALLED_S", 0.2)
    monkeypatch.setattr(limits, "STALL_POLL_US", 20_000)
    gate = threading.Event()

    def hold(heard: object) -> list[Any] | None:
        return [] if isinstance(heard, Frame) and not gate.is_set() else None

    with FakeGateway(rule=hold) as gateway, Producer(gateway.url, producer="p", delivery_timeout=60) as p:
        where = f"gateway fake at 127.0.0.1:{gateway.port}"
        until(lambda: len(lines) == 1)
        receipt = p.send("t", b"1")
        until(lambda: len(lines) == 2)
        assert not p.stats().connected
        gate.set()
        receipt.result(30)
        until(lambda: len(lines) == 3)
    connected, stalled, recovered = lines.told()
    assert connected == f"INFO producer 'p': connected to {where}"
    assert stalled.startswith(f"WARNING producer 'p': connected to {where}, but no record has got an outcome for 0.")
    assert stalled.endswith("no error is known; the disk of a gateway may hang")
    assert recovered.startswith("INFO producer 'p': recovered after ")
    assert recovered.endswith(f": connected to {where}; 1 record waited")


def test_records_that_wait_for_a_quota_are_not_an_outage(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_connection, "_STALLED_S", 0.05)
    monkeypatch.setattr(session, "_SILENCE_MIN", 0.02)
    monkeypatch.setattr(limits, "STALL_POLL_US", 20_000)
    gate, probes = threading.Event(), 0

    def hold(heard: object) -> list[Any] | None:
        nonlocal probes
        if isinstance(heard, client_protocol.Hello):
            probes += 1
            welcome = msgspec.structs.replace(gateway.welcome(), records_per_s=1, bytes_per_s=0, held_from=1)
            return [gateway.welcome() if probes == 1 else welcome]
        return [] if isinstance(heard, Frame) and not gate.is_set() else None

    with FakeGateway(rule=hold) as gateway, Producer(gateway.url, producer="p", delivery_timeout=60) as p:
        receipt = p.send("t", b"1")
        until(lambda: len(lines) == 2)
        until(lambda: probes > 4)
        found = p.stats()
        assert (found.connected, found.outage, found.records_resent) == (True, 0.0, 0)
        gate.set()
        gateway.rule = None  # the gateway holds no batch, so the client sends the batch again
        receipt.result(30)
    where = f"gateway fake at 127.0.0.1:{gateway.port}"
    assert lines.told()[1:] == [f"WARNING producer 'p': throttled by the quota of its token (1 records/s): {where} delays records"]


def test_gateways_that_open_sessions_and_refuse_all_records_are_one_outage(lines: Lines) -> None:
    two, gate, refused = Two(), threading.Event(), []

    def refuse(heard: object) -> list[Any] | None:
        if not isinstance(heard, Frame) or gate.is_set():
            return None
        refused.append(heard)
        return [client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, "leaving", "it is so", retry=True)]

    try:
        two.g1.rule = two.g2.rule = refuse
        with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
            until(lambda: len(lines) == 1)
            receipt = p.send("t", b"1")
            until(lambda: len(refused) > 6)
            gate.set()
            receipt.result(30)
            until(lambda: len(lines) == 3)
            assert p.stats().reconnects == 1
    finally:
        two.close()
    assert [line.split(":")[1][:10] for line in lines.told()] == [" connected", " leaving g", " recovered"]
    assert lines.told()[-1].endswith("; 1 record waited")


def test_a_lane_logs_its_own_connection(lines: Lines) -> None:
    two = Two()
    try:
        with Producer(two.g1.url, producer="p") as p:
            send_unordered(p, 1)[0].result(30)
            until(lambda: len(lines) == 2)
    finally:
        two.close()
    where = f"connected to gateway g1 at 127.0.0.1:{two.g1.port}"
    assert lines.told() == [f"INFO producer 'p': {where}", f"INFO producer 'p', unordered records: {where}"]


def test_a_producer_that_is_closed_logs_no_loss(lines: Lines) -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        p.send("t", b"1").result(30)
        until(lambda: len(lines) == 1)
    assert [line.split()[0] for line in lines.told()] == ["INFO"]


def test_the_library_adds_no_handler_that_writes() -> None:
    for name in ("tutti", "tutti.client", "tutti.client.producer", "tutti.client.reader"):
        assert [type(one) for one in logging.getLogger(name).handlers if not isinstance(one, logging.NullHandler)] == []
