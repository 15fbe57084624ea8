"""Frames by position, decided or not, for other members: read as they stand on the disk, and believed only as far as they are good.

They are read and not mapped: what another member waits for may be cut meanwhile, and a bad sector is an error here and no signal.
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
from tutti.log.format.frame_iterator import Abort, abort_of
from tutti.log.read.catalog import Catalog
from tutti.log.read.segment_view import Upto
from tutti_gateway.core import limits
from tutti_gateway.log.write.segment import Segment

_ABORT = int(Kind.ABORT)


class Fetcher:
    """Reads a log beside its writer, in the writer's thread."""

    def __init__(self, directory: str, storage: Storage, segments: Sequence[Segment], undecided: Sequence[Frame]) -> None:
        """Prepare; `segments` are the writer's, which hold undecided frames, and these are the frames that they hold now."""
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._aborts: deque[Frame] = deque()  # that are not decided
        self._catalog: Catalog | None = None
        self.wrote(undecided)

    def wrote(self, frames: Sequence[Frame]) -> None:
        """These follow in the log."""
        for frame in frames:
            if frame.kind == _ABORT:
                self._aborts.append(frame)

    def decided(self, position: int) -> None:
        """Everything up to a position is decided."""
        while self._aborts and self._aborts[0].position <= position:
            self._aborts.popleft()

    def cut(self, position: int) -> None:
        """The log was cut behind a position."""
        while self._aborts and self._aborts[-1].position > position:
            self._aborts.pop()
        self._catalog = None  # another segment may come under a name that it knows

    def read(self, first: int, last: int, upto: Upto) -> tuple[tuple[Frame, ...], int]:
        """The frames `first` to `last`, which are in the log, as far as they are good (chain and payload) and in one segment, up to
        `limits.FETCH_BYTES`; a larger one comes alone. None if the first cannot be read.

        With them comes the last of their positions that no ABORT up to `last` reaches over; `first` - 1 if there is none, or if
        that cannot be told. `upto`: the last position that is decided, and the last that has its row.
        """
        try:
            frames = self._frames(first, last, upto)
            return frames, self._stop(frames, first, last, upto)
        except (OSError, FormatError):
            return (), first - 1  # whoever asks looks elsewhere

    def _frames(self, first: int, last: int, upto: Upto) -> tuple[Frame, ...]:
        catalog = self._known()
        at = bisect_right(catalog.firsts, first) - 1
        if at < 0 or first > last:
            return ()
        segment = catalog.firsts[at]
        fd = self._storage.open(segment_path(self._directory, segment))
        try:
            if first == segment:
                place, chain = FRAMES_AT, read_header(self._directory, segment).chain
            else:
                place = self._place(first - 1, upto)
                data = self._storage.read(fd, HEADER_SIZE, place)
                place, chain = place + size_at(data, 0), decode_header(data).header_crc
            return read_frames(self._storage, fd, place, chain, first, last)
        finally:
            self._storage.close(fd)

    def _known(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(self._directory)
        self._catalog.refresh()
        return self._catalog

    def _place(self, position: int, upto: Upto) -> int:
        """Where in its segment a position stands."""
        if position <= upto.position:
            for _, rows in self._known().positions(position, position, upto):
                return int(rows["place"][0])
        for segment in reversed(self._segments):
            if segment.first <= position and (place := segment.place_of(position, upto.position)) is not None:
                return place
        raise FormatError(f"position {position} is not in the log")

    def _stop(self, frames: Sequence[Frame], first: int, last: int, upto: Upto) -> int:
        stop = first + len(frames) - 1
        aborts = [abort_of(frame) for frame in frames if frame.kind == Kind.ABORT]
        try:
            aborts += self._aborts_behind(stop, last, upto)
        except (OSError, FormatError):
            return first - 1
        for abort in reversed(aborts):
            if abort.start <= stop < abort.end:
                stop = abort.start - 1
        return max(stop, first - 1)

    def _aborts_behind(self, position: int, last: int, upto: Upto) -> list[Abort]:
        """ABORTs behind a position, in order: one that reaches over it stands no further away than frames may be undecided."""
        last = min(last, position + common_limits.UNDECIDED_FRAMES_MAX)
        found: list[Abort] = []
        for view, rows in self._known().positions(position + 1, min(last, upto.position), upto):
            found += [abort_of(view.frame(row)) for row in rows[rows["kind"] == Kind.ABORT]]
        return found + [abort_of(frame) for frame in self._aborts if max(position, upto.position) < frame.position <= last]


def read_frames(storage: Storage, fd: int, place: int, chain: int, position: int, last: int) -> tuple[Frame, ...]:
    """Frames of a segment from `place` on, where `position` stands behind a frame whose chain value is `chain`: those that are
    good, chain and payload, up to `limits.FETCH_BYTES`; a larger one comes alone. None if the first is not.
    """
    data, at = readable(storage, fd, limits.FETCH_BYTES, place), 0
    frames: list[Frame] = []
    while position <= last and at + HEADER_SIZE <= len(data):
        try:
            header = decode_header(data, at)
            if header.position != position or not chained(header, chain):
                break
            size = size_at(data, at)
            if at + size > len(data):
                if frames:
                    break
                data = readable(storage, fd, size, place)
            frame = decode_frame(data, at)
            check_payload(frame)
        except FormatError:
            break
        frames.append(frame)
        at, position, chain = at + size, position + 1, frame.header_crc
    return tuple(frames)


def readable(storage: Storage, fd: int, size: int, at: int) -> bytes:
    """What can be read from `at` on: less than `size` where the file ends, or where a sector cannot be read."""
    try:
        return storage.read(fd, size, at)
    except OSError:
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


def size_at(data: bytes, at: int) -> int:
    """Bytes of the frame whose header stands at `at`."""
    return HEADER_SIZE + padded(progress_length_at(data, at)) + padded(decode_header(data, at).body_length)
