"""From record batches of the log to messages for Kafka; and which records Kafka takes in no case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutti_connect.quarantine import as_base64

#: What is read of the log.
COLUMNS = ("offset", "topic", "key", "value", "timestamp", "headers")
OVERHEAD_BYTES = 64  # of a message in Kafka's client, beside its bytes


class Outgoing(NamedTuple):
    """A record for Kafka: `time_ms` since 1970; `headers` with that of its offset, if one is asked for."""

    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: list[tuple[str, bytes | None]] | None

    @property
    def reason(self) -> str:
        """Why Kafka takes it in no case; empty for almost all."""
        return f"its time is {self.time_ms} ms since 1970: Kafka takes none before that" if self.time_ms < 0 else ""

    def told(self, log: str) -> dict[str, Any]:
        """All there is of it, for quarantine."""
        return {
            "log": log,
            "offset": self.offset,
            "topic": self.topic,
            "timestamp_ms": self.time_ms,
            "key_base64": as_base64(self.key),
            "value_base64": as_base64(self.value),
            "headers": [[name, as_base64(value)] for name, value in self.headers or ()],
        }


def outgoing(batch: pa.RecordBatch, offset_header: str = "") -> Iterator[Outgoing]:
    """The records of a batch that has `COLUMNS`. `offset_header` names the header that says a record's offset, in digits."""
    offsets: list[int] = batch.column("offset").to_numpy().tolist()
    # Kafka counts in ms; the ones cut off are the last ones, also before 1970.
    times = np.floor_divide(batch.column("timestamp").cast(pa.int64()).to_numpy(), 1000).tolist()
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    headers = _headers(batch.column("headers"), offsets, offset_header)
    # In most batches there is one topic alone.
    return map(Outgoing, offsets, batch.column("topic").to_pylist(), keys, values, times, headers)


def sizes(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """About how many bytes each record takes in Kafka's client."""
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
