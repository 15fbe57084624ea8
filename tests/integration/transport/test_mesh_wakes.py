"""Proves what the mesh asks of ZeroMQ in each turn: the sockets that it is polled by do not grow with the group, nothing is missed
for that, and a large body goes on as the message in which it came.
"""

from __future__ import annotations

import time

import pytest
import zmq

from tests.integration.transport.meshes import WAIT_S, WIRES, Node, Town, exchange, town
from tests.ports import free_ports
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Received
from tutti_gateway.core.protocol.messages import Probe
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.mesh.zeromq_connection import ZeroMQLine, uncopied


def address(ports: list[int], number: int) -> str:
    return f"127.0.0.1:{ports[2 * number - 2]}/{ports[2 * number - 1]}"


def mesh_of(node: Node) -> Mesh:
    assert isinstance(node.transport, Mesh)
    return node.transport


def woken_turn(node: Node) -> None:
    """A turn as the loop takes it: only what the poll finds is looked at."""
    mesh = mesh_of(node)
    poller = zmq.Poller()
    for one in mesh.sockets():
        poller.register(one, zmq.POLLIN)
    mesh.flush()
    node.received += [event for event in mesh.drain(256, 8 << 20, dict(poller.poll(20))) if isinstance(event, Received)]


@pytest.fixture
def over_zeromq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Town, "openers", WIRES["zeromq"])


@pytest.mark.usefixtures("over_zeromq")
def test_of_links_only_the_descriptors_are_polled() -> None:
    with town() as place:
        ports = free_ports(6)
        nodes = [place.add(name, number, address(ports, number)) for number, name in enumerate(("jfk", "lga", "ewr"), 1)]
        for node in nodes:
            node.transport.peers([(other.number, other.name, address(ports, other.number)) for other in nodes if other is not node])
        exchange(nodes[0], nodes[1], nodes)
        exchange(nodes[0], nodes[2], nodes)
        polled = nodes[0].transport.sockets()
        assert sum(isinstance(one, zmq.Socket) for one in polled) == 1
        assert len(polled) == 2 + 2 * 2


@pytest.mark.usefixtures("over_zeromq")
def test_a_refusal_whose_wake_up_a_send_swallowed_is_heard_all_the_same() -> None:
    """A gateway that forgot who is at the other end says so; ZeroMQ tells of it while something else is asked of the socket."""
    with town() as place:
        ports = free_ports(4)
        jfk, lga = [place.add(name, number, address(ports, number)) for number, name in enumerate(("jfk", "lga"), 1)]
        jfk.transport.peers([(2, "lga", address(ports, 2))])
        lga.transport.peers([(1, "jfk", address(ports, 1))])
        exchange(lga, jfk, [jfk, lga])
        line = mesh_of(lga)._links[1].line
        assert isinstance(line, ZeroMQLine)
        mesh_of(jfk)._guests.clear()
        lga.transport.send(1, Probe())
        lga.transport.flush()
        before = len(jfk.received)
        deadline = time.monotonic() + WAIT_S
        while not int(line.socket.get(zmq.EVENTS)) & int(zmq.POLLIN):  # jfk refuses, and this swallows the wake-up
            assert time.monotonic() < deadline
            woken_turn(jfk)
        for _ in range(3):
            woken_turn(lga)
            woken_turn(jfk)
        lga.transport.send(1, Probe())
        lga.transport.flush()
        woken_turn(jfk)
        assert len(jfk.received) == before
        lga.transport.troubles()  # as the loop asks once a second
        while len(jfk.received) == before:
            assert time.monotonic() < deadline
            lga.transport.send(1, Probe())
            woken_turn(lga)
            woken_turn(jfk)


def test_a_large_body_goes_on_as_the_message_that_brought_it() -> None:
    data = bytes(limits.MESH_ZERO_COPY_BYTES_MIN)
    with zmq.Context() as context, context.socket(zmq.PAIR) as sender, context.socket(zmq.PAIR) as receiver:
        receiver.bind("inproc://here")
        sender.connect("inproc://here")
        sender.send(data, copy=False)
        frame = receiver.recv(copy=False)
        body = memoryview(frame.buffer)
        assert uncopied(body) is frame
        assert uncopied(memoryview(body)) is frame
        assert uncopied(body[1:]) == data[1:]
        assert not isinstance(uncopied(body[1:]), zmq.Frame)
        assert uncopied(data) is data
        for _ in range(2):  # as often as there are members
            receiver.send(uncopied(body), copy=False)
        assert sender.recv() == data
        assert sender.recv() == data
        assert bytes(body) == data
