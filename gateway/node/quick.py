"""A quick check of small batches that look like one that passed the full check before.

A message of a few records costs Arrow more to look at than the gateway to order: its functions are large, and at a message a
millisecond none of them is in the processor's caches. But the metadata of an Arrow message says the whole layout of its buffers,
and batches of one producer repeat it byte for byte. So the metadata of a small batch that passed `validate_body` is remembered with
what it says, and for the next one with the same metadata only what can still differ is checked here: the values of offsets, of
bitmaps and of timestamps.

It answers True only for what Arrow's full validation would accept; whatever is not plain is left to that.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from gateway.core import limits
from gateway.data.frame import Buffer, Frame

_PREFIX = struct.Struct("<Ii")


class Extent(NamedTuple):
    """A piece of a body."""

    start: int
    end: int


class Bits(NamedTuple):
    """A bitmap: where it is, which of its bits count, and how many of them are set."""

    start: int
    end: int
    mask: int
    ones: int


class Ends(NamedTuple):
    """The offsets of a binary column: where they are, how they are read, and the size of the data that they point into."""

    start: int
    reader: struct.Struct
    data_size: int


class Layout:
    """What the metadata of a small, uncompressed batch without headers says."""

    __slots__ = ("bits", "count", "ends", "length", "same", "times", "times_at")

    def __init__(self, frame: Frame, batch: pa.RecordBatch) -> None:
        """Read it from a batch that passed the full check, whose buffers are views of the frame's body.

        Raises:
            ValueError: the batch is not plain.
        """
        self.count = count = frame.count
        self.length = frame.body_length
        base = pa.py_buffer(frame.body).address
        columns = [_extents(column, base, self.length) for column in batch.columns]
        mask = (1 << count) - 1
        self.bits: list[Bits] = []
        self.ends: list[Ends] = []
        reader = struct.Struct(f"<{count + 1}i")
        for number in (0, 1):
            validity, offsets, data = columns[number]
            if offsets is None or offsets.end - offsets.start < reader.size:
                raise ValueError("a column without offsets")
            self._add_bits(validity, mask, count - batch.column(number).null_count)
            self.ends.append(Ends(offsets.start, reader, 0 if data is None else data.end - data.start))
        validity, times = columns[2]
        if validity is not None or times is None:
            raise ValueError("timestamps with a bitmap")
        self.times_at, self.times = times.start, struct.Struct(f"<{count}q")
        headers = columns[3]
        if batch.column(3).null_count != count or headers[0] is None or headers[1] is None:
            raise ValueError("there are headers")
        self._add_bits(headers[0], mask, 0)
        # Offsets of the lists that are all null, and what little stands in the columns of no headers, has to be as it was.
        self.same = [(extent.start, extent.end, bytes(frame.body[extent.start : extent.end])) for extent in headers[1:] if extent]

    def _add_bits(self, validity: Extent | None, mask: int, ones: int) -> None:
        if validity is None:
            if ones != self.count:
                raise ValueError("nulls without a bitmap")
            return
        size = (self.count + 7) // 8
        if validity.end - validity.start < size:
            raise ValueError("a bitmap that is too short")
        self.bits.append(Bits(validity.start, validity.start + size, mask, ones))

    def fits(self, frame: Frame) -> bool:
        """Whether a frame with this metadata is valid for sure."""
        body = frame.body
        if frame.body_length != self.length or frame.count != self.count or frame.flags:
            return False
        for start, reader, data_size in self.ends:
            offsets = reader.unpack_from(body, start)
            if offsets[0] or offsets[-1] > data_size or any(before > after for before, after in pairwise(offsets)):
                return False
        for start, end, mask, ones in self.bits:
            if (int.from_bytes(body[start:end], "little") & mask).bit_count() != ones:
                return False
        for start, end, expected in self.same:
            if body[start:end] != expected:
                return False
        times = self.times.unpack_from(body, self.times_at)
        return bool(min(times) == frame.min_timestamp and max(times) == frame.max_timestamp)


def _extents(column: pa.Array[Any], base: int, length: int) -> list[Extent | None]:
    """Where a column's buffers lie in the body."""
    found: list[Extent | None] = []
    for buffer in column.buffers():
        if buffer is None:
            found.append(None)
            continue
        start = buffer.address - base
        if not 0 <= start <= start + buffer.size <= length:
            if buffer.size:
                raise ValueError("a buffer that is no view of the body")
            start = 0
        found.append(Extent(start, start + buffer.size))
    return found


class QuickCheck:
    """Remembers layouts of small batches."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._layouts: dict[bytes, Layout] = {}

    def passes(self, frame: Frame) -> bool:
        """Whether a frame, whose CRC is right, is valid for sure; False says nothing."""
        if frame.count > limits.QUICK_RECORDS_MAX:
            return False
        metadata = _metadata(frame.body)
        layout = self._layouts.get(metadata) if metadata else None
        return layout is not None and layout.fits(frame)

    def learn(self, frame: Frame, batch: pa.RecordBatch) -> None:
        """A frame passed the full check: remember its layout if it is a small plain one."""
        metadata = _metadata(frame.body)
        if frame.count > limits.QUICK_RECORDS_MAX or frame.flags or not metadata:
            return
        try:
            layout = Layout(frame, batch)
        except ValueError:
            return
        if len(self._layouts) >= limits.QUICK_LAYOUTS_MAX:
            self._layouts.clear()
        self._layouts[metadata] = layout


def _metadata(body: Buffer) -> bytes:
    """The message's metadata with its prefix; empty if it is not that of a small batch."""
    if not _PREFIX.size <= len(body) <= limits.QUICK_BODY_BYTES_MAX:
        return b""
    length = _PREFIX.unpack_from(body)[1]
    return bytes(body[: _PREFIX.size + length]) if 0 < length <= limits.QUICK_METADATA_BYTES_MAX else b""
