"""A truncated segment file is corruption like any other where other gateways may have the lost frames: a start reports the range,
the fetched frames are written into a segment of its original size, and later starts find no corruption.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.log.corrupt_end import DECIDED, HISTORY, LAST, OPTIONS, lost, marked, spot, start, whole
from tests.unit.log.history import opened, other_boot, sample, write_log
from tutti.data.hard_state import HardState
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, list_positions, segment_path


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
    writer, _, close = opened(tmp_path, OPTIONS)
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
    writer, _, close = opened(tmp_path, OPTIONS)
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
    writer, recovered, close = opened(tmp_path, options)
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
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.write_hard_state(HardState(9, 9, 0))
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
    alone = sample(120, size=4000)
    marked(tmp_path / "alone", alone)
    file = Path(segment_path(str(tmp_path / "alone"), list_positions(str(tmp_path / "alone"), "seg")[-1]))
    os.truncate(file, FRAMES_AT + 200)
    before = file.read_bytes()
    with pytest.raises(Damaged, match="the file ends at byte"):
        start(tmp_path / "alone")
    assert file.read_bytes() == before
