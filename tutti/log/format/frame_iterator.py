"""Going along the frames of a segment: as far as the chain holds.

Nothing is believed before its CRC was seen: lengths of a frame come from a header that continues the chain. A header that does, and
is of a version or kind that is not known, was written by a newer release: that is neither torn nor damaged.
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
from tutti.runtime.fsync import open_file
from tutti.runtime.reserved_fds import patiently

AHEAD_BYTES = 64 << 10  # read in at once for headers: more would read bodies that nobody looks at
_AROUND_BYTES = 2 << 20  # the kernel maps so much around a page that is touched (a large folio): all of it is let go, or would stay
_BEHIND_BYTES = 4 << 20  # looked at and not needed any more, before it is let go
_FIXED = struct.Struct("<4sBBHQQ")
_LENGTHS = struct.Struct("<HI")
_CRC = struct.Struct("<I")


class Stop(enum.Enum):
    """Why a walk ended."""

    LAST = "the last position asked for"
    FULL = "the end of the segment"
    CLEAN = "an empty place"
    HEADER = "a bad header"
    BODY = "a bad body"
    UNREADABLE = "bytes that the device cannot read"


class Abort(NamedTuple):
    """An ABORT frame: voids the batches of (producer, epoch) from `start` up to its own position `end`."""

    start: int
    end: int
    producer: int
    epoch: int


def abort_of(frame: Frame) -> Abort:
    """What an ABORT frame voids."""
    return Abort(decode_body(AbortBody, frame.body).position, frame.position, frame.producer, frame.epoch)


class SegmentMap:
    """A segment, mapped for reading."""

    def __init__(self, path: str, first: int) -> None:
        """Map the file of the segment whose first position is `first`.

        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        self.first = first
        fd = patiently(lambda: open_file(path, os.O_RDONLY))
        try:
            self.size = os.fstat(fd).st_size
            self.map = map_file(fd, self.size) if self.size else None
        finally:
            os.close(fd)
        self.view = memoryview(self.map) if self.map is not None else memoryview(b"")
        self.buffer = pa.py_buffer(self.view)

    def frame(self, place: int, there: int = 0) -> Frame:
        """The frame that an index says stands at `place`; its body is a view of the segment, to be populated by who looks into it.
        `there`: up to where it was populated a moment ago.

        Raises:
            Damaged: none stands there, the file ends before it does, or the device cannot read its header.
        """
        if place + HEADER_SIZE > there:
            self.populate(place, place + HEADER_SIZE)
        try:
            if place + HEADER_SIZE <= self.size:
                end = place + HEADER_SIZE + progress_length_at(self.view, place)
                if end > max(there, place + HEADER_SIZE):
                    self.populate(place, end)
            return decode_frame(self.view, place)
        except FormatError as error:
            raise Damaged(f"{self.path} is damaged at byte {place}: {error}; restore the file") from error

    def will_need(self, start: int, end: int) -> None:
        """Have the device read the bytes, and nothing around them; `populate` waits for them."""
        if self.map is not None and (span := self._pages(start, end)):
            advise(self.map, *span)

    def populate(self, start: int, end: int) -> None:
        """Read the bytes in; a walk or a scan that goes on afterwards finds them in memory.

        Raises:
            Damaged: the device cannot read them.
        """
        if self.map is None or not (span := self._pages(start, end)):
            return
        try:
            populate(self.map, *span)
        except OSError as error:
            raise Damaged(f"{self.path} cannot be read between bytes {start} and {end}: {error.strerror}") from error

    def _pages(self, start: int, end: int) -> tuple[int, int] | None:
        """Where the first of the pages begins, and bytes from there; None where the file ends before."""
        start -= start % mmap.PAGESIZE
        length = min(end, self.size) - start
        return (start, length) if length > 0 else None

    def readable(self, start: int, end: int, least: int) -> int:
        """Read bytes in up to `end`, or to `least` where that cannot be; up to where they can be read, 0 if not that far."""
        for upto in (end, least):
            try:
                self.populate(start, upto)
            except Damaged:
                continue
            return upto
        return 0

    def release(self, start: int, end: int) -> None:
        """The bytes are not needed soon: they leave this process's memory (the page cache keeps them as it likes)."""
        if self.map is None:
            return
        start -= start % _AROUND_BYTES
        end = min(end + -end % _AROUND_BYTES, len(self.map))
        if start < end:
            self.map.madvise(mmap.MADV_DONTNEED, start, end - start)


class Walk:
    """What a walk found.

    Attributes:
        first: position of the first frame.
        places: where each good frame stands.
        place: where the walk stopped; `position` would be there.
        chain: header CRC of the last good frame.
        stop: why it stopped.
    """

    __slots__ = ("chain", "first", "place", "places", "segment", "stop")

    def __init__(self, segment: SegmentMap, first: int, place: int, chain: int) -> None:
        """A walk that is about to start at `place`."""
        self.segment = segment
        self.first = first
        self.place = place
        self.chain = chain
        self.places = array("Q")
        self.stop = Stop.LAST

    @property
    def position(self) -> int:
        """The first position that was not found."""
        return self.first + len(self.places)

    def frame(self, position: int) -> Frame:
        """A frame that was found; its body is a view of the segment."""
        return decode_frame(self.segment.view, self.places[position - self.first])

    def headers(self) -> npt.NDArray[np.void]:
        """The headers of all frames found, copied together."""
        data = np.frombuffer(self.segment.view, dtype=np.uint8)
        places = np.frombuffer(self.places, dtype=np.uint64) if self.places else np.empty(0, np.uint64)
        gathered = data[places.astype(np.int64)[:, None] + np.arange(HEADER_SIZE)]
        return np.ascontiguousarray(gathered).view(HEADER_DTYPE).reshape(-1)

    def aborts(self, headers: npt.NDArray[np.void]) -> list[Abort]:
        """The ABORTs among the first `headers` of the frames found."""
        return [abort_of(self.frame(self.first + int(at))) for at in np.flatnonzero(headers["kind"] == Kind.ABORT)]

    def rows(self, headers: npt.NDArray[np.void], aborts: Sequence[Abort], offset: int, tick: int) -> Rows:
        """Index rows of the first frames found, those of `headers`.

        Args:
            headers: of these frames.
            aborts: those of the decided log that may void some of them.
            offset, tick: next offset and last tick's number before the first.
        """
        ticks = [
            (int(at), decode_body(TickBody, self.frame(self.first + int(at)).body))
            for at in np.flatnonzero(headers["kind"] == Kind.TICK)
        ]
        places = np.frombuffer(self.places, dtype=np.uint64) if self.places else np.empty(0, np.uint64)
        ends = np.append(places[1:], np.uint64(self.place))[: len(headers)]
        places = places[: len(headers)]
        return build_rows(
            headers,
            places,
            (ends - places).astype(np.uint32),
            ticks,
            aborted=voided(headers, aborts),
            offset=offset,
            tick=tick,
        )


def voided(headers: npt.NDArray[np.void], aborts: Sequence[Abort]) -> frozenset[int]:
    """Positions of the batches among `headers` that an ABORT voids (design, section 4.4)."""
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


def walk(
    segment: SegmentMap, place: int, position: int, chain: int, *, last: int | None = None, bodies_from: int | None = 0
) -> Walk:
    """Walk from `place`, where `position` stands after a frame whose header CRC is `chain`.

    Args:
        last: stop after this position; None goes on as far as the chain holds.
        bodies_from: check the bodies of batches from this position on, and of all other kinds; None checks none.

    Raises:
        WrongDirectory: a frame is whole and of a version or kind that this release does not know.
    """
    found = Walk(segment, position, place, chain)
    view, size, places = segment.view, segment.size, found.places
    extend = google_crc32c.extend
    populated = kept = place
    while True:
        if last is not None and position > last:
            found.stop = Stop.LAST
            break
        if place + HEADER_SIZE > size:
            found.stop = Stop.FULL
            break
        if place + HEADER_SIZE > populated:
            populated = segment.readable(place, place + AHEAD_BYTES, place + HEADER_SIZE)
            if not populated:
                found.stop = Stop.UNREADABLE
                break
            if place - kept > _BEHIND_BYTES:
                segment.release(kept, place)
                kept = place
        head = bytes(view[place : place + HEADER_SIZE])
        magic, version, kind, _, _, named = _FIXED.unpack_from(head)
        crc = extend(chain, head[:CRC_AT])
        if magic != MAGIC or crc != _CRC.unpack_from(head, CRC_AT)[0] or named != position:
            found.stop = Stop.CLEAN if head == TERMINATOR else Stop.HEADER
            break
        if version != VERSION or kind not in KINDS:
            raise WrongDirectory(
                f"{segment.path}, byte {place}: position {position} is a frame of version {version} and kind {kind}, which this "
                f"release does not know (version {VERSION}); use the release that wrote it"
            )
        progress_length, body_length = _LENGTHS.unpack_from(head, 70)
        end = place + HEADER_SIZE + padded(progress_length) + padded(body_length)
        if end > size:
            found.stop = Stop.HEADER
            break
        if bodies_from is not None and (kind != Kind.BATCH or position >= bodies_from) and not _payload_good(segment, place, end):
            found.stop = Stop.BODY
            break
        places.append(place)
        place, position, chain = end, position + 1, crc
    found.place, found.chain = place, chain
    return found


def _payload_good(segment: SegmentMap, place: int, end: int) -> bool:
    try:
        segment.populate(place, end)
        check_payload(decode_frame(segment.view, place))
    except Damaged:
        return False
    return True


def padding_clean(view: memoryview, place: int, frame: Frame) -> bool:
    """Whether the padding of the frame at `place` is zeros, as it was written: no CRC covers it, and it carries nothing."""
    progress_at = place + HEADER_SIZE
    body_at = progress_at + padded(len(frame.progress))
    return not (
        any(view[progress_at + len(frame.progress) : body_at])
        or any(view[body_at + frame.body_length : body_at + padded(frame.body_length)])
    )
