"""Adds a range to an archive: writes its files and reads them back, and then writes the manifest, which makes them valid."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tutti import limits
from tutti.archive.catalog import Archive
from tutti.archive.layout import DataFile, Manifest, data_name, decode_manifest, encode_manifest, range_name
from tutti.archive.parquet import corrupt_file_error, encode, groups_of, raw_size
from tutti.data.frames.columns import SCHEMA
from tutti.data.frames.digest import Digester
from tutti.errors import invariant


class RangeBuffer:
    """The records of a range in memory, collected in order and grouped by topic."""

    def __init__(self, first: int) -> None:
        """Start an empty range at offset `first`."""
        self.first = self.end = first
        self.raw_bytes = 0
        self._digester = Digester()
        self._topics: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._ticks: list[tuple[int, int]] = []
        self._tick = 0

    @property
    def is_full(self) -> bool:
        """True if the records have reached the memory limit, so that the range must end."""
        return self.raw_bytes >= limits.ARCHIVE_RAW_BYTES_MAX

    def append(self, batch: pa.RecordBatch) -> None:
        """Append the next records, with all columns."""
        offsets = batch.column("offset").to_numpy()
        invariant(
            int(offsets[0]) == self.end and int(offsets[-1]) == self.end + len(offsets) - 1,
            f"the log returned records {offsets[0]} to {offsets[-1]} ({len(offsets)}) instead of records from {self.end} on",
        )
        ticks = batch.column("tick").to_numpy()
        self._tick = self._tick if self.end > self.first else int(ticks[0])
        for at in np.flatnonzero(np.diff(ticks, prepend=self._tick)).tolist():
            self._ticks.append((int(ticks[at]), int(offsets[at])))
        self._tick = int(ticks[-1])
        if self.end == self.first:
            self._ticks.insert(0, (int(ticks[0]), self.first))
        self._digester.update(batch)
        for topic, records in _by_topic(batch):
            self._topics[topic].append(records)
        self.end += len(offsets)
        self.raw_bytes += raw_size(batch)

    def tables(self) -> list[tuple[str | None, pa.Table]]:
        """Return (topic, records) for each file to write; topic None marks one file for all topics without their own file."""
        tables = [(topic, pa.Table.from_batches(batches, SCHEMA)) for topic, batches in self._topics.items()]
        tables.sort(key=lambda one: (-raw_size(one[1]), one[0]))
        if len(tables) <= limits.ARCHIVE_FILES_MAX:
            return [*tables]
        own, others = tables[: limits.ARCHIVE_FILES_MAX - 1], tables[limits.ARCHIVE_FILES_MAX - 1 :]
        rest = pa.concat_tables([table for _, table in others]).combine_chunks()
        return [*own, (None, rest.take(np.argsort(rest.column("offset").to_numpy())))]

    def manifest(self, log: str, files: Iterable[DataFile]) -> Manifest:
        """Return the manifest of the range, which consists of these files."""
        (tick_first, _), *ticks = self._ticks
        return Manifest(
            log=log,
            first=self.first,
            end=self.end,
            tick_first=tick_first,
            tick_last=self._tick,
            ticks=tuple(ticks),
            digest=self._digester.hexdigest(self.first),
            files=tuple(files),
        )

    @property
    def tick_span(self) -> tuple[int, int]:
        """Ticks of the first and the last record."""
        return self._ticks[0][0], self._tick


def _by_topic(batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
    encoded: Any = batch.column("topic").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return [(names[0], batch)]
    numbers = encoded.indices.to_numpy()
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(names) + 1)).tolist()
    grouped = batch.take(order)
    return [(name, grouped.slice(low, high - low)) for name, (low, high) in zip(names, pairwise(bounds), strict=True)]


def add_range(archive: Archive, buffer: RangeBuffer) -> Manifest:
    """Write the files and the manifest of a range; keep an existing manifest of another archiver for this range.

    Raises:
        Damaged: the bytes read back differ from the written ones.
        DiskFull, Unavailable: a write failed, or the manifest could not be read back; the caller can retry.
    """
    span = buffer.first, buffer.end
    files = [_write(archive, topic, table, buffer.tick_span, span) for topic, table in buffer.tables()]
    invariant(sum(file.records for file in files) == span[1] - span[0], f"the files of range {span} do not hold all its records")
    manifest = buffer.manifest(archive.log, files)
    data = encode_manifest(manifest)
    # Write the manifest last, because it makes the files part of the archive.
    # Read the manifest back and use that content, because `create` keeps a manifest that another archiver has written.
    archive.store.create(manifest.name, data)
    where = f"{archive.where}/{manifest.name}"
    try:
        stored = archive.store.read_back(manifest.name).to_pybytes()
    except FileNotFoundError as error:
        raise corrupt_file_error(where, "the file is missing right after the write") from error
    manifest = decode_manifest(stored, where, range_name(*span))
    archive.add(manifest)
    return manifest


def _write(archive: Archive, topic: str | None, table: pa.Table, ticks: tuple[int, int], span: tuple[int, int]) -> DataFile:
    # Combine chunks, because the bytes of a Parquet file depend on them, and equal records must give equal files.
    groups = [group.combine_chunks() for group in groups_of(table)]
    encoded = encode(groups)
    path = data_name(ticks, span, encoded.sha256)
    archive.store.write(path, encoded.data)  # writing the same content again has no effect, because the name contains its hash
    _check(f"{archive.where}/{path}", archive.store.read_back(path), encoded.sha256, groups)
    topics = {topic: table.num_rows} if topic is not None else _counts(table)
    times = table.column("timestamp").cast(pa.int64()).to_numpy()
    offsets = table.column("offset")
    return DataFile(
        path=path,
        bytes=encoded.data.size,
        sha256=encoded.sha256,
        raw_bytes=raw_size(table),
        first=offsets[0].as_py(),
        last=offsets[-1].as_py(),
        topics=topics,
        time_min=int(times.min()),
        time_max=int(times.max()),
        tail=encoded.tail,
        groups=encoded.groups,
    )


def _counts(table: pa.Table) -> dict[str, int]:
    counted: Any = pc.value_counts(table.column("topic"))
    return {one["values"]: one["counts"] for one in counted.to_pylist()}


def _check(where: str, data: pa.Buffer, sha256: str, groups: list[pa.Table]) -> None:
    """Check that the bytes read back are the written ones, and that they decode to the records in `groups`.

    Raises:
        Damaged: the bytes that were read back, or the records in them, differ.
    """
    if hashlib.sha256(data).hexdigest() != sha256:
        raise corrupt_file_error(where, "the bytes read back differ from the written ones")
    file = parquet.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    for number, group in enumerate(groups):
        if not file.read_row_group(number, use_threads=False).equals(group):
            raise corrupt_file_error(where, f"row group {number} does not decode to the log's records")
