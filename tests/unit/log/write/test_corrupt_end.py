"""A damaged end that other gateways may hold: what a start says of it, what marks go on naming, and what takes its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.corrupt_end import DECIDED, HISTORY, LAST, OPTIONS, lost, marked, rot, spot, start, whole
from tests.unit.log.history import History, decide, opened, other_boot, sample
from tutti.data.hard_state import HardState
from tutti.errors import Damaged, DiskFull
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.format.hard_state import read_hard_state
from tutti.log.format.vote_mark import VoteMark, newest_mark
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.log.tools.verify import verify


def mark_of(path: Path) -> VoteMark:
    stored = read_hard_state(str(path))
    assert stored is not None
    return newest_mark(str(path), stored.mark, list_positions(str(path), "seg"))


def log_of(path: Path) -> dict[str, bytes]:
    """The segments, apart from their marks and headers."""
    return {file.name: file.read_bytes()[FRAMES_AT:] for file in (path / "log").glob("*.seg*")}


PLACES: dict[str, Callable[[list[int]], int]] = {
    "last": lambda firsts: LAST,
    "in the last segment": lambda firsts: firsts[-1] + 1,
    "at the start of the last segment": lambda firsts: firsts[-1],
    "two segments before": lambda firsts: firsts[-3] + 2,
    "right behind the frontier": lambda firsts: DECIDED + 1,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("where", [5, 97])
def test_a_start_tells_what_is_lost_and_changes_nothing_however_often(tmp_path: Path, place: str, where: int) -> None:
    position = PLACES[place](marked(tmp_path))
    assert position > DECIDED
    rot(tmp_path, position, where)
    before = log_of(tmp_path)
    for _ in range(3):
        recovered = start(tmp_path)
        assert recovered.damage == lost(position)
        assert recovered.state.position == DECIDED
        assert list(recovered.tail) == HISTORY.frames[DECIDED : position - 1]
        assert log_of(tmp_path) == before
        other_boot(tmp_path)
    assert verify(tmp_path).damage


def synced_behind_the_mark(path: Path, frames: int) -> None:
    """A log whose last frames were durable and voted for, and the power went before a mark named them."""
    writer, _, close = opened(path / "run", OPTIONS)
    writer.append(HISTORY.frames[:-frames])
    writer.sync()
    decide(writer, HISTORY, 1, DECIDED)
    while writer.idle():
        continue
    writer.append(HISTORY.frames[-frames:])
    writer.sync()
    shutil.copytree(path / "run", path / "off", ignore=shutil.ignore_patterns("LOCK"))
    close()
    other_boot(path / "off")


@pytest.mark.parametrize("place", [place for place in PLACES if place != "last"])
@pytest.mark.parametrize("where", [5, 97])
@pytest.mark.parametrize("torn", [0, 1, 2])
def test_what_stands_whole_behind_the_mark_is_present_whatever_is_damaged_before_it(
    tmp_path: Path, place: str, where: int, torn: int
) -> None:
    """Voted for a moment before the power went: it counts as held by this disk, as the damaged frames before it do."""
    synced_behind_the_mark(tmp_path, 2)
    path = tmp_path / "off"
    assert mark_of(path).position == LAST - 2
    position = PLACES[place](list_positions(str(path), "seg"))
    assert DECIDED < position <= LAST - 2
    rot(path, position, where)
    for number in range(torn):  # these are damaged themselves, and no mark names them: torn
        rot(path, LAST - number, 97)
    end = HISTORY.frames[LAST - torn - 1]
    for _ in range(2):
        assert start(path).damage == Damage(position, end.position, end.view, end.header_crc)
        other_boot(path)
    writer, _, close = opened(path, OPTIONS)
    writer.append([HISTORY.frames[position - 1]])  # where it is written again, what stood there is set aside
    writer.sync()
    close()
    other_boot(path)
    assert start(path).damage == (Damage(position + 1, end.position, end.view, end.header_crc) if end.position > position else None)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("where", [5, 97])
def test_verify_beside_a_running_gateway_reports_a_durable_frame_that_cannot_be_read(
    tmp_path: Path, place: str, where: int
) -> None:
    position = PLACES[place](marked(tmp_path))
    file = rot(tmp_path, position, where)
    writer, _, close = opened(tmp_path, OPTIONS)
    (found,) = verify(tmp_path).damage
    assert (found.position, found.file, found.byte, found.derived) == (position, str(file), spot(tmp_path, position)[1], False)
    writer.append(HISTORY.frames[position - 1 :])  # the copies of another gateway
    writer.sync()
    assert verify(tmp_path).damage == []
    close()


def test_verify_beside_a_running_gateway_accepts_frames_that_are_not_decided(tmp_path: Path) -> None:
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[:-5])
    writer.sync()
    decide(writer, HISTORY, 1, DECIDED)
    writer.append(HISTORY.frames[-5:])  # written, not synced
    assert verify(tmp_path).damage == []
    writer.truncate(HISTORY.settled(DECIDED + 3))
    assert verify(tmp_path).damage == []
    close()


def test_a_promise_and_idling_do_not_make_the_damage_forgotten(tmp_path: Path) -> None:
    position = PLACES["two segments before"](marked(tmp_path))
    rot(tmp_path, position)
    for number in (3, 4):
        writer, recovered, close = opened(tmp_path, OPTIONS)
        assert recovered.damage == lost(position)
        writer.write_hard_state(HardState(number, 0, 0))
        decide(writer, HISTORY, recovered.state.position + 1, HISTORY.settled(DECIDED + number))
        while writer.idle():
            continue
        close()
        other_boot(tmp_path)
        assert (mark_of(tmp_path).position, mark_of(tmp_path).chain) == (LAST, HISTORY.frames[-1].header_crc)


def test_frames_written_there_keep_what_stood_there_and_heal_the_log(tmp_path: Path) -> None:
    firsts = marked(tmp_path)
    position = PLACES["two segments before"](firsts)
    file = rot(tmp_path, position)
    before = log_of(tmp_path)
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[position - 1 : position + 2])
    writer.sync()
    kept = {Path(file.name + ".damaged-1").name: before[file.name]}
    kept |= {f"{first:020d}.seg.damaged-1": before[f"{first:020d}.seg"] for first in firsts[-2:]}
    found = log_of(tmp_path)
    assert {name: found[name].rstrip(b"\0") for name in kept} == {name: data.rstrip(b"\0") for name, data in kept.items()}
    close()
    other_boot(tmp_path)
    writer, recovered, close = opened(tmp_path, OPTIONS)
    assert recovered.damage == lost(position + 3)  # it was there, whatever became of the rest of the refill
    assert mark_of(tmp_path).position == LAST
    writer.append(HISTORY.frames[position + 2 :])
    writer.sync()
    while writer.idle():
        continue
    close()
    assert len(log_of(tmp_path)) == len(firsts) + 3  # what a refill left blank is not kept again
    other_boot(tmp_path)
    recovered = start(tmp_path)
    assert recovered.damage is None
    assert list(recovered.tail) == HISTORY.frames[DECIDED:]
    whole(tmp_path, HISTORY)


def other_log(position: int) -> History:
    other = HISTORY.branch(position, 2)
    for number in range(100):
        other.batch("new", "new", [b"%d" % number * 900])
    return other


@pytest.mark.parametrize("behind", [0, 1, 4])
def test_a_cut_makes_the_damage_forgotten_and_keeps_what_stood_there(tmp_path: Path, behind: int) -> None:
    position = PLACES["two segments before"](marked(tmp_path))
    cut = HISTORY.settled(position - 1 - behind)
    file = rot(tmp_path, position)
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.truncate(cut)
    assert Path(f"{file}.damaged-1").exists()
    assert mark_of(tmp_path)[1:4] == (cut, HISTORY.frames[cut - 1].view, HISTORY.frames[cut - 1].header_crc)
    close()
    other_boot(tmp_path)
    recovered = start(tmp_path)
    assert recovered.damage is None
    assert list(recovered.tail) == HISTORY.frames[DECIDED:cut]
    writer, _, close = opened(tmp_path, OPTIONS)
    other = other_log(cut)
    writer.append(other.frames[cut:])
    writer.sync()
    close()
    whole(tmp_path, other)


def test_a_cut_behind_frames_that_were_written_over_the_damage_makes_it_forgotten(tmp_path: Path) -> None:
    """As where the adopted log is shorter than what was durable here."""
    position = PLACES["in the last segment"](marked(tmp_path))
    rot(tmp_path, position)
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[position - 1 : position])
    writer.truncate(position)
    close()
    other_boot(tmp_path)
    recovered = start(tmp_path)
    assert (recovered.damage, list(recovered.tail)) == (None, HISTORY.frames[DECIDED:position])


def test_an_accepted_view_makes_the_damage_forgotten(tmp_path: Path) -> None:
    position = PLACES["in the last segment"](marked(tmp_path))
    rot(tmp_path, position)
    writer, recovered, close = opened(tmp_path, OPTIONS)
    writer.write_hard_state(HardState(9, 9, 0))
    assert mark_of(tmp_path).position == position - 1
    close()
    other_boot(tmp_path)
    writer, recovered, close = opened(tmp_path, OPTIONS)
    assert recovered.damage is None
    writer.append(HISTORY.frames[position - 1 :])
    close()
    whole(tmp_path, HISTORY)


@pytest.mark.parametrize("place", PLACES)
def test_a_log_starts_again_and_again_after_an_accepted_view_abandoned_its_corrupt_end(tmp_path: Path, place: str) -> None:
    """The first start removes the segments after the corrupt one. The hard state must not miss them at the second start."""
    position = PLACES[place](marked(tmp_path))
    rot(tmp_path, position)
    writer, recovered, close = opened(tmp_path, OPTIONS)
    assert recovered.damage == lost(position)
    writer.write_hard_state(HardState(9, 9, 0))
    close()
    for _ in range(3):
        other_boot(tmp_path)
        recovered = start(tmp_path)
        assert recovered.damage is None
        assert list(recovered.tail) == HISTORY.frames[DECIDED : position - 1]
    assert list_positions(str(tmp_path), "seg")[-1] <= position
    writer, recovered, close = opened(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[position - 1 :])
    close()
    whole(tmp_path, HISTORY)


def test_another_log_may_take_the_place_of_the_damaged_end_without_a_cut(tmp_path: Path) -> None:
    """The frame that the mark named is then another one, which must not be taken for files that were mixed."""
    position = HISTORY.settled(PLACES["two segments before"](marked(tmp_path))) + 1
    rot(tmp_path, position)
    other = other_log(position - 1)
    assert len(other.frames) > LAST
    writer, _, close = opened(tmp_path, OPTIONS)
    for start_at in range(position - 1, len(other.frames), 7):
        writer.append(other.frames[start_at : start_at + 7])
        writer.sync()
        shutil.copytree(tmp_path, tmp_path.parent / "killed")
        other_boot(tmp_path.parent / "killed")
        recovered = start(tmp_path.parent / "killed")
        end = min(start_at + 7, len(other.frames))
        assert list(recovered.tail) == other.frames[DECIDED:end]
        assert recovered.damage is None if end >= LAST else recovered.damage == lost(end + 1)
        shutil.rmtree(tmp_path.parent / "killed")
    close()
    whole(tmp_path, other)


def test_there_is_no_room_to_keep_what_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    position = PLACES["in the last segment"](marked(tmp_path))
    rot(tmp_path, position)
    writer, _, close = opened(tmp_path, OPTIONS)

    def full(*args: object) -> str:
        assert args
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tutti_gateway.log.upkeep.quarantine.copy_segment", full)
        with pytest.raises(DiskFull):
            writer.append(HISTORY.frames[position - 1 :])
        with pytest.raises(DiskFull):
            writer.truncate(position - 1)
        shutil.copytree(tmp_path, tmp_path.parent / "left")
    writer.append(HISTORY.frames[position - 1 :])
    close()
    whole(tmp_path, HISTORY)
    other_boot(tmp_path.parent / "left")
    assert start(tmp_path.parent / "left").damage == lost(position)


def roster(history: History, voters: int, learners: int = 0) -> None:
    history.roster(voters, learners)
    history.offsets("reader", 0)


@pytest.mark.parametrize(
    ("before", "behind", "healed"),
    [
        ([(3, 0)], [], True),
        ([(1, 0)], [], False),
        ([(1, 2)], [], False),  # learners do not vote
        ([(3, 0), (1, 0)], [], False),  # the last decided one counts
        ([(1, 0), (2, 0)], [], True),
        ([(1, 0)], [(2, 0)], True),  # and each behind it
        ([(2, 0)], [(1, 0)], True),
    ],
)
def test_only_a_log_that_others_vote_on_can_be_healed(
    tmp_path: Path, before: list[tuple[int, int]], behind: list[tuple[int, int]], healed: bool
) -> None:
    history = History(begin=False)
    for voters, learners in before:
        roster(history, voters, learners)
    decided = len(history.frames)
    for voters, learners in behind:
        roster(history, voters, learners)
    history.offsets("reader", 1)
    position = len(history.frames)
    history.offsets("reader", 2)
    marked(tmp_path, history, decided)
    file = tmp_path / "log" / f"{1:020d}.seg"
    data = bytearray(file.read_bytes())
    data[FRAMES_AT + sum(frame.size for frame in history.frames[: position - 1]) + 5] ^= 1
    file.write_bytes(data)
    if healed:
        last = history.frames[-1]
        assert start(tmp_path).damage == Damage(position, last.position, last.view, last.header_crc)
    else:
        with pytest.raises(Damaged, match=f"the log is corrupt at position {position} .*tutti log repair"):
            start(tmp_path)
        assert file.read_bytes() == data


def test_a_start_goes_back_to_a_watermark_before_what_was_decided_and_is_lost(tmp_path: Path) -> None:
    """Wherever it is lost; what is written there again makes the log whole."""
    writer, _, close = opened(tmp_path / "good", OPTIONS)
    stops = {0}
    for begin in range(0, LAST, 5):
        writer.append(HISTORY.frames[begin : begin + 5])
        writer.sync()
        stop = HISTORY.settled(min(begin + 3, LAST))
        if stop > max(stops):
            decide(writer, HISTORY, max(stops) + 1, stop)
            stops.add(stop)
    while writer.idle():
        continue
    close()
    other_boot(tmp_path / "good")
    decided = max(stops)
    for position in range(decided - 30, decided + 1, 6):
        path = tmp_path / str(position)
        shutil.copytree(tmp_path / "good", path)
        for snapshot in (path / "log").glob("*.snap"):
            if int(snapshot.stem) > decided - 40:
                snapshot.unlink()  # a start looks at what none of them covers
        rot(path, position)
        writer, recovered, close = opened(path, OPTIONS)
        assert recovered.damage == lost(position)
        assert recovered.state.position in stops
        assert recovered.state.position < position
        assert list(recovered.tail) == HISTORY.frames[recovered.state.position : position - 1]
        writer.append(HISTORY.frames[position - 1 :])
        writer.sync()
        close()
        whole(path, HISTORY)


def test_a_start_does_not_go_back_where_the_mark_says_less_than_was_shown(tmp_path: Path) -> None:
    """More was durable here than any mark names: the group must not take this gateway's word for less."""
    writer, _, close = opened(tmp_path / "one", OPTIONS)
    writer.append(HISTORY.frames)
    writer.sync()
    decide(writer, HISTORY, 1, DECIDED)
    while writer.idle():
        continue
    other = other_log(LAST)
    writer.append(other.frames[LAST:])
    writer.sync()
    shown = other.settled(len(other.frames))
    writer.frontier(shown, other.offset_after(shown))
    live = (tmp_path / "one" / "live").read_bytes()
    rot(tmp_path / "one", LAST - 1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    close()
    found = (tmp_path / "two" / "live").read_bytes()
    assert found == live
    inode = (tmp_path / "two" / "live").stat().st_ino.to_bytes(8, "little")
    (tmp_path / "two" / "live").write_bytes(live[:24] + inode + live[32:])  # as if this were no copy
    with pytest.raises(Damaged, match=f"corrupt at position {LAST - 1} "):
        start(tmp_path / "two")


@pytest.mark.parametrize("number", [-1, -2])
def test_a_bad_header_of_a_segment_is_made_again_by_a_start(tmp_path: Path, number: int) -> None:
    firsts = marked(tmp_path)
    file = tmp_path / "log" / f"{firsts[number]:020d}.seg"
    before = file.read_bytes()
    file.write_bytes(bytes(52) + before[52:])
    assert start(tmp_path).damage is None
    assert file.read_bytes() == before
    whole(tmp_path, HISTORY)


@pytest.mark.parametrize("where", ["last marks", "last segment gone", "first segment gone"])
def test_any_other_damage_is_for_a_person_to_look_at(tmp_path: Path, where: str) -> None:
    firsts = marked(tmp_path)
    last = tmp_path / "log" / f"{firsts[-1]:020d}.seg"
    if where == "last segment gone":
        last.unlink()
    elif where == "first segment gone":
        (tmp_path / "log" / f"{1:020d}.seg").unlink()
    else:
        data = bytearray(last.read_bytes())
        data[4096:FRAMES_AT] = bytes(FRAMES_AT - 4096)
        last.write_bytes(data)
    with pytest.raises(Damaged):
        start(tmp_path)


@pytest.mark.parametrize("where", [DECIDED, "header"])
def test_a_gateway_alone_halts_where_what_was_decided_is_lost(tmp_path: Path, where: int | str) -> None:
    history = sample(120, size=4000)
    firsts = marked(tmp_path, history)
    if where == "header":
        file = tmp_path / "log" / f"{firsts[-1]:020d}.seg"
        file.write_bytes(bytes(52) + file.read_bytes()[52:])
    else:
        rot(tmp_path, DECIDED)
        for snapshot in (tmp_path / "log").glob("*.snap"):
            snapshot.unlink()
    with pytest.raises(Damaged):
        start(tmp_path)
