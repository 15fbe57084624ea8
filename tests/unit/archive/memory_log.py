"""A log in memory for the archive tests: records of several topics, ticks, and the interface that an archiver reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from tutti.data.frames.columns import SCHEMA
from tutti.data.scan_request import ScanBatch
from tutti.errors import OffsetOutOfRange, Refused

LOG = "ab" * 16


class Standing(NamedTuple):
    """How far it is."""

    log: str
    start: int
    offset: int
    stale: bool = False


def table_of(count: int, topics: str = "abc", seed: int = 1, each_tick: int = 100) -> pa.Table:
    """Records [0, count) with a tick after each `each_tick`; nulls, headers and values of any size among them."""
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = [
        {
            "offset": offset,
            "topic": chance.choice(topics),
            "key": None if offset % 5 else b"k%d" % offset,
            "value": None if offset % 11 == 0 else chance.randbytes(chance.randrange(200)),
            "timestamp": 1_000_000 * offset + chance.randrange(5_000_000),
            "headers": None if offset % 3 else [{"key": "h", "value": None if offset % 2 else b"x"}],
            "gateway": "g1",
            "producer": f"p{offset % 4}",
            "sequence": offset,
            "view": 2**32 + 1,
            "tick": offset // each_tick,
        }
        for offset in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


class Log:
    """A log with all rows of a table, or the remaining ones."""

    def __init__(self, table: pa.Table, start: int = 0, batch_rows: int = 37, each: int = 10, log: str = LOG) -> None:
        """`each`: bytes that a record weighs; records come in batches of `batch_rows`."""
        self.table = table
        self.start = start
        self.end = table.num_rows
        self.log = log
        self.saved: dict[str, int] = {}
        self.backwards: list[int] = []
        self._batch_rows = batch_rows
        self._each = each

    def frontier(self) -> Standing:
        return Standing(self.log, self.start, self.end)

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        ticks = self.table.column("tick").to_numpy()
        good = [at for at in range(start + 1, min(end, len(ticks) - 1) + 1) if ticks[at] // every > ticks[at - 1] // every]
        upto = [at for at in good if at <= limit]
        return upto[-1] if upto else good[0] if good else start

    def bytes_end(self, start: int, end: int, bytes_max: int) -> int:
        return min(end, start + max(1, bytes_max // self._each))

    def records(self, start: int, end: int) -> Iterator[ScanBatch]:
        if start < self.start:
            raise OffsetOutOfRange(f"{start} is below {self.start}")
        for batch in self.table.slice(start, end - start).combine_chunks().to_batches(max_chunksize=self._batch_rows):
            start += batch.num_rows
            yield ScanBatch(batch, start)

    def readers(self) -> dict[str, int]:
        return dict(self.saved)

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        if offset < self.saved.get(reader, 0) and not back:
            raise Refused("below", "offset")
        if back:
            self.backwards.append(offset)
        self.saved[reader] = offset
