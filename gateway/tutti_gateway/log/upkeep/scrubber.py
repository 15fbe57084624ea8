"""Looking at what was decided, slowly and always again, and writing anew what cannot be read any more (design, section 6).

Disks forget: bits flip, sectors cannot be read, files go. What was decided stands on other gateways too, so it is fetched from one
of them and written where it stood. It is the same bytes or nothing: a frame continues the chain of what stands before it, fills its
place and is continued by what stands behind it. So it can be written in place, and a crash in the middle leaves what was there
before: a range that cannot be read. A header of a segment, an index, a snapshot and a file that is gone are made again from
what is known.
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
from tutti.log.files.layout import FRAMES_AT, LOG, SegmentHeader, index_path, positions_named, read_header, segment_path
from tutti.log.files.log_start import read_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.index import LONG_AGO, IndexWriter, Rows, index_sealed, no_rows
from tutti.log.format.snapshot import read_snapshot
from tutti.log.read.catalog import Catalog
from tutti.log.read.segment_view import Upto, View
from tutti_gateway.core import limits
from tutti_gateway.log.upkeep.damaged_range import Lost, make_readable
from tutti_gateway.log.upkeep.quarantine import discard
from tutti_gateway.log.upkeep.snapshot_scrubber import Snapshots
from tutti_gateway.log.write.frame_fetch import read_frames
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.segment import Segment

_NEW = "mending.tmp"


class _Place(NamedTuple):
    """Where the looking has come: `position` must stand at `place` of the segment, behind the chain value."""

    segment: int
    position: int
    place: int
    chain: int


class Mender:
    """Looks, and mends. Owned by the writer's thread.

    Attributes:
        lost: what is lost and wanted from another gateway, None if nothing is.
        told: a sentence on it, for people.
        found, mended: how often something was lost, and how many frames were written again, since the start.
        rounds: how often all of the log was looked at.
        snapshots: looks at those on the way.
    """

    def __init__(
        self,
        directory: str,
        storage: Storage,
        options: LogOptions,
        segments: Sequence[Segment],
        indexer: Indexer,
        watching: Callable[[str], AbstractContextManager[None]],
        renewed: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            options: size of a segment that is made again.
            segments: the writer's, which hold undecided frames.
            indexer: knows how far the log is decided.
            watching: gives errors of the system their meaning.
            renewed: called when readers must map files anew.
        """
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._indexer = indexer
        self._segment_bytes = options.segment_bytes
        self._watching = watching
        self._renewed = renewed
        self.snapshots = Snapshots(directory, storage, watching)
        self._firsts: list[int] = []
        self._at: _Place | None = None
        self._suspects: list[int] = []
        self._all = False  # all of the log is to be looked at soon
        self._lane = options.lane
        self._began = (0.0, 0)  # when the round did, s since 1970 (0: not at the begin of the log), and what had been found
        self.lost: Lost | None = None
        self.told = ""
        self.found = self.mended = self.rounds = 0

    @property
    def hurried(self) -> bool:
        """Whether something is to be looked at soon."""
        return self.lost is None and (bool(self._suspects) or self._all)

    @property
    def looking(self) -> bool:
        """Whether a round is under way."""
        return self._at is not None

    def suspect_all(self) -> None:
        """Somebody could not read something, nobody says where: all of it is looked at soon."""
        self._all = True
        self._began = (0.0, 0)  # a round that is under way does not count
        if self.lost is None:
            self._at = None

    def suspect(self, position: int) -> None:
        """Somebody could not read the position: its segment is looked at next."""
        if 0 < position <= self._indexer.indexed and len(self._suspects) < limits.SUSPECTS_MAX and position not in self._suspects:
            self._suspects.append(position)

    def look(self) -> bool:
        """Look at the next piece, unless something lost is still wanted; whether what is lost, or that nothing is, became known.

        Raises:
            DiskFailed, DiskFull: what was made again could not be written.
        """
        if self.lost is not None:
            return self._gone()
        at = self._suspected() or self._at or self._begin()
        if at is not None:
            self._step(at)
        else:
            self._all = False
        return self.lost is not None

    def _step(self, at: _Place) -> None:
        try:
            self._at = self._look(at)
        except FileNotFoundError:
            self._at = None  # trimmed, or cut off: the next round begins with what is there

    def _gone(self) -> bool:
        """What is lost may be wanted no more: it was trimmed, or its file went since, which is looked for anew."""
        lost, at = self.lost, self._at
        if lost is None or at is None:
            return False
        if lost.last >= read_start(self._directory).first and os.path.exists(segment_path(self._directory, at.segment)):
            return False
        self.lost, self.told, self._at = None, "", None
        return True

    def _suspected(self) -> _Place | None:
        """The beginning of a segment that somebody could not read; it takes the place of the round."""
        while self._suspects:
            self._firsts = self._there()
            index = bisect_right(self._firsts, self._suspects.pop(0)) - 1
            if index >= 0:
                first = self._firsts[index]
                self._began = (0.0, 0)
                self._suspects = [one for one in self._suspects if bisect_right(self._firsts, one) - 1 != index]
                return self._enter(first, None)
        return None

    def _begin(self) -> _Place | None:
        """The beginning of a round; None while there is nothing to look at."""
        self._firsts = self._there()
        first = read_start(self._directory).first
        if not self._firsts or first > self._indexer.indexed:
            return None
        self._began = (time.time(), self.found)
        if first not in self._firsts and (chain := self._chain_before(first)) is not None:
            self._make_segment(first, chain)
        return self._enter(self._firsts[0], None)

    def _there(self) -> list[int]:
        """First positions of the segments that count."""
        begin = read_start(self._directory).first
        return [first for first in positions_named(self._directory, "seg") if first >= begin]

    def _enter(self, first: int, chain: int | None) -> _Place | None:
        """Begin with a segment: `chain` is the value before it, None if that is not known. A bad header is made again; where
        nothing says what stood in it the segment is passed over.
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
        self.snapshots.enter(first, self._firsts, self._segments)
        return _Place(first, first, FRAMES_AT, chain)

    @property
    def _log(self) -> bytes:
        """Uuid of the log; that of a lane is its incarnation, and stands in none of its frames."""
        return self._lane or self._indexer.state.log

    def _chain_before(self, first: int) -> int | None:
        snapshot = read_snapshot(self._directory, first)
        if snapshot is not None:
            return snapshot.state.chain
        return 0 if first == 1 else None

    def _write_header(self, first: int, chain: int) -> None:
        with self._watching("mending"), self._opened(segment_path(self._directory, first)) as fd:
            header = SegmentHeader(self._log, first, chain, max(self._storage.size(fd), FRAMES_AT + HEADER_SIZE))
            self._storage.write(fd, [header.to_bytes()], 0)
            self._storage.make_durable(fd)
        self.found += 1
        self.mended += 1

    def _look(self, at: _Place) -> _Place | None:
        """One piece of a segment; where to go on, None behind the last."""
        if at.position > (last := self._last_of(at.segment)):
            return self._leave(at)
        with self._opened(segment_path(self._directory, at.segment)) as fd:
            until = min(last, at.position + limits.SCRUB_FRAMES - 1)
            frames = read_frames(self._storage, fd, at.place, at.chain, at.position, until)
            if not frames:
                self.lost = self._extent(fd, at, last)
                self.found += 1
                where = f"{segment_path(self._directory, at.segment)} cannot be read at byte {at.place}"
                self.told = f"{where}: positions {self.lost.first} to {self.lost.last} are lost here"
                return at
        self.snapshots.passed(frames)
        place = at.place + sum(frame.size for frame in frames)
        return _Place(at.segment, frames[-1].position + 1, place, frames[-1].header_crc)

    def _last_of(self, first: int) -> int:
        """The last decided position before the segment that follows, which may have begun since the round did."""
        self._firsts = self._there()
        index = bisect_right(self._firsts, first)
        following = self._firsts[index] - 1 if index < len(self._firsts) else self._indexer.indexed
        return min(following, self._indexer.indexed)

    def _leave(self, at: _Place) -> _Place | None:
        """A segment is good to its end: look at its index, and go to the next."""
        if all(segment.first != at.segment for segment in self._segments):
            self._check_index(at.segment, at.position - 1)
            self.snapshots.left()
        return self._next(at.segment, at.chain)

    def _next(self, segment: int, chain: int | None) -> _Place | None:
        """The beginning of the segment behind one; None where nothing decided follows: the round is over."""
        self._firsts = self._there()
        index = bisect_right(self._firsts, segment)
        if index < len(self._firsts) and self._firsts[index] <= self._indexer.indexed:
            return self._enter(self._firsts[index], chain)
        began, found = self._began
        if began:
            self._all = False
            self.rounds += 1
            if found == self.found:
                discard(self._directory, self._storage, began)
        return None

    def _check_index(self, first: int, last: int) -> None:
        path = index_path(self._directory, first)
        sealed = index_sealed(path, first)
        if sealed is not None and first + sealed.rows - 1 == last:
            return
        catalog = Catalog(self._directory)
        try:
            rows = [part.copy() for part in catalog.rows(first, Upto(self._indexer.indexed, 0))]
        except (Damaged, OffsetOutOfRange, OSError):
            return  # of a segment before, or behind, whose ABORT is wanted: a later round makes it
        finally:
            catalog.close()
        with self._watching("mending"):
            if os.path.exists(path):
                self._storage.remove(path)  # readers may have it mapped: it is never cut under them
            index = IndexWriter(path, first, no_rows(), self._storage)
            for part in rows:
                next_offset = int(part["offset"][-1]) + int(part["count"][-1])
                index.append(part.tobytes(), int(part["offset"][0]), next_offset, _newest(part))
            index.seal()
            index.close()
        self._renewed()

    # What is lost

    def _extent(self, fd: int, at: _Place, last: int) -> Lost:
        """How far what is lost reaches: to the first frame that is whole, stands where the index says, and is continued."""
        view = View(self._directory, at.segment)
        rows = view.trusted(last, Upto(self._indexer.indexed, self._indexer.indexed))
        upto = min(last, at.position + limits.SCRUB_FRAMES)
        for position in range(at.position + 1, upto + 1):
            index = position - at.segment
            if index >= len(rows):
                break
            frame = self._frame(fd, rows, index)
            if frame is not None and self._continued(fd, rows, index, frame, last):
                return Lost(at.position, position - 1, at.place, at.chain, int(rows["place"][index]), frame)
        if upto < last and upto - at.segment < len(rows):
            return Lost(at.position, upto, at.place, at.chain, _end_of(rows, upto - at.segment))
        end = _end_of(rows, -1) if len(rows) and at.segment + len(rows) > last else 0
        return Lost(at.position, last, at.place, at.chain, end, None, self._chain_after(last))

    def _frame(self, fd: int, rows: Rows, index: int) -> Frame | None:
        """The frame that a row tells of, None if it is not as it must be; nothing is said of its chain."""
        row = rows[index]
        try:
            data = self._storage.read(fd, int(row["size"]), int(row["place"]))
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
            following = decode_header(self._storage.read(fd, HEADER_SIZE, int(rows["place"][index + 1])))
        except (OSError, FormatError):
            return False
        return following.position == frame.position + 1 and chained(following, frame.header_crc)

    def _chain_after(self, last: int) -> int | None:
        """The chain value that the frame at the last position of a segment must have, None if nothing says it."""
        if last == self._indexer.state.position:
            return self._indexer.state.chain
        try:
            return read_header(self._directory, last + 1).chain
        except (Damaged, OSError):
            snapshot = read_snapshot(self._directory, last + 1)
            return snapshot.state.chain if snapshot is not None else None

    # Mending

    def mend(self, frames: Sequence[Frame]) -> int:
        """Write frames where they were lost, durably, as many as are what stood there; how many. What is lost behind them is looked
        for at once.

        Raises:
            DiskFull, DiskFailed: they could not be written.
        """
        lost, at = self.lost, self._at
        if lost is None or at is None or self._gone():
            return 0
        if self._stands(lost, at):
            self.lost, self.told = None, ""  # nothing that can be read is ever written over
            return 0
        good = self._fitting(lost, frames)
        if not good:
            return 0
        with self._watching("mending"):
            self._at = self._write(at, good)
        self.mended += len(good)
        self.lost, self.told = None, ""
        self._look_up_to(good[-1].position)
        return len(good)

    def _stands(self, lost: Lost, at: _Place) -> bool:
        """Whether the first frame that was lost can be read after all, there or in the segment that begins with it."""
        there = [(segment_path(self._directory, at.segment), lost.place)]
        if os.path.exists(follows := segment_path(self._directory, lost.first)):
            there.append((follows, FRAMES_AT))
        for path, place in there:
            with self._opened(path) as fd:
                if read_frames(self._storage, fd, place, lost.chain, lost.first, lost.first):
                    return True
        return False

    def _look_up_to(self, position: int) -> None:
        """Read what was written, and a piece behind it."""
        while self._at is not None and self._at.position <= position and self.lost is None:
            self._step(self._at)
        if self._at is not None and self.lost is None:
            self._step(self._at)

    def _fitting(self, lost: Lost, frames: Sequence[Frame]) -> list[Frame]:
        """Those frames that are what stood there, as far as it can be told."""
        good: list[Frame] = []
        chain, place = lost.chain, lost.place
        for position, frame in enumerate(frames, lost.first):
            place += frame.size
            if position > lost.last or frame.position != position or not chained(frame, chain) or 0 < lost.end < place:
                break
            chain = frame.header_crc
            if position == lost.last:
                wrong = (lost.end and place != lost.end) or (lost.after is not None and lost.after != chain)
                if wrong or (lost.following is not None and not chained(lost.following, chain)):
                    return []
            good.append(frame)
        return good

    def _write(self, at: _Place, frames: list[Frame]) -> _Place:
        """Write them in place; those for which the segment has no room begin one that is gone. Where to look at them."""
        size = read_header(self._directory, at.segment).size
        if at.position > at.segment and (self._ended(at) or at.place + frames[0].size + HEADER_SIZE > size):
            self._make_segment(at.position, at.chain)
            return self._write(_Place(at.position, at.position, FRAMES_AT, at.chain), frames)
        fitting, place = 0, at.place
        while fitting < len(frames) and place + frames[fitting].size <= size:
            place += frames[fitting].size
            fitting += 1
        with self._opened(segment_path(self._directory, at.segment)) as fd:
            if self._storage.size(fd) < size:
                self._storage.allocate(fd, size)
                self._renewed()
            make_readable(self._storage, fd, at.place, place)
            self._storage.write(fd, [part for frame in frames[:fitting] for part in frame.extents()], at.place)
            self._storage.make_durable(fd)
        return at

    def _ended(self, at: _Place) -> bool:
        """Whether the segment of a place was whole before it: what follows stood in a file that is gone."""
        sealed = index_sealed(index_path(self._directory, at.segment), at.segment)
        return sealed is not None and at.segment + sealed.rows == at.position

    def _make_segment(self, first: int, chain: int) -> None:
        """A segment of zeros in the place of one that is gone, durably."""
        path = os.path.join(self._directory, LOG, _NEW)
        invariant(not os.path.exists(segment_path(self._directory, first)), f"segment {first} is there and would be replaced")
        with self._watching("mending"):
            with self._opened(path, create=True) as fd:
                self._storage.truncate(fd, 0)
                self._storage.allocate(fd, self._segment_bytes)
                header = SegmentHeader(self._log, first, chain, self._segment_bytes)
                self._storage.write(fd, [header.to_bytes()], 0)
                self._storage.make_durable(fd)
            self._storage.rename(path, segment_path(self._directory, first))
            self._storage.make_names_durable(os.path.join(self._directory, LOG))
        self._firsts = self._there()
        self._renewed()

    @contextmanager
    def _opened(self, path: str, *, create: bool = False) -> Iterator[int]:
        fd = self._storage.open(path, create=create)
        try:
            yield fd
        finally:
            self._storage.close(fd)


def _end_of(rows: Rows, index: int) -> int:
    """The byte behind the frame of a row."""
    return int(rows["place"][index]) + int(rows["size"][index])


def _newest(rows: Rows) -> int:
    """The largest timestamp of the records that rows tell of."""
    counted = rows["max_timestamp"][rows["count"] > 0]
    return int(counted.max()) if len(counted) else LONG_AGO
