"""Tests of refusals with real sockets: gateways that must not connect do not, and both operators get the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.transport.meshes import LOG, Node, Town, exchange, rest, run, town
from tests.support.ports import free_ports
from tutti_gateway.core.protocol.messages import Probe
from tutti_gateway.transport.interface import PROTOCOL

pytestmark = pytest.mark.usefixtures("wire")


def address(ports: list[int], number: int) -> str:
    return f"127.0.0.1:{ports[2 * number - 2]}/{ports[2 * number - 1]}"


def pair(place: Town, ports: list[int], **said: Any) -> list[Node]:
    """`jfk` and a second gateway that introduces itself with `said`; each lists the other."""
    jfk = place.add("jfk", 1, address(ports, 1), release="1.0", configured={"jfk": address(ports, 1)})
    other = place.add("lga", 2, address(ports, 2), **{"release": "1.0", "configured": {"jfk": address(ports, 1)}} | said)
    jfk.transport.set_peers([(2, "lga", address(ports, 2))])
    other.transport.set_peers([(1, "jfk", address(ports, 1))])
    return [jfk, other]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"group": "other"}, "belongs to group 'other', and"),
        ({"protocol": PROTOCOL + 1, "release": "2.0"}, f"version {PROTOCOL + 1} of the protocol"),
        ({"gateway": "jfk"}, "two gateways are named 'jfk'"),
        ({"incarnation": b"jfkjfkjfkjfkjfkj"}, "has a copy of the data directory"),
        ({"log": b"x" * 16}, "two groups were founded"),
    ],
)
def test_a_refused_peer_is_ignored_and_both_sides_log_it(said: dict[str, Any], told: str) -> None:
    with town() as place:
        nodes = pair(place, free_ports(4), **said)
        jfk, other = nodes
        run(nodes, lambda: any(told in line for line in jfk.said))
        run(nodes, lambda: any("jfk of group ingest" in line and "refuses messages: " in line for line in other.said))
        other.transport.send(1, Probe())
        rest(nodes, 0.3)
        assert jfk.received == []
        assert len(jfk.said) + len(other.said) <= 6, (jfk.said, other.said)


def test_a_refusal_that_is_over_is_shown_no_longer() -> None:
    with town() as place:
        nodes = pair(place, free_ports(4), log=b"x" * 16)
        jfk, lga = nodes

        def shown() -> str:
            peers: Any = lga.transport.facts()["peers"]
            return str(peers[0]["refused"])

        run(nodes, lambda: "two groups were founded" in shown())
        lga.transport.introduce(2, LOG)
        exchange(lga, jfk, nodes)
        assert shown() == ""


def test_differing_members_are_logged_and_messages_pass() -> None:
    with town() as place:
        ports = free_ports(4)
        nodes = pair(place, ports, log=b"", configured={"jfk": "127.0.0.1:9"})
        for node in nodes:
            node.transport.introduce(node.number, b"")
        exchange(nodes[0], nodes[1], nodes)
        exchange(nodes[1], nodes[0], nodes)
        run(nodes, lambda: all(any("group.members of" in line for line in node.said) for node in nodes))
        assert f"jfk = '127.0.0.1:9' there and '{address(ports, 1)}' here" in " ".join(nodes[0].said)


def test_a_second_process_of_a_gateway_is_refused_while_the_first_one_talks() -> None:
    """An operator copied a data directory and started it on another host; the third gateway keeps to the one that it knows."""
    with town() as place:
        ports = free_ports(6)
        nodes = pair(place, ports)
        jfk, lga = nodes
        exchange(lga, jfk, nodes)
        copy = place.add("lga", 2, address(ports, 3), process=b"another!")
        copy.transport.set_peers([(1, "jfk", address(ports, 1))])
        nodes.append(copy)

        def told() -> bool:
            lga.transport.send(1, Probe())
            return any("two processes are gateway 'lga'" in line for line in copy.said)

        run(nodes, told)
        assert any("on copies of one data directory" in line for line in jfk.said)
        rest(nodes, 0.2)  # for what the first one sent
        before = len(jfk.received)
        copy.transport.send(1, Probe())
        rest(nodes, 0.2)
        assert len(jfk.received) == before


def test_a_restarted_gateway_is_accepted_at_once() -> None:
    with town() as place:
        ports = free_ports(4)
        nodes = pair(place, ports)
        jfk, lga = nodes
        exchange(lga, jfk, nodes)
        exchange(jfk, lga, nodes)
        lga.transport.close()
        run([jfk], lambda: not jfk.up(2))
        again = Town()
        try:
            new = again.add("lga", 2, address(ports, 2), process=b"again!!!")
            new.transport.set_peers([(1, "jfk", address(ports, 1))])
            run([jfk, new], lambda: jfk.up(2))
            exchange(new, jfk, [jfk, new])
            exchange(jfk, new, [jfk, new])
            assert new.said == []
        finally:
            again.close()
