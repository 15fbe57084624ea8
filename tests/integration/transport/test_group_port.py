"""Tests of the group port: it listens at its address, reports why it cannot, and closes connections that do not finish the
handshake.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import Any

import pytest

from tests.integration.transport.meshes import clock_us, exchange, run, town
from tests.support.ports import free_port, free_ports
from tutti import limits
from tutti.data.member_address import Address
from tutti.errors import TuttiError
from tutti.zmtp.framing import GREETING
from tutti_gateway.transport.mesh.socket_backend import SocketBackend


def port_at(host: str, number: int) -> SocketBackend:
    return SocketBackend(Address(host, number), clock_us, lambda _: True)


@pytest.mark.usefixtures("wire")
def test_gateways_meet_at_addresses_of_ipv6() -> None:
    with town() as place:
        ports = free_ports(4)
        addresses = [f"[::1]:{ports[0]}/{ports[1]}", f"[::1]:{ports[2]}/{ports[3]}"]
        nodes = [place.add(name, 1 + at, addresses[at], listen="::1") for at, name in enumerate(("jfk", "lga"))]
        nodes[0].transport.set_peers([(2, "lga", addresses[1])])
        nodes[1].transport.set_peers([(1, "jfk", addresses[0])])
        exchange(nodes[0], nodes[1], nodes)
        exchange(nodes[1], nodes[0], nodes)


@pytest.mark.usefixtures("wire")
def test_a_connection_without_a_complete_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_MS_MAX", 200)
    with town() as place:
        ports = free_ports(2)
        jfk = place.add("jfk", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        with socket.create_connection(("127.0.0.1", ports[1])) as stranger:
            stranger.sendall(GREETING[:40])
            stranger.setblocking(False)

            def closed() -> bool:
                with contextlib.suppress(BlockingIOError):
                    while stranger.recv(100):
                        pass
                    return True
                return False

            run([jfk], closed)


def test_an_address_in_use_or_of_another_host_is_one_sentence() -> None:
    number = free_port()
    with contextlib.closing(port_at("127.0.0.1", number)):
        with pytest.raises(TuttiError, match=r"the group port 127\.0\.0\.1:\d+ cannot be opened: Address already in use; stop"):
            port_at("127.0.0.1", number)
        with pytest.raises(TuttiError, match=r"the group port 203\.0\.113\.1:\d+ cannot be opened: Cannot assign requested"):
            port_at("203.0.113.1", number)


def test_the_error_without_a_free_descriptor_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object, **__: object) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    number = free_port()
    with monkeypatch.context() as full:
        full.setattr(socket, "socket", no_socket)
        with pytest.raises(TuttiError, match=r"no socket is available for the group port: Too many open files; raise the"):
            port_at("127.0.0.1", number)
    with contextlib.closing(port_at("127.0.0.1", number)):
        pass
