"""Tests of silent connections: one that a proxy keeps open without forwarding is closed and replaced, and no other is."""

from __future__ import annotations

import time

import pytest

from tests.integration.transport.meshes import exchange, rest, run, town
from tests.integration.transport.tcp_proxy import Tap
from tests.support.ports import free_ports

pytestmark = pytest.mark.usefixtures("wire")


def test_a_silent_connection_is_replaced_by_both_ends() -> None:
    with town() as place:
        ports = free_ports(4)
        with Tap(ports[3]) as tap:
            addresses = [f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{tap.port}"]
            jfk, lga = place.add("jfk", 1, addresses[0]), place.add("lga", 2, f"127.0.0.1:{ports[2]}/{ports[3]}")
            jfk.transport.set_peers([(2, "lga", addresses[1])])
            lga.transport.set_peers([(1, "jfk", addresses[0])])
            exchange(jfk, lga, [jfk, lga])
            exchange(lga, jfk, [jfk, lga])
            tap.swallow()
            began = time.monotonic()
            run([jfk, lga], lambda: (2, False) in [(link.peer, link.up) for link in jfk.links])
            assert time.monotonic() > began + 2, "a moment's silence is none"
            exchange(jfk, lga, [jfk, lga])
            run([jfk, lga], lambda: not tap.dead)
            assert ["nothing arrived on it for 3 s" in line for line in jfk.said] == [True]
            assert [(link.peer, link.up) for link in lga.links] == [(1, True)], "the other way is not to blame"


def test_idle_connections_stay_open() -> None:
    with town() as place:
        ports = free_ports(6)
        names = ["jfk", "lga", "ewr"]
        members = [(n + 1, name, f"127.0.0.1:{ports[2 * n]}/{ports[2 * n + 1]}") for n, name in enumerate(names)]
        nodes = [place.add(name, number, address) for number, name, address in members]
        for node in nodes:
            node.transport.set_peers([member for member in members if member[0] != node.number])
        for node in nodes:
            for other in nodes:
                if node is not other:
                    exchange(node, other, nodes)
        rest(nodes, 6.0)
        assert [[link.up for link in node.links] for node in nodes] == [[True, True]] * 3
