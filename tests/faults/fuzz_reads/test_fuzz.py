"""Proves that nothing that arrives on the reads port or the admin port stops the process or makes it grow: noise, mutated sessions
of real clients, wrong requests by the hundred, oversize ones, callers that do not read. Others are served all the while.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.faults.almost import attack, mutations
from tests.integration.reads.reads_process import FakeGateway, LogMaker, ReadsProcess, ask, read, refusal, until
from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.tickets import Command

pytestmark = pytest.mark.faults

GROWTH_MB_MAX = 64
REQUEST = b"GET /v1/status?a=b HTTP/1.1\r\nhost: gateway\r\naccept: */*\r\nconnection: keep-alive\r\n\r\n"
LOW_LIMIT = (
    "import os; from tutti_gateway.core import limits; limits.READS_MEMORY_BYTES_MAX = 120 << 20; "
    "from tutti_gateway.reads.main import main; os._exit(main())"
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LogMaker, FakeGateway]]:
    log, gateway = LogMaker(tmp_path_factory.mktemp("data") / "jfk"), FakeGateway()
    log.add("flights", 200, frames=5)
    yield log, gateway
    gateway.close()
    log.close()


@pytest.fixture(scope="module")
def process(house: tuple[LogMaker, FakeGateway]) -> Iterator[ReadsProcess]:
    log, gateway = house
    process = ReadsProcess(log.path, gateway, log.read_fd).ready()
    yield process
    assert process.end() == 0


@pytest.fixture
def sound(process: ReadsProcess) -> Iterator[None]:
    """After each attack: the same process, serving, no larger, with no call left over."""
    assert served(process)
    before = process.pss_mb("Pss_Anon:")
    yield
    assert process.process.poll() is None
    assert served(process)
    until(lambda: sum(process.page("/v1/status")[1]["reads_served"]["calls"].values()) == 0)
    until(lambda: process.pss_mb("Pss_Anon:") < before + GROWTH_MB_MAX)
    assert not any("Traceback" in line or '"exception"' in line for line in process.lines)


def served(process: ReadsProcess) -> bool:
    with flight.connect(process.url) as client:
        return bool(read(client, columns=["offset"]).num_rows == 1000 and process.page("/healthz")[0] == 200)


def recorded(process: ReadsProcess, call: Callable[[flight.FlightClient], object]) -> bytes:
    """What a real client sends for a call: it goes through a socket of ours."""
    sent = bytearray()

    def forward(taken: socket.socket, server: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while data := taken.recv(65536):
                if keep:
                    sent.extend(data)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = opened.enter_context(flight.connect(f"grpc://127.0.0.1:{listener.getsockname()[1]}"))
        caller = threading.Thread(target=lambda: call(client))
        caller.start()
        taken = opened.enter_context(listener.accept()[0])
        server = opened.enter_context(socket.create_connection(("127.0.0.1", process.port)))
        threads = [
            threading.Thread(target=forward, args=(taken, server, True)),
            threading.Thread(target=forward, args=(server, taken, False)),
        ]
        for thread in threads:
            thread.start()
        caller.join()
        for link in (taken, server):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    return bytes(sent)


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("which", ["reads", "admin"])
def test_noise(process: ReadsProcess, which: str) -> None:
    chance = random.Random(1)
    port = process.port if which == "reads" else process.admin
    beginnings = [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET ", b"\xff\0\0\0\0\0\0\0\1\x7f", b"\x16\x03\x01"]
    for number in range(150):
        attack(port, beginnings[number % len(beginnings)] + chance.randbytes(chance.choice((0, 3, 40, 5000))))


@pytest.mark.usefixtures("sound")
def test_mutated_sessions_of_flight_clients(process: ReadsProcess) -> None:
    sessions = [
        recorded(process, lambda client: read(client, columns=["offset"])),
        recorded(process, lambda client: ask(client, "frontier")),
        recorded(process, lambda client: client.get_flight_info(flight.FlightDescriptor.for_command(b'{"splits": 3}'))),
    ]
    for seed, session in enumerate(sessions):
        assert session.startswith(b"PRI * HTTP/2.0")
        for data in mutations(session, seed, 60):
            attack(process.port, data)


@pytest.mark.usefixtures("sound")
def test_mutated_http(process: ReadsProcess) -> None:
    for data in mutations(REQUEST, 9, 200):
        attack(process.admin, data)


def anything(chance: random.Random, depth: int = 0) -> Any:
    """A JSON value that somebody might send."""
    match chance.randrange(9 if depth < 3 else 7):
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.choice([0, 1, -1, 999, 2**31, 2**63 - 1, 2**63, -(2**70)])
        case 2:
            return chance.choice(["earliest", "latest", "flights", "", "offset", "a" * 300, "\u0000", "weather/.."])
        case 3:
            return chance.random() * 1e6
        case 4 | 5 | 6:
            return chance.randrange(1100)
        case 7:
            return [anything(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(["time_us", "start", "x"]): anything(chance, depth + 1) for _ in range(chance.randrange(3))}


def code_of(call: Callable[[], object]) -> str:
    """The code that a call is refused with, "" if it is not."""
    try:
        call()
    except flight.FlightError as error:
        return str(json.loads(error.extra_info)["code"])
    return ""


@pytest.mark.usefixtures("sound")
def test_requests_of_any_shape(process: ReadsProcess) -> None:
    chance = random.Random(5)
    actions = ["frontier", "offset_for_time", "ticks", "plan", "topics", "producers", "readers", "save_offset", "", "x" * 5000]
    names = [*Command.__struct_fields__, "time_us", "reader", "offset", "from_tick", "beyond"]
    refused = 0
    with flight.connect(process.url) as client:
        for number in range(600):
            asked = {chance.choice(names): anything(chance) for _ in range(chance.randrange(4))}
            asked.pop("follow", None)  # it would go on for ever
            asked.pop("seen", None)  # it would wait
            body = json.dumps(asked).encode() if number % 10 else chance.randbytes(chance.randrange(200))
            calls: list[Callable[[], object]] = [
                lambda b=body: client.do_get(flight.Ticket(b)).read_all(),  # type: ignore[misc]  # bound at once
                lambda b=body: client.get_flight_info(flight.FlightDescriptor.for_command(b)),  # type: ignore[misc]  # likewise
                lambda b=body: list(client.do_action(flight.Action(chance.choice(actions), b))),  # type: ignore[misc]  # likewise
            ]
            told = code_of(calls[number % 3])
            assert told != "internal", body
            refused += bool(told)
    assert refused > 100


@pytest.mark.usefixtures("sound")
def test_oversize_requests(process: ReadsProcess) -> None:
    with flight.connect(process.url) as client:
        for size in (common_limits.TICKET_BYTES_MAX + 1, 24 << 20):
            assert refusal(lambda size=size: client.do_get(flight.Ticket(b" " * size)).read_all())[1]["code"] == "malformed"  # type: ignore[misc]  # bound at once
    attack(process.admin, REQUEST[:-2] + b"x: " + b"y" * (8 << 20))


def test_callers_that_do_not_read(tmp_path: Path) -> None:
    """Each holds a batch or two, and what gRPC and the sockets take, not the range; the process can be stopped all the same."""
    log, gateway = LogMaker(tmp_path / "jfk"), FakeGateway()
    log.bulk("flights", 2000, 400)  # 90 MB
    process = ReadsProcess(log.path, gateway, log.read_fd).ready()
    with flight.connect(process.url) as warm:
        assert read(warm, columns=["offset"]).num_rows == 800_000
    idle = process.pss_mb()
    clients = [flight.connect(process.url) for _ in range(20)]
    streams = [client.do_get(flight.Ticket(b'{"follow": true}' if number % 2 else b"{}")) for number, client in enumerate(clients)]
    for stream in streams:
        stream.read_chunk()

    def blocked() -> bool:
        calls = process.page("/v1/status")[1]["reads_served"]["calls"]
        return bool(calls["stream"] == calls["follow"] == 10)

    until(blocked)
    counted = [-1]

    def still() -> bool:
        now = process.page("/v1/status")[1]["reads_served"]["streams"]["batches"]
        before, counted[0] = counted[0], now
        return bool(now == before)

    until(still)
    held = process.pss_mb() - idle
    assert held < 1.5 * limits.READ_BUFFERS_BYTES / common_limits.MIB, f"20 callers that do not read hold {held:.0f} MB"
    for stream in streams[:10]:
        stream.cancel()
    until(lambda: sum(process.page("/v1/status")[1]["reads_served"]["calls"].values()) == 10)
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 10
    for client in clients:
        client.close()
    gateway.close()
    log.close()


def test_a_process_that_grows_too_large_ends(house: tuple[LogMaker, FakeGateway]) -> None:
    """The library takes requests of any size; the process notices, says so and ends, and its gateway starts another."""
    log, gateway = house
    process = ReadsProcess(log.path, gateway, log.read_fd, program=("-c", LOW_LIMIT)).ready()
    stop = threading.Event()

    def burden() -> None:
        with flight.connect(process.url) as client:
            while not stop.is_set():
                with contextlib.suppress(flight.FlightError, OSError):
                    client.do_get(flight.Ticket(b" " * (48 << 20))).read_all()
                stop.wait(0.05)

    callers = [threading.Thread(target=burden) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        assert process.process.wait(60) == 1
    finally:
        stop.set()
        for caller in callers:
            caller.join()
        process.end()
    assert any("exceeds its memory limit" in line for line in process.lines)
