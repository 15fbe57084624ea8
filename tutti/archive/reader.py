"""Reads records of an archive in offset order. A range has a file for each topic, so a read merges the files of a range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tutti import limits
from tutti.archive.catalog import Archive
from tutti.archive.layout import DataFile, Manifest
from tutti.archive.parquet import ArchivedFile, corrupt_file_error
from tutti.data.scan_request import ScanBatch, ScanRequest


def read(archive: Archive, request: ScanRequest) -> Iterator[ScanBatch]:
    """Yield the requested records of an archive.

    Raises:
        OffsetOutOfRange: the archive lacks some of the records.
        Damaged: a file differs from the bytes that were written; all records before it are correct.
    """
    for low, high, span in archive.covering(request.start, request.end):
        yield from read_range(archive, archive.manifest(span), replace(request, start=low, end=high))


def read_range(archive: Archive, manifest: Manifest, request: ScanRequest) -> Iterator[ScanBatch]:
    """As `read`, from one range."""
    start, end, topics = request.start, request.end, request.topics
    runs = [
        _Run(archive, file, request)
        for file in manifest.files
        if file.last >= start and file.first < end and (topics is None or not file.topics.keys().isdisjoint(topics))
    ]
    position = start
    for table in _merged(runs):
        if topics is None:  # a read of all topics must return each offset exactly once
            _check_dense(archive, manifest, position, table.column("offset"))
        for batch in _batches(table):
            found = request.scan_batch(batch, position)
            position = found.next
            yield found
    if topics is None and position != end:
        raise corrupt_file_error(f"{archive.where}/{manifest.name}", f"none of its files holds records {position} to {end - 1}")


def _check_dense(archive: Archive, manifest: Manifest, position: int, offsets: pa.ChunkedArray[Any]) -> None:
    """Check that the offsets start at `position` and have no gap and no duplicate."""
    numbers = offsets.to_numpy()
    if numbers[0] != position or not bool((np.diff(numbers) == 1).all()):
        found = f"its files lack records from {position} on, or hold some twice"
        raise corrupt_file_error(f"{archive.where}/{manifest.name}", found)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    rows = max(1, table.num_rows * limits.READ_BATCH_BYTES_MAX // max(table.nbytes, 1))
    yield from table.combine_chunks().to_batches(max_chunksize=min(rows, limits.READ_BATCH_ROWS_MAX))


class _Run:
    """The selected records of one file, read one row group at a time."""

    def __init__(self, archive: Archive, file: DataFile, request: ScanRequest) -> None:
        self._archive = archive
        self._file = file
        self._start, self._end = request.start, request.end
        # A file with a single topic needs no filter, because `read_range` skips it if its topic is not selected.
        topics = None if request.topics is None or len(file.topics) == 1 else sorted(set(request.topics))
        self._topics = None if topics is None else pa.array(topics, pa.string())
        self._columns = list(dict.fromkeys([*request.columns, "offset"]))
        self._read_columns = list(dict.fromkeys([*self._columns, "topic"])) if self._topics is not None else self._columns
        self._groups = [at for at, group in enumerate(file.groups) if group.last >= request.start and group.first < request.end]
        self._opened: ArchivedFile | None = None
        self.table: pa.Table | None = None
        self.offsets: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def fill(self) -> bool:
        """Load the next row group if the buffer is empty. Return False at the end of the file."""
        while not len(self.offsets) and self._groups:
            if self._opened is None:
                self._opened = ArchivedFile(self._archive.store, self._file)
            table = self._opened.group(self._groups.pop(0), self._read_columns)
            offsets = table.column("offset").to_numpy()
            low, high = np.searchsorted(offsets, (self._start, self._end))
            table = table.slice(int(low), int(high - low))
            if self._topics is not None:
                table = table.filter(pc.is_in(table.column("topic"), value_set=self._topics)).select(self._columns)
            self.table, self.offsets = table, table.column("offset").to_numpy()
        return len(self.offsets) > 0

    def pop_upto(self, last: int) -> pa.Table | None:
        """Remove the buffered records up to offset `last` (inclusive), and return them; return None if the buffer has none."""
        count = int(np.searchsorted(self.offsets, last, side="right"))
        if not count or self.table is None:
            return None
        removed, self.table, self.offsets = self.table.slice(0, count), self.table.slice(count), self.offsets[count:]
        return removed


def _merged(runs: list[_Run]) -> Iterator[pa.Table]:
    """Merge the records of all runs in offset order.

    Each step merges up to the offset at which the first buffer ends, because the next record may be in the rest of this file.
    """
    while runs := [run for run in runs if run.fill()]:
        last = min(int(run.offsets[-1]) for run in runs)
        parts = [part for run in runs if (part := run.pop_upto(last)) is not None]
        if len(parts) == 1:
            yield parts[0]
            continue
        table = pa.concat_tables(parts).combine_chunks()
        yield table.take(np.argsort(table.column("offset").to_numpy(), kind="stable"))
