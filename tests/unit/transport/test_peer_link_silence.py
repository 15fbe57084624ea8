"""Tests of silence on a connection to another gateway, with a clock that the test sets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.ports import free_ports
from tutti.data.member_address import Address
from tutti.zmtp.framing import COMMAND, GREETING, PING, EncodedMessage, frame, ready
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.peer_state import LinkEventKind, PeerLink
from tutti_gateway.transport.mesh.socket_backend import SocketBackend

BEAT_US = limits.MESH_BEAT_MS * 1000
PONG = frame(b"\x04PONG", COMMAND)
WAIT_S = 20.0


class Pair:
    """One end of a connection, and what its test says at the other."""

    def __init__(self) -> None:
        self.now_us = 1
        self.wire = SocketBackend(Address("127.0.0.1", free_ports(1)[0]), lambda: self.now_us, lambda _: True)
        self.link = PeerLink(2, "lga", "", "")
        self.line = self.wire.new_connection(self.link, b"jfk")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.line.connect(Address("127.0.0.1", listener.getsockname()[1]))
            self.other, _ = listener.accept()
        self.other.settimeout(WAIT_S)
        self.other.sendall(GREETING + ready(b"ROUTER", b""))
        self.hear(LinkEventKind.UP)
        hello = len(GREETING + ready(b"DEALER", b"jfk"))
        self.other.recv(hello, socket.MSG_WAITALL)

    def hear(self, kind: LinkEventKind) -> None:
        while kind not in [news.kind for news in self.wire.poll(None)]:
            continue

    def beat(self, passed_us: int = BEAT_US) -> list[LinkEventKind]:
        """Let time pass, and return the new events."""
        self.now_us += passed_us
        self.wire.maintain()
        return [news.kind for news in self.wire.poll(None)]

    def say(self, data: bytes) -> None:
        """Send from the other end, and receive here."""
        self.other.sendall(data)
        while not self.wire.epoll.poll(0.01):
            continue
        assert self.wire.poll(None) == []


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.other.close()
    pair.wire.close()


def test_a_silent_peer_is_asked_three_times_and_disconnected(pair: Pair) -> None:
    assert [pair.beat() for _ in range(3)] == [[]] * 3
    assert pair.other.recv(3 * len(PING), socket.MSG_WAITALL) == 3 * PING
    assert pair.wire.warnings() == []
    assert pair.beat() == [LinkEventKind.DOWN]
    assert pair.wire.next_us(), "it reconnects"
    ((peer, reason),) = pair.wire.warnings()
    assert peer == "lga"
    assert "nothing arrived" in reason
    assert pair.other.recv(1) == b""


def test_a_peer_that_answers_or_pings_stays_and_is_answered(pair: Pair) -> None:
    for said in (PONG, frame(b"\x04PING\0\0you", COMMAND)) * 4:
        assert pair.beat() == []
        assert pair.beat() == []
        pair.say(said)
    came = pair.other.recv(16 * len(PING) + 4 * len(frame(b"\x04PONGyou", COMMAND)), socket.MSG_WAITALL)
    assert came.count(frame(b"\x04PONGyou", COMMAND)) == 4


def test_time_while_this_process_is_suspended_is_not_silence(pair: Pair) -> None:
    for _ in range(4):
        assert pair.beat() == []
        assert pair.beat() == []
        assert pair.beat(60 * BEAT_US) == []
    assert [pair.beat() for _ in range(3)] == [[], [], [LinkEventKind.DOWN]]


def test_a_peer_that_did_not_get_the_ping_is_not_silent(pair: Pair) -> None:
    body = bytes(8 << 20)
    pair.line.send([EncodedMessage([body], len(body))] * 8)
    assert [pair.beat() for _ in range(10)] == [[]] * 10
    assert pair.link.lost == 0
    pair.other.close()
    pair.hear(LinkEventKind.DOWN)
    assert pair.link.lost >= 1, "what was queued"
