"""Proves that strangers at the ports of a secured gateway harm nobody: garbage, handshakes that are cut, changed or sent again, and
whatever is said in a good connection without a token.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.fuzz.test_client_port import MEMORY_GROWTH_MAX
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import resident_bytes
from tests.support.secured import SecuredFiles, recording_proxy
from tutti import Producer, Reader
from tutti.data.client_protocol import PROTOCOL, Hello, Members, encode_control
from tutti.errors import FormatError
from tutti.io.admin import AdminClient
from tutti.zmtp.curve import CurveClientHandshake, new_key_pair
from tutti.zmtp.curve_stream import CurveSendQueue
from tutti.zmtp.framing import encode_message

pytestmark = [pytest.mark.faults, pytest.mark.timeout(200)]

ATTACKS = 60  # of each kind, at each port
PORTS = {"clients": 0, "group": 1, "reads": 2, "admin": 3}
BEGINNINGS = [
    b"",
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\n",
    b"GET / HTTP/1.1\r\n",
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> SecuredFiles:
    return SecuredFiles(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def gateway(house: SecuredFiles) -> Iterator[GatewayProcess]:
    with house.gateway() as process:
        yield process


@contextlib.contextmanager
def call(port: int) -> Iterator[socket.socket]:
    """A connection that may be ended at any moment."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        yield connection


def spoiled(chance: random.Random, good: bytes) -> bytes:
    """What was good, cut, changed, or with something in between."""
    at = chance.randrange(len(good))
    kind = chance.randrange(3)
    if kind == 0:
        return good[:at]
    if kind == 1:
        return good[:at] + bytes([good[at] ^ (1 << chance.randrange(8))]) + good[at + 1 :]
    return good[:at] + chance.randbytes(chance.randrange(1, 200)) + good[at:]


def shake(calling: CurveClientHandshake, connection: socket.socket) -> None:
    """Say what a caller says, up to the first message."""
    connection.sendall(calling.data_to_send())
    while calling.receive_data(connection.recv(1024)) is None:
        connection.sendall(calling.data_to_send())


def let_in(house: SecuredFiles, connection: socket.socket) -> CurveSendQueue:
    """An encrypted connection of somebody whom nobody knows."""
    calling = house.credentials("feed").calling()
    shake(calling, connection)
    assert calling.box is not None
    return CurveSendQueue(connection, calling.box)


def serves(house: SecuredFiles, gateway: GatewayProcess) -> Callable[[], int]:
    """What says that those who may come in are served: the next offset."""

    def one() -> int:
        with Producer(gateway.url, credentials=house.credentials("all")) as producer:
            offset: int = producer.send("good", b"x").result(30)
        with Reader(gateway.url, topics=["good"], start=offset, end=offset + 1, credentials=house.credentials("all")) as reader:
            assert sum(batch.num_rows for batch in reader) == 1
        return offset

    return one


def test_unauthenticated_peers_harm_no_port(house: SecuredFiles, gateway: GatewayProcess) -> None:
    chance = random.Random(7)
    next_one = serves(house, gateway)
    first = next_one()
    before = resident_bytes(gateway.pid)
    with recording_proxy(gateway.port) as proxy:
        with AdminClient(f"tutti://127.0.0.1:{proxy.port}", credentials=house.credentials("ops"), learn=False) as control:
            control.members()
        good = bytes(proxy.recorded[0][0])
    for distance in PORTS.values():
        for attack in range(ATTACKS):
            with call(gateway.port + distance) as connection:
                connection.sendall(chance.choice(BEGINNINGS) + chance.randbytes(chance.randrange(2000)))
            if distance < 2:
                with call(gateway.port + distance) as connection:
                    connection.sendall(good if attack == 0 else spoiled(chance, good))
    for attack in range(ATTACKS):
        with call(gateway.port) as connection:
            sealing = let_in(house, connection)
            said = [
                encode_message(
                    [encode_control(Hello(PROTOCOL, "nobody", chance.randbytes(16), f"tutti_{attack}")), *[b"x"] * (attack % 3)]
                ),
                encode_message([encode_control(Members(1))]),
                encode_message([chance.choice([b"S", b"U", b"C", b"R", b""]) + chance.randbytes(chance.randrange(3000))]),
                encode_message([b"S" + bytes(500_000 * (attack % 4 == 0))]),
            ]
            for message in chance.sample(said, len(said)):
                sealing.append(message)
            if attack % 2:  # and something that does not open
                connection.sendall(b"\0" * chance.randrange(300))
            deadline = time.monotonic() + 1
            while sealing and time.monotonic() < deadline:
                sealing.send()
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):  # else what was said is lost with the connection
                pass
    with call(gateway.port) as connection, pytest.raises(FormatError):
        shake(CurveClientHandshake([new_key_pair().public]), connection)
    assert next_one() == first + 1  # and nothing of what strangers said is in the log
    assert resident_bytes(gateway.pid) - before < MEMORY_GROWTH_MAX
    log = gateway.log_tail(10**7)
    assert "Traceback" not in log
    assert "defect" not in log
    with AdminClient(gateway.url, credentials=house.credentials("ops")) as control:
        assert control.status()["security"]["refused"]["unknown"] > ATTACKS / 10
