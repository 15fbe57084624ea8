"""Proves that a start says exactly what is lost of the end of the gateway's own lane, goes on saying so until all of it is back,
and never takes a part of it for all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lanes import OWN, LaneHistory, opened, sample, written
from tests.unit.log.test_lanes import rot
from tutti.log.files.lane_paths import lane_path
from tutti_gateway.core.protocol.actions import PersistLane
from tutti_gateway.core.protocol.events import LostEnd

MEMBERS = (1, 2, 3)


def lost(history: LaneHistory, first: int, last: int, promised: int = 1, shown: int = 0) -> LostEnd:
    """What is to be said of it."""
    at = history.frames[last - 1]
    return LostEnd(first, last, at.view, at.header_crc, promised, MEMBERS, shown)


def own(path: Path) -> Path:
    return Path(lane_path(str(path), OWN))


def finished(path: Path, history: LaneHistory) -> None:
    """What is written again up to the end is healed by a later attempt, and by nothing else."""
    logs, found = opened(path)
    assert (found[OWN].lost, found[OWN].attempt) == (lost(history, 12, 11), 1)
    logs.persist(PersistLane(1, *OWN, (), attempt=2))
    logs.close()
    logs, found = opened(path)
    assert (found[OWN].lost, found[OWN].attempt) == (None, 2)
    assert [*history.frames[: found[OWN].position], *found[OWN].tail] == history.frames
    assert logs.told == []
    logs.close()


@pytest.mark.parametrize("booted", [False, True])
@pytest.mark.parametrize("first", range(2, 12))
def test_what_is_gone_up_to_the_mark_is_told_until_another_attempt_begins(tmp_path: Path, first: int, booted: bool) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    rot(own(tmp_path), history, first, 20)
    if booted:
        other_boot(own(tmp_path))
    logs, found = opened(tmp_path)
    log = found[OWN]
    assert (log.lost, log.halted, log.position, log.attempt) == (lost(history, first, 11), "", first - 1, 1)
    assert log.offset == history.offset(first - 1)
    assert sum(sequence for _, sequence in log.lines.values()) == history.offset(first - 1), "who sent what is known up to there"
    assert f"positions {first} to 11" in logs.told[0]
    for upper in sorted({first, 11}):
        logs.persist(history.write(len(log.tail) + log.position + 1, upper))
        logs.sync()
        logs.close()
        logs, found = opened(tmp_path)
        log = found[OWN]
        assert log.lost is not None
        assert (log.lost.first, log.lost.last) == (upper + 1, 11)
    logs.close()
    finished(tmp_path, history)


def test_a_frame_of_a_later_attempt_says_that_all_is_back(tmp_path: Path) -> None:
    """That attempt was promised before it began, though the newest slot of the scalars is gone that says so."""
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


def test_what_stands_whole_behind_the_mark_was_there_too(tmp_path: Path) -> None:
    history = sample(OWN)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(1, 8, attempt=1))
    logs.sync()
    logs.persist(history.write(9, 11))
    logs.sync()  # and killed: the mark that names this does not come
    rot(own(tmp_path), history, 4, 20)
    other_boot(own(tmp_path))
    again, found = opened(tmp_path)
    assert found[OWN].lost == lost(history, 4, 11)
    again.close()


@pytest.mark.parametrize("damaged", [(10,), (4, 10)])
def test_what_was_shown_behind_the_mark_is_missed(tmp_path: Path, damaged: tuple[int, ...]) -> None:
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


def test_an_attempt_that_was_promised_and_not_begun_is_said_too(tmp_path: Path) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    logs, _ = opened(tmp_path)
    logs.persist(PersistLane(1, *OWN, (), attempt=5))
    logs.close()
    rot(own(tmp_path), history, 9, 20)
    logs, found = opened(tmp_path)
    assert (found[OWN].lost, found[OWN].attempt) == (lost(history, 9, 11, promised=5), 1)
    logs.close()


def test_a_lane_of_which_nothing_is_left_is_halted(tmp_path: Path) -> None:
    """Its first VIEW is gone, and with it whatever tells that it was this lane."""
    history = sample(OWN)
    written(tmp_path, history, 11)
    rot(own(tmp_path), history, 1, 20)
    logs, found = opened(tmp_path)
    assert "accepts no more records" in found[OWN].halted
    assert found[OWN].lost is None
    logs.close()


@pytest.mark.parametrize("first", [2, 8])
def test_the_disks_of_the_last_attempt_are_said_where_its_view_names_them(tmp_path: Path, first: int) -> None:
    """A start finds them in the frame, or in what it keeps of the frames that are known as decided."""
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
