"""Lane cursors: read the unordered records of all lanes, one lane after another."""

from __future__ import annotations

import time
from datetime import datetime

from tutti import limits
from tutti.common.deadlines import Deadline
from tutti.data.scan_request import ScanBatch
from tutti.errors import OffsetOutOfRange, Unavailable, UsageError
from tutti.reading.cursor import Cursor
from tutti.sources.flight import FlightSource
from tutti.sources.source import Bound, Frontier, LaneInfo, resolve_bound

_PAUSE_S = limits.LANES_POLL_US_MIN / 1e6
_PAUSE_S_MAX = limits.LANES_POLL_US_MAX / 1e6


def find_lane(reads: FlightSource, origin: str) -> LaneInfo:
    """Return the lane of an `origin`, which is the name of a gateway (its newest lane) or of a lane (NUMBER-INCARNATIONHEX).

    Raises:
        UsageError: no lane matches.
    """
    lanes = reads.lanes()
    found = [lane for lane in lanes if origin == lane.lane or (origin == lane.gateway and lane.newest)]
    if not found:
        names = ", ".join(sorted({lane.gateway for lane in lanes}))
        known = f"the gateways with lanes are {names}" if names else "no gateway has a lane yet"
        raise UsageError(f"origin {origin!r} has no lane: {known}; give a gateway's name, or a lane as NUMBER-INCARNATION")
    return found[0]


class LaneCursors:
    """One cursor for each lane, which reads one lane after another. With `follow`, also reads lanes that appear later.

    In a lane, "earliest" is the first record that still exists when the reading of the lane begins. If retention removes unread
    records later, the read fails with `OffsetOutOfRange`.

    Args:
        reads: source that lists the lanes.
        start, end: "earliest", "latest" or an aware datetime, resolved in each lane; by default the first record of each lane, and
            the current frontier of each lane (with `follow`, no end).
        follow, topics, columns, patience: as in `Cursor`.
    """

    def __init__(
        self,
        reads: FlightSource,
        start: Bound | None,
        end: Bound | None,
        follow: bool,
        topics: tuple[str, ...] | None,
        columns: tuple[str, ...],
        patience: float,
    ) -> None:
        """Request the list of lanes and create a cursor for each lane."""
        for what, bound in (("start", start), ("end", end)):
            if isinstance(bound, int) and not isinstance(bound, bool):
                raise UsageError(f"{what}={bound!r} is an offset, which only counts in one lane: choose the lane with origin=")
            if bound is not None and not isinstance(bound, datetime):
                resolve_bound(reads, what, bound, Frontier("", 0, 0, 0, 0, 0, ""))
        self._reads = reads
        self._start, self._end = start, end
        self._follow = follow
        self._cursor_args = follow, topics, columns, patience
        self._patience = patience
        self._cursors: dict[str, Cursor] = {}
        self._sources: dict[str, FlightSource] = {}
        self._frontiers: dict[str, int] = {}
        self._unread_from_earliest: set[str] = set()  # lanes without a read record, whose range starts at "earliest"
        self._start_tried: dict[str, int] = {}  # lane -> position at which `_recover_start` has already searched all gateways
        self._current: str = ""  # the lane of the last batch
        self._pause = _PAUSE_S
        # lane -> monotonic time of the first failed request since its frontier was last known
        self._unknown_since: dict[str, float] = {}
        for lane in reads.lanes():
            self._add(lane, start, self._frontier(lane))

    @property
    def position(self) -> dict[str, int]:
        """The next offset to read in each lane, by lane name (NUMBER-INCARNATIONHEX)."""
        return {name: cursor.position for name, cursor in self._cursors.items()}

    @property
    def end(self) -> dict[str, int] | None:
        """The exclusive end offset of each lane; None without an end."""
        if self._follow and self._end is None:
            return None
        return {name: cursor.end for name, cursor in self._cursors.items() if cursor.end is not None}

    @property
    def mark(self) -> tuple[str, int]:
        """See `CursorProtocol.mark`."""
        cursor = self._cursors.get(self._current)
        return self._current, cursor.position if cursor is not None else 0

    @property
    def lane(self) -> str:
        """See `CursorProtocol.lane`."""
        return self._current

    def advance(self, offset: int) -> None:
        """See `CursorProtocol.advance`."""
        self._cursors[self._current].advance(offset)

    def finished(self) -> bool:
        """See `CursorProtocol.finished`."""
        return (not self._follow or self._end is not None) and all(cursor.finished() for cursor in self._cursors.values())

    def open(self, deadline: Deadline) -> bool:
        """See `CursorProtocol.open`. With `follow`, one request polls the frontiers of all lanes, and idle polls become rarer."""
        current = self._cursors.get(self._current)
        if current is not None and current.is_open():
            return True
        if self._next(deadline):
            return True
        left = deadline.left()
        if self._follow:
            for lane in self._reads.lanes(min(left, self._patience)):
                frontier = self._poll_frontier(lane)
                if frontier is not None:
                    self._add(lane, "earliest", frontier)
            if self._next(deadline):
                return True
            time.sleep(min(self._pause, deadline.left()))
            self._pause = min(2 * self._pause, _PAUSE_S_MAX)
        return False

    def _next(self, deadline: Deadline) -> bool:
        """Open a scan of the next lane with unread records, round-robin. Return False if no lane has unread records."""
        names = list(self._cursors)
        after = 0
        if self._current:
            after = names.index(self._current) + (not self._cursors[self._current].has_unread)  # a partly read lane comes first
        for name in [*names[after:], *names[:after]]:
            cursor = self._cursors[name]
            upto = self._frontiers[name] if cursor.end is None else min(self._frontiers[name], cursor.end)
            if upto > cursor.position:
                self._current, self._pause = name, _PAUSE_S
                cursor.open_upto(upto, deadline)
                return True
        return False

    def next_batch(self) -> ScanBatch | None:
        """See `CursorProtocol.next_batch`."""
        try:
            batch = self._cursors[self._current].next_batch()
        except OffsetOutOfRange:
            if self._current in self._unread_from_earliest and self._recover_start(self._current):
                return None
            raise
        self._unread_from_earliest.discard(self._current)
        return batch

    def _recover_start(self, name: str) -> bool:
        """Handle the removal of the first records of an unread lane. Return True if the caller can retry.

        Use a gateway that still has the removed records. If no gateway has them, start at the lowest offset that a gateway has.
        """
        cursor, source = self._cursors[name], self._sources[name]
        position = cursor.position
        if self._start_tried.get(name) == position:
            start = source.frontier().start  # the gateway with the lowest start was tried already, and its read failed
        else:
            self._start_tried[name] = position
            source, start = source.with_earliest_start()
            if start <= position:
                self._sources[name] = cursor.source = source
                return True
        if start <= position:
            return False
        self._sources[name] = cursor.source = source
        cursor.skip_to(start)
        return True

    def _frontier(self, lane: LaneInfo, patience: float | None = None) -> Frontier:
        """Return the frontier of a lane. If the gateway that listed the lane has lost or halted it, request it from other gateways.

        Raises:
            Unavailable: no other gateway returned the frontier.
        """
        if lane.lane not in self._sources:
            self._sources[lane.lane] = self._reads.lane_source(lane)
        if lane.lost or lane.halted:
            return self._sources[lane.lane].frontier(patience=patience)
        return Frontier("", lane.start, lane.frontier, lane.position, 0, 0, "")

    def _poll_frontier(self, lane: LaneInfo) -> Frontier | None:
        """Return the frontier of a lane after one attempt. Return None on failure, so that the reader continues with other lanes.

        Raises:
            Unavailable: the frontier has been unknown for `patience` seconds.
        """
        try:
            frontier = self._frontier(lane, patience=0.0)
        except Unavailable as error:
            now = time.monotonic()
            silence = now - self._unknown_since.setdefault(lane.lane, now)
            if silence < self._patience:
                return None
            raise type(error)(
                f"lane {lane.lane} of gateway {lane.gateway} has been unreadable for {silence:.1f} s: {error}"
            ) from error
        self._unknown_since.pop(lane.lane, None)
        return frontier

    def _add(self, lane: LaneInfo, start: Bound | None, frontier: Frontier) -> None:
        """Record the frontier of a lane; for a new lane, create the cursor."""
        if lane.lane not in self._cursors:
            source = self._sources[lane.lane]
            first = resolve_bound(source, "start", "earliest" if start is None else start, frontier)
            last = None if self._follow and self._end is None else resolve_bound(source, "end", self._end or "latest", frontier)
            self._cursors[lane.lane] = Cursor(source, first, None if last is None else max(first, last), *self._cursor_args)
            if start in (None, "earliest"):
                self._unread_from_earliest.add(lane.lane)
        if self._cursors[lane.lane].position >= frontier.offset:
            # The lane has no unread records now, so a later removal of unread records is a gap, and the reader raises.
            self._unread_from_earliest.discard(lane.lane)
        self._sources[lane.lane].note_frontier(frontier.offset)
        self._frontiers[lane.lane] = max(frontier.offset, self._frontiers.get(lane.lane, 0))

    def close(self) -> None:
        """See `CursorProtocol.close`."""
        for cursor in self._cursors.values():
            cursor.close()
        self._reads.close()
