"""Tests of multicast on the loopback interface: a message to all members leaves once, losses are counted, and a gateway without
multicast gets everything over the mesh.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.integration.transport.meshes import LOG, Node, clock_us, rest, run
from tests.support.ports import free_ports
from tutti.data.frames.frame import Frame, Kind
from tutti.data.member_address import Address
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Confirm, Message, Order, Probe
from tutti_gateway.transport.interface import Introduction
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.multicast.multicast import Multicast
from tutti_gateway.transport.multicast.socket import MulticastSocket

VIEW = 65_537
NAMES = ("ewr", "jfk", "lga", "sfo")


class Lossy(MulticastSocket):
    """A socket that loses the datagrams that the test names."""

    def __init__(self, group: Address) -> None:
        super().__init__(group, "127.0.0.1", 0)
        self.loses: Callable[[bytes], bool] = lambda _data: False
        self.passed: list[bytes] = []

    def receive(self) -> list[memoryview] | None:
        run = super().receive()
        if run is None:
            return None
        kept = [data for data in run if not self.loses(bytes(data))]
        self.passed += [bytes(data) for data in kept]
        return kept


class Group:
    """Gateways with a multicast transport each; `sockets` are theirs."""

    def __init__(self, closing: contextlib.ExitStack, count: int, **options: Any) -> None:
        ports = free_ports(2 * count + 1)
        seals: list[bytes] = options.pop("seals", [b""] * count)
        self.address = Address("239.255.84.85", ports[-1])
        self.sockets = [Lossy(self.address) for _ in range(count)]
        self.nodes = []
        places = [f"127.0.0.1:{ports[2 * place]}/{ports[2 * place + 1]}" for place in range(count)]
        for place, (name, socket) in enumerate(zip(NAMES, self.sockets, strict=False)):
            process = (name * 8).encode()[:8]
            me = Introduction(
                group="g",
                gateway=name,
                incarnation=process * 2,
                number=place + 1,
                log=LOG,
                process=process,
                seal=seals[place],
            )
            mesh = Mesh(me, Address("127.0.0.1", ports[2 * place + 1]), clock_us)
            transport = Multicast(me, mesh, socket, clock_us, **options)
            closing.callback(transport.close)
            self.nodes.append(Node(name, place + 1, transport))
        for node in self.nodes:
            node.transport.introduce(node.number, LOG)
            node.transport.set_peers(
                [(other.number, other.name, places[other.number - 1]) for other in self.nodes if other is not node]
            )

    def facts(self, place: int) -> dict[str, Any]:
        return self.nodes[place].transport.facts()["multicast"]  # type: ignore[return-value]  # plain JSON

    def heard(self) -> None:
        """Wait until every gateway receives from every other."""
        others = len(self.nodes) - 1
        run(self.nodes, lambda: all(self.hearing(place) == others for place in range(others + 1)))

    def hearing(self, place: int) -> int:
        return sum(peer["hears"] for peer in self.facts(place)["peers"].values())

    def said(self, place: int, *parts: str) -> None:
        """Wait until a gateway logs all that in one sentence; the mesh keeps all members connected, as in a group."""

        def said() -> bool:
            for node in self.nodes:
                for other in self.nodes:
                    if other is not node:
                        node.transport.send(other.number, Probe())
            return any(all(part in said for part in parts) for said in self.nodes[place].said)

        run(self.nodes, said)

    def to_all(self, message: Message) -> None:
        for node in self.nodes[1:]:
            self.nodes[0].transport.send(node.number, message)
        self.nodes[0].transport.flush()


@pytest.fixture
def make() -> Iterator[Callable[..., Group]]:
    with contextlib.ExitStack() as closing:
        yield lambda count=3, **options: Group(closing, count, **options)


def order(bodies: list[int], first: int = 1) -> Order:
    frames, crc = [], 0
    for place, size in enumerate(bodies):
        frame = Frame(Kind.BATCH, bytes([place % 251]) * size, producer=1, epoch=1, first_sequence=place + 1, count=1, topic=1)
        frame.stamp(VIEW, first + place, crc)
        crc = frame.header_crc
        frames.append(frame)
    return Order(VIEW, tuple(frames))


def frames_of(node: Node) -> list[Frame]:
    return [frame for message in node.messages(1) if isinstance(message, Order) for frame in message.frames]


def test_a_broadcast_is_sent_once_and_arrives_complete(make: Callable[..., Group]) -> None:
    group = make()
    group.heard()
    before = group.facts(0)["messages"]
    sent = order([10, 5_000, 200_000, 0, 100_000, 100_000])
    group.to_all(sent)
    run(group.nodes, lambda: all(len(frames_of(node)) == 6 for node in group.nodes[1:]))
    for node in group.nodes[1:]:
        assert frames_of(node) == list(sent.frames)
    assert group.facts(0)["messages"] == before + 2  # runs of 256 KiB, whoever gets them
    assert group.facts(0)["over_mesh"] == 0
    assert group.nodes[0].received == []


def test_unicast_and_large_messages_use_the_mesh(make: Callable[..., Group]) -> None:
    group = make()
    group.heard()
    group.nodes[0].transport.send(2, Confirm(VIEW, 7))
    group.nodes[0].transport.send(3, Probe())
    group.to_all(order([2 << 20]))
    run(group.nodes, lambda: len(group.nodes[1].received) == 2 and len(group.nodes[2].received) == 2)
    assert group.facts(0)["messages"] == 0
    assert group.facts(0)["over_mesh"] == 3


def test_a_message_reaches_only_its_addressees(make: Callable[..., Group]) -> None:
    group = make(4)
    group.heard()
    message = Confirm(VIEW, 9)
    for number in (2, 4):
        group.nodes[0].transport.send(number, message)
    run(group.nodes, lambda: group.nodes[1].received and group.nodes[3].received)
    rest(group.nodes, 0.2)
    assert group.facts(0)["messages"] == 1
    assert group.nodes[2].received == []


def test_a_lost_datagram_costs_its_message_alone_and_is_counted(make: Callable[..., Group]) -> None:
    group = make()
    group.heard()
    fragments = [0]

    def third(data: bytes) -> bool:
        fragments[0] += len(data) > 1000
        return len(data) > 1000 and fragments[0] == 3

    group.sockets[1].loses = third
    for number in range(3):
        group.to_all(order([20_000], 1 + number))
    run(group.nodes, lambda: len(frames_of(group.nodes[2])) == 3 and len(frames_of(group.nodes[1])) == 2)
    run(group.nodes, lambda: group.facts(1)["peers"]["ewr"]["lost"] == 0)  # it may still come
    run(group.nodes, lambda: _lost_after(group))
    assert group.facts(2)["peers"]["ewr"]["lost"] == 0


def _lost_after(group: Group) -> bool:
    """Send more messages; the one with a missing fragment is given up after its time."""
    group.to_all(order([3_000]))
    return bool(group.facts(1)["peers"]["ewr"]["lost"] == 1)


def test_a_gateway_without_multicast_gets_all_over_the_mesh_and_is_reported(make: Callable[..., Group]) -> None:
    group = make(4)
    group.sockets[2].loses = lambda _data: True
    run(group.nodes, lambda: group.hearing(0) == 2 and group.nodes[0].up(3))
    group.to_all(Confirm(VIEW, 5))
    run(group.nodes, lambda: all(node.messages(1) for node in group.nodes[1:]))
    assert (group.facts(0)["messages"], group.facts(0)["over_mesh"]) == (1, 1)
    group.said(0, "lga: it does not receive this gateway by multicast")
    group.said(2, "does not carry multicast", "everything goes over the mesh")
    group.sockets[2].loses = lambda _data: False
    group.heard()


def test_without_working_multicast_everything_uses_the_mesh(make: Callable[..., Group]) -> None:
    group = make()
    for socket in group.sockets:
        socket.loses = lambda _data: True
    run(group.nodes, lambda: all(group.nodes[0].up(number) for number in (2, 3)))
    group.to_all(order([1000]))
    run(group.nodes, lambda: all(frames_of(node) for node in group.nodes[1:]))
    group.said(0, "does not carry multicast to 239.255.84.85", "between this gateway and jfk, lga")


def test_a_gateway_that_fell_silent_is_reached_over_the_mesh_within_a_second_or_two(make: Callable[..., Group]) -> None:
    group = make()
    group.heard()
    group.sockets[1].loses = lambda _data: True
    run(group.nodes, lambda: group.hearing(0) == 1)
    group.to_all(Confirm(VIEW, 5))
    run(group.nodes, lambda: all(node.messages(1) for node in group.nodes[1:]))


def test_no_peer_can_impersonate_a_gateway_without_its_seal(make: Callable[..., Group]) -> None:
    group = make(seals=[bytes([number]) * 32 for number in range(3)])
    group.heard()
    group.to_all(Confirm(VIEW, 5))
    run(group.nodes, lambda: all(node.messages(1) for node in group.nodes[1:]))
    genuine = next(data for data in group.sockets[1].passed if data[5] == 2)
    taken = len(group.nodes[1].received)
    outside = MulticastSocket(group.address, "127.0.0.1", 0)
    try:
        for data in (genuine, genuine[:24] + b"\x63" + genuine[25:], genuine[:-16] + b"\0\0\0\0", genuine[:-1], b"", b"x" * 3000):
            outside.send([data])
        run(group.nodes, lambda: group.facts(1)["damaged"] >= 3)
    finally:
        outside.close()
    rest(group.nodes, 0.2)
    assert len(group.nodes[1].received) == taken


def test_a_flood_of_foreign_datagrams_causes_no_long_delay(make: Callable[..., Group]) -> None:
    group = make()
    group.heard()
    outside = MulticastSocket(group.address, "127.0.0.1", 0)
    chance = random.Random(4)
    try:
        for number in range(20):
            for _ in range(200):
                outside.send([chance.randbytes(1000)])
            group.to_all(Confirm(VIEW, number + 1))
            wanted = (number + 1,) * 2
            run(group.nodes, lambda: tuple(len(node.messages(1)) for node in group.nodes[1:]) == wanted)  # noqa: B023 - called here
    finally:
        outside.close()
    assert group.facts(1)["not_taken"] > 1000
    assert group.hearing(0) == 2


def test_unsealed_datagrams_are_ignored_in_a_sealed_group(make: Callable[..., Group]) -> None:
    group = make(seals=[b"1" * 32, b"2" * 32, b""])
    run(group.nodes, lambda: group.hearing(0) == 1)
    rest(group.nodes, 0.5)
    assert [group.hearing(place) for place in range(3)] == [1, 1, 0]


def test_no_more_leaves_than_the_pace_allows_and_the_rest_goes_over_the_mesh(make: Callable[..., Group]) -> None:
    group = make(bytes_a_second=8 << 20)
    group.heard()
    began = clock_us()
    before = group.facts(0)["bytes"]
    for number in range(160):
        group.to_all(order([250_000], 1 + number))
    assert group.facts(0)["waiting_bytes"] <= limits.MULTICAST_QUEUE_BYTES_MAX
    assert group.facts(0)["over_mesh"] > 0
    rest(group.nodes, 0.5)
    seconds = (clock_us() - began) / 1e6
    left = group.facts(0)["bytes"] - before
    run_bytes = 64 * limits.MULTICAST_DATAGRAM_BYTES  # handed to the kernel together, on what there was of room before
    assert 0 < left <= 8 * (1 << 20) * seconds + limits.MULTICAST_BURST_BYTES_MAX + run_bytes


class Stuck(Lossy):
    """A socket whose kernel accepts nothing for now."""

    def send(self, run: Sequence[bytes]) -> bool:
        return False


def test_a_blocked_kernel_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MULTICAST_QUEUE_BYTES_MAX", 1000)
    ports, now_us = free_ports(3), 0
    me = Introduction(group="g", gateway="ewr", incarnation=b"i" * 16, number=1, log=LOG, process=b"p" * 8)
    transport = Multicast(
        me, Mesh(me, Address("127.0.0.1", ports[0]), clock_us), Stuck(Address("239.255.84.85", ports[1])), lambda: now_us
    )
    transport.set_peers([(2, "jfk", f"127.0.0.1:{ports[2]}")])

    def waiting() -> int:
        transport.flush()
        facts: dict[str, Any] = transport.facts()["multicast"]  # type: ignore[assignment]  # plain JSON
        return int(facts["waiting_bytes"])

    try:
        beacon = waiting()
        while (held := waiting()) <= limits.MULTICAST_QUEUE_BYTES_MAX:
            now_us += limits.MULTICAST_BEACON_US
        now_us += 10 * limits.MULTICAST_BEACON_US
        assert beacon > 0
        assert held <= limits.MULTICAST_QUEUE_BYTES_MAX + beacon
        assert waiting() == held
    finally:
        transport.close()


class Refusing:
    """A system's socket that sends nothing."""

    def __init__(self, real: Any) -> None:
        self.close = real.close

    def sendmsg(self, *_: object) -> int:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


def test_datagrams_refused_by_the_kernel_are_counted() -> None:
    own = MulticastSocket(Address("239.255.84.85", free_ports(1)[0]), "127.0.0.1", 0)
    own.socket = Refusing(own.socket)  # type: ignore[assignment]  # what is asked of it
    try:
        assert not own.send([b"1", b"2"])  # tried again, one by one
        assert own.not_sent == 0
        assert [own.send([data]) for data in (b"1", b"2")] == [True, True]
        assert own.not_sent == 2
    finally:
        own.close()
