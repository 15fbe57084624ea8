"""Request and answer of a scan: `ScanRequest` selects committed records, and the answer is a sequence of `ScanBatch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tutti.data.frames.columns import COLUMNS, check_columns, schema_of
from tutti.errors import UsageError


class ScanBatch(NamedTuple):
    """One batch in the answer to a scan.

    Attributes:
        batch: the records of the batch.
        next: offset at which the next batch of the scan begins.
        column: offsets of the records, or None if the records have the consecutive offsets directly before `next`.
    """

    batch: pa.RecordBatch
    next: int
    column: pa.Array[Any] | None = None

    def offsets(self) -> Iterable[int]:
        """Return the offset of each record."""
        if self.column is None:
            return range(self.next - self.batch.num_rows, self.next)
        offsets: list[int] = self.column.to_numpy().tolist()
        return offsets


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A request for the committed records at offsets [start, end) of some topics, with some columns.

    Attributes:
        start: first offset of the range.
        end: offset after the last record of the range, at most the frontier. For an empty range, a scan only checks the other
            fields.
        topics: names of the topics to read, or None for all topics.
        columns: names of the columns to return, in this order.
        absent_ok: True to treat a topic that does not exist as an empty topic.
        time_left: function that returns how many seconds the caller still waits for a gateway. The result can only shorten the
            timeout of the source.
        schema: schema of the batches in the answer.

    Raises:
        UsageError: `topics` or `columns` is not a sequence of names, is empty, or has an unknown column.
    """

    start: int
    end: int
    topics: tuple[str, ...] | None = None
    columns: tuple[str, ...] = COLUMNS
    absent_ok: bool = False
    time_left: Callable[[], float] | None = None
    schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check topics and columns, and set the schema."""
        check_topics(self.topics)
        object.__setattr__(self, "schema", schema_of(check_columns(self.columns)))

    @property
    def fetched_columns(self) -> tuple[str, ...]:
        """The columns to fetch. They include `offset` if topics are selected, because offsets then have gaps."""
        return (*self.columns, "offset") if self.topics is not None and "offset" not in self.columns else self.columns

    def scan_batch(self, fetched: pa.RecordBatch, start: int) -> ScanBatch:
        """Return the requested columns of `fetched`, a batch with the columns `fetched_columns` that was read from `start` on."""
        offsets = None if self.topics is None else fetched.column("offset")
        after = start + fetched.num_rows if offsets is None else offsets[-1].as_py() + 1
        if not fetched.schema.equals(self.schema, check_metadata=True):
            fetched = pa.RecordBatch.from_arrays([fetched.column(name) for name in self.columns], schema=self.schema)
        return ScanBatch(fetched, after, offsets)


def check_topics(topics: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the selected topics as a tuple, or None for all topics.

    Raises:
        UsageError: `topics` is a string, is not a list of names, or is empty.
    """
    if topics is None:
        return None
    if isinstance(topics, str):
        raise UsageError(f"topics must be a list of names, not a text: use [{topics!r}]")
    if not isinstance(topics, Iterable):
        raise UsageError(f"topics must be a list of names, not {type(topics).__name__} ({topics!r})")
    chosen = tuple(topics)
    if not chosen:
        raise UsageError("topics is empty: name at least one topic, or omit topics to read all")
    return chosen
