"""Origins: unordered records, which stand in the lanes of the gateways that took them. A reader goes through one lane, or all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from tutti import limits
from tutti.common.durations import Deadline
from tutti.errors import OffsetOutOfRange, Unavailable, UsageError
from tutti.reading.cursor import Cursor
from tutti.sources.flight import Reads
from tutti.sources.source import Frontier, LaneInfo, Piece, Place, place_of

_PAUSE_S = limits.LANES_LOOK_US_MIN / 1e6
_PAUSE_S_MAX = limits.LANES_LOOK_US_MAX / 1e6


def lane_named(reads: Reads, origin: str) -> LaneInfo:
    """The lane that a gateway's name (its newest one) or NUMBER-INCARNATIONHEX stands for.

    Raises:
        UsageError: there is none.
    """
    lanes = reads.lanes()
    found = [lane for lane in lanes if origin == lane.lane or (origin == lane.gateway and lane.newest)]
    if not found:
        names = ", ".join(sorted({lane.gateway for lane in lanes}))
        there = f"there are those of {names}" if names else "there is no lane yet"
        raise UsageError(
            f"there is no lane of origin {origin!r}: {there}; name a gateway, or one of its lanes as NUMBER-INCARNATION"
        )
    return found[0]


class Origins:
    """All lanes, each in order, one after another; while following, new ones as they appear, from their beginning.

    "earliest" is what a lane still holds when it is begun: what retention takes from it before that was never part of the reading.
    In a lane that was begun, or of which there was nothing to read yet, what goes unread is told (`OffsetOutOfRange`).

    Args:
        reads: asks which lanes there are.
        start, end: places that every lane has: "earliest", "latest" or an aware datetime; None is the beginning, and what is
            committed now, or nothing with `follow`.
        follow, topics, columns, patience: as of `Cursor`.
    """

    def __init__(
        self,
        reads: Reads,
        start: Place | None,
        end: Place | None,
        follow: bool,
        topics: Sequence[str] | None,
        columns: Sequence[str] | None,
        patience: float,
    ) -> None:
        """Look which lanes there are."""
        for what, place in (("start", start), ("end", end)):
            if isinstance(place, int) and not isinstance(place, bool):
                raise UsageError(f"{what}={place!r} is an offset, which one origin's lane has: name it with origin=")
            if place is not None and not isinstance(place, datetime):
                place_of(reads, what, place, Frontier("", 0, 0, 0, 0, 0, ""))
        self._reads = reads
        self._start, self._end = start, end
        self._follow = follow
        self._how = follow, topics, columns, patience
        self._patience = patience
        self._cursors: dict[str, Cursor] = {}
        self._sources: dict[str, Reads] = {}
        self._frontiers: dict[str, int] = {}
        self._to_begin: set[str] = set()  # lanes that are to be read from their earliest record, and nothing was read of them yet
        self._reached_back: dict[str, int] = {}  # lane -> where it was placed when all gateways were asked for what it still holds
        self._now: str = ""  # the lane that the last piece is of
        self._pause = _PAUSE_S
        self._unread: dict[str, float] = {}  # lane -> since when no gateway says how far it is
        for lane in reads.lanes():
            self._add(lane, start, self._frontier(lane))

    @property
    def position(self) -> dict[str, int]:
        """Lane (NUMBER-INCARNATIONHEX) -> the offset to go on from there."""
        return {name: cursor.position for name, cursor in self._cursors.items()}

    @property
    def end(self) -> dict[str, int] | None:
        """Lane -> the offset to stop before; None while following without end."""
        if self._follow and self._end is None:
            return None
        return {name: cursor.end for name, cursor in self._cursors.items() if cursor.end is not None}

    @property
    def mark(self) -> tuple[str, int]:
        """As `Reading.mark`."""
        cursor = self._cursors.get(self._now)
        return self._now, cursor.position if cursor is not None else 0

    @property
    def lane(self) -> str:
        """As `Reading.lane`."""
        return self._now

    def advance(self, offset: int) -> None:
        """As `Reading.advance`."""
        self._cursors[self._now].advance(offset)

    def finished(self) -> bool:
        """As `Reading.finished`."""
        return (not self._follow or self._end is not None) and all(cursor.finished() for cursor in self._cursors.values())

    def open(self, deadline: Deadline) -> bool:
        """As `Reading.open`; one question asks for the frontiers of all lanes, again and again while nothing comes."""
        current = self._cursors.get(self._now)
        if current is not None and current.is_open():
            return True
        if self._next(deadline):
            return True
        left = deadline.left()
        if self._follow:
            for lane in self._reads.lanes(min(left, self._patience)):
                frontier = self._frontier_now(lane)
                if frontier is not None:
                    self._add(lane, "earliest", frontier)
            if self._next(deadline):
                return True
            time.sleep(min(self._pause, deadline.left()))
            self._pause = min(2 * self._pause, _PAUSE_S_MAX)
        return False

    def _next(self, deadline: Deadline) -> bool:
        """Go to the next lane that has something, behind the present one; whether there is one."""
        names = list(self._cursors)
        after = 0
        if self._now:
            after = names.index(self._now) + (not self._cursors[self._now].left)  # one that was left in its middle goes on
        for name in [*names[after:], *names[:after]]:
            cursor = self._cursors[name]
            upto = self._frontiers[name] if cursor.end is None else min(self._frontiers[name], cursor.end)
            if upto > cursor.position:
                self._now, self._pause = name, _PAUSE_S
                cursor.open_upto(upto, deadline)
                return True
        return False

    def piece(self) -> Piece | None:
        """As `Reading.piece`."""
        try:
            piece = self._cursors[self._now].piece()
        except OffsetOutOfRange:
            if self._now in self._to_begin and self._placed_again(self._now):
                return None
            raise
        self._to_begin.discard(self._now)
        return piece

    def _placed_again(self, name: str) -> bool:
        """Place a lane, whose first records are gone before it was begun, at the first one that a gateway holds, or turn to one
        that still holds all of them; whether it goes on so.
        """
        cursor, source = self._cursors[name], self._sources[name]
        placed = cursor.position
        if self._reached_back.get(name) == placed:
            start = source.frontier().start  # the one that held more cannot be read from
        else:
            self._reached_back[name] = placed
            source, start = source.reaching_back()
            if start <= placed:
                self._sources[name] = cursor.source = source
                return True
        if start <= placed:
            return False
        self._sources[name] = cursor.source = source
        cursor.begin_later(start)
        return True

    def _frontier(self, lane: LaneInfo, patience: float | None = None) -> Frontier:
        """How far a lane is: as was told, or where that gateway cannot tell all of it, as the others say.

        Raises:
            Unavailable: it is lost at the gateway that was asked, and no other one says.
        """
        if lane.lane not in self._sources:
            self._sources[lane.lane] = self._reads.of_lane(lane)
        if lane.lost or lane.halted:
            return self._sources[lane.lane].frontier(patience=patience)
        return Frontier("", lane.start, lane.frontier, lane.position, 0, 0, "")

    def _frontier_now(self, lane: LaneInfo) -> Frontier | None:
        """The same for who looks again and again: of a lane that is lost one gateway is asked each time, and None says: not known
        yet. The other lanes are read meanwhile.

        Raises:
            Unavailable: so it was for the reader's patience.
        """
        try:
            frontier = self._frontier(lane, patience=0.0)
        except Unavailable as error:
            now = time.monotonic()
            silence = now - self._unread.setdefault(lane.lane, now)
            if silence < self._patience:
                return None
            raise type(error)(f"lane {lane.lane} of gateway {lane.gateway} cannot be read, for {silence:.1f} s: {error}") from error
        self._unread.pop(lane.lane, None)
        return frontier

    def _add(self, lane: LaneInfo, start: Place | None, frontier: Frontier) -> None:
        """Take note of how far a lane is, and of a new one where it begins and ends for this reader."""
        if lane.lane not in self._cursors:
            source = self._sources[lane.lane]
            first = place_of(source, "start", "earliest" if start is None else start, frontier)
            last = None if self._follow and self._end is None else place_of(source, "end", self._end or "latest", frontier)
            self._cursors[lane.lane] = Cursor(source, first, None if last is None else max(first, last), *self._how)
            if start in (None, "earliest"):
                self._to_begin.add(lane.lane)
        if self._cursors[lane.lane].position >= frontier.offset:
            self._to_begin.discard(lane.lane)  # all of it was read: what comes now is not to be missed
        self._sources[lane.lane].saw(frontier.offset)
        self._frontiers[lane.lane] = max(frontier.offset, self._frontiers.get(lane.lane, 0))

    def close(self) -> None:
        """As `Reading.close`."""
        for cursor in self._cursors.values():
            cursor.close()
        self._reads.close()
