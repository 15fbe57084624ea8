"""Proves that what is said to who called leaves in its bounds, whole, and that who does not read or hangs up harms nobody."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time

import pytest

from tests.unit.zmtp.port import DEADLINE_S, HELLO, SHOOK, TERMS, Port, read_all
from tutti.zmtp.framing import GREETING, frame, ready
from tutti.zmtp.server import SendResult


def test_what_a_caller_does_not_read_waits_in_bounds_and_comes_whole(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    answer, sent = bytes(1 << 20), 0
    while port.server.send(routing, answer) is SendResult.SENT:
        sent += 1
    assert port.server.send(routing, answer) is SendResult.FULL
    got = 0
    client.setblocking(False)
    whole = len(GREETING) + len(ready(b"ROUTER", b"")) + sent * (9 + len(answer))
    while got < whole:
        port.look(0.01)
        try:
            got += len(client.recv(1 << 20))
        except BlockingIOError:
            continue
    assert port.server.send(routing, b"again") is SendResult.SENT
    assert port.server.send(b"nobody", b"") is SendResult.DISCONNECTED


def test_who_reads_least_of_what_it_is_told_is_cut_off_when_all_of_that_is_too_much() -> None:
    port = Port(TERMS._replace(queued_max=1000, queued_bytes_max=20 << 20))
    much, little = port.call(HELLO + frame(b"much")), port.call(HELLO + frame(b"little"))
    routings = {parts[0]: routing for routing, parts, _ in port.first(2)}
    assert port.server.send(routings[b"little"], bytes(8 << 20)) is SendResult.SENT
    while port.server.send(routings[b"much"], bytes(1 << 20)) is SendResult.SENT:
        assert not port.told
    assert len(port.server) == 1
    assert "unread answers" in port.told[0]
    little.sendall(frame(b"here"))
    assert [parts for _, parts, _ in port.first()] == [[b"here"]]
    assert port.server.send(routings[b"little"], bytes(8 << 20)) is SendResult.SENT, "what waited for who is gone counts no more"
    much.close()
    port.close()


def test_nothing_is_read_of_who_does_not_read_and_all_of_it_once_that_reads() -> None:
    port = Port(TERMS._replace(pause_above_bytes=1 << 20))
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    answer = bytes(16 << 20)
    port.server.send(routing, answer)
    client.sendall(frame(b"second") + frame(b"third"))
    port.look()
    assert port.drain() == []
    assert not port.server.unread
    assert port.epoll.poll(0) == [], "it wakes nobody up"
    port.server.maintain()
    client.setblocking(False)
    left = len(GREETING) + len(ready(b"ROUTER", b"")) + 9 + len(answer)
    came: list[list[bytes]] = []
    while left:
        with contextlib.suppress(BlockingIOError):
            left -= len(client.recv(1 << 20))
        port.look(0.01)
        came += [parts for _, parts, _ in port.drain()]
    while len(came) < 2:
        port.look()
        came += [parts for _, parts, _ in port.drain()]
    assert came == [[b"second"], [b"third"]]
    port.close()


def test_who_reads_slowly_is_not_silent_and_who_reads_nothing_is() -> None:
    port = Port(TERMS._replace(pause_above_bytes=1 << 20))
    slow, frozen = port.call(HELLO + frame(b"slow")), port.call(HELLO + frame(b"frozen"))
    for routing, _, _ in port.first(2):
        port.server.send(routing, bytes(64 << 20))
    for _ in range(TERMS.heartbeats_max + 2):
        for _ in range(100):  # the kernel has room to tell of
            read_all(slow, 64 << 10)
            port.look(0)
        port.now_us += TERMS.heartbeat_us
        port.server.maintain()
    assert len(port.server) == 1
    assert slow.recv(1)
    frozen.close()
    port.close()


def test_who_is_held_back_and_breaks_off_is_gone() -> None:
    port = Port(TERMS._replace(pause_above_bytes=1 << 20))
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    port.server.send(routing, bytes(16 << 20))
    client.sendall(frame(b"second"))
    port.look()
    port.drain()
    client.close()  # with something unread: that breaks it off
    port.has(0)
    port.close()


def test_a_connection_that_may_not_be_read_stays_open_and_is_read_once_it_may_be() -> None:
    held: set[bytes] = set()
    port = Port(may_read=lambda routing: routing not in held)
    client, other = port.call(HELLO + frame(b"first")), port.call(HELLO + frame(b"other"))
    routings = {parts[0]: routing for routing, parts, _ in port.first(2)}
    held.add(routings[b"first"])
    port.hears(client, frame(b"second"))
    for _ in range(2 * TERMS.heartbeats_max):
        port.hears(other, frame(b"beat"))
        assert [parts for _, parts, _ in port.first()] == [[b"beat"]]
        assert port.epoll.poll(0) == [], "it wakes nobody up"
        port.now_us += TERMS.heartbeat_us
        port.server.maintain()
    assert port.server.send(routings[b"first"], b"answer") is SendResult.SENT
    held.clear()
    port.now_us += TERMS.heartbeat_us
    port.server.maintain()
    assert [parts for _, parts, _ in port.first()] == [[b"second"]]
    port.close()


def test_an_answer_to_a_connection_that_may_be_read_again_resumes_it_without_a_heartbeat() -> None:
    held: set[bytes] = set()
    port = Port(may_read=lambda routing: routing not in held)
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    held.add(routing)
    port.hears(client, frame(b"second"))
    port.look()
    assert port.drain() == []
    held.clear()
    assert port.server.send(routing, b"answer") is SendResult.SENT
    assert [parts for _, parts, _ in port.first()] == [[b"second"]]
    port.close()


def test_a_connection_that_may_not_be_read_and_breaks_is_closed() -> None:
    held: set[bytes] = set()
    port = Port(may_read=lambda routing: routing not in held)
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    held.add(routing)
    port.hears(client, frame(b"second"))
    port.look()
    assert port.drain() == []
    hang_up(client)
    port.has(0)
    port.close()


def hang_up(connection: socket.socket) -> None:
    """As who ends with something unread: the connection is reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("beats", [False, True])
def test_what_came_before_a_connection_broke_is_taken_though_something_is_said_to_it(port: Port, beats: bool) -> None:
    client, other = port.call(HELLO + frame(b"first")), port.call(HELLO + frame(b"other"))
    routings = {parts[0]: routing for routing, parts, _ in port.first(2)}
    routing = routings[b"first"]
    port.hears(client, frame(b"second") + frame(b"third"))
    port.server.maintain()
    hang_up(client)
    port.look()  # the end of it is known, nothing is read
    for _ in range(3):
        if beats:
            port.now_us += TERMS.heartbeat_us
            port.server.maintain(reads=False)
        else:
            assert port.server.send(routing, b"lost") is SendResult.SENT
    assert [parts for _, parts, _ in port.drain()] == [[b"second"], [b"third"]]
    port.has(1)
    assert port.server.send(routing, b"") is SendResult.DISCONNECTED
    assert not port.server.is_open(routing)
    assert port.server.send(routings[b"other"], b"") is SendResult.SENT
    other.close()


def test_what_waits_leaves_while_nothing_is_read(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    answer = bytes(16 << 20)
    assert port.server.send(routing, answer) is SendResult.SENT
    client.sendall(frame(b"later"))
    client.setblocking(False)
    left = SHOOK + 9 + len(answer)
    room = select.poll()
    room.register(port.server.writable_fd, select.POLLIN)
    deadline = time.monotonic() + DEADLINE_S
    while left:
        assert time.monotonic() < deadline
        with contextlib.suppress(BlockingIOError):
            left -= len(client.recv(1 << 20))
        if room.poll(10):
            port.server.flush()
    assert not room.poll(0), "there is nothing more to do"
    assert [parts for _, parts, _ in port.first()] == [[b"later"]]


def test_closing_has_what_was_said_leave(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    whole = SHOOK + 9 + (16 << 20)
    assert port.server.send(routing, bytes(16 << 20)) is SendResult.SENT
    got: list[int] = []
    reads = threading.Thread(target=lambda: got.append(len(read_all(client, whole + 1))))
    reads.start()
    port.server.close(port.now_us + int(DEADLINE_S * 1e6))
    reads.join(DEADLINE_S)
    assert got == [whole]


def test_closing_takes_no_longer_than_told(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    while port.server.send(routing, bytes(1 << 20)) is SendResult.SENT:
        continue
    began = time.monotonic()
    port.server.close(port.now_us + 100_000)
    assert time.monotonic() < began + 5
    client.close()


def test_who_hangs_up_is_gone(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    client.close()
    port.has(0)
    assert port.server.send(routing, b"") is SendResult.DISCONNECTED
