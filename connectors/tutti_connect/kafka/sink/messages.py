"""Conversion of log records to Kafka messages, and detection of records that Kafka always rejects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutti_connect.quarantine import as_base64

#: Columns read from the log.
COLUMNS = ("offset", "topic", "key", "value", "timestamp", "headers")
OVERHEAD_BYTES = 64  # memory that Kafka's client needs for a message, besides key and value


class OutgoingRecord(NamedTuple):
    """A record for Kafka. `time_ms` counts from 1970; `headers` includes the header with the offset, if configured."""

    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: list[tuple[str, bytes | None]] | None

    @property
    def reason(self) -> str:
        """Return the reason why Kafka never accepts this record, or "" if Kafka may accept it."""
        return f"its time is {self.time_ms} ms since 1970: Kafka rejects negative times" if self.time_ms < 0 else ""

    def fields(self, log: str) -> dict[str, Any]:
        """Return all fields of the record, for quarantine."""
        return {
            "log": log,
            "offset": self.offset,
            "topic": self.topic,
            "timestamp_ms": self.time_ms,
            "key_base64": as_base64(self.key),
            "value_base64": as_base64(self.value),
            "headers": [[name, as_base64(value)] for name, value in self.headers or ()],
        }


def outgoing_records(batch: pa.RecordBatch, offset_header: str = "") -> Iterator[OutgoingRecord]:
    """Return the records of a batch with the columns `COLUMNS`.

    If `offset_header` is set, each record gets a header of this name, with its offset as value.
    """
    offsets: list[int] = batch.column("offset").to_numpy().tolist()
    # Kafka's times are in milliseconds. Floor division also rounds times before 1970 down.
    times = np.floor_divide(batch.column("timestamp").cast(pa.int64()).to_numpy(), 1000).tolist()
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    headers = _headers(batch.column("headers"), offsets, offset_header)
    return map(OutgoingRecord, offsets, batch.column("topic").to_pylist(), keys, values, times, headers)


def sizes(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the approximate number of bytes that each record takes in Kafka's client."""
    total = np.full(batch.num_rows, OVERHEAD_BYTES, np.int64)
    for name in ("key", "value"):
        column: Any = batch.column(name)
        total += pc.binary_length(column).fill_null(0).to_numpy()
    return total


def _headers(column: pa.Array[Any], offsets: list[int], offset_header: str) -> list[list[tuple[str, bytes | None]] | None]:
    given: list[list[tuple[str, bytes | None]] | None]
    if column.null_count == len(column):
        given = [None] * len(offsets)
    else:
        given = [None if row is None else [(one["key"], one["value"]) for one in row] for row in column.to_pylist()]
    if not offset_header:
        return given
    return [[*(row or ()), (offset_header, b"%d" % offset)] for row, offset in zip(given, offsets, strict=True)]
