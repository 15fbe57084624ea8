"""What is read out of the log: pages of records, one post by its sequence, topics. Blocks; each in a thread of its own."""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tutti.errors import TuttiError
from tutti.reading.json_lines import json_lines, with_key
from tutti.reading.positions import Bound, time_text
from tutti.sources.flight import Reads, check_columns, schema_of
from tutti.sources.source import begun, place_of
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import Records, digest
from tutti_connect.http.produce.post_history import OFFSET_UNKNOWN, History

Form = Literal["json", "arrow"]
COLUMNS = check_columns(None)


class Question(NamedTuple):
    """What a page is asked for. `topics`: None is all; `key`: None is any."""

    start: Bound
    end: Bound | None
    topics: tuple[str, ...] | None
    key: bytes | None
    limit: int
    form: Form


class Page(NamedTuple):
    """An answer: its body, where the next page begins (None behind the last one), and where the range ends."""

    body: bytes
    next: int | None
    end: int


def page(reads: Reads, question: Question) -> Page:
    """Records of a range, up to the limit, the bytes of a page and the time for it; then it says where to go on.

    Raises:
        TuttiError: as `Reads`.
    """
    frontier = begun(reads, 0.0)
    start = place_of(reads, "start", question.start, frontier)
    end = frontier.offset if question.end is None else place_of(reads, "end", question.end, frontier)
    if end < start:
        raise Problem(416, f"the range ends at offset {end}, before it begins at {start}")
    deadline = time.monotonic() + limits.PAGE_S
    sink = _Arrow() if question.form == "arrow" else _Json()
    position = start
    for piece in reads.pieces(start, end, question.topics, COLUMNS, left=lambda: limits.READ_S):
        for at in range(0, piece.batch.num_rows, limits.PAGE_ROWS):
            rows = piece.batch.slice(at, limits.PAGE_ROWS)
            wanted = with_key(rows, question.key)
            taken = sink.take(wanted.slice(0, question.limit - sink.count))
            if taken < wanted.num_rows:
                return Page(sink.body(), _offset(wanted, taken), end)
            position = _offset(rows, rows.num_rows - 1) + 1
            if time.monotonic() > deadline and position < end:
                return Page(sink.body(), position, end)
        position = piece.next
    return Page(sink.body(), None, end)


def _offset(batch: pa.RecordBatch, row: int) -> int:
    return int(batch.column("offset")[row].as_py())


class _Json:
    """Collects lines."""

    def __init__(self) -> None:
        self.count, self._bytes = 0, 0
        self._lines: list[bytes] = []

    def take(self, rows: pa.RecordBatch) -> int:
        """Take rows until the page is full; how many."""
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
    """Collects batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, schema_of(COLUMNS))

    def take(self, rows: pa.RecordBatch) -> int:
        """As of lines: what does not fit is halved until it does."""
        taken = 0
        while taken < rows.num_rows:
            part = rows.slice(taken)
            while part.num_rows > 1 and part.nbytes > limits.PAGE_BYTES_MAX - self._sink.tell():
                part = part.slice(0, part.num_rows // 2)
            if self.count and part.nbytes > limits.PAGE_BYTES_MAX - self._sink.tell():
                break
            self._writer.write_batch(part)
            taken, self.count = taken + part.num_rows, self.count + part.num_rows
        return taken

    def body(self) -> bytes:
        self._writer.close()
        return self._sink.getvalue().to_pybytes()


def events(batch: pa.RecordBatch) -> bytes:
    """Records as server-sent events, each with its offset as its id."""
    offsets: list[Any] = batch.column("offset").to_pylist()
    return b"".join(b"id: %d\ndata: %b\n\n" % (offset, line) for offset, line in zip(offsets, json_lines(batch), strict=True))


def topics(reads: Reads, mine: Any) -> bytes:
    """The topics that somebody may read, as JSON."""
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
        if mine(topic.name)
    ]
    return orjson.dumps({"topics": found})


def search(reads: Reads, producer: str, history: History, first: int, records: Records) -> int | None:
    """The offset of a post, by the producer's sequence; None if it was not found in time.

    Raises:
        Problem: 409: what was found is another post.
    """
    low, high = history.range_of(first)
    last = first + records.count - 1
    deadline = time.monotonic() + limits.SEARCH_S
    try:
        frontier = begun(reads, 0.0)
        low, high = max(low, frontier.start), frontier.offset if high is None else high
        known = history.begin != OFFSET_UNKNOWN
        offset = _offset_of(reads, producer, first, [records.topic] if known else None, (low, high), deadline)
        if offset is None:
            return None
        end = min(offset + records.count, frontier.offset)
        found = [piece.batch for piece in reads.pieces(offset, end, None, None, left=lambda: limits.READ_S)]
    except TuttiError:
        return None  # a gateway that does not answer, a log that was trimmed: it is not known here
    rows = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
    same = digest(records.topic, rows) == records.digest() and set(rows.column("topic").to_pylist()) == {records.topic}
    if not same or rows.column("sequence").to_pylist() != list(range(first, last + 1)):
        raise Problem(
            409,
            f"the log has records {first} to {last} of this producer already, at offset {offset}, with other content; "
            f"the next is expected to begin with {history.expected}",
            conflict="different",
            expected=history.expected,
        )
    return offset


def _offset_of(
    reads: Reads, producer: str, first: int, topics: list[str] | None, span: tuple[int, int], deadline: float
) -> int | None:
    """Where a producer's record of a sequence lies, looked for until the deadline.

    Without `topics` it is looked for in all of them, and the last one counts: the span may hold those of earlier counts of the
    producer, which was forgotten since.
    """
    low, high = span
    if high <= low:
        return None
    found = None
    for piece in reads.pieces(low, high, topics, ["offset", "producer", "sequence"], True, left=lambda: limits.READ_S):
        batch = piece.batch
        whose: Any = pc.equal(batch.column("producer"), pa.scalar(producer))
        match: Any = pc.and_(whose, pc.equal(batch.column("sequence"), pa.scalar(first)))
        rows = batch.filter(match)
        if rows.num_rows:
            found = _offset(rows, rows.num_rows - 1)
            if topics is not None:
                return found
        if time.monotonic() > deadline:
            return None
    return found
