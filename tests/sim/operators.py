"""An operator: replaces wiped gateways in the roster, adds others and removes them again, in the middle of whatever goes on."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from tests.sim.schedule import MS, SECOND
from tests.sim.violation import Violation
from tutti.data.client_protocol import Answer, Denied, Done
from tutti_gateway.core.protocol.events import RosterAsked, SessionClosed

if TYPE_CHECKING:
    from tests.sim.gateways import Process
    from tests.sim.world import World

LOOK_US = SECOND
PATIENCE_US = 20 * SECOND  # before an answer is asked for again elsewhere
GATEWAYS_MAX = 9
WISHES_MAX = 2
SMALL = 3  # gateways, of which all but one may be removed
HURRY_US = 20 * MS


class Operator:
    """One person at a terminal: one thing at a time.

    Attributes:
        wishes: (change, name) of what is still to be done, the first one under way.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.wishes: list[tuple[str, str]] = []
        self.done = 0
        self._hasty = ""  # who is to be added again at once
        self._stops: dict[str, float] = {}  # seconds for which a gateway stands still, from its removal on, before it comes again
        self._adds_at = 0  # nobody is added before
        self._old: dict[str, bytes] = {}
        self._removal = ("", "")  # the last one that was asked for
        self._removals: Counter[str] = Counter()  # how often a gateway was to be removed
        self._process: Process | None = None
        self._session = 0
        self._request = 0
        self._asked = 0
        world.schedule.after(LOOK_US, self._look)

    def change(self, chance: Random) -> None:
        """Wish for another gateway, or for one less."""
        world = self._world
        if len(self.wishes) >= WISHES_MAX:
            return
        named = [name for name in world.log.numbers if name not in world.weak]
        if len(world.gateways) < GATEWAYS_MAX and chance.random() < 0.5:
            name = f"h{len(world.gateways)}"
            gateway = world.add(name, {**world.genesis, name: f"{name}:7400"})
            gateway.start()
            self.wishes.append(("add", name))
        elif len(named) > 2 and not world.weak:
            self.wishes.append(("remove", chance.choice(named)))

    def again(self, chance: Random) -> None:
        """Wish that a gateway is removed and the same one added again. It runs meanwhile, or stops when it is removed and starts
        later, and keeps its disk, and with it its incarnation; it gets another number.
        """
        named = self._able()
        if len(named) >= 3:
            self._come_again(chance, [chance.choice(named)])

    def shrink(self, chance: Random) -> None:
        """Wish that a small group becomes one of a single gateway, and is what it was again."""
        named = self._able()
        if 2 <= len(named) <= SMALL and len(named) == len(self._world.log.numbers):
            self._come_again(chance, chance.sample(named, len(named) - 1))

    def hasten(self, chance: Random) -> None:
        """Wish that a gateway is removed, and added again as soon as the log says that it is removed. The gateway itself is asked
        for that first, and may not know that it was removed.
        """
        named = self._able()
        if len(named) >= 2:
            self._hasty = chance.choice(named)
            self.wishes += [("remove", self._hasty), ("add", self._hasty)]
            self._adds_at = 0
            self._stops.pop(self._hasty, None)
            self._hurry()

    def _able(self) -> list[str]:
        """Members that may be removed and come again; none if something else is under way."""
        world = self._world
        return [] if self.wishes or world.weak else [name for name in world.log.numbers if world.gateways[name].wanted]

    def _come_again(self, chance: Random, names: list[str]) -> None:
        self.wishes += [*(("remove", name) for name in names), *(("add", name) for name in names)]
        self._adds_at = self._world.schedule.now + int(chance.choice((0, 5, 20)) * chance.random() * SECOND)
        for name in names:
            self._stops.pop(name, None)
            if chance.random() < 0.4:
                self._stops[name] = chance.uniform(0, 20)

    def _hurry(self) -> None:
        """Do not wait for the answer."""
        if self.wishes[:1] == [("remove", self._hasty)]:
            if self._made():
                self._leave()
                self._is_done()
                self._ask()
            else:
                self._world.schedule.after(HURRY_US, self._hurry)

    def removals(self) -> int:
        """By how many gateways the roster may become smaller soon."""
        return sum(change == "remove" for change, _ in self.wishes)

    def _look(self) -> None:
        self._world.schedule.after(LOOK_US, self._look)
        if more := self._world.log.removals - self._removals:
            raise Violation(f"{min(more)} was removed more often than the operator requested")
        wiped = self._world.wiped
        while wiped:
            wish = "replace", wiped.pop()
            if wish not in self.wishes:
                self.wishes.insert(0, wish)
                self._leave()
        if not self.wishes or (self.wishes[0][0] == "add" and self._world.schedule.now < self._adds_at):
            return
        if self._process is not None and (self._process.over or self._world.schedule.now - self._asked > PATIENCE_US):
            self._leave()
        if self._process is None:
            self._ask()

    def _ask(self) -> None:
        able = [gateway.process for gateway in self._world.running if gateway.process is not None and gateway.process.primary]
        wish = change, name = self.wishes[0]
        if change == "remove" and self._world.weak:
            self.wishes.pop(0)  # the group would not bear it
            return
        if change == "replace" and name not in self._world.log.numbers:
            self.wishes.pop(0)  # it was removed before
            return
        able = [process for process in able if process.gateway.name != name] or able
        hasty, self._hasty = self._hasty if change == "add" else "", "" if change == "add" else self._hasty
        if hasty and (itself := self._world.gateways[hasty].process) is not None:
            able = [itself]
        if not able:
            return
        process = self._process = able[self._request % len(able)]
        self._session = process.open(self._hear)
        self._request += 1
        self._asked = self._world.schedule.now
        self._world.note("operator", f"asks {process.gateway.name} to {change} {name}")
        if change == "remove" and wish is not self._removal:
            self._removal = wish
            self._removals[name] += 1
        process.step(RosterAsked(self._session, self._request, change, name, f"{name}:7400", self._replaces(change, name)))

    def _replaces(self, change: str, name: str) -> bytes:
        """The disk that is to be replaced, as the roster named it when it was wished first."""
        if change != "replace":
            return b""
        roster = {voter.name: voter.incarnation for voter in self._world.log.state.roster.values()}
        return self._old.setdefault(name, roster.get(name, b""))

    def _leave(self) -> None:
        process, self._process = self._process, None
        if process is not None and not process.over:
            process.step(SessionClosed(self._session))

    def _hear(self, answers: tuple[Answer, ...] | None) -> None:
        self._world.schedule.after(200, self._answers, answers)

    def _answers(self, answers: tuple[Answer, ...] | None) -> None:
        if self._process is None:
            return
        mine = [answer for answer in answers or () if isinstance(answer, Done | Denied) and answer.request == self._request]
        if answers is not None and not mine:
            return  # to what was asked elsewhere before
        for answer in mine:
            self._world.note("operator", f"hears {answer}")
            if not self.wishes:
                break
            if self._made():
                self._is_done()
            elif isinstance(answer, Done) and self.wishes[0][0] == "replace":
                self._old.pop(self.wishes[0][1], None)  # it has lost its next disk too: that one is to be replaced now
            elif isinstance(answer, Done):
                raise Violation(
                    f"the answer to the operator is that {self.wishes[0]} is done, but the roster is {self._world.log.numbers}"
                )
            elif not answer.retry:
                self.wishes.pop(0)
        self._leave()

    def _made(self) -> bool:
        """Whether the roster says what is wished for."""
        change, name = self.wishes[0]
        voter = next((voter for voter in self._world.log.state.roster.values() if voter.name == name), None)
        if change == "replace":
            return voter is not None and voter.incarnation == self._world.gateways[name].incarnation
        return (voter is None) == (change == "remove")

    def _is_done(self) -> None:
        """It took effect: a gateway that was removed goes, unless the same one is to be added again."""
        self.done += 1
        change, name = self.wishes.pop(0)
        self._old.pop(name, None)
        gateway = self._world.gateways[name]
        if change == "remove" and ("add", name) in self.wishes:
            if name in self._stops:
                gateway.kill("was removed and stops")
                self._world.schedule.after(self._stops.pop(name) * SECOND, gateway.start)
        elif change == "remove":
            gateway.wanted = False
            gateway.kill("was removed and goes")
