"""Proves that the group port of a gateway with keys, where descriptors have run out, takes nobody more and leaves who is connected
alone, gives what was set aside to who waits for it, and takes connections again when there are some.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import zmq

from tests.ports import free_port
from tutti import limits
from tutti.data.addresses import Address
from tutti.errors import TuttiError
from tutti.zmtp.listener import descriptors_for, spare_descriptors
from tutti_gateway.transport.mesh.zeromq_listener import GroupPort, turned_away
from tutti_gateway.transport.mesh.zeromq_reserved_fds import SpareFiles

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


class Descriptors:
    """Those of this process, of which there are a few hundred while a test runs: the lowest that are free can be taken."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._one = os.open(os.devnull, os.O_RDONLY)
        self._had: list[int] = []
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(256, 2 * highest), self._before[1]))
        self.bound = descriptors_for(2)  # from there on clients have none

    def take(self, left: int = 0) -> None:
        """All but so many."""
        with contextlib.suppress(OSError):
            while True:
                self._had.append(os.dup(self._one))
        self.give(self._had[len(self._had) - left :])

    def give(self, some: list[int]) -> None:
        """Give them back."""
        for fd in list(some):
            self._had.remove(fd)
            os.close(fd)

    def free(self) -> list[int]:
        """Those that can be had."""
        found: list[int] = []
        with contextlib.ExitStack() as given, contextlib.suppress(OSError):
            while True:
                found.append(os.dup(self._one))
                given.callback(os.close, found[-1])
        return found

    @property
    def taken(self) -> list[int]:
        """Those that were taken."""
        return list(self._had)

    def close(self) -> None:
        """Have everything as before."""
        self.give(self._had)
        os.close(self._one)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)


@pytest.fixture
def descriptors() -> Iterator[Descriptors]:
    with contextlib.closing(Descriptors()) as descriptors:
        yield descriptors


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def spare(descriptors: Descriptors, port: GroupPort, told: list[str]) -> Iterator[SpareFiles]:
    with contextlib.closing(SpareFiles(port, told.append)) as spare:
        yield spare


def test_who_waits_to_be_accepted_does_not_get_what_was_set_aside_and_no_client_does(
    port: GroupPort,
    peer: zmq.Socket[bytes],
    strangers: list[socket.socket],
    descriptors: Descriptors,
    spare: SpareFiles,
    told: list[str],
) -> None:
    *crowd, later = strangers
    spare.look()
    descriptors.take()
    assert all(connects(stranger, port, WAIT_MS) for stranger in crowd)
    spare.look()
    assert not port.listening
    free = descriptors.free()
    assert len(free) >= spare_descriptors() - len(crowd)
    assert min(free) >= descriptors.bound
    assert port.turn_away(), "nobody waits any more"
    assert not connects(later, port, 500)
    assert heard(port, peer), "who is connected stays so"
    spare.look()
    assert not port.listening, "there are too few"
    assert descriptors.free() == free, "and they are the log's"
    assert len(told) == 2
    assert all("new connections are refused" in line for line in told), "as long as it lasts"
    told.clear()
    descriptors.give(descriptors.taken)
    spare.look()
    assert told == ["file descriptors are free again: connections are taken"]
    assert connects(later, port, WAIT_MS), "it was on its way"
    assert heard(port, peer)
    assert len(spare._held) == spare_descriptors(), "as many are set aside again"


def test_it_listens_again_though_clients_have_all_that_they_may_have(
    port: GroupPort, descriptors: Descriptors, spare: SpareFiles, told: list[str]
) -> None:
    descriptors.take()
    spare.look()
    assert not port.listening
    descriptors.give([fd for fd in descriptors.taken if fd >= descriptors.bound])
    assert min(descriptors.free()) >= descriptors.bound
    spare.look()
    assert told[-1] == "file descriptors are free again: connections are taken"
    descriptors.take()
    spare.look()
    assert len(descriptors.free()) == spare_descriptors(), "they were set aside again"


def test_what_could_not_be_set_aside_at_first_is_later_also_where_the_port_was_opened_anew(
    context: zmq.Context[zmq.Socket[bytes]], descriptors: Descriptors, told: list[str]
) -> None:
    port = GroupPort(context, Address("127.0.0.1", free_port()), None)
    descriptors.take(left=2)
    with contextlib.closing(port), contextlib.closing(SpareFiles(port, told.append)) as spare:
        descriptors.give(descriptors.taken)
        spare.look()
        assert len(spare._held) == spare_descriptors()
        descriptors.take()
        spare.look()
        assert not port.listening
        descriptors.give(descriptors.taken)
        port.close(0)  # memory was above its bound
        reopen(port)
        spare.look()
        descriptors.take()
        spare.look()
        assert len(descriptors.free()) == spare_descriptors()


def test_where_the_limit_becomes_another_one_others_are_set_aside(
    port: GroupPort, descriptors: Descriptors, spare: SpareFiles
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 40, hard))
    spare.look()
    assert min(spare._held) >= descriptors_for(2)
    descriptors.take()
    spare.look()
    assert not port.listening
    free = descriptors.free()
    assert len(free) == spare_descriptors()
    assert min(free) >= descriptors_for(2)


def test_a_system_that_cannot_refuse_is_told_of(
    port: GroupPort, descriptors: Descriptors, spare: SpareFiles, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))

    monkeypatch.setattr(port, "refuse", refuse)
    descriptors.take()
    spare.look()
    assert "connections cannot be refused on this system (Protocol not available)" in told[0]
    assert len(descriptors.free()) == spare_descriptors(), "the log may have them all the same"
    descriptors.give(descriptors.taken)
    spare.look()
    assert port.listening


def test_nothing_can_be_set_aside_where_there_is_nothing(port: GroupPort, descriptors: Descriptors) -> None:
    descriptors.take()
    with pytest.raises(TuttiError, match="nothing can be set aside for the log: Too many open files; raise the limit"):
        SpareFiles(port, print)


def test_who_waits_is_ended_as_far_as_there_are_descriptors(descriptors: Descriptors, strangers: list[socket.socket]) -> None:
    """Of a listener that nobody else takes connections from."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for stranger in strangers:
            stranger.settimeout(WAIT_MS / 1000)
            stranger.connect(listener.getsockname())
        descriptors.take()
        assert not turned_away(listener)
        descriptors.give(descriptors.taken[:1])
        assert turned_away(listener)
        for stranger in strangers:
            assert stranger.recv(1) == b""


def test_who_does_not_finish_its_handshake_is_closed(
    context: zmq.Context[zmq.Socket[bytes]], strangers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_MS_MAX", 200)
    with contextlib.closing(GroupPort(context, Address("127.0.0.1", free_port()), None)) as port:
        stranger = strangers[0]
        stranger.settimeout(WAIT_MS / 1000)
        stranger.connect(("127.0.0.1", number(port)))
        while stranger.recv(100):
            pass  # its greeting


def test_it_listens_at_addresses_of_ipv6(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with (
        contextlib.closing(GroupPort(context, Address("::1", free_port()), None)) as port,
        contextlib.closing(context.socket(zmq.DEALER)) as peer,
    ):
        peer.linger = 0
        peer.ipv6 = True
        peer.connect(f"tcp://[::1]:{port._listener.getsockname()[1]}")
        assert heard(port, peer)


def test_what_is_needed_to_send_without_a_copy_is_there_from_the_beginning() -> None:
    """A gateway that loaded it with its first large message ended where descriptors had run out."""
    code = (
        "import sys; from tutti.data.addresses import Address; from tutti_gateway.transport.mesh.zeromq_backend import ZeroMQ; "
        f"wire = ZeroMQ(Address('127.0.0.1', {free_port()}), lambda: 0, None); "
        "from zmq.utils.garbage import gc; assert gc.is_alive() and gc._push is not None; wire.close()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


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


def reopen(port: GroupPort) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while port.socket.closed:
        with contextlib.suppress(TuttiError):  # ZeroMQ lets go of the address in its own time
            port.open()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_opens_again_while_it_refused(context: zmq.Context[zmq.Socket[bytes]], port: GroupPort) -> None:
    port.refuse()
    port.close(0)
    reopen(port)
    assert port.listening
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


def test_where_there_is_no_descriptor_for_it_the_limit_is_named(
    context: zmq.Context[zmq.Socket[bytes]], descriptors: Descriptors
) -> None:
    address = Address("127.0.0.1", free_port())
    descriptors.take()
    with pytest.raises(TuttiError, match=r"no socket can be had for the group port: Too many open files; raise the"):
        GroupPort(context, address, None)
    descriptors.give(descriptors.taken)
    with contextlib.closing(GroupPort(context, address, None)):
        pass
