"""The writer: what it asks of the disk, and in which order."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.unit.log.history import VIEW, History, decide, expected, opened, other_boot, sample, seen, write_log
from tests.unit.log.watched import Watched
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.errors import InvariantViolated, WrongDirectory
from tutti.log.files.layout import list_positions, read_header
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import IOV_MAX, Storage
from tutti.log.format.hard_state import encode_slot, read_hard_state
from tutti.log.format.vote_mark import VoteMark, newest_mark, segment_marks
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.log.write.segment import prepared_paths


def marks_of(path: Path) -> VoteMark:
    stored = read_hard_state(str(path))
    assert stored is not None
    return newest_mark(str(path), stored.mark, list_positions(str(path), "seg"))


def test_an_append_is_one_write_and_a_sync_serves_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARK_LATE_US", 0)
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames[:2])
    writer.sync()
    storage.calls.clear()
    writer.append(history.frames[2:7])
    writer.append(history.frames[7:12])
    frames = [at for what, at in storage.calls if what == "write" and at >= 12288]
    marks = [at for what, at in storage.calls if what == "write" and at < 12288]
    assert len(frames) == 2
    assert len(marks) == 1  # the mark is written once between two syncs, into the same file
    assert not [what for what, _ in storage.calls if what == "sync"]
    writer.sync()
    assert [what for what, _ in storage.calls].count("sync") == 1
    close()


def test_more_buffers_than_one_write_takes_are_split(tmp_path: Path) -> None:
    history = History()
    for _ in range(IOV_MAX):
        history.batch("p", "t", [b"x"], progress=b"p")
    write_log(tmp_path, history, LogOptions(segment_bytes=4 << 20, prepared_segments=0, reserved_bytes=0), step=10_000)
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path)
    assert recovered.state.position == len(history.frames)
    close()


@pytest.mark.parametrize("sizes", [[3, 1 << 20, 5], [1 << 20, (1 << 20) + 1, 1], [700_000] * 5, [1] * 3000, [0, 0, 9], []])
def test_a_large_write_is_split_and_all_of_it_arrives(tmp_path: Path, sizes: list[int]) -> None:
    storage = Storage()
    fd = storage.open(str(tmp_path / "file"), create=True)
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    storage.write(fd, parts, 7)
    storage.close(fd)
    assert (tmp_path / "file").read_bytes() == (bytes(7) + b"".join(parts) if sum(sizes) else b"")


def test_a_mark_waits_for_later_syncs_but_neither_long_nor_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARK_LATE_US", 60_000_000)
    history = sample(2 * limits.MARK_FRAMES)
    writer, _, close = opened(tmp_path)
    at = 0
    for count in (2, 3, limits.MARK_FRAMES - 7):
        writer.append(history.frames[at : at + count])
        writer.sync()
        at += count
    assert marks_of(tmp_path).position == 0
    writer.append(history.frames[at : at + 1])  # one less than that many are synced
    writer.sync()
    writer.append(history.frames[at + 1 : at + 2])
    assert marks_of(tmp_path).position == 0
    writer.sync()
    writer.append(history.frames[at + 2 : at + 3])
    writer.sync()
    assert marks_of(tmp_path).position == at + 2
    monkeypatch.setattr(writer, "_late_us", 0)
    writer.append(history.frames[at + 3 : at + 4])
    writer.sync()
    assert marks_of(tmp_path).position == at + 3
    close()


def test_a_mark_names_only_what_an_earlier_sync_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARK_LATE_US", 0)
    history = sample(8)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[:2])
    writer.sync()
    writer.append(history.frames[2:5])
    writer.sync()
    assert marks_of(tmp_path).position == 2
    slots = segment_marks(str(tmp_path), 1)
    writer.append(history.frames[5:9])
    after = segment_marks(str(tmp_path), 1)
    assert marks_of(tmp_path).position == 5
    durable = max(range(2), key=lambda slot: mark.sequence if (mark := slots[slot]) is not None else -1)
    assert after[durable] == slots[durable]  # a torn write of the other leaves it
    assert after[1 - durable] != slots[1 - durable]
    writer.sync()
    close()


def test_a_write_of_scalars_leaves_the_newest_slot_alone(tmp_path: Path) -> None:
    writer, _, close = opened(tmp_path)
    for number in range(1, 5):
        before = read_hard_state(str(tmp_path))
        slots = [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)]
        writer.write_hard_state(HardState(number, number, number))
        after = [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)]
        assert before is not None
        newest = slots.index(encode_slot(before))
        assert after[newest] == slots[newest]
        assert after[1 - newest] != slots[1 - newest]
    close()


def test_an_idle_log_brings_its_mark_up_to_date(tmp_path: Path) -> None:
    history = sample(8)
    writer, _, close = opened(tmp_path)
    assert writer.idle() is False  # nothing written yet
    writer.append(history.frames[:5])
    writer.sync()
    decide(writer, history, 1, 4)
    while writer.idle():
        continue
    mark = marks_of(tmp_path)
    assert (mark.position, mark.view, mark.chain) == (5, VIEW, history.frames[4].header_crc)
    assert (mark.frontier_position, mark.frontier_offset) == (4, history.offset_after(4))
    close()


def test_a_strict_mark_is_durable_when_the_sync_is_done(tmp_path: Path) -> None:
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, LogOptions(segment_bytes=64 << 10, prepared_segments=0, vote_mark="strict"), storage)
    for start in range(0, 8, 2):
        writer.append(history.frames[start : start + 2])
        writer.sync()
        assert marks_of(tmp_path).position == start + 2
        assert storage.calls[-1][0] == "sync"
    close()


def test_a_frame_that_does_not_continue_the_log_is_never_written(tmp_path: Path) -> None:
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames[:4])
    storage.calls.clear()
    other = Frame(Kind.VIEW, b"\x91\x91\x01")
    other.stamp(VIEW, 5, 12345)
    other_history = History()
    other_history.batch("another", "one", [b"x"])
    other_history.batch("another", "one", [b"x"])
    for frames, message in (
        (history.frames[5:7], "does not follow the end of the log at position 4"),
        ([other], "does not follow the end of the log at position 4"),
        ([history.frames[3], other], "does not follow the end of the log at position 4"),
        ([history.frames[4], history.frames[6]], "does not follow the end of the log at position 5"),
        (other_history.frames[2:6], "differ from those in the log"),
    ):
        with pytest.raises(InvariantViolated, match=message):
            writer.append(frames)
    assert storage.calls == []
    close()


@pytest.mark.parametrize("count", [3, 40])
def test_an_offset_other_than_that_of_the_protocol_is_found(tmp_path: Path, count: int) -> None:
    history = sample(40)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames)
    writer.sync()
    up_to = history.settled(count + 5)
    frames = history.frames[:up_to]
    offsets = history.offsets_of(frames)
    offsets[-1] += 1
    with pytest.raises(InvariantViolated, match=f"at offset {offsets[-1]}, but the log computes offset {offsets[-1] - 1}"):
        writer.decided(frames, offsets, history.void)
    close()


def test_segments_begin_when_everything_before_is_durable(tmp_path: Path) -> None:
    history = sample(120, size=4000)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames)
    firsts = list_positions(str(tmp_path), "seg")
    assert len(firsts) > 3
    for first in firsts[1:]:
        found = segment_marks(str(tmp_path), first)[0]
        assert found is not None
        assert found.position == first - 1
    writer.sync()
    close()


def test_indexes_are_sealed_and_snapshots_written_when_the_frontier_passes(tmp_path: Path) -> None:
    history = sample(120, size=4000)
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=20)
    write_log(tmp_path, history, options)
    firsts = list_positions(str(tmp_path), "seg")
    snapshots = list_positions(str(tmp_path), "snap")
    assert set(firsts[1:]) <= set(snapshots)
    within = [position for position in snapshots if position not in firsts]
    assert len(within) <= 1  # it moves along
    assert len(history.frames) + 1 - max(snapshots) <= 20


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("snapshot_frames", [10, 1000])
def test_a_restart_at_any_place_goes_on_as_if_nothing_had_been(tmp_path: Path, reboot: bool, snapshot_frames: int) -> None:
    history = sample(80, size=4000)
    options = LogOptions(
        segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=snapshot_frames
    )
    done = 0
    upto = 0
    for step in (5, 11, 1, 40, 3, 29, 100):
        writer, recovered, close = opened(tmp_path, options)
        assert recovered.state.position == upto
        assert recovered.state.next_offset == history.offset_after(upto)
        assert list(recovered.tail) == history.frames[upto:done]
        writer.append(history.frames[done : done + step])
        writer.sync()
        done = min(done + step, len(history.frames))
        until = done - (2 if done < len(history.frames) else 0)
        decide(writer, history, upto + 1, until)
        upto = until
        close()
        if reboot:
            other_boot(tmp_path)
    assert upto == len(history.frames)


def test_frames_of_a_newer_release_are_not_taken_for_torn(tmp_path: Path) -> None:
    history = sample(4)
    write_log(tmp_path, history)
    other_boot(tmp_path)
    strange = Frame(Kind.TICK, b"new")
    strange.kind = 77
    strange.stamp(VIEW, len(history.frames) + 1, history.frames[-1].header_crc)
    segment = tmp_path / "log" / f"{1:020d}.seg"
    data = bytearray(segment.read_bytes())
    place = 12288 + sum(frame.size for frame in history.frames)
    data[place : place + strange.size] = strange.to_bytes()
    segment.write_bytes(data)
    with pytest.raises(WrongDirectory, match="version 1 and kind 77, which this release does not support"):
        opened(tmp_path)
    assert segment.read_bytes() == data


def test_prepared_segments_are_made_while_idle_and_used(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=2, reserved_bytes=0, disk_low_bytes=0)
    history = sample(60, size=4000)
    writer, _, close = opened(tmp_path, options)
    deadline = time.monotonic() + 20
    while len(prepared_paths(str(tmp_path))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(prepared_paths(str(tmp_path))) == 2
    inodes = {file.stat().st_ino for file in (tmp_path / "log").glob("prepared-*.seg")}
    writer.append(history.frames)
    writer.sync()
    used = {(tmp_path / "log" / f"{first:020d}.seg").stat().st_ino for first in list_positions(str(tmp_path), "seg")}
    assert inodes <= used
    close()


def test_segments_grow_from_the_first_size_across_restarts(tmp_path: Path) -> None:
    options = LogOptions(
        segment_bytes=256 << 10, first_segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0
    )
    history = sample(120, size=4000)
    large = history.batch("producer0", "topic0", [b"x" * (200 << 10)])
    done = 0
    for step in (20, 60, len(history.frames)):
        writer, _, close = opened(tmp_path, options)
        writer.append(history.frames[done : done + step])
        writer.sync()
        decide(writer, history, done + 1, min(done + step, len(history.frames)))
        done += step
        close()
    sizes = [read_header(str(tmp_path), first).size >> 10 for first in list_positions(str(tmp_path), "seg")]
    assert sizes[:4] == [32, 64, 128, 256]
    assert set(sizes[4:]) <= {256}
    assert large.size < 256 << 10
    with closing(LogReader(tmp_path)) as reader:
        assert seen(scan(reader, 0, len(history.records))) == expected(history, 0, len(history.records))


def test_a_frame_above_the_first_size_makes_a_larger_segment(tmp_path: Path) -> None:
    options = LogOptions(
        segment_bytes=256 << 10, first_segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0
    )
    history = History()
    history.batch("p", "t", [b"x" * (200 << 10)])
    write_log(tmp_path, history, options)
    with closing(LogReader(tmp_path)) as reader:
        assert seen(scan(reader, 0, 1)) == expected(history, 0, 1)


def test_growing_segments_do_not_use_prepared_segments_of_an_earlier_run(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=256 << 10, prepared_segments=1, reserved_bytes=0, disk_low_bytes=0)
    _, _, close = opened(tmp_path, options)
    wait_until(lambda: bool(prepared_paths(str(tmp_path))))
    close()
    writer, _, close = opened(tmp_path, replace(options, first_segment_bytes=32 << 10, prepared_segments=0))
    assert prepared_paths(str(tmp_path)) == []
    writer.append(History().frames)
    writer.sync()
    assert (tmp_path / "log" / f"{1:020d}.seg").stat().st_size == 32 << 10
    close()


@pytest.mark.parametrize("txns", [False, True])
def test_rows_that_are_made_together_are_those_that_are_made_one_by_one(tmp_path: Path, *, txns: bool) -> None:
    history = sample(80, txns=txns)
    assert {Kind.TICK, Kind.ABORT} <= {Kind(frame.kind) for frame in history.frames}
    indexes = []
    for name, step in (("one", 1), ("some", 30), ("all", len(history.frames))):
        write_log(tmp_path / name, history, LogOptions(segment_bytes=4 << 20, prepared_segments=0, reserved_bytes=0), step=step)
        indexes.append((tmp_path / name / "log" / f"{1:020d}.idx").read_bytes())
    assert indexes[0][64 : 64 + 96] != bytes(96)
    assert indexes[1:] == indexes[:1] * 2
