"""Proves that a last segment whose file was cut short is damage like any other where others may have what is gone: nothing is
served as if it were all, what comes again is written into a segment of its whole size, and no later start takes it for damaged.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.log.history import opened as open_log
from tests.unit.log.history import other_boot, write_log
from tests.unit.log.history import sample as log_sample
from tests.unit.log.lanes import OTHER, OWN, LaneHistory, opened, sample, written
from tests.unit.log.test_damage import DECIDED, HISTORY, LAST, OPTIONS, lost, marked, spot, start, whole
from tests.unit.log.test_no_room import Filling
from tutti.data.hard_state import HardState
from tutti.errors import Damaged, DiskFull
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import FRAMES_AT, list_positions, segment_path
from tutti_gateway.core.protocol.actions import PersistLane
from tutti_gateway.core.protocol.events import LostEnd
from tutti_gateway.log.tools.verify import verify


def lane_file(path: Path) -> str:
    return segment_path(lane_path(str(path), OWN), 1)


def place(history: LaneHistory, position: int) -> int:
    return FRAMES_AT + sum(frame.size for frame in history.frames[: position - 1])


def missing(history: LaneHistory, first: int, last: int) -> LostEnd:
    at = history.frames[last - 1]
    return LostEnd(first, last, at.view, at.header_crc, 1, (1, 2, 3), 0)


# The own lane


@pytest.mark.parametrize("booted", [False, True])
@pytest.mark.parametrize("within", [0, 5, 97])
@pytest.mark.parametrize("first", [2, 7, 11])
def test_what_is_gone_of_the_own_lane_is_told_and_written_again(tmp_path: Path, first: int, within: int, booted: bool) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    size = os.path.getsize(lane_file(tmp_path))
    os.truncate(lane_file(tmp_path), place(history, first) + within)
    for _ in range(2):
        if booted:
            other_boot(lane_path(str(tmp_path), OWN))
        logs, found = opened(tmp_path)
        log = found[OWN]
        assert (log.lost, log.halted, log.position + len(log.tail)) == (missing(history, first, 11), "", first - 1)
        logs.close()
    logs, found = opened(tmp_path)
    logs.persist(history.write(first, 11))
    logs.sync()
    assert os.path.getsize(lane_file(tmp_path)) == size
    logs.close()
    logs, found = opened(tmp_path)
    assert found[OWN].lost == missing(history, 12, 11), "something behind it may be missing still"
    logs.persist(PersistLane(1, *OWN, (), attempt=2))
    logs.close()
    logs, found = opened(tmp_path)
    assert found[OWN].lost is None
    assert [*history.frames[: found[OWN].position], *found[OWN].tail] == history.frames
    assert logs.told == []
    logs.close()
    assert verify(lane_path(str(tmp_path), OWN)).damage == []


@pytest.mark.parametrize("behind", [0, 40, 4096])
def test_a_lane_that_has_all_that_a_mark_names_may_lack_what_stood_behind(tmp_path: Path, behind: int) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    os.truncate(lane_file(tmp_path), place(history, 12) + behind)
    logs, found = opened(tmp_path)
    assert (found[OWN].lost, found[OWN].halted) == (missing(history, 12, 11), "")
    assert "frames after position 11" in logs.told[0]
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


def test_frames_behind_the_mark_that_are_there_still_count(tmp_path: Path) -> None:
    history = sample(OWN)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(1, 8, attempt=1))
    logs.sync()
    logs.persist(history.write(9, 11))
    logs.sync()  # and killed: the mark that names this does not come
    os.truncate(lane_file(tmp_path), place(history, 11))
    other_boot(lane_path(str(tmp_path), OWN))
    again, found = opened(tmp_path)
    assert found[OWN].lost == missing(history, 11, 10)
    again.close()


def test_no_room_for_the_whole_segment_passes(tmp_path: Path) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    size = os.path.getsize(lane_file(tmp_path))
    os.truncate(lane_file(tmp_path), place(history, 5))
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
            os.truncate(lane_file(tmp_path), place(history, 5))
        else:
            assert steps > 2
            logs.close()
            return
    pytest.fail("there is never room enough")


def test_of_another_lane_what_is_good_stays_and_the_rest_is_learned_again(tmp_path: Path) -> None:
    history = sample(OTHER)
    written(tmp_path, history, 6)
    os.truncate(segment_path(lane_path(str(tmp_path), OTHER), 1), place(history, 9))
    logs, found = opened(tmp_path)
    assert (found[OTHER].position, len(found[OTHER].tail)) == (6, 2)
    assert "fetched again" in logs.told[0]
    logs.close()


@pytest.mark.parametrize("there", [0, 64, 5000])
def test_an_own_lane_without_a_mark_is_halted(tmp_path: Path, there: int) -> None:
    history = sample(OWN)
    written(tmp_path, history, 11)
    os.truncate(lane_file(tmp_path), there)
    logs, found = opened(tmp_path)
    assert "accepts no more records" in found[OWN].halted
    logs.close()


# The ordered log


def cut_short(path: Path, position: int, within: int = 0) -> tuple[Path, int]:
    """Cut the file in which a position stands there; it, and the size that it had."""
    file, at = spot(path, position)
    size = file.stat().st_size
    os.truncate(file, at + within)
    return file, size


@pytest.mark.parametrize("within", [0, 5, 97])
@pytest.mark.parametrize("behind", [0, 1])
def test_where_others_vote_it_is_damage_that_the_group_heals(tmp_path: Path, behind: int, within: int) -> None:
    position = marked(tmp_path)[-1] + behind
    file, size = cut_short(tmp_path, position, within)
    for _ in range(2):
        recovered = start(tmp_path)
        assert recovered.damage == lost(position)
        assert list(recovered.tail) == HISTORY.frames[DECIDED : position - 1]
        other_boot(tmp_path)
    writer, _, close = open_log(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[position - 1 : position])
    writer.sync()
    assert file.stat().st_size == size
    writer.append(HISTORY.frames[position:])
    writer.sync()
    close()
    other_boot(tmp_path)
    recovered = start(tmp_path)
    assert (recovered.damage, list(recovered.tail)) == (None, HISTORY.frames[DECIDED:])
    whole(tmp_path, HISTORY)


def test_one_before_the_last_is_damage_too(tmp_path: Path) -> None:
    firsts = marked(tmp_path)
    position = firsts[-2] + 1
    assert position > DECIDED
    file, size = cut_short(tmp_path, position)
    assert start(tmp_path).damage == lost(position)
    writer, _, close = open_log(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[position - 1 :])
    writer.sync()
    assert file.stat().st_size == size
    close()
    other_boot(tmp_path)
    whole(tmp_path, HISTORY)


def test_what_was_decided_is_learned_again_from_an_earlier_watermark(tmp_path: Path) -> None:
    """A snapshot behind the place where the file ends says nothing of what stood before it."""
    options = replace(OPTIONS, segment_bytes=4 << 20)
    write_log(tmp_path, HISTORY, options)
    other_boot(tmp_path)
    assert list_positions(str(tmp_path), "seg") == [1]
    position = list_positions(str(tmp_path), "snap")[-1] - 2
    cut_short(tmp_path, position)
    writer, recovered, close = open_log(tmp_path, options)
    assert recovered.damage == lost(position)
    assert recovered.state.position + len(recovered.tail) == position - 1
    writer.append(HISTORY.frames[position - 1 :])
    writer.sync()
    close()
    other_boot(tmp_path)
    whole(tmp_path, HISTORY)


def test_an_accepted_view_gives_the_segment_its_size_before_the_damage_is_forgotten(tmp_path: Path) -> None:
    position = marked(tmp_path)[-1] + 1
    file, size = cut_short(tmp_path, position)
    writer, _, close = open_log(tmp_path, OPTIONS)
    writer.write_scalars(HardState(9, 9, 0))
    assert file.stat().st_size == size
    close()
    other_boot(tmp_path)
    assert start(tmp_path).damage is None


def test_it_halts_where_the_marks_do_not_tell_what_is_gone_or_nobody_else_has_it(tmp_path: Path) -> None:
    """All that a mark names is there, and what this disk voted for behind it is not known."""
    marked(tmp_path / "voters")
    cut_short(tmp_path / "voters", LAST + 1, 40)
    with pytest.raises(Damaged, match="the file ends at byte"):
        start(tmp_path / "voters")
    alone = log_sample(120, size=4000)
    marked(tmp_path / "alone", alone)
    file = Path(segment_path(str(tmp_path / "alone"), list_positions(str(tmp_path / "alone"), "seg")[-1]))
    os.truncate(file, FRAMES_AT + 200)
    before = file.read_bytes()
    with pytest.raises(Damaged, match="the file ends at byte"):
        start(tmp_path / "alone")
    assert file.read_bytes() == before
