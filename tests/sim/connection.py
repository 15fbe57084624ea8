"""A client's connections: one at a time, to one gateway after another, as the real client minds them (tutti)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from tests.sim.schedule import MS, SECOND
from tutti import limits
from tutti.data.client_protocol import Answer
from tutti_gateway.core.protocol.events import Event, SessionClosed

if TYPE_CHECKING:
    from tests.sim.gateways import Process
    from tests.sim.world import World

LOOK_US = 500 * MS  # a client looks at the time so often


class State(enum.Enum):
    """Where a client stands."""

    OFFLINE = "offline"
    OPENING = "opening"
    OPEN = "open"
    ENDED = "ended"


class Connection:
    """One client's connections, one at a time, to one gateway after another."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(f"client {name}")
        self.state = State.OFFLINE
        self.process: Process | None = None
        self.session = 0
        self._link = 0
        self._delay = 0.0
        self._heard = 0
        self._silence = limits.SILENCE_US_MIN
        self._pinged = False
        world.schedule.after(self.chance.random() * SECOND, self._connect)
        world.schedule.after(self.chance.random() * LOOK_US, self._look)

    # What a client of each kind does

    def connected(self) -> None:
        """There is a connection, or the gateway answered that it is there."""

    def on(self, answer: Answer) -> None:
        """An answer came."""

    def waits(self) -> bool:
        """Whether the gateway owes an answer."""
        return False

    @property
    def settled(self) -> bool:
        """Whether it waits for nothing."""
        return not self.waits()

    def looked(self) -> None:
        """Time went on."""

    # Connections

    def _connect(self) -> None:
        if self.state is State.ENDED or self.process is not None:
            return
        world = self.world
        up = [gateway for gateway in world.running if world.reaches(self.name, gateway.name)]
        if not up:
            world.schedule.after(self.chance.uniform(50, 300) * MS, self._connect)
            return
        self.process = self.chance.choice(up).process
        assert self.process is not None
        self._link += 1
        link = self._link
        self._delay = self.chance.uniform(50, 500)
        self.session = self.process.open(lambda answers: self._come(link, answers))
        self._heard = world.schedule.now
        self._pinged = False
        self.state = State.OPENING
        self.connected()

    def leave(self) -> None:
        """Go to another gateway."""
        self.say(SessionClosed(self.session))
        self._drop()

    def _drop(self) -> None:
        self.process = None
        self._link += 1
        if self.state is not State.ENDED:
            self.state = State.OFFLINE
            self.world.schedule.after(self.chance.uniform(10, 300) * MS, self._connect)

    def end(self) -> None:
        """Nothing more is done."""
        if self.process is not None:
            self.leave()
        self.state = State.ENDED

    def say(self, event: Event) -> None:
        """Something for the gateway, if the connection holds so long."""
        self.world.schedule.after(self._delay, self._arrive, self.process, event)

    def _arrive(self, process: Process, event: Event) -> None:
        if self.world.reaches(self.name, process.gateway.name):
            process.step(event)

    def _come(self, link: int, answers: tuple[Answer, ...] | None) -> None:
        self.world.schedule.after(self._delay, self._hear, link, answers)

    def _hear(self, link: int, answers: tuple[Answer, ...] | None) -> None:
        if link != self._link or self.process is None:
            return
        if answers is None:
            self._drop()
            return
        if not self.world.reaches(self.name, self.process.gateway.name):
            return
        self._heard = self.world.schedule.now
        for answer in answers:
            if link == self._link:
                self.on(answer)

    def heard_well(self) -> None:
        """The gateway does its work."""
        self._silence = limits.SILENCE_US_MIN

    def _look(self) -> None:
        """Ask a silent gateway whether it is there, leave a dead one."""
        if self.state is State.ENDED:
            return
        self.world.schedule.after(LOOK_US, self._look)
        self.looked()
        process = self.process
        if process is None or not (self._pinged or self.waits()) or self.world.schedule.now < self._heard + self._silence:
            return
        if self._pinged:
            self.leave()
            return
        self._silence = min(2 * self._silence, limits.SILENCE_US_MAX)
        self._pinged = True
        self._heard = self.world.schedule.now
        self.world.schedule.after(self._delay, self._ping, process, self._link)

    def _ping(self, process: Process, link: int) -> None:
        if not process.over and self.world.reaches(self.name, process.gateway.name):
            process.when_running(self.world.schedule.after, self._delay, self._pong, link)

    def _pong(self, link: int) -> None:
        if link == self._link and self.process is not None:
            self._heard = self.world.schedule.now
            self._pinged = False
            self.connected()
