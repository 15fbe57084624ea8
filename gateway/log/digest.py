"""One number for the records of a range: equal wherever the range is the same, however it was batched, compressed and stored.

Canonical form: SHA-256 over `tutti-digest-1`, a newline, and then for each run of records whose offsets have the same quotient by
4096 (cut at the ends of the range), all numbers little-endian:

1. first offset u64, records u32;
2. topics, keys, values, each as lengths i32 of all records (-1 for null), then the bytes back to back;
3. timestamps i64, us;
4. headers: how many per record i32 (-1 for null), then of all of them names and values, each as lengths and bytes as in 2.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gateway.log.reader import LogReader
from gateway.log.scan import scan

CHUNK = 4096
_COLUMNS = ("topic", "key", "value", "timestamp", "headers")
_HEAD = struct.Struct("<QI")


class Digest(NamedTuple):
    """A digest (hex) of the records [start, end) of a log (uuid as hex)."""

    log: str
    start: int
    end: int
    sha256: str


def digest(
    path: str | os.PathLike[str],
    start: int | None = None,
    end: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Digest:
    """The digest of the committed records [start, end) of a directory, from its first one to its frontier unless said otherwise.

    Args:
        progress: called now and then with records done and records in all.

    Raises:
        DirectoryRefused, OffsetOutOfRange, UsageError: there is no such range.
        Damaged: a frame in it is.
    """
    with closing(LogReader(path)) as reader:
        low = reader.start if start is None else start
        high = reader.frontier().offset if end is None else end
        reader.check_range(low, high)
        return Digest(reader.log, low, high, _digest(scan(reader, low, high, columns=_COLUMNS), low, high, progress))


def _digest(found: Iterable[pa.RecordBatch], low: int, high: int, progress: Callable[[int, int], None] | None) -> str:
    hasher = hashlib.sha256(b"tutti-digest-1\n")
    waiting: list[pa.RecordBatch] = []
    count, at = 0, low
    for batch in found:
        while batch.num_rows:
            take = min(CHUNK - (at + count) % CHUNK, batch.num_rows)
            waiting.append(batch.slice(0, take))
            batch = batch.slice(take)
            count += take
            if (at + count) % CHUNK == 0:
                _chunk(hasher.update, at, waiting)
                at, count, waiting = at + count, 0, []
                if progress is not None:
                    progress(at - low, high - low)
    if waiting:
        _chunk(hasher.update, at, waiting)
    return hasher.hexdigest()


def _chunk(update: Callable[[Any], None], offset: int, batches: list[pa.RecordBatch]) -> None:
    update(_HEAD.pack(offset, sum(batch.num_rows for batch in batches)))
    topic, key, value, timestamp, headers = (
        pa.concat_arrays([batch.column(number) for batch in batches]) for number in range(len(_COLUMNS))
    )
    for column in (topic, key, value):
        _texts(update, column)
    update(timestamp.cast(pa.int64()).to_numpy())
    update(_int32(pc.list_value_length(headers)))
    entries = cast("pa.StructArray", cast("pa.ListArray[Any]", headers).flatten())
    for number in (0, 1):
        _texts(update, entries.field(number))


def _texts(update: Callable[[Any], None], column: pa.Array[Any]) -> None:
    update(_int32(pc.binary_length(cast("pa.BinaryArray", column))))
    there = column.drop_null()  # what stands behind a null is nobody's business
    _, offsets, data = there.buffers()
    if len(there) and offsets is not None and data is not None:
        bounds = np.frombuffer(memoryview(offsets), np.int32)[there.offset : there.offset + len(there) + 1]
        update(data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])))


def _int32(lengths: pa.Array[Any]) -> npt.NDArray[np.int32]:
    return lengths.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
