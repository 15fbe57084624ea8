"""Index of a segment: has one row for each decided position, so that readers find records without a scan of frames.

The file has a 64-byte header and rows of 96 bytes. Row i describes position first + i. The writer adds rows when positions are
decided, without a sync. When the frontier has passed the end of the segment, the index is *sealed*: the row count and the CRC of
all rows are written to its header, and the file is synced. The whole index can be rebuilt from the segment.

Each row ends with its own CRC32C, because a wrong row would hide or mislabel intact records, and because an unsealed index has no
CRC over all rows.

In a row, `offset` is the offset of the frame's first record, or of the next record in the log if the frame has no record. `count`
is the number of visible records: for a batch that is neither void nor staged, the number of its records; for a TXN, the number of
records in all its batches; for other frames, 0. `tick` is the number of the last TICK at or before the position. For a TICK, both
timestamps are the time of the tick.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from tutti.data.frames.bodies import TickBody
from tutti.data.frames.frame import SEQUENCED, Buffer, Frame, Kind, crc32c
from tutti.data.frames.frame import STAGED as STAGED_FLAG
from tutti.log.files.mapped_pages import map_file, populate
from tutti.log.files.storage import Storage
from tutti.runtime.durable_files import open_file
from tutti.runtime.reserved_fds import with_descriptor_wait

Rows = npt.NDArray[np.void]

ROW_SIZE = 96
ROWS_AT = 64
ROW: np.dtype[np.void] = np.dtype(
    [
        ("position", "<u8"),
        ("file_position", "<u8"),
        ("offset", "<i8"),
        ("producer", "<u8"),
        ("first_sequence", "<u8"),
        ("min_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("tick", "<u8"),
        ("view", "<u8"),
        ("size", "<u4"),
        ("count", "<u4"),
        ("topic", "<u4"),
        ("epoch", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("origin", "<u2"),
        ("crc", "<u4"),
    ]
)
_TICK = int(Kind.TICK)
_ROW = struct.Struct("<QQqQQqqQQIIIIBBH")
_ROW_CRC = struct.Struct("<I")
# Bits of the field `flags`: ABORTED marks a BATCH that a later ABORT voids, and STAGED marks a BATCH that only a TXN makes visible.
ABORTED, STAGED = 1, 2

_MAGIC = b"TUTI"
_VERSION = 1
_HEADER = struct.Struct("<4sIQQqqqII")
_CRC = struct.Struct("<I")
LONG_AGO = -(1 << 63)
# Maximum number of rows that a CRC check copies at a time. The limit exists because the allocator keeps the memory of large copies.
_CHECK_ROWS = 65_536
_GROW_BYTES = 1 << 20  # step in which the file grows; with smaller steps, readers would have to map the file again more often


class Sealed(NamedTuple):
    """Header of a sealed index: first position, row count, first offset, next offset, largest timestamp, CRC of the rows."""

    first: int
    rows: int
    offset: int
    next_offset: int
    max_timestamp: int
    rows_crc: int

    def to_bytes(self) -> bytes:
        """Encode the header, 64 bytes."""
        head = _HEADER.pack(
            _MAGIC, _VERSION, self.first, self.rows, self.offset, self.next_offset, self.max_timestamp, self.rows_crc, 0
        )
        return (head + _CRC.pack(crc32c(head))).ljust(ROWS_AT, b"\0")


def read_sealed(data: Buffer, first: int) -> Sealed | None:
    """Return the header of a sealed index, or None if the index is not sealed or its header is invalid. The rows are not
    checked.
    """
    if len(data) < ROWS_AT:
        return None
    head = bytes(data[: _HEADER.size])
    if head[:4] != _MAGIC or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(head):
        return None
    _, version, found, rows, offset, next_offset, max_timestamp, rows_crc, _ = _HEADER.unpack(head)
    return Sealed(found, rows, offset, next_offset, max_timestamp, rows_crc) if version == _VERSION and found == first else None


def encode_row(frame: Frame, file_position: int, offset: int, tick: tuple[int, int], aborted: bool) -> bytes:
    """Encode the index row of one frame.

    Args:
        file_position: byte offset of the frame in its segment.
        offset: offset of the frame's first record, or of the next record in the log if the frame has no record.
        tick: number and time (us) of the last tick at or before this frame.
        aborted: True if a later ABORT voids the frame.
    """
    low, high = frame.min_timestamp, frame.max_timestamp
    # The row of a TICK contains the time of the tick, so that readers can find ticks by time without reading their frames.
    if frame.kind == _TICK:
        low = high = tick[1]
    staged = frame.staged
    row = _ROW.pack(
        frame.position,
        file_position,
        offset,
        frame.producer,
        frame.first_sequence,
        low,
        high,
        tick[0],
        frame.view,
        frame.size,
        frame.count if frame.kind in SEQUENCED and not staged and not aborted else 0,
        frame.topic,
        frame.epoch,
        frame.kind,
        (ABORTED if aborted else 0) | (STAGED if staged else 0),
        frame.origin,
    )
    return row + _ROW_CRC.pack(google_crc32c.value(row))


def build_rows(
    headers: npt.NDArray[np.void],
    file_positions: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint32],
    ticks: Sequence[tuple[int, TickBody]],
    *,
    aborted: Collection[int],
    offset: int,
    tick: int,
) -> Rows:
    """Return the rows of consecutive frames, with vectorised code. Each row equals the result of `encode_row` for its frame.

    Args:
        headers: the frames' headers (HEADER_DTYPE), in position order.
        file_positions, sizes: byte offset of each frame in its segment, and size of each frame in bytes.
        ticks: index in `headers` and body of each TICK frame.
        aborted: positions of void batches.
        offset: offset of the first record in these frames.
        tick: number of the last tick before the first frame.
    """
    rows = np.zeros(len(headers), dtype=ROW)
    for name in ("position", "producer", "first_sequence", "min_timestamp", "max_timestamp", "view", "topic", "epoch"):
        rows[name] = headers[name]
    for name in ("kind", "origin"):
        rows[name] = headers[name]
    rows["file_position"] = file_positions
    rows["size"] = sizes
    staged = headers["flags"] & STAGED_FLAG != 0
    rows["flags"][staged] = STAGED
    visible = ((headers["kind"] == Kind.BATCH) & ~staged) | (headers["kind"] == Kind.TXN)
    # A void batch also has a row, with 0 records, because row i must describe position first + i.
    if aborted:
        void = (headers["kind"] == Kind.BATCH) & np.isin(headers["position"], np.fromiter(aborted, np.uint64, len(aborted)))
        rows["flags"][void] |= ABORTED
        visible &= ~void
    counts = np.where(visible, headers["count"], 0).astype(np.int64)
    rows["count"] = counts
    # The sum of the counts before a frame is also right for a frame without records, which gets the offset of the next record.
    rows["offset"] = offset + np.cumsum(counts) - counts
    numbers = np.full(len(headers), tick, dtype=np.uint64)
    for at, body in ticks:
        numbers[at:] = body.number
        rows["min_timestamp"][at] = rows["max_timestamp"][at] = body.time_us
    rows["tick"] = numbers
    rows["crc"] = _crcs(rows)
    return rows


def rows_valid(rows: Rows) -> bool:
    """True if every row matches its CRC."""
    some = (rows[at : at + _CHECK_ROWS] for at in range(0, len(rows), _CHECK_ROWS))
    return all(np.array_equal(part["crc"], _crcs(part)) for part in some)


def _crcs(rows: Rows) -> npt.NDArray[np.uint32]:
    data = rows.tobytes()
    value, size = google_crc32c.value, _ROW.size
    return np.fromiter((value(data[at : at + size]) for at in range(0, len(data), ROW_SIZE)), np.uint32, len(rows))


def crc_of_rows(rows: Rows) -> int:
    """Return the CRC over all rows together, as in the header of a sealed index. The rows are not copied."""
    return crc32c(rows.view(np.uint8).data)


def no_rows() -> Rows:
    """Return an empty array of rows."""
    return np.empty(0, dtype=ROW)


class IndexWriter:
    """Writes the index of a segment until the index is sealed."""

    def __init__(self, path: str, first: int, rows: Rows, storage: Storage) -> None:
        """Open the index of the segment with first position `first`, and write `rows`, the rows of the frames decided so far."""
        self._storage = storage
        self._path = path
        self.first = first
        self.count = 0
        self.rows_crc = 0
        self._offset = -1
        self._next_offset = 0
        self._max_timestamp = LONG_AGO
        self._fd = storage.open(path, create=True)
        self._size = storage.size(self._fd)
        # The header is cleared only in an existing file. A new file needs no write, so it can be created even on a full disk.
        if self._size:
            storage.write(self._fd, [bytes(ROWS_AT)], 0)
        if len(rows):
            counted = rows["max_timestamp"][rows["count"] > 0]
            newest = int(counted.max()) if len(counted) else LONG_AGO
            # Readers may read the file during this write, which is safe, because valid rows are overwritten with the same bytes.
            self.append(rows.tobytes(), int(rows["offset"][0]), int(rows["offset"][-1]) + int(rows["count"][-1]), newest)

    def append(self, data: bytes, offset: int, next_offset: int, max_timestamp: int) -> None:
        """Write the next rows of the index.

        Args:
            data: the encoded rows.
            offset, next_offset: offset of the first record in these rows, and offset after the last record in these rows.
            max_timestamp: largest timestamp of the records in these rows; `LONG_AGO` if these rows have no records.
        """
        if self._offset < 0:
            self._offset = offset
        self._next_offset = next_offset
        self._max_timestamp = max(self._max_timestamp, max_timestamp)
        # This write needs no sync, because rows contain CRCs and can be rebuilt from the frames.
        self._grow(len(data))
        self._storage.write(self._fd, [data], ROWS_AT + self.count * ROW_SIZE)
        self.count += len(data) // ROW_SIZE
        self.rows_crc = crc32c(data, self.rows_crc)

    def _grow(self, more: int) -> None:
        """Allocate disk space for `more` bytes of rows and for another row.

        The space is allocated before the rows are written, so that a full disk leaves the index unchanged.
        """
        needed = ROWS_AT + self.count * ROW_SIZE + more
        if needed + ROW_SIZE > self._size:
            size = (needed // _GROW_BYTES + 1) * _GROW_BYTES
            self._storage.allocate(self._fd, size)
            self._size = size

    def seal(self) -> None:
        """Write the header and make the file durable. Callers seal the index when every position of the segment is decided."""
        sealed = Sealed(self.first, self.count, max(self._offset, 0), self._next_offset, self._max_timestamp, self.rows_crc)
        # Unused allocated blocks are freed, because a sealed index gets no more rows.
        self._storage.truncate(self._fd, ROWS_AT + self.count * ROW_SIZE)
        self._storage.write(self._fd, [sealed.to_bytes()], 0)
        # The rows must be durable, because the next start begins at the snapshot after this segment and never writes them again.
        self._storage.make_durable(self._fd)
        self._storage.make_names_durable(os.path.dirname(self._path))

    def close(self) -> None:
        """Close the file."""
        self._storage.close(self._fd)


def map_rows(path: str) -> tuple[Buffer, Rows] | None:
    """Map an index file, and return the bytes of its header and an array of all rows up to the end of the file.

    The last rows of the array may be allocated but not written yet, so the caller must know the number of valid rows. Return None
    if the file has no rows or is unreadable. In that case, the caller can rebuild the rows from the frames.
    """
    try:
        fd = with_descriptor_wait(lambda: open_file(path, os.O_RDONLY))
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size < ROWS_AT + ROW_SIZE:
            return None
        mapped = map_file(fd, size)
    finally:
        os.close(fd)
    try:
        # The file is read explicitly, because at a bad sector, an access to the mapping would end the process with SIGBUS.
        populate(mapped, 0, size)
    except OSError:
        return None
    view = memoryview(mapped)
    return view[:ROWS_AT], np.frombuffer(view, dtype=ROW, count=(size - ROWS_AT) // ROW_SIZE, offset=ROWS_AT)


def index_sealed(path: str, first: int) -> Sealed | None:
    """Return the header of a sealed index whose rows match the row count and the CRC in the header; None for any other file."""
    mapped = map_rows(path)
    if mapped is None:
        return None
    sealed = read_sealed(mapped[0], first)
    if sealed is None or len(mapped[1]) < sealed.rows or crc_of_rows(mapped[1][: sealed.rows]) != sealed.rows_crc:
        return None
    return sealed
