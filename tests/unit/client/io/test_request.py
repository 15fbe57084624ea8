"""Tests of requests to gateways: they continue on a new connection after a disconnect, and skip peers that are not gateways."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.unit.client.fake_gateway import FakeGateway, until
from tutti import limits
from tutti.common.gateway_url import Address
from tutti.data import client_protocol
from tutti.errors import Unavailable
from tutti.io import admin as client_talk
from tutti.io.admin import RequestClient
from tutti.io.zmtp_connection import ZmtpConnection
from tutti.producer import Producer
from tutti.zmtp.framing import GREETING, MORE, frame, ready


@contextlib.contextmanager
def _babbling(said: bytes) -> Iterator[Address]:
    """What shakes hands as a gateway does, and answers with that."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                connections.append(connection)
                connection.settimeout(30)
                connection.sendall(GREETING + ready(b"ROUTER", b""))
                left = len(GREETING) + len(ready(b"DEALER", b"")) + 1
                while left and (data := connection.recv(left)):
                    left -= len(data)
                connection.sendall(said)

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    ("said", "told"), [(b"\x10\x01x", "a part of 1 bytes"), (frame(b"a", MORE) + frame(b"b"), "too many parts"), (frame(b"C?"), "")]
)
def test_a_peer_that_is_not_a_gateway_is_named_and_skipped(said: bytes, told: str) -> None:
    with _babbling(said) as address:
        with FakeGateway() as gateway, RequestClient(f"tutti://{address},127.0.0.1:{gateway.port}") as talk:
            assert talk.welcome().gateway == "fake"
        with (
            pytest.raises(Unavailable, match=f"{address}: the peer does not speak the protocol of a gateway: .*{told}"),
            RequestClient([address], rounds=1) as talk,
        ):
            talk.welcome()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """Where connections were made to."""
    places: list[Address] = []

    def link(address: Address, credentials: None) -> ZmtpConnection:
        places.append(address)
        return ZmtpConnection(address, credentials)

    monkeypatch.setattr(client_talk, "ZmtpConnection", link)
    return places


@pytest.mark.parametrize("asks", ["welcome", "status"])
def test_an_idle_connection_that_ended_is_reopened_to_the_same_gateway_at_once(
    made: list[Address], monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    def asked(talk: RequestClient) -> None:
        if asks == "welcome":
            assert talk.welcome().gateway == "first"
        else:
            talk.request(client_protocol.StatusAnswer, client_protocol.Status)

    with (
        FakeGateway(name="first") as gateway,
        FakeGateway() as other,
        RequestClient(f"{gateway.url},127.0.0.1:{other.port}") as talk,
    ):
        asked(talk)
        gateway.stop()
        gateway.start()
        _wait_for_the_end(talk)
        monkeypatch.setattr(talk, "_pause", _never)
        asked(talk)
        assert talk.trouble == ""
    assert made == [Address("127.0.0.1", gateway.port)] * 2


def _wait_for_the_end(talk: RequestClient) -> None:
    """Wait until the kernel knows that the connection ended, without a read."""
    link = talk._connection
    assert link is not None
    until(lambda: not link.is_alive())


def _never(wait: float, _deadline: float) -> None:
    raise AssertionError(wait)


def test_an_open_connection_is_kept(made: list[Address]) -> None:
    with FakeGateway() as gateway, RequestClient(gateway.url) as talk:
        for _ in range(3):
            talk.welcome()
    assert len(made) == 1


def test_a_gateway_that_does_not_come_back_is_left_for_the_next(made: list[Address]) -> None:
    with FakeGateway() as gateway, FakeGateway() as other, RequestClient(f"{gateway.url},127.0.0.1:{other.port}") as talk:
        talk.welcome()
        gateway.stop()
        _wait_for_the_end(talk)
        talk.welcome()
        assert talk.address.port == other.port
        assert made == [Address("127.0.0.1", gateway.port)] * 2 + [Address("127.0.0.1", other.port)]


def test_a_slow_name_server_is_waited_for_beyond_the_time_for_one_address(
    slow: threading.Event, monkeypatch: pytest.MonkeyPatch, made: list[Address]
) -> None:
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 50_000)
    with FakeGateway() as gateway, RequestClient([Address("slow.example", gateway.port)], timeout=60) as talk:
        asking = threading.Thread(target=talk.welcome)
        asking.start()
        until(lambda: len(made) > 2)
        assert "name server" in talk.trouble
        monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 30_000_000)
        slow.set()
        asking.join(60)
        assert talk.welcome().gateway == "fake"


@pytest.mark.parametrize("host", ["a..b", "nosuchhost.invalid"])
def test_an_unknown_host_is_reported_as_such_by_all_callers(host: str) -> None:
    with (
        pytest.raises(Unavailable, match=rf"{host}:7400: the host name is unknown \("),
        RequestClient([Address(host, 7400)], rounds=1) as talk,
    ):
        talk.welcome()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=rf"{host}:7400: the host name is unknown \("):
        Producer(f"tutti://{host}:7400", connect_timeout=0.5)
    assert time.monotonic() - began < 30


def _denied(heard: object) -> list[object] | None:
    return (
        [client_protocol.Denied(heard.request, "roster", "a majority may come back", retry=True)]
        if isinstance(heard, client_protocol.Status)
        else None
    )


def test_a_gateway_that_stops_answering_is_reported_in_one_sentence() -> None:
    """It said in one breath what the gateway had answered and that it had answered nothing."""
    answered: list[object] = []

    def once(heard: object) -> list[object] | None:
        if not isinstance(heard, client_protocol.Status):
            return None
        answered.append(heard)
        return _denied(heard) if len(answered) == 1 else []

    with FakeGateway(rule=once) as gateway, RequestClient(gateway.url, timeout=3) as talk, pytest.raises(Unavailable) as late:
        talk.request(client_protocol.StatusAnswer, client_protocol.Status)
    said = f"127.0.0.1:{gateway.port} answered last: a majority may come back (roster)"
    assert str(late.value) == (f"the request was not done within 3 s: {said}; the repeated request had no answer within the time")


def test_results_of_other_gateways_are_reported_with_an_answer_and_the_answer_once() -> None:
    def away(heard: object) -> list[object] | None:
        return (
            [client_protocol.Denied(heard.request, "not_primary", "no view", retry=True)]
            if isinstance(heard, client_protocol.Status)
            else None
        )

    with (
        FakeGateway(rule=away) as gateway,
        RequestClient(f"{gateway.url},127.0.0.1:1", timeout=30, rounds=1) as talk,
        pytest.raises(Unavailable) as late,
    ):
        talk.request(client_protocol.StatusAnswer, client_protocol.Status)
    said = f"127.0.0.1:{gateway.port} answered last: no view (not_primary); 127.0.0.1:1: connection refused"
    said = f"{said}. Start the gateway where connections are refused, or correct the port"
    assert str(late.value) == f"the request was not done within 30 s: {said}"


def test_a_client_that_awaits_no_start_fails_when_all_ports_refuse() -> None:
    with (
        RequestClient("tutti://127.0.0.1:1", timeout=600, await_start=False) as talk,
        pytest.raises(Unavailable, match=r"^no gateway runs at 127\.0\.0\.1:1: connection refused\. Start the gateway"),
    ):
        talk.welcome()


def test_a_client_that_awaits_no_start_waits_for_a_gateway_that_restarts() -> None:
    with FakeGateway() as gateway, RequestClient(gateway.url, timeout=1.5, await_start=False) as talk:
        talk.welcome()
        gateway.stop()
        with pytest.raises(Unavailable, match=r"^no gateway answered within 1\.5 s: .*connection refused"):
            talk.welcome()


def test_the_check_of_a_request_without_an_answer_ends_the_request() -> None:
    def check() -> None:
        raise Unavailable("the caller knows that no answer comes")

    def silent(heard: object) -> list[object] | None:
        return [] if isinstance(heard, client_protocol.Status) else None

    with (
        FakeGateway(rule=silent) as gateway,
        RequestClient(gateway.url, timeout=600, check=check) as talk,
        pytest.raises(Unavailable, match="the caller knows"),
    ):
        talk.request(client_protocol.StatusAnswer, client_protocol.Status)
