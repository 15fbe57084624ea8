"""Scan: reads committed records from index rows and mapped frames into Arrow batches.

Python code runs once for each frame or output batch, never for each record. The columns of a large frame are views of the segment.
Small frames are joined into larger batches, because many small batches would slow readers down. A scan checks the CRC of each body
that it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tutti import limits
from tutti.data.frames.columns import check_columns, schema_of
from tutti.data.frames.frame import CODEC_FLAGS, HEADER_SIZE, Kind, padded, payload_crc
from tutti.data.frames.schema import BATCH_SCHEMA
from tutti.errors import Damaged
from tutti.log.format.index import Rows
from tutti.log.read.reader import LogReader
from tutti.log.read.segment_view import SegmentView

_BODY = {name: index for index, name in enumerate(BATCH_SCHEMA.names)}
_NAMED = {"topic": (Kind.TOPIC, "topic"), "producer": (Kind.EPOCH, "producer"), "gateway": (Kind.ROSTER, "origin")}
_POSITION = struct.Struct("<Q")
_GAP_BYTES_MAX = 64 * limits.KIB  # largest gap between two frames for which one read across the gap is faster than two reads
_PAYLOAD = struct.Struct("<HIII")  # fields in a frame header: progress length, body length, raw length, body CRC


def scan(
    reader: LogReader,
    start: int,
    end: int,
    *,
    topics: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rows_max: int = limits.READ_BATCH_ROWS_MAX,
    bytes_max: int = limits.READ_BATCH_BYTES_MAX,
    sequential: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records at offsets [start, end), in order.

    The first batches are small and are read without read-ahead, so that a lookup of a single record is fast.

    Args:
        reader: reader of the data directory or lane.
        start, end: first offset, and offset after the last record, at most the frontier.
        topics: names of the topics to read, or None for all topics. A topic that does not exist has no records.
        columns: names of the columns to return (`tutti.data.frames.columns.COLUMNS`), or None for all columns.
        rows_max: maximum number of records in a batch.
        bytes_max: maximum number of bytes of frames that are joined into one batch. A larger frame becomes a separate batch.
        sequential: True if the caller reads a long range in order, so that even the first batches can be large.

    Raises:
        UsageError, OffsetOutOfRange: a column is unknown, or the log lacks the range; raised when the first batch is requested.
        Damaged: a body fails its CRC; raised after all records before this body.
    """
    chosen = check_columns(columns)
    schema = schema_of(chosen)
    pick = reader.picking(topics)
    # A sequential reader gets large batches at once, because it reads all records and small batches only reduce throughput.
    firsts = () if sequential else limits.READ_FIRST_BYTES
    group_limits, made = _group_limits(firsts, bytes_max), _sizes(firsts, bytes_max)
    for view, rows in reader.batches(start, end):
        wanted = pick(rows)
        for low, high, alone in _groups(wanted, rows_max, group_limits):
            some = wanted[low:high]
            ranges = _byte_ranges(some)
            if alone or len(ranges) > 1:
                # All ranges are requested before the first wait, so that the device reads them in parallel.
                for first, last in ranges:
                    view.segment.prefetch(first, last)
            for first, last in ranges:
                view.segment.populate(first, last)
            for joined, bodies in _joined(view, some, made):
                for part in _cut(reader, joined, bodies, start, end, rows_max):
                    yield part.batch(chosen, schema)
            # The caller no longer needs these frames. One release of the whole span is faster than a release of each range.
            view.segment.release(min(first for first, _ in ranges), max(last for _, last in ranges))


class _GroupLimit(NamedTuple):
    """Limits of one group of frames that are read together.

    Attributes:
        size: maximum number of bytes in the group.
        ranges: maximum number of separate byte ranges in the group.
        alone: True to read exactly these byte ranges, without read-ahead.
    """

    size: int
    ranges: int
    alone: bool


def _group_limits(firsts: Sequence[int], most: int) -> Iterator[_GroupLimit]:
    """Return the limits of all groups, in order: first small groups with the sizes in `firsts`, then groups of `most` bytes."""
    few = [_GroupLimit(min(size, most), limits.READ_FIRST_POSITIONS, alone=True) for size in firsts]
    return chain(few, repeat(_GroupLimit(most, limits.READ_BATCH_ROWS_MAX, alone=False)))


def _sizes(firsts: Sequence[int], most: int) -> Iterator[int]:
    """Return the byte limits of all batches, in order: first the sizes in `firsts`, then `most` for each further batch."""
    return chain([min(size, most) for size in firsts], repeat(most))


def _groups(rows: Rows, rows_max: int, group_limits: Iterator[_GroupLimit]) -> Iterator[tuple[int, int, bool]]:
    """Divide frames into groups that are read together, and yield (first row, end row, alone) for each group.

    The limits of the groups come from `group_limits`, in order. A group becomes one batch, unless its frames are compressed and
    exceed the limit of the batch when they are decompressed.
    """
    low = count = size = ranges = 0
    group_limit = _GroupLimit(0, 0, alone=False)
    apart = [True, *_gaps(rows["file_position"], rows["file_position"] + rows["size"]).tolist()]
    for at, (records, length) in enumerate(zip(rows["count"].tolist(), rows["size"].tolist(), strict=True)):
        if at == low:
            group_limit = next(group_limits)
        elif count + records > rows_max or size + length > group_limit.size or ranges + apart[at] > group_limit.ranges:
            yield low, at, group_limit.alone
            low, count, size, ranges, group_limit = at, 0, 0, 0, next(group_limits)
        count += records
        size += length
        ranges += at == low or apart[at]
    if low < len(rows):
        yield low, len(rows), group_limit.alone


def _gaps(starts: npt.NDArray[np.integer[Any]], ends: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """For each frame except the first, return True if it is too far from the previous frame for one read of both."""
    between: npt.NDArray[np.bool_] = np.abs(starts[1:].astype(np.int64) - ends[:-1].astype(np.int64)) > _GAP_BYTES_MAX
    return between


def _byte_ranges(rows: Rows) -> list[tuple[int, int]]:
    """Return the byte ranges of frames in a segment. Frames that are near each other share a range.

    Large gaps occur between the frames of one topic, and between batches that several tasks staged in parallel.
    """
    # Starts and ends are sorted, because the batches of a TXN can be in any order in the segment.
    starts, ends = np.sort(rows["file_position"]), np.sort(rows["file_position"] + rows["size"])
    apart = np.flatnonzero(_gaps(starts, ends))
    return list(zip(starts[[0, *(apart + 1)]].tolist(), ends[[*apart, -1]].tolist(), strict=True))


def _joined(view: SegmentView, rows: Rows, sizes: Iterator[int]) -> Iterator[tuple[Rows, list[pa.RecordBatch]]]:
    """Divide the frames of a group into output batches, and yield (rows, bodies) for each batch.

    The byte limits of the batches come from `sizes`, in order. The size of a compressed frame is known only after its
    decompression, so one frame beyond the limit may be in memory.

    Raises:
        Damaged: a frame is corrupt; raised after all frames before it.
    """
    low = buffered = size_max = 0
    bodies: list[pa.RecordBatch] = []
    damage: Damaged | None = None
    for at, (file_position, position, count, size) in enumerate(
        zip(rows["file_position"].tolist(), rows["position"].tolist(), rows["count"].tolist(), rows["size"].tolist(), strict=True)
    ):
        try:
            body, compressed = _body(view, file_position, position, count)
        except Damaged as error:
            # The error is raised only after the records before the corruption are yielded.
            damage = error
            break
        # The limit is for the memory of a batch, so the decompressed size counts, which the index does not contain.
        if compressed:
            size = body.get_total_buffer_size()
        if bodies and buffered + size > size_max:
            yield rows[low:at], bodies
            low, buffered, bodies = at, 0, []
        if not bodies:
            size_max = next(sizes)
        bodies.append(body)
        buffered += size
    if bodies:
        yield rows[low : low + len(bodies)], bodies
    if damage is not None:
        raise damage


def _cut(reader: LogReader, rows: Rows, bodies: list[pa.RecordBatch], start: int, end: int, rows_max: int) -> Iterator[_Part]:
    """Yield the records of the frames that are in the range [start, end), in parts of at most `rows_max` records."""
    skip = np.maximum(start - rows["offset"], 0)
    keep = np.minimum(end - rows["offset"], rows["count"]) - skip
    # Groups of several frames respect the limit of records, so only a single frame can exceed the limit and must be split.
    if len(bodies) == 1:
        first, last = int(skip[0]), int(skip[0] + keep[0])
        for at in range(first, last, rows_max):
            count = min(rows_max, last - at)
            yield _Part(reader, rows, [bodies[0].slice(at, count)], np.array([at]), np.array([count]))
        return
    for at in (0, -1):
        if keep[at] != rows["count"][at]:  # only the first and the last frame can be partly outside the range
            bodies[at] = bodies[at].slice(int(skip[at]), int(keep[at]))
    yield _Part(reader, rows, bodies, skip, keep)


class _Part:
    """The content of one output batch: several frames, or a slice of one frame."""

    def __init__(
        self,
        reader: LogReader,
        rows: Rows,
        bodies: list[pa.RecordBatch],
        skip: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
    ) -> None:
        """Collect the frames of `rows` for one output batch.

        Args:
            bodies: records of each frame, without records outside the requested range.
            skip: for each body, the number of leading records that were removed.
            counts: for each body, the number of records that remain.
        """
        self._reader = reader
        self._rows = rows
        self._bodies = bodies
        self._counts = counts
        self._offsets = rows["offset"] + skip
        self._sequences = rows["first_sequence"].astype(np.int64) + skip

    def batch(self, columns: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
        """Return the combined records as one batch with these columns."""
        return pa.RecordBatch.from_arrays([self._column(name) for name in columns], schema=schema)

    def _column(self, name: str) -> pa.Array[Any]:
        body = _BODY.get(name)
        if body is not None:
            parts = [batch.column(body) for batch in self._bodies]
            return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if name == "offset":
            return _counting(self._offsets, self._counts)
        if name == "sequence":
            return _counting(self._sequences, self._counts)
        if name in _NAMED:
            kind, field = _NAMED[name]
            return self._names(kind, self._rows[field])
        return _int64(np.repeat(self._rows[name].astype(np.int64), self._counts))

    def _names(self, kind: Kind, numbers: npt.NDArray[Any]) -> pa.Array[Any]:
        # Each distinct number is looked up only once, because a lookup takes much longer than an array operation.
        distinct, codes = np.unique(numbers, return_inverse=True)
        names = [self._reader.name_of(kind, int(number)) for number in distinct]
        if len(names) == 1:
            return _constant(names[0], int(self._counts.sum()))
        indices: pa.Array[Any] = pa.array(np.repeat(codes, self._counts), pa.int64())
        return pa.array(names, pa.string()).take(indices)


def _body(view: SegmentView, file_position: int, position: int, count: int) -> tuple[pa.RecordBatch, bool]:
    """Return the records of a frame, and True if they were compressed. Uncompressed records are a view of the segment."""
    data = view.segment.view
    if file_position + HEADER_SIZE > len(data):
        raise Damaged(
            f"{view.path} ends at byte {len(data)}, before position {position}; see `tutti log verify {view.directory}`", position
        )
    # The needed fields are read directly from the header, because a full decode would create an object for each frame.
    progress_length, length, _, crc = _PAYLOAD.unpack_from(data, file_position + 70)
    progress_at = file_position + HEADER_SIZE
    body_at = progress_at + padded(progress_length)
    end = body_at + length
    progress = bytes(data[progress_at : progress_at + progress_length])
    if (
        end > len(data)
        or _POSITION.unpack_from(data, file_position + 16)[0] != position
        or payload_crc(progress, data[body_at:end]) != crc
    ):
        raise Damaged(
            f"{view.path} is corrupt at byte {file_position}: position {position} fails its CRC; "
            f"see `tutti log verify {view.directory}`",
            position,
        )
    # The columns of an uncompressed body refer to the mapping, without a copy, and keep the mapping alive.
    batch = pa.ipc.read_record_batch(view.segment.buffer.slice(body_at, length), BATCH_SCHEMA)
    if batch.num_rows != count:
        raise Damaged(
            f"{view.path}, byte {file_position}: position {position} has {batch.num_rows} records, but the index has {count}; "
            f"see `tutti log verify {view.directory}`",
            position,
        )
    return batch, data[file_position + 6] & CODEC_FLAGS != 0


def _counting(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """For each start and count, return `count` consecutive numbers from `start` on, all in one array."""
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    ramps = starts - before
    # If the numbers continue from each start to the next, as for consecutive frames, one `arange` gives the whole array.
    if (ramps == ramps[0]).all():
        return _int64(np.arange(ramps[0], ramps[0] + total, dtype=np.int64))
    return _int64(np.repeat(ramps, counts) + np.arange(total, dtype=np.int64))


def _int64(values: npt.NDArray[np.int64]) -> pa.Array[Any]:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values.data)])


def _constant(text: str, rows: int) -> pa.Array[Any]:
    # The buffers are built with numpy, because a Python list would need an object for each record.
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets.data), pa.py_buffer(data * rows)])
