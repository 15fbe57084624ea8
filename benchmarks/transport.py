"""The mesh beside UDP multicast, bare: one gateway hands messages to all others, without stacks, disks or clients.

    python -m benchmarks.transport [--receivers 2 4] [--volume-mb 256] [--rounds 3] [--interface 127.0.0.1]

Every receiver is a process of this machine and answers each message with a vote over the mesh; 4 MiB are under way at most. Time
runs until all have answered. `CPU` is that of all processes together.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

from benchmarks.arguments import run_command
from benchmarks.figures import Figure, figure, seconds_of
from tutti.data.frames.frame import Frame, Kind
from tutti.data.member_address import Address
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Received
from tutti_gateway.core.protocol.messages import Order, Vote
from tutti_gateway.transport.interface import Introduction, Transport
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.multicast.multicast import Multicast
from tutti_gateway.transport.multicast.socket import MulticastSocket

KIB, MIB = 1024, 1024 * 1024
UNDER_WAY_BYTES = 4 * MIB
LOST_AFTER_S = 0.5
READY_WAIT_S = 30.0
PACE = 2000 * MIB  # the machine's own limit is what is asked for
BODIES = {"64 KiB": 64 * KIB, "256 KiB": 256 * KIB - 200}
VIEW = 65_537


class Way(NamedTuple):
    """How messages go: by multicast in datagrams of so many bytes, or (0) over the mesh."""

    name: str
    datagram_bytes: int


WAYS = [Way("mesh", 0), Way("multicast, 1,400 B", 1400), Way("multicast, 8,900 B", 8900)]


class Place(NamedTuple):
    """Where all meet: the first of the group ports, the multicast port, the interface, and how messages go."""

    port: int
    group: int
    interface: str
    datagram_bytes: int


def clock_us() -> int:
    """A monotonic clock."""
    return time.monotonic_ns() // 1000


def open_transport(number: int, count: int, place: Place) -> Transport:
    """One of `count` gateways, told of all others."""
    process = number.to_bytes(8, "big")
    me = Introduction(group="bench", gateway=f"g{number}", incarnation=process * 2, number=number, log=b"l" * 16, process=process)
    mesh = Mesh(me, Address("127.0.0.1", place.port + number), clock_us)
    transport: Transport = mesh
    if place.datagram_bytes:
        group = MulticastSocket(Address("239.255.84.86", place.group), place.interface, 0)
        transport = Multicast(me, mesh, group, clock_us, datagram_bytes=place.datagram_bytes, bytes_a_second=PACE)
    transport.introduce(number, b"l" * 16)
    others = [other for other in range(1, count + 1) if other != number]
    transport.set_peers([(other, f"g{other}", f"127.0.0.1:9/{place.port + other}") for other in others])
    return transport


def turn(transport: Transport, wait_ms: int) -> Iterator[Received]:
    """What came in one turn of a loop."""
    due_us = transport.next_us()
    poller = select.poll()
    for fd in transport.descriptors():
        poller.register(fd, select.POLLIN)
    poller.poll(wait_ms if due_us is None else min(wait_ms, -(-due_us // 1000)))
    for event in transport.drain(limits.MESH_DRAIN_MESSAGES_MAX, limits.MESH_DRAIN_BYTES_MAX):
        if isinstance(event, Received):
            yield event
    transport.flush()


def receive(number: int, count: int, place: Place) -> None:
    """A receiver's work, until its parent is gone."""
    with closing(open_transport(number, count, place)) as transport:
        came, parent = 0, os.getppid()
        while os.getppid() == parent:
            before = came
            came += sum(isinstance(event.message, Order) for event in turn(transport, 100))
            if came != before or not came:
                transport.send(1, Vote(VIEW, came))
                transport.flush()


@contextmanager
def receivers(count: int, place: Place) -> Iterator[list[int]]:
    """The processes of all others."""
    numbers = range(2, count + 2)
    values = [str(value) for value in place]
    started = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.transport", "--receiver", str(number), str(count + 1), *values])
        for number in numbers
    ]
    try:
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()


def measure(count: int, way: Way, body: int, volume: int, interface: str) -> tuple[float, float, int]:
    """MB/s, CPU seconds a GB, and how many messages somebody did not get."""
    place = Place(_free_port(), _free_port(), interface, way.datagram_bytes)
    with receivers(count, place) as pids, closing(open_transport(1, count + 1, place)) as transport:
        votes = _met(transport, count, way)
        frame = Frame(Kind.BATCH, os.urandom(body), producer=1, epoch=1, first_sequence=1, count=1, topic=1)
        frame.stamp(VIEW, 1, 0)
        message, total = Order(VIEW, (frame,)), volume // body
        before = time.process_time() + sum(map(seconds_of, pids))
        began = moved = time.monotonic()
        sent = lost = 0
        while min(votes.values()) + lost < total:
            while sent < total and (sent - min(votes.values()) - lost) * body < UNDER_WAY_BYTES:
                sent += 1
                for number in votes:
                    transport.send(number, message)
                transport.flush()
            for event in turn(transport, 20):
                if isinstance(event.message, Vote) and event.message.up_to > votes[event.sender]:
                    votes[event.sender] = event.message.up_to
                    moved = time.monotonic()
            if time.monotonic() - moved > LOST_AFTER_S:
                lost, moved = sent - min(votes.values()), time.monotonic()
        took = time.monotonic() - began
        cpu = time.process_time() + sum(map(seconds_of, pids)) - before
    return total * body / 1e6 / took, cpu / (total * body / 1e9), lost


def _met(transport: Transport, count: int, way: Way) -> dict[int, int]:
    """Wait until everybody is there and, where messages go by multicast, hears it."""
    votes: dict[int, int] = {}
    deadline = time.monotonic() + READY_WAIT_S
    while len(votes) < count or not _reached(transport, count) or (way.datagram_bytes and not _heard(transport, count)):
        if time.monotonic() > deadline:
            raise SystemExit(f"{way.name}: not everybody was heard within {READY_WAIT_S:.0f} s: {transport.facts()}")
        for event in turn(transport, 50):
            votes[event.sender] = 0
    return votes


def _reached(transport: Transport, count: int) -> bool:
    peers = transport.facts()["peers"]
    return isinstance(peers, list) and sum(bool(peer["up"]) for peer in peers) == count


def _heard(transport: Transport, count: int) -> bool:
    facts = transport.facts()["multicast"]
    peers = facts["peers"].values() if isinstance(facts, dict) else []
    return sum(bool(peer["hears"]) for peer in peers) == count


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1]) % 20_000 + 10_000


def transports(counts: Sequence[int], rounds: int, volume: int, interface: str) -> Iterator[Figure]:
    """All ways for groups with so many receivers."""
    for count in counts:
        for name, body in BODIES.items():
            for way in WAYS:
                found = [measure(count, way, body, volume, interface) for _ in range(rounds)]
                lost = sum(one[2] for one in found)
                beside = f"CPU {min(one[1] for one in found):.1f} s a GB; {lost} of {rounds * (volume // body)} lost by somebody"
                yield figure(f"to {count}: {way.name}, {name}", [one[0] for one in found], "MB/s", beside=beside)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transport", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--receivers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--volume-mb", type=int, default=256, help="of one round, MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interface", default="127.0.0.1", help="for multicast")
    parser.add_argument("--receiver", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receiver:
        number, count, port, group, interface, datagram = arguments.receiver
        receive(int(number), int(count), Place(int(port), int(group), interface, int(datagram)))
        return 0
    for one in transports(arguments.receivers, arguments.rounds, arguments.volume_mb * MIB, arguments.interface):
        print(one.line(), flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)
