"""Scrubber: reads the whole decided log in the background, finds corrupt frames, and rewrites them from a peer's copy (design,
section 6).

Disks lose data: bits flip, sectors become unreadable, and files disappear. Other gateways hold the same decided frames, so this
gateway fetches the frames of a corrupt range from one of them, and the scrubber writes them in place. The fetched frames must
continue the chain before the corrupt range and fit into the range, and the frame after the range must continue the chain of the
fetched frames. Only the original bytes pass these checks. If a crash interrupts the write, the range is still corrupt, and the next
scrub repairs it again. Segment headers, indexes, snapshots and missing files are rebuilt from other data.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from tutti.data.frames.frame import HEADER_SIZE, Frame, chained, check_payload, decode_frame, decode_header
from tutti.errors import Damaged, FormatError, OffsetOutOfRange, invariant
from tutti.log.files.layout import FRAMES_AT, LOG, PAGE, SegmentHeader, index_path, list_positions, read_header, segment_path
from tutti.log.files.log_start import read_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.index import LONG_AGO, IndexWriter, Rows, index_sealed, no_rows
from tutti.log.format.snapshot import read_snapshot
from tutti.log.read.segment_catalog import Catalog
from tutti.log.read.segment_view import ReadLimit, SegmentView
from tutti_gateway.core import limits
from tutti_gateway.log.upkeep.quarantine import remove_older
from tutti_gateway.log.upkeep.snapshot_scrubber import SnapshotScrubber
from tutti_gateway.log.write.frame_fetch import read_frames
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.segment import Segment

_NEW = "mending.tmp"


class CorruptRange(NamedTuple):
    """A range of decided frames that cannot be read.

    Attributes:
        first, last: first and last position of the range.
        file_position: file position of the range's first frame in its segment.
        chain: chain value of the frame before the range.
        end: file position after the last frame of the range; 0 if unknown.
        following: the valid frame directly after the range, or None if it is unknown.
        after: chain value that the last frame of the range must have, or None if unknown.
    """

    first: int
    last: int
    file_position: int
    chain: int
    end: int = 0
    following: Frame | None = None
    after: int | None = None


class _ScrubPosition(NamedTuple):
    """The position at which the scrub continues.

    Attributes:
        segment: first position of the segment.
        position: position of the next frame to check.
        file_position: file position of the next frame in the segment.
        chain: chain value of the frame before the next frame.
    """

    segment: int
    position: int
    file_position: int
    chain: int


class LogScrubber:
    """Checks and repairs the decided log. The writer's thread owns the scrubber.

    Attributes:
        lost: the corrupt range to fetch from another gateway, or None if no corruption is known.
        message: message for the operator about the range `lost`; empty if there is none.
        found: number of corruptions found in this run of the gateway.
        repaired: number of frames and segment headers rewritten in this run of the gateway.
        rounds: number of complete scrubs of the log in this run of the gateway.
        snapshots: scrubber of the log's snapshots.
    """

    def __init__(
        self,
        directory: str,
        storage: Storage,
        options: LogOptions,
        segments: Sequence[Segment],
        indexer: Indexer,
        translating: Callable[[str], AbstractContextManager[None]],
        remap_readers: Callable[[], None],
    ) -> None:
        """Create a scrubber.

        Args:
            options: options of the log, which determine the size of segments that the scrubber creates.
            segments: the writer's list of segments that hold undecided frames.
            indexer: the writer's indexer, which has the decided end of the log.
            translating: context manager that converts system errors to errors of the log.
            remap_readers: function to call when readers must map the files of the log again.
        """
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._indexer = indexer
        self._segment_bytes = options.segment_bytes
        self._translating = translating
        self._remap_readers = remap_readers
        self.snapshots = SnapshotScrubber(directory, storage, translating)
        self._firsts: list[int] = []
        self._at: _ScrubPosition | None = None
        self._suspects: list[int] = []
        self._scrub_all = False  # True if the whole log must be scrubbed soon
        self._lane = options.lane
        # time at which the round began (s since 1970; 0 if the round skips a part of the log), and the value of `found` then
        self._round_start = (0.0, 0)
        self.lost: CorruptRange | None = None
        self.message = ""
        self.found = self.repaired = self.rounds = 0

    @property
    def urgent(self) -> bool:
        """True if a read has failed in a part that is not scrubbed yet; False while a corrupt range waits for fetched frames."""
        return self.lost is None and (bool(self._suspects) or self._scrub_all)

    @property
    def in_round(self) -> bool:
        """True if a scrub round is in progress."""
        return self._at is not None

    def suspect_all(self) -> None:
        """Plan a scrub of the whole log, because a read failed at an unknown position."""
        self._scrub_all = True
        self._round_start = (0.0, 0)  # the failed read may concern a part that the current round has already passed
        if self.lost is None:
            self._at = None

    def suspect(self, position: int) -> None:
        """Plan a scrub of the segment that contains `position`, because a read of that position failed."""
        if (
            0 < position <= self._indexer.indexed
            and len(self._suspects) < limits.SUSPECT_POSITIONS_MAX
            and position not in self._suspects
        ):
            self._suspects.append(position)

    def scrub(self) -> bool:
        """Scrub the next piece, unless a corrupt range is still unrepaired. Return True if the attribute `lost` changed.

        Raises:
            DiskFailed, DiskFull: a rebuilt file could not be written.
        """
        # A scrub cannot skip a corrupt range, because the check of a frame needs the chain value of the previous frame.
        if self.lost is not None:
            return self._drop_if_removed()
        at = self._next_suspect() or self._at or self._begin_round()
        if at is not None:
            self._step(at)
        else:
            self._scrub_all = False
        return self.lost is not None

    def _step(self, at: _ScrubPosition) -> None:
        try:
            self._at = self._scrub_piece(at)
        except FileNotFoundError:
            self._at = None  # the next round lists the files again, because a trim or a truncation removed this one

    def _drop_if_removed(self) -> bool:
        """Drop the corrupt range if it was trimmed or if its file no longer exists. Return True if the range was dropped."""
        lost, at = self.lost, self._at
        if lost is None or at is None:
            return False
        if lost.last >= read_start(self._directory).first and os.path.exists(segment_path(self._directory, at.segment)):
            return False
        self.lost, self.message, self._at = None, "", None
        return True

    def _next_suspect(self) -> _ScrubPosition | None:
        """Return the start of the next segment in which a read has failed, or None. A scrub from there ends the current round."""
        while self._suspects:
            self._firsts = self._first_positions()
            index = bisect_right(self._firsts, self._suspects.pop(0)) - 1
            if index >= 0:
                first = self._firsts[index]
                # A round that jumps to a suspected segment skips a part of the log, so its end must not remove quarantine files.
                self._round_start = (0.0, 0)
                self._suspects = [one for one in self._suspects if bisect_right(self._firsts, one) - 1 != index]
                return self._begin_segment(first, None)
        return None

    def _begin_round(self) -> _ScrubPosition | None:
        """Return the position at which a new scrub round starts, or None if nothing is decided yet."""
        self._firsts = self._first_positions()
        first = read_start(self._directory).first
        if not self._firsts or first > self._indexer.indexed:
            return None
        self._round_start = (time.time(), self.found)
        # An empty segment replaces a missing first file, so that the scrub reports its frames as corrupt and a peer supplies them.
        if first not in self._firsts and (chain := self._chain_before(first)) is not None:
            self._make_segment(first, chain)
        return self._begin_segment(self._firsts[0], None)

    def _first_positions(self) -> list[int]:
        """Return the first positions of the segments that belong to the log."""
        begin = read_start(self._directory).first
        return [first for first in list_positions(self._directory, "seg") if first >= begin]

    def _begin_segment(self, first: int, chain: int | None) -> _ScrubPosition | None:
        """Begin the scrub of a segment, and rebuild a bad header. Skip the segment if its header cannot be rebuilt.

        Args:
            chain: chain value before the segment, or None if unknown.
        """
        try:
            chain = read_header(self._directory, first).chain
        except FileNotFoundError:
            raise
        except (Damaged, OSError):
            if chain is None:
                chain = self._chain_before(first)
            if chain is None:
                return self._next(first, None)
            self._write_header(first, chain)
        self.snapshots.begin_segment(first, self._firsts, self._segments)
        return _ScrubPosition(first, first, FRAMES_AT, chain)

    @property
    def _log(self) -> bytes:
        """Return the id that segment headers contain: the uuid of the log or, in a lane, the incarnation of the lane's disk."""
        return self._lane or self._indexer.state.log

    def _chain_before(self, first: int) -> int | None:
        snapshot = read_snapshot(self._directory, first)
        if snapshot is not None:
            return snapshot.state.chain
        return 0 if first == 1 else None

    def _write_header(self, first: int, chain: int) -> None:
        with self._translating("repairing"), self._opened(segment_path(self._directory, first)) as fd:
            header = SegmentHeader(self._log, first, chain, max(self._storage.size(fd), FRAMES_AT + HEADER_SIZE))
            self._storage.write(fd, [header.to_bytes()], 0)
            self._storage.make_durable(fd)
        self.found += 1
        self.repaired += 1

    def _scrub_piece(self, at: _ScrubPosition) -> _ScrubPosition | None:
        """Scrub one piece of a segment, and return the position at which to continue, or None after the last segment."""
        if at.position > (last := self._last_of(at.segment)):
            return self._finish_segment(at)
        with self._opened(segment_path(self._directory, at.segment)) as fd:
            until = min(last, at.position + limits.SCRUB_FRAMES - 1)
            frames = read_frames(self._storage, fd, at.file_position, at.chain, at.position, until)
            if not frames:
                self.lost = self._corrupt_range(fd, at, last)
                self.found += 1
                where = f"{segment_path(self._directory, at.segment)} cannot be read at byte {at.file_position}"
                self.message = f"{where}: positions {self.lost.first} to {self.lost.last} are lost on this gateway"
                return at
        self.snapshots.apply(frames)
        file_position = at.file_position + sum(frame.size for frame in frames)
        return _ScrubPosition(at.segment, frames[-1].position + 1, file_position, frames[-1].header_crc)

    def _last_of(self, first: int) -> int:
        """Return the last decided position of a segment."""
        # The list of segments is read again, because the writer may have begun a segment during the round.
        self._firsts = self._first_positions()
        index = bisect_right(self._firsts, first)
        following = self._firsts[index] - 1 if index < len(self._firsts) else self._indexer.indexed
        return min(following, self._indexer.indexed)

    def _finish_segment(self, at: _ScrubPosition) -> _ScrubPosition | None:
        """Check the index of a segment whose frames are all valid, and continue with the next segment."""
        if all(segment.first != at.segment for segment in self._segments):
            self._check_index(at.segment, at.position - 1)
            self.snapshots.finish_segment()
        return self._next(at.segment, at.chain)

    def _next(self, segment: int, chain: int | None) -> _ScrubPosition | None:
        """Return the start of the next segment, or None if the round is complete."""
        self._firsts = self._first_positions()
        index = bisect_right(self._firsts, segment)
        if index < len(self._firsts) and self._firsts[index] <= self._indexer.indexed:
            return self._begin_segment(self._firsts[index], chain)
        began, found = self._round_start
        if began:
            self._scrub_all = False
            self.rounds += 1
            # A complete round without corruption proves that no data in the quarantine files is missing in the log.
            if found == self.found:
                remove_older(self._directory, self._storage, began)
        return None

    def _check_index(self, first: int, last: int) -> None:
        path = index_path(self._directory, first)
        sealed = index_sealed(path, first)
        if sealed is not None and first + sealed.rows - 1 == last:
            return
        catalog = Catalog(self._directory)
        try:
            rows = [part.copy() for part in catalog.rows(first, ReadLimit(self._indexer.indexed, 0))]
        except (Damaged, OffsetOutOfRange, OSError):
            return  # a later round rebuilds the index, because it is unknown which batches the unreadable ABORTs void
        finally:
            catalog.close()
        with self._translating("repairing"):
            if os.path.exists(path):
                self._storage.remove(path)  # readers may have mapped the old file; with a shortened file, their reads would fail
            index = IndexWriter(path, first, no_rows(), self._storage)
            for part in rows:
                next_offset = int(part["offset"][-1]) + int(part["count"][-1])
                index.append(part.tobytes(), int(part["offset"][0]), next_offset, _newest(part))
            index.seal()
            index.close()
        self._remap_readers()

    # Corrupt ranges

    def _corrupt_range(self, fd: int, at: _ScrubPosition, last: int) -> CorruptRange:
        """Return the corrupt range that begins at `at`.

        The range ends before the first valid frame whose chain value matches the header of the frame after it.
        """
        view = SegmentView(self._directory, at.segment)
        rows = view.trusted_rows(last, ReadLimit(self._indexer.indexed, self._indexer.indexed))
        # The range is limited to the number of frames in one answer of a peer, so a longer corruption is repaired in pieces.
        upto = min(last, at.position + limits.SCRUB_FRAMES)
        for position in range(at.position + 1, upto + 1):
            index = position - at.segment
            if index >= len(rows):
                break
            frame = self._frame(fd, rows, index)
            if frame is not None and self._continued(fd, rows, index, frame, last):
                return CorruptRange(at.position, position - 1, at.file_position, at.chain, int(rows["file_position"][index]), frame)
        if upto < last and upto - at.segment < len(rows):
            # All frames within the limit are corrupt. The scrubber repairs these frames first, and then scrubs the next ones.
            return CorruptRange(at.position, upto, at.file_position, at.chain, _end_of(rows, upto - at.segment))
        end = _end_of(rows, -1) if len(rows) and at.segment + len(rows) > last else 0
        return CorruptRange(at.position, last, at.file_position, at.chain, end, None, self._chain_after(last))

    def _frame(self, fd: int, rows: Rows, index: int) -> Frame | None:
        """Return the frame of an index row, or None if its header or payload is invalid. The chain is not checked."""
        row = rows[index]
        try:
            data = self._storage.read(fd, int(row["size"]), int(row["file_position"]))
            frame = decode_frame(data)
            check_payload(frame)
        except (OSError, FormatError):
            return None
        return frame if frame.position == row["position"] and frame.size == row["size"] else None

    def _continued(self, fd: int, rows: Rows, index: int, frame: Frame, last: int) -> bool:
        if frame.position == last:
            after = self._chain_after(last)
            return after is None or after == frame.header_crc
        if index + 1 >= len(rows):
            return False
        try:
            # The CRC of the next header covers this frame's chain value, so a correct CRC proves that both headers are valid.
            following = decode_header(self._storage.read(fd, HEADER_SIZE, int(rows["file_position"][index + 1])))
        except (OSError, FormatError):
            return False
        return following.position == frame.position + 1 and chained(following, frame.header_crc)

    def _chain_after(self, last: int) -> int | None:
        """Return the chain value that the last frame of a segment must have, or None if it is unknown."""
        if last == self._indexer.state.position:
            return self._indexer.state.chain
        try:
            return read_header(self._directory, last + 1).chain
        except (Damaged, OSError):
            snapshot = read_snapshot(self._directory, last + 1)
            return snapshot.state.chain if snapshot is not None else None

    # Repairing

    def repair(self, frames: Sequence[Frame]) -> int:
        """Write fetched frames into the corrupt range, durably, and return the number of accepted frames.

        The written frames and the next piece of the log are scrubbed at once.

        Raises:
            DiskFull, DiskFailed: the frames could not be written.
        """
        lost, at = self.lost, self._at
        if lost is None or at is None or self._drop_if_removed():
            return 0
        if self._readable_after_all(lost, at):
            self.lost, self.message = None, ""  # a readable frame is never overwritten
            return 0
        good = self._accepted(lost, frames)
        if not good:
            return 0
        with self._translating("repairing"):
            self._at = self._rewrite(at, good)
        self.repaired += len(good)
        self.lost, self.message = None, ""
        # The new frames are read back at once, because the disk has already lost data at this position.
        self._verify_repaired(good[-1].position)
        return len(good)

    def _readable_after_all(self, lost: CorruptRange, at: _ScrubPosition) -> bool:
        """True if a second attempt can read the first frame of the range, in this segment or in a segment that begins with it."""
        locations = [(segment_path(self._directory, at.segment), lost.file_position)]
        if os.path.exists(follows := segment_path(self._directory, lost.first)):
            locations.append((follows, FRAMES_AT))
        for path, file_position in locations:
            with self._opened(path) as fd:
                if read_frames(self._storage, fd, file_position, lost.chain, lost.first, lost.first):
                    return True
        return False

    def _verify_repaired(self, position: int) -> None:
        """Scrub the rewritten frames and one piece after them."""
        while self._at is not None and self._at.position <= position and self.lost is None:
            self._step(self._at)
        if self._at is not None and self.lost is None:
            self._step(self._at)

    def _accepted(self, lost: CorruptRange, frames: Sequence[Frame]) -> list[Frame]:
        """Return the leading frames that fit the corrupt range, by position, chain and size."""
        good: list[Frame] = []
        chain, file_position = lost.chain, lost.file_position
        for position, frame in enumerate(frames, lost.first):
            file_position += frame.size
            # Only the original frame continues the chain; a frame of another log or view does not.
            if position > lost.last or frame.position != position or not chained(frame, chain) or 0 < lost.end < file_position:
                break
            chain = frame.header_crc
            if position == lost.last:
                # The last fetched frame must end where the next valid frame begins, and the next frame must continue its chain.
                wrong = (lost.end and file_position != lost.end) or (lost.after is not None and lost.after != chain)
                if wrong or (lost.following is not None and not chained(lost.following, chain)):
                    return []
            good.append(frame)
        return good

    def _rewrite(self, at: _ScrubPosition, frames: list[Frame]) -> _ScrubPosition:
        """Write frames in place, and return the position from which the scrub must read them back.

        If the frames lie after the end of the segment, a segment is missing, and the function creates it again.
        """
        size = read_header(self._directory, at.segment).size
        if at.position > at.segment and (self._segment_ended(at) or at.file_position + frames[0].size + HEADER_SIZE > size):
            # The segment has ended or has no space for this frame, so the missing segment must have begun with this frame.
            self._make_segment(at.position, at.chain)
            return self._rewrite(_ScrubPosition(at.position, at.position, FRAMES_AT, at.chain), frames)
        fitting, file_position = 0, at.file_position
        while fitting < len(frames) and file_position + frames[fitting].size <= size:
            file_position += frames[fitting].size
            fitting += 1
        with self._opened(segment_path(self._directory, at.segment)) as fd:
            # A shortened file is extended to its full size before the write, and readers must map the file again.
            if self._storage.size(fd) < size:
                self._storage.allocate(fd, size)
                self._remap_readers()
            # To write a part of a page, the kernel first reads the page, and that read fails for a bad sector.
            _zero_unreadable_pages(self._storage, fd, at.file_position, file_position)
            # If a crash interrupts this write, the next round finds the range corrupt again and repeats the repair.
            self._storage.write(fd, [part for frame in frames[:fitting] for part in frame.extents()], at.file_position)
            self._storage.make_durable(fd)
        return at

    def _segment_ended(self, at: _ScrubPosition) -> bool:
        """True if the sealed index shows that the segment ends directly before this position."""
        sealed = index_sealed(index_path(self._directory, at.segment), at.segment)
        return sealed is not None and at.segment + sealed.rows == at.position

    def _make_segment(self, first: int, chain: int) -> None:
        """Create a zero-filled segment in place of a missing one, durably."""
        path = os.path.join(self._directory, LOG, _NEW)
        invariant(not os.path.exists(segment_path(self._directory, first)), f"segment {first} exists and must not be replaced")
        with self._translating("repairing"):
            with self._opened(path, create=True) as fd:
                self._storage.truncate(fd, 0)
                self._storage.allocate(fd, self._segment_bytes)
                header = SegmentHeader(self._log, first, chain, self._segment_bytes)
                self._storage.write(fd, [header.to_bytes()], 0)
                self._storage.make_durable(fd)
            # A start treats every file with such a name as a segment, so the header must be durable before the rename.
            self._storage.rename(path, segment_path(self._directory, first))
            self._storage.make_names_durable(os.path.join(self._directory, LOG))
        self._firsts = self._first_positions()
        self._remap_readers()

    @contextmanager
    def _opened(self, path: str, *, create: bool = False) -> Iterator[int]:
        fd = self._storage.open(path, create=create)
        try:
            yield fd
        finally:
            self._storage.close(fd)


def _zero_unreadable_pages(storage: Storage, fd: int, start: int, end: int) -> None:
    """Fill each page of a range with zeros if the device cannot read the page.

    The write loses no data, because the page is unreadable anyway. A write of a whole page succeeds, because the kernel need not
    read the page first.

    Args:
        start, end: file positions of the range.
    """
    for page in range(start - start % PAGE, end, PAGE):
        try:
            storage.read(fd, PAGE, page)
        except OSError:
            storage.write(fd, [bytes(PAGE)], page)


def _end_of(rows: Rows, index: int) -> int:
    """Return the file position after the frame that an index row describes."""
    return int(rows["file_position"][index]) + int(rows["size"][index])


def _newest(rows: Rows) -> int:
    """Return the largest timestamp of the records in these rows."""
    counted = rows["max_timestamp"][rows["count"] > 0]
    return int(counted.max()) if len(counted) else LONG_AGO
