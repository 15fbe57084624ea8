"""Properties of the index of any log: the index written live, the rows computed from the frames, and the records that readers see
are equal.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.log.histories import histories
from tests.unit.log.history import History, expected, other_boot, seen, write_log
from tutti.log.files.layout import FRAMES_AT, list_positions, read_header, segment_path
from tutti.log.files.options import LogOptions
from tutti.log.format.frame_iterator import SegmentMap, scan_frames
from tutti.log.format.index import ROW, ROWS_AT
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.verify import verify

OPTIONS = LogOptions(segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def fresh(folder: Path) -> Path:
    return folder / str(sum(1 for _ in folder.iterdir()))


@given(history=histories(), step=st.integers(1, 50))
@settings(max_examples=60)
def test_rows_written_live_equal_rows_made_from_the_frames(folder: Path, history: History, step: int) -> None:
    path = fresh(folder)
    write_log(path, history, OPTIONS, step=step)
    offset = tick = 0
    walks = []
    for first in list_positions(str(path), "seg"):
        segment = SegmentMap(segment_path(str(path), first), first)
        found = scan_frames(segment, FRAMES_AT, first, read_header(str(path), first).chain)
        walks.append((first, found, found.headers()))
    aborts = [abort for _, found, headers in walks for abort in found.aborts(headers)]
    for first, found, headers in walks:
        rows = found.rows(headers, aborts, offset, tick)
        live = (path / "log" / f"{first:020d}.idx").read_bytes()[ROWS_AT:][: len(rows) * ROW.itemsize]
        assert live == rows.tobytes()
        offset, tick = int(rows["offset"][-1] + rows["count"][-1]), int(rows["tick"][-1])
    assert offset == len(history.records)


@given(history=histories(), data=st.data())
@settings(max_examples=60)
def test_readers_see_the_decided_records_with_and_without_indexes(folder: Path, history: History, data: st.DataObject) -> None:
    path = fresh(folder)
    decided = history.settled(data.draw(st.integers(2, len(history.frames))))
    write_log(path, history, OPTIONS, step=data.draw(st.integers(1, 20)), decided=decided)
    end = history.offset_after(decided)
    low = data.draw(st.integers(0, end))
    high = data.draw(st.integers(low, end))
    sums = set()
    for reboot in (False, True):
        if reboot:
            other_boot(path)
            for file in (path / "log").iterdir():
                if file.suffix in {".idx", ".snap"} and data.draw(st.booleans()):
                    file.unlink()
        reader = LogReader(path)
        assert (reader.frontier().position, reader.frontier().offset) == (decided, end)
        assert seen(scan(reader, low, high, rows_max=data.draw(st.integers(1, 50)))) == expected(history, low, high)
        assert reader.state().next_offset == end
        assert verify(path).damage == []
        sums.add(digest(path, low, high).sha256)
    assert len(sums) == 1
