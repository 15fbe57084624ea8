"""Properties of recovery: where a corrupt log ends, and which kind of end that is, for every truncation and every flipped bit. The
test computes the expected outcome from the sizes of the frames and the marks in the file, without any code of the recovery.
"""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.history import LOG, SMALL, History, decide, opened, other_boot, sample, write_log
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import Damaged
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.vote_mark import VoteMark
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.log.write.recovery import recover

FRAMES_AT, HEADER = 12288, 96
SEGMENT_HEADER = 52  # bytes of page 0 that say something
SLOTS = (4096, 8192)
MARK = struct.Struct("<4sIQQQQqqI")  # and its CRC


@dataclass
class Case:
    """A directory in which one segment is about to be changed."""

    path: Path
    history: History
    frames: list[Frame]  # of the segment
    whole: bytes  # the segment
    scalars_mark: tuple[int, int, int]  # sequence, position, frontier
    log: bytes  # uuid, empty while nothing is decided

    @property
    def file(self) -> Path:
        return self.path / "log" / f"{self.frames[0].position:020d}.seg"


def mark_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Return sequence, position and frontier of the mark at a file position, zeros without a valid one."""
    raw = data[at : at + MARK.size + 4]
    if len(raw) < MARK.size + 4 or raw[:4] != b"TUTM":
        return (0, 0, 0)
    if google_crc32c.value(raw[: MARK.size]) != struct.unpack_from("<I", raw, MARK.size)[0]:
        return (0, 0, 0)
    fields = MARK.unpack_from(raw)
    return fields[2], fields[3], fields[5]


def good_frames(case: Case, data: bytes, frontier: int) -> int:
    """Return how many frames from the segment's first one are intact, as far as a start checks: headers, bodies above the frontier,
    and bodies of frames other than BATCH.
    """
    place = FRAMES_AT
    for number, frame in enumerate(case.frames):
        extents = [(place, place + HEADER)]
        if frame.kind != Kind.BATCH or frame.position > frontier:
            progress = place + HEADER
            body = progress + (len(frame.progress) + 7) // 8 * 8
            extents += [(progress, progress + len(frame.progress)), (body, body + frame.body_length)]
        place += frame.size
        if len(data) < place or any(data[low:high] != case.whole[low:high] for low, high in extents):
            return number
    return len(case.frames)


def outcome(case: Case, data: bytes) -> tuple[str, int, int]:
    """Return the expected result: ("damaged", position, 0) or ("found", frontier, end); ("header", 0, 0) if the segment's own
    header is corrupt, ("head", 0, 0) if its size or both marks are lost, which were durable before it was a segment.
    """
    if data[:SEGMENT_HEADER] != case.whole[:SEGMENT_HEADER]:
        return "header", 0, 0
    if len(data) < len(case.whole) or not any(any(mark_at(data, at)) for at in SLOTS):
        return "head", 0, 0
    _, durable, frontier = max([case.scalars_mark, *(mark_at(data, at) for at in SLOTS)])
    first = case.frames[0].position
    end = first - 1 + good_frames(case, data, frontier)
    if end < max(durable, 1 if case.log else 0):
        return "damaged", end + 1, 0
    return "found", frontier, end


def offset_before(history: History, position: int) -> int:
    """Return the offset at a position from the frames before it: a later ABORT is not known."""
    before = History(begin=False)
    for frame in history.frames[: position - 1]:
        before.frames.append(frame)
        if frame.kind == Kind.ABORT:
            body = msgspec.msgpack.decode(frame.body)
            before.void |= {
                other.position
                for other in before.frames[body[0] - 1 :]
                if other.kind == Kind.BATCH and (other.producer, other.epoch) == (frame.producer, frame.epoch)
            }
    return before.offset_after(position - 1)


def check(case: Case, data: bytes) -> None:
    """Recover the changed segment, and compare the result with the expected one."""
    case.file.write_bytes(data)
    kind, one, other = outcome(case, data)
    if kind != "found":
        with pytest.raises(Damaged) as caught:
            recover(str(case.path), Storage(), LogOptions(), log=case.log, live=(0, 0), failed=False)
        assert kind != "head" or f"segment {case.file} is corrupt at byte" in str(caught.value)
        if kind == "damaged":
            assert f"the log is corrupt at position {one} (offset {offset_before(case.history, one)})" in str(caught.value)
        assert case.file.read_bytes() == data  # nothing was changed
        return
    found = recover(str(case.path), Storage(), LogOptions(), log=case.log, live=(0, 0), failed=False).recovered
    same(case.history, found, one, other)
    if not other:
        assert not case.file.exists()  # nothing was ever durable: the log has not begun
        return
    after = case.file.read_bytes()
    assert len(after) == len(case.whole)
    place = FRAMES_AT + sum(frame.size for frame in case.frames if frame.position <= other)
    assert after[place : place + HEADER] == bytes(HEADER)  # the end is an end
    again = recover(str(case.path), Storage(), LogOptions(), log=case.log, live=(0, 0), failed=False).recovered
    same(case.history, again, one, other)


def same(history: History, found: Recovered, frontier: int, end: int) -> None:
    assert (found.state.position, found.state.next_offset) == (frontier, history.offset_after(frontier))
    assert list(found.tail) == history.frames[frontier:end]


def make(path: Path, history: History, *, synced: int, decided: int) -> Case:
    """A log of which the last frames were written and the writer died: `synced` of them were durable, `decided` decided."""
    writer, _, close = opened(path)
    for start in range(0, synced, 5):
        writer.append(history.frames[start : min(start + 5, synced)])
        writer.sync()
    decide(writer, history, 1, decided)
    while writer.idle():
        continue
    writer.append(history.frames[synced:])
    stored = mark_at((path / "scalars").read_bytes(), 48)
    shutil.copytree(path, path.parent / "left")
    close()
    left = path.parent / "left"
    other_boot(left)
    first = max(int(file.stem) for file in (left / "log").glob("*.seg"))
    data = (left / "log" / f"{first:020d}.seg").read_bytes()
    return Case(left, history, history.frames[first - 1 :], data, stored, LOG if decided else b"")


@cache
def tiny(path: Path) -> Case:
    """One segment, some frames above the mark."""
    history = History()
    history.batch("p", "t", [b"one", None], progress=b"at 2")
    history.batch("p", "t", [b"two"], compression="lz4")
    history.tick()
    history.batch("q", "u", [b"three"] * 3)
    history.abort(5)
    history.epoch("p")
    history.batch("p", "t", [b"four"])
    history.batch("q", "u", [b"five"])
    return make(path, history, synced=13, decided=11)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    history = sample(90, size=1500)
    end = len(history.frames)
    return {
        "tiny": tiny(tmp_path_factory.mktemp("tiny") / "data"),
        "large": make(tmp_path_factory.mktemp("large") / "data", history, synced=end - 6, decided=history.settled(end - 9)),
        "nothing decided": make(tmp_path_factory.mktemp("undecided") / "data", sample(6), synced=9, decided=0),
    }


def test_a_last_segment_truncated_anywhere_is_corrupt(places: dict[str, Case]) -> None:
    case = places["tiny"]
    end = FRAMES_AT + sum(frame.size for frame in case.frames)
    outcomes = set()
    for size in [*range(FRAMES_AT, end + HEADER + 2, 7), 0, 1, 51, 52, 4096, 4200, 8192, 8300, 12287, len(case.whole) - 1]:
        data = case.whole[:size]
        outcomes.add(outcome(case, data)[0])
        check(case, data)
    assert outcomes == {"header", "head"}


@pytest.mark.parametrize("name", ["tiny", "large", "nothing decided"])
@pytest.mark.parametrize(("start", "end"), [(4096, 12288), (4096, 16384), (4096, 65536)])
def test_a_last_segment_without_a_good_mark_is_damaged(places: dict[str, Case], name: str, start: int, end: int) -> None:
    """Its first mark was durable before its name, so without one it is unknown how much of the lost data was durable."""
    case = places[name]
    data = case.whole[:start] + bytes(end - start) + case.whole[end:]
    assert outcome(case, data)[0] == "head"
    check(case, data)


def test_a_log_overwritten_with_zeros_from_anywhere_on(places: dict[str, Case]) -> None:
    """As a lost write leaves a preallocated file."""
    case = places["tiny"]
    end = FRAMES_AT + sum(frame.size for frame in case.frames)
    for at in range(FRAMES_AT, end, 8):
        check(case, case.whole[:at] + bytes(len(case.whole) - at))


@given(data=st.data())
@settings(max_examples=300)
def test_flipped_bits_are_classified_exactly(places: dict[str, Case], data: st.DataObject) -> None:
    case = places[data.draw(st.sampled_from(sorted(places)))]
    end = FRAMES_AT + sum(frame.size for frame in case.frames) + HEADER
    changed = bytearray(case.whole)
    spots = st.one_of(st.integers(0, 51), st.sampled_from([4096, 8192]).flatmap(lambda slot: st.integers(slot, slot + 67)))
    anywhere = st.integers(FRAMES_AT, end - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(anywhere, anywhere, anywhere, spots, st.integers(0, len(changed) - 1)))
        changed[at] ^= 1 << data.draw(st.integers(0, 7))
    check(case, bytes(changed))


@given(data=st.data())
@settings(max_examples=100)
def test_torn_sectors_above_the_mark_are_truncated(places: dict[str, Case], data: st.DataObject) -> None:
    """Sectors of the last, unsynced write that are missing never count as damage, and never give a partial frame."""
    case = places[data.draw(st.sampled_from(sorted(places)))]
    _, durable, _ = max([case.scalars_mark, *(mark_at(case.whole, at) for at in SLOTS)])
    place = FRAMES_AT + sum(frame.size for frame in case.frames if frame.position <= durable)
    end = FRAMES_AT + sum(frame.size for frame in case.frames) + HEADER
    changed = bytearray(case.whole)
    for sector in range(place // 512, end // 512 + 1):
        if data.draw(st.booleans()):
            low, high = max(sector * 512, place), (sector + 1) * 512
            changed[low:high] = bytes(high - low)
    assert outcome(case, bytes(changed))[0] == "found"
    check(case, bytes(changed))


def test_a_recovered_log_continues(tmp_path: Path) -> None:
    """A truncated log accepts new frames, and remnants after the truncation never join it."""
    history = sample(40)
    write_log(tmp_path, history, decided=20)
    other_boot(tmp_path)
    file = tmp_path / "log" / f"{1:020d}.seg"
    data = bytearray(file.read_bytes())
    place = FRAMES_AT + sum(frame.size for frame in history.frames[:30])
    # Nothing but the segment's first mark is there, so this is a torn write with whole frames behind it.
    data[SLOTS[0] : SLOTS[0] + 512] = VoteMark(1).to_bytes().ljust(512, b"\0")
    data[SLOTS[1] : SLOTS[1] + 512] = bytes(512)
    data[place + 5] ^= 1
    file.write_bytes(data)
    writer, recovered, close = opened(tmp_path, SMALL)
    assert recovered.state.position + len(recovered.tail) == 30
    shorter = History()
    shorter.frames, shorter.view_id = history.frames[:30], history.view_id
    shorter.view(2)
    writer.append(shorter.frames[30:])
    end = place + shorter.frames[30].size
    assert file.read_bytes()[end : end + HEADER] == bytes(HEADER)  # every write ends with an invalid header
    writer.sync()
    close()
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, SMALL)
    assert recovered.state.position + len(recovered.tail) == 31
    close()
