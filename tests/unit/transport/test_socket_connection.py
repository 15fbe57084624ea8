"""Tests of an unencrypted connection to a gateway: it reconnects without limit, keeps its bounds, and counts lost messages."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.ports import free_port
from tutti import limits as common_limits
from tutti.data.member_address import Address
from tutti.zmtp.frame_reader import SCRATCH_BYTES
from tutti.zmtp.framing import GREETING, NullHandshake, encode_message, ready
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.peer_state import ConnectFailure, LinkEvent, LinkEventKind, PeerLink
from tutti_gateway.transport.mesh.socket_connection import MeshConnection

WAIT_S = 30.0


class Wire:
    """What a line needs, with a clock that the test sets."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.by_descriptor: dict[int, MeshConnection] = {}
        self.unread: set[MeshConnection] = set()
        self.now_us = 1
        self.clock_us: Callable[[], int] = lambda: self.now_us
        self.link = PeerLink(2, "lga", "lga:1", "")
        self.line = MeshConnection(self, self.link, b"me")

    def handshake(self, link: PeerLink, identity: bytes) -> NullHandshake:
        return NullHandshake(b"DEALER", b"ROUTER", identity)

    def warn(self, peer: str, reason: str) -> None:
        raise AssertionError(reason)

    def look(self, until: Callable[[], bool] = lambda: True) -> list[LinkEvent]:
        """Wait for something to happen, until that holds."""
        news: list[LinkEvent] = []
        deadline = time.monotonic() + WAIT_S
        while True:
            for fd, mask in self.epoll.poll(1.0):
                if fd in self.by_descriptor:
                    news += self.by_descriptor[fd].handle_event(mask)
            if until():
                return news
            assert time.monotonic() < deadline

    def stand(self, server: socket.socket) -> socket.socket:
        """Connect to a server that answers; its end of the connection."""
        self.line.connect(Address(*server.getsockname()[:2]))
        there, _ = server.accept()
        there.sendall(GREETING + ready(b"ROUTER", b""))
        self.look(lambda: self.line.deadline_us == 0)
        return there


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.line.close()
    wire.epoll.close()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        yield server


def test_it_connects_to_the_complete_address_that_the_system_returns(
    wire: Wire, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::ffff:127.0.0.1", server.getsockname()[1], 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    wire.line.connect(Address("fe80::1%nowhere", 1))
    there, _ = server.accept()
    there.close()


def test_an_invalid_local_address_is_reported_and_leaks_nothing(wire: Wire) -> None:
    with pytest.raises(OSError, match="not known"):
        wire.line.connect(Address("fe80::1%nosuchdevice", 1))
    assert not wire.by_descriptor


def test_its_backoff_grows_within_bounds_and_resets_after_a_connection(wire: Wire, server: socket.socket) -> None:
    address = Address(*server.getsockname()[:2])
    there = wire.stand(server)
    server.close()
    there.close()
    wire.look(lambda: wire.line.deadline_us > 0)
    waits_ms = []
    for _ in range(9):
        waits_ms.append((wire.line.deadline_us - wire.now_us) / 1000)
        wire.now_us = wire.line.deadline_us
        assert list(wire.line.tick()) == []
        due_us = wire.line.deadline_us
        wire.look(lambda: wire.line.deadline_us != due_us)  # noqa: B023 - asked at once
    for number, wait_ms in enumerate(waits_ms):
        middle_ms = min(limits.MESH_RECONNECT_MS_MIN << number, limits.MESH_RECONNECT_MS_MAX)
        assert 0.74 * middle_ms <= wait_ms <= 1.26 * middle_ms
    with socket.create_server(address) as again:
        again.settimeout(WAIT_S)
        wire.now_us = wire.line.deadline_us
        assert list(wire.line.tick()) == []
        there, _ = again.accept()
        there.sendall(GREETING + ready(b"ROUTER", b""))
        wire.look(lambda: wire.line.deadline_us == 0)
    there.close()
    wire.look(lambda: wire.line.deadline_us > 0)
    assert wire.line.deadline_us - wire.now_us <= 1.26 * limits.MESH_RECONNECT_MS_MIN * 1000


def test_a_host_that_falls_silent_is_noticed_by_the_kernel(wire: Wire, server: socket.socket) -> None:
    with wire.stand(server), socket.socket(fileno=os.dup(next(iter(wire.by_descriptor)))) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        silent_ms = limits.MESH_BEATS_SILENT_MAX * limits.MESH_BEAT_MS
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == silent_ms
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == limits.MESH_BEATS_SILENT_MAX


def test_a_peer_that_does_not_finish_the_handshake_is_given_up(wire: Wire, server: socket.socket) -> None:
    wire.line.connect(Address(*server.getsockname()[:2]))
    there, _ = server.accept()
    first_us = wire.line.deadline_us
    wire.look(lambda: wire.line.deadline_us != first_us)
    assert wire.line.deadline_us == wire.now_us + common_limits.HANDSHAKE_MS_MAX * 1000
    wire.now_us = wire.line.deadline_us
    assert list(wire.line.tick()) == [LinkEvent(wire.link, LinkEventKind.CONNECT_FAILED, failure=ConnectFailure.DISCONNECTED)]
    there.close()


def test_the_queue_is_bounded_and_losses_are_counted(wire: Wire, server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESH_QUEUE_BYTES_MAX", 1 << 20)
    there = wire.stand(server)
    message = encode_message([bytes(200_000)])
    while not wire.link.lost:
        wire.line.send([message])
        assert wire.link.sent < 1000, "more waits than may"
    lost = wire.link.lost
    wire.line.send([message])
    assert wire.link.lost == lost + 1
    there.close()  # with something unread: what waits is lost
    assert [news.kind for news in wire.look(lambda: not wire.by_descriptor)] == [LinkEventKind.DOWN]
    assert wire.link.lost > lost + 1
    wire.line.send([message])
    assert wire.line.deadline_us, "it is tried again"


def test_a_link_knows_why_its_last_connection_failed(wire: Wire, server: socket.socket) -> None:
    assert (wire.link.failure, wire.link.facts()["accepts"]) == ("", False)
    wire.line.connect(Address("127.0.0.1", free_port()))
    wire.look(lambda: wire.link.connect_error is not None)
    assert wire.link.failure == "lga:1 refuses connections to its group port: no gateway runs there; start it"
    there = wire.stand(server)
    assert (wire.link.failure, wire.link.facts()["accepts"]) == ("", True)
    there.close()
    assert [news.kind for news in wire.look(lambda: not wire.by_descriptor)] == [LinkEventKind.DOWN]
    assert (wire.link.failure, wire.link.facts()["accepts"]) == ("", False), "a closed connection does not show a silent process"


def test_a_peer_counts_as_silent_only_after_an_interval_of_heartbeats_without_an_answer(wire: Wire, server: socket.socket) -> None:
    wire.line.connect(Address(*server.getsockname()[:2]))
    there, _ = server.accept()
    first_us = wire.line.deadline_us
    wire.look(lambda: wire.line.deadline_us != first_us)
    accepts = []
    for _ in range(3):
        assert list(wire.line.heartbeat(was_running=True)) == []
        accepts.append(wire.link.facts()["accepts"])
    assert accepts == [False, True, True]
    wire.now_us = wire.line.deadline_us
    list(wire.line.tick())  # the handshake is given up, and the peer stays silent
    wire.now_us = wire.line.deadline_us
    list(wire.line.tick())
    first_us = wire.line.deadline_us
    wire.look(lambda: wire.line.deadline_us != first_us)
    assert wire.link.facts()["accepts"], "the next connection does not hide that the peer is silent"
    there.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ETIMEDOUT, "lga:1 does not answer"),
        (errno.EHOSTUNREACH, "the host of lga:1 is down"),
        (errno.ENETUNREACH, "this host has no route to the network of lga:1"),
        (errno.EADDRNOTAVAIL, "a connection to lga:1 failed: cannot assign requested address"),
    ],
)
def test_each_failure_of_a_connection_has_its_words(code: int, words: str) -> None:
    link = PeerLink(2, "lga", "lga:1", "")
    link.connect_error = code
    assert link.failure.startswith(words)
    assert link.failure.endswith("check the network, the firewall and the address")


def test_an_attempt_to_connect_that_takes_too_long_counts_as_no_answer(wire: Wire, server: socket.socket) -> None:
    wire.line.connect(Address(*server.getsockname()[:2]))
    wire.now_us = wire.line.deadline_us
    assert list(wire.line.tick()) == []
    assert wire.link.connect_error == errno.ETIMEDOUT
