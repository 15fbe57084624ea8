"""Looking through a whole archive: every file, every record, and whether something is missing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

from tutti import limits
from tutti.archive.catalog import Archive, Span
from tutti.archive.layout import DATA, Manifest, data_range_of
from tutti.archive.parquet import damaged
from tutti.archive.reader import read_range
from tutti.data.frames.columns import COLUMNS
from tutti.data.frames.digest import Digester
from tutti.errors import Damaged, FormatError


class Verified(NamedTuple):
    """What was found.

    Attributes:
        ranges, files, records, bytes: that are good.
        wrong: what is damaged, in words, `limits.FINDINGS_MAX` at most.
        holes: offsets [first, end) between ranges that none has.
        orphans: files that no range names, for a day or longer, and whose records other files have: of archivers that were killed.
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
        """Whether all that the archive is to hold is there."""
        return not self.wrong and not self.holes


def verify(archive: Archive, progress: Callable[[int], None] | None = None) -> Verified:
    """Read everything: each file's SHA-256, each record, and of each range the digest that the log had.

    Args:
        progress: called with the records of each range that was looked at.

    Raises:
        Unavailable: the archive cannot be read now.
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
    # What a manifest that cannot be read names is not known: nothing of it is to be taken for an orphan.
    return Verified(ranges, files, records, size, tuple(wrong), tuple(archive.holes()), () if wrong else tuple(sorted(orphans)))


def _is_held(archive: Archive, path: str) -> bool:
    """Whether ranges have all that a file can have: else it may be all that is left of one whose manifest was lost."""
    span = data_range_of(path)
    return span is None or archive.missing_at(span[0])[0] >= span[1]


def _check(archive: Archive, span: Span, manifest: Manifest) -> None:
    for file in manifest.files:
        where = f"{archive.where}/{file.path}"
        try:
            data = archive.store.read_back(file.path)
        except FileNotFoundError as error:
            raise damaged(where, "it is gone") from error
        if data.size != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise damaged(where, f"it has {data.size} bytes and another SHA-256 than was written")
    digester = Digester()
    for part in read_range(archive, manifest, span.first, span.end, None, COLUMNS):
        digester.take(part.batch)
    if digester.hexdigest(span.first) != manifest.digest:
        raise damaged(f"{archive.where}/{manifest.name}", "its records have another digest than the log had")
