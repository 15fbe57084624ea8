"""Tests of gaps in an archive: all readers report the same gaps, find the records that remain, and the archiver refills what it
can.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.archive.memory_archive import CLOSED, COUNT, SETTINGS, TABLE, archived, files, read_table
from tests.unit.archive.memory_log import LOG, Log
from tutti import limits
from tutti.archive.archiver import Archiver, Settings
from tutti.archive.catalog import Archive
from tutti.archive.layout import range_name
from tutti.archive.verify import verify
from tutti.errors import OffsetOutOfRange


@pytest.mark.parametrize("lost", [(0,), (2,), (1, 2), (0, 2, 4), (3, 4)])
def test_ranges_that_an_archive_lost_and_the_log_still_has_are_archived_again(tmp_path: Path, lost: tuple[int, ...]) -> None:
    """Proves it of ranges at the beginning, in the middle and at the end, with damaged files; the reader goes back first."""
    log = Log(TABLE)
    archived(tmp_path, log)
    whole = {path: path.read_bytes() for path in files(tmp_path)}
    for first in (200 * number for number in lost):
        (tmp_path / "ranges" / range_name(first, first + 200)).unlink()
        next((tmp_path / "data").glob(f"*/{first:020}-*.parquet")).write_bytes(b"damaged")
    archive = Archive(tmp_path)
    archiver = Archiver(log, archive, SETTINGS)
    archiver.begin()
    assert (log.saved, log.backwards) == ({"archive": 200 * lost[0]}, [200 * lost[0]])
    archiver.run_once()
    assert (archiver.ranges, archiver.offset, log.saved) == (len(lost), CLOSED, {"archive": CLOSED})
    assert verify(archive).good
    assert {path: path.read_bytes() for path in whole} == whole


def test_a_range_that_is_lost_under_a_running_archiver_is_archived_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_LIST_US", 0)
    log = Log(TABLE)
    log.end = 850
    archive = Archive(str(tmp_path), LOG, make=True)
    archiver = Archiver(log, archive, SETTINGS)
    archiver.run_once()
    files(tmp_path / "ranges")[1].unlink()
    assert archiver.step() is None  # the archive is looked at when there is something for it
    assert log.saved == {"archive": 800}
    log.end = COUNT
    added = archiver.step()
    assert added is not None
    assert (added.first, added.end, log.backwards, log.saved) == (200, 400, [200], {"archive": 200})
    assert archiver.step() is not None
    assert archiver.step() is None
    assert (log.saved, archive.holes()) == ({"archive": CLOSED}, [])


def test_ranges_that_an_archive_lost_are_read_from_the_log_if_it_has_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that the rest is reported, and that the archiver continues."""
    log = Log(TABLE)
    log.end = 850
    archived(tmp_path, log)
    for number in (2, 1):
        files(tmp_path / "ranges")[number].unlink()
    log.start, log.end = 350, COUNT
    archive = archived(tmp_path, log)
    assert archive.holes() == [(200, 350)]
    assert f"records 200 to 349 are missing in {tmp_path}, and the log no longer has them" in caplog.text
    assert (archive.last_end, log.saved, log.backwards) == (CLOSED, {"archive": CLOSED}, [350])
    assert read_table(archive, 350, CLOSED).equals(TABLE.slice(350, CLOSED - 350))


def test_a_lost_range_is_filled_up_to_where_the_next_one_begins(tmp_path: Path) -> None:
    """Proves it where the archiver has other settings by now, with which a range would end later."""
    log = Log(TABLE)
    archived(tmp_path, log)
    files(tmp_path / "ranges")[2].unlink()
    archive = archived(tmp_path, log, Settings("archive", ticks=7))
    assert [(span.first, span.end) for span in archive.spans] == [(at, at + 200) for at in range(0, CLOSED, 200)]
    assert verify(archive).good


def test_a_record_is_found_in_a_long_range_after_many_short_ones(tmp_path: Path) -> None:
    """Proves that existing records are found with any other ranges around, and that all reports of gaps agree."""
    archive = Archive(str(tmp_path), LOG, make=True)
    (tmp_path / "ranges").mkdir()
    spans = [
        (0, 100_000),
        *((at, at + 10) for at in range(10, 1010, 10)),
        (100_000, 100_020),
        (100_050, 100_060),
        (100_055, 100_058),
    ]
    for first, end in spans:
        (tmp_path / "ranges" / range_name(first, end)).touch()
    archive.refresh()
    assert len(archive.spans) == len(spans)
    for offset in (0, 15, 1009, 1010, 50_000, 99_999):
        assert [(low, high) for low, high, _ in archive.covering(offset, offset + 1)] == [(offset, offset + 1)]
    assert [(low, high) for low, high, _ in archive.covering(5, 100_010)] == [(5, 100_000), (100_000, 100_010)]
    assert (archive.end, archive.last_end, archive.holes()) == (100_020, 100_060, [(100_020, 100_050)])
    assert [archive.span_at(at) is None for at in (100_019, 100_020, 100_049, 100_050, 100_059, 100_060)] == [
        *(False, True, True, False, False, True)
    ]
    assert [archive.missing_at(at) for at in (0, 100_030, 100_055, 200_000)] == [
        *((100_020, 100_050), (100_030, 100_050), (100_060, None), (200_000, None))
    ]
    with pytest.raises(OffsetOutOfRange, match="which ends at 100060"):
        list(archive.covering(100_058, 100_070))


def test_the_only_remaining_file_of_a_range_is_not_an_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves it for the files of a range whose manifest is lost, until the range exists again in other files."""
    monkeypatch.setattr(limits, "ARCHIVE_ORPHAN_US", -60_000_000)
    log = Log(TABLE)
    archived(tmp_path, log)
    files(tmp_path / "ranges")[2].unlink()
    files(tmp_path / "ranges")[-1].unlink()
    assert verify(Archive(tmp_path)).orphans == ()
    found = verify(archived(tmp_path, log, SETTINGS._replace(ticks=1)))
    assert found.good
    assert len(found.orphans) == 6
