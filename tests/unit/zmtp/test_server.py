"""Tests of the server's connections: each client gets its turn within its bounds, and a silent client is detected."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.zmtp.port import HELLO, SHOOK, TERMS, WAIT_S, Port, read_all
from tutti import limits
from tutti.runtime.reserved_fds import lowest_free_descriptor
from tutti.zmtp.framing import COMMAND, GREETING, PING, frame, ready
from tutti.zmtp.server import SendResult

PONG = frame(b"\x04PONG", COMMAND)


def test_a_busy_client_leaves_the_others_their_turn(port: Port) -> None:
    much, little = port.call(), port.call()
    port.has(2)
    much.setblocking(False)
    seen: set[bytes] = set()
    sent = 0
    for _ in range(200):
        try:
            sent += much.send(frame(bytes(200)) * 100)
        except BlockingIOError:
            break
    little.sendall(frame(b"me, too"))
    port.look()
    for _ in range(4):
        seen |= {parts[0] for _, parts, _ in port.drain(messages_max=1)}
    assert b"me, too" in seen
    assert port.server.unread, "what was not taken is known to be there"


def test_a_flooding_client_is_limited_and_waiting_ones_have_a_turn_in_one_drain_or_two() -> None:
    port = Port(TERMS._replace(connections_max=20))
    many = [port.call() for _ in range(10)]
    port.has(10)
    for number, one in enumerate(many):
        one.sendall(frame(b"%d" % number) * 2000)
    good = port.call()
    port.has(11)
    good.sendall(frame(b"good"))
    while port.server.unread:
        port.drain()
    for number, one in enumerate(many):
        one.sendall(frame(b"%d" % number) * 2000)
    good.sendall(frame(b"good"))
    while len(port.epoll.poll(0.01)) < 11:
        continue
    said = [[parts[0] for _, parts, _ in port.drain(messages_max=100)] for _ in range(2)]
    assert b"good" in said[0] + said[1]
    assert max(said[0].count(b"%d" % number) for number in range(10)) <= 40
    port.close()


def test_a_lone_client_may_fill_a_drain(port: Port) -> None:
    port.call().sendall(frame(b"x") * 2000)
    while not port.server.unread:
        port.look()
    assert len(port.drain(messages_max=100)) == 200


def test_a_first_message_after_the_handshake_is_not_lost(port: Port) -> None:
    port.call(HELLO + frame(b"at once"))
    port.look()  # the connection
    while not port.server.unread:
        port.look()
    assert [parts for _, parts, _ in port.drain()] == [[b"at once"]]


def test_a_silent_connection_is_closed_for_the_next_one_and_an_active_one_never_is(port: Port) -> None:
    speakers = [port.call(HELLO + frame(b"hi")) for _ in range(2)]
    port.first(2)
    mute = port.call()
    port.has(3)
    late = port.call(HELLO + frame(b"hi"))
    port.first()
    assert read_all(mute, 1000).startswith(GREETING[:1])  # and then the end
    assert mute.recv(1) == b""
    refused = port.call()
    port.look()
    with contextlib.suppress(ConnectionResetError):
        assert refused.recv(1) == b"", "all places are taken by who spoke"
    for speaker in (*speakers, late):
        speaker.sendall(frame(b"still here"))
    assert len(port.first(3)) == 3


def test_an_unidentified_connection_is_closed_for_the_next_one_too() -> None:
    port = Port(is_known=lambda routing: False)
    callers = [port.call(HELLO + frame(b"hi")) for _ in range(3)]
    port.first(3)
    port.call(HELLO + frame(b"later"))
    assert [parts for _, parts, _ in port.first()] == [[b"later"]]
    assert len(port.server) == 3
    assert len(read_all(callers[0], SHOOK + 1)) == SHOOK, "the oldest one is closed"
    for one in callers[1:]:
        one.sendall(frame(b"still here"))
    assert len(port.first(2)) == 2
    port.close()


def test_a_connection_refused_for_lack_of_slots_is_counted_and_reported_once_a_minute(port: Port) -> None:
    for _ in range(TERMS.connections_max):
        port.call(HELLO + frame(b"hi"))
    port.first(TERMS.connections_max)
    for refused in range(1, 4):
        turned_away = port.call(b"")
        port.look()
        with contextlib.suppress(ConnectionResetError):
            assert turned_away.recv(1) == b""
        assert port.server.acceptor.refused == refused
        port.server.maintain()
        assert ["connections were refused on the port" in told for told in port.told] == [True]
    port.now_us += limits.WARNING_REPEAT_US
    port.server.maintain()
    port.now_us += limits.WARNING_REPEAT_US
    port.server.maintain()
    assert [told.partition(" ")[0] for told in port.told] == ["1", "2"]


def test_a_client_that_reconnects_replaces_its_old_connection() -> None:
    port = Port(TERMS._replace(by_identity=True))
    said = GREETING + ready(b"DEALER", b"me")
    old = port.call(said + frame(b"old"))
    port.first()
    new = port.call(said + frame(b"new"))
    assert [(routing, parts) for routing, parts, _ in port.first()] == [(b"me", [b"new"])]
    assert len(port.server) == 1
    assert len(read_all(old, SHOOK + 1)) == SHOOK, "and then the end"
    assert port.server.send(b"me", b"there") is SendResult.SENT
    assert read_all(new, SHOOK + 7).endswith(frame(b"there"))
    port.close()


def test_a_client_is_not_identified_by_the_name_it_claims(port: Port) -> None:
    said = GREETING + ready(b"DEALER", b"me")
    old = port.call(said + frame(b"old"))
    ((first, _, _),) = port.first()
    port.call(said + frame(b"new"))
    ((second, _, _),) = port.first()
    assert len({first, second, b"me"}) == 3
    assert port.server.send(first, b"there") is SendResult.SENT, "it stays where it is"
    assert read_all(old, SHOOK + 7).endswith(frame(b"there"))
    old.close()
    port.has(1)
    port.call(GREETING + ready(b"DEALER", first) + frame(b"third"))
    ((third, _, _),) = port.first()
    assert third not in (first, second), "what one was known by is given to nobody else"


def test_a_drain_reads_at_most_its_bytes_and_the_rest_of_the_last_read(port: Port) -> None:
    client = port.call(HELLO)
    port.has(1)
    port.hears(client, frame(bytes(60_000)) * 3)
    port.look()
    assert [len(port.drain(bytes_max=1)) for _ in range(3)] == [1, 1, 1]


def test_a_busy_client_is_read_again_without_an_event_of_the_kernel(port: Port) -> None:
    client = port.call(HELLO)
    port.has(1)
    port.hears(client, frame(bytes(180_000)))
    port.look()
    assert port.drain(bytes_max=1) == []
    assert len(port.drain(bytes_max=1)) == 1, "the rest came by one read, which left room"
    assert port.server.unread


def test_a_mute_connection_is_closed_after_a_while_unless_nothing_was_read(port: Port) -> None:
    mute = port.call()
    port.has(1)
    port.now_us += 11_000_000
    port.server.maintain(reads=False)
    assert len(port.server) == 1, "it may have said something that was not looked at"
    port.server.maintain()
    assert len(port.server) == 0
    mute.close()


def test_a_client_that_misses_a_heartbeat_is_closed_and_one_that_answers_stays(port: Port) -> None:
    answers, silent = (port.call(HELLO + frame(b"hi")) for _ in range(2))
    port.first(2)
    for _ in range(TERMS.heartbeats_max + 2):
        port.now_us += TERMS.heartbeat_us
        port.server.maintain()
        answers.sendall(PONG)
        port.look()
        port.drain()
    assert len(port.server) == 1
    assert PING in read_all(silent, 4096)


def test_nothing_is_silence_while_nothing_is_read(port: Port) -> None:
    port.call(HELLO + frame(b"hi"))
    port.first()
    port.server.maintain()  # what it said counts for this beat
    for _ in range(3 * TERMS.heartbeats_max):
        port.now_us += TERMS.heartbeat_us
        port.server.maintain(reads=False)
    assert len(port.server) == 1
    for _ in range(TERMS.heartbeats_max + 1):
        port.now_us += TERMS.heartbeat_us
        port.server.maintain()
    assert len(port.server) == 0, "nobody else has to speak for that"


def test_a_beat_of_the_other_end_is_answered(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi") + frame(b"\x04PING\0\0context", COMMAND))
    port.first()
    port.drain()
    assert frame(b"\x04PONGcontext", COMMAND) in read_all(client, len(GREETING) + len(ready(b"ROUTER", b"")) + 14)


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], None]]:
    """Leaves connections so many of this process's descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    holes = contextlib.ExitStack()

    def leave(count: int) -> None:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        while lowest_free_descriptor() < highest:
            holes.enter_context(socket.socket())
        bound = lowest_free_descriptor() + count
        soft = next(
            soft for soft in range(bound, 2 * bound) if soft - min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART) >= bound
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))

    with holes:
        yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_leave_descriptors_to_others_and_are_accepted_when_some_are_free(descriptors: Callable[[int], None]) -> None:
    port = Port(TERMS._replace(connections_max=100))
    sockets = [socket.socket() for _ in range(9)]
    descriptors(3)
    port.server.maintain()
    for one in sockets[:3]:
        one.connect(("127.0.0.1", port.number))
        one.sendall(HELLO + frame(b"hi"))
    port.first(3)
    for one in sockets[3:]:
        one.connect(("127.0.0.1", port.number))
    deadline = time.monotonic() + WAIT_S
    while port.server.acceptor.refused < len(sockets[3:]):
        assert time.monotonic() < deadline
        port.look()
    for one in sockets[3:]:
        one.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b"", "it is refused"
    assert len(port.server) == 3
    assert ["or is refused" in reason for reason in port.told] == [True]
    with contextlib.ExitStack() as others:  # what the rest of the process needs
        for _ in range(3):
            others.enter_context(socket.socket())
    port.server.maintain()
    assert len(port.told) == 1
    sockets[0].close()
    port.has(2)
    port.server.maintain()
    assert "are accepted" in port.told[1]
    with socket.socket() as later:
        later.connect(("127.0.0.1", port.number))
        later.sendall(HELLO + frame(b"later"))
        assert [parts for _, parts, _ in port.first()] == [[b"later"]]
    for one in sockets:
        one.close()
    port.close()


def test_without_free_descriptors_a_silent_connection_is_closed(descriptors: Callable[[int], None]) -> None:
    port = Port(TERMS._replace(connections_max=100))
    sockets = [socket.socket() for _ in range(6)]
    descriptors(3)
    port.server.maintain()
    for one in sockets[:5]:
        one.connect(("127.0.0.1", port.number))
        port.look()
    sockets[5].connect(("127.0.0.1", port.number))
    sockets[5].sendall(HELLO + frame(b"hi"))
    assert [parts for _, parts, _ in port.first()] == [[b"hi"]]
    assert len(port.server) == 3
    assert lowest_free_descriptor() >= max(one.fileno() for one in sockets)
    for one in sockets:
        one.close()
    port.close()


def test_the_connection_with_most_incomplete_data_is_closed(port: Port) -> None:
    head = b"\x02" + (200_000).to_bytes(8, "big")
    for _ in range(2):
        port.call(HELLO + head + bytes(10))
    while not port.told:
        port.look()
        port.drain()
    assert len(port.server) == 1
    assert "incomplete messages" in port.told[0]


def test_a_message_of_too_many_parts_is_handed_out_without_any_and_the_next_one_is_whole(port: Port) -> None:
    port.call(HELLO + frame(b"x", 1) * TERMS.parts_max + frame(b"x") + frame(b"y"))
    assert [(parts, size) for _, parts, size in port.first(2)] == [([], TERMS.parts_max + 1), ([b"y"], 1)]


@pytest.mark.parametrize("piece", [frame(b""), frame(b"", 1), frame(b"\x04PING\0\0", COMMAND)])
def test_a_flood_of_empty_parts_is_read_in_many_iterations(port: Port, piece: bytes) -> None:
    client = port.call(HELLO)
    port.has(1)
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(10):
            client.send(piece * (20_000 // len(piece)))
    client.setblocking(True)
    port.look()
    drains = 0
    while port.server.unread or drains == 0:
        assert len(port.drain(messages_max=50)) <= 100
        drains += 1
    assert drains > 20
