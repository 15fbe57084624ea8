"""Gateways that consist of a transport alone, on real sockets of this machine, run by the test's own thread."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import zmq

from tutti.data.member_address import Address
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message, Probe
from tutti_gateway.transport.interface import Introduction, Transport
from tutti_gateway.transport.keys import Keyring, generate, read_public, read_secret
from tutti_gateway.transport.mesh.mesh import Mesh

WAIT_S = 20.0
LOG = b"l" * 16


def clock_us() -> int:
    return time.monotonic_ns() // 1000


class Node:
    """One transport and its received events."""

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
        self.said += [f"{trouble.peer}: {trouble.reason}" for trouble in self.transport.maintain()]

    def up(self, number: int) -> bool:
        return next((link.up for link in reversed(self.links) if link.peer == number), False)

    def messages(self, sender: int) -> list[Message]:
        return [event.message for event in self.received if event.sender == sender]


def run(nodes: Sequence[Node], until: Callable[[], object], *, wait_s: float = WAIT_S) -> None:
    """Run all of them until a condition holds; a failure shows their messages."""
    deadline = time.monotonic() + wait_s
    while not until():
        assert time.monotonic() < deadline, [(node.name, node.said, node.transport.facts()) for node in nodes]
        poller = select.poll()
        for node in nodes:
            for fd in node.transport.descriptors():
                poller.register(fd, select.POLLIN)
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


class Town:
    """Meshes that know of each other."""

    keyed: ClassVar[Path | None] = None  # keys of everybody are made there, for towns that have none of their own

    def __init__(self, keys: Path | None = None) -> None:
        self.keys = keys or self.keyed
        self.nodes: dict[str, Node] = {}
        self._closing = contextlib.ExitStack()

    def add(self, name: str, number: int, address: str, *, keyring: Keyring | None = None, listen: str = "", **said: Any) -> Node:
        """One more mesh, at HOST:P or HOST:P/G."""
        ring = keyring
        if ring is None and self.keys is not None:
            gateway = said.get("gateway", name)
            ring = Keyring.open(self.keys / f"{gateway}.secret", self.keys / "group.keys", gateway)
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
        mesh = Mesh(Introduction(**values | said), Address(listen or host, group), clock_us, ring)
        self._closing.callback(mesh.close)
        node = self.nodes[name] = Node(name, number, mesh)
        return node

    def close(self) -> None:
        self._closing.close()


def with_keys(socket: zmq.Socket[bytes], own: str, to: str = "") -> None:
    """Let a socket of ZeroMQ speak as gateway `own` to gateway `to`, or accept connections, if gateways have keys."""
    if Town.keyed is None:
        return
    pair = read_secret(Town.keyed / f"{own}.secret")
    socket.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
    if to:
        socket.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
        socket.set(zmq.CURVE_SERVERKEY, read_public(Town.keyed / "group.keys")[to].encode())
    else:
        socket.set(zmq.CURVE_SERVER, 1)


@contextlib.contextmanager
def town(directory: Path | None = None, names: Sequence[str] = ()) -> Iterator[Town]:
    """Return a group whose gateways have keys in `directory`, if there is one."""
    if directory is not None:
        generate(directory, names)
    place = Town(directory)
    try:
        yield place
    finally:
        place.close()
