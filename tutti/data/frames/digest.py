"""Digest of the records of a range, independent of their batching, compression and storage.

The digest is SHA-256 over `tutti-digest-1`, a newline, first offset u64, record count u64, and the SHA-256 values (32 bytes each)
of the following streams. Each stream covers all records of the range in order; all numbers are little-endian:

1. topics, keys, values: for each of the three, the lengths i32 (-1 for null), and the concatenated bytes: six streams;
2. timestamps i64, us;
3. headers: the counts i32 (-1 for null), then lengths and bytes of the names and of the values, as in 1: five streams.

Each stream has its own hash, so the computation never needs more than one batch in memory.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: The columns that the digest covers.
DIGESTED = ("topic", "key", "value", "timestamp", "headers")
_HEAD = struct.Struct("<QQ")


class Digester:
    """Computes the digest of a range. The batches of the range are added in order."""

    def __init__(self) -> None:
        """Create a digester for a range, without records."""
        self._topics, self._keys, self._values, self._names, self._contents = (_Texts() for _ in range(5))
        self._times, self._counts = hashlib.sha256(), hashlib.sha256()
        self.records = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next records. The batch must have the columns `DIGESTED`; other columns are ignored."""
        topic, key, value, timestamp, headers = (batch.column(name) for name in DIGESTED)
        for texts, column in ((self._topics, topic), (self._keys, key), (self._values, value)):
            texts.update(column)
        self._times.update(timestamp.cast(pa.int64()).to_numpy().data)
        self._counts.update(_int32(pc.list_value_length(headers)).data)
        entries = cast("pa.StructArray", cast("pa.ListArray[Any]", headers).flatten())
        self._names.update(entries.field(0))
        self._contents.update(entries.field(1))
        self.records += batch.num_rows

    def hexdigest(self, first: int) -> str:
        """Return the digest (hex) of the added records. `first` is the offset of the first added record."""
        hasher = hashlib.sha256(b"tutti-digest-1\n" + _HEAD.pack(first, self.records))
        for texts in (self._topics, self._keys, self._values):
            hasher.update(texts.sums())
        hasher.update(self._times.digest() + self._counts.digest() + self._names.sums() + self._contents.sums())
        return hasher.hexdigest()


class _Texts:
    """Two hashes over a column of texts or bytes: one over the lengths of the values, and one over their bytes."""

    def __init__(self) -> None:
        self._lengths = hashlib.sha256()
        self._bytes = hashlib.sha256()

    def update(self, column: pa.Array[Any]) -> None:
        """Add the next values of the column."""
        self._lengths.update(_int32(pc.binary_length(cast("pa.BinaryArray", column))).data)
        present = column.drop_null()  # the buffer may contain bytes for a null, which must not change the digest
        _, offsets, data = present.buffers()
        if len(present) and offsets is not None and data is not None:
            bounds = np.frombuffer(memoryview(offsets), np.int32)[present.offset : present.offset + len(present) + 1]
            self._bytes.update(data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])))

    def sums(self) -> bytes:
        """Return the hash of the lengths, and then the hash of the content, 32 bytes each."""
        return self._lengths.digest() + self._bytes.digest()


def _int32(lengths: pa.Array[Any]) -> npt.NDArray[np.int32]:
    return lengths.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
