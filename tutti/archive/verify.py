"""Verification of a whole archive: checks every file and every record, and finds gaps between ranges."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

from tutti import limits
from tutti.archive.catalog import Archive, ArchivedRange
from tutti.archive.layout import DATA, Manifest, data_range_of
from tutti.archive.parquet import corrupt_file_error
from tutti.archive.reader import read_range
from tutti.data.frames.digest import Digester
from tutti.data.scan_request import ScanRequest
from tutti.errors import Damaged, FormatError


class Verified(NamedTuple):
    """Result of a verification.

    Attributes:
        ranges, files, records, bytes: numbers of intact ranges, and of their files, records and bytes.
        wrong: messages about corrupt ranges, at most `limits.FINDINGS_MAX`.
        holes: gaps [first, end) between ranges.
        orphans: files older than a day that no manifest names, and whose records are in other files; killed archivers leave them.
    """

    ranges: int
    files: int
    records: int
    bytes: int
    wrong: tuple[str, ...]
    holes: tuple[tuple[int, int], ...]
    orphans: tuple[str, ...]

    @property
    def good(self) -> bool:
        """True if the archive has no corrupt range and no gap."""
        return not self.wrong and not self.holes


def verify(archive: Archive, progress: Callable[[int], None] | None = None) -> Verified:
    """Check the SHA-256 of each file, each record, and the digest of each range.

    Args:
        archive: the archive.
        progress: function to call after each checked range, with its number of records.

    Raises:
        Unavailable: the archive is not readable now.
    """
    ranges = files = records = size = 0
    wrong: list[str] = []
    named: set[str] = set()
    for span in archive.spans:
        try:
            manifest = archive.manifest(span)
            named.update(file.path for file in manifest.files)
            _check(archive, span, manifest)
        except (Damaged, FormatError) as error:
            if len(wrong) < limits.FINDINGS_MAX:
                wrong.append(str(error))
        else:
            ranges, files, size = ranges + 1, files + len(manifest.files), size + manifest.bytes
            records += span.end - span.first
        if progress is not None:
            progress(span.end - span.first)
    before_us = time.time_ns() // 1000 - limits.ARCHIVE_ORPHAN_US
    old = (entry.path for entry in archive.store.walk(DATA) if 0 < entry.written_us < before_us)
    orphans = [path for path in old if path not in named and _is_held(archive, path)]
    # Report no orphans beside a corrupt manifest, which may name these files.
    return Verified(ranges, files, records, size, tuple(wrong), tuple(archive.holes()), () if wrong else tuple(sorted(orphans)))


def _is_held(archive: Archive, path: str) -> bool:
    """True if archived ranges have all records of the file. If not, the file may be the only copy of a lost range."""
    span = data_range_of(path)
    return span is None or archive.missing_at(span[0])[0] >= span[1]


def _check(archive: Archive, span: ArchivedRange, manifest: Manifest) -> None:
    for file in manifest.files:
        where = f"{archive.where}/{file.path}"
        try:
            data = archive.store.read_back(file.path)
        except FileNotFoundError as error:
            raise corrupt_file_error(where, "the file is missing") from error
        if data.size != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise corrupt_file_error(where, f"its {data.size} bytes do not match the SHA-256 in the manifest")
    digester = Digester()
    for part in read_range(archive, manifest, ScanRequest(span.first, span.end)):
        digester.update(part.batch)
    if digester.hexdigest(span.first) != manifest.digest:
        raise corrupt_file_error(f"{archive.where}/{manifest.name}", "the digest of its records does not match the log's")
