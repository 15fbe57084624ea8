"""Tests of the mesh over real sockets: connections, disconnects, reconnects, and counted losses."""

from __future__ import annotations

from typing import Any

import pytest
import zmq

from tests.integration.transport.meshes import LOG, Node, Town, exchange, rest, run, town, with_keys
from tests.support.ports import free_ports
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.messages import Order, Probe

pytestmark = pytest.mark.usefixtures("wire")

BOUND = 10


def pair(place: Town, **said: Any) -> tuple[Node, Node, list[int]]:
    """Two meshes that list each other."""
    ports = free_ports(4)
    a = place.add("a", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
    b = place.add("b", 2, f"127.0.0.1:{ports[2]}/{ports[3]}", **said)
    a.transport.set_peers([(2, "b", f"127.0.0.1:{ports[2]}/{ports[3]}")])
    b.transport.set_peers([(1, "a", f"127.0.0.1:{ports[0]}/{ports[1]}")])
    return a, b, ports


def run_of(sizes: list[int]) -> Order:
    frames = []
    for position, size in enumerate(sizes, 1):
        frame = Frame(Kind.BATCH, bytes([position]) * size, producer=1, epoch=1, first_sequence=position, count=1)
        frame.stamp(1 << 16 | 1, position, position)
        frames.append(frame)
    return Order(1 << 16 | 1, tuple(frames))


def test_two_meet_and_messages_come_in_order_small_bodies_and_large() -> None:
    with town() as place:
        a, b, _ = pair(place)
        run([a, b], lambda: a.up(2) and b.up(1))
        exchange(a, b, [a, b])
        b.received.clear()
        wanted = [run_of([number, 100]) if number % 2 else run_of([50_000 + number, 8]) for number in range(1, 50)]
        for message in wanted:
            a.transport.send(2, message)
        run([a, b], lambda: wanted[-1] in b.messages(1))
        assert [message for message in b.messages(1) if isinstance(message, Order)] == wanted
        assert {event.incarnation for event in b.received} == {b"a" * 16}


def test_an_ended_peer_is_reported_at_once_and_a_returning_one_reconnects() -> None:
    with town() as place:
        a, b, ports = pair(place)
        exchange(a, b, [a, b])
        exchange(b, a, [a, b])  # else its introduction may be met when it is gone, and taken for a twin's
        b.transport.close()
        run([a], lambda: not a.up(2))

        def lost() -> int:
            a.turn()
            peers: Any = a.transport.facts()["peers"]
            return int(peers[0]["lost"])

        before = lost()  # of what was exchanged last
        for _ in range(BOUND):
            a.transport.send(2, Probe())
        assert lost() - before == BOUND
        again = place.add("b2", 2, f"127.0.0.1:{ports[2]}/{ports[3]}", gateway="b", incarnation=b"b" * 16, process=b"newnewne")
        again.transport.set_peers([(1, "a", f"127.0.0.1:{ports[0]}/{ports[1]}")])
        run([a, again], lambda: a.up(2))
        exchange(a, again, [a, again])
        exchange(again, a, [a, again])
        assert a.said == []


def test_another_group_and_another_protocol_are_refused_on_both_sides_naming_both() -> None:
    for said, words in (({"group": "other"}, ("'ingest'", "'other'")), ({"protocol": 9}, ("version 9", "version 1"))):
        with town() as place:
            a, b, _ = pair(place, **said)
            run([a, b], lambda a=a, b=b: a.said and b.said)  # type: ignore[misc]  # bound at once
            for node in (a, b):
                assert all(any(word in line for line in node.said) for word in words), node.said
            for _ in range(BOUND):
                b.transport.send(1, Probe())
                rest([a, b], 0.01)
            assert a.received == []
            assert len(a.said) + len(b.said) < 2 * BOUND, "it is told, and not with every message"


def test_a_peer_that_lists_us_and_is_not_listed_is_accepted_and_answered() -> None:
    with town() as place:
        ports = free_ports(4)
        a = place.add("a", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        b = place.add("b", 2, f"127.0.0.1:{ports[2]}/{ports[3]}")
        b.transport.set_peers([(1, "a", f"127.0.0.1:{ports[0]}/{ports[1]}")])
        run([a, b], lambda: b.up(1))
        exchange(b, a, [a, b])
        exchange(a, b, [a, b])


def test_a_peer_removed_and_added_again_is_accepted_and_answered_by_its_later_number() -> None:
    with town() as place:
        a, b, ports = pair(place)
        exchange(a, b, [a, b])
        exchange(b, a, [a, b])
        b.number = 5
        b.transport.introduce(5, LOG)
        exchange(b, a, [a, b])
        exchange(a, b, [a, b])
        assert a.received[-1].sender == 5
        peers: Any = a.transport.facts()["peers"]
        assert [peer["name"] for peer in peers] == ["b"]
        a.transport.set_peers([(5, "b", f"127.0.0.1:{ports[2]}/{ports[3]}")])
        exchange(b, a, [a, b])
        exchange(a, b, [a, b])


def test_an_address_that_moves_is_followed() -> None:
    with town() as place:
        a, b, ports = pair(place)
        exchange(a, b, [a, b])
        exchange(b, a, [a, b])
        b.transport.close()
        moved = free_ports(1)[0]
        new = place.add("b2", 2, f"127.0.0.1:{ports[2]}/{moved}", gateway="b", incarnation=b"b" * 16, process=b"newnewne")
        new.transport.set_peers([(1, "a", f"127.0.0.1:{ports[0]}/{ports[1]}")])
        a.transport.set_peers([(2, "b", f"127.0.0.1:{ports[2]}/{moved}")])
        run([a, new], lambda: a.up(2) and new.up(1))
        exchange(a, new, [a, new])


def test_garbage_on_the_group_port_is_counted_and_the_group_continues() -> None:
    with town() as place:
        a, b, ports = pair(place)
        run([a, b], lambda: a.up(2) and b.up(1))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            with_keys(stranger, "jfk", "a")
            stranger.connect(f"tcp://127.0.0.1:{ports[1]}")
            for number in range(500):
                stranger.send_multipart([bytes([number % 256]) * 40] * (1 + number % 5))
            for kind in (b"I", b"C", b"F", b"R"):
                stranger.send(kind)
                stranger.send(kind + b"\xff" * 50)
            run([a, b], lambda: int(str(a.transport.facts()["malformed"])) > 0)
            exchange(b, a, [a, b])
        assert all(event.sender == 2 for event in a.received)


def test_a_flood_without_a_reader_is_lost_and_bounded() -> None:
    with town() as place:
        a, b, _ = pair(place)
        run([a, b], lambda: a.up(2) and b.up(1))
        message = run_of([200_000])
        for _ in range(12_000):
            a.transport.send(2, message)
        a.transport.flush()
        facts = a.transport.facts()["peers"][0]  # type: ignore[index]  # facts are plain JSON
        assert facts["lost"] > 0
        assert facts["lost"] + facts["sent"] >= 12_000
        rest([a, b], 0.2)
        exchange(a, b, [a, b])
