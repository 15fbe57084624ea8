"""Input formats of `tutti produce`: text lines, JSON lines and CSV.

The value of a record is a line without its newline, a line of JSON without surrounding blanks, or a CSV row as a JSON object. The
key of a record is the text of the key field; for a JSON number, object or list, the key is its text in the line
(`tutti.common.json_fields`). Records are numbered from 1. The hash of an input covers all its values, each followed by a newline.
"""

from __future__ import annotations

import csv
import hashlib
import time
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import accumulate
from typing import BinaryIO, NamedTuple

import msgspec
import orjson
import pyarrow as pa

from tutti import limits as common_limits
from tutti.common.json_fields import JsonFields, NotAnObject, NotJson, check_json, field_bytes
from tutti.errors import FormatError, UsageError
from tutti.limits import RECORD_BYTES_MAX
from tutti_gateway.cli.common.output import count_text
from tutti_gateway.core import limits

#: Largest read, which is close to the best batch size. A read from a pipe returns earlier, with the data that has arrived.
BLOCK_BYTES = 256 * 1024

#: One CSV field may be as large as a whole record. The default limit of the csv module is only 128 KiB.
csv.field_size_limit(RECORD_BYTES_MAX)

_FIELDS_SHOWN = 500  # characters of field names in an error

Key = bytes | None


class Chunk(NamedTuple):
    """Consecutive records of the input, as a list of values and a list of keys. `keys` is None if no key field is given."""

    values: list[bytes]
    keys: list[Key] | None

    def split(self, at: int) -> tuple[Chunk, Chunk]:
        """Return the first `at` records as one chunk, and the remaining records as another."""
        keys = self.keys
        return (
            Chunk(self.values[:at], keys[:at] if keys is not None else None),
            Chunk(self.values[at:], keys[at:] if keys is not None else None),
        )

    def record_batch(self) -> pa.RecordBatch:
        """Return the records as an Arrow batch with the columns `key` and `value`."""
        keys = self.keys if self.keys is not None else [None] * len(self.values)
        return pa.record_batch([pa.array(keys, pa.binary()), pa.array(self.values, pa.binary())], names=["key", "value"])


class InputHash:
    """Counts the input records that were read, and computes their SHA-256."""

    def __init__(self, settings: str) -> None:
        """Begin a hash with `settings`, so that the same input has a different hash if it is read with different options."""
        self.count = 0
        self._hash = hashlib.sha256(settings.encode() + b"\n")

    def add(self, values: list[bytes]) -> None:
        """Add the next records."""
        if values:
            self.count += len(values)
            self._hash.update(b"\n".join(values) + b"\n")

    def hexdigest(self) -> str:
        """Return the hash of the input so far."""
        return self._hash.hexdigest()


class Batcher:
    """Splits chunks into batches, and limits the number of records a second."""

    def __init__(self, rate: float | None) -> None:
        """Create a batcher that allows at most `rate` records a second, or any number if `rate` is None."""
        self._rate = rate
        self._sent = 0
        self._started_s: float | None = None

    def split(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the records of `chunk` in batches. Before each batch, wait until the rate limit allows the batch."""
        while chunk.values:
            part, chunk = chunk.split(self._records(chunk.values))
            self._wait()
            self._sent += len(part.values)
            yield part

    def _records(self, values: list[bytes]) -> int:
        """Return the number of records in the next batch. A rate limit makes batches small: at most the records of 1/20 s."""
        sizes = list(accumulate(map(len, values)))
        count = max(1, bisect_right(sizes, common_limits.BATCH_BYTES))
        return min(count, limits.PRODUCE_RECORDS_MAX, max(1, int(self._rate / 20)) if self._rate else count)

    def _wait(self) -> None:
        """Wait until the rate limit allows the next batch. The first batch never waits."""
        if self._rate:
            now_s = time.monotonic()
            self._started_s = now_s if self._started_s is None else self._started_s
            time.sleep(max(0.0, self._started_s + self._sent / self._rate - now_s))


def read_records(stream: BinaryIO, form: str, key: str | None) -> Iterator[Chunk]:
    """Return an iterator over the records of `stream`, in chunks that are read as data arrives.

    Raises:
        UsageError: `key` is given for text lines, or is not a field of the CSV header.
        FormatError: a line is invalid JSON or CSV, a line of JSON lacks the field `key`, or a record exceeds the size limit; the
            message gives the line number.
    """
    if form == "lines":
        if key is not None:
            raise UsageError(f"--key {key} names a field, but lines have no fields: add --format json or --format csv")
        return (Chunk(lines, None) for _, lines in _lines(stream))
    return _json(stream, key) if form == "json" else _csv(stream, key)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lists of complete lines without their newlines, each list with the line number of its first line."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    first, rest = 1, b""
    while block := read(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if len(rest) > RECORD_BYTES_MAX or (lines and len(max(lines, key=len)) > RECORD_BYTES_MAX):
            number = first + next((at for at, line in enumerate(lines) if len(line) > RECORD_BYTES_MAX), len(lines))
            raise _too_large(number)
        if lines:
            yield first, lines
            first += len(lines)
    if rest:
        yield first, [rest]


def _text_lines(stream: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of a JSON or CSV input, without a byte order mark, because the mark would hide a quote or brace after it."""
    for first, lines in _lines(stream):
        if first == 1:
            lines[0] = lines[0].removeprefix(BOM_UTF8)
        yield first, lines


def _too_large(number: int, advice: str = "split it") -> FormatError:
    return FormatError(f"the record at line {number} of the input exceeds the limit of {RECORD_BYTES_MAX} bytes: {advice}")


def _json(stream: BinaryIO, key: str | None) -> Iterator[Chunk]:
    fields = None if key is None else JsonFields([key])
    for first, lines in _text_lines(stream):
        values: list[bytes] = []
        keys: list[Key] = []
        utf8 = _is_text(b"\n".join(lines))
        for number, whole in enumerate(lines, first):
            line = whole.strip()
            if not line:
                continue
            try:
                if not utf8:
                    line.decode()
                if fields is None:
                    check_json(line)
                else:
                    field = fields.of(line)[0]
                    if not field:  # a misspelt --key would otherwise send every record without a key
                        raise _no_key_field(number, line, key)
                    keys.append(field_bytes(field))
            except ValueError as error:
                raise _no_json(number, whole, key, error) from error
            if len(line) + len((keys and keys[-1]) or b"") > RECORD_BYTES_MAX:
                raise _too_large(number)
            values.append(line)
        if values:
            yield Chunk(values, keys if key is not None else None)


def _no_json(number: int, line: bytes, key: str | None, error: ValueError) -> FormatError:
    """Return the error for a line that is invalid JSON, or whose key field is unusable."""
    where = f"line {number} of the input"
    before = len(line) - len(line.lstrip())
    if isinstance(error, UnicodeDecodeError):
        return FormatError(f"{where} is not UTF-8 text (byte {before + error.start + 1} of it), but JSON must be: convert it")
    if isinstance(error, NotJson):
        what = f"{error.what}, at column {before + error.column}"
        return FormatError(f"{where} is not valid JSON ({what}): write one JSON value on each line")
    if isinstance(error, NotAnObject):
        return FormatError(f"{where} is not a JSON object, so it has no field {key!r}: omit --key, or write an object")
    return FormatError(f"{where} cannot be sent: {error}")


def _no_key_field(number: int, line: bytes, key: str | None) -> FormatError:
    """Return the error for a line of JSON without the key field."""
    names = list(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    near = get_close_matches(str(key), names, 1)
    if near:
        return FormatError(f"line {number} of the input has no field {key!r}: did you mean --key {near[0]}?")
    fields = ", ".join(names)[:_FIELDS_SHOWN] or "no fields"
    return FormatError(
        f"line {number} of the input has no field {key!r} (it has {fields}): name another field with --key, or write the field "
        "as null for a record without a key"
    )


def _csv(stream: BinaryIO, key: str | None) -> Iterator[Chunk]:
    names: list[str] = []
    at = 0
    for first, text in _csv_runs(stream):
        values: list[bytes] = []
        keys: list[Key] = []
        reader = csv.reader(text, strict=True)
        begin = end = first  # numbers of the first line of the current row, and of the line after its last line
        try:
            for row in reader:
                begin, end = end, first + reader.line_num
                if not row:
                    continue
                if not names:
                    names = _header(row, key)
                    at = names.index(key) if key is not None else 0
                    continue
                if len(row) != len(names):
                    has = f"line {begin} of the input has {count_text(len(row), 'field')}, but the header has {len(names)}"
                    raise FormatError(f"{has}: write as many fields as in the header, and quote fields that contain a comma")
                values.append(orjson.dumps(dict(zip(names, row, strict=True))))
                keys.append(row[at].encode() if key is not None else None)
                if len(values[-1]) + len(keys[-1] or b"") > RECORD_BYTES_MAX:
                    raise _too_large(begin)
        except csv.Error as error:
            last = first + reader.line_num - 1
            where = f"line {end} of the input is" if last == end else f"the row from line {end} to line {last} of the input is"
            raise FormatError(f"{where} not valid CSV ({error}): check for an unclosed quote") from error
        if values:
            yield Chunk(values, keys if key is not None else None)


def _header(names: list[str], key: str | None) -> list[str]:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"the header of the input names the field {twice!r} twice: rename one of them")
    if key is not None and key not in names:
        raise UsageError(f"--key {key} is not a field of the input: the header has {', '.join(names)}")
    return names


def _csv_runs(stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield lists of lines that contain only complete CSV rows, each with the line number of its first line.

    A quoted field may contain newlines, so a row ends only at a line where the number of quotes so far is even.
    """
    pending: list[bytes] = []
    first = 1
    for number, lines in _text_lines(stream):
        pending += lines
        if not pending:
            continue
        first = number + len(lines) - len(pending)
        last = len(pending)
        if sum(line.count(b'"') for line in pending) % 2:
            last = _last_row_end(pending)
        if last:
            yield first, _decoded(first, pending[:last])
            pending = pending[last:]
            first += last
        if sum(map(len, pending)) > RECORD_BYTES_MAX:
            raise _too_large(first, "close the open quote, or split the record")
    if pending:
        yield first, _decoded(first, pending)


def _last_row_end(lines: list[bytes]) -> int:
    """Return the number of leading lines that form complete rows."""
    inside, last = False, 0
    for number, line in enumerate(lines, 1):
        inside ^= line.count(b'"') % 2 == 1
        if not inside:
            last = number
    return last


def _decoded(first: int, lines: list[bytes]) -> list[str]:
    try:
        return [line.decode() + "\n" for line in lines]
    except UnicodeDecodeError:
        wrong = next(number for number, line in enumerate(lines, first) if not _is_text(line))
        raise FormatError(f"line {wrong} of the input is not UTF-8 text, but CSV must be: convert it") from None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
