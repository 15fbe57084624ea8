"""Reader of one open file: yields its rows from a position, block by block."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

import pyarrow as pa

from tutti_connect.files import limits
from tutti_connect.files.discovery.directory import is_opaque
from tutti_connect.files.discovery.fingerprint import ReadContent, fingerprint
from tutti_connect.files.formats.parquet import ParquetFile
from tutti_connect.files.formats.rows import (
    BadRow,
    CsvRows,
    FieldExtractor,
    JsonLines,
    PlainLines,
    RowParser,
    Rows,
    Unreadable,
    header,
)

if TYPE_CHECKING:
    from tutti_connect.files.config import SourceConfig

_BOM = b"\xef\xbb\xbf"
_WIDE = (b"\xff\xfe", b"\xfe\xff")


class FileReader:
    """An open file, as a context manager; `status` has the file's stat fields at the time of opening."""

    def __init__(self, path: str, config: SourceConfig) -> None:
        """Open the file.

        Raises:
            OSError: the file cannot be opened.
        """
        self._config = config
        self._form = config.files.format
        self._file: IO[bytes] = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self.status = os.fstat(self._file.fileno())
        self._opaque = is_opaque(path, self._form)
        self._zipped = self._opaque and self._form != "parquet"
        self._content: ReadContent | None = None
        self._file_mark = self._copied_mark = ""

    def mark(self, at: int) -> str:
        """Return the fingerprint of the content before position `at`, computed from the bytes that were read.

        For gzip and Parquet, whose positions are not byte positions, return the fingerprint that the whole file had at first.

        Raises:
            OSError: the file cannot be read.
        """
        if self._content is not None:
            return self._content.mark(at)
        return self._file_mark if at and self._file_mark else self._mark_now(at)

    def _mark_now(self, at: int) -> str:
        return fingerprint(self._file.fileno(), self.status.st_size if self._opaque and at else at)

    def has_copied_content(self, at: int, mark: str) -> bool:
        """True if the content before position `at` still has the fingerprint `mark`."""
        self._copied_mark = mark
        return (self._opaque or self.status.st_size >= at) and self._mark_now(at) == mark

    def changed(self) -> bool:
        """True if the size or modification time of the file has changed since it was opened."""
        now = os.fstat(self._file.fileno())
        return (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns)

    def rows(self, at: int, row: int) -> Iterator[Rows]:
        """Yield the rows from a position to the current end of the file.

        Raises:
            Unreadable: the rest of the file is invalid, so a retry cannot help.
            OSError: the file cannot be read at this moment.
        """
        if self._form == "parquet":
            return self._parquet(at)
        return self._text(at, row)

    def _text(self, at: int, row: int) -> Iterator[Rows]:
        stream: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=self._file)) if self._zipped else self._file
        complete = not self._config.files.grows
        end = None if complete else min(self.status.st_size, at + limits.PIECE_BYTES)
        with _converted_errors():
            begin, lines, form = self._read_header(stream)
            if form is None:
                return
            if at > begin:
                begin, lines = at, row
            _skip_to(stream, begin)
            bytes_left = None if end is None else end - begin
            if self._zipped:
                self._file_mark = self._mark_now(self.status.st_size)
                yield from text_rows(stream.read, form, begin, lines, bytes_left, complete=complete)
                return
            content = self._content = ReadContent(self._file.fileno(), begin)

            def read(count: int) -> bytes:
                block = stream.read(count)
                if not complete and not content.is_unchanged():
                    return b""  # the file was rewritten; the next scan reports that and reads it again
                content.add(block)
                return block

            if not complete and at and at == begin and content.mark(at) != self._copied_mark:
                return  # the file was rewritten after `has_copied_content`; the next scan reports that
            for rows in text_rows(read, form, begin, lines, bytes_left, complete=complete):
                yield rows
                content.advance_to(rows.at)

    def _read_header(self, stream: IO[bytes]) -> tuple[int, int, RowParser | None]:
        """Return the position of the first row, the number of lines before it, and the parser of the rows.

        The parser is None if the file does not have its complete header yet.
        """
        config = self._config
        start = _read_some(stream.read, len(_BOM))
        if start[:2] in _WIDE and config.files.format != "lines":
            raise Unreadable("it starts with a UTF-16 byte order mark: convert it to UTF-8")
        if config.files.format == "lines":
            return 0, 0, PlainLines()
        encoding = config.files.encoding
        begin = len(_BOM) if start == _BOM and encoding == "utf-8" else 0
        extractor = FieldExtractor(config.record)
        if config.files.format == "jsonl":
            return begin, 0, JsonLines(extractor, encoding)
        if config.csv.columns:
            return begin, 0, CsvRows(extractor, encoding, config.csv.delimiter, config.csv.columns)
        data, found = start[begin:], None
        while found is None:
            block = stream.read(limits.BLOCK_BYTES)
            if not block and not config.files.grows and data and not data.endswith(b"\n"):
                block = b"\n"
            data += block
            found = header(data, encoding, config.csv.delimiter)
            if found is None and not block:
                if data.strip() and not config.files.grows:
                    raise Unreadable("its header has an unclosed quote")
                return begin, 0, None
            if found is None and len(data) > limits.HEADER_BYTES_MAX:
                raise Unreadable(f"it has no header in its first {limits.HEADER_BYTES_MAX} bytes")
        names, end_at, lines = found
        extractor.check(names, "its header")
        return begin + end_at, lines, CsvRows(extractor, encoding, config.csv.delimiter, names)

    def _parquet(self, at: int) -> Iterator[Rows]:
        extractor = FieldExtractor(self._config.record)
        with _converted_errors():
            file = ParquetFile(self._file, extractor)
            self._file_mark = self._mark_now(self.status.st_size)
            yield from file.rows(at)

    def __enter__(self) -> FileReader:
        """Return the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()


def text_rows(
    read: Callable[[int], bytes], form: RowParser, at: int, row: int, bytes_left: int | None, *, complete: bool
) -> Iterator[Rows]:
    """Parse the text that `read` returns, and yield its rows. The text starts at byte `at` of the file, after `row` lines.

    Args:
        read: function that returns up to the given number of bytes, and b"" at the end.
        form: parser of the rows.
        at, row: byte of the (decompressed) file at which the text starts, and number of lines before this byte.
        bytes_left: number of bytes to read at most, or None to read to the end.
        complete: whether the file is complete, so that a last line without a newline is a row.
    """
    buffer = b""
    while True:
        block = read(limits.BLOCK_BYTES if bytes_left is None else min(limits.BLOCK_BYTES, bytes_left))
        bytes_left = None if bytes_left is None else bytes_left - len(block)
        buffer += block
        final = not block
        if not buffer or (final and not complete):
            return
        rows = form.parse(buffer, at, row, final=final)
        buffer = buffer[rows.at - at :]
        at, row = rows.at, rows.row
        yield rows
        if len(buffer) > limits.ROW_BYTES_MAX:
            line = _first_line(read, buffer, complete=complete)
            if line is None:
                return  # the file does not have the end of this line yet
            kept, size, buffer = line
            reason = f"its row does not end within {limits.ROW_BYTES_MAX} bytes; the limit of a record is {limits.RECORD_BYTES_MAX}"
            bad = BadRow(row + 1, at, kept, reason, size)
            at, row = at + size, row + 1
            yield Rows([], [], [], [], [], [bad], at, row)
        if final:
            return


def _first_line(read: Callable[[int], bytes], buffer: bytes, *, complete: bool) -> tuple[bytes, int, bytes] | None:
    """Return the start of the first line, its size, and the bytes after it, or None if a growing file has no end of this line yet.

    The bytes in `buffer` are the start of the line, and `read` returns the bytes after them.
    """
    kept, size = buffer[: limits.KEPT_BYTES_MAX], 0
    while (newline := buffer.find(b"\n")) < 0:
        size += len(buffer)
        buffer = read(limits.BLOCK_BYTES)
        if not buffer:
            return (kept, size, b"") if complete else None
    return kept[: size + newline], size + newline + 1, buffer[newline + 1 :]


def _read_some(read: Callable[[int], bytes], count: int) -> bytes:
    """Return `count` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < count and (block := read(count - len(data))):
        data += block
    return data


def _skip_to(stream: IO[bytes], at: int) -> None:
    """Move the stream to a position; for this, a gzip stream decompresses all content before the position."""
    if stream.seek(at) < at:
        raise Unreadable(f"it ends before byte {at}, up to which it was copied")


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Convert errors in the file's content to `Unreadable`, but not errors of the operating system."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Unreadable(f"it is not a complete gzip file ({error})") from error
    except pa.ArrowException as error:
        raise Unreadable(f"it is not a readable Parquet file ({_first_error_line(error)})") from error
    except OSError as error:
        if error.errno is None:  # Arrow raises OSError without errno if the content is invalid
            raise Unreadable(f"it is not a readable Parquet file ({_first_error_line(error)})") from error
        raise


def _first_error_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
