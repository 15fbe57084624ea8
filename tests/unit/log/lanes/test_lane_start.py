"""No corrupt file of a lane prevents the start of its gateway, and the start reports what it did about the file."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.history import other_boot, write_log
from tests.unit.log.history import sample as log_sample
from tests.unit.log.lane_history import OTHER, OWN, SHORT, LaneHistory, begun, kept, long, opened, sample, written
from tutti.data.lane_name import LaneName
from tutti.errors import Damaged, DirectoryRefused, DiskFull, WrongDirectory
from tutti.log.files import layout
from tutti.log.files.data_directory import Identity, read_identity
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import FRAMES_AT, HARD_STATE_FILE, PAGE, SegmentHeader, list_positions, read_header, segment_path
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


#: Text in the identity, and the text that replaces it; a trailing `f` replaces the next digit.
FLIPS: list[tuple[bytes, bytes]] = [
    (b'"format": 1', b'"format": 3'),
    (b'"log": "', b'"log": "f'),
    (b'"incarnation": "', b'"incarnation": "f'),
]


def flipped(path: str, before: bytes, after: bytes) -> None:
    """Change the identity without a change of its length."""
    if after.endswith(b"f"):
        data = Path(path, "identity.json").read_bytes()
        before += data[data.index(before) + len(before) :][:1]
    edited(path, before, after)


@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize(("before", "after"), [*FLIPS, (b"{", b"["), (b'"incarnation"', b'"incarnatiom"')])
def test_a_corrupt_identity_is_rebuilt(tmp_path: Path, lane: LaneName, before: bytes, after: bytes) -> None:
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


def test_an_unreadable_identity_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_identity_is_not_rebuilt_without_a_segment(tmp_path: Path, lane: LaneName) -> None:
    """A lane whose log is lost must not become an empty lane."""
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


def test_a_lane_of_a_newer_release_is_refused_and_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments have the newer format under a valid CRC, which is not corruption."""
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
    """Corrupt the start of a trimmed lane."""
    file = Path(start_path(path))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff\xff")
    other_boot(path)


def continues(logs: lane_logs.LaneLogs, history: LaneHistory, begin: int) -> None:
    """Check that the lane begins at a position and accepts more frames."""
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
    continues(logs, history, firsts[0])
    logs.close()
    assert verify(path).damage == []
    logs, _ = opened(tmp_path)
    assert logs.messages == []
    logs.close()


@pytest.mark.parametrize("gap", ["a frame", "a header that the disk does not give"])
def test_segments_before_a_gap_do_not_belong_to_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: str) -> None:
    """They may remain from a log that a snapshot replaced, whose end was never decided."""
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
    continues(logs, history, firsts[2])
    logs.close()
    assert verify(path).damage == []


@pytest.mark.parametrize(
    "error", [Damaged("a snapshot"), WrongDirectory("a frame"), OSError(errno.EIO, "input/output error"), DiskFull("no space")]
)
def test_a_failed_copy_is_reported_and_does_not_prevent_the_start(
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


@pytest.mark.parametrize("options", [LogOptions(), SHORT], ids=["whole", "trimmed"])
@pytest.mark.parametrize("segments", [slice(-1, None), slice(0, 1), slice(None)], ids=["newest", "oldest", "all"])
@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize("byte", [2, 30])
def test_a_start_rebuilds_a_corrupt_segment_header(
    tmp_path: Path, lane: LaneName, segments: slice, options: LogOptions, byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    history, path = long(lane), lane_path(str(tmp_path), lane)
    kept(tmp_path, history, options).close()
    newest = list_positions(path, "seg")[-1]
    files = [Path(segment_path(path, first)) for first in list_positions(path, "seg")[segments]]
    good = [file.read_bytes() for file in files]
    for file, data in zip(files, good, strict=True):
        file.write_bytes(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
    other_boot(path)
    logs = begun(tmp_path, options)
    (log,) = begun(tmp_path, options).start()
    assert (log.position + len(log.tail), log.halted, logs.messages) == (201, "", [])
    assert list(logs.read(ReadLane(1, *lane, newest, newest + 1))) == history.frames[newest - 1 : newest + 1]
    while not logs.rounds:  # the scrub rebuilds headers that a start does not read
        logs.scrub()
    assert [file.read_bytes() for file in files] == good
    logs.close()
    assert verify(path).damage == []


@pytest.mark.parametrize("lane", [OWN, OTHER])
def test_an_identity_is_rebuilt_if_the_newest_segment_header_is_corrupt_too(
    tmp_path: Path, lane: LaneName, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    history, path = long(lane), lane_path(str(tmp_path), lane)
    kept(tmp_path, history, LogOptions()).close()
    identity, segment = Path(path, "identity.json"), Path(segment_path(path, list_positions(path, "seg")[-1]))
    good = (identity.read_bytes(), segment.read_bytes())
    flipped(path, *FLIPS[0])
    segment.write_bytes(bytes([good[1][0] ^ 1]) + good[1][1:])
    other_boot(path)
    logs, found = opened(tmp_path)
    assert (found[lane].position + len(found[lane].tail), found[lane].halted, len(logs.messages)) == (201, "", 1)
    assert "identity.json was corrupt and was rebuilt" in logs.messages[0]
    logs.close()
    assert (identity.read_bytes(), segment.read_bytes()) == good


@pytest.mark.parametrize("lane", [OWN, OTHER])
def test_an_identity_is_not_rebuilt_from_the_segments_of_another_lane(
    tmp_path: Path, lane: LaneName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest valid header decides, even if an older header belongs to this lane."""
    small(monkeypatch)
    path = lane_path(str(tmp_path), lane)
    kept(tmp_path, long(lane), LogOptions()).close()
    newest = list_positions(path, "seg")[-1]
    foreign = read_header(path, newest)._replace(log=(OTHER if lane == OWN else OWN).incarnation)
    with open(segment_path(path, newest), "r+b") as segment:
        segment.write(foreign.to_bytes())
    flipped(path, *FLIPS[0])
    other_boot(path)
    logs, found = opened(tmp_path)
    assert bool(found[lane].halted) == (lane == OWN)
    assert any("accepts no more records" in one or "fetched again" in one for one in logs.messages)
    logs.close()


class Unreadable(io.RawIOBase):
    """A file that opens, and that the device cannot read."""

    def readinto(self, _into: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readable(self) -> bool:
        return True


@pytest.fixture
def make_unreadable(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a file unreadable, also under a new name."""
    unreadable: set[int] = set()
    whole: Callable[..., Any] = builtins.open

    def reading(path: str, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = whole(path, mode, *args, **options)
        if mode != "rb" or os.fstat(file.fileno()).st_ino not in unreadable:
            return file
        file.close()
        return io.BufferedReader(Unreadable())

    monkeypatch.setattr(builtins, "open", reading)

    def spoil(path: str) -> None:
        unreadable.add(os.stat(path).st_ino)

    return spoil


def file_of(path: str, what: str) -> str:
    return os.path.join(path, HARD_STATE_FILE) if what == "scalars" else segment_path(path, 1)


@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize("what", ["scalars", "header"])
def test_an_unreadable_file_concerns_its_lane_alone(
    tmp_path: Path, make_unreadable: Callable[[str], None], what: str, lane: LaneName
) -> None:
    """The own lane is halted; the lane of another gateway is quarantined and fetched again."""
    good = OTHER if lane == OWN else OWN
    for one in (OTHER, OWN):
        written(tmp_path, sample(one), 11)
    make_unreadable(file_of(lane_path(str(tmp_path), lane), what))
    logs, found = opened(tmp_path)
    assert (found[good].position, found[good].halted) == (11, "")
    assert ("cannot be read" in found[lane].halted) == (lane == OWN)
    assert lane == OWN or any("fetched again" in one and "cannot be read" in one for one in logs.messages), logs.messages
    logs.close()


def test_an_unreadable_file_of_the_ordered_log_is_named_with_the_remedy(
    tmp_path: Path, make_unreadable: Callable[[str], None]
) -> None:
    write_log(tmp_path, log_sample(20))
    make_unreadable(str(tmp_path / HARD_STATE_FILE))
    with pytest.raises(Damaged, match=r"scalars cannot be read .*: check the disk, and restore the file"):
        write_log(tmp_path, log_sample(20))
