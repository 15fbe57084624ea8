"""Proves that a lane never goes back behind what it was replaced by, whatever of before comes to be indexed after that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lanes import OTHER, LaneHistory, Owner, sample
from tests.unit.node.fakes import LOG
from tutti.data.lane_name import LaneName
from tutti.errors import DiskFull
from tutti.log.files.lane_paths import lane_path
from tutti.log.read.lane_reader import LaneEnd
from tutti.log.read.reader import LogReader
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import PersistLane, ReadLane
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.log.lanes.lane_logs import LaneLogs
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.node.disk.lane_thread import LaneFacts, LaneThread


def replacing(history: LaneHistory, position: int) -> PersistLane:
    """The lane is what it was at a position elsewhere."""
    frame = history.frames[position - 1]
    return PersistLane(2, *OTHER, begin=LaneBegin(position, frame.view, frame.header_crc, history.offset(position), (1, 2, 3)))


class Gateway:
    """Lanes and their thread, which works when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path, self.events = path, list[Event]()
        self.logs = LaneLogs(Owner(str(path)))
        self.found = self.logs.start()
        self.disk = LaneThread(self.logs, self.events.append, lambda: None, LOG, dict[LaneName, LaneEnd]())
        self.disk.set_recovered(self.found)

    def decide(self, history: LaneHistory, first: int, last: int) -> None:
        """As the driver does."""
        self.disk.publish_frontier(history.deliver(first, last))
        self.disk.deliver(history.deliver(first, last))

    def until_nothing_waits(self) -> None:
        for _ in range(100):
            if not self.disk.depth:
                return
            self.disk.run_once()
        raise AssertionError("something still waits")

    def ends(self, history: LaneHistory, position: int) -> None:
        """Status, readers and the next start all find the lane decided up to a position, and whole."""
        path, end = lane_path(str(self.path), OTHER), (position, history.offset(position))
        assert self.disk.facts[OTHER] == LaneFacts(*end)
        reader = LogReader(path)
        assert (reader.frontier().position, reader.frontier().offset) == end
        reader.close()
        self.logs.close()
        assert verify(path).damage == []
        other_boot(path)
        again = Gateway(self.path)
        (log,) = again.found
        assert (log.position, log.offset, again.logs.told) == (*end, [])
        again.logs.close()


def overtaking(gateway: Gateway, history: LaneHistory) -> None:
    """One round takes both: what is to be written goes before what is to be indexed."""
    gateway.decide(history, 1, 21)
    gateway.disk.put(replacing(history, 41))


def late(gateway: Gateway, history: LaneHistory) -> None:
    """What was written in the round before is decided while the lane is being replaced."""
    gateway.disk.put(replacing(history, 41))
    gateway.disk.run_once()
    gateway.decide(history, 1, 21)


@pytest.mark.parametrize("order", [overtaking, late])
@pytest.mark.parametrize("room", [True, False])
def test_a_run_of_before_moves_nothing_back(
    tmp_path: Path, order: Callable[[Gateway, LaneHistory], None], room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    history, gateway = sample(OTHER, 60), Gateway(tmp_path)
    gateway.disk.put(history.write(1, 21))
    gateway.disk.run_once()
    if not room:
        lacks, persist = [DiskFull("no room")], gateway.logs.persist

        def lacking(action: PersistLane) -> None:
            if lacks:
                raise lacks.pop()
            persist(action)

        monkeypatch.setattr(gateway.logs, "persist", lacking)
    order(gateway, history)
    gateway.until_nothing_waits()
    gateway.disk.put(history.write(42, 50))
    gateway.until_nothing_waits()
    gateway.decide(history, 42, 50)
    gateway.until_nothing_waits()
    assert list(gateway.logs.read(ReadLane(3, *OTHER, 42, 50))) == history.frames[41:50]
    gateway.ends(history, 50)


@pytest.mark.parametrize("order", [overtaking, late])
def test_a_start_right_behind_it_finds_the_lane_whole(tmp_path: Path, order: Callable[[Gateway, LaneHistory], None]) -> None:
    history, gateway = sample(OTHER, 60), Gateway(tmp_path)
    gateway.disk.put(history.write(1, 21))
    gateway.disk.run_once()
    order(gateway, history)
    gateway.until_nothing_waits()
    gateway.ends(history, 41)
