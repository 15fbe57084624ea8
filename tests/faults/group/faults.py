"""What goes wrong in a trial: each kind of fault as a context. When it ends, everything it did is undone and every gateway runs.

Each takes the trial and its chance, tells what it does to whom by `trial.note`, and lasts as long as it likes; the block within is
empty for those that do all of their work on entering.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.faults.lab.lab import CLIENTS, Member
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path, list_lanes, recorded_own_lane

if TYPE_CHECKING:
    from tests.faults.group.trial import Trial

Fault = Callable[["Trial", Random], contextlib.AbstractContextManager[None]]
OPERATOR_S = 60.0
_PAGE = 4096
_PIECE = 1 << 20


@contextlib.contextmanager
def kill(trial: Trial, chance: Random) -> Iterator[None]:
    """SIGKILL one of them; started again a moment later."""
    with trial.down(trial.any(chance), "killed"):
        trial.wait(chance.choice((0.0, 0.3, chance.uniform(0.5, 4))))
        yield


@contextlib.contextmanager
def kill_coordinator(trial: Trial, chance: Random) -> Iterator[None]:
    """SIGKILL the one that orders."""
    with trial.down(trial.coordinator(chance), "killed, coordinates"):
        trial.wait(chance.choice((0.0, chance.uniform(1, 4))))
        yield


@contextlib.contextmanager
def kill_all(trial: Trial, chance: Random) -> Iterator[None]:
    """All at once, as when the room loses power; each is started in its own time."""
    names = list(trial.lab.names)
    chance.shuffle(names)
    with contextlib.ExitStack() as opened:
        for name in names:
            opened.enter_context(trial.down(name, "killed with all"))
        trial.wait(chance.uniform(0, 1))
        while names:
            trial.wait(chance.choice((0.0, chance.uniform(0, 2))))
            trial.start(names.pop())
        yield


@contextlib.contextmanager
def kill_producer(trial: Trial, chance: Random) -> Iterator[None]:
    """SIGKILL a producer, which goes on under its name."""
    name = chance.choice([name for name in trial.load.processes if name != "readers"])
    trial.note(f"{name} killed")
    trial.load.kill(name)
    yield


@contextlib.contextmanager
def pause(trial: Trial, chance: Random, name: str = "") -> Iterator[None]:
    """SIGSTOP: a gateway that is there and does nothing, shorter or longer than it takes to be given up."""
    member = trial.lab.members[name or trial.any(chance)]
    trial.note(f"{member.name} stopped")
    member.pause()
    try:
        trial.wait(chance.choice((chance.uniform(0.1, 0.6), chance.uniform(0.5, 6))))
    finally:
        member.go_on()
    yield


def pause_coordinator(trial: Trial, chance: Random) -> contextlib.AbstractContextManager[None]:
    """SIGSTOP the one that orders."""
    return pause(trial, chance, trial.coordinator(chance))


@contextlib.contextmanager
def loss(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's wire loses 1 to 20 of 100, each way at its own rate."""
    name = trial.any(chance)
    came, went = chance.uniform(0.01, 0.2), chance.uniform(0.01, 0.2)
    trial.note(f"{name} loses {came:.0%} of what comes and {went:.0%} of what it sends")
    with trial.lab.network.ruled(trial.lab.network.lossy(name, came, went)):
        trial.wait(chance.uniform(2, 6))
    yield


@contextlib.contextmanager
def loss_everywhere(trial: Trial, chance: Random) -> Iterator[None]:
    """Every wire loses 1 to 10 of 100, the clients' too."""
    net, share = trial.lab.network, chance.uniform(0.01, 0.1)
    trial.note(f"everybody loses {share:.0%}")
    with net.ruled([rule for host in net.hosts for rule in net.lossy(host, share, 0.0)]):
        trial.wait(chance.uniform(2, 6))
    yield


@contextlib.contextmanager
def one_way(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway does not hear another one, or none of them, and is heard."""
    deaf = trial.any(chance)
    others = [name for name in trial.lab.names if name != deaf]
    to = others if chance.random() < 0.5 else [chance.choice(others)]
    trial.note(f"{deaf} does not hear {', '.join(to)}")
    with trial.lab.network.ruled([rule for name in to for rule in trial.lab.network.deaf(deaf, name)]):
        trial.wait(chance.uniform(1, 6))
    yield


@contextlib.contextmanager
def mute(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway hears all others and none hears it."""
    name = trial.any(chance)
    others = [other for other in trial.lab.names if other != name]
    trial.note(f"nobody hears {name}")
    with trial.lab.network.ruled([rule for other in others for rule in trial.lab.network.deaf(other, name)]):
        trial.wait(chance.uniform(1, 6))
    yield


@contextlib.contextmanager
def partial(trial: Trial, chance: Random) -> Iterator[None]:
    """Two gateways do not hear each other; everybody else hears both."""
    one, other = chance.sample(trial.lab.names, 2)
    trial.note(f"{one} and {other} are cut from each other")
    with trial.lab.network.ruled(trial.lab.network.cut(one, other)):
        trial.wait(chance.uniform(1, 6))
    yield


@contextlib.contextmanager
def isolate(trial: Trial, chance: Random, name: str = "") -> Iterator[None]:
    """One gateway is cut from all others; clients still reach it."""
    name = name or trial.any(chance)
    net = trial.lab.network
    trial.note(f"{name} is cut from all others")
    with net.ruled([rule for other in trial.lab.names if other != name for rule in net.cut(name, other)]):
        trial.wait(chance.uniform(1, 6))
    yield


def isolate_coordinator(trial: Trial, chance: Random) -> contextlib.AbstractContextManager[None]:
    """The one that orders is cut from all others; clients still reach it."""
    return isolate(trial, chance, trial.coordinator(chance))


@contextlib.contextmanager
def flap(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway is cut from all others again and again, for shorter and longer than it takes to be given up."""
    name, net = trial.any(chance), trial.lab.network
    trial.note(f"{name} flaps")
    for _ in range(chance.randrange(3, 9)):
        with net.ruled([rule for other in trial.lab.names if other != name for rule in net.cut(name, other)]):
            trial.wait(chance.uniform(0.05, 1.2))
        trial.wait(chance.uniform(0.05, 1.0))
    yield


@contextlib.contextmanager
def unplug(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's wire is out: nobody is told, and its clients do not reach it either."""
    name = trial.coordinator(chance) if chance.random() < 0.5 else trial.any(chance)
    trial.note(f"{name} is unplugged")
    with trial.lab.network.unplugged(name):
        trial.wait(chance.uniform(1, 6))
    yield


@contextlib.contextmanager
def narrow(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's wire carries less than it is given."""
    name, kbit_s = trial.any(chance), chance.choice((1000, 4000, 16_000))
    trial.note(f"{name}'s wire carries {kbit_s} kbit/s")
    with trial.lab.network.narrow(name, kbit_s):
        trial.wait(chance.uniform(2, 6))
    yield


@contextlib.contextmanager
def full_disk(trial: Trial, chance: Random) -> Iterator[None]:
    """There is no room on one gateway's disk, then there is."""
    member = chance.choice([member for member in trial.lab.members.values() if member.small_disk is not None])
    trial.note(f"{member.name}'s disk is full")
    member.fill_disk()
    try:
        trial.wait(chance.uniform(2, 6))
    finally:
        member.empty_disk()
    yield


def _failing(what: str, number: int) -> Fault:
    @contextlib.contextmanager
    def fail(trial: Trial, chance: Random) -> Iterator[None]:
        member = trial.lab.members[trial.any(chance)]
        trial.note(f"{member.name}: {what} {errno.errorcode[number]}")
        member.shim.set(what, number)
        trial.wait(chance.uniform(0.5, 4))
        member.shim.calm()
        with trial.down(member.name, "killed, to see its disk anew"):
            yield

    return fail


@contextlib.contextmanager
def slow_disk(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's syncs take their time."""
    member, ms = trial.lab.members[trial.any(chance)], chance.choice((20, 100, 400))
    trial.note(f"{member.name}'s syncs take {ms} ms more")
    member.shim.set("sync_delay_us", 1000 * ms)
    try:
        trial.wait(chance.uniform(1, 5))
    finally:
        member.shim.calm()
    yield


@contextlib.contextmanager
def clock(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's clock is set, forward or back, and stays so."""
    member, seconds = trial.lab.members[trial.any(chance)], chance.choice((-86_400, -600, -2, 0, 2, 600, 86_400))
    trial.note(f"{member.name}'s clock is {seconds} s off")
    member.shim.clock(seconds)
    yield


@contextlib.contextmanager
def rolling_restart(trial: Trial, chance: Random) -> Iterator[None]:
    """Each one is told to leave, ends in order and is started again, as for a new release."""
    names = list(trial.lab.names)
    chance.shuffle(names)
    for name in names:
        trial.note(f"{name} leaves in order")
        trial.leave(name)
        trial.wait(chance.uniform(0, 0.5))
        trial.start(name)
        trial.lab.members[name].wait_ready()
    yield


@contextlib.contextmanager
def rot_closed(trial: Trial, chance: Random) -> Iterator[None]:
    """Bits flip in a closed segment of a gateway that is down; without one, below the end of the only segment."""
    with trial.down(trial.any(chance), "killed, and bits flip in a closed segment") as member:
        segments = _segments(member)
        flip(trial, chance, segments[:-1] or segments, 0.0, 0.7)
        yield


@contextlib.contextmanager
def rot_tail(trial: Trial, chance: Random) -> Iterator[None]:
    """A bit flips in the last that a gateway wrote before it went down."""
    with trial.down(trial.any(chance), "killed, and a bit flips in its tail") as member:
        flip(trial, chance, _segments(member)[-1:], 0.98, 1.0)
        yield


@contextlib.contextmanager
def rot_lane(trial: Trial, chance: Random) -> Iterator[None]:
    """A bit flips in a lane of a gateway that is down: in its own or another's, or at the end of its own, which the others give."""
    name, at_end = trial.any(chance), chance.random() < 0.5
    if at_end:
        trial.expect_shared(f"before the end of the lane of {name} is spoiled")
    taken = not any(_takes_nothing(trial, other) for other in trial.lab.names if other != name)
    with trial.down(name, "killed, and a bit flips in a lane") as member:
        directory = str(member.data)
        own = recorded_own_lane(directory)
        lanes = [lane for lane in list_lanes(directory) if trial.spoiled.get(lane.text, name) == name]
        lanes = [lane for lane in lanes if taken or lane != own]  # else no gateway would take anything in the end
        if at_end and own in lanes:
            lanes = [own]
        if lanes:
            lane = chance.choice(lanes)
            segments = sorted(Path(lane_path(directory, lane), "log").glob("[0-9]*.seg"))
            end = at_end and lane == own
            if flip(trial, chance, segments[-1:] if end else segments, 0.98 if end else 0.0, 1.0):
                trial.note(f"it is {'at the end ' if end else ''}of {'its own ' if lane == own else ''}lane {lane.text}")
                trial.spoiled[lane.text] = name
        yield


def _takes_nothing(trial: Trial, name: str) -> bool:
    """Whether bits were flipped in the own lane of a gateway, and it does not take anything again yet."""
    own: LaneName | None = recorded_own_lane(str(trial.lab.members[name].data))
    if own is None or trial.spoiled.get(own.text) != name:
        return False
    status = trial.lab.status(name)
    return status is None or not status["lane"]


def _empty(directory: Path) -> None:
    """The directory itself stays: it may be where a small disk is."""
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _segments(member: Member) -> list[Path]:
    return sorted((member.data / "log").glob("[0-9]*.seg"))  # without those prepared ahead


def written(path: Path) -> int:
    """Where the zeros begin that a segment was prepared with, about."""
    with path.open("rb") as file:
        size = path.stat().st_size
        while size > 0:
            start = max(0, size - _PIECE)
            file.seek(start)
            piece = file.read(size - start).rstrip(b"\0")
            if piece:
                return start + len(piece)
            size = start
    return 0


def flip(trial: Trial, chance: Random, segments: list[Path], low: float, high: float) -> bool:
    """Flip a bit in one of the segments, between two shares of what was written to it; False if nothing was."""
    used = [(path, size) for path in segments if (size := written(path)) > 2 * _PAGE]
    if not used:
        trial.note("nothing is written there yet")
        return False
    path, size = chance.choice(used)
    at = chance.randrange(max(_PAGE, int(size * low)), max(_PAGE + 1, int(size * high)))
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    trial.note(f"flipped a bit of byte {at} of {path.name}, of {size}")
    return True


@contextlib.contextmanager
def wipe(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's disk is lost whole; an operator lets it vote with the new one."""
    with trial.down(trial.any(chance), "killed, and its disk is replaced") as member:
        _empty(member.data)
    trial.tell("members", "replace", member.name, "--timeout", str(OPERATOR_S))
    yield


@contextlib.contextmanager
def old_copy(trial: Trial, chance: Random) -> Iterator[None]:
    """One gateway's directory is replaced by a copy of some seconds ago; an operator lets it vote again once it has caught up."""
    name, copy = trial.any(chance), trial.room("copy")
    with trial.down(name, "killed, and its directory copied") as member:
        shutil.copytree(member.data, copy)
    member.wait_ready()
    trial.wait(chance.uniform(1, 3))
    trial.expect_shared(f"before the copy of {name} is put back")
    with trial.down(name, "killed, and the copy put back"):
        _empty(member.data)
        shutil.copytree(copy, member.data, dirs_exist_ok=True)
        shutil.rmtree(copy)
    trial.tell("members", "replace", name, "--timeout", str(OPERATOR_S))
    yield


@contextlib.contextmanager
def leave_and_come_back(trial: Trial, chance: Random) -> Iterator[None]:
    """An operator takes one gateway out of the roster under load, and adds it again with an empty disk."""
    name = trial.any(chance)
    trial.note(f"{name} is removed")
    trial.tell("members", "remove", name, "--timeout", str(OPERATOR_S))
    with trial.down(name, "killed, and its disk is replaced") as member:
        _empty(member.data)
    trial.tell("members", "add", name, f"{member.placement.host}:{member.port}", "--timeout", str(OPERATOR_S))
    yield


@contextlib.contextmanager
def clients_cut(trial: Trial, chance: Random) -> Iterator[None]:
    """Clients do not reach one gateway, which is well."""
    name = trial.any(chance)
    trial.note(f"clients do not reach {name}")
    with trial.lab.network.ruled(trial.lab.network.cut(CLIENTS, name)):
        trial.wait(chance.uniform(1, 5))
    yield


@contextlib.contextmanager
def unplug_coordinator(trial: Trial, chance: Random) -> Iterator[None]:
    """The wire of the one that orders is out, for so long that it is given up: nobody is told."""
    name = trial.coordinator(chance)
    trial.note(f"{name}, which coordinates, is unplugged")
    with trial.lab.network.unplugged(name):
        trial.wait(chance.uniform(4, 6))
    yield


@contextlib.contextmanager
def grow(trial: Trial, chance: Random) -> Iterator[None]:
    """One more gateway is started, with an empty disk, and added."""
    member = trial.lab.join()
    trial.note(f"{member.name} is started and added")
    member.start(wait=False)
    trial.tell("members", "add", member.name, f"{member.placement.host}:{member.port}", "--timeout", str(OPERATOR_S))
    yield


ROTS = {"rot-closed", "rot-tail", "rot-lane"}
#: Those that need the others whole: an operator waits for an answer, or a disk's content is gone, which the contract bears at one
#: gateway at a time.
ALONE = ROTS | {"wipe", "old-copy", "remove-and-add", "rolling-restart", "grow"}
#: kind -> how to do it. The order is that of the report.
FAULTS: dict[str, Fault] = {
    "kill": kill,
    "kill-coordinator": kill_coordinator,
    "kill-all": kill_all,
    "kill-producer": kill_producer,
    "pause": pause,
    "pause-coordinator": pause_coordinator,
    "loss": loss,
    "loss-everywhere": loss_everywhere,
    "one-way": one_way,
    "mute": mute,
    "partial": partial,
    "isolate": isolate,
    "isolate-coordinator": isolate_coordinator,
    "flap": flap,
    "unplug": unplug,
    "unplug-coordinator": unplug_coordinator,
    "narrow": narrow,
    "clients-cut": clients_cut,
    "full-disk": full_disk,
    "sync-error": _failing("sync_errno", errno.EIO),
    "write-error": _failing("write_errno", errno.EIO),
    "slow-disk": slow_disk,
    "clock": clock,
    "rolling-restart": rolling_restart,
    "rot-closed": rot_closed,
    "rot-tail": rot_tail,
    "rot-lane": rot_lane,
    "wipe": wipe,
    "old-copy": old_copy,
    "remove-and-add": leave_and_come_back,
}
#: Of a group that some gateways have not joined yet, once for each.
GROWTH: dict[str, Fault] = {"grow": grow}
