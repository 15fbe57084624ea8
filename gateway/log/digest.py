"""One number for the records of a range: equal wherever the range is the same, however it was batched, compressed and stored.

Canonical form: SHA-256 over `tutti-digest-1`, a newline, first offset u64, records u64, and then the SHA-256 (32 bytes each) of
these, each over all records of the range in order, all numbers little-endian:

1. topics, keys, values: for each of the three the lengths i32 (-1 for null), then the bytes back to back, so six sums;
2. timestamps i64, us;
3. headers: how many i32 (-1 for null), then of the names, and of the values, the lengths and the bytes as in 1, so five sums.

So no more than one batch is ever held, however large the records are.
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

from gateway.log.lane_reader import LaneReader, reader_of
from gateway.log.scan import scan

_COLUMNS = ("topic", "key", "value", "timestamp", "headers")
_HEAD = struct.Struct("<QQ")


class Digest(NamedTuple):
    """A digest (hex) of the records [start, end) of a log (uuid as hex), or of a lane beside it (NUMBER-INCARNATIONHEX)."""

    log: str
    start: int
    end: int
    sha256: str
    lane: str = ""


def digest(
    path: str | os.PathLike[str],
    start: int | None = None,
    end: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Digest:
    """The digest of the committed records [start, end) of a directory, from its first one to its frontier unless said otherwise.

    Args:
        progress: called after each batch with records done and records in all.

    Raises:
        DirectoryRefused, OffsetOutOfRange, UsageError: there is no such range.
        Damaged: a frame in it is.
    """
    with closing(reader_of(path)) as reader:
        low = reader.start if start is None else start
        high = reader.frontier().offset if end is None else end
        reader.check_range(low, high)
        found = _digest(scan(reader, low, high, columns=_COLUMNS), low, high, progress)
        return Digest(reader.log, low, high, found, reader.lane.text if isinstance(reader, LaneReader) else "")


def _digest(found: Iterable[pa.RecordBatch], low: int, high: int, progress: Callable[[int, int], None] | None) -> str:
    topics, keys, values, names, contents = (_Texts() for _ in range(5))
    times, counts = hashlib.sha256(), hashlib.sha256()
    done = 0
    for batch in found:
        topic, key, value, timestamp, headers = batch.columns
        for texts, column in ((topics, topic), (keys, key), (values, value)):
            texts.take(column)
        times.update(timestamp.cast(pa.int64()).to_numpy().data)
        counts.update(_int32(pc.list_value_length(headers)).data)
        entries = cast("pa.StructArray", cast("pa.ListArray[Any]", headers).flatten())
        names.take(entries.field(0))
        contents.take(entries.field(1))
        done += batch.num_rows
        if progress is not None:
            progress(done, high - low)
    hasher = hashlib.sha256(b"tutti-digest-1\n" + _HEAD.pack(low, high - low))
    for texts in (topics, keys, values):
        hasher.update(texts.sums())
    hasher.update(times.digest() + counts.digest() + names.sums() + contents.sums())
    return hasher.hexdigest()


class _Texts:
    """Two sums over texts or bytes: one over their lengths, one over what they are."""

    def __init__(self) -> None:
        self._lengths = hashlib.sha256()
        self._bytes = hashlib.sha256()

    def take(self, column: pa.Array[Any]) -> None:
        """Some more of them."""
        self._lengths.update(_int32(pc.binary_length(cast("pa.BinaryArray", column))).data)
        there = column.drop_null()  # what stands behind a null is nobody's business
        _, offsets, data = there.buffers()
        if len(there) and offsets is not None and data is not None:
            bounds = np.frombuffer(memoryview(offsets), np.int32)[there.offset : there.offset + len(there) + 1]
            self._bytes.update(data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])))

    def sums(self) -> bytes:
        """Both."""
        return self._lengths.digest() + self._bytes.digest()


def _int32(lengths: pa.Array[Any]) -> npt.NDArray[np.int32]:
    return lengths.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
