"""Reads frames by position for other members, and returns only frames with a valid chain and payload, decided or undecided.

This module reads files and does not map them, for two reasons: a truncation may remove a frame during the read, and a bad sector
must raise an error instead of a signal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from tutti import limits as common_limits
from tutti.data.frames.frame import (
    HEADER_SIZE,
    Frame,
    Kind,
    chained,
    check_payload,
    decode_frame,
    decode_header,
    padded,
    progress_length_at,
)
from tutti.errors import FormatError
from tutti.log.files.layout import FRAMES_AT, PAGE, read_header, segment_path
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import Abort, decode_abort
from tutti.log.read.segment_catalog import Catalog
from tutti.log.read.segment_view import ReadLimit
from tutti_gateway.core import limits
from tutti_gateway.log.write.segment import Segment

_ABORT = int(Kind.ABORT)


class FrameFetcher:
    """Reads frames from a log that a writer in the same thread extends."""

    def __init__(self, directory: str, storage: Storage, segments: Sequence[Segment], undecided: Sequence[Frame]) -> None:
        """Create a fetcher.

        Args:
            segments: the writer's list of segments that hold undecided frames.
            undecided: the undecided frames in those segments at the time of this call.
        """
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._aborts: deque[Frame] = deque()  # undecided ABORT frames
        self._catalog: Catalog | None = None
        self.appended(undecided)

    def appended(self, frames: Sequence[Frame]) -> None:
        """Record frames that were appended to the log."""
        for frame in frames:
            if frame.kind == _ABORT:
                self._aborts.append(frame)

    def decided(self, position: int) -> None:
        """Record that everything up to `position` is decided."""
        while self._aborts and self._aborts[0].position <= position:
            self._aborts.popleft()

    def truncated(self, position: int) -> None:
        """Record that the log was truncated after `position`."""
        while self._aborts and self._aborts[-1].position > position:
            self._aborts.pop()
        self._catalog = None  # the catalog may have mapped a removed segment, whose name a new segment can get

    def read(self, first: int, last: int, upto: ReadLimit) -> tuple[tuple[Frame, ...], int]:
        """Return valid frames from `first` on, and the last final position among them.

        A position is final if no ABORT at or below `last` voids its frame. The frames come from one segment and have at most
        `limits.FETCH_BYTES` in total; a larger frame is returned alone. If the first frame cannot be read, the tuple is empty. If
        no position is final, or if the ABORTs cannot be read, the second value is `first` - 1.

        Args:
            first, last: range of positions; `last` is included.
            upto: the last decided position, and the last position with an index row.
        """
        try:
            frames = self._frames(first, last, upto)
            return frames, self._final_position(frames, first, last, upto)
        except (OSError, FormatError):
            return (), first - 1  # the requester asks another member

    def _frames(self, first: int, last: int, upto: ReadLimit) -> tuple[Frame, ...]:
        catalog = self._current_catalog()
        at = bisect_right(catalog.firsts, first) - 1
        if at < 0 or first > last:
            return ()
        segment = catalog.firsts[at]
        fd = self._storage.open(segment_path(self._directory, segment))
        try:
            # The chain value before the first frame comes from the segment header, or from the header of the previous frame.
            if first == segment:
                file_position, chain = FRAMES_AT, read_header(self._directory, segment).chain
            else:
                file_position = self._file_position(first - 1, upto)
                data = self._storage.read(fd, HEADER_SIZE, file_position)
                file_position, chain = file_position + frame_size_at(data, 0), decode_header(data).header_crc
            return read_frames(self._storage, fd, file_position, chain, first, last)
        finally:
            self._storage.close(fd)

    def _current_catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(self._directory)
        self._catalog.refresh()
        return self._catalog

    def _file_position(self, position: int, upto: ReadLimit) -> int:
        """Return the file position of a frame in its segment."""
        if position <= upto.position:
            for _, rows in self._current_catalog().positions(position, position, upto):
                return int(rows["file_position"][0])
        for segment in reversed(self._segments):
            if segment.first <= position and (file_position := segment.file_position_of(position, upto.position)) is not None:
                return file_position
        raise FormatError(f"position {position} is not in the log")

    def _final_position(self, frames: Sequence[Frame], first: int, last: int, upto: ReadLimit) -> int:
        stop = first + len(frames) - 1
        aborts = [decode_abort(frame) for frame in frames if frame.kind == Kind.ABORT]
        try:
            aborts += self._aborts_after(stop, last, upto)
        except (OSError, FormatError):
            return first - 1
        for abort in reversed(aborts):
            # An ABORT may void any batch at or after `abort.start`, so only the frames before that position are final.
            if abort.start <= stop < abort.end:
                stop = abort.start - 1
        return max(stop, first - 1)

    def _aborts_after(self, position: int, last: int, upto: ReadLimit) -> list[Abort]:
        """Return the ABORTs after `position`, in order, as far as they can void a frame at or before `position`."""
        # An ABORT voids only batches that are undecided, and the number of undecided frames has a limit.
        last = min(last, position + common_limits.UNDECIDED_FRAMES_MAX)
        found: list[Abort] = []
        for view, rows in self._current_catalog().positions(position + 1, min(last, upto.position), upto):
            found += [decode_abort(view.frame(row)) for row in rows[rows["kind"] == Kind.ABORT]]
        # Undecided ABORTs have no index rows yet.
        return found + [decode_abort(frame) for frame in self._aborts if max(position, upto.position) < frame.position <= last]


def read_frames(storage: Storage, fd: int, file_position: int, chain: int, position: int, last: int) -> tuple[Frame, ...]:
    """Return consecutive valid frames of a segment, up to `limits.FETCH_BYTES`; a larger frame is returned alone.

    Args:
        file_position: file position of the first frame.
        chain: chain value of the frame before it.
        position: position of the first frame.
        last: last position to return.
    """
    data, at = read_available(storage, fd, limits.FETCH_BYTES, file_position), 0
    frames: list[Frame] = []
    while position <= last and at + HEADER_SIZE <= len(data):
        try:
            header = decode_header(data, at)
            if header.position != position or not chained(header, chain):
                break
            size = frame_size_at(data, at)
            if at + size > len(data):
                if frames:
                    break
                # A frame above `limits.FETCH_BYTES` never fits into an answer with other frames, so it is returned alone.
                data = read_available(storage, fd, size, file_position)
            frame = decode_frame(data, at)
            check_payload(frame)
        except FormatError:
            break
        frames.append(frame)
        at, position, chain = at + size, position + 1, frame.header_crc
    return tuple(frames)


def read_available(storage: Storage, fd: int, size: int, at: int) -> bytes:
    """Read up to `size` bytes of a file from byte `at` on. The result ends earlier at the end of the file or at a bad sector."""
    try:
        return storage.read(fd, size, at)
    except OSError:
        # A read across a bad sector returns nothing, so the pages before the bad sector are read one by one.
        parts: list[bytes] = []
        while size > 0:
            try:
                part = storage.read(fd, min(size, PAGE - at % PAGE), at)
            except OSError:
                break
            if not part:
                break
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return b"".join(parts)


def frame_size_at(data: bytes, at: int) -> int:
    """Return the size, in bytes, of the frame whose header begins at `at`."""
    return HEADER_SIZE + padded(progress_length_at(data, at)) + padded(decode_header(data, at).body_length)
