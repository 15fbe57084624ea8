"""Readers that act on what a gateway says: they have it confirmed first, at any gateway and at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.schedule import SECOND
from tests.sim.violation import Violation
from tutti_gateway.core.protocol.actions import ReadIndex
from tutti_gateway.core.protocol.events import ReadIndexAsked

if TYPE_CHECKING:
    from tests.sim.gateways import Process
    from tests.sim.world import World

EVERY_S = 0.7  # mean seconds between two questions


class IndexChecks:
    """What was decided when a gateway took a question is shown there when it confirms its frontier."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[int, int] = {}  # number -> the last decided position when the question was taken
        self._number = 0

    def question(self) -> ReadIndexAsked:
        """The next question, with a number of its own."""
        self._number += 1
        return ReadIndexAsked(self._number)

    def asked(self, event: ReadIndexAsked) -> None:
        """A gateway takes a question."""
        self._asked[event.number] = self._world.log.end

    def answered(self, process: Process, answer: ReadIndex) -> None:
        """A gateway answers one."""
        end = self._asked.pop(answer.number, None)
        if end is None:
            raise Violation(f"{process.gateway.name} answers request {answer.number}, which was answered before or never sent")
        self._world.counts["indexes_confirmed" if answer.confirmed else "indexes_open"] += 1
        if answer.confirmed and process.frontier < end:
            raise Violation(
                f"{process.gateway.name} confirms frontier {process.frontier}, but {end} was decided when the request arrived"
            )


class IndexReaders:
    """Asks one gateway after another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance("read index")
        self._later()

    def _later(self) -> None:
        self._world.schedule.after(self._chance.expovariate(1 / EVERY_S) * SECOND, self._ask)

    def _ask(self) -> None:
        running = self._world.running
        if running:
            process = self._chance.choice(running).process
            if process is not None:
                process.step(self._world.indexes.question())
        self._later()
