"""Tests of the text of `tutti archive run --once`: it names the new records, or why there are none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.unit.archive.memory_archive import CLOSED, COUNT, SETTINGS, TABLE
from tests.unit.archive.memory_log import Log
from tutti.archive.archiver import Archiver
from tutti.archive.catalog import Archive
from tutti.data.frames.schema import TIME_US_MAX
from tutti_gateway.cli.log.archive import once_text

OPEN = "a range ends at each tick that is a multiple of 2, or at 128MiB (ticks and bytes in [ranges] of a.toml)"


def said(where: Path, log: Log) -> str:
    archive = Archive(str(where), log.log, make=True)
    archiver = Archiver(log, archive, SETTINGS)
    archiver.run_once()
    return once_text(archiver, archive, SETTINGS, "a.toml")


def test_a_run_names_the_new_records_and_those_that_wait(tmp_path: Path) -> None:
    result = f"1,000 records added to {tmp_path}, which now has [0, {CLOSED})"
    assert said(tmp_path, Log(TABLE)) == f"{result}; an open range of the log has {COUNT - CLOSED} more records: {OPEN}"


def test_a_run_without_new_records_names_the_offset_and_the_time(tmp_path: Path) -> None:
    log = Log(TABLE)
    said(tmp_path, log)
    since = f"nothing new since offset {CLOSED} (newest archived record: 1970-01-01T00:16:4"
    waiting = said(tmp_path, log)
    assert waiting.startswith(since)
    assert waiting.endswith(f"Z): {tmp_path} has [0, {CLOSED}); an open range of the log has {COUNT - CLOSED} more records: {OPEN}")
    log.end = CLOSED
    whole = said(tmp_path, log)
    assert whole.startswith(since)
    assert whole.endswith(f"Z): {tmp_path} has [0, {CLOSED}), up to the end of the log")


def test_the_newest_record_may_have_the_latest_time(tmp_path: Path) -> None:
    times = pa.array([TIME_US_MAX] * COUNT, pa.int64()).cast(TABLE.schema.field("timestamp").type)
    log = Log(TABLE.set_column(TABLE.schema.get_field_index("timestamp"), TABLE.schema.field("timestamp"), times))
    said(tmp_path, log)
    assert "(newest archived record: 9999-12-31T23:59:59.999999Z)" in said(tmp_path, log)


def test_a_run_on_a_short_log_says_why_nothing_is_archived(tmp_path: Path) -> None:
    log = Log(TABLE)
    log.end = 0
    assert said(tmp_path, log) == f"nothing archived yet: {tmp_path} has no records, because the log has none"
    log.end = 1
    assert (
        said(tmp_path, log)
        == f"nothing archived yet: {tmp_path} has no records; an open range of the log has 1 more record: {OPEN}"
    )
