"""A group without faults whose links all take the same time, and a producer that loads it as evenly as a figure wants."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.gateways import Gateway, Process
from tests.sim.options import Options
from tests.sim.schedule import MS, SECOND
from tests.sim.violation import Violation
from tests.sim.world import World
from tutti.data.client_protocol import Answer, Committed, Denied, Duplicate, EpochOpened, Expected, RefusedAnswer, TopicOpened
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.events import EpochAsked, Event, RosterAsked, TopicAsked, submitted

LAN_US, WAN_US = 200, 40_000  # one way
CLIENT_US = 100  # between a producer and its gateway
US_A_BYTE = 0.008  # 1 Gbit/s
SYNC_US = 500.0
RETRY_US = 20 * MS  # before a producer tries again what was refused
WAIT_US = 120 * SECOND  # for anything that a figure waits for


class Group:
    """A world of `members` gateways, `latency_us` apart."""

    def __init__(self, members: int, latency_us: float, seed: int) -> None:
        self.world = World(Options(seed, members, producers=0, readers=0, sync_us=SYNC_US))
        self.world.network.us_a_byte = US_A_BYTE
        self.apart(latency_us)
        self.world.start()
        self.until(lambda: self.whole(*self.world.gateways), "the group begins")

    def apart(self, latency_us: float) -> None:
        """Every message takes so long from now on."""
        names = list(self.world.gateways)
        for one in names:
            for other in names:
                self.world.network.path(one, other).latency = latency_us

    @property
    def now(self) -> int:
        """Virtual time, microseconds."""
        return self.world.schedule.now

    def run(self, for_us: float) -> None:
        """Let time go on."""
        self.world.schedule.run(self.now + int(for_us))

    def until(self, reached: Callable[[], bool], what: str, step_us: int = 5 * MS) -> None:
        """Let time go on until something is so.

        Raises:
            Violation: it takes too long.
        """
        limit = self.now + WAIT_US
        while not reached():
            if self.now >= limit:
                raise Violation(f"waited {WAIT_US / SECOND:.0f} s for {what}")
            self.run(step_us)

    def whole(self, *names: str) -> bool:
        """Whether exactly these gateways are in one view that decides, and all of them know it."""
        views = set()
        for name in names:
            process = self.world.gateways[name].process
            if process is None or process.view is None or not process.primary:
                return False
            views.add((process.view.view, len(process.view.members)))
        return len(views) == 1 and views.pop()[1] == len(names)

    @property
    def coordinator(self) -> Gateway:
        """Who coordinates the latest view that decides."""
        processes = [gateway.process for gateway in self.world.running if gateway.process is not None]
        views = [process.view for process in processes if process.view is not None and process.primary]
        number = max(views, key=lambda view: view.view).coordinator
        return next(process.gateway for process in processes if process.me == number)

    def others(self, *but: Gateway) -> list[Gateway]:
        """All gateways but these."""
        return [gateway for gateway in self.world.gateways.values() if gateway not in but]

    def process(self, gateway: Gateway) -> Process:
        """The gateway's process, which runs."""
        if gateway.process is None:
            raise Violation(f"{gateway.name} is not running")
        return gateway.process

    def kill(self, gateway: Gateway, *, told: bool) -> None:
        """The process ends; the others are `told` by their broken connections, behind what it sent last, or have to find out."""
        gateway.wanted = False
        gateway.kill()
        if told:
            for other in self.others(gateway):
                path = self.world.network.path(gateway.name, other.name)
                last_us = max(path.last_at, self.now + path.latency)
                self.world.schedule.at(int(last_us) + 1, self._broken, other.name, gateway.name)

    def _broken(self, one: str, other: str) -> None:
        self.world.link(one, other, up=False)

    def start(self, gateway: Gateway) -> None:
        """The process is started again."""
        gateway.wanted = True
        gateway.start()

    def replace(self, gateway: Gateway, through: Gateway) -> None:
        """The operator tells the group of the gateway's new disk, as often as it takes."""
        roster = {voter.name: voter for voter in self.world.log.state.roster.values()}
        process, old = self.process(through), roster[gateway.name].incarnation

        def hear(answers: tuple[Answer, ...] | None) -> None:
            if any(isinstance(answer, Denied) for answer in answers or ()):
                self.world.schedule.after(RETRY_US, ask)

        def ask() -> None:
            process.step(RosterAsked(process.open(hear), 1, "replace", gateway.name, f"{gateway.name}:7400", old))

        ask()


class Producer:
    """A producer at one gateway, and at the next one when it gets nothing there. It sends when it is told to.

    Attributes:
        unanswered: sequences without an outcome, oldest first. committed: when each outcome came.
        refused: answers that were none: refusals, denials, requests to send again.
        answered: called after each outcome.
    """

    def __init__(self, group: Group, name: str, at: Gateway, body_bytes: int = 100) -> None:
        self._group = group
        self._world = group.world
        self._name = name
        self._instance = name.encode().ljust(16, b"-")
        self._digits = body_bytes - len(name) - 1
        self._process: Process | None = None
        self._session = self._link = self._producer = self._topic = self._sequence = 0
        self._asks_again = False
        self.open = False
        self.unanswered: dict[int, None] = {}
        self.committed: list[int] = []
        self.refused = 0
        self.answered: Callable[[], None] = lambda: None
        self._connect(at)
        group.until(lambda: self.open, f"{name} begins")

    def send(self, frames: int) -> None:
        """So many more frames, in one message."""
        first = self._sequence + 1
        self._sequence += frames
        for sequence in range(first, self._sequence + 1):
            self.unanswered[sequence] = None
            self._world.log.sent(self._token(sequence))
        if self.open:
            self._submit(list(range(first, self._sequence + 1)))

    def keep(self, flight: int, run: int) -> None:
        """Keep so many submits of `run` frames each in flight from now on."""

        def more() -> None:
            while len(self.unanswered) <= (flight - 1) * run:
                self.send(run)

        self.answered = more
        more()

    def rest(self) -> None:
        """Send no more, and wait for what is under way."""
        self.answered = lambda: None
        self._group.until(lambda: not self.unanswered, f"{self._name} gets its outcomes")

    def pace(self, interval_us: int) -> None:
        """Send one frame every so often from now on."""
        self.send(1)
        self._world.schedule.after(interval_us, self.pace, interval_us)

    def _token(self, sequence: int) -> str:
        return f"{self._name}-{sequence:0{self._digits}}"

    def _submit(self, sequences: list[int]) -> None:
        frames = tuple([self._frame(sequence) for sequence in sequences])
        self._say(submitted(self._session, frames))

    def _frame(self, sequence: int) -> Frame:
        body = self._token(sequence).encode()
        return Frame(Kind.BATCH, body, producer=self._producer, epoch=1, first_sequence=sequence, count=1, topic=self._topic)

    # The connection

    def _connect(self, gateway: Gateway | None = None) -> None:
        self.open = False
        self._link += 1
        running = self._world.running
        if gateway is None and running:
            gateway = running[self._link % len(running)]
        if gateway is None or gateway.process is None:
            self._world.schedule.after(RETRY_US, self._connect)
            return
        link = self._link
        self._process = gateway.process
        self._session = self._process.open(lambda answers: self._world.schedule.after(CLIENT_US, self._hear, link, answers))
        self._ask()

    def _ask(self) -> None:
        self._say(TopicAsked(self._session, 0, "topic"))
        self._say(EpochAsked(self._session, 1, self._name, self._instance, 1))

    def _say(self, event: Event) -> None:
        if self._process is not None:
            self._world.schedule.after(CLIENT_US, self._process.step, event)

    def _hear(self, link: int, answers: tuple[Answer, ...] | None) -> None:
        if link != self._link:
            return
        if answers is None:
            self._connect()
            return
        before = len(self.unanswered)
        for answer in answers:
            self._on(answer)
        if len(self.unanswered) < before:
            self.answered()

    def _on(self, answer: Answer) -> None:
        match answer:
            case Committed(_, _, first, count, offset):
                self._told(first, count, offset)
            case Duplicate(producer, _, first, count):
                found = self._world.log.find(producer, first)
                self._told(first, count, found[0] if found is not None else -1)
            case TopicOpened(_, topic):
                self._topic = topic
            case EpochOpened():
                self._producer, self.open = answer.producer, True
                self._submit(list(self.unanswered))
            case Denied(_, code, _, _) | RefusedAnswer(_, _, _, code):
                self._try_again(code)
            case Expected():
                self._try_again("gap")
            case _:
                raise Violation(f"{self._name} receives {answer}")

    def _told(self, first: int, count: int, offset: int) -> None:
        for place in range(count):
            if first + place in self.unanswered:
                del self.unanswered[first + place]
                self.committed.append(self._group.now)
                self._world.log.told_committed(self._token(first + place), offset + place)

    def _try_again(self, code: str) -> None:
        self.refused += 1
        if not self._asks_again:
            self._asks_again = True
            self._world.schedule.after(RETRY_US, self._again, code, self._link)

    def _again(self, code: str, link: int) -> None:
        self._asks_again = False
        if link != self._link:
            return
        if code == "not_primary":
            self._connect()
        elif self.open:
            self._submit(list(self.unanswered))
        else:
            self._ask()
