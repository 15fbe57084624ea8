"""Proves that no damaged file of a lane keeps its gateway from starting, and that what was done about it is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lanes import OTHER, OWN, LaneHistory, opened, sample, written
from tests.unit.log.test_lane_retention import kept, long
from tutti.data.lane_name import LaneName
from tutti.errors import Damaged, DirectoryRefused, DiskFull, WrongDirectory
from tutti.log.files import layout
from tutti.log.files.data_directory import Identity, read_identity
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import FRAMES_AT, PAGE, SegmentHeader, list_positions, read_header, segment_path
from tutti.log.files.log_start import start_path
from tutti.log.files.options import LogOptions
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import ReadLane
from tutti_gateway.log.lanes import lane_directory, lane_logs, lane_recovery
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter


def edited(path: str, before: bytes, after: bytes) -> None:
    file = Path(path, "identity.json")
    data = file.read_bytes()
    assert data.count(before) == 1
    file.write_bytes(data.replace(before, after))


#: What is named, and one digit more behind it: that takes the place of the one there.
FLIPS: list[tuple[bytes, bytes]] = [
    (b'"format": 1', b'"format": 3'),
    (b'"log": "', b'"log": "f'),
    (b'"incarnation": "', b'"incarnation": "f'),
]


def flipped(path: str, before: bytes, after: bytes) -> None:
    """Something else stands in the identity; the length stays."""
    if after.endswith(b"f"):
        data = Path(path, "identity.json").read_bytes()
        before += data[data.index(before) + len(before) :][:1]
    edited(path, before, after)


@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize(("before", "after"), [*FLIPS, (b"{", b"["), (b'"incarnation"', b'"incarnatiom"')])
def test_a_damaged_identity_is_written_again(tmp_path: Path, lane: LaneName, before: bytes, after: bytes) -> None:
    history, path = sample(lane), lane_path(str(tmp_path), lane)
    written(tmp_path, history, 6)
    good = Path(path, "identity.json").read_bytes()
    flipped(path, before, after)
    other_boot(path)
    logs, found = opened(tmp_path)
    assert (found[lane].position, list(found[lane].tail), found[lane].halted) == (6, history.frames[6:], "")
    assert len(logs.messages) == 1
    assert "identity.json was corrupt and was rebuilt" in logs.messages[0]
    logs.close()
    assert Path(path, "identity.json").read_bytes() == good
    logs, found = opened(tmp_path)
    assert logs.messages == []
    logs.close()


def test_an_identity_that_the_device_cannot_read_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = sample(OTHER)
    written(tmp_path, history, 6)
    reads = 0
    error: list[int] = [errno.EIO]

    def failing(path: str) -> Identity | None:
        nonlocal reads
        reads += 1
        if error:
            raise DirectoryRefused(f"{path} cannot be read") from OSError(error.pop(), "no")
        return read_identity(path)

    monkeypatch.setattr(lane_directory, "read_identity", failing)
    logs, found = opened(tmp_path)
    assert (reads, found[OTHER].position, len(logs.messages)) == (1, 6, 1)
    logs.close()
    error.append(errno.EACCES)
    with pytest.raises(DirectoryRefused):
        opened(tmp_path)


@pytest.mark.parametrize("lane", [OWN, OTHER])
def test_where_nothing_says_that_the_lane_began_its_identity_is_damage(tmp_path: Path, lane: LaneName) -> None:
    """One of a lane whose log is gone must not make an empty lane of it."""
    history, path = sample(lane), lane_path(str(tmp_path), lane)
    written(tmp_path, history, 6)
    flipped(path, *FLIPS[0])
    for kind in ("seg", "idx"):
        for first in list_positions(path, kind):
            os.remove(os.path.join(path, "log", f"{first:020d}.{kind}"))
    logs, found = opened(tmp_path)
    assert len(logs.messages) == 1
    assert ("accepts no more records" if lane == OWN else "fetched again") in logs.messages[0]
    assert bool(found[lane].halted) == (lane == OWN)
    logs.close()


def test_a_lane_of_a_newer_release_is_refused_and_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments say so under a CRC: that is no damage."""
    history, path = sample(OTHER), lane_path(str(tmp_path), OTHER)
    written(tmp_path, history, 6)
    flipped(path, *FLIPS[0])
    file = segment_path(path, 1)
    header = SegmentHeader.from_bytes(Path(file).read_bytes()[:PAGE], file)
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT_VERSION", layout.FORMAT_VERSION + 1)
        newer = header.to_bytes()
    with open(file, "r+b") as segment:
        segment.write(newer)
    before = sorted(one.read_bytes() for one in Path(path).rglob("*") if one.is_file() and one.name != "live")
    with pytest.raises(WrongDirectory, match="use the release"):
        opened(tmp_path)
    assert sorted(one.read_bytes() for one in Path(path).rglob("*") if one.is_file() and one.name != "live") == before


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES", 32 << 10)
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES_FIRST", 16 << 10)
    monkeypatch.setattr(limits, "RETENTION_CHECK_US", 0)


def no_start(path: str) -> None:
    """Where the trimmed lane begins fails its CRC."""
    file = Path(start_path(path))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff\xff")
    other_boot(path)


def learns(logs: lane_logs.LaneLogs, history: LaneHistory, begin: int) -> None:
    """What is left of a lane begins where it did, and goes on."""
    last = len(history.frames)
    for first in range(begin, last + 1):
        assert list(logs.read(ReadLane(1, *OTHER, first, first))) == history.frames[first - 1 : first]
    history.batch(b"more")
    logs.persist(history.write(last + 1, last + 1))
    logs.sync()


@pytest.mark.parametrize(("corrupt", "end"), [("start", 201), ("frame", 199)])
def test_a_corrupt_trimmed_lane_keeps_its_valid_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corrupt: str, end: int
) -> None:
    small(monkeypatch)
    history, path = long(OTHER), lane_path(str(tmp_path), OTHER)
    kept(tmp_path, history).close()
    firsts = list_positions(path, "seg")
    assert firsts[0] > 1
    if corrupt == "start":
        no_start(path)
    else:
        with open(segment_path(path, firsts[-1]), "r+b") as file:
            file.seek(FRAMES_AT + sum(frame.size for frame in history.frames[firsts[-1] - 1 : end]) + 20)
            file.write(b"\xff\xff\xff")
        other_boot(path)
    logs, found = opened(tmp_path)
    log = found[OTHER]
    assert log.position + len(log.tail) == end
    assert log.position > 150  # the marks name the decided end, so the copied frames need no second decision
    assert len(logs.messages) == 1
    assert "fetched again" in logs.messages[0]
    assert logs.begin(ReadLane(1, *OTHER, 1, 1)) is not None
    logs.persist(history.write(end + 1, 201))  # fetched from other gateways
    logs.sync()
    learns(logs, history, firsts[0])
    logs.close()
    assert verify(path).damage == []
    logs, _ = opened(tmp_path)
    assert logs.messages == []
    logs.close()


@pytest.mark.parametrize("gap", ["a frame", "a header that the disk does not give"])
def test_what_stands_before_a_gap_is_not_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: str) -> None:
    """It may be left over from a log that was replaced: nobody has decided its end."""
    small(monkeypatch)
    history, path = long(OTHER), lane_path(str(tmp_path), OTHER)
    kept(tmp_path, history, LogOptions()).close()
    firsts = list_positions(path, "seg")
    assert len(firsts) > 3
    Path(start_path(path)).write_bytes(b"no start")

    def unreadable(directory: str, first: int) -> SegmentHeader:
        if first == firsts[1]:
            raise OSError(errno.EIO, "Input/output error")
        return read_header(directory, first)

    if gap == "a frame":
        with open(segment_path(path, firsts[1]), "r+b") as file:
            file.seek(FRAMES_AT + 20)
            file.write(b"\xff\xff\xff")
    else:
        monkeypatch.setattr("tutti_gateway.log.lanes.lane_recovery.read_header", unreadable)
    other_boot(path)
    logs, found = opened(tmp_path)
    log = found[OTHER]
    assert log.position + len(log.tail) == 201
    assert logs.starts[OTHER] == history.offset(firsts[2] - 1)
    learns(logs, history, firsts[2])
    logs.close()
    assert verify(path).damage == []


@pytest.mark.parametrize(
    "error", [Damaged("a snapshot"), WrongDirectory("a frame"), OSError(errno.EIO, "input/output error"), DiskFull("no space")]
)
def test_what_cannot_be_read_of_a_damaged_lane_is_told_and_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    small(monkeypatch)
    history, path = long(OTHER), lane_path(str(tmp_path), OTHER)
    kept(tmp_path, history).close()
    no_start(path)
    whole: Callable[[str, LogWriter], int] = lane_recovery.salvage

    def short(damaged: str, writer: LogWriter) -> int:
        whole(damaged, writer)
        raise error

    monkeypatch.setattr(lane_logs, "salvage", short)
    logs, found = opened(tmp_path)
    assert found[OTHER].position + len(found[OTHER].tail) == 201
    assert len(logs.messages) == 1
    assert f"{OTHER.text}.damaged-1" in logs.messages[0]
    assert f"no more of it could be copied ({error})" in logs.messages[0]
    logs.close()
