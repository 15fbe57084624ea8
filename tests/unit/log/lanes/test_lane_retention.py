"""Retention removes complete segments of lanes that every gateway has, and the rest starts and reads."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lane_history import OTHER, OWN, SHORT, LaneHistory, begun, idle, kept, long, sample
from tests.unit.node.fakes import LOG
from tutti import limits as common_limits
from tutti.data.lane_name import LaneName
from tutti.errors import DiskFull, OffsetOutOfRange
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import list_positions
from tutti.log.files.log_start import LogStart, read_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.read.reader import LogReader
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import LaneHeld, PersistLane, ReadLane
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.node.disk.lane_thread import LaneThread


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES", 32 << 10)
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES_FIRST", 16 << 10)
    monkeypatch.setattr(limits, "RETENTION_CHECK_US", 0)


def size(path: str) -> int:
    return sum(os.path.getsize(os.path.join(path, "log", name)) for name in os.listdir(os.path.join(path, "log")) if "seg" in name)


@pytest.mark.parametrize("lane", [OWN, OTHER])
def test_retention_limits_a_lane_which_then_begins_with_a_segment(tmp_path: Path, lane: LaneName) -> None:
    history, path = long(lane), lane_path(str(tmp_path), lane)
    logs = kept(tmp_path, history)
    assert size(path) <= SHORT.retention_bytes
    first = list_positions(path, "seg")[0]
    assert first > 1
    assert logs.starts == {lane: history.offset(first - 1)}
    assert logs.read(ReadLane(1, *lane, first - 1, first)) == ()
    frame = history.frames[first - 2]
    begin = LaneBegin(first - 1, frame.view, frame.header_crc, history.offset(first - 1), (1, 2, 3))
    assert logs.begin(ReadLane(1, *lane, 1, 9)) == begin
    assert logs.begin(ReadLane(1, *lane, first, first)) is None
    assert list(logs.read(ReadLane(1, *lane, first, first + 1))) == history.frames[first - 1 : first + 1]
    logs.close()
    assert verify(path).damage == []
    reader = LogReader(path)
    assert reader.start == history.offset(first - 1)
    with pytest.raises(OffsetOutOfRange, match=f"this log begins at {reader.start}"):
        list(reader.batches(0, 1))
    reader.close()
    other_boot(path)
    logs = begun(tmp_path)
    assert logs.starts == {lane: history.offset(first - 1)}
    (log,) = begun(tmp_path).start()
    assert (log.position + len(log.tail), log.halted) == (201, "")
    if lane == OWN:
        assert log.lines == {1: (1, 100), 2: (1, 100)}  # including trimmed records
    logs.close()


def test_retention_also_runs_while_the_thread_is_never_idle(tmp_path: Path) -> None:
    """Also for a lane without writes."""
    busy, still = long(OTHER), long(OWN)
    logs, reports = begun(tmp_path), list[Event]()
    disk = LaneThread(logs, reports.append, lambda: None, LOG, {})
    for history, every in ((still, 20), (busy, 5)):
        last = len(history.frames)
        for first in range(1, last + 1, every):
            until = min(last, first + every - 1)
            disk.put(history.write(first, until))
            disk.run_once()  # durable before it is decided, as everywhere
            disk.publish_frontier(history.deliver(first, until))
            disk.deliver(history.deliver(first, until))
            if history.lane == OTHER:
                disk.put(LaneHeld(*OTHER, until))
                disk.put(LaneHeld(*OWN, 180))
            assert disk.run_once()
    assert (disk.failed, disk.full) == ("", "")
    slack = 2 * limits.LANE_SEGMENT_BYTES  # what came since the lane's last turn, and what the mark does not name yet
    assert size(lane_path(str(tmp_path), OTHER)) <= SHORT.retention_bytes + slack
    assert list_positions(lane_path(str(tmp_path), OTHER), "seg")[0] > 100
    assert list_positions(lane_path(str(tmp_path), OWN), "seg", include_trimmed=True)[0] > 1
    assert set(logs.starts) == {OWN, OTHER}
    assert min(logs.starts.values()) > 0
    logs.close()


def test_frames_that_a_gateway_lacks_stay(tmp_path: Path) -> None:
    path = lane_path(str(tmp_path), OTHER)
    logs = kept(tmp_path, long(OTHER), held=30)
    assert list_positions(path, "seg")[0] <= 31
    assert size(path) > SHORT.retention_bytes
    logs.set_replicated(LaneHeld(*OTHER, 201))
    idle(logs)
    assert size(path) <= SHORT.retention_bytes
    logs.close()


def test_old_segments_are_removed_except_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lane_path(str(tmp_path), OTHER)
    hour = 3_600_000_000
    logs = kept(tmp_path, long(OTHER), LogOptions(retention_us=hour))
    firsts = list_positions(path, "seg")
    assert firsts[0] == 1
    then = time.time() - 7200
    for first in firsts[1:3]:
        os.utime(os.path.join(path, "log", f"{first:020d}.snap"), (then, then))
    logs.close()
    logs = begun(tmp_path, LogOptions(retention_us=hour))
    logs.set_replicated(LaneHeld(*OTHER, 201))
    right_us = time.time_ns() // 1000
    monkeypatch.setattr(time, "time_ns", lambda: 9 * 10**18)  # the clock of this host leaps, the group's time does not
    idle(logs)
    assert list_positions(path, "seg")[0] == 1, "the group's time is not known yet"
    logs._storage.group_time_us = lambda: right_us
    idle(logs)
    assert list_positions(path, "seg")[0] == firsts[2]
    logs.close()


def test_a_slow_host_clock_does_not_change_the_age_of_lanes(tmp_path: Path) -> None:
    """Retention measures the age of a lane's segments by the dates of their snapshots, which the group's time gives."""
    hour, years = 3_600_000_000, 10 * 365 * 86_400 * 1_000_000
    path, storage = lane_path(str(tmp_path), OTHER), Storage()
    storage.group_time_us = lambda: time.time_ns() // 1000 + years
    logs = kept(tmp_path, long(OTHER), LogOptions(retention_us=hour), storage=storage)
    firsts = list_positions(path, "seg")
    assert (firsts[0], len(firsts) > 2) == (1, True)
    storage.group_time_us = lambda: time.time_ns() // 1000 + years + 2 * hour
    idle(logs)
    assert list_positions(path, "seg")[0] == firsts[-1]
    logs.close()


def test_nothing_is_trimmed_during_a_truncation_or_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full disk the call is repeated, and until then the start of the lane is uncertain."""
    history, path = long(OTHER), lane_path(str(tmp_path), OTHER)
    logs = kept(tmp_path, history, held=0)
    before = list_positions(path, "seg", include_trimmed=True)
    frame = history.frames[-1]
    history.batch(b"more")
    begin = LaneBegin(202, frame.view, history.frames[-1].header_crc, history.offset(202), (1, 2, 3))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("tutti_gateway.log.writer.replace_log", full)
        with pytest.raises(DiskFull):
            logs.persist(PersistLane(1, *OTHER, begin=begin))
    logs.set_replicated(LaneHeld(*OTHER, 201))
    for _ in range(3):
        assert not logs.apply_retention()
    assert read_start(path) == LogStart()
    assert list_positions(path, "seg", include_trimmed=True) == before
    logs.persist(PersistLane(1, *OTHER, begin=begin))
    assert logs.starts[OTHER] == history.offset(202)
    logs.close()
    assert verify(path).damage == []


def test_without_retention_everything_stays(tmp_path: Path) -> None:
    logs = kept(tmp_path, long(OTHER), LogOptions())
    assert list_positions(lane_path(str(tmp_path), OTHER), "seg")[0] == 1
    logs.close()


@pytest.mark.parametrize("there", [0, 5, 40])
def test_a_lane_is_replaced_by_its_start_on_another_gateway(tmp_path: Path, there: int) -> None:
    history, path = long(OTHER), lane_path(str(tmp_path), OTHER)
    logs = begun(tmp_path)
    if there:
        logs.persist(history.write(1, there))
        logs.sync()
    frame = history.frames[99]
    begin = LaneBegin(100, frame.view, frame.header_crc, history.offset(100), (1, 2, 3))
    action = PersistLane(1, *OTHER, begin=begin)
    for _ in range(2):  # repeated as after a full disk
        logs.persist(action)
    logs.sync()
    assert logs.starts[OTHER] == 99
    logs.persist(history.write(101, 201))
    logs.sync()
    logs.frontier(OTHER, 201, 200)
    logs.decided(history.deliver(101, 201))
    logs.close()
    assert verify(path).damage == []
    other_boot(path)
    logs = begun(tmp_path)
    (log,) = begun(tmp_path).start()
    assert log.position + len(log.tail) == 201
    assert list(logs.read(ReadLane(1, *OTHER, 101, 102))) == history.frames[100:102]
    logs.close()


def test_a_small_lane_uses_little_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    history = sample(OTHER)
    logs = begun(tmp_path)
    logs.persist(history.write(1, 11))
    logs.sync()
    logs.frontier(OTHER, 11, history.offset(11))
    logs.decided(history.deliver(1, 11))
    logs.close()
    files = [file for file in Path(tmp_path, "lanes").rglob("*") if file.is_file()]
    assert sum(file.stat().st_blocks * 512 for file in files) < 3 * common_limits.MIB


@pytest.mark.parametrize("cut", [False, True])
def test_segments_grow_and_a_larger_one_replaces_an_empty_one(tmp_path: Path, cut: bool) -> None:
    history, path = LaneHistory(OTHER), lane_path(str(tmp_path), OTHER)
    history.view()
    for _ in range(6):
        history.batch(b"x" * 1000)
    logs = begun(tmp_path)
    logs.persist(history.write(1, 7))
    if cut:  # the segment that begins after the truncation stays, empty
        first = list_positions(path, "seg")[-1]
        del history.frames[first - 1 :]
        history.attempt += 1
        logs.persist(history.write(first, first - 1, cut=first - 1))
    before = len(history.frames)
    history.batch(b"y" * 18_000)
    history.batch(b"z")
    logs.persist(history.write(before + 1, before + 2))
    logs.sync()
    last = len(history.frames)
    logs.frontier(OTHER, last, history.offset(last))
    logs.decided(history.deliver(1, last))
    assert list(logs.read(ReadLane(1, *OTHER, 1, last))) == history.frames[: len(logs.read(ReadLane(1, *OTHER, 1, last)))]
    logs.close()
    assert verify(path).damage == []
    other_boot(path)
    (log,) = begun(tmp_path).start()
    assert log.position + len(log.tail) == last


def test_a_lane_with_forgotten_producers_verifies(tmp_path: Path) -> None:
    """Later snapshots lack their state, although the frames contain them."""
    history, path = LaneHistory(OTHER), lane_path(str(tmp_path), OTHER)
    history.view()
    for number in range(200):
        history.batch(b"%d" % number * 400, producer=1 if number < 90 else 2)
    logs = begun(tmp_path, LogOptions())
    for first, last in ((1, 100), (101, 201)):
        logs.persist(history.write(first, last))
        logs.sync()
        logs.frontier(OTHER, last, history.offset(last))
        logs.decided(history.deliver(first, last))
        logs.forget([1])
    logs.close()
    assert len(list_positions(path, "snap")) > 2
    assert verify(path).damage == []
