"""Random test of the runs of a producer's I/O: keeping the time of the next run after an ordinary run changes nothing.

Two producers get the same events at the same times. One keeps the time, and the other computes the time after each run. Both must
send the same messages, give the same outcomes and report the same state. The kept time may be early, and must never be late.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.fake_gateway import Rules
from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.encoder import check_record
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Receipt, outcome_thread
from tutti.common.connection_log import Condition
from tutti.common.gateway_url import Address
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer, Frame
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import Identity, State
from tutti.delivery.unordered import UnorderedDelivery
from tutti.errors import BufferFull, TuttiError
from tutti.io import producer_io, session_connection
from tutti.io.endpoints import Endpoints
from tutti.io.producer_io import ProducerIO
from tutti.io.zmtp_connection import ConnectionEvent

_KEEPALIVE_S = 0.5
_LANE = "1-" + "ab" * 16


class Clock:
    """The time of both producers."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


class FakeConnection:
    """A connection to the rules of a gateway, with the interface of `ZmtpConnection`."""

    world: World  # of the producer that connects

    def __init__(self, address: Address, credentials: object = None) -> None:
        self.world, self.address = FakeConnection.world, address
        self.up = self.was_up = False
        self.readable = self.has_events = True
        self.is_ready = True
        self.trouble = "connection refused" if self.world.away else ""
        self.loss = "the connection was closed"
        self.events = deque([ConnectionEvent.REFUSED if self.world.away else ConnectionEvent.UP])
        self.received: deque[bytes] = deque()
        self.sent: deque[list[bytes]] = deque()  # messages that have not arrived
        self.answers: deque[bytes] = deque()  # answers that have not arrived
        self.keepalive_at = CLOCK.now + _KEEPALIVE_S
        self.world.serial += 1
        self.routing = b"%d" % self.world.serial
        self.world.connections.append(self)

    def handle(self, now: float) -> None:
        self.is_ready = False
        if now >= self.keepalive_at:
            self.keepalive_at = now + _KEEPALIVE_S
        self.readable, self.has_events = bool(self.received), bool(self.events)

    def due(self) -> float:
        return 0.0 if self.received or self.events else self.keepalive_at

    def next_event(self) -> ConnectionEvent | None:
        if not self.events or (self.received and self.events[0] is ConnectionEvent.DOWN):
            return None
        event = self.events.popleft()
        self.up = event is ConnectionEvent.UP
        self.was_up = self.was_up or self.up
        return event

    def receive(self) -> bytes | None:
        message = self.received.popleft() if self.received else None
        self.readable = bool(self.received)
        return message

    def send(self, parts: list[Buffer]) -> bool:
        self.sent.append([bytes(part) for part in parts])
        self.world.said.append((CLOCK.now, _decoded([bytes(part) for part in parts])))
        return True

    def close(self) -> None:
        self.up = False
        self.world.connections.remove(self)

    def deliver(self, data: bytes) -> None:
        """A message of the gateway arrives."""
        self.received.append(data)
        self.is_ready = True
        self.world.io_ready = True


def _decoded(parts: list[bytes]) -> Any:
    if parts[0][:1] == client_protocol.CONTROL:
        request: Any = client_protocol.decode_request(parts[0])
        # The random order in which lanes get their session ids is the same in both worlds.
        return request
    # The times of records differ between the worlds.
    return parts[0][:1], [(f.topic, f.epoch, f.first_sequence, f.count) for f in client_protocol.decode_submit(parts)]


class World:
    """A producer's I/O without a thread and without a network, and its gateway."""

    def __init__(self, keeps: bool, linger: float, timeout: float, lanes: bool) -> None:
        self.connections: list[FakeConnection] = []
        self.said: list[Any] = []
        self.outcomes: list[Any] = []
        self.receipts: list[Receipt] = []
        self.fates: list[str] = []
        self.serial = 0
        self.away = False
        self.busy = False  # True if the gateway opens no epochs for the time being
        self.io_ready = True
        self.lanes = lanes
        self.gateway = Rules(rule=self.rule, gateways={"g": "tutti://g:1"}, name="g", lane=_LANE)
        # The I/O thread of this world is the test.
        self.options = BatchingOptions(linger=linger, delivery_timeout=timeout, batch_bytes=1024, block=False)
        accumulator = Accumulator(self.options, CLOCK)
        self.io = ProducerIO(OrderedDelivery(Identity("p", b"i" * 16, b"s" * 16), accumulator), [Address("g", 1)])
        self.io.io_thread = self  # type: ignore[assignment]  # the part of an I/O thread that a producer's I/O uses
        accumulator.wake = self.io.wake
        if lanes:
            tokens = iter(range(1 << 20))
            unordered = Accumulator(self.options, CLOCK)
            self.io.add_lanes(UnorderedDelivery(self.io.delivery, unordered, lambda: b"%016d" % next(tokens)))
        if not keeps:
            self.io._is_ordinary = lambda now: False  # type: ignore[method-assign]  # so that each run computes the time
        self.ended = False

    # -- the I/O thread

    def request_run(self, io: object) -> None:
        self.io_ready = True

    def watch(self, connection: object, io: object) -> None:
        pass

    def unwatch(self, connection: object) -> None:
        pass

    def settle(self) -> None:
        """Run until nothing is due now."""
        FakeConnection.world = self
        for _ in range(1000):
            if self.ended or not (self.io_ready or self.io.due <= CLOCK.now):
                return
            self.io_ready = False
            self.ended = self.io.run_once()
        raise AssertionError("the I/O never comes to rest")

    # -- events

    def rule(self, heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.OpenProducer) and self.busy:
            return [client_protocol.Denied(heard.request, "busy", "no", retry=True)]
        if not isinstance(heard, Frame) or not self.fates:
            return None
        fate = self.fates.pop()
        if fate == "lost":
            return []
        retry = fate != "malformed"
        return [client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, fate, "no", retry=retry)]

    def send(self, choice: int, again: int = 0) -> None:
        def told(error: TuttiError | None, receipt: Receipt) -> None:
            self.outcomes.append((CLOCK.now, str(error), receipt.offset))
            if again:
                self.send(choice, again - 1)

        record = check_record(b"x" * (choice % 3), None, None, ())
        unordered = self.lanes and choice % 2
        accumulator = self.io.accumulators[1 if unordered else 0]
        topic = "ttu"[choice % 3]
        try:
            self.receipts.append(accumulator.add(topic, record, b"", told))
        except (BufferFull, TuttiError) as error:
            self.outcomes.append((CLOCK.now, str(error)))

    def arrive(self) -> None:
        """Messages arrive at the gateway, and its answers at the producer."""
        for connection in list(self.connections):
            while connection.sent:
                connection.answers.extend(self.gateway.answers(connection.routing, connection.sent.popleft()))
            while connection.answers:
                connection.deliver(connection.answers.popleft())

    def answer(self) -> None:
        """Messages arrive at the gateway, whose answers arrive later."""
        for connection in self.connections:
            while connection.sent:
                connection.answers.extend(self.gateway.answers(connection.routing, connection.sent.popleft()))

    def welcome(self) -> None:
        for connection in self.connections:
            if connection.routing in self.gateway.known:
                connection.answers.append(client_protocol.encode_control(self.gateway.welcome()))

    def repeat(self) -> None:
        """More receipts than one run handles arrive again."""
        receipts = client_protocol.encode_receipts([client_protocol.Committed(1, 1, 1, 1, 0)])
        for connection in self.connections:
            for _ in range(2 * limits.ANSWERS_A_TURN_MAX + 1):
                connection.deliver(receipts)

    def break_connections(self) -> None:
        for connection in list(self.connections):
            if connection.up:
                connection.events.append(ConnectionEvent.DOWN)
                connection.has_events = connection.is_ready = self.io_ready = True
        self.gateway.known.clear()

    @property
    def state(self) -> Any:
        """What an application can see, apart from stalled and delayed records, which are looked for once a second only."""
        io = self.io
        condition = io._ordered_connection.log.condition
        stats = io.stats()
        return (
            Condition.CONNECTED if condition in (Condition.STALLED, Condition.THROTTLED) else condition,
            (stats.records_acknowledged, stats.records_failed, stats.records_in_flight, stats.records_resent, stats.last_error),
            stats.epoch,
            io.delivery.session.state,
            sum(len(connection.received) for connection in self.connections),
            [(receipt.done(), receipt.offset, str(receipt.error)) for receipt in self.receipts],
        )


@pytest.fixture(autouse=True)
def without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    times = SimpleNamespace(monotonic=CLOCK)
    monkeypatch.setattr(producer_io, "time", times)
    monkeypatch.setattr(session_connection, "time", times)
    monkeypatch.setattr(session_connection, "ZmtpConnection", FakeConnection)
    for module in (producer_io, session_connection):
        monkeypatch.setattr(module, "Endpoints", partial(Endpoints, chance=lambda: 0.0))


@pytest.fixture
def few_answers_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ANSWERS_A_TURN_MAX", 2)


_COMMON = ("send", "chain", "arrive", "arrive", "answer", "pass", "pass")
_RARE = ("lost", "refused", "malformed", "break", "away", "busy", "welcome", "repeat")
_EVENTS = (*_COMMON, *_COMMON, *_RARE)


def _apply(world: World, event: str, choice: int) -> None:
    match event:
        case "send":
            world.send(choice)
        case "chain":
            world.send(choice, 1 + choice % 5)
        case "arrive":
            world.arrive()
        case "answer":
            world.answer()
        case "welcome":
            world.welcome()
        case "repeat":
            world.repeat()
        case "lost" | "refused" | "malformed":
            world.fates.append({"lost": "lost", "refused": ("busy", "topic")[choice % 2], "malformed": "malformed"}[event])
        case "break":
            world.break_connections()
        case "away":
            world.away = bool(choice % 3)
        case "busy":
            world.busy = bool(choice % 3)


@pytest.mark.usefixtures("few_answers_a_turn")
@settings(deadline=None, max_examples=100)
@given(
    steps=st.lists(st.tuples(st.sampled_from(_EVENTS), st.integers(0, 11)), min_size=10, max_size=60),
    linger=st.sampled_from((0.0, 0.0, 0.03)),
    timeout=st.sampled_from((0.2, 60.0)),
    lanes=st.booleans(),
)
def test_a_kept_time_of_the_next_run_changes_nothing(
    steps: list[tuple[str, int]], linger: float, timeout: float, lanes: bool
) -> None:
    worlds = _opened(linger, timeout, lanes)
    for event, choice in steps:
        if event == "pass":
            _pass(worlds, (0.005, 0.05, 0.3, 1.5)[choice % 4])
        for world in worlds:
            _apply(world, event, choice)
            world.settle()
        _compare(*worlds)
    for world in worlds:
        world.fates.clear()
        world.away = world.busy = False
    for _ in range(40):
        _pass(worlds, 0.5)
        for world in worlds:
            world.arrive()
            world.settle()
        _compare(*worlds)
    assert all(receipt.done() for receipt in worlds[0].receipts)
    assert all(world.ended == (world.io.delivery.session.state is State.ENDED) for world in worlds)


#: What the conditions of an ordinary run are for: events after which the kept time would be too late, or a line would be missing.
_CASES: dict[str, list[tuple[str, int]]] = {
    "a time passes": [("send", 0), ("arrive", 0), ("pass", 3), ("pass", 3)],
    "the deadline of a new batch": [("pass", 2), ("pass", 2), ("send", 0)],
    "an epoch that is refused": [("busy", 1), ("send", 0), ("pass", 2), ("arrive", 0)],
    "a batch of an unknown topic": [("pass", 3), ("send", 2), ("pass", 0), ("pass", 3)],
    "a batch that is refused for now": [("refused", 0), ("send", 0), ("arrive", 0), ("pass", 1)],
    "a lost connection": [("send", 0), ("break", 0), ("away", 1), ("pass", 1)],
    "messages left": [("send", 0), ("arrive", 0), ("repeat", 0)],
    "an unordered record": [("send", 1), ("pass", 0), ("arrive", 0), ("pass", 2)],
}


@pytest.mark.usefixtures("few_answers_a_turn")
@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("linger", [0.0, 0.03])
def test_each_condition_of_an_ordinary_run_is_needed(case: str, lanes: bool, linger: float) -> None:
    worlds = _opened(linger, 0.2, lanes)
    for event, choice in [("send", 0), *[("arrive", 0)] * 3, *_CASES[case]]:
        if event == "pass":
            _pass(worlds, (0.005, 0.05, 0.3, 1.5)[choice % 4])
        for world in worlds:
            _apply(world, event, choice)
            world.settle()
        _compare(*worlds)


def test_a_record_that_is_the_only_one_in_flight_needs_no_look_at_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    (world, _) = _opened(0.0, 60.0, lanes=False)
    for _ in range(3):
        world.send(0)
        for _ in range(3):
            world.arrive()
            world.settle()
    looks: list[float] = []

    def look(now: float) -> float:
        looks.append(now)
        return now + 1

    monkeypatch.setattr(world.io, "_next_time", look)
    for _ in range(100):
        world.send(0)
        world.settle()
        world.arrive()
        world.settle()
    assert len(world.outcomes) == 103
    assert not looks


def test_a_stop_while_a_run_handles_a_receipt_ends_the_producer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (world, _) = _opened(0.0, 60.0, lanes=False)
    for _ in range(2):
        world.send(0)
        for _ in range(3):
            world.arrive()
            world.settle()
    monkeypatch.setattr(outcome_thread, "here", True, raising=False)  # so that `stop` does not wait for this thread
    record = check_record(b"x", None, None, ())
    world.io.accumulators[0].add("t", record, b"", lambda error, receipt: world.io.stop())
    world.settle()
    world.arrive()
    world.settle()
    assert world.ended


def test_a_welcome_that_reports_a_wait_for_a_quota_is_logged_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_POLL_US", 200_000)
    (world, _) = _opened(0.0, 60.0, lanes=False)
    for _ in range(3):
        world.send(0)
        world.arrive()
        world.settle()
    _pass([world], 0.3)
    (connection,) = world.connections
    welcome = msgspec.structs.replace(world.gateway.welcome(), held_from=1, records_per_s=5)
    connection.deliver(client_protocol.encode_control(welcome))
    world.settle()
    assert world.io._ordered_connection.log.condition is Condition.THROTTLED


def _opened(linger: float, timeout: float, lanes: bool) -> list[World]:
    """Two producers with an open epoch, of which only the first one keeps the time of its next run."""
    CLOCK.now = 1000.0
    worlds = [World(keeps, linger, timeout, lanes) for keeps in (True, False)]
    for world in worlds:
        for _ in range(4):
            world.settle()
            world.arrive()
        world.settle()
    return worlds


def _pass(worlds: list[World], seconds: float) -> None:
    until = CLOCK.now + seconds
    while (at := min((world.io.due for world in worlds if not world.ended), default=until)) < until:
        CLOCK.now = max(CLOCK.now, at)
        for world in worlds:
            world.settle()
    CLOCK.now = until
    for world in worlds:
        world.settle()


def _compare(keeping: World, computing: World) -> None:
    assert keeping.said == computing.said
    assert keeping.outcomes == computing.outcomes
    assert keeping.state == computing.state
    if not keeping.ended:
        assert keeping.io.due <= computing.io.due
