"""Pages of records for browsing the log: a few records from any position, found with bounded work.

The search for a page stops at its budget, so a page may lack records of a rare key or topic that exist elsewhere in the log. The
headers `tutti-first` and `tutti-next` contain the range of offsets that the search covered. The previous page ends at the start of
this range, and the next page begins at the end of this range.
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
from tutti.reading.range_bounds import parse_time
from tutti.sources.source import time_us_of
from tutti_gateway.core import limits
from tutti_gateway.reads.admin.http import PageResponse, QueryParameters, error_response
from tutti_gateway.reads.common.concurrency import ConcurrencyLimit
from tutti_gateway.reads.protocol.flight_errors import ReadError

Rows = npt.NDArray[np.void]
LINES = "application/x-ndjson"
PARAMETERS = ("start", "before", "time", "topic", "key", "key_base64", "limit", "cut")
_SHRINK = 8  # divisor of a search step that covers too many index rows
# An int64 has at most 19 digits, and `int` raises ValueError for texts of more than 4300 digits.
_DIGITS = 20


class PageQuery(NamedTuple):
    """The parameters of a page: records that start at `start`, or the last records below `before`.

    Topic and key are optional filters.
    """

    start: int | None
    before: int | None
    topic: str | None
    key: bytes | None
    limit: int
    cut: int


class SearchRange(NamedTuple):
    """A range of offsets [low, high), and the total size of the batches in the range that the search must read."""

    low: int
    high: int
    bytes: int


class SearchBudget:
    """The records found for a page, and the remaining budget of its search.

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

    def deduct_rows(self, count: int) -> None:
        """Deduct searched index rows from the budget."""
        self._rows -= count

    def allows(self, part: SearchRange) -> bool:
        """True if the budget suffices to search a part. The first part with batches is always allowed."""
        # A single batch larger than the budget is allowed, because browsing could otherwise never pass that batch.
        return self.need > 0 and (part.bytes <= self._bytes or self._bytes == limits.BROWSE_BYTES_MAX)

    @property
    def continues(self) -> bool:
        """True if more records are wanted and the budget is not used up."""
        return self.need > 0 and self._rows > 0

    def add(self, part: SearchRange, batch: pa.RecordBatch) -> None:
        """Add the records found in a part, and deduct its bytes from the budget."""
        self._bytes -= part.bytes
        self.need -= batch.num_rows
        self.records.append(batch)


class RecordBrowser:
    """Makes pages of records. Thread-safe."""

    def __init__(self, reader: LogReader, report_corruption: Callable[[str, int], bool] = lambda lane, position: False) -> None:
        """Prepare pages of the log of `reader`; `flight_errors.corruption_error` describes `report_corruption`."""
        self._reader = reader
        self._report_corruption = report_corruption
        # Pages have few slots of their own, so that browsing never slows down readers of streams.
        self.slots = ConcurrencyLimit("pages of records", limits.BROWSERS_MAX, limits.BROWSE_WAIT_US_MAX)

    def records(self, parameters: QueryParameters) -> PageResponse:
        """Return a page: one line of JSON a record in offset order, as `tutti tail` prints records."""
        try:
            lease = self.slots.acquire()
            try:
                return self._page(parameters)
            finally:
                lease.release()
        except ReadError as busy:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(busy))
        except Damaged as error:
            repairable = self._report_corruption("", error.position)
            more = "; another gateway sends a copy: try again in a moment, or use another gateway" if repairable else ""
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}{more}")
        except OffsetOutOfRange as error:
            return error_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, str(error))
        except UsageError as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except TuttiError as error:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _page(self, parameters: QueryParameters) -> PageResponse:
        frontier, begin = self._reader.frontier().offset, self._reader.start
        query = parse_query(parameters, begin, frontier, self._reader.offset_for_time)
        budget = SearchBudget(query.limit)
        if query.start is not None:
            first = query.start
            following = self._search_forward(query, first, frontier, budget)
        else:
            following = frontier if query.before is None else query.before
            first = self._search_back(query, begin, following, budget)
        lines = [line + b"\n" for batch in budget.records for line in truncated_json_lines(batch, query.cut)]
        about = {"first": first, "next": following, "start": begin, "frontier": frontier}
        return PageResponse(HTTPStatus.OK, LINES, b"".join(lines), {f"tutti-{name}": str(offset) for name, offset in about.items()})

    def _search_forward(self, query: PageQuery, start: int, end: int, budget: SearchBudget) -> int:
        """Find the first records of [start, end); return the offset at which the search stopped."""
        at = start
        for parts in self._parts(start, end, query, budget):
            for part in parts:
                if not budget.allows(part):
                    return at
                found = self._matching(part, query)
                budget.add(part, found.slice(0, budget.need))
                # If a page is full within a part, the next page begins right after the last record shown.
                at = part.high if budget.records[-1].num_rows == found.num_rows else _offset(budget.records[-1], -1) + 1
            if not budget.continues:
                break
        return at

    def _search_back(self, query: PageQuery, begin: int, end: int, budget: SearchBudget) -> int:
        """Find the last records of [begin, end); return the first offset searched."""
        at, step = end, limits.BROWSE_STEP_OFFSETS
        while at > begin and budget.continues:
            low = max(begin, at - step)
            # Index rows arrive in ascending order, so a step back collects its parts before the last part is searched.
            to_search = _within_budget(self._parts(low, at, query, budget), budget)
            if to_search is None:  # the range has too many index rows, because its batches are smaller than later ones
                step = max(limits.BROWSE_STEP_OFFSETS, step // _SHRINK)
                continue
            step *= 2  # the page needs more records, so the next step searches more at once
            for parts in reversed(to_search):
                for part in reversed(parts):
                    if not budget.allows(part):
                        budget.records.reverse()
                        return at
                    found = self._matching(part, query)
                    budget.add(part, found.slice(max(0, found.num_rows - budget.need)))
                    at = part.low if budget.records[-1].num_rows == found.num_rows else _offset(budget.records[-1], 0)
        # A search back visits the last part first, so the batches are put back into the order of offsets.
        budget.records.reverse()
        return at

    def _parts(self, start: int, end: int, query: PageQuery, budget: SearchBudget) -> Iterator[list[SearchRange]]:
        """Yield parts of [start, end) with bounded bytes, one list for each segment.

        Within a segment, each part after the first begins at the start of a batch that has the topic.
        """
        pick = self._reader.picking(None if query.topic is None else [query.topic])
        for _, rows in self._reader.batches(start, end):
            if not len(rows):
                continue
            # Rows of other topics also use up the budget, because the search reads the whole index.
            budget.deduct_rows(len(rows))
            low, high = max(start, int(rows["offset"][0])), min(end, int(rows["offset"][-1]) + int(rows["count"][-1]))
            yield _split(pick(rows), low, high)

    def _matching(self, part: SearchRange, query: PageQuery) -> pa.RecordBatch:
        """Return the matching records of a part as one batch."""
        found: list[pa.RecordBatch] = []
        topics = None if query.topic is None else [query.topic]
        for batch in scan(self._reader, part.low, part.high, topics=topics) if part.bytes else ():
            if query.key is not None:
                keys = batch.column("key").to_pylist()
                batch = batch.take(pa.array([row for row, key in enumerate(keys) if key == query.key], pa.int64()))
            found.append(batch)
        table = pa.Table.from_batches(found, SCHEMA)
        # A table without rows has no chunk, and `to_batches` then returns an empty list.
        return table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], SCHEMA)


def parse_query(parameters: QueryParameters, begin: int, frontier: int, offset_for_time: Callable[[int], int]) -> PageQuery:
    """Parse the query parameters of a page.

    Args:
        parameters: the query parameters.
        begin: first available offset.
        frontier: end of the log.
        offset_for_time: returns the first offset at or after a time (us, UTC).

    Raises:
        UsageError: a parameter is unknown or invalid, or two parameters set a start.
    """
    for name in parameters:
        if name not in PARAMETERS:
            raise UsageError(f"there is no parameter {name[:100]!r}; the parameters are {', '.join(PARAMETERS)}")
    starts = [name for name in ("start", "before", "time") if name in parameters]
    if len(starts) > 1:
        raise UsageError(f"{' and '.join(starts)} exclude each other: give only one of them")
    if "key" in parameters and "key_base64" in parameters:
        raise UsageError("key and key_base64 exclude each other: give only one of them")
    limit = number(parameters, "limit", limits.BROWSE_RECORDS, 1, limits.BROWSE_RECORDS_MAX)
    cut_max = min(limits.BROWSE_CUT_BYTES_MAX, limits.BROWSE_SHOWN_BYTES_MAX // limit)
    cut = number(parameters, "cut", limits.BROWSE_CUT_BYTES, 0, cut_max)
    topic, key = parameters.get("topic") or None, None
    if "key" in parameters:
        key = parameters["key"].encode()
    elif "key_base64" in parameters:
        try:
            key = base64.b64decode(parameters["key_base64"], validate=True)
        except binascii.Error:
            raise UsageError(f"key_base64={parameters['key_base64'][:100]!r} is not valid base64") from None
    start = before = None
    if "time" in parameters:
        start = offset_for_time(time_us_of(parse_time(parameters["time"])))
    elif "before" in parameters:
        before = number(parameters, "before", 0, begin, frontier)
    elif parameters.get("start", "latest") != "latest":
        start = begin if parameters["start"] == "earliest" else number(parameters, "start", 0, begin, frontier)
    return PageQuery(start, before, topic, key, limit, cut)


def number(parameters: QueryParameters, name: str, default: int, low: int, high: int) -> int:
    """Return a query parameter that is a whole number, or its default.

    Raises:
        UsageError: the parameter is not a whole number, or is out of range.
    """
    text = parameters.get(name)
    if text is None:
        return default
    # `isdigit` also accepts characters such as '²', for which `int` raises an error, so the text must be ASCII.
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise UsageError(f"{name} must be a whole number, not {text[:100]!r}")
    if not low <= int(text) <= high:
        raise UsageError(f"{name}={text} is not between {low} and {high}")
    return int(text)


def _within_budget(found: Iterator[list[SearchRange]], budget: SearchBudget) -> list[list[SearchRange]] | None:
    """Return all parts of a step, or None if the parts have more index rows than one step may search."""
    rows_left_min, collected = budget.rows_left - limits.BROWSE_STEP_ROWS_MAX, list[list[SearchRange]]()
    for parts in found:
        collected.append(parts)
        if budget.rows_left < rows_left_min:
            return None
    return collected


def _split(rows: Rows, low: int, high: int) -> list[SearchRange]:
    """Split the range [low, high) at starts of the batches in `rows`, so that the batches of each part have bounded bytes."""
    if not len(rows):
        return [SearchRange(low, high, 0)]
    sizes = rows["size"].astype(np.int64)
    firsts = np.flatnonzero(np.diff((np.cumsum(sizes) - sizes) // limits.BROWSE_PIECE_BYTES, prepend=-1))
    borders = [low, *rows["offset"][firsts[1:]].tolist(), high]
    return [
        SearchRange(*between, size)
        for between, size in zip(pairwise(borders), np.add.reduceat(sizes, firsts).tolist(), strict=True)
    ]


def _offset(batch: pa.RecordBatch, row: int) -> int:
    return int(batch.column("offset")[row].as_py())
