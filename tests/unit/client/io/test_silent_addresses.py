"""Tests of addresses that accept connections and never answer, as a frozen gateway does: the other addresses are tried soon."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway
from tests.unit.client.fake_gateway import FakeGateway
from tutti import Reader, Unavailable, limits
from tutti.common.gateway_url import Address
from tutti.io import endpoints
from tutti.io.admin import AdminClient
from tutti.io.endpoints import Endpoints
from tutti.producer import Producer


@pytest.fixture(autouse=True)
def _only_the_head_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt with its full time would exceed the timeouts of these tests."""
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 3600_000_000)
    monkeypatch.setattr(limits, "HEAD_START_US", 50_000)
    monkeypatch.setattr(endpoints, "_silent_at", {})


@pytest.fixture
def frozen() -> Iterator[str]:
    """The address of a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_producer_tries_the_next_address_after_a_head_start(frozen: str) -> None:
    with FakeGateway() as gateway, Producer(f"tutti://{frozen},127.0.0.1:{gateway.port}", connect_timeout=60) as p:
        p.send("t", b"1").result(30)
        assert p.stats().gateway.endswith(str(gateway.port))


def test_a_reader_tries_the_next_address_after_a_head_start(frozen: str) -> None:
    with (
        ReadableGateway(8) as gateway,
        Reader(f"tutti://{frozen},127.0.0.1:{gateway.gateway.port}", connect_timeout=60) as r,
    ):
        assert r.end == 8


def test_a_request_tries_the_next_address_after_a_head_start(frozen: str) -> None:
    with FakeGateway() as gateway, AdminClient(f"tutti://{frozen},127.0.0.1:{gateway.port}", 60) as control:
        assert control.welcome().gateway == "fake"


@pytest.mark.parametrize("kind", [Producer, Reader])
def test_the_error_reports_each_attempt(kind: type[Producer] | type[Reader], frozen: str) -> None:
    silent = rf"{re.escape(frozen)}: no answer within 0\.\d+ s: the process may be stopped"
    with pytest.raises(Unavailable, match=rf"{silent}.*; 127\.0\.0\.1:1: connection refused"):
        kind(f"tutti://{frozen},127.0.0.1:1", connect_timeout=1)


def test_the_last_attempt_of_a_reader_ends_with_its_patience(frozen: str) -> None:
    with pytest.raises(Unavailable, match=rf"{re.escape(frozen)}: no answer within 0\.\d+ s: "):
        Reader(f"tutti://127.0.0.1:1,{frozen}", connect_timeout=0.5)


def test_an_attempt_that_lasts_is_reported(frozen: str) -> None:
    with pytest.raises(Unavailable, match=rf"{re.escape(frozen)}: no answer yet$"):
        Producer(f"tutti://{frozen}", connect_timeout=0.1)


def test_new_clients_try_an_address_last_that_did_not_answer(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGateway() as gateway:
        url = f"tutti://{frozen},127.0.0.1:{gateway.port}"
        Producer(url, connect_timeout=60).close()
        monkeypatch.setattr(limits, "HEAD_START_US", 3600_000_000)  # a second attempt would last until the timeout
        Producer(url, connect_timeout=60).close()
    first, second = Address("127.0.0.1", int(frozen.rpartition(":")[2])), Address("127.0.0.1", gateway.port)
    assert Endpoints([first, second]).addresses == [second, first]
    monkeypatch.setattr(limits, "SILENT_ADDRESS_US", 0)
    assert Endpoints([first, second]).addresses == [first, second]


def test_only_the_last_address_of_a_round_has_the_full_time() -> None:
    found = Endpoints([Address("a", 1), Address("b", 2), Address("c", 3)])
    for head_start in (True, True, False, False):
        assert found.begin_attempt() == (limits.HEAD_START_US if head_start else limits.ADDRESS_TIMEOUT_US) / 1e6
        assert bool(found.end_attempt()) is head_start
        found.advance("no answer")
    found.reset_delay()
    assert found.begin_attempt() == limits.HEAD_START_US / 1e6


def test_an_address_that_answers_is_not_silent_any_more() -> None:
    silent = Address("a", 1)
    found = Endpoints([silent])
    found.end_attempt()
    assert silent in endpoints._silent_at
    found.record(endpoints.CONNECTED)
    assert silent not in endpoints._silent_at
    for port in range(1, 1000):
        Endpoints([Address("a", port)]).end_attempt()
    assert len(endpoints._silent_at) == limits.ADDRESSES_MAX
