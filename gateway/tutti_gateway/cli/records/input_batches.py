"""Batching of an input, with an optional rate limit."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import pyarrow as pa

from tutti import limits as common_limits
from tutti_gateway.cli.records.inputs import Chunk
from tutti_gateway.core import limits


class Pieces:
    """Splits chunks into batches; `rate` limits the records in a second."""

    def __init__(self, rate: float | None) -> None:
        """Set the rate limit in records a second; None for no limit."""
        self._rate = rate
        self._sent = 0
        self._started_s: float | None = None

    def of(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the chunk in batch-sized parts, each when the rate allows it."""
        while chunk.values:
            part, chunk = chunk.cut(self._records(chunk.values))
            self._wait()
            self._sent += len(part.values)
            yield part

    def _records(self, values: list[bytes]) -> int:
        """Return the size of the next batch in records: for its bytes, and for a steady rate."""
        sizes = list(accumulate(map(len, values)))
        count = max(1, bisect_right(sizes, common_limits.BATCH_BYTES))
        return min(count, limits.PRODUCE_RECORDS_MAX, max(1, int(self._rate / 20)) if self._rate else count)

    def _wait(self) -> None:
        """Wait until the rate allows more records; the first ones go at once."""
        if self._rate:
            now_s = time.monotonic()
            self._started_s = now_s if self._started_s is None else self._started_s
            time.sleep(max(0.0, self._started_s + self._sent / self._rate - now_s))


def batch_of(part: Chunk) -> pa.RecordBatch:
    """Return a part of the input as a record batch."""
    keys = part.keys if part.keys is not None else [None] * len(part.values)
    return pa.record_batch([pa.array(keys, pa.binary()), pa.array(part.values, pa.binary())], names=["key", "value"])
