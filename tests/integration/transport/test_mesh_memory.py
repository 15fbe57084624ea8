"""Tests of a mesh that is short of memory: it drops received messages, and the other gateways reconnect at once."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from tests.integration.transport.meshes import exchange, run, town
from tests.support.ports import free_ports


@pytest.mark.usefixtures("wire")
def test_a_client_disconnected_for_memory_reconnects() -> None:
    with town() as place:
        ports = free_ports(4)
        addresses = [f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{ports[3]}"]
        jfk, lga = place.add("jfk", 1, addresses[0]), place.add("lga", 2, addresses[1])
        jfk.transport.set_peers([(2, "lga", addresses[1])])
        lga.transport.set_peers([(1, "jfk", addresses[0])])
        exchange(jfk, lga, [jfk, lga])
        lga.transport.release_memory()
        exchange(jfk, lga, [jfk, lga])
        exchange(lga, jfk, [jfk, lga])
        assert (2, False) in [(link.peer, link.up) for link in jfk.links]


@pytest.mark.usefixtures("wire")
def test_an_unresolvable_peer_is_logged_and_the_others_are_reached() -> None:
    with town() as place:
        ports = free_ports(4)
        jfk = place.add("jfk", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        lga = place.add("lga", 2, f"127.0.0.1:{ports[2]}/{ports[3]}")
        jfk.transport.set_peers([(2, "lga", f"localhost:{ports[2]}/{ports[3]}"), (3, "ewr", "no-such-host.invalid:7400")])
        lga.transport.set_peers([(1, "jfk", f"127.0.0.1:{ports[0]}/{ports[1]}")])
        exchange(jfk, lga, [jfk, lga])
        run(
            [jfk, lga],
            lambda: any("ewr: the host name 'no-such-host.invalid' of its address is not resolved: " in line for line in jfk.said),
        )
        refused = {peer["name"]: peer["refused"] for peer in jfk.transport.facts()["peers"]}  # type: ignore[attr-defined]  # JSON
        assert refused["lga"] == ""
        assert "no-such-host.invalid" in refused["ewr"]


def _no_socket(*_: object, **__: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.usefixtures("wire")
def test_a_socket_for_which_no_descriptor_is_left_is_made_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with town() as place:
        ports = free_ports(4)
        addresses = [f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{ports[3]}"]
        jfk, lga = place.add("jfk", 1, addresses[0]), place.add("lga", 2, addresses[1])
        lga.transport.set_peers([(1, "jfk", addresses[0])])
        with monkeypatch.context() as full:
            full.setattr(socket, "socket", _no_socket)
            jfk.transport.set_peers([(2, "lga", addresses[1])])
            run([jfk], lambda: any("lga: no socket is available for the connection to it" in line for line in jfk.said))
            assert not jfk.up(2)
        exchange(jfk, lga, [jfk, lga])
        exchange(lga, jfk, [jfk, lga])


@pytest.mark.usefixtures("wire")
def test_a_connection_without_a_free_descriptor_is_accepted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with town() as place:
        ports = free_ports(4)
        addresses = [f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{ports[3]}"]
        jfk, lga = place.add("jfk", 1, addresses[0]), place.add("lga", 2, addresses[1])
        with monkeypatch.context() as full:
            full.setattr(socket.socket, "accept", _no_socket)
            lga.transport.set_peers([(1, "jfk", addresses[0])])
            run([jfk, lga], lambda: any(": no connection can be accepted on the group port" in line for line in jfk.said))
        exchange(lga, jfk, [jfk, lga])
