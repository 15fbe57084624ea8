"""An input in pieces: batches of a good size, at the pace that was asked for."""

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
    """Cuts chunks into batches; with `rate`, so many records a second at most."""

    def __init__(self, rate: float | None) -> None:
        """None: as fast as it goes."""
        self._rate = rate
        self._given = 0
        self._from_s: float | None = None

    def of(self, chunk: Chunk) -> Iterator[Chunk]:
        """The chunk in pieces that make a batch each, when it is time for them."""
        while chunk.values:
            part, chunk = chunk.cut(self._records(chunk.values))
            self._wait()
            self._given += len(part.values)
            yield part

    def _records(self, values: list[bytes]) -> int:
        """How many of them make the next batch: for its bytes, and for a steady pace."""
        sizes = list(accumulate(map(len, values)))
        piece = max(1, bisect_right(sizes, common_limits.BATCH_BYTES))
        return min(piece, limits.PRODUCE_RECORDS_MAX, max(1, int(self._rate / 20)) if self._rate else piece)

    def _wait(self) -> None:
        """Wait until the rate allows more than was given; the first records go at once."""
        if self._rate:
            now_s = time.monotonic()
            self._from_s = now_s if self._from_s is None else self._from_s
            time.sleep(max(0.0, self._from_s + self._given / self._rate - now_s))


def batch_of(part: Chunk) -> pa.RecordBatch:
    """A piece as a record batch."""
    keys = part.keys if part.keys is not None else [None] * len(part.values)
    return pa.record_batch([pa.array(keys, pa.binary()), pa.array(part.values, pa.binary())], names=["key", "value"])
