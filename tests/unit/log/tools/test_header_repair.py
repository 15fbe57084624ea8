"""Repair makes a segment's header again where every fact of it is told elsewhere, and only there."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.unit.log.corruption import batches_of, flip, place_of
from tests.unit.log.history import LOG, opened, other_boot, sample, write_log
from tutti.data.frames.frame import HEADER_SIZE
from tutti.errors import Damaged, UsageError
from tutti.log.files.layout import FRAMES_AT, SEGMENT_HEADER_SIZE, list_positions
from tutti_gateway.log.tools.repair import Repair, repair
from tutti_gateway.log.tools.verify import verify


@pytest.mark.slow
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_repair_makes_a_segments_header_again_whichever_of_its_bytes_is_wrong(tmp_path: Path, segment: int) -> None:
    history = sample(60, size=1500)
    write_log(tmp_path, history)
    firsts = list_positions(str(tmp_path), "seg")
    assert len(firsts) > 2
    file = tmp_path / "log" / f"{firsts[segment]:020d}.seg"
    whole = file.read_bytes()
    for byte in range(0, SEGMENT_HEADER_SIZE, 1 if segment == 1 else 5):  # headers are alike; each of these is two repairs
        flip(file, byte)
        damaged = file.read_bytes()
        with pytest.raises(UsageError, match="there is nothing to truncate"):
            repair(tmp_path, accept_loss_from=0)
        assert file.read_bytes() == whole, byte
        file.write_bytes(damaged)
        done = repair(tmp_path)
        assert [finding.position for finding in done.damage] == [firsts[segment]]
        assert (done.offset, done.lost, done.truncated) == (-1, 0, False)
        assert file.read_bytes() == whole, byte
        assert (Path(done.kept_in) / f"{file.name}.header").read_bytes() == damaged[:FRAMES_AT]
        assert repair(tmp_path) == Repair(())
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path)
    assert recovered.state.position + len(recovered.tail) == len(history.frames)
    close()


def test_a_wrong_header_alone_is_all_that_verify_tells(tmp_path: Path) -> None:
    write_log(tmp_path, sample(120, size=1500))
    before = verify(tmp_path)
    for first in list_positions(str(tmp_path), "seg"):
        file = tmp_path / "log" / f"{first:020d}.seg"
        flip(file, 30)
        found = verify(tmp_path)
        assert [(finding.position, finding.byte) for finding in found.damage] == [(first, 0)]
        assert (found.records, found.end) == (before.records, before.end)
        flip(file, 30)


def test_headers_are_made_again_also_of_segments_in_a_row_and_beside_other_damage(tmp_path: Path) -> None:
    history = sample(120, size=1500)
    write_log(tmp_path, history)
    firsts = list_positions(str(tmp_path), "seg")
    files = [tmp_path / "log" / f"{first:020d}.seg" for first in firsts]
    whole = [file.read_bytes() for file in files]
    for file in files[:3]:
        flip(file, 30)
    frame = next(frame for frame in batches_of(history) if frame.position > firsts[3])
    damaged, place = place_of(tmp_path, frame.position)
    flip(damaged, place + frame.size - 30)
    offset = history.offset_after(frame.position - 1)
    looked = repair(tmp_path)
    assert [finding.position for finding in looked.damage] == [*firsts[:3], frame.position]
    assert (looked.offset, looked.truncated) == (offset, False)
    assert [file.read_bytes() for file in files[:3]] == whole[:3]
    assert sorted(file.name for file in Path(looked.kept_in).iterdir()) == [f"{file.name}.header" for file in files[:3]]
    assert repair(tmp_path, accept_loss_from=offset).truncated


@pytest.mark.parametrize("doubt", ["first frame", "frame before", "segment before", "log", "nobody names the log"])
def test_a_header_of_which_a_fact_is_in_doubt_is_not_made_again(tmp_path: Path, doubt: str) -> None:
    history = sample(120, size=1500)
    write_log(tmp_path, history)
    firsts = list_positions(str(tmp_path), "seg")
    files = [tmp_path / "log" / f"{first:020d}.seg" for first in firsts]
    flip(files[2], 30)
    if doubt == "first frame":
        flip(files[2], FRAMES_AT + 40)
    elif doubt == "frame before":
        file, place = place_of(tmp_path, history.frames[firsts[2] - 2].position)
        flip(file, place + 40)
    elif doubt == "segment before":
        files[1].unlink()
    elif doubt == "log":
        identity = (tmp_path / "identity.json").read_text()
        (tmp_path / "identity.json").write_text(identity.replace(LOG.hex(), "ab" * 16))
    else:
        for file in (*files[:2], *files[3:]):
            flip(file, 30)
        flip(files[0], FRAMES_AT + HEADER_SIZE)  # the ROSTER's body
    damaged = files[2].read_bytes()
    with contextlib.suppress(Damaged):
        assert repair(tmp_path).offset >= 0
    assert files[2].read_bytes() == damaged
