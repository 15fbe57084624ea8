"""Scenes: runs that are led, step by step, to where one rule decides what happens. The real code comes through all of them."""

from __future__ import annotations

from typing import Any

from tests.sim.disk import Disk
from tests.sim.gateways import Gateway
from tests.sim.mixes import Mix
from tests.sim.run import Run
from tests.sim.schedule import MS, SECOND
from tests.sim.violation import Violation
from tutti.data.view_id import view_text
from tutti_gateway.core.protocol.messages import Echo, Heartbeat, Order

BEGUN_S = 8  # by then every group is at work
LONG_S = 40  # what a scene does lasts so long
VIEWS_MAX = 4  # that a group needs meanwhile when one member does not hear it
FIND_S = 15  # a group that can go on does within this
QUIET_S = 1  # after which nothing is under way
SLOW_MS = 60  # of a disk, for a sync


def _coordinator(run: Run) -> Gateway:
    """Who coordinates the highest view that decides."""
    world = run.world
    views = [gateway.process.view for gateway in world.running if gateway.process is not None and gateway.process.primary]
    best = max((view for view in views if view is not None), key=lambda view: view.view)
    return world.gateways[world.log.names[best.coordinator]]


def _apart(run: Run, names: set[str]) -> list[tuple[str, str]]:
    """Every direction between these gateways and the others; nothing passes there until `unblock`."""
    others = set(run.world.gateways) - names
    pairs = sorted((one, other) for left, right in ((names, others), (others, names)) for one in left for other in right)
    run.world.network.block(pairs)
    return pairs


def _must_go_on(run: Run, what: str) -> None:
    """Something is decided in the second half of the scene."""
    before: list[int] = []
    run.world.schedule.at(int((BEGUN_S + FIND_S) * SECOND), lambda: before.append(run.world.log.end))

    def look() -> None:
        if run.world.log.end <= before[0] + 2:
            raise Violation(f"nothing was decided behind {before[0]} for {LONG_S - FIND_S} s: {what}")

    run.world.schedule.at(int((BEGUN_S + LONG_S) * SECOND), look)


def deaf_coordinator(run: Run) -> None:
    """A coordinator is heard by all and hears nobody."""

    def begin() -> None:
        name = _coordinator(run).name
        pairs = [(other, name) for other in run.world.gateways if other != name]
        run.world.network.block(pairs)
        run.world.schedule.after(LONG_S * SECOND, run.world.network.unblock, pairs)

    run.world.schedule.at(BEGUN_S * SECOND, begin)
    _must_go_on(run, "a coordinator hears nobody")


def stalled_coordinator(run: Run) -> None:
    """A coordinator's disk does nothing, and its heartbeats go on."""

    def begin() -> None:
        _coordinator(run).disk.stalled_until = run.world.schedule.now + LONG_S * SECOND

    run.world.schedule.at(BEGUN_S * SECOND, begin)
    _must_go_on(run, "a coordinator's disk stands still")


def deaf_member(run: Run) -> None:
    """One member is heard by all and hears nobody: it alone misses its coordinator, and the group is not disturbed for it."""
    world = run.world

    def begin() -> None:
        coordinator = _coordinator(run).name
        name = next(other for other in world.gateways if other != coordinator)
        pairs = [(other, name) for other in world.gateways if other != name]
        world.network.block(pairs)
        world.schedule.after(LONG_S * SECOND, end, pairs, set(world.checks._views))

    def end(pairs: list[tuple[str, str]], before: set[int]) -> None:
        world.network.unblock(pairs)
        views = sorted(set(world.checks._views) - before)
        if len(views) > VIEWS_MAX:
            raise Violation(f"{len(views)} views in {LONG_S} s because one member hears nobody: {', '.join(map(view_text, views))}")

    world.schedule.at(BEGUN_S * SECOND, begin)


def lost_last(run: Run) -> None:
    """What the coordinator orders is lost on its way to one member, each time: heartbeats show it, and it costs no view."""
    world = run.world
    network = world.network
    send = network.send
    lost: list[str] = []

    def but(sender: str, to: str, message: Any, incarnation: bytes) -> None:
        if lost == [sender, to] and isinstance(message, Order | Echo):
            network.lost += 1
        else:
            send(sender, to, message, incarnation)

    def begin() -> None:
        name = _coordinator(run).name
        lost[:] = [name, next(other for other in world.gateways if other != name)]
        world.schedule.after(LONG_S * SECOND, end, set(world.checks._views))

    def end(before: set[int]) -> None:
        lost.clear()
        views = set(world.checks._views) - before
        if views:
            raise Violation(f"a message that was lost costs a view: {', '.join(map(view_text, sorted(views)))}")

    vars(network).update(send=but)  # a method of this one object
    world.schedule.at(BEGUN_S * SECOND, begin)


def genesis_twice(run: Run) -> None:
    """A third configured member is away; of the two others one loses its disk, and then meets the third."""
    world = run.world
    one, two, three = world.gateways.values()
    pairs = _apart(run, {three.name})

    def meet() -> None:
        one.power()
        two.wipe()
        world.network.unblock(pairs)
        world.schedule.after(SECOND // 5, two.start)
        world.schedule.after(2 * FIND_S * SECOND, one.start)

    world.schedule.at(BEGUN_S * SECOND, meet)


def roster_outgrown(run: Run) -> None:
    """The roster grows while one voter is away; then that one meets a member who is alone, and both were once a majority."""
    world, operator = run.world, run.operator
    away: list[tuple[str, str]] = []

    def grow() -> None:
        away[:] = _apart(run, {"g1"})
        for name in ("h3", "h4"):
            gateway = world.add(name, {**world.genesis, name: f"{name}:7400"})
            away.extend([("g1", name), (name, "g1")])
            world.network.block(away[-2:])
            gateway.start()
            operator.wishes.append(("add", name))

    def meet() -> None:
        voters = [voter.name for voter in world.log.state.roster.values() if voter.voting]
        if len(voters) != len(world.gateways):
            return  # the operator was not done: nothing is shown
        pairs = _apart(run, {"g2"})
        world.schedule.after(FIND_S / 3 * SECOND, between)
        world.schedule.after(2 * FIND_S * SECOND, world.network.unblock, pairs)
        world.schedule.after(2 * FIND_S * SECOND, world.network.unblock, away)

    def between() -> None:
        """The one who is alone misses its coordinator by now, so that the other one learns nothing of it."""
        pair = [("g1", "g2"), ("g2", "g1")]
        world.network.unblock(2 * pair)
        world.schedule.after(4 / 3 * FIND_S * SECOND, world.network.block, 2 * pair)

    world.schedule.at(BEGUN_S * SECOND, grow)
    world.schedule.at((BEGUN_S + LONG_S) * SECOND, meet)


class Damage:
    """One of two members that decided loses the end of its log, the other one its power; the third comes back from before.

    `stale`: the third one coordinated, and has frames of its own where the others decided something else. `rots`: without it the
    end of the log is not lost, and the two who meet only have to agree on one. `single`: one position is lost, the VIEW with
    which the two began: clients are silent before, and then reach the third one only.
    """

    def __init__(self, run: Run, stale: bool, rots: bool = True, single: bool = False) -> None:
        self._run, self._world, self._stale, self._rots, self._single = run, run.world, stale, rots, single
        self._pairs: list[tuple[str, str]] = []
        if single:
            self._world.schedule.at((BEGUN_S - QUIET_S) * SECOND, self._reach, list(self._world.gateways), 1)
        self._world.schedule.at(BEGUN_S * SECOND, self._begin)

    def _reach(self, names: list[str], by: int) -> None:
        """Clients do not reach these gateways (`by` 1), or do again (-1)."""
        for client in (*self._run.producers, *self._run.readers):
            for name in names:
                self._world.cut_client(client.name, name, by)

    def _begin(self) -> None:
        gateways = list(self._world.gateways.values())
        coordinator = _coordinator(self._run)
        self._third = coordinator if self._stale else next(one for one in gateways if one is not coordinator)
        self._pairs = _apart(self._run, {self._third.name})
        self._two = [one for one in gateways if one is not self._third]
        if self._single:
            self._reach([self._third.name], -1)
            self._two[0].disk.sync_us = SLOW_MS * MS  # long enough for the other one's mark to be brought up to date
        self._look()

    def _look(self) -> None:
        """Wait for the moment: something was decided by two, is under the mark of one, and that one has not written it down."""
        if self._world.schedule.now > (BEGUN_S + LONG_S) * SECOND:
            self._over()
            return
        for one in self._two:
            other = self._two[one is self._two[0]]
            if one.process is not None and other.process is not None and self._is_now(one):
                self._happen(one, other)
                return
        self._world.schedule.after(0.2 * MS, self._look)

    def _is_now(self, one: Gateway) -> bool:
        disk, log, held = one.disk, self._world.log, self._third.disk.frames
        view, first = one.process.view if one.process is not None else None, one.disk.watermark + 1
        if view is None or not view.primary or len(view.members) != len(self._two):
            return False
        if not first <= log.end <= disk.mark.position:
            return False
        if self._single and not first == disk.mark.position == len(disk.frames):
            return False
        differs = len(held) < first or held[first - 1].header != disk.frames[first - 1].header
        return differs and (not self._stale or len(held) >= disk.mark.position)

    def _happen(self, one: Gateway, other: Gateway) -> None:
        world, disk = self._world, one.disk
        other.power()
        if self._rots:
            disk.rotten.add(disk.watermark + 1)
            disk.weak = True
            world.weak[one.name] = max(world.log.end, disk.mark.position)
            world.note(one.name, f"position {disk.watermark + 1} rots")
        one.power()
        self._over()
        world.schedule.after(SECOND // 5, one.start)
        world.schedule.after(FIND_S * SECOND, other.start)

    def _over(self) -> None:
        self._world.network.unblock(self._pairs)
        if self._single:
            self._reach([one.name for one in self._two], -1)


def damage(run: Run) -> None:
    """The third was away."""
    Damage(run, stale=False)


def damage_stale(run: Run) -> None:
    """The third coordinated, until it was cut off."""
    Damage(run, stale=True, single=True)


def longer_tail(run: Run) -> None:
    """Nothing rots: the third one has the longer log, of the older view."""
    Damage(run, stale=True, rots=False)


def low_after_decision(run: Run) -> None:
    """A coordinator decides and loses its power before anybody hears of it; then the disk of a member runs low."""
    world = run.world

    def look() -> None:
        first = _coordinator(run)
        others = [gateway for gateway in world.gateways.values() if gateway is not first]
        if any(gateway.process is None for gateway in others) or max(gateway.frontier for gateway in others) + 2 > world.log.end:
            world.schedule.after(0.1 * MS, look)
            return
        pairs = _apart(run, {first.name})  # what it said is lost too
        first.power()
        others[-1].disk.space(True)
        world.schedule.after(FIND_S * SECOND, others[-1].disk.space, False)
        world.schedule.after(FIND_S * SECOND, world.network.unblock, pairs)
        world.schedule.after(FIND_S * SECOND, first.start)

    world.schedule.at(BEGUN_S * SECOND, look)


class LateComer:
    """A member that was away learns what is decided. Then the coordinator goes, with a decision of which only it knows, and who was
    away is the first to propose a view.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._world = run, run.world
        self._hidden: list[str] = []
        self._send = run.world.network.send
        vars(run.world.network).update(send=self._but)  # a method of this one object
        self._world.schedule.at(BEGUN_S * SECOND, self._begin)

    def _but(self, sender: str, to: str, message: Any, incarnation: bytes) -> None:
        if not (self._hidden == [sender] and isinstance(message, Heartbeat)):
            self._send(sender, to, message, incarnation)

    def _begin(self) -> None:
        coordinator = _coordinator(self._run)
        self._late = next(gateway for gateway in self._world.gateways.values() if gateway is not coordinator)
        pairs = _apart(self._run, {self._late.name})
        self._world.schedule.after(FIND_S * SECOND, self._come, pairs)

    def _come(self, pairs: list[tuple[str, str]]) -> None:
        self._world.network.unblock(pairs)
        self._look()

    def _look(self) -> None:
        world, late, first = self._world, self._late, _coordinator(self._run)
        third = next(gateway for gateway in world.gateways.values() if gateway not in (late, first))
        if late.process is None or late.process.primary:
            return  # it was taken in: nothing is shown
        if not third.frontier <= late.frontier < world.log.end <= len(third.disk.frames):
            world.schedule.after(MS, self._look)
            return
        pairs = _apart(self._run, {first.name})
        first.power()
        self._hidden.append(late.name)
        world.schedule.after(FIND_S * SECOND, self._hidden.clear)
        world.schedule.after(FIND_S * SECOND, world.network.unblock, pairs)
        world.schedule.after(FIND_S * SECOND, first.start)


def late_comer(run: Run) -> None:
    """As `LateComer` says."""
    LateComer(run)


def power_after_a_cut(run: Run) -> None:
    """A gateway that cuts its log may lose its power soon."""
    world = run.world
    chance, cut = world.chance("power after a cut"), world.checks.cut

    def also(disk: Disk, behind: int) -> None:
        cut(disk, behind)
        if chance.random() < 0.7 and not world.healing:
            gateway = world.gateways[disk.name]
            world.schedule.after(2 * disk.sync_us * chance.random(), gateway.power)
            world.schedule.after(SECOND, gateway.start)

    vars(world.checks).update(cut=also)  # a method of this one object


QUIET = Mix(seconds=BEGUN_S + LONG_S + 2, rate=2.0, producers=6)
BUSY = Mix(seconds=BEGUN_S + 2 * FIND_S, rate=30.0, pipeline=16, sync_us=3000.0, producers=4)
STALE = BUSY.but(rate=60.0, pipeline=64, producers=3)  # who is cut off gathers much that nobody else has
