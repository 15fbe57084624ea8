"""Proves that a lack of room while indexing passes: the same run is taken again and the log reads as if nothing had been."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.log.history import decide, expected, opened, other_boot, sample, seen
from tests.unit.log.watched import Filling
from tutti.errors import DiskFailed, DiskFull
from tutti.log.files.disk_space import failure_of
from tutti.log.files.layout import index_path
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import SyncFailed
from tutti.log.format.index import ROWS_AT, IndexWriter, no_rows
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan

OPTIONS = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=16)
MIB = 1 << 20


@pytest.mark.parametrize("steps", [3, 4, 5, 7])
def test_a_run_that_finds_no_room_is_taken_again_wherever_it_stopped(tmp_path: Path, steps: int) -> None:
    history = sample()
    storage = Filling()
    writer, _, close = opened(tmp_path, OPTIONS, storage)
    for frame in history.frames:
        writer.append([frame])
    writer.sync()
    last = len(history.frames)
    refused = 0
    for start, end in ((1, last // 2), (last // 2 + 1, last)):
        storage.room = 0
        while refused < 1000:
            try:
                decide(writer, history, start, end)
                break
            except DiskFull as error:
                assert "the disk is full" in str(error)  # noqa: PT017 - it is raised again and again
                refused += 1
                storage.room = 1 + refused % steps  # a little is freed, and used up at once
        storage.room = None
    assert 4 < refused < 1000
    records = expected(history)
    _reads_as_written(tmp_path, records)
    close()
    _reads_as_written(tmp_path, records)
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, OPTIONS)
    assert recovered.state.next_offset == len(records)
    close()
    _reads_as_written(tmp_path, records)


def test_the_next_segment_may_begin_while_rows_of_the_one_before_wait(tmp_path: Path) -> None:
    history = sample()
    storage = Filling()
    writer, _, close = opened(tmp_path, OPTIONS, storage)
    writer.append(history.frames[:1])
    first = 1
    while len(list((tmp_path / "log").glob("*.seg"))) == 1:
        first += 1
        writer.append([history.frames[first - 1]])
    writer.sync()
    until = first - 1  # the last position of the first segment
    storage.room = 0
    with pytest.raises(DiskFull):
        decide(writer, history, 1, until)
    storage.room = None
    writer.append(history.frames[first:])  # begins further segments
    writer.sync()
    decide(writer, history, 1, until)
    decide(writer, history, first, len(history.frames))
    _reads_as_written(tmp_path, expected(history))
    close()


def test_the_blocks_of_rows_are_there_before_the_rows(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    path = index_path(str(tmp_path), 1)
    storage = Filling()
    storage.room = 0
    index = IndexWriter(path, 1, no_rows(), storage)  # takes no room
    row = bytes(range(96))
    with pytest.raises(OSError, match="No space left"):
        index.append(row, 0, 1, 7)
    assert (index.count, os.stat(path).st_size) == (0, 0)
    storage.room = None
    index.append(row, 0, 1, 7)
    assert os.stat(path).st_blocks * 512 >= MIB
    storage.room = 1000
    for number in range(2, 1000):
        index.append(row, number, number + 1, 7)
    assert storage.room == 2  # one write each, and no more blocks
    index.close()
    assert Path(path).read_bytes()[ROWS_AT : ROWS_AT + 999 * 96] == row * 999


def _reads_as_written(path: Path, records: list[dict[str, object]]) -> None:
    reader = LogReader(path)
    try:
        assert seen(scan(reader, 0, len(records))) == records
    finally:
        reader.close()


def test_batches_that_must_be_written_take_the_reserve(tmp_path: Path) -> None:
    history = sample()
    storage = Filling()
    writer, _, close = opened(tmp_path, replace(OPTIONS, reserved_bytes=64 << 10), storage)
    writer.append(history.frames[:3])
    writer.sync()
    free = storage.allocate

    def no_more(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage.allocate = no_more  # type: ignore[method-assign]  # of this one storage
    done = 3
    with contextlib.suppress(DiskFull):
        while True:
            writer.append(history.frames[done : done + 1])
            done += 1
    with pytest.raises(DiskFull, match="the reserve is only for frames that must be written"):
        writer.append(history.frames[done : done + 1])
    writer.append(history.frames[done : done + 1], must=True)
    writer.sync()
    storage.allocate = free  # type: ignore[method-assign]  # of this one storage
    close()
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, OPTIONS)
    assert list(recovered.tail) == history.frames[: done + 1]
    close()


def test_only_errors_that_free_space_resolves_are_a_full_disk() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert isinstance(failure_of("writing", "file", OSError(number, os.strerror(number))), DiskFull)
        assert isinstance(failure_of("writing", "file", SyncFailed(number, os.strerror(number))), DiskFailed)
    assert isinstance(failure_of("writing", "file", OSError(errno.EFBIG, os.strerror(errno.EFBIG))), DiskFailed)
