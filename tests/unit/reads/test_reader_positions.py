"""Tests of the positions of named readers: they are those of the log, and a later snapshot replaces a corrupt frame."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.log.corruption import flip_frame
from tests.unit.log.history import sample, write_log
from tutti.data.frames.frame import HEADER_SIZE
from tutti.errors import Damaged
from tutti.log.read.reader import LogReader
from tutti_gateway.reads.logs.reader_positions import ReaderPositions


@pytest.mark.parametrize("more", [0, 100], ids=["no snapshot behind it", "a snapshot behind it"])
def test_a_corrupt_offset_commit_is_reported_or_replaced_by_a_later_snapshot(tmp_path: Path, more: int) -> None:
    path, history = tmp_path / "g1", sample(60, size=1500)
    history.offsets("a reader", 10)
    write_log(path, history)
    noticed: list[int] = []
    with closing(LogReader(path)) as reader:
        reader.on_corruption = noticed.append
        positions = ReaderPositions(reader)
        assert positions.committed("a reader").offset == 10
        assert positions.committed("nobody").offset == -1
        damaged = history.offsets("a reader", 40).position
        for _ in range(more):
            history.batch("p", "topic1", [b"f" * 3000])
        history.tick()
        write_log(path, history)
        flip_frame(path, damaged, HEADER_SIZE + 3)
        if more:
            assert positions.committed("a reader").offset == 40
        else:
            with pytest.raises(Damaged):
                positions.committed("a reader")
            assert noticed[-1] == damaged
            flip_frame(path, damaged, HEADER_SIZE + 3)
            assert positions.committed("a reader").offset == 40
