"""A driver with a scripted stack, and messages from clients to it."""

from collections.abc import Sequence

from tests.unit.node.fakes import LOG, Clients, DiskQueue, HandClock, LaneQueue, Lookups, Script, Wire, message, network, token
from tutti.data.client_protocol import PROTOCOL, Hello, Welcome, encode_control, encode_submit
from tutti.data.frames.frame import Frame
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.node.clients.port import Message
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.driver import Driver, DriverInput
from tutti_gateway.node.status.status import StatusDocuments

A, B = b"routing-a", b"routing-b"
WELCOME = Welcome(PROTOCOL, "g", "group", "", "primary", "1", "", "", {}, 1, 1, 1)


class Documents(StatusDocuments):
    """Answers questions with fixed words."""

    gateway = "jfk"
    waits = ""

    def __init__(self) -> None:
        self.epochs = {"old": 4}
        self.greeting = WELCOME

    def welcome(self) -> Welcome:
        return self.greeting

    def status(self) -> bytes:
        return b'{"state":"primary"}'

    def producers(self) -> bytes:
        return b"{}"

    def members(self) -> bytes:
        return b"[]"

    def epoch_of(self, name: str) -> int:
        return self.epochs.get(name, 0)


class Bench:
    """A driver with a scripted stack; `trail` is what left it, in order."""

    def __init__(self, sessions_max: int = 10, undecided_bytes_max: int = 1 << 20) -> None:
        self.answers: dict[type, Sequence[Action]] = {}
        self.stack = Script(lambda event: self.answers.get(type(event), ()))
        self.clock, self.clients, self.lookups, self.disk = HandClock(), Clients(), Lookups(), DiskQueue()
        self.lanes, self.lane_lookups = LaneQueue(), Lookups()
        self.wire = Wire()
        self.documents = Documents()
        self.frontiers: list[tuple[int, int, int]] = []  # position, offset, messages sent before
        self.driver = Driver(
            self.stack,
            clock=self.clock,
            disk=self.disk,
            lanes=self.lanes,
            clients=self.clients,
            lookups=self.lookups,
            lane_lookups=self.lane_lookups,
            network=network(self.wire),
            frontier=self.frontier,
            documents=lambda _state: self.documents,
            counters=GatewayCounters(),
            log=LOG,
            sessions_max=sessions_max,
            undecided_bytes_max=undecided_bytes_max,
            entropy=b"e" * 16,
        )

    def frontier(self, position: int, offset: int) -> None:
        self.frontiers.append((position, offset, len(self.clients.sent)))

    def say(self, *messages: Message) -> list[Event]:
        """One turn; returns the events that it led to."""
        before = len(self.stack.events)
        self.driver.run_once(messages, ())
        return self.stack.events[before:]

    def happen(self, *events: DriverInput) -> list[Event]:
        before = len(self.stack.events)
        self.driver.run_once((), events)
        return self.stack.events[before:]

    def hello(self, routing: bytes = A) -> None:
        self.say(control(routing, Hello(PROTOCOL, "test", token())))
        assert self.clients.told(routing) == [WELCOME]


def takes(bench: Bench) -> bool:
    return bench.driver.accepts_messages


def control(routing: bytes, asked: object) -> Message:
    return message(routing, [encode_control(asked)])  # type: ignore[arg-type]  # every request is a Struct


def submit(routing: bytes, *frames: Frame) -> Message:
    return message(routing, [bytes(part) for part in encode_submit(frames)])


def placed(frame: Frame, position: int) -> Frame:
    frame.stamp(1 << 16 | 1, position, 0)
    return frame
