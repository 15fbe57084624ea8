"""Tests of the port probe and the admin client: a client on a wrong port gets an error that names the right one, and tools find a
gateway or report each failure.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from pyarrow import flight

from tests.support.ports import free_port
from tests.unit.client.fake_gateway import FakeGateway, until
from tutti import limits
from tutti.common.gateway_url import Address, parse_url
from tutti.data import client_protocol
from tutti.data.member_address import Address as MeshAddress
from tutti.errors import ConfigError, Refused, Unavailable
from tutti.io.admin import AdminClient
from tutti.io.port_probe import explain_message, probe_port
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection
from tutti.producer import Producer
from tutti.reader import Reader
from tutti_gateway.transport.interface import Introduction
from tutti_gateway.transport.keys import Keyring, generate
from tutti_gateway.transport.mesh.mesh import Mesh

MUTE = "connected, but got no answer|a ZeroMQ program is there and did not answer"  # the second one if the probe was later


@pytest.fixture
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience with one address than the product has, which these tests wait for, and more with the look who speaks there."""
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 300_000)
    monkeypatch.setattr(limits, "PROBE_TIMEOUT_US", 1_000_000)


@contextmanager
def _server(answer: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Something that listens and does this with each connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    stop = threading.Event()
    links: list[socket.socket] = []

    def serve() -> None:
        while not stop.is_set():
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            links.append(link)
            link.settimeout(2)
            try:
                answer(link)
            except OSError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Address("127.0.0.1", listener.getsockname()[1])
    finally:
        stop.set()
        thread.join()
        for one in (*links, listener):
            one.close()


def _http(link: socket.socket) -> None:
    link.recv(100)
    link.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    link.close()


def _silence(link: socket.socket) -> None:
    link.settimeout(5)


def _ssh(link: socket.socket) -> None:
    link.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def _close(link: socket.socket) -> None:
    link.close()


@contextmanager
def _flight() -> Iterator[Address]:
    server = flight.FlightServerBase("grpc://127.0.0.1:0")
    try:
        yield Address("127.0.0.1", server.port)
    finally:
        server.shutdown()


@contextmanager
def _mute_zeromq() -> Iterator[Address]:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    try:
        yield Address("127.0.0.1", router.bind_to_random_port("tcp://127.0.0.1"))
    finally:
        router.close()
        context.term()


@pytest.mark.usefixtures("_looks")
def test_grpc_is_the_reads_port() -> None:
    with _flight() as address:
        sight = probe_port(address)
        assert sight.wrong
        assert "reads port (Arrow Flight)" in sight.text
        assert f"2 lower by default: tutti://127.0.0.1:{address.port - 2}" in sight.text
        with pytest.raises(ConfigError, match="reads port"):
            Producer(f"tutti://{address}")
        with pytest.raises(ConfigError, match="reads port"), AdminClient([address]) as control:
            control.status()


@pytest.mark.usefixtures("_looks")
def test_a_reader_names_a_wrong_port_among_several_once() -> None:
    with _flight() as address, pytest.raises(Unavailable, match=r"reads port \(Arrow Flight\)") as caught:
        Reader(f"tutti://{address},127.0.0.1:1", connect_timeout=0.5)
    assert len(re.findall(rf"{address}\b", str(caught.value))) == 1


@pytest.mark.usefixtures("_looks")
def test_http_is_the_admin_port() -> None:
    with _server(_http) as address:
        began = time.monotonic()
        with pytest.raises(ConfigError, match=rf"admin port.*3 lower.*tutti://127\.0\.0\.1:{address.port - 3}"):
            Producer(f"tutti://{address}")
        with pytest.raises(ConfigError, match="admin port"), AdminClient([address]) as control:
            control.status()
        assert time.monotonic() - began < limits.CONNECT_TIMEOUT_US / 1e6


@pytest.mark.usefixtures("_looks")
def test_something_else_is_quoted() -> None:
    with _server(_ssh) as address:
        assert probe_port(address) == ("another program uses this port: it sent b'SSH-2.0-OpenSSH_'", True)
        with pytest.raises(ConfigError, match="SSH"):
            Producer(f"tutti://{address}")


@pytest.mark.usefixtures("_looks")
@pytest.mark.parametrize(
    ("answer", "look_us", "said"),
    [(_silence, 200_000, "sent nothing within 0.2 s"), (_close, 1_000_000, "closed immediately")],
)
def test_temporary_errors_are_retried_until_the_timeout(
    answer: Any, look_us: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROBE_TIMEOUT_US", look_us)
    with _server(answer) as address:
        assert said in probe_port(address).text
        assert not probe_port(address).wrong
        with pytest.raises(Unavailable, match=said):
            Producer(f"tutti://{address}", connect_timeout=1.5)


@contextmanager
def _group_port(keys: Path | None) -> Iterator[Address]:
    """The group port of a lone gateway."""
    me = Introduction(group="ingest", gateway="jfk", incarnation=bytes(16), process=bytes(8), address="127.0.0.1:7400")
    keyring = Keyring.open(keys / "jfk.secret", keys / "group.keys", "jfk") if keys is not None else None
    address = Address("127.0.0.1", free_port())
    mesh = Mesh(me, MeshAddress(*address), lambda: time.monotonic_ns() // 1000, keyring)
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            mesh.drain(10, 1 << 20)
        mesh.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("_looks")
@pytest.mark.parametrize("with_keys", [False, True])
def test_the_group_port_is_named_with_keys_and_without(with_keys: bool, tmp_path: Path) -> None:
    generate(tmp_path, ["jfk"])
    with _group_port(tmp_path if with_keys else None) as address:
        said = rf"group port of a gateway does.*1 lower by default: tutti://127\.0\.0\.1:{address.port - 1}"
        with pytest.raises(ConfigError, match=said):
            Producer(f"tutti://{address}")
        with pytest.raises(ConfigError, match=said), AdminClient([address]) as control:
            control.status()
        with pytest.raises(ConfigError, match=said):
            Reader(f"tutti://{address}")


def test_an_incomplete_refusal_reveals_nothing_of_the_port() -> None:
    for data in (b"", b"R", b"R{}", b"R\x80", b"\x84"):
        said = "the peer does not speak the protocol of a gateway: because"
        assert explain_message(data, ValueError("because"), Address("h", 2)) == (said, False)


@pytest.mark.usefixtures("_looks")
def test_zeromq_that_is_no_gateway() -> None:
    with _mute_zeromq() as address:
        assert "ZeroMQ program" in probe_port(address).text
        with pytest.raises(Unavailable, match=MUTE):
            Producer(f"tutti://{address}", connect_timeout=1.5)


def test_an_address_without_a_listener() -> None:
    assert probe_port(Address("127.0.0.1", 1)) == ("connection refused", False)
    assert "not known" in probe_port(Address("no.such.host.invalid", 1)).text


@pytest.mark.usefixtures("_looks")
def test_with_a_wrong_port_among_others_the_right_one_is_found() -> None:
    with _server(_http) as wrong, FakeGateway() as gateway:
        with Producer(f"tutti://{wrong},127.0.0.1:{gateway.port}") as p:
            assert p.send("t", b"x").result(10) == 0
        with AdminClient(f"tutti://{wrong},127.0.0.1:{gateway.port}") as control:
            assert control.status() == {"state": "primary"}


def test_a_connection_reports_its_end_once_and_never_reconnects() -> None:
    with FakeGateway() as gateway:
        (address,) = parse_url(gateway.url)
        link = ZmtpConnection(address)
        assert until(link.next_event) is ConnectionEvent.UP
        assert link.up
        gateway.stop()
        assert until(link.next_event) is ConnectionEvent.DOWN
        gateway.start()
        link.wait(0.3)
        assert link.next_event() is None
        assert (link.up, link.was_up) == (False, True)
        link.close()
        refused = ZmtpConnection(Address("127.0.0.1", 1))
        assert until(refused.next_event) is ConnectionEvent.REFUSED
        refused.close()


def test_control_asks_and_is_answered() -> None:
    with FakeGateway() as gateway, AdminClient(gateway.url) as control:
        assert control.welcome().gateway == "fake"
        assert control.status() == {"state": "primary"}
        control.forget(["a", "~b"])
        control.fence("c")
        control.save_offset("r", 5)
        assert gateway.requests(client_protocol.Forget)[0].names == ("a", "~b")
        assert gateway.requests(client_protocol.SaveOffset)[0].offset == 5
        assert len(gateway.requests(client_protocol.Hello)) == 1


def test_control_lives_through_a_restart_and_a_lost_session() -> None:
    with FakeGateway() as gateway, AdminClient(gateway.url) as control:
        control.status()
        gateway.stop()
        gateway.start()
        assert control.status() == {"state": "primary"}
        gateway.known.clear()
        assert control.status() == {"state": "primary"}
        assert control.welcome().log == gateway.log.uuid


def test_the_admin_client_waits_out_temporary_refusals_and_reports_others() -> None:
    answers: list[client_protocol.Denied] = []

    def deny(heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.Fence) and answers:
            denied = answers.pop()
            return [client_protocol.Denied(heard.request, denied.code, denied.reason, denied.retry)]
        return None

    with FakeGateway(rule=deny) as gateway, AdminClient(gateway.url, timeout=1) as control:
        answers += [client_protocol.Denied(0, "busy", "try again", retry=True)] * 3
        control.fence("p")
        answers.append(client_protocol.Denied(0, "unknown", "no producer is named 'p'"))
        with pytest.raises(Refused, match="no producer is named 'p'") as caught:
            control.fence("p")
        assert caught.value.code == "unknown"
        answers += [client_protocol.Denied(0, "not_primary", "two of three are away", retry=True)] * 1000
        with pytest.raises(Unavailable, match=r"within 1 s.*two of three are away"):
            control.fence("p")


def test_control_turns_to_another_gateway_when_one_is_in_no_view_that_decides() -> None:
    asked: list[str] = []

    def minority(heard: Any) -> list[Any] | None:
        if not isinstance(heard, client_protocol.ChangeRoster):
            return None
        asked.append("minority")
        return [client_protocol.Denied(heard.request, "not_primary", "two of three are away", retry=True)]

    def primary(heard: Any) -> list[Any] | None:
        return [client_protocol.Done(heard.request)] if isinstance(heard, client_protocol.ChangeRoster) else None

    with FakeGateway(rule=primary) as other, FakeGateway(rule=minority, gateways={"other": other.url}) as gateway:
        with AdminClient(gateway.url) as control:
            control.change_roster("remove", "lga")
            assert control.address == parse_url(other.url)[0]
        with (
            pytest.raises(Unavailable, match="two of three are away"),
            AdminClient(gateway.url, timeout=0.5, learn=False) as control,
        ):
            control.change_roster("remove", "lga")
        assert len(asked) < 20


@pytest.mark.usefixtures("_looks")
def test_the_admin_client_reports_each_failure_and_the_time_waited() -> None:
    began = time.monotonic()
    with (
        pytest.raises(Unavailable, match=re.escape("within 0.7 s: 127.0.0.1:1: connection refused")),
        AdminClient("tutti://127.0.0.1:1", timeout=0.7) as control,
    ):
        control.status()
    assert 0.6 < time.monotonic() - began < 5
    with _mute_zeromq() as address, pytest.raises(Unavailable, match=MUTE), AdminClient([address], timeout=0.5) as control:
        control.status()


def test_the_admin_client_refuses_garbage() -> None:
    garbage = FakeGateway(rule=lambda heard: [b"Cgarbage"] if isinstance(heard, client_protocol.Status) else None)
    with garbage, AdminClient(garbage.url, timeout=0.5) as control, pytest.raises(Unavailable, match="not speak the protocol"):
        control.status()
