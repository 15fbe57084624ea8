"""The archive of the fixtures: what a release writes down of it is kept for ever, so what is in it never changes either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.compat.facts import sum_of
from tests.unit.archive.memory_log import LOG, Log, table_of
from tutti.archive.archiver import Archiver, Settings
from tutti.archive.catalog import Archive
from tutti.archive.layout import MARKER
from tutti.archive.reader import read
from tutti.archive.verify import verify
from tutti.data.scan_request import ScanRequest

_RECORDS = 260


def whole(path: Path) -> None:
    """Two ranges of three topics and nulls, times, headers; the end of the log is not archived yet."""
    Archiver(Log(table_of(_RECORDS)), Archive(str(path), LOG, make=True), Settings("archive", ticks=1)).run_once()


ARCHIVES = {"whole": whole}


def archive_facts(path: Path) -> dict[str, Any]:
    """What a reader and `tutti archive verify` find in it."""
    archive = Archive(str(path), LOG)
    found = verify(archive)
    rows = [row for part in read(archive, ScanRequest(archive.first, archive.end)) for row in part.batch.to_pylist()]
    return {
        "marker": Path(path, MARKER).read_text(),
        "first": archive.first,
        "end": archive.end,
        "ranges": found.ranges,
        "files": found.files,
        "records": found.records,
        "wrong": list(found.wrong),
        "rows": sum_of(rows),
        "ticks": [[list(tick) for tick in archive.manifest(span).ticks] for span in archive.spans],
        "topics": sorted({topic for span in archive.spans for file in archive.manifest(span).files for topic in file.topics}),
    }
