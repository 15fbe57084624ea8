"""Reads of the log: pages of records, the search for a post by its sequence, and topics.

All functions block, so the event loop calls them in threads.
"""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tutti.data.frames.columns import check_columns, schema_of
from tutti.data.scan_request import ScanRequest
from tutti.errors import TuttiError
from tutti.reading.json_lines import json_lines, with_key
from tutti.reading.range_bounds import Bound, time_text
from tutti.sources.flight import FlightSource
from tutti.sources.source import resolve_bound, wait_for_log
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import Records, digest
from tutti_connect.http.produce.post_history import OFFSET_UNKNOWN, History

Form = Literal["json", "arrow"]
COLUMNS = check_columns(None)


class PageQuery(NamedTuple):
    """Query of a page. None as `topics` stands for all topics, and None as `key` for any key."""

    start: Bound
    end: Bound | None
    topics: tuple[str, ...] | None
    key: bytes | None
    limit: int
    form: Form


class Page(NamedTuple):
    """A page: its body, the start of the next page (None after the last one), and the end of the range."""

    body: bytes
    next: int | None
    end: int


def page(reads: FlightSource, page_query: PageQuery) -> Page:
    """Return the first records of a range, as many as the limits of a page allow in number, bytes and time.

    Raises:
        TuttiError: as `FlightSource`.
    """
    frontier = wait_for_log(reads, 0.0)
    start = resolve_bound(reads, "start", page_query.start, frontier)
    end = frontier.offset if page_query.end is None else resolve_bound(reads, "end", page_query.end, frontier)
    if end < start:
        raise Problem(416, f"the range ends at offset {end}, before its start {start}")
    deadline = time.monotonic() + limits.PAGE_S
    sink = _Arrow() if page_query.form == "arrow" else _Json()
    position = start
    request = ScanRequest(start, end, page_query.topics, COLUMNS, time_left=lambda: limits.READ_S)
    for found in reads.scan(request):
        for at in range(0, found.batch.num_rows, limits.PAGE_ROWS):
            rows = found.batch.slice(at, limits.PAGE_ROWS)
            wanted = with_key(rows, page_query.key)
            added = sink.add(wanted.slice(0, page_query.limit - sink.count))
            if added < wanted.num_rows:
                return Page(sink.body(), _offset(wanted, added), end)
            position = _offset(rows, rows.num_rows - 1) + 1
            if time.monotonic() > deadline and position < end:
                return Page(sink.body(), position, end)
        position = found.next
    return Page(sink.body(), None, end)


def _offset(batch: pa.RecordBatch, row: int) -> int:
    return int(batch.column("offset")[row].as_py())


class _Json:
    """Collects JSON lines."""

    def __init__(self) -> None:
        self.count, self._bytes = 0, 0
        self._lines: list[bytes] = []

    def add(self, rows: pa.RecordBatch) -> int:
        """Add rows until the page is full, and return the number of added rows."""
        before = self.count
        for line in json_lines(rows):
            if self.count and self._bytes + len(line) > limits.PAGE_BYTES_MAX:
                break
            self._lines.append(line)
            self.count, self._bytes = self.count + 1, self._bytes + len(line) + 1
        return self.count - before

    def body(self) -> bytes:
        return b"\n".join([*self._lines, b""])


class _Arrow:
    """Collects Arrow batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, schema_of(COLUMNS))

    def add(self, rows: pa.RecordBatch) -> int:
        """Add rows until the page is full, halving a part that does not fit; return the number of added rows."""
        added = 0
        while added < rows.num_rows:
            part = rows.slice(added)
            while part.num_rows > 1 and part.nbytes > limits.PAGE_BYTES_MAX - self._sink.tell():
                part = part.slice(0, part.num_rows // 2)
            if self.count and part.nbytes > limits.PAGE_BYTES_MAX - self._sink.tell():
                break
            self._writer.write_batch(part)
            added, self.count = added + part.num_rows, self.count + part.num_rows
        return added

    def body(self) -> bytes:
        self._writer.close()
        return self._sink.getvalue().to_pybytes()


def events(batch: pa.RecordBatch) -> bytes:
    """Return records as server-sent events; the id of an event is its offset."""
    offsets: list[Any] = batch.column("offset").to_pylist()
    return b"".join(b"id: %d\ndata: %b\n\n" % (offset, line) for offset, line in zip(offsets, json_lines(batch), strict=True))


def topics(reads: FlightSource, may_read: Any) -> bytes:
    """Return the topics that `may_read` accepts, as JSON."""
    found = [
        {
            "topic": topic.name,
            "records": topic.records,
            "bytes": topic.bytes,
            "first_offset": topic.first_offset if topic.first_offset >= 0 else None,
            "last_offset": topic.last_offset if topic.first_offset >= 0 else None,
            "first_time": time_text(topic.first_time_us) if topic.first_offset >= 0 else None,
            "last_time": time_text(topic.last_time_us) if topic.first_offset >= 0 else None,
        }
        for topic in reads.topics()
        if may_read(topic.name)
    ]
    return orjson.dumps({"topics": found})


def search(reads: FlightSource, producer: str, history: History, first: int, records: Records) -> int | None:
    """Return the offset of a committed post, found by the sequence of its first record, or None if the search finds no such post.

    The search ends after `limits.SEARCH_S`, counted from this call.

    Raises:
        Problem: 409: the log has other records at these sequences.
    """
    low, high = history.range_of(first)
    last = first + records.count - 1
    deadline = time.monotonic() + limits.SEARCH_S
    try:
        frontier = wait_for_log(reads, 0.0)
        low, high = max(low, frontier.start), frontier.offset if high is None else high
        known = history.begin != OFFSET_UNKNOWN
        offset = _offset_of(reads, producer, first, (records.topic,) if known else None, (low, high), deadline)
        if offset is None:
            return None
        end = min(offset + records.count, frontier.offset)
        found = [one.batch for one in reads.scan(ScanRequest(offset, end, time_left=lambda: limits.READ_S))]
    except TuttiError:
        return None  # the offset stays unknown if no gateway answers or retention has removed the records
    rows = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
    same = digest(records.topic, rows) == records.digest() and set(rows.column("topic").to_pylist()) == {records.topic}
    if not same or rows.column("sequence").to_pylist() != list(range(first, last + 1)):
        raise Problem(
            409,
            f"the log already has records {first} to {last} of this producer, at offset {offset}, with other content; "
            f"the next expected sequence is {history.expected}",
            conflict="different",
            expected=history.expected,
        )
    return offset


def _offset_of(
    reads: FlightSource, producer: str, first: int, topics: tuple[str, ...] | None, span: tuple[int, int], deadline: float
) -> int | None:
    """Return the offset of a producer's record with sequence `first`, or None if not found before the deadline (monotonic seconds).

    Without `topics`, search all topics and return the last match, because a producer's sequences start again after an operator has
    deleted its state.
    """
    low, high = span
    if high <= low:
        return None
    found = None
    columns = "offset", "producer", "sequence"
    for one in reads.scan(ScanRequest(low, high, topics, columns, absent_ok=True, time_left=lambda: limits.READ_S)):
        batch = one.batch
        of_producer: Any = pc.equal(batch.column("producer"), pa.scalar(producer))
        match: Any = pc.and_(of_producer, pc.equal(batch.column("sequence"), pa.scalar(first)))
        rows = batch.filter(match)
        if rows.num_rows:
            found = _offset(rows, rows.num_rows - 1)
            if topics is not None:
                return found
        if time.monotonic() > deadline:
            return None
    return found
