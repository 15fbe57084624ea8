"""Tests of a ZMTP connection: pings, limits, disconnects, and host names."""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.unit.client.fake_gateway import until
from tutti import limits
from tutti.common.gateway_url import Address
from tutti.errors import FormatError
from tutti.io import zmtp_connection as client_link
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection
from tutti.runtime.dns import Resolver
from tutti.zmtp.framing import COMMAND, GREETING, MORE, PING, frame, ready


class Peer:
    """The other end of a link, byte by byte."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(GREETING + ready(b"ROUTER", b""))
        self.drain(len(GREETING) + len(ready(b"DEALER", b"")))

    def drain(self, count: int) -> bytes:
        came = b""
        while len(came) < count:
            data = self.socket.recv(count - len(came))
            assert data, f"the link ended after {came!r}"
            came += data
        return came

    def reset(self) -> None:
        """End as a process that is killed with unread bytes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextmanager
def _up(receive_bytes: int = 0) -> Iterator[tuple[ZmtpConnection, Peer]]:
    """An open connection and its other end, whose kernel buffers about so many bytes (0: the default)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if receive_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        link = ZmtpConnection(Address("127.0.0.1", listener.getsockname()[1]))
        peers: list[Peer] = []
        shaking = threading.Thread(target=lambda: peers.append(Peer(listener.accept()[0])))
        shaking.start()
        try:
            assert _news(link) is ConnectionEvent.UP
            shaking.join(30)
            yield link, peers[0]
        finally:
            link.close()
            shaking.join(30)
            for peer in peers:
                peer.socket.close()


def _news(link: ZmtpConnection) -> ConnectionEvent:
    """The next news, whatever messages lie there."""
    deadline = time.monotonic() + 30
    while (news := link.next_event()) is None:
        assert time.monotonic() < deadline
        link.wait(0.1)
    return news


def _readable(link: ZmtpConnection) -> None:
    """Wait for a message."""
    deadline = time.monotonic() + 30
    link.wait(0.1)
    while not link.readable:
        assert time.monotonic() < deadline
        link.wait(0.1)


def _messages(link: ZmtpConnection) -> list[bytes]:
    """All that come until the link's end."""
    came: list[bytes] = []
    while True:
        message = link.receive()
        if message is not None:
            came.append(message)
        elif link.next_event() is ConnectionEvent.DOWN:
            return came
        else:
            link.wait(0.1)


@pytest.mark.parametrize("sends", [0, 1, 2])
def test_answers_that_came_before_a_reset_are_received_whatever_is_sent_after_it(sends: int) -> None:
    with _up() as (link, peer):
        for number in range(3):
            peer.socket.sendall(frame(b"receipt %d" % number))
        peer.reset()
        until(lambda: not link.is_alive())
        for _ in range(sends):
            assert link.send([b"x" * 10])
        assert _messages(link) == [b"receipt 0", b"receipt 1", b"receipt 2"]


def test_an_end_is_reported_after_all_received_messages_also_if_polled_first() -> None:
    with _up() as (link, peer):
        peer.socket.sendall(frame(b"one") + b"\x10\x01x")
        _readable(link)
        assert link.next_event() is None
        assert link.receive() == b"one"
        assert link.next_event() is None
        with pytest.raises(FormatError, match=r"a part of 1 bytes \(flags 0x10\)"):
            link.receive()
        assert link.next_event() is ConnectionEvent.DOWN


def test_a_message_of_several_parts_ends_the_link() -> None:
    with _up() as (link, peer):
        peer.socket.sendall(frame(b"one", MORE) + frame(b"two"))
        _readable(link)
        with pytest.raises(FormatError, match="too many parts"):
            link.receive()
        assert link.next_event() is ConnectionEvent.DOWN


def test_a_ping_is_answered_with_its_content() -> None:
    with _up() as (link, peer):
        peer.socket.sendall(frame(b"\x04PING\0\x0acontext", COMMAND))
        peer.socket.sendall(frame(b"behind it"))
        _readable(link)
        assert link.receive() == b"behind it"
        answer = frame(b"\x04PONGcontext", COMMAND)
        assert peer.drain(len(answer)) == answer


def test_a_silent_gateway_is_asked_and_left_when_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_link, "_KEEPALIVE_S", 0.05)
    with _up() as (link, peer):
        assert _news(link) is ConnectionEvent.DOWN
        assert peer.drain(len(PING)) == PING


def test_a_gateway_that_answers_pings_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_link, "_KEEPALIVE_S", 0.05)
    with _up() as (link, peer):
        for _ in range(3 * client_link._UNANSWERED_MAX):
            while not select.select([peer.socket], [], [], 0)[0]:
                link.wait(0.01)
            peer.drain(len(PING))  # in the same thread: however long that takes, one question at a time is open
            peer.socket.sendall(frame(b"\x04PONG", COMMAND))
            assert link.next_event() is None


def test_an_event_is_handled_by_a_read_only_while_nothing_else_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves what `handle` does in place of the poll: data, no data, the end, keepalive, and a queue that waits for the socket."""
    monkeypatch.setattr(client_link, "_KEEPALIVE_S", 600.0)
    with _up(receive_bytes=1 << 14) as (link, peer):
        polled: list[float] = []
        poll = link._poll_events

        def counted(timeout_s: float) -> None:
            polled.append(timeout_s)
            poll(timeout_s)

        monkeypatch.setattr(link, "_poll_events", counted)
        link.is_ready = True
        link.handle(time.monotonic())
        assert [link.is_ready, link.readable, link.has_events] == [False] * 3
        peer.socket.sendall(frame(b"receipt"))
        assert select.select([link.fileno()], [], [], 30)[0]
        assert link.handle(time.monotonic()) == b"receipt"
        assert [link.receive(), link.readable] == [None, False]
        peer.socket.sendall(frame(b"receipt") + frame(b"answer"))
        assert select.select([link.fileno()], [], [], 30)[0]
        assert link.handle(time.monotonic()) is None
        assert [link.receive(), link.readable, link.receive(), link.readable] == [b"receipt", True, b"answer", False]
        assert not polled
        while not link._outgoing:
            link.send([bytes(1 << 20)])
        link.handle(time.monotonic())  # only the poll reports that the socket is writable
        assert polled == [0.0]
        peer.reset()
        while not link.has_events:
            link.handle(time.monotonic())
        assert link.next_event() is ConnectionEvent.DOWN
        link.handle(time.monotonic())  # the connection has ended, and `handle` finds nothing to read


def test_keepalive_continues_while_only_events_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_link, "_KEEPALIVE_S", 0.02)
    with _up() as (link, peer):
        while (event := link.next_event()) is None:
            link.handle(time.monotonic())
        assert event is ConnectionEvent.DOWN
        assert peer.drain(len(PING)) == PING


def test_the_send_queue_is_bounded_and_drains_when_the_socket_has_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_WINDOW_FRAMES", 4)
    monkeypatch.setattr(client_link, "_KEEPALIVE_S", 600.0)  # this peer answers no question, however long it reads
    message = bytes(1 << 20)
    with _up(receive_bytes=1 << 14) as (link, peer):
        sent = 0
        while link.send([message]):
            sent += 1
            assert sent < 100
        assert not link.send([b"small"])
        reading = threading.Thread(target=peer.drain, args=(sent * (9 + len(message)),))
        reading.start()
        while reading.is_alive():
            link.wait(0.1)
            assert link.next_event() is None
        assert link.send([b"small"])


@pytest.mark.parametrize("lingers", [True, False])
def test_queued_messages_leave_within_the_time_of_a_close(lingers: bool) -> None:
    message = bytes(1 << 24)
    with _up(receive_bytes=1 << 14) as (link, peer):
        assert link.send([message])
        came: list[int] = []

        def read() -> None:
            with suppress(OSError):
                while data := peer.socket.recv(1 << 20):
                    came.append(len(data))

        reading = threading.Thread(target=read)
        if lingers:
            reading.start()
        link.close(30.0 if lingers else 0.0)
        if not lingers:
            reading.start()
        reading.join(60)
        assert (sum(came) == 9 + len(message)) == lingers


def test_an_open_connection_differs_from_one_that_ended_with_unread_bytes() -> None:
    with _up() as (link, peer):
        assert link.is_alive()
        peer.socket.sendall(PING + frame(b"news"))
        peer.socket.close()
        until(lambda: not link.is_alive())
        assert _messages(link) == [b"news"]
        assert not link.is_alive()


# Names of hosts


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _refused(host: str, port: int = 7400) -> str:
    """Why a link to a host is refused."""
    link = ZmtpConnection(Address(host, port))
    try:
        assert _news(link) is ConnectionEvent.REFUSED
        return link.trouble
    finally:
        link.close()


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "nosuchhost.invalid"])
def test_an_unknown_host_is_reported_as_such_and_costs_nothing(host: str) -> None:
    before = _descriptors()
    assert _refused(host).startswith("the host name is unknown (")
    assert _descriptors() == before


def test_a_port_without_a_listener_is_reported_as_such() -> None:
    assert _refused("127.0.0.1", 1) == "connection refused"
    assert _refused("localhost", 1) == "connection refused"


def test_an_unreachable_address_is_reported_as_such() -> None:
    assert "connection refused" not in _refused("255.255.255.255")


def test_no_thread_is_left_for_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert _refused("localhost") == "the host name is unknown (can't start new thread)"


def test_a_lack_of_descriptors_is_reported_and_none_leaks() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    lost: dict[int, int] = {}
    for free in range(5):
        spare: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 200, hard))
        try:
            with suppress(OSError):
                while True:
                    spare.append(os.dup(0))
            for _ in range(free):
                os.close(spare.pop())
            with suppress(OSError):
                link = ZmtpConnection(Address("localhost", 1))
                assert _news(link) is ConnectionEvent.REFUSED
                link.close()
            taken = []
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            lost[free] = free - len(taken)
            spare += taken
        finally:
            for fd in spare:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lost == dict.fromkeys(range(5), 0)


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_slow_lookup_serves_the_next_connection(slow: threading.Event, meanwhile: bool) -> None:
    before = _descriptors()
    first = ZmtpConnection(Address("slow.example", 1))
    assert "name server" in first.trouble
    first.close()
    assert _descriptors() == before
    looks = [thread for thread in threading.enumerate() if thread.name == "name slow.example"]
    assert len(looks) == 1
    if meanwhile:  # while nobody waits
        slow.set()
        looks[0].join(30)
    second = ZmtpConnection(Address("slow.example", 1))
    threads = [thread for thread in threading.enumerate() if thread.name == "name slow.example"]
    assert threads == ([] if meanwhile else looks)
    slow.set()
    assert _news(second) is ConnectionEvent.REFUSED
    assert second.trouble == "connection refused"
    second.close()


def test_a_link_that_is_closed_leaves_its_lookup_alone(slow: threading.Event) -> None:
    links = [ZmtpConnection(Address("slow.example", 1)) for _ in range(3)]
    links[1].close()
    slow.set()
    for link in (links[0], links[2]):
        assert _news(link) is ConnectionEvent.REFUSED
        link.close()


@pytest.mark.parametrize("found", [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]])
def test_a_host_of_both_kinds_is_connected_by_ipv4(monkeypatch: pytest.MonkeyPatch, found: list[str]) -> None:
    monkeypatch.setattr(client_link, "addresses", lambda _host: found)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = ZmtpConnection(Address("both.example", listener.getsockname()[1]))
        listener.settimeout(0.01)
        deadline = time.monotonic() + 30
        connection = None
        while connection is None and time.monotonic() < deadline:
            link.wait(0.05)
            with suppress(TimeoutError):
                connection = listener.accept()[0]
        link.close()
        assert connection is not None
        connection.close()


def test_a_forked_child_waits_for_none_of_its_parent_s_lookups(slow: threading.Event) -> None:
    names = Resolver(client_link._resolve)
    assert names.address("slow.example") == ""
    child = os.fork()
    if not child:
        slow.set()
        own = Resolver(client_link._resolve)
        own.address("slow.example")
        own.wait(20)
        os._exit(0 if own.drain() == {"slow.example": "127.0.0.1"} else 1)
    assert os.waitpid(child, 0)[1] == 0
    slow.set()
    names.wait(30)
    assert names.drain() == {"slow.example": "127.0.0.1"}
    names.close()
