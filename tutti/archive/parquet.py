"""Parquet files of the archive: encoded in memory, and read in parts with a check of each part.

Other query engines can read the files, which are plain Parquet. This module checks all bytes that it reads. The manifest has a
CRC32C of each column chunk and of the footer, so a read of some columns or records needs to fetch and check only their chunks.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tutti import limits
from tutti.archive.layout import RESTORE_HINT, DataFile, Group
from tutti.archive.store import Store
from tutti.data.frames.columns import SCHEMA, schema_of
from tutti.data.frames.frame import crc32c
from tutti.errors import Damaged

_LEVEL = 1  # zstd level; level 3 takes twice the CPU time and makes files only 5 % smaller
_NUMBERS = ("offset", "timestamp", "sequence", "view", "tick")
_NAMES: Any = ["topic", "gateway", "producer"]
_ROW_BYTES = 100  # estimated size of a record without key, value and headers
_MAGIC = 8  # size of the last two fields of a Parquet file: length of the footer, and the text PAR1


class Encoded(NamedTuple):
    """An encoded file: its bytes, their SHA-256, the footer's length and CRC32C, and the row groups."""

    data: pa.Buffer
    sha256: str
    tail: tuple[int, int]
    groups: tuple[Group, ...]


def raw_size(records: pa.Table | pa.RecordBatch) -> int:
    """Return the approximate size of records in memory, which does not depend on how they are divided into batches."""
    entries: Any = records.column("headers").combine_chunks() if isinstance(records, pa.Table) else records.column("headers")
    texts: list[Any] = [records.column("key"), records.column("value"), *entries.flatten().flatten()]
    return records.num_rows * _ROW_BYTES + sum(pc.sum(pc.binary_length(text)).as_py() or 0 for text in texts)


def groups_of(table: pa.Table) -> list[pa.Table]:
    """Split a table with schema `SCHEMA` into row groups; equal records give equal row groups."""
    rows = max(1, table.num_rows * limits.ARCHIVE_GROUP_BYTES // max(raw_size(table), 1))
    return [table.slice(at, rows) for at in range(0, table.num_rows, rows)]


def encode(groups: Sequence[pa.Table]) -> Encoded:
    """Encode a file with these row groups."""
    sink = pa.BufferOutputStream()
    plain: dict[str, str] = {"key": "PLAIN", "value": "PLAIN"}
    with parquet.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=_NAMES,
        column_encoding=plain | dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        write_statistics=[*_NUMBERS, *_NAMES],
    ) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
    data = sink.getvalue()
    length = int.from_bytes(data.slice(data.size - _MAGIC, 4).to_pybytes(), "little") + _MAGIC
    tail = data.slice(data.size - length)
    metadata = parquet.read_metadata(pa.BufferReader(tail))
    found = tuple(_group(data, metadata.row_group(at), group) for at, group in enumerate(groups))
    return Encoded(data, hashlib.sha256(data).hexdigest(), (length, crc32c(memoryview(tail))), found)


def _group(data: pa.Buffer, metadata: Any, group: pa.Table) -> Group:
    chunks = []
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        start = column.data_page_offset
        if column.dictionary_page_offset is not None:
            start = min(start, column.dictionary_page_offset)
        chunks.append((start, column.total_compressed_size, crc32c(memoryview(data)[start : start + column.total_compressed_size])))
    offsets = group.column("offset")
    return Group(first=offsets[0].as_py(), last=offsets[-1].as_py(), records=group.num_rows, chunks=tuple(chunks))


class ArchivedFile:
    """A file of an archive, opened for reading. The methods check the CRC of all data that they return.

    Raises (all methods):
        Damaged: the file differs from the bytes that were written; the message has the file.
        Unavailable: the file is not readable now.
    """

    def __init__(self, store: Store, file: DataFile) -> None:
        """Read and check the footer."""
        self._file = file
        self._where = f"{store.where}/{file.path}"
        length, crc = file.tail
        tail = _read(store, file, self._where, file.bytes - length, length)
        if crc32c(tail) != crc:
            raise corrupt_file_error(self._where, "the footer fails its CRC")
        source = pa.PythonFile(_Checked(store, file, self._where), mode="r")
        # pyarrow's `pre_buffer` would also fetch column chunks between the wanted ones.
        self._parquet = parquet.ParquetFile(source, metadata=parquet.read_metadata(io.BytesIO(tail)), pre_buffer=False)

    def group(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Return the columns of a row group, in the order of `columns`."""
        try:
            table = self._parquet.read_row_group(number, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise corrupt_file_error(self._where, f"row group {number} cannot be decoded ({error})") from error
        table = table.select(list(columns))
        if not table.schema.equals(schema_of(columns)) or table.num_rows != self._file.groups[number].records:
            raise corrupt_file_error(self._where, f"row group {number} has {table.num_rows} records of {table.schema.names}")
        return table


class _Checked(io.RawIOBase):
    """File object for pyarrow, which checks the CRC of each column chunk; a read therefore fetches complete chunks."""

    def __init__(self, store: Store, file: DataFile, where: str) -> None:
        super().__init__()
        self._store = store
        self._file = file
        self._where = where
        self._at = 0
        self._chunks = sorted(chunk for group in file.groups for chunk in group.chunks)
        self._starts = [start for start, _, _ in self._chunks]
        self._buffered = (0, b"")  # position in the file of the chunks that were fetched last, and their bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._file.bytes if size < 0 else min(self._at + size, self._file.bytes)
        start, self._at = self._at, end
        begin, data = self._buffered
        if not begin <= start <= end <= begin + len(data):
            begin, data = self._buffered = self._fetch(start, end)
        return data[start - begin : end - begin]

    def _fetch(self, start: int, end: int) -> tuple[int, bytes]:
        low = max(bisect_right(self._starts, start) - 1, 0)
        wanted = [chunk for chunk in self._chunks[low:] if chunk[0] < end]
        begin = wanted[0][0] if wanted else 0
        upto = wanted[-1][0] + wanted[-1][1] if wanted else 0
        if not begin <= start <= end <= upto:
            raise corrupt_file_error(self._where, f"the footer refers to bytes {start} to {end}, where no column chunk is")
        data = _read(self._store, self._file, self._where, begin, upto - begin)
        view = memoryview(data)
        for at, length, crc in wanted:
            if crc32c(view[at - begin : at - begin + length]) != crc:
                raise corrupt_file_error(self._where, f"the column chunk at byte {at} fails its CRC")
        return begin, data


def _read(store: Store, file: DataFile, where: str, start: int, length: int) -> bytes:
    try:
        data = store.read_at(file.path, start, length)
    except FileNotFoundError as error:
        raise corrupt_file_error(where, "the file is missing") from error
    if len(data) != length:
        raise corrupt_file_error(where, f"it ends before byte {start + length}, but was written with {file.bytes} bytes")
    return data


def corrupt_file_error(where: str, why: str) -> Damaged:
    """Return the error for a file that differs from the bytes that were written."""
    return Damaged(f"{where} of the archive is corrupt: {why}; {RESTORE_HINT}")
