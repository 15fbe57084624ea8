"""One trial: a group in the lab, clients, faults one after another, then every check from outside."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.faults.group import checker
from tests.faults.group.evidence import differing_digests, read_lanes, read_log
from tests.faults.group.faults import ALONE, FAULTS, GROWTH, ROTS
from tests.faults.group.journal import Story, View
from tests.faults.group.lane_checker import check_lanes
from tests.faults.group.load import Load
from tests.faults.lab.lab import CLIENTS, PORT, Lab, Member
from tutti.errors import TuttiError

RECOVER_S = 45.0  # after a fault is over, until every producer is told of a commit
TOGETHER_S = 90.0  # after the last fault, until all are in one primary view
MENDED_S = 120.0  # until every gateway has looked at all of its log
RATE = 150.0
RETENTION = '[retention]\nbytes = 67108864\ntime = "1m"\n'  # as little as may be: two segments, and a minute
NS = 1_000_000_000
_SPANS = (("begun", "ended"), ("ended", "recovered"))
_GAPS = ("gap_s", "worst_gap_s", "lane_gap_s")


@dataclass
class Done:
    """A completed fault. Times are monotonic, ns; `recovered` is when every producer had a receipt again."""

    kind: str
    begun: int
    ended: int = 0
    recovered: int = 0
    gap_s: float = 0.0
    worst_gap_s: float = 0.0
    lane_gap_s: float = 0.0


@dataclass
class Report:
    """What a trial did and found.

    `gap_s` of a fault is the longest time without any receipt while it lasted, `worst_gap_s` that of the producer it hit hardest,
    both of what was sent ordered; `lane_gap_s` is that of unordered records, of the producer it hit hardest. `beside` counts what
    was acknowledged of these, `lanes` the lanes that they stand in; `gone` counts the ordered records that retention let go
    somewhere. `calm_gap_s` is the longest time without a receipt between the faults.
    """

    seed: int
    done: list[Done] = field(default_factory=list)
    records: int = 0
    acknowledged: int = 0
    aborted: int = 0
    unknown: int = 0
    beside: int = 0
    lanes: int = 0
    gone: int = 0
    frontiers: int = 0
    calm_gap_s: float = 0.0
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line for people."""
        return (
            f"seed {self.seed}: {len(self.done)} faults, {self.records} records, {self.acknowledged} acknowledged, "
            f"{self.aborted} aborted, {self.unknown} unknown, {self.beside} unordered records acknowledged in {self.lanes} lanes, "
            f"{self.gone} removed by retention, "
            f"{self.frontiers} frontiers read, {len(self.findings)} findings"
        )


class Trial:
    """A group under test.

    Args:
        root: an empty directory, for everything.
        seed: of all chance.
        members: how many gateways.
        log: told what happens, a line each.
        rate: records a second of each producer.
        record: every gateway records its run, for whoever looks for a cause; it is run again at the end.
        transport: between the gateways, "mesh" or "multicast".
        keys: whether what they say to each other is encrypted.
        lanes: whether some producers send unordered.
        founders: so many of the first gateways found the group, each "grow" adds the next; all unless said otherwise.
        retention: the gateways keep little of the log and of lanes, so that both begin later and later.
        growing: the segments of the log start small and double in size.
    """

    def __init__(
        self,
        root: Path,
        seed: int,
        *,
        members: int = 3,
        log: Callable[[str], None] = lambda _: None,
        rate: float = RATE,
        record: bool = False,
        transport: str = "mesh",
        keys: bool = False,
        lanes: bool = True,
        founders: int | None = None,
        retention: bool = False,
        growing: bool = False,
    ) -> None:
        """Nothing runs yet."""
        self._root = root
        self._log = log
        self._chance = Random(seed)
        self._began = time.monotonic()
        self._down: dict[str, str] = {}
        self._record = record
        self._keys = keys
        self._twice = 0.0
        self._second = ""  # a fault that is to happen in the middle of the next one
        self.report = Report(seed)
        more = RETENTION if retention else ""
        self.lab = Lab(
            root,
            members,
            small_disks=1,
            record=record,
            transport=transport,
            keys=keys,
            more=more,
            founders=founders,
            growing=growing,
        )
        addresses = self.lab.network.addresses
        readers = [f"tutti://{addresses[name]}:{PORT}" for name in self.lab.names[-2:]]
        self.load = Load(root, self.lab.network.inside(CLIENTS), self.lab.url, readers, rate, lanes=lanes)
        self.spoiled: dict[
            str, str
        ] = {}  # lane -> gateway whose copy of it had bits flipped: one of each lane, as the others mend it

    # What faults use

    def note(self, text: str) -> None:
        """Tell what happens."""
        line = f"{time.monotonic() - self._began:8.3f} {text}"
        with (self._root / "trial.log").open("a") as file:
            file.write(line + "\n")
        self._log(line)

    def wait(self, seconds: float) -> None:
        """Let it last; now and then something else goes wrong meanwhile, once there is a gateway that it can go wrong with."""
        if self._second and len(self._down) < len(self.lab.names):
            kind, self._second = self._second, ""
            self.note(f"and {kind} meanwhile")
            with FAULTS[kind](self, Random(self._chance.random())):
                pass
        time.sleep(seconds)

    def room(self, name: str) -> Path:
        """A path for something that a fault keeps for a while."""
        return self._root / name

    def tell(self, *command: str) -> None:
        """Give a command to the group, as an operator does from the clients' host."""
        line = [*self.lab.network.inside(CLIENTS), sys.executable, "-m", "tutti_gateway", *command, "--url", self.lab.url]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        self.note(f"tutti {' '.join(command)}: {(done.stdout + done.stderr).strip()[-300:]}")
        if done.returncode:
            self.find(f"operator: tutti {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")

    def any(self, chance: Random) -> str:
        """A gateway that runs; every third time the one that coordinates."""
        if chance.random() < 0.3:
            return self.coordinator(chance)
        return chance.choice([name for name in self.lab.names if name not in self._down])

    def coordinator(self, chance: Random) -> str:
        """The gateway that orders; any when none does."""
        found = self.lab.coordinator()
        running = [name for name in self.lab.names if name not in self._down]
        return found if found in running else chance.choice(running)

    @contextlib.contextmanager
    def down(self, name: str, why: str) -> Iterator[Member]:
        """A gateway is killed, and started when the block ends unless it was before."""
        self.note(f"{name} {why}")
        member = self.lab.members[name]
        self._down[name] = why
        member.kill()
        try:
            yield member
        finally:
            if name in self._down:
                self.start(name)

    def start(self, name: str) -> None:
        """Start a gateway that is down; it joins in its own time."""
        self.note(f"{name} starts")
        self._down.pop(name, None)
        self.lab.members[name].start(wait=False)

    def leave(self, name: str) -> None:
        """Tell a gateway to end in order."""
        self._down[name] = "left"
        code = self.lab.members[name].stop()
        if code:
            self.find(f"leave: {name} ended with {code} after SIGTERM: {self.lab.members[name].log_tail(500)}")

    def find(self, finding: str) -> None:
        """Something is wrong."""
        self.note(f"FINDING {finding}")
        self.report.findings.append(finding)

    # The course

    def run(self, kinds: Iterable[str], *, together: float = 0.7, twice: float = 0.0) -> Report:
        """Do faults of these kinds, one after another, until there are no more or something is found; then check everything.

        Args:
            kinds: of the faults, as they come.
            together: how often the whole group is waited for before the next one.
            twice: how often a second fault happens in the middle of one.
        """
        self._twice = twice
        with self.lab, contextlib.closing(self.load):
            self.lab.start()
            self.note(f"the group is up: {self.lab.told()}")
            self.load.start()
            self._expect_receipts("start", 60.0)
            for kind in kinds:
                self._do(kind)
                if self.report.findings:
                    break
                if kind in ALONE or self._chance.random() < together:
                    self._expect_all(f"after {kind}")
                self.wait(self._chance.uniform(0, 1.5))
            self._expect_all("at the end")
            self._expect_receipts("the end", RECOVER_S)
            views = self._end()
            self._check(self.load.stories(), [*self.load.views(), *views])
            if self.report.findings:
                self._keep()
        return self.report

    def _keep(self) -> None:
        """What stands on the small disks goes with them."""
        for member in self.lab.members.values():
            if member.small_disk is not None:
                shutil.copytree(member.data, self._root / member.name, dirs_exist_ok=True)

    def _do(self, kind: str) -> None:
        if kind not in ALONE and self._chance.random() < self._twice:
            self._second = self._chance.choice([other for other in FAULTS if other != kind and other not in ALONE])
        if kind in ALONE:
            self._expect_all(f"before {kind}")
            self.expect_shared(f"before {kind}")
        done = Done(kind, time.monotonic_ns())
        chance = Random(self._chance.random())
        with (FAULTS | GROWTH)[kind](self, chance):
            pass
        done.ended = time.monotonic_ns()
        self._second = ""
        self._expect_receipts(kind, RECOVER_S)
        done.recovered = time.monotonic_ns()
        self.note(f"{kind} has ended, all producers had receipts again after {(done.recovered - done.ended) / NS:.2f} s")
        self.report.done.append(done)
        self._look_for_ended()

    def _look_for_ended(self) -> None:
        for name, member in self.lab.members.items():
            if name not in self._down and not member.runs:
                assert member.process is not None
                self.find(f"exit: {name} ended by itself with {member.process.returncode}: {member.log_tail(800)}")

    def _expect_receipts(self, what: str, seconds: float) -> None:
        silent = self.load.wait_for_receipts(seconds)
        if silent:
            self.find(f"liveness: {', '.join(silent)} got no receipt for {seconds:.0f} s after {what}: {self.lab.told()}")

    def _expect_all(self, when: str) -> None:
        self._expect(f"in one view, {when}", lambda: self.lab.wait_together(TOGETHER_S))

    def expect_shared(self, when: str) -> None:
        """Before a disk's content is lost: what only that disk has of its lane would be lost, too, as it is promised."""
        self._expect(f"sharing their lanes, {when}", lambda: self.lab.wait_shared(TOGETHER_S))

    def _expect(self, what: str, wait: Callable[[], float]) -> None:
        try:
            self.note(f"all are {what} after {wait():.2f} s")
        except TuttiError as error:
            self.find(f"liveness: {error}")

    def _expect_way(self) -> None:
        """What all gateways get came in the way that they are told to use."""
        told = [status["transport"] for name in self.lab.names if (status := self.lab.status(name))]
        by_multicast = sum(peer["received"] for facts in told for peer in facts.get("multicast", {"peers": {}})["peers"].values())
        if bool(by_multicast) != (self.lab.transport == "multicast") or any(facts["keys"] is not self._keys for facts in told):
            self.find(f"transport: {by_multicast} messages by multicast, keys {[facts['keys'] for facts in told]}")

    def _end(self) -> list[View]:
        self.report.findings += self.load.finish()
        self._expect("equally far in all lanes", lambda: self.lab.wait_alike(TOGETHER_S))
        self._expect_way()
        if any(one.kind in ROTS for one in self.report.done):  # a disk that rests looks faster
            self._expect("mended", lambda: self.lab.wait_mended(MENDED_S))
        views = []
        for name in self.lab.names:
            try:
                views.append(self.load.read_once(f"last-{name}", self.lab.members[name].url))
            except Exception as error:  # noqa: BLE001 - a finding, told at the end
                self.find(f"C8: {name} could not be read to its end: {error}")
        for name, member in self.lab.members.items():
            if member.runs:
                self.leave(name)
        if self._record:
            self._run_again()
        return views

    def _run_again(self) -> None:
        """What a gateway recorded is what its stack does again, to the letter."""
        for path in sorted(self._root.glob("*.runs/*.run")):
            command = [sys.executable, "-m", "tutti_gateway", "log", "rerun", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.find(f"record: {path.name}: {(done.stdout + done.stderr).strip()[-500:]}")

    def _check_lanes(self, beside: list[Story], views: list[View]) -> None:
        ends = {lane: [end for view in views for _, end, _ in view.lanes.get(lane, ())] for view in views for lane in view.lanes}
        try:
            copies = [copy for name, member in self.lab.members.items() for copy in read_lanes(name, member.data, ends)]
        except TuttiError as error:
            self.find(f"C5: lanes cannot be read: {error}")
            return
        spoiled = {(gateway, lane) for lane, gateway in self.spoiled.items()}
        self.report.findings += check_lanes(beside, views, copies, self.lab.names, spoiled)
        self.report.beside = sum(use.outcome == "c" for story in beside for use in story.uses.values())
        self.report.lanes = len({copy.lane for copy in copies})

    def _check(self, stories: list[Story], views: list[View]) -> None:
        beside = [story for story in stories if story.unordered]
        stories = [story for story in stories if not story.unordered]
        self._check_lanes(beside, views)
        ends = [end for view in views for _, end, _ in view.read]
        logs = []
        for name, member in self.lab.members.items():
            try:
                logs.append(read_log(name, member.data, ends))
            except TuttiError as error:
                self.find(f"C5: {name}'s files cannot be read: {error}")
        if logs:
            report = self.report
            report.findings += checker.check(stories, views, logs)
            report.findings += differing_digests({log.gateway: self.lab.members[log.gateway].data for log in logs}, logs)
            report.records = max(log.end for log in logs)
            report.gone = max(log.start for log in logs)
        outcomes = [use.outcome for story in stories for use in story.uses.values()]
        self.report.acknowledged = outcomes.count("c")
        self.report.aborted, self.report.unknown = outcomes.count("a"), outcomes.count("u")
        self.report.frontiers = sum(len(shown) for view in views for shown in view.frontiers)
        receipts = [told for story in stories for told in story.receipts()]
        self.report.calm_gap_s = calm_gap(receipts, self.report.done)
        for done in self.report.done:
            done.gap_s = longest_gap(receipts, done)
            done.worst_gap_s = max(longest_gap(story.receipts(), done) for story in stories)
            done.lane_gap_s = max((longest_gap(story.receipts(), done) for story in beside), default=0.0)
            self.note(
                f"{done.kind}: no receipt for {done.gap_s:.2f} s, of one producer for {done.worst_gap_s:.2f} s, "
                f"of unordered records for {done.lane_gap_s:.2f} s"
            )


def table(faults: Sequence[Done]) -> str:
    """Faults by kind: how many, how long they lasted, and the longest gaps between receipts, in seconds.

    The gaps are those of all producers together, of the producer with the longest one, and of unordered records. `again` is
    the time from the end of a fault until every producer has a receipt again.
    """
    lines = [f"{'fault':<20} {'times':>5} {'lasted':>7} {'gap':>7} {'of one':>7} {'lanes':>7} {'again':>8}"]
    for kind in dict.fromkeys([*FAULTS, *(one.kind for one in faults)]):
        done = [one for one in faults if one.kind == kind]
        if done:
            lasted, after = (max(getattr(one, end) - getattr(one, begin) for one in done) / NS for begin, end in _SPANS)
            gaps = " ".join(f"{max(getattr(one, gap) for one in done):>7.2f}" for gap in _GAPS)
            lines.append(f"{kind:<20} {len(done):>5} {lasted:>7.2f} {gaps} {after:>8.2f}")
    return "\n".join(lines)


def longest_gap(receipts: Iterable[int], done: Done) -> float:
    """The longest time between receipts one after another, seconds, of those that touch the time of a fault."""
    told = sorted(receipts)
    gaps = [after - before for before, after in pairwise(told) if after >= done.begun and before <= done.recovered]
    return max(gaps, default=0) / NS


def calm_gap(receipts: Iterable[int], faults: Iterable[Done]) -> float:
    """The longest time between receipts one after another, seconds, of those that touch no fault: what the machine does by itself,
    and the return of who was hit.
    """
    told, spans = sorted(receipts), [(done.begun, done.recovered) for done in faults]
    gaps = [
        after - before
        for before, after in pairwise(told)
        if not any(after >= begun and before <= recovered for begun, recovered in spans)
    ]
    return max(gaps, default=0) / NS
