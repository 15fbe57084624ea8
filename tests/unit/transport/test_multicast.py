"""Tests of multicast: it also wakes for the events that its mesh waits for."""

from __future__ import annotations

from typing import Any, cast

from tutti_gateway.core import limits
from tutti_gateway.transport.interface import Introduction
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.multicast.multicast import Multicast
from tutti_gateway.transport.multicast.socket import MulticastSocket


class FakeMesh:
    """A mesh that wants to be called after `due_us`."""

    def __init__(self) -> None:
        self.due_us: int | None = None

    def next_us(self) -> int | None:
        return self.due_us

    def inbound_peers(self) -> list[Any]:
        return []

    def set_peers(self, peers: object) -> None:
        """Ignore the peers."""

    def flush(self) -> None:
        """Nothing waits."""


class FakeSocket:
    """A group address that accepts everything, or nothing."""

    receive_bytes, run_bytes_max, buffer_warning = 1 << 20, 60_000, ""
    takes = True

    def send(self, _run: object) -> bool:
        return self.takes


def test_it_wakes_when_its_mesh_does() -> None:
    me = Introduction(group="g", gateway="a", incarnation=b"a" * 16, number=1, process=b"12345678")
    mesh, socket = FakeMesh(), FakeSocket()
    multicast = Multicast(me, cast(Mesh, mesh), cast(MulticastSocket, socket), lambda: 1)
    assert multicast.next_us() is None
    mesh.due_us = 7
    assert multicast.next_us() == 7
    multicast.set_peers([(2, "b", "y:1")])
    multicast.flush()
    assert multicast.next_us() == 7, "a connection is tried again before the next beacon"
    mesh.due_us = None
    assert multicast.next_us() == limits.MULTICAST_BEACON_US
    mesh.due_us = 2 * limits.MULTICAST_BEACON_US
    assert multicast.next_us() == limits.MULTICAST_BEACON_US
