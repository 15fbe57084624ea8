"""Catalog of an archive: the list of its ranges, from the names of the manifests, and a cache of the manifests."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tutti import limits
from tutti.archive.layout import (
    MARKER,
    RANGES,
    RESTORE_MARKER_HINT,
    Manifest,
    Marker,
    decode_manifest,
    decode_marker,
    encode_marker,
    range_of,
)
from tutti.archive.parquet import corrupt_file_error
from tutti.archive.store import LocalStore, Store, open_store
from tutti.errors import Damaged, FormatError, OffsetOutOfRange, WrongDirectory

_NEAR_MAX = 5  # directories that an error text lists


class ArchivedRange(NamedTuple):
    """A range of the archive: offsets [first, end), and the name of the manifest."""

    first: int
    end: int
    name: str


def _archives_near(directory: Path) -> list[str]:
    """Return archives that the user may mean: the one that contains `directory`, or those directly below it."""
    above = [parent for parent in directory.parents[:1] if (parent / MARKER).is_file()]
    return [str(found) for found in above or sorted(file.parent for file in directory.glob(f"*/{MARKER}"))[:_NEAR_MAX]]


class Archive:
    """An archive, opened for reading or for adding ranges. Thread-safe.

    Ranges may overlap, for example if two archivers started at different offsets. Where ranges overlap, they have equal records.

    Args:
        where: location of the archive, a directory or a URL that pyarrow or fsspec supports.
        log: uuid of the expected log; "" accepts the archive of any log.
        make: create an archive of `log` if the location has none.

    Raises (all methods):
        ConfigError: the location is not valid.
        WrongDirectory: the location is not an archive, or the archive belongs to a different log.
        Damaged: a file differs from the bytes that were written; the message has the file.
        Unavailable: the archive is not readable now.
    """

    def __init__(self, where: str | os.PathLike[str], log: str = "", *, make: bool = False) -> None:
        """Read the marker and list the ranges."""
        self.store: Store = open_store(where)
        if isinstance(self.store, LocalStore):
            self.store.check_directory()
            if make:
                self.store.check_writable()
        self.log = self._marker(log, make).log
        if log and self.log != log:
            raise WrongDirectory(f"{self.store.where} is the archive of log {self.log}, not of log {log}: use another archive")
        self._lock = threading.Lock()
        self._spans: list[ArchivedRange] = []
        # ranges in order, except those that lie within another range; both the starts and the ends of the others ascend
        self._cover: list[ArchivedRange] = []
        self._end = 0
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._listed = 0.0
        self.refresh()

    def _marker(self, log: str, make: bool) -> Marker:
        where = self.store.where
        for last in (False, True):
            try:
                return decode_marker(self.store.read(MARKER).to_pybytes(), where)
            except FileNotFoundError:
                if last or not make:
                    break
            # Do not write a new marker beside existing ranges, because these may belong to a different log.
            if self.store.names(RANGES):
                raise Damaged(f"the archive {where} has ranges of records, but its file {MARKER} is missing; {RESTORE_MARKER_HINT}")
            # The next iteration reads the marker, which another archiver may have created first, for another log.
            self.store.create(MARKER, encode_marker(Marker(log=log)))
        near = _archives_near(Path(where)) if isinstance(self.store, LocalStore) else []
        hint = f"did you mean {' or '.join(near)}?" if near else "`tutti archive run` creates one"
        raise WrongDirectory(f"{where} is not an archive: it has no {MARKER}; {hint}")

    @property
    def where(self) -> str:
        """The location of the archive, as messages show it."""
        return self.store.where

    @property
    def first(self) -> int:
        """The first archived offset; 0 for an empty archive."""
        with self._lock:
            return self._spans[0].first if self._spans else 0

    @property
    def end(self) -> int:
        """The end of the records that begin at `first` and have no gap."""
        with self._lock:
            return self._end

    @property
    def last_end(self) -> int:
        """The highest end of a range, even if gaps are before it; 0 for an empty archive."""
        with self._lock:
            return self._cover[-1].end if self._cover else 0

    @property
    def spans(self) -> list[ArchivedRange]:
        """All ranges, sorted by their first offset."""
        with self._lock:
            return list(self._spans)

    def refresh(self, *, soon: bool = False) -> None:
        """List the ranges again; with `soon`, at most once per `ARCHIVE_LIST_US`."""
        with self._lock:
            now = time.monotonic()
            if soon and now - self._listed < limits.ARCHIVE_LIST_US / 1e6:
                return
            names = self.store.names(RANGES)
            if len(names) > limits.ARCHIVE_RANGES_MAX:
                raise FormatError(
                    f"{self.where} has {len(names)} ranges, above the limit of {limits.ARCHIVE_RANGES_MAX}: start another "
                    "archive with larger ranges"
                )
            self._set_spans([ArchivedRange(*span, name) for name in names if (span := range_of(name)) is not None])
            self._listed = now

    def add(self, manifest: Manifest) -> None:
        """Add to the list a range that this process has written, so that the archive need not be listed again."""
        with self._lock:
            name = manifest.name.rpartition("/")[2]
            if all(span.name != name for span in self._spans):
                self._set_spans([*self._spans, ArchivedRange(manifest.first, manifest.end, name)])

    def _set_spans(self, spans: list[ArchivedRange]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.first, -span.end))
        self._cover = []
        for span in self._spans:
            if not self._cover or span.end > self._cover[-1].end:
                self._cover.append(span)
        first = self._spans[0].first if self._spans else 0
        self._end = self._missing_at(first)[0]

    def holes(self) -> list[tuple[int, int]]:
        """Return the gaps [first, end) between ranges."""
        with self._lock:
            return [(one.end, other.first) for one, other in pairwise(self._cover) if one.end < other.first]

    def span_at(self, offset: int) -> ArchivedRange | None:
        """Return a range that has the record, or None if the archive lacks the record."""
        with self._lock:
            at = self._before(offset)
            # Only this range needs a check, because it has the highest end of all ranges that begin at or before the offset.
            return self._cover[at] if at >= 0 and self._cover[at].end > offset else None

    def missing_at(self, offset: int) -> tuple[int, int | None]:
        """Return the first gap [first, end) at or above an offset; end is None if no range follows."""
        with self._lock:
            return self._missing_at(offset)

    def _missing_at(self, offset: int) -> tuple[int, int | None]:
        for at in range(max(0, self._before(offset)), len(self._cover)):
            span = self._cover[at]
            if span.first > offset:
                return offset, span.first
            offset = max(offset, span.end)
        return offset, None

    def _before(self, offset: int) -> int:
        """Return the index in `_cover` of the last range that begins at or before an offset; -1 without one."""
        return bisect_right(self._cover, offset, key=lambda span: span.first) - 1

    def covering(self, start: int, end: int) -> Iterator[tuple[int, int, ArchivedRange]]:
        """Yield consecutive parts (low, high, range) of [start, end), each with an archived range that has its records.

        Raises:
            OffsetOutOfRange: the archive lacks some of the records; the message names them.
        """
        position = start
        while position < end:
            span = self.span_at(position)
            if span is None:
                self.refresh(soon=True)  # an archiver may have added the range since the last listing
                span = self.span_at(position)
            if span is None:
                raise OffsetOutOfRange(self._missing(position))
            high = min(span.end, end)
            yield position, high, span
            position = high

    def _missing(self, offset: int) -> str:
        spans = self.spans
        after = next((span.first for span in spans if span.first > offset), None)
        if not spans:
            return f"the archive {self.where} holds no record yet"
        if after is None:
            return f"record {offset} is not in the archive {self.where}, which ends at {self.last_end}"
        if offset < spans[0].first:
            return f"record {offset} is not in the archive {self.where}, which begins at {spans[0].first}"
        return f"records {offset} to {after - 1} are missing in the archive {self.where}: `tutti archive verify` lists all gaps"

    def manifest(self, span: ArchivedRange) -> Manifest:
        """Return the manifest of a range."""
        with self._lock:
            found = self._manifests.get(span.name)
            if found is not None:
                self._manifests.move_to_end(span.name)
                return found
        path = f"{RANGES}/{span.name}"
        where = f"{self.where}/{path}"
        try:  # read outside of the lock, so that a slow store does not block other threads
            data: pa.Buffer = self.store.read(path)
        except FileNotFoundError as error:
            raise corrupt_file_error(where, "the file is missing") from error
        manifest = decode_manifest(data.to_pybytes(), where, span.name)
        if manifest.log != self.log:
            raise WrongDirectory(f"{where} belongs to log {manifest.log}, but the archive to log {self.log}: remove the file")
        with self._lock:
            self._manifests[span.name] = manifest
            while len(self._manifests) > limits.ARCHIVE_MANIFESTS_KEPT:
                self._manifests.popitem(last=False)
        return manifest
