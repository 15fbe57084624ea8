"""The live page has its block before anything is stored into it, a lack of room for it is told as any other, and it says things in
an order in which a reader can take them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.history import opened, sample, write_log
from tutti.data.log_state import LogState
from tutti.errors import DiskFailed, DiskFull
from tutti.log.files.layout import PAGE
from tutti.log.files.live_page import (
    FAILED,
    FRONTIER_OFFSET,
    FRONTIER_POSITION,
    GENERATION,
    HEARTBEAT_US,
    INDEXED_OFFSET,
    INDEXED_POSITION,
    SEGMENT,
    TICK,
    LivePage,
    open_live,
)


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
        assert (view.fields[GENERATION], view.fields[HEARTBEAT_US], view.fields[FAILED]) == (1, 0, 0)
        close()


class Stores:
    """The words of a page, and what they said after each store into them."""

    def __init__(self, words: Any) -> None:
        self.words = words
        self.said = [list(words)]

    def __getitem__(self, at: int) -> int:
        return int(self.words[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.words[at] = value
        self.said.append(list(self.words))


def test_a_page_that_readers_look_at_never_shows_a_tick_or_rows_beyond_its_frontier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = LivePage(str(tmp_path))
    page.publish(LogState(), 1)
    stores = Stores(page._fields)
    with monkeypatch.context() as patch:
        patch.setattr(page, "_fields", stores)
        page.publish(LogState(position=40, next_offset=90, tick=3), 20)
    last = stores.said[-1]
    assert [last[word] for word in (FRONTIER_POSITION, FRONTIER_OFFSET, INDEXED_POSITION, TICK)] == [40, 90, 40, 3]
    for words in stores.said:
        assert words[INDEXED_POSITION] <= words[FRONTIER_POSITION]
        assert words[INDEXED_OFFSET] <= words[FRONTIER_OFFSET]
        if words[TICK]:
            assert (words[FRONTIER_POSITION], words[FRONTIER_OFFSET]) == (40, 90)
        if words[FRONTIER_POSITION]:
            assert words[SEGMENT] == 20
    page.close()


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
