"""A replaced lane never moves back, even if a run of the old lane is indexed after the replacement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lane_history import OTHER, LaneHistory, Owner, sample
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
    """The action that replaces the lane by its state at a position of another gateway."""
    frame = history.frames[position - 1]
    return PersistLane(2, *OTHER, begin=LaneBegin(position, frame.view, frame.header_crc, history.offset(position), (1, 2, 3)))


class Gateway:
    """Lanes and their thread, which runs only on request."""

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
        assert (log.position, log.offset, again.logs.messages) == (*end, [])
        again.logs.close()


def overtaking(gateway: Gateway, history: LaneHistory) -> None:
    """Both in one round: writes are performed before indexing."""
    gateway.decide(history, 1, 21)
    gateway.disk.put(replacing(history, 41))


def late(gateway: Gateway, history: LaneHistory) -> None:
    """Frames of the round before are decided while the lane is replaced."""
    gateway.disk.put(replacing(history, 41))
    gateway.disk.run_once()
    gateway.decide(history, 1, 21)


@pytest.mark.parametrize("order", [overtaking, late])
@pytest.mark.parametrize(("room", "end"), [(True, 50), (False, 50), (True, 41)])
def test_a_run_of_the_old_lane_moves_nothing_back(
    tmp_path: Path, order: Callable[[Gateway, LaneHistory], None], room: bool, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane continues up to `end`; at 41, where the replacement ends, the next start follows at once."""
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
    if end > 41:
        gateway.disk.put(history.write(42, end))
        gateway.until_nothing_waits()
        gateway.decide(history, 42, end)
        gateway.until_nothing_waits()
        assert list(gateway.logs.read(ReadLane(3, *OTHER, 42, end))) == history.frames[41:end]
    gateway.ends(history, end)
