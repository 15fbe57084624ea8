"""Proves that who calls at a port has its turn, its bounds and its answers, and that who is silent or hangs up is noticed."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gateway.core import limits
from gateway.zmtp.caller import Terms
from gateway.zmtp.callers import Callers, Sent
from gateway.zmtp.form import COMMAND, GREETING, PING, frame, ready
from gateway.zmtp.listening import lowest_free, open_port

TERMS = Terms(
    name="port",
    connections=3,
    assembly_bytes=300_000,
    parts=4,
    forgives=True,
    waiting=8,
    waiting_bytes=1 << 30,
    unread=1 << 30,
    spares=1,
    beat_us=1_000_000,
    beats=3,
)
HELLO = GREETING + ready(b"DEALER", b"")
PONG = frame(b"\x04PONG", COMMAND)
WAIT_S = 10.0


class Port:
    """A port that a test drains, with a clock that it sets."""

    def __init__(self, terms: Terms = TERMS, knows: Callable[[bytes], bool] | None = None) -> None:
        self.now_us = 1
        self.told: list[str] = []
        self.epoll = select.epoll()
        self.callers = Callers(terms, self.epoll, lambda: self.now_us, knows=knows, tell=self.told.append)
        listener = open_port("127.0.0.1", 0, 10)
        self.number = listener.getsockname()[1]
        self.callers.listen(listener)
        self._open = ExitStack()

    def call(self, said: bytes = HELLO) -> socket.socket:
        connection = self._open.enter_context(socket.create_connection(("127.0.0.1", self.number), WAIT_S))
        connection.sendall(said)
        return connection

    def look(self, timeout_s: float = WAIT_S) -> None:
        for fd, mask in self.epoll.poll(timeout_s):
            self.callers.happened(fd, mask)

    def drain(self, messages_max: int = 100, bytes_max: int = 1 << 20) -> list[tuple[bytes, list[bytes], int]]:
        self.look(0)
        came = self.callers.arrivals(messages_max, bytes_max)
        return [(routing, [bytes(part) for part in parts], size) for routing, parts, size in came]

    def has(self, count: int) -> None:
        """Wait until there are so many connections."""
        while len(self.callers) != count:
            self.look()
            self.drain()

    def first(self, count: int = 1) -> list[tuple[bytes, list[bytes], int]]:
        """Wait for so many messages."""
        got: list[tuple[bytes, list[bytes], int]] = []
        while len(got) < count:
            self.look()
            got += self.drain()
        return got

    def close(self) -> None:
        self._open.close()
        self.callers.close(self.now_us)
        self.epoll.close()


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


def read_all(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (more := connection.recv(size - len(got))):
        got += more
    return got


def test_who_sends_much_leaves_the_others_their_turn(port: Port) -> None:
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
    assert port.callers.unread, "what was not taken is known to be there"


def test_a_first_message_behind_the_handshake_is_not_forgotten(port: Port) -> None:
    port.call(HELLO + frame(b"at once"))
    port.look()  # the connection
    while not port.callers.unread:
        port.look()
    assert [parts for _, parts, _ in port.drain()] == [[b"at once"]]


def test_who_said_nothing_makes_room_for_the_next_one_and_who_spoke_never_does(port: Port) -> None:
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


def test_whom_nobody_knows_makes_room_too() -> None:
    port = Port(knows=lambda routing: False)
    callers = [port.call(HELLO + frame(b"hi")) for _ in range(3)]
    port.first(3)
    port.call(HELLO + frame(b"later"))
    assert [parts for _, parts, _ in port.first()] == [[b"later"]]
    assert len(port.callers) == 3
    assert any(one.recv(1000).endswith(b"") for one in callers)
    port.close()


def test_a_mute_connection_is_closed_after_a_while_unless_nothing_was_read(port: Port) -> None:
    mute = port.call()
    port.has(1)
    port.now_us += 11_000_000
    port.callers.keep(reads=False)
    assert len(port.callers) == 1, "it may have said something that was not looked at"
    port.callers.keep()
    assert len(port.callers) == 0
    mute.close()


def test_who_answers_no_beat_is_closed_and_who_does_stays(port: Port) -> None:
    answers, silent = (port.call(HELLO + frame(b"hi")) for _ in range(2))
    port.first(2)
    for _ in range(TERMS.beats + 2):
        port.now_us += TERMS.beat_us
        port.callers.keep()
        answers.sendall(PONG)
        port.look()
        port.drain()
    assert len(port.callers) == 1
    assert PING in read_all(silent, 4096)


def test_nothing_is_silence_while_nothing_is_read(port: Port) -> None:
    port.call(HELLO + frame(b"hi"))
    port.first()
    port.callers.keep()  # what it said counts for this beat
    for _ in range(3 * TERMS.beats):
        port.now_us += TERMS.beat_us
        port.callers.keep(reads=False)
    assert len(port.callers) == 1
    for _ in range(TERMS.beats + 1):
        port.now_us += TERMS.beat_us
        port.callers.keep()
    assert len(port.callers) == 0, "nobody else has to speak for that"


def test_a_beat_of_the_other_end_is_answered(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi") + frame(b"\x04PING\0\0context", COMMAND))
    port.first()
    port.drain()
    assert frame(b"\x04PONGcontext", COMMAND) in read_all(client, len(GREETING) + len(ready(b"ROUTER", b"")) + 14)


def test_what_a_caller_does_not_read_waits_in_bounds_and_comes_whole(port: Port) -> None:
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


def test_who_reads_least_of_what_it_is_told_is_cut_off_when_all_of_that_is_too_much() -> None:
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


def test_nothing_is_read_of_who_does_not_read_and_all_of_it_once_that_reads() -> None:
    port = Port(TERMS._replace(unread=1 << 20))
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


def test_who_reads_slowly_is_not_silent_and_who_reads_nothing_is() -> None:
    port = Port(TERMS._replace(unread=1 << 20))
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


def test_who_is_held_back_and_breaks_off_is_gone() -> None:
    port = Port(TERMS._replace(unread=1 << 20))
    client = port.call(HELLO + frame(b"first"))
    ((routing, _, _),) = port.first()
    port.callers.say(routing, bytes(16 << 20))
    client.sendall(frame(b"second"))
    port.look()
    port.drain()
    client.close()  # with something unread: that breaks it off
    port.has(0)
    port.close()


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], None]]:
    """Leaves connections so many of this process's descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(count: int) -> None:
        bound = lowest_free() + count
        soft = next(
            soft for soft in range(bound, 2 * bound) if soft - min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART) >= bound
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_leave_descriptors_to_others_and_are_taken_when_some_are_free(descriptors: Callable[[int], None]) -> None:
    port = Port(TERMS._replace(connections=100))
    sockets = [socket.socket() for _ in range(9)]
    descriptors(3)
    port.callers.keep()
    for one in sockets[:3]:
        one.connect(("127.0.0.1", port.number))
        one.sendall(HELLO + frame(b"hi"))
    port.first(3)
    for one in sockets[3:]:
        one.connect(("127.0.0.1", port.number))
    for one in sockets[3:]:
        one.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            port.look()
            assert one.recv(1) == b"", "it is refused"
    assert len(port.callers) == 3
    assert ["new connections are refused" in reason for reason in port.told] == [True]
    with contextlib.ExitStack() as others:  # what the rest of the process needs
        for _ in range(3):
            others.enter_context(socket.socket())
    port.callers.keep()
    assert len(port.told) == 1
    sockets[0].close()
    port.has(2)
    port.callers.keep()
    assert "are taken" in port.told[1]
    with socket.socket() as later:
        later.connect(("127.0.0.1", port.number))
        later.sendall(HELLO + frame(b"later"))
        assert [parts for _, parts, _ in port.first()] == [[b"later"]]
    for one in sockets:
        one.close()
    port.close()


def test_where_no_descriptor_is_left_who_said_nothing_makes_room(descriptors: Callable[[int], None]) -> None:
    port = Port(TERMS._replace(connections=100))
    sockets = [socket.socket() for _ in range(6)]
    descriptors(3)
    port.callers.keep()
    for one in sockets[:5]:
        one.connect(("127.0.0.1", port.number))
        port.look()
    sockets[5].connect(("127.0.0.1", port.number))
    sockets[5].sendall(HELLO + frame(b"hi"))
    assert [parts for _, parts, _ in port.first()] == [[b"hi"]]
    assert len(port.callers) == 3
    assert lowest_free() >= max(one.fileno() for one in sockets)
    for one in sockets:
        one.close()
    port.close()


def test_who_has_most_of_what_is_not_complete_is_cut_off(port: Port) -> None:
    head = b"\x02" + (200_000).to_bytes(8, "big")
    for _ in range(2):
        port.call(HELLO + head + bytes(10))
    while not port.told:
        port.look()
        port.drain()
    assert len(port.callers) == 1
    assert "not complete" in port.told[0]


def test_a_message_of_too_many_parts_is_handed_out_without_any_and_the_next_one_is_whole(port: Port) -> None:
    port.call(HELLO + frame(b"x", 1) * TERMS.parts + frame(b"x") + frame(b"y"))
    assert [(parts, size) for _, parts, size in port.first(2)] == [([], TERMS.parts + 1), ([b"y"], 1)]


@pytest.mark.parametrize("piece", [frame(b""), frame(b"", 1), frame(b"\x04PING\0\0", COMMAND)])
def test_a_flood_of_pieces_without_bytes_is_taken_in_many_turns(port: Port, piece: bytes) -> None:
    client = port.call(HELLO)
    port.has(1)
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(10):
            client.send(piece * (20_000 // len(piece)))
    client.setblocking(True)
    port.look()
    drains = 0
    while port.callers.unread or drains == 0:
        assert len(port.drain(messages_max=50)) <= 100
        drains += 1
    assert drains > 20


def test_closing_takes_no_longer_than_told(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    while port.callers.say(routing, bytes(1 << 20)) is Sent.LEFT:
        continue
    began = time.monotonic()
    port.callers.close(port.now_us + 100_000)
    assert time.monotonic() < began + 5
    client.close()


def test_who_hangs_up_is_gone(port: Port) -> None:
    client = port.call(HELLO + frame(b"hi"))
    ((routing, _, _),) = port.first()
    client.close()
    port.has(0)
    assert port.callers.say(routing, b"") is Sent.GONE
