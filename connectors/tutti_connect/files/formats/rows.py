"""Parsing of text lines to rows. A row becomes a record (key, value, time), or is rejected with a reason.

Only the bytes of a file determine where its rows end and which rows are valid. A file therefore always gives the same records,
whatever the size of the blocks, and also after a restart in the middle.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from itertools import accumulate, islice
from typing import Any, NamedTuple, Protocol

import orjson

from tutti.common.json_fields import JsonFields, check_json, field_bytes, text_of
from tutti.data.frames.schema import TIME_US_MAX, TIME_US_MIN
from tutti.errors import FormatError
from tutti_connect.files import limits
from tutti_connect.files.config import Columns, TimeForm
from tutti_connect.files.formats.times import DIGITS_MAX, UNITS_US, time_us

#: Raise the csv module's limit of 128 KiB, because one field may fill a row.
csv.field_size_limit(limits.ROW_BYTES_MAX)

#: Placeholder in a time column: the record gets the time at which it is sent.
NOW = TIME_US_MIN - 1
_NOT_TEXT = "it is not text in the configured encoding"
Record = tuple[bytes | None, bytes | None, int]  # key, value, time


class Unreadable(FormatError):
    """The rest of a file is invalid, so a retry cannot help."""


class BadRow(NamedTuple):
    """A rejected row: its number (from 1), its position, its bytes and the reason.

    If `data` is only the start of the row, `size` is the size of the whole row; otherwise `size` is 0.
    """

    row: int
    at: int
    data: bytes
    reason: str
    size: int = 0


class Rows(NamedTuple):
    """Consecutive rows of a file.

    Attributes:
        values, keys, times: columns of the valid rows; times are in microseconds, or `NOW`.
        ends: position after each valid row.
        numbers: number of lines (Parquet: rows) up to that position.
        bad: the rejected rows.
        at: position after all parsed rows, from which parsing continues.
        row: number of lines (Parquet: rows) up to that position.
    """

    values: list[bytes | None]
    keys: list[bytes | None]
    times: list[int]
    ends: list[int]
    numbers: list[int]
    bad: list[BadRow]
    at: int
    row: int


class RowParser(Protocol):
    """Parser of a text format."""

    def parse(self, data: bytes, at: int, row: int, *, final: bool) -> Rows:
        """Parse the rows in `data`, which starts at position `at`, after `row` lines of the file.

        If `final` is False, more data follows, and the parser leaves a last row that may be incomplete to the next call.
        """


class FieldExtractor:
    """Extracts key, value and time from a row, by column name."""

    def __init__(self, columns: Columns) -> None:
        """Use the columns that are set in table [record] of the configuration."""
        self.key, self.value, self.timestamp = columns.key, columns.value, columns.timestamp
        self.form: TimeForm = columns.time
        # True if no column is configured, so that the whole row is the value
        self.whole_row = not (columns.key or columns.value or columns.timestamp)

    def check(self, names: list[str], what: str) -> None:
        """Reject a list of columns that lacks a required column.

        Raises:
            Unreadable: a required column is missing; the message has its name.
        """
        for use, name in (("key", self.key), ("value", self.value), ("timestamp", self.timestamp)):
            if name and name not in names:
                raise Unreadable(f"{what} has no column {name!r}, which record.{use} names: it has {', '.join(names)[:500]}")

    def extract(self, row: dict[str, Any], encoded: Callable[[], bytes], form: TimeForm | None = None) -> Record:
        """Return key, value and time of a row. `encoded` returns the row as JSON; `form`, if given, is used instead of the
        configured time format.

        Raises:
            ValueError: a field is missing, too large or not a time; the message gives the reason.
        """
        key = _bytes_of(row.get(self.key)) if self.key else None
        if not self.value:
            value: bytes | None = encoded()
        elif self.value in row:
            value = _bytes_of(row[self.value])
        else:
            raise missing_field(self.value, "value")
        stamp = time_us(row.get(self.timestamp), form or self.form, self.timestamp) if self.timestamp else NOW
        if len(value or b"") + len(key or b"") > limits.RECORD_BYTES_MAX:
            check_size(key, value)
        return key, value, stamp


def missing_field(name: str, use: str) -> ValueError:
    """Return the error for a row without the field `name`, which the setting record.`use` selects."""
    return ValueError(f"it has no field {name!r}, which record.{use} names")


def check_size(key: bytes | None, value: bytes | None) -> None:
    """Reject a record above the size limit.

    Raises:
        ValueError: the record is too large; the message has its size.
    """
    size = len(value or b"") + len(key or b"")
    if size > limits.RECORD_BYTES_MAX:
        raise ValueError(f"key and value take {size} bytes; the limit of a record is {limits.RECORD_BYTES_MAX}")


def _bytes_of(value: object) -> bytes | None:
    """Return a field as bytes: text as its UTF-8 bytes, any other value as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json_exactly(value)


def to_json(value: object) -> bytes:
    """Encode as JSON: times in ISO 8601, decimals as text, bytes in base64."""
    return orjson.dumps(value, _plain)


def to_json_exactly(value: object) -> bytes:
    """Encode as JSON, with times by `isoformat`: orjson rounds the offset +00:19:32, and writes the time of day 0.010 s as 0.10."""
    return orjson.dumps(value, _plain, orjson.OPT_PASSTHROUGH_DATETIME)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        from base64 import b64encode  # noqa: PLC0415 - few files have bytes

        return b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"  # keeps all digits; `str` writes 1E-7
    return str(value)


class _RowsBuilder:
    """Builds a `Rows` row by row."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.ends: list[int] = []
        self.numbers: list[int] = []
        self.bad: list[BadRow] = []

    def rows(self, at: int, row: int) -> Rows:
        return Rows(self.values, self.keys, self.times, self.ends, self.numbers, self.bad, at, row)


def _lines(data: bytes, at: int, *, final: bool) -> tuple[bytes, list[bytes], list[int]]:
    """Split `data` into complete lines; return their bytes, the lines without newlines, and the position after each line."""
    whole = data if final else data[: data.rfind(b"\n") + 1]
    lines = whole.split(b"\n")
    ends = list(accumulate((len(line) + 1 for line in lines), initial=at))[1:]
    if not lines[-1]:
        lines.pop()
        ends.pop()
    else:
        ends[-1] -= 1
    return whole, lines, ends


class PlainLines:
    """Parser that makes each line a value, byte for byte; the line may have any bytes."""

    def parse(self, data: bytes, at: int, row: int, *, final: bool) -> Rows:
        """Parse as `RowParser` requires."""
        _, lines, ends = _lines(data, at, final=final)
        numbers = list(range(row + 1, row + len(lines) + 1))
        count, end = len(lines), ends[-1] if ends else at
        if max(map(len, lines), default=0) <= limits.RECORD_BYTES_MAX:
            return Rows(list(lines), [None] * count, [NOW] * count, ends, numbers, [], end, row + count)
        builder, begin = _RowsBuilder(), at
        for line, line_end, number in zip(lines, ends, numbers, strict=True):
            if len(line) > limits.RECORD_BYTES_MAX:
                builder.bad.append(BadRow(number, begin, line, _too_large(len(line))))
            else:
                builder.values.append(line)
                builder.keys.append(None)
                builder.times.append(NOW)
                builder.ends.append(line_end)
                builder.numbers.append(number)
            begin = line_end
        return builder.rows(end, row + count)


def _too_large(size: int) -> str:
    return f"it takes {size} bytes; the limit of a record is {limits.RECORD_BYTES_MAX}"


class JsonLines:
    """Parser of lines that are JSON values; skips blank lines."""

    def __init__(self, extractor: FieldExtractor, encoding: str) -> None:
        """Parse lines of text in `encoding`; `extractor` knows which fields become key, value and time of a record."""
        self._extractor, self._encoding = extractor, encoding
        names = (extractor.key, extractor.value, extractor.timestamp)
        self._fields = JsonFields([name for name in names if name])
        self._value_at = 1 if extractor.key else 0
        self._unit_us = UNITS_US.get(extractor.form, 0)

    def parse(self, data: bytes, at: int, row: int, *, final: bool) -> Rows:
        """Parse as `RowParser` requires."""
        whole, lines, ends = _lines(data, at, final=final)
        recoded = self._encoding != "utf-8" or not _is_utf8(whole)
        builder, begin = _RowsBuilder(), at
        for number, (line, end) in enumerate(zip(lines, ends, strict=True), row + 1):
            text = line.strip()
            if text:
                try:
                    if recoded:
                        text = text.decode(self._encoding).encode()
                    key, value, stamp = self._record(text)
                except ValueError as error:
                    builder.bad.append(BadRow(number, begin, line, _rejection_reason(error)))
                else:
                    builder.values.append(value)
                    builder.keys.append(key)
                    builder.times.append(stamp)
                    builder.ends.append(end)
                    builder.numbers.append(number)
            begin = end
        return builder.rows(ends[-1] if ends else at, row + len(lines))

    def _record(self, text: bytes) -> Record:
        extractor = self._extractor
        if extractor.whole_row:
            check_json(text)
            check_size(None, text)
            return None, text, NOW
        fields = self._fields.of(text)
        if extractor.key and not fields[0]:
            raise missing_field(extractor.key, "key")
        key = field_bytes(fields[0]) if extractor.key else None
        value: bytes | None = text
        if extractor.value:
            field = fields[self._value_at]
            if not field:
                raise missing_field(extractor.value, "value")
            value = field_bytes(field)
        if 2 * len(text) > limits.RECORD_BYTES_MAX:
            check_size(key, value)
        return key, value, self._time(fields[-1]) if extractor.timestamp else NOW

    def _time(self, field: bytes) -> int:
        if not field:
            raise missing_field(self._extractor.timestamp, "timestamp")
        if self._unit_us and field.isdigit() and len(field) < DIGITS_MAX:
            stamp = int(field) * self._unit_us
            if stamp <= TIME_US_MAX:
                return stamp
        return time_us(_number_or_text(field), self._extractor.form, self._extractor.timestamp)


def _number_or_text(field: bytes) -> object:
    """Return a JSON field in a form that `time_us` accepts: a Decimal with all digits, or text."""
    if field == b"null":
        return None
    if field[0] in b"-0123456789":
        return Decimal(field.decode())
    return text_of(field)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rejection_reason(error: ValueError) -> str:
    """Return the reason for the rejection of a row; invalid bytes get `_NOT_TEXT` instead of the codec's text."""
    return _NOT_TEXT if isinstance(error, UnicodeError) else str(error)


class CsvRows:
    """Rows of CSV with the given columns. A quoted field may contain newlines."""

    def __init__(self, extractor: FieldExtractor, encoding: str, delimiter: str, names: list[str]) -> None:
        """Parse rows with the columns `names`."""
        self._extractor, self._encoding, self._delimiter, self._names = extractor, encoding, delimiter, names

    def parse(self, data: bytes, at: int, row: int, *, final: bool) -> Rows:
        """Parse as `RowParser` requires."""
        whole, lines, ends = _lines(data, at, final=final)
        texts = decoded(whole, lines, self._encoding)
        builder, begins = _RowsBuilder(), [at, *ends]
        first = 0  # first line of the next row
        while first < len(texts):
            reader = csv.reader(islice(texts, first, None), delimiter=self._delimiter, strict=True)
            row_start = first
            try:
                for fields in reader:
                    begin, first = first, row_start + reader.line_num
                    if not fields:
                        continue
                    try:
                        key, value, stamp = self._record(fields)
                    except (ValueError, TypeError) as error:  # orjson raises TypeError for invalid text
                        reason = _rejection_reason(error) if isinstance(error, ValueError) else _NOT_TEXT
                        builder.bad.append(BadRow(row + begin + 1, begins[begin], b"\n".join(lines[begin:first]), reason))
                        continue
                    builder.values.append(value)
                    builder.keys.append(key)
                    builder.times.append(stamp)
                    builder.ends.append(begins[first])
                    builder.numbers.append(row + first)
            except csv.Error as error:
                if row_start + reader.line_num == len(texts) and not final and _is_open(error):
                    break  # the row continues in the next block
                # Reject only one line and parse the next, because nobody knows where an unclosed quote was meant to end.
                reason = f"it is not valid CSV ({error}): check for an unclosed quote"
                builder.bad.append(BadRow(row + first + 1, begins[first], lines[first], reason))
                first += 1
        return builder.rows(begins[first], row + first)

    def _record(self, fields: list[str]) -> Record:
        if len(fields) != len(self._names):
            raise ValueError(f"it has {len(fields)} fields, but there are {len(self._names)} columns")
        found = dict(zip(self._names, fields, strict=True))
        return self._extractor.extract(found, lambda: orjson.dumps(found))


def _is_open(error: csv.Error) -> bool:
    return "unexpected end of data" in str(error)


def decoded(whole: bytes, lines: list[bytes], encoding: str) -> list[str]:
    """Decode lines, each with its newline; invalid bytes become surrogates, which JSON rejects."""
    try:
        texts = whole.decode(encoding).split("\n")
    except UnicodeDecodeError:
        texts = [line.decode(encoding, "surrogateescape") for line in lines]
    return [text + "\n" for text in texts[: len(lines)]]


def header(data: bytes, encoding: str, delimiter: str) -> tuple[list[str], int, int] | None:
    """Return the column names in the first row that is not blank, the position after this row, and the number of lines up to there.

    Return None if `data` has no complete row.

    Raises:
        Unreadable: the row is not a valid header.
    """
    _, lines, ends = _lines(data, 0, final=False)
    texts = decoded(b"", lines, encoding) if not lines else decoded(b"\n".join(lines), lines, encoding)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    try:
        for names in reader:
            if names:
                _check_header(names)
                return names, ends[reader.line_num - 1], reader.line_num
    except csv.Error as error:
        if not _is_open(error):
            raise Unreadable(f"its first row is not valid CSV ({error})") from error
    return None


def _check_header(names: list[str]) -> None:
    if len(names) > limits.COLUMNS_MAX:
        raise Unreadable(f"its header has {len(names)} columns: at most {limits.COLUMNS_MAX} are allowed")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Unreadable(f"its header has the column {twice!r} twice")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise Unreadable("its header is not text in the configured encoding") from None
