"""A start reports exactly the lost end of the gateway's own lane until all of it is restored, and never takes a part for all."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lane_history import OWN, LaneHistory, file_position, opened, rot, sample, written
from tests.unit.log.watched import Filling
from tutti.errors import DiskFull
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import segment_path
from tutti_gateway.core.protocol.actions import PersistLane
from tutti_gateway.core.protocol.events import LostEnd
from tutti_gateway.log.tools.verify import verify

MEMBERS = (1, 2, 3)


def lost(history: LaneHistory, first: int, last: int, promised: int = 1, shown: int = 0) -> LostEnd:
    """The expected report."""
    at = history.frames[last - 1]
    return LostEnd(first, last, at.view, at.header_crc, promised, MEMBERS, shown)


def own(path: Path) -> Path:
    return Path(lane_path(str(path), OWN))


def lane_file(path: Path) -> str:
    return segment_path(own(path).as_posix(), 1)


def finished(path: Path, history: LaneHistory) -> None:
    """Only a later attempt ends the report, even if all frames up to the end are written again."""
    logs, found = opened(path)
    assert (found[OWN].lost, found[OWN].attempt) == (lost(history, 12, 11), 1)
    logs.persist(PersistLane(1, *OWN, (), attempt=2))
    logs.close()
    logs, found = opened(path)
    assert (found[OWN].lost, found[OWN].attempt) == (None, 2)
    assert [*history.frames[: found[OWN].position], *found[OWN].tail] == history.frames
    assert logs.messages == []
    logs.close()


@pytest.mark.parametrize("booted", [False, True])
@pytest.mark.parametrize(("first", "within"), [*((first, None) for first in range(2, 12)), *product((2, 7, 11), (0, 5, 97))])
def test_a_lost_end_is_reported_until_a_later_attempt_begins(tmp_path: Path, first: int, within: int | None, booted: bool) -> None:
    """The frame at `first` has a corrupt header, or, with `within`, the file ends so many bytes after the start of that frame."""
    history = sample(OWN)
    written(tmp_path, history, 11)
    size = os.path.getsize(lane_file(tmp_path))
    if within is None:
        rot(own(tmp_path), history, first, 20)
    else:
        os.truncate(lane_file(tmp_path), file_position(history, first) + within)
    for _ in range(2):  # the first start does not hide it from the second one
        if booted:
            other_boot(own(tmp_path))
        logs, found = opened(tmp_path)
        log = found[OWN]
        assert (log.lost, log.halted, log.position, log.attempt) == (lost(history, first, 11), "", first - 1, 1)
        assert log.offset == history.offset(first - 1)
        assert sum(sequence for _, sequence in log.lines.values()) == history.offset(first - 1), "the last sequences up to there"
        assert f"positions {first} to 11" in logs.messages[0]
        logs.close()
    logs, found = opened(tmp_path)
    for upper in sorted({first, 11}):
        logs.persist(history.write(len(found[OWN].tail) + found[OWN].position + 1, upper))
        logs.sync()
        assert os.path.getsize(lane_file(tmp_path)) == size
        logs.close()
        logs, found = opened(tmp_path)
        end = found[OWN].lost
        assert end is not None
        assert (end.first, end.last) == (upper + 1, 11)
    logs.close()
    finished(tmp_path, history)
    assert verify(own(tmp_path)).damage == []


def test_a_frame_of_a_later_attempt_says_that_all_is_back(tmp_path: Path) -> None:
    """The frame proves that the attempt was promised, even if the slot of the hard state with the promise is lost."""
    history = sample(OWN)
    written(tmp_path, history, 11)
    rot(own(tmp_path), history, 9, 20)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(9, 11))
    logs.close()
    scalars = own(tmp_path) / "scalars"
    before = scalars.read_bytes()
    logs, found = opened(tmp_path)
    assert found[OWN].lost == lost(history, 12, 11)
    history.view()
    logs.persist(history.write(12, 12, attempt=2))
    logs.close()
    scalars.write_bytes(before)
    logs, found = opened(tmp_path)
    assert (found[OWN].lost, found[OWN].attempt) == (None, 2)
    logs.close()


@pytest.mark.parametrize(("first", "last", "truncated"), [(4, 11, False), (11, 10, True)])
def test_whole_frames_after_the_mark_belong_to_the_lost_end(tmp_path: Path, first: int, last: int, truncated: bool) -> None:
    history = sample(OWN)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(1, 8, attempt=1))
    logs.sync()
    logs.persist(history.write(9, 11))
    logs.sync()  # the process is killed before it writes the mark that names these frames
    if truncated:
        os.truncate(lane_file(tmp_path), file_position(history, first))
    else:
        rot(own(tmp_path), history, first, 20)
    other_boot(own(tmp_path))
    again, found = opened(tmp_path)
    assert found[OWN].lost == lost(history, first, last)
    again.close()


@pytest.mark.parametrize("damaged", [(10,), (4, 10)])
def test_frames_after_the_mark_that_were_published_are_reported(tmp_path: Path, damaged: tuple[int, ...]) -> None:
    history = sample(OWN)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(1, 8, attempt=1))
    logs.sync()
    logs.persist(history.write(9, 11))
    logs.sync()
    logs.frontier(OWN, 11, history.offset(11))
    for position in damaged:
        rot(own(tmp_path), history, position, 20)
    again, found = opened(tmp_path)
    expected = lost(history, damaged[0], 9, shown=11)
    assert found[OWN].lost == expected
    assert not found[OWN].halted
    again.close()


def test_a_promised_attempt_that_did_not_begin_is_reported(tmp_path: Path) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    logs, _ = opened(tmp_path)
    logs.persist(PersistLane(1, *OWN, (), attempt=5))
    logs.close()
    rot(own(tmp_path), history, 9, 20)
    logs, found = opened(tmp_path)
    assert (found[OWN].lost, found[OWN].attempt) == (lost(history, 9, 11, promised=5), 1)
    logs.close()


@pytest.mark.parametrize("first", [2, 8])
def test_the_disks_of_the_last_attempt_are_reported(tmp_path: Path, first: int) -> None:
    """A start takes them from the VIEW frame, or from the recovered state."""
    disks = tuple(bytes([number]) * 16 for number in MEMBERS)
    history = LaneHistory(OWN)
    history.view(disks)
    for number in range(10):
        history.batch(b"%d" % number)
    written(tmp_path, history, 11)
    rot(own(tmp_path), history, first, 20)
    logs, found = opened(tmp_path)
    end = found[OWN].lost
    assert end is not None
    assert (end.first, end.members, end.disks) == (first, MEMBERS, disks)
    logs.close()


@pytest.mark.parametrize("behind", [0, 40, 4096])
def test_a_short_file_may_have_held_frames_after_the_mark(tmp_path: Path, behind: int) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    os.truncate(lane_file(tmp_path), file_position(history, 12) + behind)
    logs, found = opened(tmp_path)
    assert (found[OWN].lost, found[OWN].halted) == (lost(history, 12, 11), "")
    assert "frames after position 11" in logs.messages[0]
    logs.persist(PersistLane(1, *OWN, (), attempt=2))
    logs.close()
    logs, found = opened(tmp_path)
    assert found[OWN].lost is not None, "as long as the file is not what it was"
    history.attempt = 1
    history.view()
    logs.persist(history.write(12, 12))
    logs.sync()
    logs.persist(PersistLane(1, *OWN, (), attempt=3))
    logs.close()
    logs, found = opened(tmp_path)
    assert (found[OWN].lost, found[OWN].attempt) == (None, 3)
    logs.close()


def test_a_full_disk_delays_the_repair_of_a_short_file(tmp_path: Path) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    size = os.path.getsize(lane_file(tmp_path))
    os.truncate(lane_file(tmp_path), file_position(history, 5))
    for steps in range(12):
        storage = Filling()
        logs, found = opened(tmp_path, storage)
        assert found[OWN].lost is not None
        storage.room = steps
        try:
            logs.persist(history.write(5, 11))
        except DiskFull:
            storage.room = None
            logs.persist(history.write(5, 11))
            logs.sync()
            assert os.path.getsize(lane_file(tmp_path)) == size
            logs.persist(PersistLane(1, *OWN, (), attempt=2 + steps))
            logs.close()
            other, found = opened(tmp_path)
            assert (found[OWN].lost, len(found[OWN].tail) + found[OWN].position) == (None, 11)
            other.close()
            os.truncate(lane_file(tmp_path), file_position(history, 5))
        else:
            assert steps > 2
            logs.close()
            return
    pytest.fail("the disk is always full")
