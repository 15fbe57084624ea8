"""A log whose last segment, or whose scalars, are not what they were is damaged: for a start, and for readers of its files too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.history import decide, opened, other_boot, sample, write_log
from tutti.errors import Damaged
from tutti.log.files.data_directory import read_identity
from tutti.log.files.layout import FRAMES_AT, MARK_SLOTS, PAGE, list_positions
from tutti.log.format.hard_state import read_hard_state
from tutti.log.read.reader import LogReader
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.repair import repair
from tutti_gateway.log.tools.verify import verify

HISTORY = sample(120, size=1500)


def segment(path: Path, number: int) -> Path:
    return path / "log" / f"{list_positions(str(path), 'seg')[number]:020d}.seg"


def zeros(path: Path, start: int, end: int) -> None:
    with segment(path, -1).open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def lose_both_marks(path: Path) -> None:
    zeros(path, MARK_SLOTS[0], FRAMES_AT)


def lose_the_head(path: Path) -> None:
    zeros(path, PAGE, FRAMES_AT + PAGE)


def cut_behind_the_header(path: Path) -> None:
    os.truncate(segment(path, -1), 64)


def cut_between_the_marks(path: Path) -> None:
    os.truncate(segment(path, -1), 5000)


def cut_before_the_frames(path: Path) -> None:
    os.truncate(segment(path, -1), FRAMES_AT)


def lose_the_last_byte(path: Path) -> None:
    file = segment(path, -1)
    os.truncate(file, file.stat().st_size - 1)


def lose_the_segment(path: Path) -> None:
    segment(path, -1).unlink()


def empty_the_segment(path: Path) -> None:
    os.truncate(segment(path, -1), 0)


def another_segment_in_its_place(path: Path) -> None:
    shutil.copyfile(segment(path, 1), segment(path, -1))


def lose_the_scalars(path: Path) -> None:
    (path / "scalars").unlink()


def lose_all_segments(path: Path) -> None:
    for file in (path / "log").iterdir():
        file.unlink()


HEADS = [lose_both_marks, lose_the_head, cut_behind_the_header, cut_between_the_marks, cut_before_the_frames, lose_the_last_byte]
REST = [lose_the_segment, empty_the_segment, another_segment_in_its_place, lose_the_scalars, lose_all_segments]


@pytest.mark.parametrize("loss", [*HEADS, *REST])
def test_it_is_told_to_a_start_to_readers_of_files_and_to_tools(tmp_path: Path, loss: Callable[[Path], None]) -> None:
    write_log(tmp_path, HISTORY)
    other_boot(tmp_path)
    reader = LogReader(tmp_path)
    loss(tmp_path)
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.name not in {"LOCK", "live"}}
    for read in (reader.frontier, lambda: LogReader(tmp_path).frontier(), lambda: digest(tmp_path), lambda: opened(tmp_path)):
        with pytest.raises(Damaged, match=r"segment|scalars"):
            read()
    if loss in {lose_the_scalars, lose_all_segments}:
        with pytest.raises(Damaged, match="restore the file"):
            verify(tmp_path)
    else:
        assert verify(tmp_path).damage
    assert {file: file.read_bytes() for file in files} == files


@pytest.mark.parametrize("loss", HEADS)
def test_repair_gives_the_last_segment_a_mark_and_its_size_again(tmp_path: Path, loss: Callable[[Path], None]) -> None:
    write_log(tmp_path, HISTORY)
    other_boot(tmp_path)
    loss(tmp_path)
    found = repair(tmp_path)
    done = repair(tmp_path, accept_loss_from=found.offset)
    assert done.truncated
    assert any(Path(done.kept_in).iterdir())
    assert verify(tmp_path).damage == []
    _, recovered, close = opened(tmp_path)
    end = recovered.state.position + len(recovered.tail)
    assert end >= list_positions(str(tmp_path), "seg")[-1] - 1
    assert list(recovered.tail) == HISTORY.frames[recovered.state.position : end]
    close()
    writer, _, close = opened(tmp_path)
    writer.append(HISTORY.frames[end:])
    writer.sync()
    decide(writer, HISTORY, recovered.state.position + 1, len(HISTORY.frames))
    close()
    assert verify(tmp_path).damage == []
    assert LogReader(tmp_path).frontier().offset == len(HISTORY.records)


def test_a_reader_of_a_gateway_that_begins_meanwhile_sees_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scalars are looked for first, and both they and the first segment are made behind that look."""
    _, _, close = opened(tmp_path / "blank")
    close()
    (tmp_path / "blank" / "scalars").unlink()
    reader = LogReader(tmp_path / "blank")
    write_log(tmp_path / "begun", HISTORY)
    looked: list[str] = []

    def begin_meanwhile(path: str) -> object:
        looked.append(path)
        if len(looked) > 1:
            return read_hard_state(path)
        shutil.copytree(tmp_path / "begun" / "log", tmp_path / "blank" / "log", dirs_exist_ok=True)
        shutil.copyfile(tmp_path / "begun" / "scalars", tmp_path / "blank" / "scalars")
        return None

    other_boot(tmp_path / "blank")
    monkeypatch.setattr("tutti.log.read.reader.read_hard_state", begin_meanwhile)
    assert reader.frontier().offset == len(HISTORY.records)


@pytest.mark.parametrize("voters", [1, 3])
def test_a_member_of_a_group_that_gives_records_up_is_another_disk_from_then_on(tmp_path: Path, voters: int) -> None:
    """What it voted for is gone: the group must not count on it."""
    write_log(tmp_path, sample(120, size=1500, voters=voters))
    other_boot(tmp_path)
    before = read_identity(str(tmp_path))
    lose_both_marks(tmp_path)
    found = repair(tmp_path)
    assert (found.renewed, read_identity(str(tmp_path))) == ("", before)
    assert found.others_vote == (voters > 1)
    done = repair(tmp_path, accept_loss_from=found.offset)
    after = read_identity(str(tmp_path))
    assert before is not None
    assert after is not None
    assert (after.incarnation != before.incarnation) == (voters > 1) == bool(done.renewed)
