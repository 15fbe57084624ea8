"""Tests of the in-memory transport: gateways of one process exchange bytes as on a network, with known peers only, and the seed
decides the losses.
"""

from __future__ import annotations

from typing import Any

from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Forward, Order, Probe, Vote
from tutti_gateway.transport.in_memory import MemoryTransport, Wires
from tutti_gateway.transport.interface import Introduction

LOG = b"l" * 16
NAMES = ("ewr", "jfk", "lga")
ALL = 1 << 20


def end(wires: Wires, name: str, process: bytes = b"1", **said: Any) -> MemoryTransport:
    number = NAMES.index(name) + 1
    values: dict[str, Any] = {"group": "g", "gateway": name, "incarnation": name.encode() * 5 + b"i", "number": number, "log": LOG}
    transport = MemoryTransport(Introduction(**values | {"process": process} | said), wires, lambda: 0)
    transport.peers([(place, other, "h:1") for place, other in enumerate(NAMES, 1) if other != name])
    return transport


def received(transport: MemoryTransport) -> list[Received]:
    return [event for event in transport.drain(ALL, ALL) if isinstance(event, Received)]


def links(transport: MemoryTransport) -> list[tuple[int, bool]]:
    return [(event.peer, event.up) for event in transport.drain(ALL, ALL) if isinstance(event, LinkChanged)]


def test_a_message_arrives_as_another_object_with_all_that_it_holds() -> None:
    wires = Wires()
    jfk, lga = end(wires, "jfk"), end(wires, "lga")
    frame = Frame(Kind.BATCH, b"body" * 50_000, producer=1, epoch=1, first_sequence=1, count=1, topic=1)
    message = Forward(65_537, (frame,))
    jfk.send(3, message)
    jfk.flush()
    [event] = received(lga)
    assert (event.sender, event.incarnation) == (2, b"jfkjfkjfkjfkjfki")
    assert event.message == message
    assert isinstance(event.message, Forward)
    assert event.message.frames[0] is not frame


def test_connections_follow_the_running_gateways() -> None:
    wires = Wires()
    jfk = end(wires, "jfk")
    assert links(jfk) == []
    lga = end(wires, "lga")
    assert links(jfk) == [(3, True)]
    wires.cut("jfk", "lga")
    assert (links(jfk), links(lga)) == ([(3, False)], [(2, True), (2, False)])
    jfk.send(3, Probe())
    jfk.flush()
    assert wires.lost == 1
    wires.mend("jfk", "lga")
    assert (3, True) in links(jfk)
    end(wires, "lga", process=b"2")
    assert links(jfk) == [(3, False), (3, True)]


def test_messages_of_another_group_are_dropped_and_reported() -> None:
    wires = Wires()
    jfk, lga = end(wires, "jfk"), end(wires, "lga", group="other")
    lga.send(2, Probe())
    lga.flush()
    assert received(jfk) == []
    [trouble] = jfk.troubles()
    assert "group 'other'" in trouble.reason


def test_loss_doubles_and_disorder_are_those_of_the_seed() -> None:
    def run(seed: int) -> list[int]:
        wires = Wires(seed, loss=0.2, twice=0.1, disorder=0.3)
        jfk, lga = end(wires, "jfk"), end(wires, "lga")
        for up_to in range(200):
            jfk.send(3, Vote(65_537, up_to))
            jfk.flush()
        return [event.message.up_to for event in received(lga) if isinstance(event.message, Vote)]

    came = run(7)
    assert came == run(7) != run(8)
    assert 100 < len(set(came)) < 200 < len(came) + 80
    assert came != sorted(came)
    assert len(came) > len(set(came))


def test_undrained_messages_are_bounded_and_the_rest_is_lost() -> None:
    wires = Wires()
    jfk, lga = end(wires, "jfk"), end(wires, "lga")
    for up_to in range(5000):
        jfk.send(3, Vote(65_537, up_to))
    jfk.flush()
    assert len(received(lga)) + wires.lost == 5000
    assert wires.lost > 0


def test_a_drain_ends_at_its_bounds() -> None:
    wires = Wires()
    jfk, lga = end(wires, "jfk"), end(wires, "lga")
    lga.drain(ALL, ALL)
    order = Order(65_537, (Frame(Kind.BATCH, b"x" * 1000, producer=1, epoch=1, first_sequence=1, count=1, topic=1),))
    for _ in range(10):
        jfk.send(3, order)
    jfk.flush()
    assert len(lga.drain(3, ALL)) == 3
    assert len(lga.drain(ALL, 2000)) == 2
    assert len(lga.drain(ALL, ALL)) == 5
