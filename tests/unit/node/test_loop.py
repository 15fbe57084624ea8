"""Tests of the socket thread's loop over a real port: requests are served, memory above its bound drops the connections, memory is
released once when the loop is idle, and a closed intake neither spins nor stays closed.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator

import pytest
import zmq

from tests.support.ports import free_port
from tests.unit.node.driver_harness import Documents
from tests.unit.node.fakes import LOG, DiskQueue, HandClock, LaneQueue, Lookups, Script, Wire, network, token
from tutti.data.client_protocol import PROTOCOL, Duplicate, Hello, encode_control
from tutti.runtime import malloc
from tutti.zmtp.framing import GREETING, ready
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Event, SessionClosed, SpaceChanged
from tutti_gateway.node.clients.port import ClientPort, Message, SendResult
from tutti_gateway.node.common import process_memory
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.disk.inline_sync import InlineSync
from tutti_gateway.node.driver import Driver, DriverInput
from tutti_gateway.node.loop import Loop


class Disk(DiskQueue):
    """A disk thread that takes the loop over when the test says: by default, at the second sync in the socket thread."""

    def __init__(self) -> None:
        super().__init__()
        self.inline = InlineSync()
        self.asked: list[bool] = []  # whether each sync was alone
        self.reported: Callable[[], None] = lambda: None
        self.kept = iter([True, False])  # whether the socket thread still has the loop after each sync

    def sync_inline(self, alone: bool) -> bool:
        self.inline.due = False
        self.asked.append(alone)
        self.reported()
        return next(self.kept)


class Bench:
    """A loop in a thread, over a port that a client can reach."""

    def __init__(self) -> None:
        self.stack = Script(lambda _: ())
        self.lookups = Lookups()
        number = free_port()
        self.endpoint = f"tcp://127.0.0.1:{number}"
        self.port = ClientPort("127.0.0.1", number)
        self.inbox: Mailbox[DriverInput] = Mailbox()
        self.wire = Wire()
        self.beats: list[int] = []
        self.look: list[Callable[[], None]] = []  # what the loop calls next, each once
        self.turns = 0
        driver = Driver(
            self.stack,
            clock=HandClock(),
            disk=DiskQueue(),
            lanes=LaneQueue(),
            clients=self.port,
            lookups=self.lookups,
            lane_lookups=Lookups(),
            network=network(self.wire),
            frontier=lambda _position, _offset: None,
            documents=lambda _state: Documents(),
            counters=GatewayCounters(),
            log=LOG,
            entropy=bytes(16),
        )
        self.disk = Disk()
        self.loop = Loop(driver, self.port, self.wire, self.inbox, self.beats.append, LOG, self._look, self.disk)
        self.ends: list[bool] = []  # what each run of the loop returned
        self._done = False
        self.start()

    def start(self) -> None:
        """Run the loop in another thread."""
        self._thread = threading.Thread(target=lambda: self.ends.append(self.loop.run(self._asked)))
        self._thread.start()

    def _look(self) -> None:
        while self.look:
            self.look.pop()()

    def _asked(self) -> bool:
        self.turns += 1
        return self._done

    def close(self) -> None:
        self._done = True
        self.inbox.wake()
        self._thread.join(10)
        self.port.close()
        self.inbox.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def client(bench: Bench) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(bench.endpoint)
    yield socket
    socket.close()
    context.term()


def hello(client: zmq.Socket[bytes], patience_ms: int = 5000) -> bool:
    client.send(encode_control(Hello(PROTOCOL, "test", token())))
    return bool(client.poll(patience_ms)) and b"Welcome" in client.recv()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clients_are_served_and_readers_see_it_beat(bench: Bench, client: zmq.Socket[bytes]) -> None:
    assert hello(client)
    assert hello(client)
    assert bench.beats


def test_memory_above_its_bound_closes_every_connection_and_the_loop_continues(
    bench: Bench, client: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hello(client)
    sizes = iter([limits.NODE_MEMORY_BYTES_MAX + 1])
    monkeypatch.setattr(process_memory, "resident_bytes", lambda: next(sizes, 0))
    wait_for(lambda: SessionClosed(1) in bench.stack.events)
    wait_for(lambda: hello(client, 500))  # what ZeroMQ writes before it hears that the connection is closed is lost


def test_memory_is_released_once_when_it_is_quiet(bench: Bench, client: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(limits, "TRIM_IDLE_US", 200_000)
    monkeypatch.setattr(malloc, "release_free_memory", lambda: trims.append(1))
    assert hello(client)
    wait_for(lambda: bool(trims))
    beats = len(bench.beats)
    wait_for(lambda: len(bench.beats) > beats + 1)
    assert len(trims) == 1


def test_a_closed_intake_does_not_spin_and_opens_again(bench: Bench, client: zmq.Socket[bytes]) -> None:
    assert hello(client)
    bench.lookups.queued = [(1, [Duplicate(1, 1, 1, 1)] * limits.LOOKUPS_MAX)]
    turns = bench.turns
    bench.inbox.wake()
    wait_for(lambda: bench.turns > turns)  # that turn, and each after it, finds the intake closed
    client.send(encode_control(Hello(PROTOCOL, "test", token())))
    before = bench.turns
    assert not client.poll(700)
    assert bench.turns - before < 10
    bench.lookups.queued = []
    assert client.poll(5000)


def test_answers_that_wait_leave_while_the_intake_is_closed(bench: Bench) -> None:
    answers, answer = 30, bytes(1 << 20)

    def say() -> None:
        """In the loop's thread."""
        bench.lookups.queued = [(1, [Duplicate(1, 1, 1, 1)] * limits.LOOKUPS_MAX)]
        for _ in range(answers):
            bench.port.send(next(iter(routed)), answer)

    with socket.create_connection(("127.0.0.1", bench.port.number), 60) as reader:
        reader.sendall(GREETING + ready(b"DEALER", b"reader"))
        left = len(GREETING) + len(ready(b"ROUTER", b""))
        while left:
            left -= len(reader.recv(left))
        routed = bench.port._server._by_routing
        wait_for(lambda: bool(routed))
        bench.look.append(say)
        left = answers * (9 + len(answer))
        while left:
            left -= len(reader.recv(min(left, 1 << 20)))
        assert bench.lookups.queued


def test_a_due_sync_ends_the_iteration_and_its_report_is_handled_without_a_sleep(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = SpaceChanged(True, "reported")
    order: list[str] = []
    sleep = bench.loop._wait

    def sleeping(with_clients: bool, wait_us: int) -> Collection[int]:
        order.append("sleep")
        return sleep(with_clients, wait_us)

    def sync() -> None:
        """In the loop's thread."""
        order.append("sync")
        bench.inbox.put(reported)

    def handled(event: Event) -> tuple[()]:
        if event == reported:
            order.append("report")
        return ()

    monkeypatch.setattr(bench.loop, "_wait", sleeping)
    bench.stack.answer, bench.disk.reported = handled, sync
    bench.look.append(lambda: setattr(bench.disk.inline, "due", True))
    wait_for(lambda: "report" in order)
    assert order[order.index("sync") + 1] == "report"
    assert bench.disk.asked == [True]
    assert bench.ends == []


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_client_that_has_waited_for_a_sync_leaves_the_next_syncs_to_the_disk_thread(
    bench: Bench, client: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch, waits: bool, held: bool
) -> None:
    """Even if the sync follows a hold: the loop polls after the sync, before it reads clients again."""
    assert hello(client)
    hold_us = [0]
    monkeypatch.setattr(bench.loop._driver, "hold_us", lambda: hold_us[0])
    paused: list[int] = []
    bench.disk.inline.pause = lambda: paused.append(bench.turns)  # type: ignore[method-assign]  # notes the iteration
    reported: list[int] = []

    def sync() -> None:
        """In the loop's thread, during the sync."""
        if waits:
            client.send(encode_control(Hello(PROTOCOL, "test", token())))
            wait_for(lambda: bool(select.select([bench.port.fd], [], [], 0)[0]))
        reported.append(bench.turns)

    def due(event: Event) -> tuple[()]:
        if event == SpaceChanged(True, "a write"):
            bench.disk.inline.due, hold_us[0] = True, 0
        return ()

    bench.disk.reported = sync
    # The write does not follow from housekeeping, which makes clients answer a keepalive.
    beats = len(bench.beats)
    wait_for(lambda: len(bench.beats) > beats)
    time.sleep(0.2)
    bench.stack.answer = due
    if held:
        hold_us[0] = 400_000
        bench.inbox.wake()
        turns = bench.turns
        wait_for(lambda: bench.turns > turns + 1)  # from now on, the loop sees the hold
    bench.inbox.put(SpaceChanged(True, "a write"))
    wait_for(lambda: bool(reported))
    wait_for(lambda: bench.turns > reported[0] + 2)
    assert bool(paused) == waits
    assert hello(client)
    assert len(paused) == waits, "a later message has waited for no sync"


def test_the_loop_ends_if_another_thread_has_taken_it_over_and_that_thread_continues(
    bench: Bench, client: zmq.Socket[bytes]
) -> None:
    bench.disk.kept = iter([False])
    bench.look.append(lambda: setattr(bench.disk.inline, "due", True))
    wait_for(lambda: bool(bench.ends))
    assert bench.ends == [False]
    bench.start()
    assert hello(client)


def test_work_that_waits_leaves_a_due_sync_to_the_disk_thread(bench: Bench) -> None:
    def put_and_sync() -> None:
        """In the loop's thread."""
        bench.inbox.put(SpaceChanged(True, "waits"))
        bench.disk.inline.due = True

    bench.look.append(put_and_sync)
    wait_for(lambda: bool(bench.disk.asked))
    assert bench.disk.asked == [False]


def test_a_hold_leaves_client_messages_in_the_sockets_and_ends_without_further_input(
    bench: Bench, client: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hello(client)
    left_us = [1000]
    monkeypatch.setattr(bench.loop._driver, "hold_us", lambda: left_us[0])
    bench.inbox.wake()
    turns = bench.turns
    wait_for(lambda: bench.turns > turns + 1)  # from now on, the loop sees the hold
    client.send(encode_control(Hello(PROTOCOL, "test", token())))
    assert not client.poll(200)
    left_us[0] = 0
    assert client.poll(5000)


def test_the_last_answer_reaches_a_client_whose_messages_are_unread_when_the_port_closes() -> None:
    port = ClientPort("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port.number)) as peer:
        peer.sendall(GREETING + ready(b"DEALER", b""))
        message = encode_control(Hello(PROTOCOL, "test", token()))
        peer.sendall(bytes((0, len(message))) + message)
        received: list[Message] = []

        def hello_arrives() -> bool:
            received.extend(port.drain(10, 1000))
            return bool(received)

        wait_for(hello_arrives)
        peer.sendall((bytes((0, len(message))) + message) * 100)
        time.sleep(0.05)  # so that these messages arrive, which nobody reads
        assert port.send(received[0].routing, b"last") is SendResult.SENT
        port.close()
        peer.settimeout(5)
        answers = b""
        while data := peer.recv(4096):
            answers += data
        assert answers.endswith(b"last")
