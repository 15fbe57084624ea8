"""Parsing of post bodies to records: JSON, lines of JSON, lines as plain values, an Arrow stream.

A post is accepted as a whole or not at all. The error message contains the first invalid record's number. JSON is decoded in C to
structs, which are converted to columns. After an error, each record is checked separately, to find the position of the error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, Struct, UnsetType

from tutti.batching.encoder import validated_batch
from tutti.common.json_fields import error_position
from tutti.data.frames.schema import HEADERS, TIMESTAMP
from tutti.errors import FormatError, TooLarge, UsageError
from tutti.reading.untrusted_arrow import read_stream
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem

JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
CONTENT_TYPES = {JSON, NDJSON, ARROW}
_BINARY = pa.binary()


class Header(Struct, forbid_unknown_fields=True, gc=False):
    """A header of a record: its value as text, or in base64."""

    key: str
    value: str | None = None
    value_base64: bytes | None = None


class Record(Struct, forbid_unknown_fields=True):
    """A record in the format of `tutti tail`: key and value are text or base64. The value is required, but may be null."""

    key: str | None = None
    value: str | UnsetType | None = UNSET
    key_base64: bytes | None = None
    value_base64: bytes | None = None
    timestamp: Annotated[datetime, Meta(tz=True)] | None = None
    headers: list[Header] | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a post. `batch` has the columns key, value, timestamp and headers, as in the log."""

    topic: str
    batch: pa.RecordBatch

    @property
    def count(self) -> int:
        """Return the number of records."""
        return int(self.batch.num_rows)

    def digest(self) -> bytes:
        """Return a digest of topic and content, which is equal for a repeated post.

        The digest excludes times, because the log may assign them.
        """
        return digest(self.topic, self.batch)


_LINE = msgspec.json.Decoder(Record)
_ONE_OR_MORE = msgspec.json.Decoder(list[Record] | Record)
_VALUE = msgspec.json.Decoder(msgspec.Raw)
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # deep nesting raises RecursionError


def parse(topic: str, content_type: str, body: bytes, plain: bool) -> Records:
    """Parse a body.

    Args:
        topic: topic of all records.
        content_type: one of `CONTENT_TYPES`.
        body: the complete body.
        plain: whether each line of an NDJSON body is the value of a record.

    Raises:
        Problem: 400 if the body is invalid, 413 if it is too large; the message has the record, line, column and field, if known.
    """
    try:
        if content_type == ARROW:
            batch = read_stream(body, limits.RAW_BYTES_MAX, limits.ARROW_BATCHES_MAX)
        elif plain:
            batch = _plain(body)
        else:
            batch = _columns(_lines(body) if content_type == NDJSON else _json(body))
        if batch.num_rows > limits.RECORDS_A_POST_MAX:
            raise Problem(413, f"the post has {batch.num_rows} records; at most {limits.RECORDS_A_POST_MAX} are allowed: split it")
        if not batch.num_rows:
            raise Problem(400, "the post has no records")
        return Records(topic, validated_batch(batch, time.time_ns() // 1000).batch)
    except TooLarge as error:
        raise Problem(413, str(error)) from error
    except (FormatError, UsageError) as error:
        raise Problem(400, str(error)) from error


def _json(body: bytes) -> list[Record]:
    try:
        found = _ONE_OR_MORE.decode(body)
    except _NO_JSON as error:
        raise _json_problem(error, body) from error
    return found if isinstance(found, list) else [found]


def _lines(body: bytes) -> list[Record]:
    _check_lines(body)
    try:
        found: list[Record] = _LINE.decode_lines(body)
    except _NO_JSON:
        found = []
    # Compare the counts, because `decode_lines` also accepts two records on a line, or one record over several lines.
    if len(found) == body.count(b"\n") + (not body.endswith(b"\n")):
        return found
    return [_decode_line(line, number, record, _LINE) for number, record, line in _numbered(body)]


def _plain(body: bytes) -> pa.RecordBatch:
    """Return the lines of a body as values, byte for byte and without line ends. Each line must be JSON."""
    _check_lines(body)
    lines = [line for _, _, line in _numbered(body)]
    try:
        all_parsed = len(_VALUE.decode_lines(body)) == len(lines)
    except _NO_JSON:
        all_parsed = False
    if not all_parsed:
        for number, record, line in _numbered(body):
            _decode_line(line, number, record, _VALUE)
    try:
        body.decode()  # the JSON decoder accepts some invalid UTF-8
    except UnicodeDecodeError as error:
        raise _json_problem(error, body) from error
    return pa.RecordBatch.from_arrays([pa.array(lines, _BINARY)], names=["value"])


def _check_lines(body: bytes) -> None:
    """Reject a body with too many lines before splitting it, because each line costs memory."""
    count = body.count(b"\n")
    if count > limits.RECORDS_A_POST_MAX:
        raise Problem(413, f"the post has {count} lines; at most {limits.RECORDS_A_POST_MAX} records are allowed: split it")


def _numbered(body: bytes) -> list[tuple[int, int, bytes]]:
    """Return (line number, record number, line) of each line that is not empty; numbers start at 1."""
    lines = ((number, line.strip(b" \t\r")) for number, line in enumerate(body.split(b"\n"), 1))
    nonempty = [(number, line) for number, line in lines if line]
    return [(number, record, line) for record, (number, line) in enumerate(nonempty, 1)]


def _decode_line(line: bytes, number: int, record: int, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(line)
    except _NO_JSON as error:
        raise _json_problem(error, line, number, record) from error


def _json_problem(error: Exception, text: bytes, line: int = 0, record: int = 0) -> Problem:
    """Return the error answer for invalid JSON, with the record, line, column and field if known."""
    message = str(error)
    where: dict[str, Any] = {"record": record} if record else {}
    if line:
        where["line"] = line
    if isinstance(error, RecursionError):
        return Problem(400, f"{_location(where)}the JSON is nested too deeply", where=where)
    what, _, path = message.partition(" - at `$")
    if isinstance(error, msgspec.ValidationError):
        path = path.rstrip("`") + ("." + what.split("`")[1] if "unknown field" in what else "")
        if path.startswith("[") and not record:
            number, _, path = path[1:].partition("]")
            where["record"] = int(number) + 1
        if path:
            where["field"] = path.lstrip(".")
        return Problem(400, f"{_location(where)}{_lowered(what)}", where=where)
    if "truncated" in what and b"\\ud" in text.lower():  # the decoder also reports "truncated" for half of a surrogate pair
        what = "the JSON ends too early, or has half of a surrogate pair"
    at = error.start if isinstance(error, UnicodeDecodeError) else error_position(message)
    if isinstance(error, UnicodeDecodeError):
        # Search the position again, because the error counts from the start of a JSON string and not of the body.
        at = next((number for number in _not_utf8(text)), at)
        what = "the JSON is not UTF-8"
    if at is None:
        at = len(text)
    before = text[:at]
    where["line"] = line or before.count(b"\n") + 1
    where["column"] = at - (before.rfind(b"\n") + 1) + 1
    return Problem(400, f"{_location(where)}{_lowered(what.partition(' (byte')[0])}", where=where)


def _lowered(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _not_utf8(text: bytes) -> list[int]:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return [error.start]
    return []


def _location(where: dict[str, Any]) -> str:
    words = [f"{name} {where[name]}" for name in ("record", "line", "column") if name in where]
    field = f"field {where['field']!r}" if "field" in where else ""
    return f"{', '.join([*words, field] if field else words)}: " if words or field else ""


def _columns(records: Sequence[Record]) -> pa.RecordBatch:
    """Convert records to columns; reject a record that has both text and base64 for one field, or has no value."""
    values: list[Any] = [record.value for record in records]
    coded = [record.value_base64 for record in records]
    if UNSET in values or any(one is not None for one in coded):
        values = [_one_of(record, number) for number, record in enumerate(records, 1)]
    keys: list[Any] = [record.key for record in records]
    if any(record.key_base64 is not None for record in records):
        keys = [_key_of(record, number) for number, record in enumerate(records, 1)]
    arrays: list[pa.Array[Any]] = [pa.array(keys, _BINARY), pa.array(values, _BINARY)]
    times = [record.timestamp for record in records]
    if any(times):
        now = datetime.now(next(time.tzinfo for time in times if time))
        arrays.append(pa.array([time or now for time in times], TIMESTAMP))
    else:
        arrays.append(pa.nulls(len(records), TIMESTAMP))
    return _with_headers(records, arrays, any(times))


def _with_headers(records: Sequence[Record], arrays: list[pa.Array[Any]], timed: bool) -> pa.RecordBatch:
    columns = dict(zip(("key", "value", "timestamp"), arrays, strict=True))
    if not timed:
        del columns["timestamp"]
    headers = [record.headers for record in records]
    if any(headers):
        columns["headers"] = pa.array(
            [
                None if not given else [{"key": one.key, "value": _header_value(one, number)} for one in given]
                for number, given in enumerate(headers, 1)
            ],
            HEADERS,
        )
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _one_of(record: Record, number: int) -> str | bytes | None:
    if record.value is UNSET:
        if record.value_base64 is None:
            raise _contradiction(number, "value", "the record has no value: give value or value_base64, null for none")
        return record.value_base64
    if record.value_base64 is not None:
        raise _contradiction(number, "value_base64", "the record has value and value_base64: give one of them")
    return record.value


def _key_of(record: Record, number: int) -> str | bytes | None:
    if record.key is not None and record.key_base64 is not None:
        raise _contradiction(number, "key_base64", "the record has key and key_base64: give one of them")
    return record.key if record.key_base64 is None else record.key_base64


def _header_value(header: Header, number: int) -> bytes | None:
    if header.value is not None and header.value_base64 is not None:
        raise _contradiction(number, "headers", f"header {header.key!r} has value and value_base64: give one of them")
    return header.value.encode() if header.value is not None else header.value_base64


def _contradiction(number: int, field: str, message: str) -> Problem:
    where = {"record": number, "field": field}
    return Problem(400, f"{_location(where)}{message}", where=where)


def digest(topic: str, batch: pa.RecordBatch) -> bytes:
    """Return the digest of topic, keys, values and headers; equal content in different Arrow buffers has equal digests."""
    hasher = blake2b(topic.encode(), digest_size=8)
    for name in ("key", "value"):
        _hash_column(hasher, batch.column(name))
    headers = batch.column("headers")
    if headers.null_count < len(headers):
        lengths = pc.fill_null(pc.list_value_length(headers), -1).to_numpy(zero_copy_only=False)
        hasher.update(lengths.astype(np.int32).tobytes())
        entries: Any = pc.list_flatten(headers)
        _hash_column(hasher, entries.field(0).cast(_BINARY))
        _hash_column(hasher, entries.field(1))
    return hasher.digest()


def _hash_column(hasher: Any, column: Any) -> None:
    lengths: Any = pc.binary_length(column)
    if column.null_count:
        empty: Any = b""
        lengths, column = pc.fill_null(lengths, -1), pc.fill_null(column, empty)
    hasher.update(lengths.to_numpy(zero_copy_only=False).astype(np.int32).tobytes())
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    if data is not None:
        hasher.update(memoryview(data)[offsets[0] : offsets[-1]])
