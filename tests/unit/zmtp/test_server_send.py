"""Tests of messages from a server to its clients: they leave complete and within bounds, and a client that does not read or
disconnects harms no other.
"""

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
from tutti.zmtp.server import Sent


def test_unread_messages_wait_in_bounds_and_arrive_complete(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    answer, sent = bytes(1 << 20), 0
    while port.callers.say(routing, answer) is Sent.LEFT:
        sent += 1
    assert port.callers.say(routing, answer) is Sent.FULL
    got = 0
    client.setblocking(False)
    whole = len(GREETING) + len(ready(b"ROUTER", b"")) + sent * (9 + len(answer))
    while got < whole:
        port.look(0.01)
        try:
            got += len(client.recv(1 << 20))
        except BlockingIOError:
            continue
    assert port.callers.say(routing, b"again") is Sent.LEFT
    assert port.callers.say(b"nobody", b"") is Sent.GONE


def test_the_client_that_reads_least_is_disconnected_when_the_total_is_too_much() -> None:
    port = Port(TERMS._replace(waiting=1000, waiting_bytes=20 << 20))
    much, little = port.call(HELLO + frame(b"much")), port.call(HELLO + frame(b"little"))
    routings = {parts[0]: routing for routing, parts, _ in port.first(2)}
    assert port.callers.say(routings[b"little"], bytes(8 << 20)) is Sent.LEFT
    while port.callers.say(routings[b"much"], bytes(1 << 20)) is Sent.LEFT:
        assert not port.told
    assert len(port.callers) == 1
    assert "nobody reads" in port.told[0]
    little.sendall(frame(b"here"))
    assert [parts for _, parts, _ in port.first()] == [[b"here"]]
    assert port.callers.say(routings[b"little"], bytes(8 << 20)) is Sent.LEFT, "what waited for who is gone counts no more"
    much.close()
    port.close()


def test_a_client_that_does_not_read_is_not_read_from_until_it_reads() -> None:
    port = Port(TERMS._replace(held_back_bytes=1 << 20))
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    answer = bytes(16 << 20)
    port.callers.say(routing, answer)
    client.sendall(frame(b"second") + frame(b"third"))
    port.look()
    assert port.drain() == []
    assert not port.callers.unread
    assert port.epoll.poll(0) == [], "it wakes nobody up"
    port.callers.keep()
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


def test_a_slow_reader_is_not_silent_and_one_that_reads_nothing_is() -> None:
    port = Port(TERMS._replace(held_back_bytes=1 << 20))
    slow, frozen = port.call(HELLO + frame(b"slow")), port.call(HELLO + frame(b"frozen"))
    for routing, _, _ in port.first(2):
        port.callers.say(routing, bytes(64 << 20))
    for _ in range(TERMS.beats + 2):
        for _ in range(100):  # the kernel has room to tell of
            read_all(slow, 64 << 10)
            port.look(0)
        port.now_us += TERMS.beat_us
        port.callers.keep()
    assert len(port.callers) == 1
    assert slow.recv(1)
    frozen.close()
    port.close()


def test_a_deferred_client_that_disconnects_is_removed() -> None:
    port = Port(TERMS._replace(held_back_bytes=1 << 20))
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    port.callers.say(routing, bytes(16 << 20))
    client.sendall(frame(b"second"))
    port.look()
    port.drain()
    client.close()  # with something unread: that breaks it off
    port.has(0)
    port.close()


def hang_up(connection: socket.socket) -> None:
    """Close with unread data, which resets the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("beats", [False, True])
def test_messages_received_before_a_connection_broke_are_delivered_although_one_is_being_sent(port: Port, beats: bool) -> None:
    client, other = port.call(HELLO + frame(b"first")), port.call(HELLO + frame(b"other"))
    routings = {parts[0]: routing for routing, parts, _ in port.first(2)}
    routing = routings[b"first"]
    port.hears(client, frame(b"second") + frame(b"third"))
    port.callers.keep()
    hang_up(client)
    port.look()  # the end of it is known, nothing is read
    for _ in range(3):
        if beats:
            port.now_us += TERMS.beat_us
            port.callers.keep(reads=False)
        else:
            assert port.callers.say(routing, b"lost") is Sent.LEFT
    assert [parts for _, parts, _ in port.drain()] == [[b"second"], [b"third"]]
    port.has(1)
    assert port.callers.say(routing, b"") is Sent.GONE
    assert not port.callers.stands(routing)
    assert port.callers.say(routings[b"other"], b"") is Sent.LEFT
    other.close()


def test_waiting_messages_leave_while_nothing_is_read(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    answer = bytes(16 << 20)
    assert port.callers.say(routing, answer) is Sent.LEFT
    client.sendall(frame(b"later"))
    client.setblocking(False)
    left = SHOOK + 9 + len(answer)
    room = select.poll()
    room.register(port.callers.room_fd, select.POLLIN)
    deadline = time.monotonic() + DEADLINE_S
    while left:
        assert time.monotonic() < deadline
        with contextlib.suppress(BlockingIOError):
            left -= len(client.recv(1 << 20))
        if room.poll(10):
            port.callers.flush()
    assert not room.poll(0), "there is nothing more to do"
    assert [parts for _, parts, _ in port.first()] == [[b"later"]]


def test_closing_sends_queued_messages(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    whole = SHOOK + 9 + (16 << 20)
    assert port.callers.say(routing, bytes(16 << 20)) is Sent.LEFT
    got: list[int] = []
    reads = threading.Thread(target=lambda: got.append(len(read_all(client, whole + 1))))
    reads.start()
    port.callers.close(port.now_us + int(DEADLINE_S * 1e6))
    reads.join(DEADLINE_S)
    assert got == [whole]


def test_closing_takes_no_longer_than_its_limit(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    while port.callers.say(routing, bytes(1 << 20)) is Sent.LEFT:
        continue
    began = time.monotonic()
    port.callers.close(port.now_us + 100_000)
    assert time.monotonic() < began + 5
    client.close()


def test_a_client_that_disconnects_is_removed(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    client.close()
    port.has(0)
    assert port.callers.say(routing, b"") is Sent.GONE
