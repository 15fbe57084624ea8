"""The live page has its block before anything is stored into it, and a lack of room for it is told as any other."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gateway.data.state import LogState
from gateway.errors import DiskFailed, DiskFull
from gateway.log.layout import PAGE
from gateway.log.live import FAILED, GENERATION, HEARTBEAT_US, LivePage, open_live
from tests.unit.log.history import opened, sample, write_log


@pytest.mark.parametrize("before", [None, 0, 100, PAGE])
def test_the_page_has_its_block_before_it_is_stored_into(tmp_path: Path, before: int | None) -> None:
    file = tmp_path / "live"
    if before is not None:
        file.touch()
        os.truncate(file, before)  # as an archive restores it: a hole
    page = LivePage(str(tmp_path))
    os.sync()  # where blocks are given late
    assert file.stat().st_size == PAGE
    assert file.stat().st_blocks * 512 >= PAGE
    page.publish(LogState(), 1)
    page.close()


def test_a_page_that_says_nothing_is_begun_anew_whatever_stands_in_it(tmp_path: Path) -> None:
    write_log(tmp_path, sample(8))
    for byte in (b"\xff", b"\0", b"T"):
        (tmp_path / "live").write_bytes(byte * PAGE)
        _, _, close = opened(tmp_path)
        view = open_live(str(tmp_path))
        assert view is not None
        assert view.alive
        assert (view.words[GENERATION], view.words[HEARTBEAT_US], view.words[FAILED]) == (1, 0, 0)
        close()


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed)])
def test_no_room_for_the_page_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: type[Exception]
) -> None:
    write_log(tmp_path, sample(8))
    (tmp_path / "live").unlink()
    allocate = os.posix_fallocate

    def full(fd: int, offset: int, length: int) -> None:
        if length == PAGE:
            raise OSError(number, os.strerror(number))
        allocate(fd, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(raised, match="making the live page of"):
            opened(tmp_path)
    _, _, close = opened(tmp_path)
    close()
