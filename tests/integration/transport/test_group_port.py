"""Proves that the group port of a gateway with keys, where descriptors have run out, takes nobody more and leaves who is connected
alone, gives what was set aside to who waits for it, and takes connections again when there are some.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from gateway.data.addresses import Address
from gateway.errors import TuttiError
from gateway.transport.group_port import GroupPort
from gateway.transport.spare_files import SpareFiles
from gateway.zmtp.listening import lowest_free
from tests.ports import free_port

SPARE = 16
WAIT_MS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def port(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[GroupPort]:
    port = GroupPort(context, Address("127.0.0.1", free_port()), None)
    with contextlib.closing(port):
        yield port


def number(port: GroupPort) -> int:
    _, found = port._listener.getsockname()
    return int(found)


@pytest.fixture
def peer(context: zmq.Context[zmq.Socket[bytes]], port: GroupPort) -> Iterator[zmq.Socket[bytes]]:
    with contextlib.closing(context.socket(zmq.DEALER)) as peer:
        peer.linger = 0
        peer.connect(f"tcp://127.0.0.1:{number(port)}")
        assert heard(port, peer)
        yield peer


def heard(port: GroupPort, peer: zmq.Socket[bytes]) -> bool:
    peer.send(b"said")
    return bool(port.socket.poll(WAIT_MS)) and port.socket.recv_multipart()[1] == b"said"


@pytest.fixture
def strangers() -> Iterator[list[socket.socket]]:
    strangers = [socket.socket() for _ in range(8)]
    yield strangers
    for stranger in strangers:
        stranger.close()


def connects(stranger: socket.socket, port: GroupPort, wait_ms: int) -> bool:
    """Whether the system lets it in within that time; who was on its way goes on."""
    stranger.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        stranger.connect(("127.0.0.1", number(port)))
    poll = select.poll()
    poll.register(stranger, select.POLLOUT)
    return bool(poll.poll(wait_ms))


@contextlib.contextmanager
def no_descriptors() -> Iterator[Callable[[], int]]:
    """None can be had, but those that are given back meanwhile; it counts these."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    one = os.open(os.devnull, os.O_RDONLY)
    had = [one]
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    while had[-1] <= highest:
        had.append(os.dup(one))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), hard))

    def free() -> int:
        with contextlib.ExitStack() as given:
            for count in itertools.count():
                try:
                    given.callback(os.close, os.dup(one))
                except OSError:
                    return count
        return 0

    try:
        assert free() == 0
        yield free
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in had:
            os.close(fd)


def test_who_waits_to_be_accepted_does_not_get_what_was_set_aside(
    port: GroupPort, peer: zmq.Socket[bytes], strangers: list[socket.socket]
) -> None:
    told: list[str] = []
    *crowd, later = strangers
    with contextlib.closing(SpareFiles(port, told.append, SPARE)) as spare:
        spare.look()
        assert port.listening
        with no_descriptors() as free:
            assert all(connects(stranger, port, WAIT_MS) for stranger in crowd)
            spare.look()
            assert free() >= SPARE - len(crowd)
            assert "new connections are refused" in told.pop()
            assert port.turn_away(), "nobody waits any more"
            assert not connects(later, port, 500)
            assert heard(port, peer), "who is connected stays so"
            spare.look()
            assert told == [], "there are too few"
        spare.look()
        assert told == ["file descriptors are free again: connections are taken"]
        assert connects(later, port, WAIT_MS), "it was on its way"
        assert heard(port, peer)


def test_it_refuses_and_listens_as_often_as_it_is_told(
    port: GroupPort, peer: zmq.Socket[bytes], strangers: list[socket.socket]
) -> None:
    for stranger in strangers[:3]:
        port.refuse()
        port.refuse()
        assert not connects(stranger, port, 100)
        port.listen()
        port.listen()
        assert connects(stranger, port, WAIT_MS)
        assert heard(port, peer)


def test_it_opens_again_while_it_refused(context: zmq.Context[zmq.Socket[bytes]], port: GroupPort) -> None:
    port.refuse()
    port.close(0)
    deadline = time.monotonic() + WAIT_MS / 1000
    while not port.listening:
        assert time.monotonic() < deadline
        with contextlib.suppress(TuttiError):  # ZeroMQ lets go of the address in its own time
            port.open()
        time.sleep(0.01)
    with contextlib.closing(context.socket(zmq.DEALER)) as peer:
        peer.linger = 0
        peer.connect(f"tcp://127.0.0.1:{number(port)}")
        assert heard(port, peer)


def test_an_address_that_is_taken_or_not_of_this_host_is_one_sentence(
    context: zmq.Context[zmq.Socket[bytes]], port: GroupPort
) -> None:
    with pytest.raises(TuttiError, match=r"the group port 127\.0\.0\.1:\d+ cannot be opened: Address already in use; end who"):
        GroupPort(context, Address("127.0.0.1", number(port)), None)
    with pytest.raises(TuttiError, match=r"the group port 203\.0\.113\.1:\d+ cannot be opened: Cannot assign requested address"):
        GroupPort(context, Address("203.0.113.1", number(port)), None)


def test_where_there_is_no_descriptor_for_it_the_limit_is_named(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    address = Address("127.0.0.1", free_port())
    with (
        no_descriptors(),
        pytest.raises(TuttiError, match=r"no socket can be had for the group port: Too many open files; raise the"),
    ):
        GroupPort(context, address, None)
    with contextlib.closing(GroupPort(context, address, None)):
        pass
