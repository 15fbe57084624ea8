"""Frame iterator: scans the frames of a segment as far as the CRC chain is intact.

The CRC of each header continues the chain. The scan checks this CRC before it uses a length from the header. If a header has a
valid CRC but an unknown version or kind, a newer release wrote it. Such a header is neither torn nor corrupt, so the scan raises an
error.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tutti.data.frames.bodies import AbortBody, TickBody, decode_body
from tutti.data.frames.frame import (
    CRC_AT,
    HEADER_DTYPE,
    HEADER_SIZE,
    KINDS,
    MAGIC,
    TERMINATOR,
    VERSION,
    Frame,
    Kind,
    check_payload,
    decode_frame,
    padded,
    progress_length_at,
)
from tutti.errors import Damaged, FormatError, WrongDirectory
from tutti.log.files.mapped_pages import advise, map_file, populate
from tutti.log.format.index import Rows, build_rows
from tutti.runtime.durable_files import open_file
from tutti.runtime.reserved_fds import with_descriptor_wait

AHEAD_BYTES = 64 << 10  # number of bytes that a scan reads ahead; with more, it would mostly read bodies that it skips
_FOLIO_BYTES = 2 << 20  # size of a large page-cache folio; the kernel frees a mapped folio only when the whole folio is released
_RELEASE_BYTES = 4 << 20  # number of scanned bytes after which the scan releases their memory
_FIXED = struct.Struct("<4sBBHQQ")
_LENGTHS = struct.Struct("<HI")
_CRC = struct.Struct("<I")


class StopReason(enum.Enum):
    """Reason for the end of a scan."""

    LAST = "the last requested position"
    FULL = "the end of the segment"
    CLEAN = "unwritten zeros"
    HEADER = "a bad header"
    BODY = "a bad body"
    UNREADABLE = "bytes that the device cannot read"


class Abort(NamedTuple):
    """An ABORT frame, which voids the batches of (producer, epoch) from position `start` to `end`, the position of the ABORT."""

    start: int
    end: int
    producer: int
    epoch: int


def decode_abort(frame: Frame) -> Abort:
    """Decode an ABORT frame."""
    return Abort(decode_body(AbortBody, frame.body).position, frame.position, frame.producer, frame.epoch)


class SegmentMap:
    """A segment mapped for reading."""

    def __init__(self, path: str, first: int) -> None:
        """Map the segment file with first position `first`.

        Raises:
            OSError: the file cannot be opened.
        """
        self.path = path
        self.first = first
        fd = with_descriptor_wait(lambda: open_file(path, os.O_RDONLY))
        try:
            self.size = os.fstat(fd).st_size
            self.map = map_file(fd, self.size) if self.size else None
        finally:
            # The mapping does not need this descriptor, and keeps the file readable even after a rename or a removal.
            os.close(fd)
        self.view = memoryview(self.map) if self.map is not None else memoryview(b"")
        self.buffer = pa.py_buffer(self.view)

    def frame(self, file_position: int, populated_to: int = 0) -> Frame:
        """Return the frame at byte `file_position`.

        The body of the frame is a view of the segment. Callers must populate the pages of the body before they read it.

        Args:
            file_position: byte at which the header of the frame begins.
            populated_to: end of the bytes that the caller has already read into memory; 0 if it has read none.

        Raises:
            Damaged: the bytes are not a frame, the file ends inside the frame, or the device cannot read the header.
        """
        # `populate` raises an error for a bad sector. Without it, an access to the mapping would end the process with SIGBUS.
        if file_position + HEADER_SIZE > populated_to:
            self.populate(file_position, file_position + HEADER_SIZE)
        try:
            if file_position + HEADER_SIZE <= self.size:
                end = file_position + HEADER_SIZE + progress_length_at(self.view, file_position)
                if end > max(populated_to, file_position + HEADER_SIZE):
                    self.populate(file_position, end)
            return decode_frame(self.view, file_position)
        except FormatError as error:
            raise Damaged(f"{self.path} is corrupt at byte {file_position}: {error}; restore the file") from error

    def prefetch(self, start: int, end: int) -> None:
        """Start to read the pages of these bytes in the background. A later `populate` waits for the end of this read."""
        if self.map is not None and (span := self._pages(start, end)):
            advise(self.map, *span)

    def populate(self, start: int, end: int) -> None:
        """Read the pages of these bytes into memory, and return when the read is complete.

        Raises:
            Damaged: the device cannot read the bytes.
        """
        if self.map is None or not (span := self._pages(start, end)):
            return
        try:
            populate(self.map, *span)
        except OSError as error:
            raise Damaged(f"{self.path} cannot be read between bytes {start} and {end}: {error.strerror}") from error

    def _pages(self, start: int, end: int) -> tuple[int, int] | None:
        """Extend a byte range to a page boundary, and return (start, length). Return None for a range after the end of the file."""
        start -= start % mmap.PAGESIZE
        length = min(end, self.size) - start
        return (start, length) if length > 0 else None

    def readable(self, start: int, end: int, least: int) -> int:
        """Read the bytes from `start` to `end` into memory. If the read fails, try the bytes from `start` to `least`.

        Return the end of the bytes in memory, or 0 if both reads fail.
        """
        for upto in (end, least):
            try:
                self.populate(start, upto)
            except Damaged:
                continue
            return upto
        return 0

    def release(self, start: int, end: int) -> None:
        """Release the memory of these bytes in this process. The page cache may keep the bytes."""
        if self.map is None:
            return
        # The range is extended to whole folios, because the kernel frees a folio only when the whole folio is released.
        start -= start % _FOLIO_BYTES
        end = min(end + -end % _FOLIO_BYTES, len(self.map))
        if start < end:
            self.map.madvise(mmap.MADV_DONTNEED, start, end - start)


class FrameScan:
    """Result of a scan over the frames of a segment.

    Attributes:
        first: position of the first scanned frame.
        file_positions: byte offset of each valid frame in the segment.
        file_position: byte offset at which the scan ended. The frame at `position` would begin there.
        chain: header CRC of the last valid frame.
        stop: reason why the scan ended.
    """

    __slots__ = ("chain", "file_position", "file_positions", "first", "segment", "stop")

    def __init__(self, segment: SegmentMap, first: int, file_position: int, chain: int) -> None:
        """Create an empty result for a scan from byte `file_position`."""
        self.segment = segment
        self.first = first
        self.file_position = file_position
        self.chain = chain
        self.file_positions = array("Q")
        self.stop = StopReason.LAST

    @property
    def position(self) -> int:
        """The position after the last valid frame."""
        return self.first + len(self.file_positions)

    def frame(self, position: int) -> Frame:
        """Return a scanned frame, whose body is a view of the segment."""
        return decode_frame(self.segment.view, self.file_positions[position - self.first])

    def headers(self) -> npt.NDArray[np.void]:
        """Return a copy of the headers of all scanned frames."""
        data = np.frombuffer(self.segment.view, dtype=np.uint8)
        file_positions = np.frombuffer(self.file_positions, dtype=np.uint64) if self.file_positions else np.empty(0, np.uint64)
        # The headers are copied into one array, because numpy needs elements at equal distances, but frames differ in size.
        gathered = data[file_positions.astype(np.int64)[:, None] + np.arange(HEADER_SIZE)]
        return np.ascontiguousarray(gathered).view(HEADER_DTYPE).reshape(-1)

    def aborts(self, headers: npt.NDArray[np.void]) -> list[Abort]:
        """Return the ABORT frames among the scanned frames with these headers.

        Args:
            headers: result of `headers`, or the leading part of it.
        """
        return [decode_abort(self.frame(self.first + int(at))) for at in np.flatnonzero(headers["kind"] == Kind.ABORT)]

    def rows(self, headers: npt.NDArray[np.void], aborts: Sequence[Abort], offset: int, tick: int) -> Rows:
        """Return the index rows of the scanned frames with these headers.

        Args:
            headers: result of `headers`, or the leading part of it.
            aborts: all decided ABORT frames that can void some of these frames.
            offset: offset of the first record in the scanned frames.
            tick: number of the last tick before the scanned frames.
        """
        ticks = [
            (int(at), decode_body(TickBody, self.frame(self.first + int(at)).body))
            for at in np.flatnonzero(headers["kind"] == Kind.TICK)
        ]
        file_positions = np.frombuffer(self.file_positions, dtype=np.uint64) if self.file_positions else np.empty(0, np.uint64)
        # Frames have no gaps between them, so the size of a frame is the distance to the next frame or to the end of the scan.
        ends = np.append(file_positions[1:], np.uint64(self.file_position))[: len(headers)]
        file_positions = file_positions[: len(headers)]
        return build_rows(
            headers,
            file_positions,
            (ends - file_positions).astype(np.uint32),
            ticks,
            aborted=void_positions(headers, aborts),
            offset=offset,
            tick=tick,
        )


def void_positions(headers: npt.NDArray[np.void], aborts: Sequence[Abort]) -> frozenset[int]:
    """Return the positions of the batches among `headers` that an ABORT voids (design, section 4.4)."""
    found: set[int] = set()
    for start, end, producer, epoch in aborts:
        hit = (
            (headers["kind"] == Kind.BATCH)
            & (headers["position"] >= start)
            & (headers["position"] < end)
            & (headers["producer"] == producer)
            & (headers["epoch"] == epoch)
        )
        found.update(int(position) for position in headers["position"][hit])
    return frozenset(found)


def scan_frames(
    segment: SegmentMap, file_position: int, position: int, chain: int, *, last: int | None = None, bodies_from: int | None = 0
) -> FrameScan:
    """Scan the frames of a segment from byte `file_position` on.

    Args:
        position: position that the first frame must have.
        chain: header CRC of the frame before the first frame.
        last: position after which the scan stops. With None, the scan stops where the chain breaks.
        bodies_from: first position at which the body of a batch is checked. Bodies of other kinds are always checked. With None, no
            body is checked.

    Raises:
        WrongDirectory: a valid header has a version or kind that this release does not support.
    """
    found = FrameScan(segment, position, file_position, chain)
    view, size, file_positions = segment.view, segment.size, found.file_positions
    extend = google_crc32c.extend
    populated = released = file_position
    while True:
        if last is not None and position > last:
            found.stop = StopReason.LAST
            break
        if file_position + HEADER_SIZE > size:
            found.stop = StopReason.FULL
            break
        if file_position + HEADER_SIZE > populated:
            populated = segment.readable(file_position, file_position + AHEAD_BYTES, file_position + HEADER_SIZE)
            if not populated:
                found.stop = StopReason.UNREADABLE
                break
            if file_position - released > _RELEASE_BYTES:
                segment.release(released, file_position)
                released = file_position
        head = bytes(view[file_position : file_position + HEADER_SIZE])
        magic, version, kind, _, _, named = _FIXED.unpack_from(head)
        # The CRC of a header also covers the CRC of the previous header, so a frame is valid only directly after its predecessor.
        crc = extend(chain, head[:CRC_AT])
        if magic != MAGIC or crc != _CRC.unpack_from(head, CRC_AT)[0] or named != position:
            # Unwritten space and terminators consist of zeros, so other bytes belong to a torn or a corrupt header.
            found.stop = StopReason.CLEAN if head == TERMINATOR else StopReason.HEADER
            break
        # The CRC is valid, so a newer release wrote this frame. An error prevents that a start truncates it as a torn write.
        if version != VERSION or kind not in KINDS:
            raise WrongDirectory(
                f"{segment.path}, byte {file_position}: the frame at position {position} has version {version} and kind {kind}, "
                f"which this release does not support (version {VERSION}): use the release that wrote it"
            )
        # The lengths in the header are correct, because the CRC of the header is valid.
        progress_length, body_length = _LENGTHS.unpack_from(head, 70)
        end = file_position + HEADER_SIZE + padded(progress_length) + padded(body_length)
        # A frame beyond the end of the segment is invalid, because the writer never splits a frame between two segments.
        if end > size:
            found.stop = StopReason.HEADER
            break
        # The body is checked separately, because a torn write may leave a complete header without its body.
        if (
            bodies_from is not None
            and (kind != Kind.BATCH or position >= bodies_from)
            and not _payload_good(segment, file_position, end)
        ):
            found.stop = StopReason.BODY
            break
        file_positions.append(file_position)
        file_position, position, chain = end, position + 1, crc
    found.file_position, found.chain = file_position, chain
    return found


def _payload_good(segment: SegmentMap, file_position: int, end: int) -> bool:
    try:
        segment.populate(file_position, end)
        check_payload(decode_frame(segment.view, file_position))
    except Damaged:
        return False
    return True


def padding_clean(view: memoryview, file_position: int, frame: Frame) -> bool:
    """True if the padding of a frame consists of zeros. No CRC covers the padding, because it contains no data."""
    progress_at = file_position + HEADER_SIZE
    body_at = progress_at + padded(len(frame.progress))
    return not (
        any(view[progress_at + len(frame.progress) : body_at])
        or any(view[body_at + frame.body_length : body_at + padded(frame.body_length)])
    )
