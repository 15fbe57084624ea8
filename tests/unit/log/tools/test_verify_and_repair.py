"""Verify finds what is wrong and only that, and repair cuts only when told to."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.cases import first_fast
from tests.unit.log.corruption import batches_of, flip, place_of
from tests.unit.log.history import History, expected, opened, other_boot, sample, seen, write_log
from tutti.data.frames.frame import Buffer, Frame, crc32c
from tutti.errors import Damaged, DirectoryRefused, UsageError
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.files.storage import Storage
from tutti.log.format.index import ROW_SIZE, ROWS_AT, Sealed, index_sealed, read_sealed
from tutti.log.format.snapshot import read_snapshot
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.repair import repair
from tutti_gateway.log.tools.verify import verify


def test_a_good_log_verifies_whatever_is_left_of_its_indexes(tmp_path: Path) -> None:
    history = sample(80, size=1500)
    write_log(tmp_path, history)
    found = verify(tmp_path)
    assert (found.damage, found.notes) == ([], [])
    assert (found.frames, found.records, found.end) == (len(history.frames), len(history.records), len(history.frames))
    for kind in ("idx", "snap"):
        for file in (tmp_path / "log").glob(f"*.{kind}"):
            file.unlink()
    found = verify(tmp_path)
    assert found.damage == []
    assert {note.what.split(";")[0] for note in found.notes} == {"no valid index", "no valid snapshot"}


def test_verify_names_position_offset_file_and_byte(tmp_path: Path) -> None:
    history = sample(80, size=1500)
    write_log(tmp_path, history)
    frame = batches_of(history)[40]
    file, place = place_of(tmp_path, frame.position)
    flip(file, place + frame.size - 30)
    (finding,) = verify(tmp_path).damage
    assert finding[:4] == (frame.position, history.offset_after(frame.position - 1), str(file), place)
    assert "has CRC" in finding.what


@pytest.mark.parametrize("part", ["header", "segment header", "snapshot", "index", "missing segment"])
def test_verify_finds_damage_everywhere(tmp_path: Path, part: str) -> None:
    history = sample(120, size=1500)
    write_log(tmp_path, history)
    firsts = list_positions(str(tmp_path), "seg")
    log = tmp_path / "log"
    if part == "header":
        file, place = place_of(tmp_path, history.frames[firsts[1] + 2].position)
        flip(file, place + 33)
        position, what = firsts[1] + 3, "bad header"
    elif part == "segment header":
        flip(log / f"{firsts[2]:020d}.seg", 30)
        position, what = firsts[2], "fails its CRC"
    elif part == "snapshot":
        found = read_snapshot(str(tmp_path), firsts[2])
        assert found is not None
        found.state.next_offset += 1
        (log / f"{firsts[2]:020d}.snap").write_bytes(found.to_bytes())
        position, what = firsts[2], "the snapshot differs from"
    elif part == "index":
        file = log / f"{firsts[1]:020d}.idx"
        data = bytearray(file.read_bytes())
        data[ROWS_AT + 16] ^= 1
        sealed = read_sealed(data, firsts[1])
        assert sealed is not None
        data[:ROWS_AT] = sealed._replace(rows_crc=crc32c(bytes(data[ROWS_AT:]))).to_bytes()
        file.write_bytes(data)
        position, what = firsts[1], "the index differs from"
    else:
        (log / f"{firsts[2]:020d}.seg").unlink()
        position, what = firsts[2], f"the log continues only at position {firsts[3]}"
    damage = verify(tmp_path).damage
    assert damage[0].position == position
    assert what in damage[0].what


def test_an_index_that_is_sealed_while_verify_looks_at_it_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = sample(120, size=1500)
    write_log(tmp_path, history)
    file = tmp_path / "log" / f"{list_positions(str(tmp_path), 'seg')[1]:020d}.idx"
    sealed = file.read_bytes()
    file.write_bytes(bytes(ROWS_AT) + sealed[ROWS_AT:] + bytes(ROW_SIZE))  # as it is before: grown ahead of its rows

    def seal_meanwhile(path: str, first: int) -> Sealed | None:
        if path == str(file):
            with file.open("r+b") as index:
                index.truncate(len(sealed))
                index.write(sealed[:ROWS_AT])
        return index_sealed(path, first)

    monkeypatch.setattr("tutti_gateway.log.tools.verify.index_sealed", seal_meanwhile)
    found = verify(tmp_path)
    assert (found.damage, found.notes) == ([], [])
    assert file.read_bytes() == sealed


def test_a_wrong_row_that_no_seal_covers_is_a_note_that_names_it(tmp_path: Path) -> None:
    history = sample(30, size=400)
    write_log(tmp_path, history)
    index = max((tmp_path / "log").glob("*.idx"))
    first = int(index.stem)
    flip(index, ROWS_AT + 3 * ROW_SIZE + 16)
    found = verify(tmp_path)
    assert found.damage == []
    assert [(note.position, note.file, note.byte) for note in found.notes] == [(first + 3, str(index), ROWS_AT + 3 * ROW_SIZE)]


def test_a_torn_end_is_a_note(tmp_path: Path) -> None:
    history = sample(20)
    write_log(tmp_path, history)
    other_boot(tmp_path)
    file, place = place_of(tmp_path, history.frames[-1].position)
    flip(file, place + history.frames[-1].size + 3)
    found = verify(tmp_path)
    assert found.damage == []
    assert [note.what for note in found.notes] == ["a torn end: written but never synced; the next start truncates it"]


@pytest.mark.parametrize("tool", [verify, digest, lambda path: list(inspect(path)), repair])
def test_a_tool_lets_its_files_go_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Callable[[Path], object]
) -> None:
    history = sample(40)
    write_log(tmp_path, history)
    frame = batches_of(history)[20]
    file, place = place_of(tmp_path, frame.position)
    flip(file, place + frame.size - 30)
    left: list[LogReader] = []
    made, close = LogReader.__init__, LogReader.close

    def noted(self: LogReader, path: Path, *, damaged: bool = False) -> None:
        made(self, path, damaged=damaged)
        left.append(self)

    def gone(self: LogReader) -> None:
        left.remove(self)
        close(self)

    monkeypatch.setattr(LogReader, "__init__", noted)
    monkeypatch.setattr(LogReader, "close", gone)
    with contextlib.suppress(Damaged):
        tool(tmp_path)
    assert left == []


def test_inspect_lists_every_frame_with_its_fate(tmp_path: Path) -> None:
    history = sample(60)
    decided = len(history.frames) - 5
    write_log(tmp_path, history, decided=decided)
    found = list(inspect(tmp_path))
    assert [info.position for info in found] == list(range(1, len(history.frames) + 1))
    assert [info.fate for info in found] == [
        "pending" if frame.position > decided else "aborted" if frame.position in history.void else "decided"
        for frame in history.frames
    ]
    offsets = history.offsets_of(history.frames)
    assert [info.offset for info in found] == offsets[:decided] + [-1] * 5
    assert found[0].detail.startswith('{"group":"test"')
    assert [info.position for info in inspect(tmp_path, 7, 9)] == [7, 8, 9]
    assert [info.position for info in inspect(tmp_path, decided, decided + 2)] == [decided, decided + 1, decided + 2]
    ticks = [info for info in found if info.kind == "TICK"]
    assert ticks[0].detail == f'{{"number":1,"time_us":{history.ticks[0][1]}}}'


def damage_a_body(path: Path, history: History) -> tuple[int, int]:
    frame = batches_of(history)[50]
    file, place = place_of(path, frame.position)
    flip(file, place + frame.size - 30)
    return frame.position, history.offset_after(frame.position - 1)


def damage_a_header(path: Path, history: History) -> tuple[int, int]:
    frame = batches_of(history)[50]
    file, place = place_of(path, frame.position)
    flip(file, place + 40)
    return frame.position, history.offset_after(frame.position - 1)


def lose_a_segment(path: Path, history: History) -> tuple[int, int]:
    first = list_positions(str(path), "seg")[2]
    (path / "log" / f"{first:020d}.seg").unlink()
    return first, history.offset_after(first - 1)


def lose_the_last_segment(path: Path, history: History) -> tuple[int, int]:
    first = list_positions(str(path), "seg")[-1]
    (path / "log" / f"{first:020d}.seg").unlink()
    return first, history.offset_after(first - 1)


def break_the_last_segment(path: Path, history: History) -> tuple[int, int]:
    """Its header and its first frame's: that one cannot say any more what the other said."""
    first = list_positions(str(path), "seg")[-1]
    for byte in (20, FRAMES_AT + 40):
        flip(path / "log" / f"{first:020d}.seg", byte)
    return first, history.offset_after(first - 1)


def cut_a_segment(path: Path, history: History) -> tuple[int, int]:
    """Within its frames; it is the last one once the log is cut."""
    first = list_positions(str(path), "seg")[2]
    os.truncate(path / "log" / f"{first:020d}.seg", FRAMES_AT + sum(frame.size for frame in history.frames[first - 1 : first + 2]))
    return first + 3, history.offset_after(first + 2)


DAMAGES = [
    damage_a_body,
    damage_a_header,
    lose_a_segment,
    lose_the_last_segment,
    break_the_last_segment,
    cut_a_segment,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("reboot", first_fast([False, True], 1))
def test_repair_shows_the_loss_and_cuts_only_when_told_to(
    tmp_path: Path, damage: Callable[[Path, History], tuple[int, int]], reboot: bool
) -> None:
    history = sample(120, size=1500)
    write_log(tmp_path, history)
    position, offset = damage(tmp_path, history)
    if reboot:
        other_boot(tmp_path)
    files = {file: file.read_bytes() for file in (tmp_path / "log").iterdir()}
    looked = repair(tmp_path)
    assert (looked.offset, looked.truncated, looked.kept_in) == (offset, False, "")
    assert looked.damage[0].position == position
    assert looked.lost == LogReader(tmp_path, damaged=True).frontier().offset - offset
    with pytest.raises(UsageError, match=f"from offset {offset} on, not from {offset + 1}"):
        repair(tmp_path, accept_loss_from=offset + 1)
    assert {file: file.read_bytes() for file in (tmp_path / "log").iterdir()} == files

    done = repair(tmp_path, accept_loss_from=offset)
    assert done.truncated
    assert any(Path(done.kept_in).iterdir())
    reader = LogReader(tmp_path)
    assert reader.frontier().offset == offset
    assert seen(scan(reader, 0, offset)) == expected(history, 0, offset)
    assert verify(tmp_path).damage == []
    writer, recovered, close = opened(tmp_path)
    assert (recovered.state.position, recovered.state.next_offset, recovered.tail) == (position - 1, offset, ())
    writer.append(history.frames[position - 1 : position + 3])
    writer.sync()
    close()
    assert verify(tmp_path).damage == []
    with pytest.raises(UsageError, match=r"no record of the log in .* is corrupt"):
        repair(tmp_path, accept_loss_from=offset)


def test_a_void_batch_is_not_brought_to_life_by_a_cut_before_its_abort(tmp_path: Path) -> None:
    history = History()
    history.batch("p", "t", [b"good"])
    void = history.batch("p", "t", [b"void"])
    between = history.batch("q", "t", [b"between"])
    history.abort(void.position)
    history.epoch("p")
    history.batch("p", "t", [b"after"])
    write_log(tmp_path, history)
    file, place = place_of(tmp_path, between.position)
    flip(file, place + 40)
    looked = repair(tmp_path)
    assert (looked.damage[0].position, looked.offset, looked.lost) == (between.position, 1, 2)
    repair(tmp_path, accept_loss_from=1)
    _, recovered, close = opened(tmp_path)
    assert (recovered.state.position, recovered.tail) == (void.position - 1, ())
    close()


def test_repair_puts_wrong_indexes_aside_and_loses_nothing(tmp_path: Path) -> None:
    history = sample(80, size=1500)
    write_log(tmp_path, history)
    first = list_positions(str(tmp_path), "seg")[1]
    snapshot = tmp_path / "log" / f"{first:020d}.snap"
    other = tmp_path / "log" / f"{list_positions(str(tmp_path), 'seg')[2]:020d}.snap"
    found = read_snapshot(str(tmp_path), first)
    assert found is not None
    found.state.next_topic += 3
    snapshot.write_bytes(found.to_bytes())
    done = repair(tmp_path)
    assert (done.lost, done.truncated, [file.name for file in Path(done.kept_in).iterdir()]) == (0, False, [snapshot.name])
    assert other.exists()
    assert verify(tmp_path).damage == []
    assert repair(tmp_path).damage == ()


def test_repair_refuses_while_the_gateway_runs(tmp_path: Path) -> None:
    write_log(tmp_path, sample(5))
    _, _, close = opened(tmp_path)
    with pytest.raises(DirectoryRefused, match="in use by process"):
        repair(tmp_path)
    assert verify(tmp_path).damage == []  # a look is always possible
    close()


def test_a_halted_gateway_says_where_and_what_to_do(tmp_path: Path) -> None:
    history = sample(30)
    write_log(tmp_path, history)
    other_boot(tmp_path)
    file, place = place_of(tmp_path, history.frames[-1].position)
    flip(file, place + 9)
    (tmp_path / "log" / f"{1:020d}.idx").write_bytes(b"")
    offset = history.offset_after(len(history.frames) - 1)
    with pytest.raises(Damaged) as caught:
        opened(tmp_path)
    assert caught.value.exit_code == 4
    assert f"corrupt at position {len(history.frames)} (offset {offset}): {file} has a bad header at byte {place}" in str(
        caught.value
    )
    assert f"tutti log repair {tmp_path}" in str(caught.value)


class Interrupted(Exception):
    """The repair ended here."""


class Interrupting(Storage):
    """Ends after so many steps that change the disk."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _step(self) -> None:
        if not self.left:
            raise Interrupted
        self.left -= 1

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        self._step()
        super().write(fd, parts, at)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)


def void_with_a_late_abort(path: Path, *, begins_segment: bool) -> tuple[History, Frame]:
    """A void batch, a good frame, a damaged one in the same segment, the ABORT of the void batch, several segments of more."""
    history = History()
    for number in range(100):
        history.batch("p", "t", [b"good %d" % number * 100])
        used = 12288 + sum(frame.size for frame in history.frames)
        if used + (1500 if begins_segment else 8000) > 64 << 10:
            break
    void = history.batch("p", "t", [b"void" * 400])
    history.batch("q", "t", [b"between"])
    damaged = history.batch("q", "t", [b"damaged"])
    history.abort(void.position)
    history.epoch("p")
    for number in range(40):
        history.batch("p", "t", [b"after %d" % number * 500])
    write_log(path, history)
    firsts = list_positions(str(path), "seg")
    assert len(firsts) > 3
    assert (void.position in firsts) is begins_segment
    file, place = place_of(path, damaged.position)
    flip(file, place + 40)
    return history, void


@pytest.mark.parametrize("begins_segment", [False, True])
@pytest.mark.parametrize("reboot", first_fast([False, True], 1))
def test_an_interrupted_repair_commits_nothing_and_can_be_finished(tmp_path: Path, reboot: bool, begins_segment: bool) -> None:
    made = tmp_path / "made"
    history, void = void_with_a_late_abort(made, begins_segment=begins_segment)
    offset = history.offset_after(void.position - 1)
    outcomes = []
    for steps in range(200):
        path = tmp_path / str(steps)
        shutil.copytree(made, path)
        try:
            repair(path, accept_loss_from=offset, storage=Interrupting(steps))
            outcomes.append("done")
        except Interrupted:
            outcomes.append("interrupted")
        if reboot:
            other_boot(path)
        for again in (False, True):
            try:
                _, recovered, close = opened(path)
            except Damaged:
                assert (outcomes[-1], again) == ("interrupted", False), steps
                outcomes[-1] = "halted"
            else:
                close()
                found = recovered.state.position + len(recovered.tail)
                if found == len(history.frames) and not again:
                    assert outcomes[-1] == "interrupted", steps
                    outcomes[-1] = "as before"
                else:
                    assert (found, recovered.state.next_offset) == (void.position - 1, offset), steps
                    break
            repair(path, accept_loss_from=offset)
        assert verify(path).damage == []
        assert list(path.glob("kept-*/*.seg"))
        shutil.rmtree(path)
        if outcomes[-1] == "done":
            break
    # A few may end when the mark is written already, which then is as good as done.
    assert set(outcomes[:-3]) == {"as before", "halted"}
    assert outcomes == sorted(outcomes, key=["as before", "halted", "interrupted", "done"].index)
