"""Proves that nothing that comes to the client port harms the gateway: it goes on, memory stays bounded, others are served."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from tests.faults.fuzz import zmtp
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import resident_bytes
from tests.support.waiting import wait_until
from tests.unit.node.fakes import batch_frame
from tutti import Producer
from tutti.data.client_protocol import (
    PROTOCOL,
    Bye,
    ChangeRoster,
    Fence,
    Forget,
    Hello,
    Leave,
    Members,
    OpenProducer,
    OpenTopic,
    Producers,
    SaveOffset,
    Status,
    encode_control,
    encode_submit,
)
from tutti.data.frames.frame import Frame, payload_crc

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

MEMORY_GROWTH_MAX = 300 << 20  # that is left once what came was worked off
SECONDS = 4.0  # of each attack, and longer where others take longer for their records
ATTACKS = 10
COMMITS = 11  # that others must get meanwhile
ANSWER_MS = 2000  # who attacks waits for a word before it comes again: else a slow machine has more and more to work off
WAIT_S = 100.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("fuzz")) as gateway:
        yield gateway


class GoodClient:
    """Sends a record at a time all along; every one of them must commit.

    How long one takes depends on the machine; that they go on while the attack does is what counts.
    """

    def __init__(self, gateway: GatewayProcess) -> None:
        self._url = gateway.url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.offsets: list[int] = []

    def _run(self) -> None:
        with Producer(self._url) as producer:
            while not self._stop.is_set():
                self.offsets.append(producer.send("good", b"x").result(WAIT_S))

    def attacked(self, enough: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Attack once for each: until that was enough, the time is over, and so many of its records were committed meanwhile."""
        began, before = time.monotonic(), len(self.offsets)
        for attack in itertools.count():
            served = len(self.offsets) >= before + COMMITS
            if served and attack >= ATTACKS and enough() and time.monotonic() > began + SECONDS:
                return
            assert time.monotonic() < began + WAIT_S, f"{attack} attacks, {len(self.offsets) - before} records of others"
            yield

    def goes_on(self) -> None:
        """Its records are committed after all that was done."""
        after = len(self.offsets)
        wait_until(lambda: len(self.offsets) > after, "others are not served any more")
        assert self.offsets == sorted(set(self.offsets))

    def __enter__(self) -> GoodClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)


def expect_small(gateway: GatewayProcess, before: int) -> None:
    """What it took is given back when it has worked off what came."""
    wait_until(lambda: resident_bytes(gateway.pid) - before < MEMORY_GROWTH_MAX, "memory was not given back")


def seeds(chance: random.Random) -> list[list[bytes]]:
    """Good messages, to be spoiled."""
    frames: list[Frame] = [batch_frame([chance.randbytes(20)] * 3, sequence=number, progress=b"p") for number in (1, 4)]
    large = batch_frame([chance.randbytes(20_000)], compression="lz4")
    instance = chance.randbytes(16)
    controls = [
        Hello(PROTOCOL, "fuzz", chance.randbytes(16)),
        OpenProducer(1, "fuzz", instance, 1),
        OpenTopic(2, "fuzz"),
        SaveOffset(3, "fuzz", 0),
        Forget(4, ("nobody",)),
        Fence(5, "fuzz"),
        Status(6),
        Producers(7),
        ChangeRoster(8, "remove", "nobody"),
        Leave(9, "nobody"),
        Members(10),
        Bye(),
    ]
    twisted = [damaged(frame, chance) for frame in (*frames, large)]
    submits = [encode_submit(some) for some in (frames, [large], [large, frames[0]], twisted)]
    return [[encode_control(control)] for control in controls] + [[bytes(part) for part in parts] for parts in submits]


def damaged(frame: Frame, chance: random.Random) -> Frame:
    """A copy whose body is wrong and whose CRC is right: only Arrow's validation can tell."""
    body = bytearray(frame.body)
    for _ in range(chance.choice((1, 1, 4))):
        body[chance.randrange(min(len(body), 700))] ^= 1 << chance.randrange(8)
    copy = frame.unstamped()
    copy.body = bytes(body)
    copy.body_crc = payload_crc(copy.progress, copy.body)
    return copy


def spoiled(parts: list[bytes], chance: random.Random) -> list[bytes]:
    """The message with something done to it; sometimes nothing."""
    parts = list(parts)
    for _ in range(chance.choice((0, 1, 1, 1, 3))):
        which = chance.randrange(len(parts))
        part = bytearray(parts[which])
        match chance.randrange(6):
            case 0 if part:
                part[chance.randrange(len(part))] = chance.randrange(256)
            case 1 if part:
                part[chance.randrange(min(len(part), 120))] ^= 1 << chance.randrange(8)
            case 2:
                del part[chance.randrange(len(part) + 1) :]
            case 3:
                part += chance.randbytes(chance.choice((1, 8, 200)))
            case 4:
                parts.insert(which, chance.randbytes(chance.randrange(50)))
            case _:
                part = bytearray(chance.randbytes(chance.randrange(300)))
        parts[which] = bytes(part)
    return parts


def test_corrupt_messages_harm_no_gateway(gateway: GatewayProcess) -> None:
    chance = random.Random(7)
    before = resident_bytes(gateway.pid)
    context = zmq.Context()
    answers: list[int] = []  # their parts
    with GoodClient(gateway) as good:
        for _ in good.attacked(lambda: len(answers) > 100):
            with context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.connect(f"tcp://127.0.0.1:{gateway.port}")
                client.send(encode_control(Hello(PROTOCOL, "fuzz", chance.randbytes(16))))
                for _ in range(100):
                    client.send_multipart(spoiled(chance.choice(seeds(chance)), chance))
                wait_ms = ANSWER_MS
                while client.poll(wait_ms):
                    answers.append(len(client.recv_multipart()))
                    wait_ms = 50
        good.goes_on()
    context.term()
    assert gateway.runs
    expect_small(gateway, before)


def test_raw_bytes_harm_no_gateway(gateway: GatewayProcess) -> None:
    chance = random.Random(11)
    before = resident_bytes(gateway.pid)
    openings: list[Callable[[], bytes]] = [
        lambda: chance.randbytes(chance.randrange(1, 2000)),
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(100),
        lambda: zmtp.GREETING + chance.randbytes(200),
        lambda: zmtp.GREETING[: chance.randrange(64)],
        lambda: zmtp.GREETING + zmtp.ready(b"PUB"),
        lambda: zmtp.GREETING + zmtp.ready() + chance.randbytes(500),
        lambda: zmtp.GREETING + zmtp.ready() + b"\x02" + b"\xff" * 8,
        lambda: zmtp.GREETING + zmtp.ready() + zmtp.frame(b"S" + chance.randbytes(300), zmtp.MORE) + zmtp.frame(b""),
    ]
    left_open: list[socket.socket] = []
    with GoodClient(gateway) as good:
        for _ in good.attacked():
            connection = zmtp.connect(gateway.port, handshake=False)
            try:
                connection.sendall(chance.choice(openings)())
            except OSError:
                connection.close()
                continue
            if chance.random() < 0.1 and len(left_open) < 200:
                left_open.append(connection)
            else:
                connection.close()
        for connection in left_open:
            connection.close()
        good.goes_on()
    assert gateway.runs
    expect_small(gateway, before)


def test_a_message_without_end_is_disconnected(gateway: GatewayProcess) -> None:
    part = zmtp.frame(bytes(1 << 20), zmtp.MORE)
    sent = 0
    before = highest = resident_bytes(gateway.pid)
    with zmtp.connect(gateway.port) as connection, GoodClient(gateway) as good:
        try:
            while sent < 3 << 30:
                connection.sendall(part)
                sent += len(part)
                highest = max(highest, resident_bytes(gateway.pid))
        except OSError:
            cut_off = True
        else:
            cut_off = False
        good.goes_on()
    assert cut_off
    assert highest < before + (200 << 20), "it is read, and not kept"


def test_compression_bombs_slow_no_other_client(gateway: GatewayProcess) -> None:
    chance = random.Random(13)
    bomb = batch_frame([bytes(1 << 20)] * 30, compression="zstd")
    assert bomb.body_length < 200_000
    message = [bytes(part) for part in encode_submit([bomb] * 100)]
    before = resident_bytes(gateway.pid)
    context = zmq.Context()
    with context.socket(zmq.DEALER) as client, GoodClient(gateway) as good:
        client.linger = 0
        client.connect(f"tcp://127.0.0.1:{gateway.port}")
        client.send(encode_control(Hello(PROTOCOL, "bomber", chance.randbytes(16))))
        for _ in good.attacked():
            if client.poll(10, zmq.POLLOUT):
                client.send_multipart(message, zmq.NOBLOCK)
            while client.poll(0):
                client.recv()
    context.term()
    expect_small(gateway, before)
