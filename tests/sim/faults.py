"""What goes wrong: each kind of fault comes at its own random times, lasts a while, and is undone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.sim.clients import Producer, Reader
from tests.sim.connection import State
from tests.sim.disk import LOOKED_AT, Disk
from tests.sim.exchange import MEMBERS_MIN, Exchange
from tests.sim.schedule import SECOND
from tutti_gateway.core.protocol.events import ForgetAsked, LeaveAsked

if TYPE_CHECKING:
    from tests.sim.gateways import Gateway, Process
    from tests.sim.operators import Operator
    from tests.sim.world import World

SLOWEST_US = 50_000.0  # of one sync, about, on a slow disk
STALL_S = 6  # at most
PACES = {  # times the mean
    "blackout": 5.0,
    "wipe": 4.0,
    "forget": 4.0,
    "churn": 3.0,
    "roster": 3.0,
    "again": 3.0,
    "exchange": 4.0,
    "two": 3.0,
    "hasty": 3.0,
    "clocks": 2.0,
    "error": 2.0,
    "leave": 2.0,
    "rot": 2.0,
    "trim": 0.5,
    "back": 0.3,
}


class Faults:
    """The faults of one run."""

    def __init__(self, world: World, producers: list[Producer], readers: list[Reader], operator: Operator) -> None:
        self._world = world
        self._readers = readers
        self._producers = producers
        self._operator = operator
        self._undo: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._chances: dict[str, Random] = {}
        self._kinds: dict[str, Callable[[Random], None]] = {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }

    def start(self, kinds: frozenset[str]) -> None:
        """Each kind has its own randomness and times, so that leaving one out changes nothing of the others."""
        for kind in sorted(kinds):
            if kind in self._kinds:
                self._chances[kind] = self._world.chance(f"fault {kind}")
                self._later(kind)

    def _later(self, kind: str) -> None:
        mean = self._world.options.pace * PACES.get(kind, 1.0)
        self._world.schedule.after(self._chances[kind].expovariate(1 / mean) * SECOND, self._happen, kind)

    def _happen(self, kind: str) -> None:
        if not self._world.healing:
            self._world.faults[kind] += 1
            self._kinds[kind](self._chances[kind])
            self._later(kind)

    def heal(self) -> None:
        """Everything is undone at once, and every gateway runs."""
        world = self._world
        world.healing = True
        for number in list(self._undo):
            self._end(number)
        world.network.calm()
        chance = world.chance("lanes that are over")
        over = [gateway for gateway in world.running if gateway.process is not None and gateway.process.stack.lane_halted]
        for gateway in over:
            if chance.random() < 0.5 or len(over) == len(world.running):
                gateway.kill("is started again: its lane is over")
        for gateway in world.gateways.values():
            gateway.snipe = 0.0
            gateway.disk.fails = False
            if gateway.halt:
                gateway.kill("is started again")
            self._restart(gateway, 0.2)

    def _lasts(self, seconds: float, undo: Callable[[], None]) -> None:
        """Undo it after the time, or when everything heals."""
        self._number += 1
        self._undo[self._number] = undo
        self._world.schedule.after(seconds * SECOND, self._end, self._number)

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    def _restart(self, gateway: Gateway, seconds: float) -> None:
        if gateway.wanted:
            self._world.schedule.after(seconds * SECOND, gateway.start)

    def _note(self, text: str) -> None:
        self._world.note("", text)

    def _any(self, chance: Random) -> Gateway:
        """Any gateway, more often the one that coordinates: there it matters most."""
        wanted = [gateway for gateway in self._world.gateways.values() if gateway.wanted]
        if chance.random() < 0.3:
            heads = [gateway for gateway in wanted if gateway.process is not None and gateway.process.coordinates]
            wanted = heads or wanted
        return chance.choice(wanted)

    def _pair(self, chance: Random) -> tuple[str, str]:
        names = list(self._world.gateways)
        one = chance.choice(names)
        return one, chance.choice([name for name in names if name != one] or names)

    # The network

    def _share(self, chance: Random, name: str, share: float) -> None:
        network = self._world.network
        setattr(network, name, share)
        self._note(f"the network: {name} {share:.2f}")
        self._lasts(chance.uniform(1, 20), lambda: setattr(network, name, 0.0))

    def _do_loss(self, chance: Random) -> None:
        self._share(chance, "loss", chance.choice((0.001, 0.01, 0.05, 0.3)))

    def _do_twice(self, chance: Random) -> None:
        self._share(chance, "twice", chance.choice((0.01, 0.1, 0.3)))

    def _do_disorder(self, chance: Random) -> None:
        self._share(chance, "disorder", chance.choice((0.01, 0.1, 0.5)))

    def _block(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        network = self._world.network
        self._note(f"nothing passes for {seconds:.1f} s: {', '.join(f'{one} to {other}' for one, other in pairs)}")
        network.block(pairs)
        self._lasts(seconds, lambda: network.unblock(pairs))

    def _do_cut(self, chance: Random) -> None:
        """One direction of a pair, or all that one gateway sends or gets."""
        one, other = self._pair(chance)
        pairs = [(one, other)]
        if chance.random() < 0.4:
            pairs = [(one, name) for name in self._world.gateways if name != one]
            if chance.random() < 0.5:
                pairs = [(name, one) for one, name in pairs]
        self._block(pairs, chance.uniform(0.5, 15))

    def _do_split(self, chance: Random) -> None:
        pairs = self._sides(chance)
        told = chance.random() < 0.3
        self._block(pairs + [(other, one) for one, other in pairs], chance.uniform(0.5, 20))
        if told:
            for one, other in pairs:
                self._world.link(one, other, up=False)
                self._lasts(5, partial(self._world.link, one, other, up=True))

    def _sides(self, chance: Random) -> list[tuple[str, str]]:
        """Pairs across a split: a few gateways, one that coordinates among them more often than not, and all others."""
        first = self._any(chance).name
        rest = [name for name in self._world.gateways if name != first]
        chance.shuffle(rest)
        at = chance.randint(0, max(0, len(rest) // 2 - 1))
        return [(one, other) for one in (first, *rest[:at]) for other in rest[at:]]

    def _do_churn(self, chance: Random) -> None:
        wait = 0.0
        for _ in range(chance.randint(3, 12)):
            seconds = chance.uniform(0.5, 4)
            self._world.schedule.after(wait * SECOND, self._churned, chance, seconds)
            wait += seconds * chance.uniform(0.8, 1.3)

    def _churned(self, chance: Random, seconds: float) -> None:
        if not self._world.healing:
            pairs = self._sides(chance)
            self._block(pairs + [(other, one) for one, other in pairs], seconds)

    def _do_triangle(self, chance: Random) -> None:
        one, other = self._pair(chance)
        self._block([(one, other), (other, one)], chance.uniform(2, 30))

    def _do_flap(self, chance: Random) -> None:
        one, other = self._pair(chance)
        for number in range(chance.randint(3, 10)):
            self._world.schedule.after(number * SECOND * 0.7, self._flap, one, other, chance.uniform(0.1, 1.2))

    def _flap(self, one: str, other: str, seconds: float) -> None:
        if not self._world.healing:
            self._block([(one, other), (other, one)], seconds)

    def _do_clog(self, chance: Random) -> None:
        one, other = self._pair(chance)
        network = self._world.network
        network.clog(one, other)
        self._note(f"clogged: {one} to {other}")
        self._lasts(chance.uniform(0.2, 8), lambda: network.unclog(one, other))

    def _do_narrow(self, chance: Random) -> None:
        network = self._world.network
        before, network.us_a_byte = network.us_a_byte, chance.choice((0.1, 1.0, 10.0))
        self._note(f"the network is narrow: {network.us_a_byte} us a byte")
        self._lasts(chance.uniform(1, 10), lambda: setattr(network, "us_a_byte", min(before, 0.001)))

    def _do_broken(self, chance: Random) -> None:
        one, other = self._pair(chance)
        self._world.link(one, other, up=False)
        self._lasts(chance.uniform(0.05, 3), lambda: self._world.link(one, other, up=True))

    # Processes

    def _do_kill(self, chance: Random) -> None:
        gateway = self._any(chance)
        gateway.kill()
        self._restart(gateway, chance.expovariate(0.4))

    def _do_snipe(self, chance: Random) -> None:
        gateway = self._any(chance)
        gateway.snipe = chance.choice((0.02, 0.2, 1.0))
        self._world.schedule.after(20 * SECOND, self._restart, gateway, chance.expovariate(1))

    def _do_power(self, chance: Random) -> None:
        gateway = self._any(chance)
        gateway.power()
        self._restart(gateway, chance.expovariate(0.4))

    def _do_blackout(self, chance: Random) -> None:
        for gateway in self._world.gateways.values():
            gateway.power()
            self._restart(gateway, chance.expovariate(0.7))

    def _do_pause(self, chance: Random) -> None:
        process = self._any(chance).process
        if process is not None and not process.frozen:
            process.frozen = True
            self._world.note(process.gateway.name, "is paused")
            self._lasts(chance.choice((0.3, 1.0, 3.0, 15.0)) * chance.random(), lambda: self._resume(process))

    def _resume(self, process: Process) -> None:
        if not process.over:
            self._world.note(process.gateway.name, "goes on")
            process.resume()

    def _do_leave(self, chance: Random) -> None:
        gateway = self._any(chance)
        process = gateway.process
        if process is not None and not gateway.halt:
            self._world.note(gateway.name, "is asked to leave")
            process.step(LeaveAsked())
            self._world.schedule.after(30 * SECOND, self._left, process, chance.expovariate(0.5))

    def _left(self, process: Process, seconds: float) -> None:
        if not process.over:
            process.gateway.kill("did not stop in time and is killed")
        self._restart(process.gateway, seconds)

    # Disks

    def _do_slow(self, chance: Random) -> None:
        disk = self._any(chance).disk
        before, disk.sync_us = disk.sync_us, min(disk.sync_us * chance.choice((10, 50)), SLOWEST_US)
        self._note(f"the disk of {disk.name} is slow")
        self._lasts(chance.uniform(1, 15), lambda: setattr(disk, "sync_us", min(before, disk.sync_us)))

    def _do_stall(self, chance: Random) -> None:
        disk = self._any(chance).disk
        seconds = chance.uniform(0.2, STALL_S)
        self._note(f"the disk of {disk.name} stalls for {seconds:.1f} s")
        disk.stalled_until = self._world.schedule.now + int(seconds * SECOND)

    def _do_error(self, chance: Random) -> None:
        gateway = self._any(chance)
        gateway.disk.fails = True
        self._world.schedule.after(chance.uniform(3, 20) * SECOND, self._repaired, gateway)

    def _repaired(self, gateway: Gateway) -> None:
        gateway.disk.fails = False
        if gateway.halt:
            gateway.kill("is started again")
            self._restart(gateway, 1)

    def _do_low(self, chance: Random) -> None:
        """For a while, or now and then for a moment, which is what makes a member say NO."""
        disk = self._any(chance).disk
        if chance.random() < 0.5:
            disk.space(True)
            self._lasts(chance.uniform(0.2, 10), lambda: disk.space(False))
        else:
            for _ in range(chance.randint(2, 20)):
                self._world.schedule.after(chance.uniform(0, 5) * SECOND, self._moment, disk, chance.uniform(0.001, 0.1))

    def _moment(self, disk: Disk, seconds: float) -> None:
        if not self._world.healing and not disk.low:
            disk.space(True)
            self._lasts(seconds, lambda: disk.space(False))

    def _do_full(self, chance: Random) -> None:
        disk = self._any(chance).disk
        disk.full = True
        self._note(f"the disk of {disk.name} is full")
        self._lasts(chance.uniform(0.2, 6), lambda: setattr(disk, "full", False))

    def _do_rot(self, chance: Random) -> None:
        """A frame cannot be read any more: of what is not decided, as a start finds, or of what is."""
        gateway = self._any(chance)
        disk = gateway.disk
        if found := disk.lanes.rot(self._world.chance(f"rot of lanes at {self._world.schedule.now}")):
            self._note(f"position {found[1]} of lane {found[0][0]} rots at {gateway.name}")
        if not self._world.may_weaken(gateway) or not disk.mark.position:
            return
        last = min(disk.mark.position, len(disk.frames))
        if not last:
            return
        lowest = chance.choice((disk.watermark + 1, disk.watermark + 1, disk.watermark - LOOKED_AT, 1))
        position = chance.randint(min(max(lowest, 1), last), last)
        if position <= disk.trims.start:
            return
        disk.rotten.add(position)
        disk.weak = True
        self._world.weak[gateway.name] = max(self._world.log.end, disk.mark.position)
        self._note(f"position {position} of {gateway.name} rots")
        if position > disk.watermark or chance.random() < 0.5:
            gateway.power()
            self._restart(gateway, chance.expovariate(0.7))

    def _do_ends(self, chance: Random) -> None:
        gateway = self._any(chance)
        if self._operator.wishes:
            return  # under another number it has another lane, and what it lost of this one is what the others know as decided
        if what := self._world.lanes.lose_end(gateway):
            self._note(what)
        self._restart(gateway, chance.expovariate(0.7))

    def _do_exchange(self, chance: Random) -> None:
        world, numbers = self._world, self._world.log.numbers
        able = [gateway for gateway in world.running if gateway.wanted and gateway.name in numbers]
        if len(able) >= MEMBERS_MIN and not (world.lanes.any_heals or self._operator.wishes or world.weak):
            case = Exchange(world, self._operator, chance.sample(able, 3), chance)
            self._lasts(60, case.end)
            case.begin()

    def _do_wipe(self, chance: Random) -> None:
        gateway = self._any(chance)
        if self._world.lanes.any_heals:
            return  # that disk may be the last that has what another one lost
        if self._world.may_weaken(gateway) and self._world.log.end > 2:
            gateway.wipe()
            self._restart(gateway, chance.expovariate(0.7))
            self._world.replaced(gateway.name)

    def _do_trim(self, chance: Random) -> None:
        """Every gateway that runs finds that its log is too large, some of them much too large."""
        for gateway in self._world.running:
            process = gateway.process
            event = gateway.disk.trims.proposes(self._world.log, process.frontier) if process is not None else None
            if process is not None and event is not None and chance.random() < 0.9:
                self._note(f"{gateway.name} wants its log to begin at {event.places[-1][0]}, at {event.forced} at least")
                self._world.checks.trims.proposed(event)
                process.step(event)

    def _do_roster(self, chance: Random) -> None:
        if not self._world.lanes.any_heals:
            self._operator.change(chance)

    def _do_again(self, chance: Random) -> None:
        if not self._world.lanes.any_heals:
            self._operator.again(chance)

    def _do_two(self, chance: Random) -> None:
        if not self._world.lanes.any_heals:
            self._operator.shrink(chance)

    def _do_hasty(self, chance: Random) -> None:
        if not self._world.lanes.any_heals:
            self._operator.hasten(chance)

    # Clocks, clients

    def _do_back(self, chance: Random) -> None:
        if self._readers:
            chance.choice(self._readers).go_back(chance)

    def _do_clocks(self, chance: Random) -> None:
        gateway = self._any(chance)
        gateway.clock.run_at(chance.choice((0.9, 0.999, 1.0, 1.001, 1.1)), self._world.schedule.now)
        gateway.clock.wall_offset += chance.choice((-3600, -2, 0, 2, 3600)) * SECOND

    def _do_rival(self, chance: Random) -> None:
        self._again(chance.choice(self._producers))

    def _do_restart(self, chance: Random) -> None:
        producer = chance.choice(self._producers)
        producer.end()
        self._again(producer)

    def _again(self, producer: Producer) -> None:
        alive = [one for one in self._producers if one.state is not State.ENDED]
        options = self._world.options
        if len(alive) <= 2 * (options.producers + options.stagers + options.committers):
            self._producers.append(type(producer)(self._world, producer.producer_name, len(self._producers)))

    def _do_forget(self, chance: Random) -> None:
        """Its number never comes back; whoever runs under the name is fenced."""
        producer, process = chance.choice(self._producers), self._any(chance).process
        if process is not None and not process.frozen:
            session = process.open(lambda answers: None)
            self._note(f"{producer.producer_name} is to be forgotten")
            process.step(ForgetAsked(session, 1, (producer.producer_name,)))
            self._again(producer)

    def _do_estranged(self, chance: Random) -> None:
        client, gateway = chance.choice(self._producers).name, self._any(chance).name
        world = self._world
        world.cut_client(client, gateway, 1)
        self._note(f"{client} does not reach {gateway}")
        self._lasts(chance.uniform(1, 20), lambda: world.cut_client(client, gateway, -1))
