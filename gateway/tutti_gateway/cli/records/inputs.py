"""What `tutti produce` reads: records from lines, JSON lines or CSV, in chunks as they come.

A record's *number* is its place in the input, from 1. Its value is one line: the line itself without its newline, for JSON without
the blanks around it, for CSV the JSON object of the row. So the hash of an input is that of its values with a newline after each.
A key keeps the bytes of its field: text without its quotes, anything else as the line has it (`tutti.common.json_fields`).
"""

from __future__ import annotations

import csv
import hashlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import orjson

from tutti.common.json_fields import JsonFields, NoFields, NotJson, check_json, field_bytes
from tutti.errors import FormatError, UsageError
from tutti.limits import RECORD_BYTES_MAX
from tutti_gateway.cli.common.output import counted

#: A live pipe is read as it comes, a file in pieces of this size: near the best batch.
BLOCK_BYTES = 256 * 1024

#: One field may fill a record; the module would refuse it at 128 KiB.
csv.field_size_limit(RECORD_BYTES_MAX)

Key = bytes | None


class Chunk(NamedTuple):
    """Records that follow each other: their values, and their keys if a key field was named."""

    values: list[bytes]
    keys: list[Key] | None

    def cut(self, at: int) -> tuple[Chunk, Chunk]:
        """The first `at` records, and the rest."""
        keys = self.keys
        return (
            Chunk(self.values[:at], keys[:at] if keys is not None else None),
            Chunk(self.values[at:], keys[at:] if keys is not None else None),
        )


class InputHash:
    """Count and SHA-256 of an input so far."""

    def __init__(self, settings: str) -> None:
        """`settings` is how the input is read: the same bytes read otherwise are another input."""
        self.count = 0
        self._hash = hashlib.sha256(settings.encode() + b"\n")

    def add(self, values: list[bytes]) -> None:
        """Take in the next records."""
        if values:
            self.count += len(values)
            self._hash.update(b"\n".join(values) + b"\n")

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


def read_records(stream: BinaryIO, form: str, key: str | None) -> Iterator[Chunk]:
    """The records of `stream` in chunks, each as soon as it is there.

    Raises:
        UsageError: a key was named for lines, or none of the header's fields is it.
        FormatError: a record cannot be sent: no JSON, a row of another width than the header, larger than a record may be; the
            message names the line.
    """
    if form == "lines":
        if key is not None:
            raise UsageError(f"--key {key} names a field, and lines have none: add --format json or --format csv")
        return (Chunk(lines, None) for _, lines in _lines(stream))
    return _json(stream, key) if form == "json" else _csv(stream, key)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
    """Runs of whole lines without their newlines, with the number of the first one."""
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
    """`_lines` of a text: without the byte order mark that it may begin with, which would hide a quote or a brace."""
    for first, lines in _lines(stream):
        if first == 1:
            lines[0] = lines[0].removeprefix(BOM_UTF8)
        yield first, lines


def _too_large(number: int, advice: str = "cut it up") -> FormatError:
    return FormatError(
        f"the record at line {number} of the input is larger than a record may be ({RECORD_BYTES_MAX} bytes): {advice}"
    )


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
                    keys.append(field_bytes(fields.of(line)[0]))
            except ValueError as error:
                raise _no_json(number, whole, key, error) from error
            if len(line) + len((keys and keys[-1]) or b"") > RECORD_BYTES_MAX:
                raise _too_large(number)
            values.append(line)
        if values:
            yield Chunk(values, keys if key is not None else None)


def _no_json(number: int, line: bytes, key: str | None, error: ValueError) -> FormatError:
    """What is wrong with a line that is no JSON, or whose key cannot be taken."""
    where = f"line {number} of the input"
    before = len(line) - len(line.lstrip())
    if isinstance(error, UnicodeDecodeError):
        return FormatError(f"{where} is not UTF-8 text (byte {before + error.start + 1} of it), which JSON has to be: convert it")
    if isinstance(error, NotJson):
        what = f"{error.what}, at column {before + error.column}"
        return FormatError(f"{where} is no JSON ({what}): one JSON value a line is taken")
    if isinstance(error, NoFields):
        return FormatError(f"{where} is no JSON object, so it has no field {key!r}: leave --key out, or make it one")
    return FormatError(f"{where} cannot be sent: {error}")


def _csv(stream: BinaryIO, key: str | None) -> Iterator[Chunk]:
    names: list[str] = []
    at = 0
    for first, text in _csv_runs(stream):
        values: list[bytes] = []
        keys: list[Key] = []
        reader = csv.reader(text, strict=True)
        begin = end = first  # of the row: its first line, and the one behind its last
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
                    has = f"line {begin} of the input has {counted(len(row), 'field')} and the header {len(names)}"
                    raise FormatError(f"{has}: write one for each, and those with a comma in quotes")
                values.append(orjson.dumps(dict(zip(names, row, strict=True))))
                keys.append(row[at].encode() if key is not None else None)
                if len(values[-1]) + len(keys[-1] or b"") > RECORD_BYTES_MAX:
                    raise _too_large(begin)
        except csv.Error as error:
            last = first + reader.line_num - 1
            where = (
                f"line {end} of the input is"
                if last == end
                else f"the row that begins at line {end} of the input is, up to line {last},"
            )
            raise FormatError(f"{where} no CSV ({error}): is a quote open there?") from error
        if values:
            yield Chunk(values, keys if key is not None else None)


def _header(names: list[str], key: str | None) -> list[str]:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"the header of the input names the field {twice!r} twice: give one of them another name")
    if key is not None and key not in names:
        raise UsageError(f"--key {key} is no field of the input: the header names {', '.join(names)}")
    return names


def _csv_runs(stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Runs of lines that end where a row ends: quotes may hold newlines, and come in pairs."""
    held: list[bytes] = []
    first = 1
    for number, lines in _text_lines(stream):
        held += lines
        if not held:
            continue
        first = number + len(lines) - len(held)
        last = len(held)
        if sum(line.count(b'"') for line in held) % 2:
            last = _last_row_end(held)
        if last:
            yield first, _decoded(first, held[:last])
            held = held[last:]
            first += last
        if sum(map(len, held)) > RECORD_BYTES_MAX:
            raise _too_large(first, "close the quote that is open there, or cut it up")
    if held:
        yield first, _decoded(first, held)


def _last_row_end(lines: list[bytes]) -> int:
    """How many lines make whole rows."""
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
        raise FormatError(f"line {wrong} of the input is not UTF-8 text, which CSV has to be: convert it") from None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
