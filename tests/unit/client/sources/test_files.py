"""Tests of reading from data directories: an unreadable directory is skipped, and polling for a stopped gateway is cheap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.history import History, other_boot, sample, write_log
from tutti.data.scan_request import ScanRequest
from tutti.errors import Behind, DirectoryRefused, WrongDirectory
from tutti.log.format.hard_state import HardStateSlot, read_hard_state
from tutti.reader import Reader
from tutti.sources.files import FileSource


def stopped(path: Path, history: History) -> Path:
    write_log(path, history)
    other_boot(path)
    return path


def test_a_directory_that_cannot_be_read_any_more_is_passed_over(tmp_path: Path) -> None:
    history = sample(20)
    paths = [stopped(tmp_path / name, history) for name in ("one", "two")]
    end = len(history.records)
    with FileSource(paths) as files:
        assert files.frontier().offset == end
        for number, path in enumerate(paths):
            (path / "log").rename(path / "away")
            (path / "log").write_bytes(b"")  # no directory: the system refuses to list it, also for root
            if number == 0:
                assert files.frontier().offset == end
                assert sum(found.batch.num_rows for found in files.scan(ScanRequest(0, end))) == end
        with pytest.raises(DirectoryRefused, match="one cannot be read: Not a directory"):
            files.frontier()
        with pytest.raises(DirectoryRefused, match="one cannot be read: Not a directory"):
            next(files.scan(ScanRequest(0, end)))


def test_the_directory_of_a_lane_is_refused_as_wrong_use_and_not_as_damage(tmp_path: Path) -> None:
    name = f"1-{'ab' * 16}"
    lane = stopped(tmp_path / "data" / "lanes" / name, sample(5))
    (tmp_path / "link").symlink_to(lane)
    for path in (lane, tmp_path / "link"):
        with pytest.raises(WrongDirectory, match=f"--origin {name}.*ordered log of that gateway is in {tmp_path / 'data'}") as told:
            Reader(path=path)
        assert told.value.exit_code == 2


def test_a_directory_that_lags_answers_nothing_if_the_one_that_was_ahead_is_unreadable(tmp_path: Path) -> None:
    history = sample(20)
    ahead = stopped(tmp_path / "ahead", history)
    behind = stopped(tmp_path / "behind", sample(5))
    end = len(history.records)
    with FileSource(behind) as files, pytest.raises(Behind, match=f"{end} seen before: check whether it is an old copy"):
        files.topics(end)
    with FileSource([ahead, behind]) as files:
        assert files.frontier().offset == end
        (ahead / "log").rename(ahead / "away")
        (ahead / "log").write_bytes(b"")
        for question in (files.frontier, files.topics, files.readers, lambda: files.offset_for_time(0)):
            with pytest.raises(DirectoryRefused, match="cannot be read"):
                question()


def test_waiting_with_the_gateway_down_checks_the_files_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = sample(5)
    looks: list[str] = []

    def counted(directory: str) -> HardStateSlot | None:
        looks.append(directory)
        return read_hard_state(directory)

    monkeypatch.setattr("tutti.log.read.reader.read_hard_state", counted)
    with FileSource(stopped(tmp_path / "one", history)) as files:
        assert files.frontier(beyond=len(history.records), timeout=0.55).offset == len(history.records)
    assert 3 <= len(looks) <= 21  # three times a look: which directory is furthest, the answer, and where the log begins
