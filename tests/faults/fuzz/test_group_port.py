"""Proves that nothing that comes to the port between gateways harms the group: it goes on, in its view, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.faults.fuzz import zmtp
from tests.faults.fuzz.test_client_port import ANSWER_MS, COMMITS, GoodClient, expect_small, spoiled
from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tests.support.processes import resident_bytes
from tests.support.waiting import wait_until
from tests.unit.node.fakes import batch_frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import (
    Confirm,
    Fetch,
    Heartbeat,
    Install,
    Message,
    Missing,
    Order,
    Propose,
    Reject,
    State,
    Vote,
)
from tutti_gateway.transport.codec import encode, encode_introduction
from tutti_gateway.transport.interface import Introduction
from tutti_gateway.transport.keys import generate

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

TIMERS = "[timers]\nheartbeat_ms = 1000\n"  # a machine that is busy with the attack is no member that is gone
NAMES = ("g1", "g2", "g3")


class Group:
    """Three real gateways of this machine."""

    def __init__(self, root: Path, *, keys: bool) -> None:
        ports = [free_base() for _ in NAMES]
        members = ", ".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip(NAMES, ports, strict=True))
        if keys:
            generate(root / "keys", NAMES)
        self.gateways = []
        for name, port in zip(NAMES, ports, strict=True):
            secret = f'[security]\nsecret_key = "keys/{name}.secret"\npublic_keys = "keys/group.keys"\n' if keys else ""
            text = f"members = {{ {members} }}\n{secret}{TIMERS}"
            self.gateways.append(GatewayProcess(root, name, text, Placement("127.0.0.1", port)))

    def __enter__(self) -> Group:
        try:
            for gateway in self.gateways:
                gateway.start(wait=False)
            for gateway in self.gateways:
                gateway.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for gateway in self.gateways:
            gateway.__exit__()

    @property
    def port(self) -> int:
        """Of the coordinator, for other gateways."""
        return self.gateways[0].port + 1

    def status(self, place: int = 0) -> dict[str, Any]:
        """What a gateway says of itself."""
        url, told = f"http://127.0.0.1:{self.gateways[place].port + 3}/v1/status", list[dict[str, Any]]()

        def answered() -> bool:  # a busy one has none to tell for a moment
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url, timeout=30) as answer:
                told.append(json.loads(answer.read()))
            return bool(told)

        wait_until(answered, "no status is told")
        return told[0]


@contextlib.contextmanager
def unharmed(group: Group, *, same_view: bool = True) -> Iterator[GoodClient]:
    """Whatever is done meanwhile: a client of another gateway is served, memory is bounded, and the view stays."""
    views = [group.status(place)["view"] for place in range(3)]
    before = [resident_bytes(gateway.pid) for gateway in group.gateways]
    with GoodClient(group.gateways[1]) as good:
        yield good
        wait_until(lambda: len(good.offsets) >= COMMITS, "others are not served")
        good.goes_on()
    assert all(gateway.runs for gateway in group.gateways)

    def primary() -> bool:
        return all(group.status(place)["state"] == "primary" for place in range(3))

    if same_view:
        assert primary()
        assert [group.status(place)["view"] for place in range(3)] == views, group.gateways[0].log_tail()
        for gateway, then in zip(group.gateways, before, strict=True):
            expect_small(gateway, then)
    else:  # who was given up meanwhile is taken in again, where the view may change
        wait_until(primary, "a member was not taken in again")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("group"), keys=False) as group:
        yield group


def openings(chance: random.Random) -> list[Callable[[], bytes]]:
    """What comes first on a connection, and is no gateway's."""
    return [
        lambda: chance.randbytes(chance.randrange(1, 2000)),
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: zmtp.GREETING + chance.randbytes(200),
        lambda: zmtp.GREETING[: chance.randrange(64)],
        lambda: zmtp.GREETING + zmtp.ready(b"PUB"),
        lambda: zmtp.GREETING + zmtp.ready() + chance.randbytes(500),
        lambda: zmtp.GREETING + zmtp.ready() + b"\x02" + b"\xff" * 8,
        lambda: zmtp.GREETING + zmtp.ready() + zmtp.frame(b"I" + chance.randbytes(300)),
        lambda: zmtp.GREETING + zmtp.ready() + zmtp.frame(b"F" + chance.randbytes(300), zmtp.MORE) + zmtp.frame(b""),
    ]


def throw_bytes(group: Group, chance: random.Random, good: GoodClient) -> None:
    kept: list[socket.socket] = []
    ways = openings(chance)
    for _ in good.attacked():
        connection = zmtp.connect(group.port, handshake=False)
        try:
            connection.sendall(chance.choice(ways)())
        except OSError:
            connection.close()
            continue
        if chance.random() < 0.1 and len(kept) < 200:
            kept.append(connection)
        else:
            connection.close()
    for connection in kept:
        connection.close()


def test_raw_bytes_harm_no_gateway(group: Group) -> None:
    with unharmed(group) as good:
        throw_bytes(group, random.Random(3), good)


def introduction(group: Group, **said: Any) -> bytes:
    """Of a gateway that this log does not name and that has the same log, so that it is taken for one that joins."""
    values: dict[str, Any] = {
        "group": "test",
        "gateway": "stranger",
        "incarnation": b"s" * 16,
        "number": 9,
        "log": bytes.fromhex(group.status()["log"]),
        "process": b"stranger",
        "address": "127.0.0.1:1",
    }
    return encode_introduction(Introduction(**values | said))


def messages(chance: random.Random, view: int) -> list[list[bytes]]:
    """Of every kind that moves something, in the group's own view or another."""
    view = chance.choice((view, view + 65_536, 1 << 62))
    place = chance.choice((0, 1, 5, 1 << 40, 2**63 - 1))
    frame = batch_frame([chance.randbytes(50)] * 3, sequence=1)
    made: list[Message] = [
        Order(view, (frame,)),
        Confirm(view, place),
        Vote(view, place),
        Heartbeat(sent_us=place, view=view, promised=view, claim=view, end=place, hears=(1, 2, 3)),
        Propose(view, (1, 2, 9)),
        State(view=view, accepted=view, end=place, chain=1, frontier=0, base=0, table=((view, 1),)),
        Reject(view, view, "no"),
        Install(view=view, members=(1, 9), end=place, chain=7, base=0, table=((view, 1),)),
        Fetch(view, 1, place),
        Missing(view, ((1, place),)),
    ]
    return [[bytes(part) for part in encode(message)] for message in made]


@pytest.mark.parametrize("who", ["unintroduced", "stranger", "member", "newcomer"])
def test_messages_of_non_members_harm_no_gateway(group: Group, who: str) -> None:
    chance = random.Random(who)
    view = int(group.status()["view"]["id"])
    said = {
        "unintroduced": b"",
        "stranger": introduction(group, number=0, log=b""),
        "member": introduction(group, gateway="g2", number=2),
        "newcomer": introduction(group),
    }[who]
    sent = 0
    with unharmed(group) as good, zmq.Context() as context:
        for _ in good.attacked():
            with context.socket(zmq.DEALER) as client:
                client.linger, client.sndtimeo = 0, 10_000
                client.connect(f"tcp://127.0.0.1:{group.port}")
                if said:
                    client.send(said)
                for _ in range(100):
                    parts = chance.choice(messages(chance, view))
                    client.send_multipart(parts if who == "member" else spoiled(parts, chance))
                    sent += 1
                while client.poll(20):
                    client.recv_multipart()
    assert sent > 100
    if who == "member":
        assert "two gateways are named 'g2'" in group.gateways[0].log.read_text()


def test_corrupt_handshakes_harm_no_gateway(group: Group) -> None:
    chance = random.Random(5)
    sound = introduction(group)
    with unharmed(group) as good, zmq.Context() as context:
        for _ in good.attacked():
            with context.socket(zmq.DEALER) as client:
                client.linger, client.sndtimeo = 0, 10_000
                client.connect(f"tcp://127.0.0.1:{group.port}")
                for number in range(50):
                    other = introduction_like(sound, chance) if number % 2 else chance.choice(STRANGE)
                    client.send(other)
                wait_ms = ANSWER_MS
                while client.poll(wait_ms):
                    client.recv_multipart()
                    wait_ms = 10
    log = group.gateways[0].log.read_text()
    assert log.count("trouble with another gateway") < 2000  # each once a minute, and no more than so many


STRANGE = [
    encode_introduction(Introduction(**{"group": "g", "gateway": "x", "incarnation": b""} | said))
    for said in (
        {"group": "other"},
        {"protocol": 99},
        {"group": "x" * 10_000},
        {"gateway": ""},
        {"gateway": "x" * 1000, "group": "test"},
        {"group": "test", "configured": {f"n{number}": "a" for number in range(5000)}},
        {"group": "test", "number": -5},
        {"group": "test", "log": b"l" * 500},
    )
]


def introduction_like(sound: bytes, chance: random.Random) -> bytes:
    return b"I" + spoiled([sound], chance)[0][1:]


def test_a_flood_of_large_messages_harms_no_gateway(group: Group) -> None:
    part = zmtp.frame(b"C" + bytes(8 << 20))
    with unharmed(group) as good, zmtp.connect(group.port) as connection, contextlib.suppress(OSError):
        for _ in good.attacked():
            connection.sendall(part)


@pytest.mark.parametrize("let_in", [False, True])
def test_a_message_without_end_is_disconnected(group: Group, let_in: bool) -> None:
    part = zmtp.frame(bytes(1 << 20), zmtp.MORE)
    before = highest = resident_bytes(group.gateways[0].pid)
    sent = 0
    cut_off = False
    with unharmed(group), zmtp.connect(group.port) as connection:
        if let_in:
            connection.sendall(zmtp.frame(introduction(group)))
        try:
            while sent < 1 << 30:
                connection.sendall(part)
                sent += len(part)
                highest = max(highest, resident_bytes(group.gateways[0].pid))
        except OSError:
            cut_off = True
    assert cut_off
    assert highest - before < 200 << 20
    assert "all connections of other gateways are closed" not in group.gateways[0].log.read_text()


def test_incomplete_messages_take_bounded_memory(group: Group) -> None:
    """Forty that are let in send most of the largest part there may be, and no end of it."""
    most = zmtp.frame(bytes(16 << 20))[: 15 << 20]
    before = highest = resident_bytes(group.gateways[0].pid)
    with unharmed(group), contextlib.ExitStack() as closing:
        for _ in range(40):
            connection = closing.enter_context(zmtp.connect(group.port))
            connection.sendall(zmtp.frame(introduction(group)))
            with contextlib.suppress(OSError):  # it was cut off
                connection.sendall(most)
            highest = max(highest, resident_bytes(group.gateways[0].pid))
    assert highest - before < limits.MESH_ASSEMBLY_BYTES_MAX + (128 << 20)
    assert "memory is above its limit" not in group.gateways[0].log.read_text()


def test_connections_with_half_a_greeting_are_evicted(group: Group) -> None:
    descriptors = f"/proc/{group.gateways[0].pid}/fd"
    before = len(os.listdir(descriptors))
    with unharmed(group), contextlib.ExitStack() as closing:
        for _ in range(limits.MESH_CONNECTIONS_MAX + 100):
            connection = closing.enter_context(zmtp.connect(group.port, handshake=False))
            connection.sendall(zmtp.GREETING[:20])
        late = closing.enter_context(zmtp.connect(group.port))
        late.sendall(zmtp.frame(introduction(group, gateway="g1")))
        wait_until(lambda: b"two gateways are named" in late.recv(4096), "who comes late is not answered")
        assert len(os.listdir(descriptors)) - before <= limits.MESH_CONNECTIONS_MAX


def test_with_keys_no_other_peer_can_send_a_message(tmp_path: Path) -> None:
    chance = random.Random(9)
    with Group(tmp_path, keys=True) as group:
        assert group.status()["transport"]["keys"] is True
        with unharmed(group) as good, zmq.Context() as context:
            throw_bytes(group, chance, good)
            public, secret = zmq.curve_keypair()
            with context.socket(zmq.DEALER) as client:
                client.linger, client.sndtimeo = 0, 10_000
                client.curve_publickey, client.curve_secretkey = public, secret
                client.curve_serverkey = (tmp_path / "keys" / "g1.secret").read_text().split('public = "')[1][:40].encode()
                client.connect(f"tcp://127.0.0.1:{group.port}")
                with contextlib.suppress(zmq.Again):  # the gateway has refused the connection already
                    client.send(introduction(group), zmq.NOBLOCK)
                assert not client.poll(1000)
        assert group.status()["transport"]["not_taken"] == 0
        wait_until(lambda: public.decode() in group.gateways[0].log.read_text(), "a log line with the key of the refused peer")
