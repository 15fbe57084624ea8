"""Power loss at any instant of the lanes' disk: nothing that was reported durable is lost, nothing that was not is taken for
damage, an attempt that was ended stays so, and what comes up goes on.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.faults.powerloss.recorder import Recorder, Unsynced, chosen, image
from tests.unit.log.lane_history import OTHER, OWN, LaneHistory, Owner
from tutti.data.frames.frame import Frame
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import list_positions
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import LaneHeld, PersistLane
from tutti_gateway.core.protocol.events import LaneLog
from tutti_gateway.log.lanes.lane_logs import LaneLogs
from tutti_gateway.log.tools.verify import verify

pytestmark = pytest.mark.faults

OPTIONS = LogOptions(disk_low_bytes=0, snapshot_frames=12, retention_bytes=64 << 10)


@dataclass(frozen=True)
class LaneKnown:
    """One lane: the frames that were handed over, how many of them were reported durable, and how many were decided."""

    frames: tuple[Frame, ...] = ()
    synced: int = 0
    decided: int = 0
    attempt: int = 0


@dataclass
class Known:
    """After so many operations: what was done of each lane, and what was asked for."""

    at: int
    done: dict[LaneName, LaneKnown]
    asked: dict[LaneName, LaneKnown]


def lanes_of(path: Path, storage: Storage) -> LaneLogs:
    return LaneLogs(Owner(str(path)), OPTIONS, storage)


@dataclass
class Life:
    """What the lanes' disk is asked in one run, recorded."""

    root: Path
    recorder: Recorder = field(default_factory=Recorder)
    known: list[Known] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir()
        self.histories = {lane: LaneHistory(lane) for lane in (OWN, OTHER)}
        self.done = {lane: LaneKnown() for lane in self.histories}
        self.asked = dict(self.done)
        self.logs = lanes_of(self.root, self.recorder)

    def note(self) -> None:
        self.known.append(Known(len(self.recorder.ops), dict(self.done), dict(self.asked)))

    def step(self, lane: LaneName, after: LaneKnown, act: Callable[[], None]) -> None:
        """Do something; what is asked for is known before, what is done behind it."""
        self.asked[lane] = after
        self.note()
        act()
        self.done[lane] = after
        self.note()

    def write(self, lane: LaneName, *, cut: int | None = None, attempt: int | None = None) -> None:
        """Hand over what the history has more than the disk."""
        was, frames = self.done[lane], tuple(self.histories[lane].frames)
        first = len(was.frames) if cut is None else cut
        after = replace(was, frames=frames, attempt=attempt or was.attempt, synced=min(was.synced, first))
        self.step(lane, after, lambda: self.logs.persist(PersistLane(1, *lane, frames[first:], attempt, cut)))

    def sync(self) -> None:
        self.logs.sync()
        for lane, was in self.done.items():
            self.done[lane] = self.asked[lane] = replace(was, synced=len(was.frames))
        self.note()

    def decide(self, lane: LaneName, upto: int) -> None:
        was, history = self.done[lane], self.histories[lane]
        if upto > was.decided:
            self.logs.frontier(lane, upto, history.offset(upto))
            run = history.deliver(was.decided + 1, upto)
            self.step(lane, replace(was, decided=upto), lambda: self.logs.decided(run))

    def live(self) -> None:
        """Attempts, batches and cuts, over some segments of each lane."""
        self.logs.start()
        self.note()
        for turn in range(1, 13):
            for lane, history in self.histories.items():
                cut = None
                if lane == OTHER and turn % 3 == 0:  # what is undecided is given up for another attempt
                    cut = self.done[lane].decided + turn % 2
                    del history.frames[cut:]
                if lane == OWN:
                    self.write(lane, attempt=turn)
                    self.sync()
                history.attempt = turn - 1
                history.view()
                for number in range(3):
                    history.batch(b"%d" % number * 700, producer=1 + number % 2)
                self.write(lane, cut=cut)
            self.sync()
            self.decide(OWN, len(self.histories[OWN].frames))
            self.decide(OTHER, len(self.histories[OTHER].frames) - 2)
            if turn % 4 == 0:
                for lane, was in self.done.items():
                    self.logs.set_replicated(LaneHeld(*lane, was.decided))
                while self.logs.idle():
                    continue
                self.note()
        self.logs.close()
        self.note()

    def around(self, at: int) -> tuple[Known, Known]:
        """What was surely known after so many operations, and what was asked for by the end of the step that they belong to."""
        return [known for known in self.known if known.at <= at][-1], next(known for known in self.known if known.at >= at)


def small(patch: pytest.MonkeyPatch) -> None:
    """Segments that a few batches fill; what retention says goes at once."""
    patch.setattr(limits, "LANE_SEGMENT_BYTES", 32 << 10)
    patch.setattr(limits, "LANE_SEGMENT_BYTES_FIRST", 16 << 10)
    patch.setattr(limits, "RETENTION_CHECK_US", 0)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        made = Life(tmp_path_factory.mktemp("lanes") / "real")
        made.live()
    firsts = [list_positions(lane_path(str(made.root), lane), "seg") for lane in (OWN, OTHER)]
    assert all(len(some) > 1 and some[0] > 1 for some in firsts), "segments begin, and are let go"
    return made


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in (1, 2)), 3])
def test_every_instant(life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    small(monkeypatch)
    for at in range(part, len(life.recorder.ops) + 1, 4):
        for seed in (0, 1, 2 + at):
            target = tmp_path / "image"
            check(life, at, target, seed)
            shutil.rmtree(target, ignore_errors=True)


def check(life: Life, at: int, target: Path, seed: int) -> None:
    """Start on one image of the disk after `at` operations."""
    image(life.recorder.ops[:at], life.root, target, *chosen(random.Random(f"{at} {seed}"), seed))
    for path in (target / "lanes").glob("*"):  # made before the identity in it, in the same folder
        (path / "log").mkdir(exist_ok=True)
    before, after = life.around(at)
    logs = lanes_of(target, Unsynced())
    found = {LaneName(log.origin, log.incarnation): log for log in logs.start()}
    assert logs.messages == []
    for lane in (OWN, OTHER):
        log = found.get(lane, LaneLog(origin=lane.origin, incarnation=lane.incarnation))
        recovered(life, lane, before.done[lane], after.asked[lane], log)
    if seed > 1:
        for lane, log in found.items():
            goes_on(life.histories[lane], logs, log)
            assert not verify(lane_path(str(target), lane)).damage
    logs.close()


def recovered(life: Life, lane: LaneName, sure: LaneKnown, asked: LaneKnown, log: LaneLog) -> None:
    """What is there was handed over, all that was durable is, and what is known as decided is so."""
    assert not log.halted
    end = log.position + len(log.tail)
    versions = [version.frames[:end] for version in (sure, asked) if len(version.frames) >= end]
    assert versions, f"{end} frames were never handed over"
    assert [list(version[log.position :]) for version in versions if list(version[log.position :]) == list(log.tail)]
    assert end >= min(sure.synced, asked.synced)
    assert log.position <= asked.decided
    frames = versions[-1][: log.position]
    assert (log.chain, log.offset) == (frames[-1].header_crc if frames else 0, sum(frame.count for frame in frames))
    if lane == OWN:
        assert sure.attempt <= log.attempt <= asked.attempt
        lines = {frame.producer: (frame.epoch, frame.last_sequence) for frame in frames if frame.count}
        assert log.lines == lines


def goes_on(history: LaneHistory, logs: LaneLogs, log: LaneLog) -> None:
    """The lane takes what it lacks of the whole history, all of it decided."""
    lane, known = history.lane, log.position
    while known < log.position + len(log.tail) and log.tail[known - log.position] == history.frames[known]:
        known += 1
    logs.persist(PersistLane(1, *lane, tuple(history.frames[known:]), None, known))
    logs.sync()
    last = len(history.frames)
    logs.frontier(lane, last, history.offset(last))
    if last > log.position:
        logs.decided(history.deliver(log.position + 1, last))
