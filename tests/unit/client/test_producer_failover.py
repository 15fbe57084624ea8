"""Tests of producer failover: it leaves a gateway that is dead, disconnected or stopping, and finds the others at their current
addresses.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.delivery.delivery_harness import NUMBER, Rig, in_flight
from tests.unit.client.fake_gateway import FakeGateway, Heard, Log, Rule, until
from tests.unit.client.relay import Relay
from tutti import limits
from tutti.common.gateway_url import Address
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.delivery import session
from tutti.delivery.session import State
from tutti.io import admin, session_connection
from tutti.io.admin import AdminClient
from tutti.io.zmtp_connection import ZmtpConnection
from tutti.producer import Producer

TWO = {"g1": "tutti://g1:1", "g2": "tutti://g2:1"}


@pytest.mark.parametrize("code", ["not_primary", "leaving", "halted"])
def test_a_gateway_that_refuses_for_now_is_left_if_there_are_others(code: str) -> None:
    for gateways, left in ((TWO, True), ({"g1": "tutti://g1:1"}, False)):
        rig = Rig().ready(gateways=gateways)
        rig.send()
        rig.topic()
        (frame,) = rig.frames()
        rig.say(client_protocol.RefusedAnswer(NUMBER, 1, frame.first_sequence, code, "it is so", retry=True))
        assert bool(rig.delivery.session.drop) is left
        assert not left or "g1 cannot accept batches now: it is so" in rig.delivery.session.drop


def test_a_gateway_whose_disk_is_low_is_waited_for() -> None:
    rig = Rig().ready(gateways=TWO)
    rig.send()
    rig.topic()
    (frame,) = rig.frames()
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, frame.first_sequence, "busy", "much waits", retry=True))
    assert not rig.delivery.session.drop


@pytest.mark.parametrize("state", ["minority", "halted"])
def test_an_idle_producer_leaves_a_gateway_that_reports_a_minority(state: str) -> None:
    rig, frames = in_flight(1)
    rig.commit(frames[0], 0)
    rig.say(rig.welcome(gateways=TWO, state=state))
    assert rig.delivery.session.drop == f"gateway g1 is {state}"


def test_a_notification_counts_as_no_answer_and_resends_nothing() -> None:
    rig, _ = in_flight(2)
    rig.say(rig.welcome(gateways=TWO, state="joining"))
    assert rig.hears() == []
    assert rig.delivery.session.state is State.OPEN
    assert not rig.delivery.session.drop
    assert rig.delivery.session.welcome is not None
    assert rig.delivery.session.welcome.gateways == TWO


def test_the_only_gateway_is_not_left_for_its_minority() -> None:
    rig, _ = in_flight(1)
    rig.say(rig.welcome(state="minority"))
    assert not rig.delivery.session.drop


def tells(gateway: FakeGateway) -> Rule:
    """Return a rule that sends a notification of the gateways with each frame."""
    return lambda heard: [gateway.welcome(), *gateway._take(heard)] if isinstance(heard, Frame) else None


def silence(heard: list[Heard]) -> Rule:
    """Return a rule that receives frames and does not answer."""

    def rule(one: Heard) -> list[Any] | None:
        if isinstance(one, client_protocol.Hello | client_protocol.OpenProducer | client_protocol.OpenTopic):
            return None
        heard.append(one)
        return []

    return rule


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that fall silent are given up sooner than in the product, for which these tests wait."""
    monkeypatch.setattr(limits, "CLIENT_KEEPALIVE_MS", 50)
    monkeypatch.setattr(limits, "CLIENT_SILENCE_MS_MAX", 300)


@pytest.mark.usefixtures("_hasty")
def test_a_silent_connection_is_closed_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_SILENCE_MIN", 60.0)  # that the gateway itself is silent is not what is noticed
    log = Log()
    with FakeGateway(log) as far, FakeGateway(log) as near, Relay(far.port) as relay:
        far.gateways = near.gateways = {"far": relay.url, "near": near.url}
        with Producer(relay.url, producer="p") as producer:
            assert producer.send("t", b"before").result(5) == 0
            relay.fall_silent()
            assert producer.send("t", b"after").result(10) == 1
    assert log.values() == [b"before", b"after"]


def test_an_address_that_the_gateway_moved_to_while_the_client_was_connected_is_found() -> None:
    log = Log()
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(FakeGateway(log))
        moved = opened.enter_context(FakeGateway(log))
        gone = opened.enter_context(FakeGateway(log))
        first.gateways = {"a": first.url, "b": gone.url}
        with Producer(first.url, producer="p") as producer:
            assert producer.send("t", b"0").result(5) == 0
            gone.stop()
            first.gateways = moved.gateways = {"a": first.url, "b": moved.url}
            first.rule = tells(first)
            assert producer.send("t", b"1").result(5) == 1
            first.stop()
            assert producer.send("t", b"2").result(5) == 2
    assert moved.frames()
    assert log.values() == [b"0", b"1", b"2"]


def heard_by(heard: list[Heard], count: int) -> Callable[[], bool]:
    return lambda: len(heard) >= count


def test_a_fail_over_holds_the_batches_once_however_often_it_happens() -> None:
    log = Log()
    heard: list[Heard] = []
    with FakeGateway(log) as one, FakeGateway(log) as two:
        one.gateways = two.gateways = {"one": one.url, "two": two.url}
        one.rule, two.rule = silence(heard), silence(heard)
        with Producer(one.url, producer="p", buffer_bytes=1 << 20, batch_bytes=1 << 16, on_full="raise") as producer:
            value = bytes(50_000)
            for _ in range(15):
                producer.send("t", value)
            window = producer._delivery.window
            until(lambda: len(window) == 14)  # the last one stays open while others are in flight
            bodies = {id(batch.body) for batch in window}
            for gateway in (one, two, one):
                before = len(heard)
                gateway.stop()
                gateway.start()
                until(heard_by(heard, before + 14))
                assert {id(batch.body) for batch in window} == bodies
                assert producer._accumulator.buffered < 1 << 20
            one.rule = two.rule = None
            for gateway in (one, two):
                gateway.stop()
                gateway.start()
            assert producer.flush(10) == 0
    assert log.values() == [value] * 15


def test_a_client_without_free_descriptors_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    missed: list[Address] = []

    def none_left_at_first(address: Address, credentials: None) -> ZmtpConnection:
        if len(missed) < 2:
            missed.append(address)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return ZmtpConnection(address, credentials)

    with FakeGateway() as gateway:
        monkeypatch.setattr(session_connection, "ZmtpConnection", none_left_at_first)
        with Producer(gateway.url) as producer:
            assert producer.send("t", b"x").result(20) == 0
        assert len(missed) == 2
        monkeypatch.setattr(admin, "ZmtpConnection", none_left_at_first)
        missed.clear()
        with AdminClient(gateway.url) as control:
            assert control.status() == {"state": "primary"}
        assert len(missed) == 2
