"""Lanes on a failing disk: a call is repeated after a full disk, an error ends the writing, and durable data stays."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lane_history import OTHER, OWN, LaneHistory, Owner, opened, sample
from tests.unit.log.watched import Filling, Watched, failing
from tutti.data.lane_name import LaneName
from tutti.errors import DiskFailed, DiskFull
from tutti.log.files.lane_paths import lane_path
from tutti_gateway.core import limits
from tutti_gateway.log.lanes.lane_logs import LaneLogs
from tutti_gateway.log.tools.verify import verify


def goes_through(storage: Filling, logs: LaneLogs, history: LaneHistory) -> bool:
    """Perform all operations of a lane; return False if the disk was full."""
    try:
        logs.persist(history.write(1, 0, attempt=1))
        logs.sync()
        logs.persist(history.write(1, len(history.frames)))
        logs.sync()
        logs.frontier(history.lane, len(history.frames), history.offset(len(history.frames)))
        logs.decided(history.deliver(1, len(history.frames)))
    except DiskFull:
        return False
    return True


def goes_on(logs: LaneLogs, history: LaneHistory) -> None:
    """Write to an existing lane and to a new one."""
    for last in range(9, 30):
        logs.persist(history.write(last, last))
        logs.sync()
        logs.persist(sample(OWN, 1).write(1, 2, attempt=1))


class Quick(Filling):
    """Storage without syncs."""

    def sync(self, fd: int) -> None:
        assert fd >= 0

    def sync_directory(self, path: str) -> None:
        assert path


@pytest.mark.parametrize("lane", [OWN, OTHER])
def test_every_call_can_be_repeated_after_a_full_disk(tmp_path: Path, lane: LaneName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES", 32 << 10)
    history = sample(lane, 60)
    stops = 0
    for steps in range(200):
        path, storage = tmp_path / f"{steps}", Quick()
        logs, _ = opened(path, storage)
        storage.room = steps
        if goes_through(storage, logs, history):
            storage.room = None
            break
        stops += 1
        storage.room = None
        assert goes_through(storage, logs, history)
        logs.close()
        other_boot(lane_path(str(path), history.lane))
        logs, found = opened(path)
        log = found[history.lane]
        assert log.position + len(log.tail) == len(history.frames)
        assert logs.messages == []
        logs.close()
        assert not verify(lane_path(str(path), history.lane)).damage
    logs.close()
    assert 10 < stops < 200


@pytest.mark.parametrize("what", ["sync", "write", "sync directory", "rename"])
def test_a_failed_disk_ends_the_writing_and_durable_frames_stay(tmp_path: Path, what: str) -> None:
    history, storage = sample(OTHER, 30), Watched()
    logs, _ = opened(tmp_path, storage)
    logs.persist(history.write(1, 8))
    logs.sync()
    storage.fail = failing(what, errno.EIO)
    with pytest.raises(DiskFailed):
        goes_on(logs, history)
    storage.fail = lambda what: None
    logs.close()
    logs, found = opened(tmp_path)
    assert list(found[OTHER].tail)[:8] == history.frames[:8]
    assert not found[OTHER].halted
    logs.close()


def test_a_sync_of_a_lane_refreshes_the_identity(tmp_path: Path) -> None:
    """A gateway with only unordered batches must also detect an older copy of its directory."""
    owner = Owner(str(tmp_path))
    logs = LaneLogs(owner)
    logs.start()
    history = sample(OWN)
    logs.persist(history.write(1, 3, attempt=1))
    before = owner.refreshed
    logs.persist(history.write(4, 5))
    logs.sync()
    assert owner.refreshed > before
    logs.close()
