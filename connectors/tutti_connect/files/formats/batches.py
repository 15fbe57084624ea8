"""Conversion of rows to record batches. Each batch becomes one frame, with the position after its last record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tutti.data.frames.schema import TIMESTAMP
from tutti_connect.files import limits
from tutti_connect.files.formats.rows import NOW
from tutti_connect.files.position import FilePosition, shortened

if TYPE_CHECKING:
    from tutti_connect.files.discovery.ledger import Piece
    from tutti_connect.files.formats.file_reader import FileReader
    from tutti_connect.files.formats.rows import Rows

_BINARY = pa.binary()


class Frame(NamedTuple):
    """Records of one topic for one frame; `number` counts the frames of a session from 1."""

    number: int
    topic: str
    records: pa.RecordBatch
    position: FilePosition


class Builder:
    """Collects the rows of successive files, and divides them into frames; one frame can have rows of several small files."""

    def __init__(self, ledger: str) -> None:
        """Start without rows; `ledger` is the id of the ledger, which every position contains."""
        self._ledger = ledger
        self._topic = ""
        self._position: FilePosition | None = None  # position after the last waiting record
        self._empty()
        self.frame_count = 0  # number of frames so far

    def _empty(self) -> None:
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._times: list[int] = []
        self._bytes = 0

    @property
    def last(self) -> int:
        """Return the number of the frame of the last added record; 0 before the first record."""
        return self.frame_count + 1 if self._values else self.frame_count

    def add(self, rows: Rows, topic: str, name: str, piece: Piece, source: FileReader) -> Iterator[Frame]:
        """Add the valid rows of a piece, and yield full frames.

        Raises:
            OSError: the file cannot be read.
        """
        if not rows.values:
            return
        if topic != self._topic:
            yield from self.flush()
            self._topic = topic
        sizes = np.fromiter(map(_length, rows.values), np.int64, len(rows.values))
        sizes += np.fromiter(map(_length, rows.keys), np.int64, len(rows.keys)) + limits.RECORD_OVERHEAD_BYTES
        totals = np.cumsum(sizes)
        start, count = 0, len(rows.values)
        while start < count:
            done = int(totals[start - 1]) if start else 0
            end = int(np.searchsorted(totals, done + limits.FRAME_BYTES - self._bytes, "right"))
            end = min(end, start + limits.FRAME_RECORDS - len(self._values))
            if end <= start and self._values:
                yield from self.flush()  # the frame has no space for the next record
                continue
            end = max(end, start + 1)
            self._values += rows.values[start:end]
            self._keys += rows.keys[start:end]
            self._times += rows.times[start:end]
            self._bytes += int(totals[end - 1]) - done
            at = rows.ends[end - 1]
            self._position = FilePosition(self._ledger, piece.number, at, rows.numbers[end - 1], source.mark(at), shortened(name))
            start = end
            if start < count:
                yield from self.flush()

    def flush(self) -> Iterator[Frame]:
        """Yield the waiting records as a frame."""
        if not self._values or self._position is None:
            return
        records = pa.RecordBatch.from_arrays(
            [_column(self._keys), _column(self._values), _times(self._times)], names=["key", "value", "timestamp"]
        )
        self._empty()
        self.frame_count += 1
        yield Frame(self.frame_count, self._topic, records, self._position)


def _length(data: bytes | None) -> int:
    return 0 if data is None else len(data)


def _column(values: list[bytes | None]) -> pa.Array[Any]:
    return pa.array(values, _BINARY)


def _times(times: list[int]) -> pa.Array[Any]:
    """Return the timestamp column, with the current time for records without a time."""
    stamps = np.array(times, np.int64)
    stamps[stamps == NOW] = time.time_ns() // 1000
    return pa.array(stamps).cast(TIMESTAMP)
