"""Accumulator: collects a task's records by topic, so that the task stages few, large batches.

The number of batches in a transaction is limited, each batch has one topic, and Spark passes 10,000 rows at a time. Without the
accumulator, rows for 1,000 topics would become 1,000 batches for every 10,000 rows.

Invariants
- The accumulator emits the records of one topic in their order of arrival.
- The accumulator emits the records of a topic as soon as they reach `SLICE_BYTES`, and all records as soon as the input since the
  last drain reaches `INPUT_BYTES_MAX`. The second limit bounds the memory of a task, because a waiting slice keeps its whole
  input batch in memory.
- The accumulator emits at most one batch for each MiB of records, plus one for each topic in each `INPUT_BYTES_MAX` of input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutti.errors import UsageError
from tutti.transactions import SLICE_BYTES

INPUT_BYTES_MAX = 64 << 20
_BINARY = pa.binary()


class Accumulator:
    """Collects record batches of the sink's columns by topic."""

    def __init__(self, topic: str | None) -> None:
        """Create an empty accumulator; `topic` is the topic of all records, or None if a column contains the topic."""
        self._topic = topic
        self._buffered: dict[str, list[pa.RecordBatch]] = {}
        self._bytes: dict[str, int] = {}
        self._input_bytes = 0  # bytes of input since the last drain

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Add a batch. Yield each topic that has reached a limit, with its records in the form that `send_batch` accepts.

        Raises:
            UsageError: a record has no topic.
        """
        self._input_bytes += batch.nbytes
        for topic, records in by_topic(batch, self._topic):
            self._buffered.setdefault(topic, []).append(records)
            self._bytes[topic] = size = self._bytes.get(topic, 0) + records.nbytes
            if size >= SLICE_BYTES:
                yield topic, self._pop(topic)
        if self._input_bytes >= INPUT_BYTES_MAX:
            yield from self.drain()

    def drain(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield each topic with its waiting records."""
        for topic in list(self._buffered):
            yield topic, self._pop(topic)
        self._input_bytes = 0

    def _pop(self, topic: str) -> pa.RecordBatch:
        del self._bytes[topic]
        waiting = self._buffered.pop(topic)
        return waiting[0] if len(waiting) == 1 else pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split a batch by topic, and keep the order of each topic's records. With `topic`, all records belong to this topic.

    Raises:
        UsageError: a record has no topic.
    """
    if not batch.num_rows:
        return
    columns = {name: batch.column(name) for name in batch.schema.names if name != "topic"}
    for name in ("value", "key"):
        if name in columns and not pa.types.is_binary(columns[name].type):
            columns[name] = columns[name].cast(_BINARY)
    if "timestamp" in columns and columns["timestamp"].null_count:
        columns["timestamp"] = _present_where_null(columns["timestamp"])
    records = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    if topic is not None:
        yield topic, records
        return
    names = batch.column("topic").dictionary_encode()
    if names.null_count:
        raise UsageError("the column 'topic' of a record is null: give each record a topic, or set the option 'topic' for all")
    topics = [str(one) for one in names.dictionary.to_pylist()]
    if len(topics) == 1:
        yield topics[0], records
        return
    # Sort once by topic (stable), because a filter for each topic would read the batch once per topic.
    codes = names.indices
    records = records.take(pc.sort_indices(codes))
    first = 0
    for one, count in zip(topics, np.bincount(codes.to_numpy(), minlength=len(topics)).tolist(), strict=True):
        yield one, records.slice(first, count)
        first += count


def _present_where_null(times: pa.Array[Any]) -> pa.Array[Any]:
    return pc.fill_null(times, pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC")).cast(times.type))
