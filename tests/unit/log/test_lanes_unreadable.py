"""Proves that a file of a lane which the device cannot read at a start is damage of that lane, and ends no gateway."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.history import sample as log_sample
from tests.unit.log.history import write_log
from tests.unit.log.lanes import OTHER, OWN, opened, sample, written
from tutti.data.lane_name import LaneName
from tutti.errors import Damaged
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import HARD_STATE_FILE, segment_path


class Rotten(io.RawIOBase):
    """A file that opens, and of which nothing can be read."""

    def readinto(self, _into: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readable(self) -> bool:
        return True


@pytest.fixture
def rot(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a file one that the device cannot read, wherever it is moved."""
    rotten: set[int] = set()
    whole: Callable[..., Any] = builtins.open

    def reading(path: str, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = whole(path, mode, *args, **options)
        if mode != "rb" or os.fstat(file.fileno()).st_ino not in rotten:
            return file
        file.close()
        return io.BufferedReader(Rotten())

    monkeypatch.setattr(builtins, "open", reading)

    def spoil(path: str) -> None:
        rotten.add(os.stat(path).st_ino)

    return spoil


def file_of(path: str, what: str) -> str:
    return os.path.join(path, HARD_STATE_FILE) if what == "scalars" else segment_path(path, 1)


@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize("what", ["scalars", "header"])
def test_an_unreadable_file_concerns_its_lane_alone(tmp_path: Path, rot: Callable[[str], None], what: str, lane: LaneName) -> None:
    """The own lane is halted; the lane of another gateway is quarantined and fetched again."""
    good = OTHER if lane == OWN else OWN
    for one in (OTHER, OWN):
        written(tmp_path, sample(one), 11)
    rot(file_of(lane_path(str(tmp_path), lane), what))
    logs, found = opened(tmp_path)
    assert (found[good].position, found[good].halted) == (11, "")
    assert ("cannot be read" in found[lane].halted) == (lane == OWN)
    assert lane == OWN or any("fetched again" in one and "cannot be read" in one for one in logs.messages), logs.messages
    logs.close()


def test_an_ordered_log_says_which_file_and_what_to_do(tmp_path: Path, rot: Callable[[str], None]) -> None:
    write_log(tmp_path, log_sample(20))
    rot(str(tmp_path / HARD_STATE_FILE))
    with pytest.raises(Damaged, match=r"scalars cannot be read .*: check the disk, and restore the file"):
        write_log(tmp_path, log_sample(20))
