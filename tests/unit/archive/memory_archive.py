"""An archive of a log in memory, and access to its contents."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.unit.archive.memory_log import Log, table_of
from tutti.archive.archiver import Archiver, Settings
from tutti.archive.catalog import Archive
from tutti.archive.reader import read
from tutti.data.frames.columns import COLUMNS
from tutti.data.scan_request import ScanRequest

COUNT = 1050
TABLE = table_of(COUNT)
SETTINGS = Settings("archive", ticks=2)  # ranges of 200 records, the last one of which is open
CLOSED = 1000
#: Names that an engine could take for something else than text: numbers, times, nothing, and two that differ in case alone.
ODD_TOPICS = ("007", "7", "1e5", "2024-01-01", "__HIVE_DEFAULT_PARTITION__", "null", "NaN", "true", "_hidden", "A", "a", "x" * 249)


def archived(where: object, log: Log | None = None, settings: Settings = SETTINGS) -> Archive:
    """Return an archive of the closed ranges."""
    log = log or Log(TABLE)
    archive = Archive(str(where), log.log, make=True)
    Archiver(log, archive, settings).run_once()
    return archive


def read_table(
    archive: Archive, start: int, end: int, topics: list[str] | None = None, columns: tuple[str, ...] = COLUMNS
) -> pa.Table:
    parts = [part.batch for part in read(archive, ScanRequest(start, end, tuple(topics) if topics else None, columns))]
    return pa.Table.from_batches(parts, TABLE.select(list(columns)).schema)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())
