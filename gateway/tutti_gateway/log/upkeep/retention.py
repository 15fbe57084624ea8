"""Letting the oldest part of the log go (design, section 6, retention): which part may, and removing it once a TRIM is decided.

A crash at any instant leaves a log. Files go only when a durable mark says that the TRIM is decided, so that a start comes by it;
and only behind a durable word on where the log begins from then on (`start.py`), so that what is left of them never counts. The
segment that the log then begins with has its snapshot, and no ABORT reaches over it: a start, every reader, and who takes the
log over from here need nothing from before it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tutti import limits as common_limits
from tutti.data.frames.bodies import TxnBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import FormatError
from tutti.log.files.disk_space import Room
from tutti.log.files.layout import positions_named, remove_before, segment_path, snapshot_path
from tutti.log.files.live_page import LivePage
from tutti.log.files.log_start import Start, read_start, write_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import abort_of
from tutti.log.format.snapshot import STATE_AT, read_snapshot
from tutti.log.read.catalog import Catalog
from tutti.log.read.segment_view import Upto
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import TrimProposed
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.segment import Segment

NS_PER_US = 1000
REMOVED_AT_ONCE = 4  # segments, before other work has its turn
LOOKED_AT_ONCE = 256  # transactions
ROWS_AT_ONCE = 1 << 20  # of the index, among which these are looked for


class _Place(NamedTuple):
    """Where the log may begin: the start of a segment, its position; the offset of its first record, and the time of the last TICK
    before it (0: none). `written_us` is when this disk wrote its snapshot. Where TXNs from there on make
    visible what stands before it: offset and time behind the last of these, and its position as `reach`, which is 0 otherwise.
    """

    position: int
    offset: int
    time_us: int
    reach: int = 0
    written_us: int = 0


class _Reaching(NamedTuple):
    """A TXN that makes visible what stands in segments before its own: the first position of that, its own, the offset behind it,
    and the time of the last TICK before it.
    """

    low: int
    position: int
    offset: int
    time_us: int


class _Due(NamedTuple):
    """A decided TRIM that is not carried out: a position at which it is decided, and where the log begins then."""

    decided: int
    position: int
    offset: int


class Held(NamedTuple):
    """What would go if a named reader had read it: the reader, the offset that it has committed (0: none), bytes of segments."""

    reader: str
    offset: int
    bytes: int

    @property
    def told(self) -> str:
        """For who has to act."""
        return (
            f"retention would free {self.bytes // common_limits.MIB} MiB and waits for reader {self.reader!r}, which has committed "
            f"offset {self.offset}: start what reads under that name, or take it out of [retention] keep_for"
        )


class Trimming:
    """Follows the decided log beside its writer, in the writer's thread.

    Attributes:
        start: where the log begins, durably.
        held: what a named reader holds back, as far as was looked last.
    """

    def __init__(
        self,
        directory: str,
        options: LogOptions,
        storage: Storage,
        room: Room,
        live: LivePage,
        segments: Sequence[Segment],
        indexer: Indexer,
    ) -> None:
        """Go on with a log whose writer has these segments and this indexer."""
        self._segments = segments
        self._indexer = indexer
        self._directory = directory
        self._options = options
        self._storage = storage
        self._room = room
        self._live = live
        self.start = read_start(directory)
        self.held: Held | None = None
        self._due: deque[_Due] = deque()
        self._told = 1
        self._left = True  # files before the start may be there
        self._places: dict[int, _Place] = {}
        self._reaching: list[_Reaching] = []  # in order, of positions up to `_looked`
        self._looked = self._ticked = 0
        self._known: tuple[int, list[tuple[int, int]]] = (0, [])  # newest segment, and (first position, bytes) of all
        live.start(self.start.offset)
        self._decided()

    # Carrying out

    def _decided(self) -> None:
        """Note what was decided since."""
        state = self._indexer.state
        if state.start > self._told:
            self._told = state.start
            if (state.start, state.start_offset) > self.start[:2]:
                self._due.append(_Due(state.position, state.start, state.start_offset))

    def carry_out(self, watermark: int) -> bool:
        """Remove what is to go, some of it at a time; whether there is more. `watermark` is how far a durable mark says that the
        log is decided.

        Raises:
            OSError: the disk did not take it.
        """
        self._decided()
        due = None
        while self._due and self._due[0].decided <= watermark:
            due = self._due.popleft()
        if due is not None:
            self._begin(due)
        if self._left:
            self._left = remove_before(self._directory, self._storage, self.start.first, REMOVED_AT_ONCE)
        return self._left

    @property
    def left(self) -> bool:
        """Whether files are to be removed."""
        return self._left

    def let_go(self, held: int, watermark: int, now_us: int) -> bool:
        """Let a lane go as far as retention says; no frame says it of a lane. Whether anything goes.

        Args:
            held: last position that every gateway of the roster has.
            watermark: how far a durable mark says that the lane is decided.
            now_us: wall clock, us.

        Raises:
            OSError, DiskFull: the disk did not take it.
        """
        proposed = self.propose(now_us)
        good = [place for place in proposed.places if place[0] - 1 <= min(held, watermark)] if proposed is not None else []
        whole = next((place for place in reversed(good) if read_snapshot(self._directory, place[0]) is not None), None)
        if whole is None:
            return False  # what was whole when it was looked at may not be any more
        self.begin(Start(*whole))
        self._told = self.start.first
        return True

    def _begin(self, due: _Due) -> None:
        firsts = positions_named(self._directory, "seg")
        offset = max(due.offset, self.start.offset)
        good = (first for first in reversed(firsts) if self.start.first < first <= due.position and self._may_begin(first, offset))
        self.begin(Start(next(good, self.start.first), offset))

    def _may_begin(self, first: int, offset: int) -> bool:
        """Whether the log may begin with a segment: its snapshot tells what came before, and no ABORT behind it reaches over it, so
        that the snapshot is one with which another log may begin too; and no record from `offset` on was staged before it.
        """
        place = self._place(first)
        if place is None or not self._look_on() or self._behind_txns(place).offset > offset:
            return False
        last = self._indexer.indexed
        until = min(last, first + common_limits.UNDECIDED_FRAMES_MAX)
        try:
            for view, rows in Catalog(self._directory).positions(first, until, Upto(last, last)):
                if any(abort_of(view.frame(row)).start < first for row in rows[rows["kind"] == Kind.ABORT]):
                    return False
        except FormatError:
            return False  # what cannot be read may be such an ABORT: it is mended first
        return True

    def begin(self, start: Start) -> None:
        """The log begins there: say so, durably, then to readers."""
        self._room.with_room(lambda: write_start(self._directory, start, self._storage), "a trim")
        self._live.start(start.offset)
        self.start = start
        self._left = True
        self._known = (0, [])
        self._places = {position: place for position, place in self._places.items() if position > start.first}

    def replaced(self) -> None:
        """The log was replaced, and begins where the directory says."""
        start = read_start(self._directory)
        self._due.clear()
        self._told = 1
        self.start = start
        self._places.clear()
        self._reaching, self._looked, self._ticked = [], 0, 0
        self._known = (0, [])
        self._left = True
        self._live.start(start.offset)

    # Giving it to others

    def piece(self, position: int, at: int) -> tuple[int, int, bytes]:
        """Bytes of the state with which the log begins (design, 5.4): of the one up to `position`, or of whichever it is if that is
        0, from byte `at` on, as many as `limits.FETCH_BYTES`. Up to where it goes, its size, and the bytes; size 0 if it is gone.
        """
        first = self.start.first
        if first == 1 or position not in (0, first - 1):
            return position, 0, b""
        path = snapshot_path(self._directory, first)
        fd = self._storage.open(path)
        try:
            size = self._storage.size(fd) - STATE_AT
            return first - 1, size, self._storage.read(fd, limits.FETCH_BYTES, STATE_AT + at)
        finally:
            self._storage.close(fd)

    # Proposing

    def propose(self, now_us: int) -> TrimProposed | None:
        """What retention lets go at wall clock `now_us`, None if nothing: whole segments, all of them decided, never the newest.

        Nothing goes while its files cannot be looked at, and nothing that a reader of `keep_for` has not read, however far over the
        limits that is: records that are nowhere else are worth more than room, and the disk that runs low refuses new ones.
        """
        if not self._options.retention_bytes and not self._options.retention_us:
            return None
        decided = self._indexer.indexed
        try:
            segments = self._sizes()
        except OSError:
            return None
        held = sum(size for _, size in segments)
        places: list[tuple[int, int]] = []
        reader, read = self._slowest()
        forced = waits = 0
        for (_, size), (position, _) in pairwise(segments):
            if position > decided or len(places) == limits.TRIM_PLACES_MAX:
                break
            place = self._place(position)
            if place is not None:
                if not self._may_go(held, place, now_us, 1):
                    break
                if not self._look_on():
                    return None  # soon
                place = self._behind_txns(place)
                if place.offset > read:
                    waits += size
                    held -= size
                    continue
                kept = sum(kept for first, kept in segments if first > place.reach) if place.reach else held
                if self._may_go(kept, place, now_us, limits.RETENTION_LAG_FACTOR):
                    forced = position
                    places.append((position, place.offset))
                elif self._may_go(kept, place, now_us, 1) and not self._waits_before(position):
                    places.append((position, place.offset))
            held -= size  # where its snapshot is damaged the log cannot begin: both segments go, or none
        self.held = Held(reader, read, waits) if waits else None
        places = [place for place in places if place[0] > self._told]
        return TrimProposed(tuple(places), forced) if places else None

    def _may_go(self, held: int, place: _Place, now_us: int, factor: int) -> bool:
        """Whether the segment before a place may go, while `held` bytes are; the log's own clock says how old it is."""
        options = self._options
        if options.retention_bytes and held > factor * options.retention_bytes:
            return True
        if not options.retention_us:
            return False
        since_us = self._since_us(place, now_us)
        return bool(since_us and now_us - since_us > factor * options.retention_us)

    def _since_us(self, place: _Place, now_us: int) -> int:
        """Return the time (us) since which everything before the place has been there, 0 if that is not known.

        The last TICK before it tells. Before the log's first TICK, and where a wrong clock dated the ticks in the future, a later
        place tells: what is before this one is no younger than what is before that one. After ticks from the future, the time at
        which this disk wrote the snapshot counts.
        """
        if 0 < place.time_us <= now_us:
            return place.time_us
        for first, _ in self._sizes():
            later = self._place(first) if first >= max(place.position, place.reach) else None
            if later is not None:
                times = (later.time_us, later.written_us if later.time_us > now_us else 0)
                found = next((time_us for time_us in times if 0 < time_us <= now_us), 0)
                if found:
                    return found
        tick_us = self._indexer.state.tick_time
        return tick_us if tick_us <= now_us else 0

    def _slowest(self) -> tuple[str, int]:
        """The reader of `keep_for` that has read least, and up to where; one that never said anything has read nothing."""
        readers = self._indexer.state.readers
        names = () if self._options.lane else self._options.keep_for
        return min(((name, readers.get(name, 0)) for name in names), key=lambda one: one[1], default=("", limits.POSITION_MAX))

    def _sizes(self) -> list[tuple[int, int]]:
        newest = self._segments[-1].first if self._segments else 0
        if self._known[0] != newest:
            firsts = positions_named(self._directory, "seg")
            self._known = newest, [(first, os.path.getsize(segment_path(self._directory, first))) for first in firsts]
        return self._known[1]

    def _place(self, position: int) -> _Place | None:
        """The start of a segment, as its snapshot says."""
        place = self._places.get(position)
        if place is None:
            snapshot = read_snapshot(self._directory, position)
            if snapshot is None:
                return None
            written_us = os.stat(snapshot_path(self._directory, position)).st_mtime_ns // NS_PER_US
            # A lane has no ticks: its snapshot was written when all before it was decided here.
            time_us = written_us if self._options.lane else snapshot.state.tick_time
            place = _Place(position, snapshot.state.next_offset, time_us, written_us=written_us)
            self._places[position] = place
        return place

    # Transactions that reach back

    def _waits_before(self, position: int) -> bool:
        """Whether a batch that stands before the position may still become visible."""
        return any(staged < position for staged in self._indexer.state.staged)

    def _behind_txns(self, place: _Place) -> _Place:
        """The place, behind the last TXN from it on that makes visible what stands before it."""
        over = [txn for txn in self._reaching if txn.low < place.position <= txn.position]
        return place if not over else _Place(place.position, over[-1].offset, over[-1].time_us, over[-1].position)

    def _look_on(self) -> bool:
        """Look through TXNs that were decided since, some at a time; whether all of them were looked at. What cannot be read may be
        one, and is mended first.
        """
        last = self._indexer.indexed
        if self._options.lane or self._looked >= last:
            return True
        firsts = positions_named(self._directory, "seg")
        self._looked = max(self._looked, self.start.first - 1)
        self._reaching = [txn for txn in self._reaching if txn.position >= self.start.first]
        budget, until = LOOKED_AT_ONCE, self._looked + ROWS_AT_ONCE
        try:
            for view, rows in Catalog(self._directory).positions(self._looked + 1, min(last, until), Upto(last, last)):
                ticks = rows[rows["kind"] == Kind.TICK]
                txns = rows[rows["kind"] == Kind.TXN][:budget]
                for row in txns:
                    times = ticks["max_timestamp"][ticks["position"] < row["position"]]
                    self._reached(view.frame(row), row, int(times[-1]) if len(times) else self._ticked, firsts)
                budget -= len(txns)
                self._looked = int((rows if budget else txns)["position"][-1])
                before = ticks["max_timestamp"][ticks["position"] <= self._looked]
                self._ticked = int(before[-1]) if len(before) else self._ticked
                if not budget:
                    break
        except FormatError:
            return False
        return self._looked >= last

    def _reached(self, frame: Frame, row: np.void, time_us: int, firsts: Sequence[int]) -> None:
        """Note a TXN that makes visible what stands in a segment before its own."""
        low = min(decode_body(TxnBody, frame.body).staged)
        at = bisect_right(firsts, low)
        if at < len(firsts) and firsts[at] <= frame.position:
            self._reaching.append(_Reaching(low, frame.position, int(row["offset"]) + int(row["count"]), time_us))
