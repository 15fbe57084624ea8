"""Gateways that are nothing but a transport, on real sockets of this machine, driven by the test's own thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq

from tutti.data.addresses import Address
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message, Probe
from tutti_gateway.transport.interface import Introduction, Transport
from tutti_gateway.transport.keys import Keyring, generate
from tutti_gateway.transport.mesh.backend import Clock, Knows
from tutti_gateway.transport.mesh.mesh import Mesh, Opener, open_wire
from tutti_gateway.transport.mesh.socket_backend import Sockets
from tutti_gateway.transport.mesh.zeromq_backend import ZeroMQ

WAIT_S = 20.0
LOG = b"l" * 16


def clock_us() -> int:
    return time.monotonic_ns() // 1000


class Node:
    """One transport and what came to it."""

    def __init__(self, name: str, number: int, transport: Transport) -> None:
        self.name, self.number, self.transport = name, number, transport
        self.received: list[Received] = []
        self.links: list[LinkChanged] = []
        self.said: list[str] = []

    def turn(self) -> None:
        """One turn of its loop."""
        for event in self.transport.drain(256, 8 << 20):
            if isinstance(event, Received):
                self.received.append(event)
            else:
                self.links.append(event)
        self.transport.flush()
        self.said += [f"{trouble.peer}: {trouble.reason}" for trouble in self.transport.troubles()]

    def up(self, number: int) -> bool:
        return next((link.up for link in reversed(self.links) if link.peer == number), False)

    def messages(self, sender: int) -> list[Message]:
        return [event.message for event in self.received if event.sender == sender]


def run(nodes: Sequence[Node], until: Callable[[], object], *, wait_s: float = WAIT_S) -> None:
    """Give all of them turns until something holds; fails with what they said when it does not."""
    deadline = time.monotonic() + wait_s
    while not until():
        assert time.monotonic() < deadline, [(node.name, node.said, node.transport.facts()) for node in nodes]
        poller = zmq.Poller()
        for node in nodes:
            for one in node.transport.sockets():
                poller.register(one, zmq.POLLIN)
        poller.poll(20)
        for node in nodes:
            node.turn()


def rest(nodes: Sequence[Node], seconds: float) -> None:
    """Give all of them turns for a while."""
    end = time.monotonic() + seconds
    run(nodes, lambda: time.monotonic() > end)


def exchange(sender: Node, to: Node, nodes: Sequence[Node]) -> None:
    """A message goes over, as soon as it can."""
    before = len(to.messages(sender.number))

    def came() -> bool:
        sender.transport.send(to.number, Probe())
        return len(to.messages(sender.number)) > before

    run(nodes, came)


def open_sockets(listen: Address, clock: Clock, keyring: Keyring | None, knows: Knows) -> Sockets:
    assert keyring is None
    return Sockets(listen, clock, knows)


def open_zeromq(listen: Address, clock: Clock, keyring: Keyring | None, knows: Knows) -> ZeroMQ:
    return ZeroMQ(listen, clock, keyring)


#: What meshes without keys are carried by, in turn: both say the same on the wire, also to each other.
WIRES: dict[str, list[Opener]] = {
    "sockets": [open_sockets],
    "zeromq": [open_zeromq],
    "sockets-zeromq": [open_sockets, open_zeromq],
    "zeromq-sockets": [open_zeromq, open_sockets],
}


class Town:
    """Meshes that know of each other."""

    openers: Sequence[Opener] = (open_wire,)

    def __init__(self, keys: Path | None = None) -> None:
        self.keys = keys
        self.nodes: dict[str, Node] = {}
        self._closing = contextlib.ExitStack()

    def add(self, name: str, number: int, address: str, *, keyring: Keyring | None = None, **said: Any) -> Node:
        """One more mesh, at HOST:P or HOST:P/G."""
        ring = keyring
        if ring is None and self.keys is not None:
            ring = Keyring.open(self.keys / f"{name}.secret", self.keys / "group.keys", name)
        host, _, ports = address.rpartition(":")
        group = int(ports.partition("/")[2] or int(ports) + 1)
        values: dict[str, Any] = {
            "group": "ingest",
            "gateway": name,
            "incarnation": (name * 16).encode()[:16],
            "number": number,
            "log": LOG,
            "process": (name * 8).encode()[:8],
            "address": address,
        }
        opener = self.openers[len(self.nodes) % len(self.openers)] if ring is None else open_wire
        mesh = Mesh(Introduction(**values | said), Address(host, group), clock_us, ring, opener)
        self._closing.callback(mesh.close)
        node = self.nodes[name] = Node(name, number, mesh)
        return node

    def close(self) -> None:
        self._closing.close()


@contextlib.contextmanager
def town(directory: Path | None = None, names: Sequence[str] = ()) -> Iterator[Town]:
    """A town whose gateways have keys in `directory`, if there is one."""
    if directory is not None:
        generate(directory, names)
    place = Town(directory)
    try:
        yield place
    finally:
        place.close()
