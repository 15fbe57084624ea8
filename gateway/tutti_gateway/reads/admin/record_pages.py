"""Pages of records for browsing the log: a few records, found with bounded work, anywhere in the log.

The work of a page is bounded, so a page may miss records of a rare key or topic that exist elsewhere. The headers `tutti-first`
and `tutti-next` name the range of offsets that the page has searched, and so where the previous and the next page begin.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from http import HTTPStatus
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tutti.data.frames.columns import SCHEMA
from tutti.errors import Damaged, OffsetOutOfRange, TuttiError, UsageError
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.reading.json_lines import truncated_json_lines
from tutti.reading.positions import parse_time
from tutti.sources.source import time_us_of
from tutti_gateway.core import limits
from tutti_gateway.reads.admin.http import PageResponse, QueryParameters, error_response
from tutti_gateway.reads.common.concurrency import ConcurrencyLimit
from tutti_gateway.reads.protocol.flight_errors import ReadError

Rows = npt.NDArray[np.void]
LINES = "application/x-ndjson"
TAKES = ("start", "before", "time", "topic", "key", "key_base64", "limit", "cut")
_SHRINK = 8  # divides a search step that was too large
_DIGITS = 20


class PageQuery(NamedTuple):
    """The parameters of a page: records from `start` on, or the last ones below `before`, of a topic and with a key if given."""

    start: int | None
    before: int | None
    topic: str | None
    key: bytes | None
    limit: int
    cut: int


class SearchRange(NamedTuple):
    """A range of offsets [low, high), and the bytes of the batches to search in it."""

    low: int
    high: int
    bytes: int


class SearchBudget:
    """The records found for a page, and its remaining search budget.

    Attributes:
        records: the records found so far, in batches.
        need: number of records that are still wanted.
    """

    def __init__(self, limit: int) -> None:
        """Begin a search for `limit` records."""
        self.records: list[pa.RecordBatch] = []
        self.need = limit
        self._bytes, self._rows = limits.BROWSE_BYTES_MAX, limits.BROWSE_ROWS_MAX

    @property
    def rows_left(self) -> int:
        """The number of index rows that may still be searched."""
        return self._rows

    def rows(self, count: int) -> None:
        """Deduct searched index rows from the budget."""
        self._rows -= count

    def may(self, piece: SearchRange) -> bool:
        """True if the budget allows to search a piece; the first piece with batches is always allowed."""
        return self.need > 0 and (piece.bytes <= self._bytes or self._bytes == limits.BROWSE_BYTES_MAX)

    @property
    def goes_on(self) -> bool:
        """True if more records are wanted and the budget is not used up."""
        return self.need > 0 and self._rows > 0

    def add(self, piece: SearchRange, batch: pa.RecordBatch) -> None:
        """Add the records found in a piece, and deduct its bytes from the budget."""
        self._bytes -= piece.bytes
        self.need -= batch.num_rows
        self.records.append(batch)


class RecordBrowser:
    """Makes pages of records. Thread-safe."""

    def __init__(self, reader: LogReader, elsewhere: Callable[[str, int], bool] = lambda lane, position: False) -> None:
        """Browse the log of `reader`; `elsewhere` reports an unreadable position and returns True if other gateways are up."""
        self._reader = reader
        self._elsewhere = elsewhere
        self.places = ConcurrencyLimit("pages of records", limits.BROWSERS_MAX, limits.BROWSE_WAIT_US_MAX)

    def records(self, asked: QueryParameters) -> PageResponse:
        """Return a page: one line of JSON a record in offset order, as `tutti tail` prints records."""
        try:
            lease = self.places.take()
            try:
                return self._page(asked)
            finally:
                lease.release()
        except ReadError as busy:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(busy))
        except Damaged as error:
            there = self._elsewhere("", error.position)
            more = "; another gateway sends a copy: try again in a moment, or use another gateway" if there else ""
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}{more}")
        except OffsetOutOfRange as error:
            return error_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, str(error))
        except UsageError as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except TuttiError as error:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _page(self, asked: QueryParameters) -> PageResponse:
        frontier, begin = self._reader.frontier().offset, self._reader.start
        wanted = wanted_of(asked, begin, frontier, self._reader.offset_for_time)
        looked = SearchBudget(wanted.limit)
        if wanted.start is not None:
            first = wanted.start
            following = self._search_forward(wanted, first, frontier, looked)
        else:
            following = frontier if wanted.before is None else wanted.before
            first = self._search_back(wanted, begin, following, looked)
        lines = [line + b"\n" for batch in looked.records for line in truncated_json_lines(batch, wanted.cut)]
        about = {"first": first, "next": following, "start": begin, "frontier": frontier}
        return PageResponse(HTTPStatus.OK, LINES, b"".join(lines), {f"tutti-{name}": str(offset) for name, offset in about.items()})

    def _search_forward(self, wanted: PageQuery, start: int, end: int, looked: SearchBudget) -> int:
        """Find the first records of [start, end); return the offset at which the search stopped."""
        at = start
        for pieces in self._pieces(start, end, wanted, looked):
            for piece in pieces:
                if not looked.may(piece):
                    return at
                found = self._found(piece, wanted)
                looked.add(piece, found.slice(0, looked.need))
                at = piece.high if looked.records[-1].num_rows == found.num_rows else _offset(looked.records[-1], -1) + 1
            if not looked.goes_on:
                break
        return at

    def _search_back(self, wanted: PageQuery, begin: int, end: int, looked: SearchBudget) -> int:
        """Find the last records of [begin, end); return the first offset searched."""
        at, step = end, limits.BROWSE_STEP_OFFSETS
        while at > begin and looked.goes_on:
            low = max(begin, at - step)
            found_pieces = _within_budget(self._pieces(low, at, wanted, looked), looked)
            if found_pieces is None:  # older batches may be smaller, so this range has too many index rows
                step = max(limits.BROWSE_STEP_OFFSETS, step // _SHRINK)
                continue
            step *= 2
            for pieces in reversed(found_pieces):
                for piece in reversed(pieces):
                    if not looked.may(piece):
                        looked.records.reverse()
                        return at
                    found = self._found(piece, wanted)
                    looked.add(piece, found.slice(max(0, found.num_rows - looked.need)))
                    at = piece.low if looked.records[-1].num_rows == found.num_rows else _offset(looked.records[-1], 0)
        looked.records.reverse()
        return at

    def _pieces(self, start: int, end: int, wanted: PageQuery, looked: SearchBudget) -> Iterator[list[SearchRange]]:
        """Iterate over [start, end) in pieces of bounded bytes, one segment at a time; pieces begin at batches of the topic."""
        pick = self._reader.picking(None if wanted.topic is None else [wanted.topic])
        for _, rows in self._reader.batches(start, end):
            if not len(rows):
                continue
            looked.rows(len(rows))
            low, high = max(start, int(rows["offset"][0])), min(end, int(rows["offset"][-1]) + int(rows["count"][-1]))
            yield _split(pick(rows), low, high)

    def _found(self, piece: SearchRange, wanted: PageQuery) -> pa.RecordBatch:
        """Return the matching records of a piece as one batch."""
        found: list[pa.RecordBatch] = []
        topics = None if wanted.topic is None else [wanted.topic]
        for batch in scan(self._reader, piece.low, piece.high, topics=topics) if piece.bytes else ():
            if wanted.key is not None:
                keys = batch.column("key").to_pylist()
                batch = batch.take(pa.array([place for place, key in enumerate(keys) if key == wanted.key], pa.int64()))
            found.append(batch)
        table = pa.Table.from_batches(found, SCHEMA)
        return table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], SCHEMA)


def wanted_of(asked: QueryParameters, begin: int, frontier: int, offset_for_time: Callable[[int], int]) -> PageQuery:
    """Parse the query parameters of a page.

    Args:
        asked: the query parameters.
        begin: first available offset.
        frontier: end of the log.
        offset_for_time: returns the first offset at or after a time (us, UTC).

    Raises:
        UsageError: a parameter is unknown or invalid, or two parameters name a start.
    """
    for name in asked:
        if name not in TAKES:
            raise UsageError(f"there is no parameter {name[:100]!r}; the parameters are {', '.join(TAKES)}")
    places = [name for name in ("start", "before", "time") if name in asked]
    if len(places) > 1:
        raise UsageError(f"{' and '.join(places)} exclude each other: give only one of them")
    if "key" in asked and "key_base64" in asked:
        raise UsageError("key and key_base64 exclude each other: give only one of them")
    limit = number(asked, "limit", limits.BROWSE_RECORDS, 1, limits.BROWSE_RECORDS_MAX)
    cut_max = min(limits.BROWSE_CUT_BYTES_MAX, limits.BROWSE_SHOWN_BYTES_MAX // limit)
    cut = number(asked, "cut", limits.BROWSE_CUT_BYTES, 0, cut_max)
    topic, key = asked.get("topic") or None, None
    if "key" in asked:
        key = asked["key"].encode()
    elif "key_base64" in asked:
        try:
            key = base64.b64decode(asked["key_base64"], validate=True)
        except binascii.Error:
            raise UsageError(f"key_base64={asked['key_base64'][:100]!r} is not valid base64") from None
    start = before = None
    if "time" in asked:
        start = offset_for_time(time_us_of(parse_time(asked["time"])))
    elif "before" in asked:
        before = number(asked, "before", 0, begin, frontier)
    elif asked.get("start", "latest") != "latest":
        start = begin if asked["start"] == "earliest" else number(asked, "start", 0, begin, frontier)
    return PageQuery(start, before, topic, key, limit, cut)


def number(asked: QueryParameters, name: str, default: int, low: int, high: int) -> int:
    """Return a query parameter that is a whole number, or its default.

    Raises:
        UsageError: the parameter is not a whole number, or is out of range.
    """
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise UsageError(f"{name} must be a whole number, not {text[:100]!r}")
    if not low <= int(text) <= high:
        raise UsageError(f"{name}={text} is not between {low} and {high}")
    return int(text)


def _within_budget(found: Iterator[list[SearchRange]], looked: SearchBudget) -> list[list[SearchRange]] | None:
    """Return all pieces, or None if they have more index rows than one step may search."""
    least, taken = looked.rows_left - limits.BROWSE_STEP_ROWS_MAX, list[list[SearchRange]]()
    for pieces in found:
        taken.append(pieces)
        if looked.rows_left < least:
            return None
    return taken


def _split(rows: Rows, low: int, high: int) -> list[SearchRange]:
    """Split the range [low, high) of these batches at the starts of batches."""
    if not len(rows):
        return [SearchRange(low, high, 0)]
    sizes = rows["size"].astype(np.int64)
    firsts = np.flatnonzero(np.diff((np.cumsum(sizes) - sizes) // limits.BROWSE_PIECE_BYTES, prepend=-1))
    borders = [low, *rows["offset"][firsts[1:]].tolist(), high]
    return [
        SearchRange(*between, size)
        for between, size in zip(pairwise(borders), np.add.reduceat(sizes, firsts).tolist(), strict=True)
    ]


def _offset(batch: pa.RecordBatch, place: int) -> int:
    return int(batch.column("offset")[place].as_py())
