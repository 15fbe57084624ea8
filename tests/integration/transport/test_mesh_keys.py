"""Tests of keys with real sockets: only gateways of the group connect, and both sides log the reason of a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.transport.meshes import Node, Town, exchange, rest, run, town
from tests.integration.transport.tcp_proxy import Tap
from tests.support.ports import free_ports
from tutti_gateway.core.protocol.messages import Probe
from tutti_gateway.transport.keys import Keyring, generate, read_public, write_public


def introduced(nodes: list[Node], ports: list[int]) -> None:
    for node in nodes:
        node.transport.set_peers([(other.number, other.name, address(ports, other.number)) for other in nodes if other is not node])


def address(ports: list[int], number: int) -> str:
    return f"127.0.0.1:{ports[2 * number - 2]}/{ports[2 * number - 1]}"


def door(node: Node) -> dict[str, int]:
    facts: Any = node.transport.facts()["door"]
    return dict(facts)


def pair(place: Town, ports: list[int], **rings: Keyring) -> list[Node]:
    nodes = [place.add(name, number, address(ports, number), keyring=rings.get(name)) for number, name in ((1, "jfk"), (2, "lga"))]
    introduced(nodes, ports)
    return nodes


def test_gateways_with_listed_keys_talk(tmp_path: Path) -> None:
    with town(tmp_path, ["jfk", "lga"]) as place:
        nodes = pair(place, free_ports(4))
        exchange(nodes[0], nodes[1], nodes)
        exchange(nodes[1], nodes[0], nodes)
        assert [node.said for node in nodes] == [[], []]
        assert [node.transport.facts()["keys"] for node in nodes] == [True, True]
        assert [door(node) for node in nodes] == [{"let_in": 1, "turned_away": 0}] * 2


def test_a_gateway_with_a_wrong_key_is_rejected_and_both_log_it(tmp_path: Path) -> None:
    generate(tmp_path / "other", ["jfk", "lga"])
    foreign = Keyring.open(tmp_path / "other" / "lga.secret", tmp_path / "other" / "group.keys", "lga")
    with town(tmp_path / "keys", ["jfk", "lga"]) as place:
        nodes = pair(place, free_ports(4), lga=foreign)
        run(nodes, lambda: all(any("key" in said for said in node.said) for node in nodes))
        nodes[1].transport.send(1, Probe())
        rest(nodes, 1.0)
        assert [node.received for node in nodes] == [[], []]
        assert not nodes[0].up(2)
        assert all("key" in node.transport.facts()["peers"][0]["refused"] for node in nodes)  # type: ignore[index]  # plain JSON
        assert all(len(node.said) <= 4 for node in nodes), [node.said for node in nodes]  # no flood, however often it tries


@pytest.mark.parametrize("bare", ["jfk", "lga"])
def test_a_gateway_without_keys_is_rejected_and_both_log_it(tmp_path: Path, bare: str) -> None:
    with town(tmp_path, ["jfk", "lga"]) as place:
        ports = free_ports(4)
        nodes = []
        for number, name in ((1, "jfk"), (2, "lga")):
            place.keys = None if name == bare else tmp_path
            nodes.append(place.add(name, number, address(ports, number)))
        introduced(nodes, ports)
        run(nodes, lambda: all(any("key" in said for said in node.said) for node in nodes))
        rest(nodes, 0.5)
        assert [node.received for node in nodes] == [[], []]


def test_a_key_speaks_for_its_own_gateway_alone(tmp_path: Path) -> None:
    with town(tmp_path, ["jfk", "lga", "ewr"]) as place:
        ports = free_ports(4)
        jfk = place.add("jfk", 1, address(ports, 1))
        ring = Keyring.open(tmp_path / "ewr.secret", tmp_path / "group.keys", "ewr")
        impostor = place.add("lga", 2, address(ports, 2), keyring=ring)
        nodes = [jfk, impostor]
        impostor.transport.set_peers([(1, "jfk", address(ports, 1))])
        run(nodes, lambda: jfk.said and impostor.said)
        assert "ewr: it introduces itself as gateway 'lga', and its key is that of 'ewr'" in jfk.said[0]
        assert "its key is that of 'ewr'" in impostor.said[0]
        impostor.transport.send(1, Probe())
        rest(nodes, 0.5)
        assert jfk.received == []


def test_a_gateway_is_accepted_once_its_key_is_added_at_run_time(tmp_path: Path) -> None:
    with town(tmp_path, ["jfk", "lga"]) as place:
        everybody = read_public(tmp_path / "group.keys")
        ports = free_ports(4)
        lga = place.add("lga", 2, address(ports, 2))
        write_public(tmp_path / "group.keys", {"jfk": everybody["jfk"]})
        jfk = place.add("jfk", 1, address(ports, 1))
        nodes = [jfk, lga]
        introduced(nodes, ports)
        run(nodes, lambda: any("its public key is not listed" in said for said in jfk.said) and door(jfk)["turned_away"])
        assert door(jfk)["let_in"] == 0
        write_public(tmp_path / "group.keys", everybody)
        exchange(jfk, lga, nodes)
        exchange(lga, jfk, nodes)


def test_traffic_is_encrypted(tmp_path: Path) -> None:
    """A listener in the middle, which passes everything on and keeps a copy."""
    for keys in (None, tmp_path):
        with town(keys, ["jfk", "lga"]) as place:
            ports = free_ports(4)
            jfk, lga = (place.add(name, number, address(ports, number)) for number, name in ((1, "jfk"), (2, "lga")))
            with Tap(ports[3]) as tap:
                jfk.transport.set_peers([(2, "lga", f"127.0.0.1:{ports[2]}/{tap.port}")])
                lga.transport.set_peers([(1, "jfk", address(ports, 1))])
                exchange(jfk, lga, [jfk, lga])
                assert (b"Probe" in tap.heard) == (keys is None)
