"""Tracks the content of the next vote mark: the durable end and the frontier of the log.

While a corrupt end of the log is not restored, the next mark still names that end, because it was durable before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tutti.data.frames.frame import Frame
from tutti.log.format.vote_mark import VoteMark
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Damage

_US = 1_000_000

End = tuple[int, int, int]  # the end of a log: position, view and chain value of its last frame


class MarkTracker:
    """Follows the syncs of a log, and creates the marks that name their result.

    Attributes:
        durable: the end that the last sync reached.
        frontier: last decided position, and the offset after its last record.
        newest: the newest durable mark.
        written: a mark that was written to a slot and is not durable yet.
        damage: a corrupt range. Marks name its end until the range is rewritten or abandoned.
    """

    def __init__(self, durable: End, frontier: tuple[int, int], newest: VoteMark, damage: Damage | None) -> None:
        """Start from the state that recovery found."""
        self.durable = durable
        self.frontier = frontier
        self.newest = newest
        self.written: VoteMark | None = None
        self.damage = damage
        self._sequence = newest.sequence
        self._since = 0.0  # time (monotonic, s) of the first sync that the newest mark does not cover

    @property
    def marked_end(self) -> End:
        """Return the end that the next mark names: the durable end, or the end of the corrupt range."""
        damage = self.damage
        return self.durable if damage is None else (damage.last, damage.view, damage.chain)

    @property
    def stale(self) -> bool:
        """True if a new mark would differ from the newest durable mark in its end or its frontier."""
        return self.newest.position != self.marked_end[0] or self.newest.frontier_position != self.frontier[0]

    def due(self, now: float, late_us: int) -> bool:
        """True if the next write must carry a mark, because many frames or an old sync are not covered by the newest mark.

        Args:
            now: monotonic time, seconds.
            late_us: age at which the oldest uncovered sync makes a mark due, us.
        """
        # A written mark must become durable with a sync before the next mark is written.
        if self.written is not None or (
            self.durable[0] - self.newest.position < limits.MARK_FRAMES and now - self._since < late_us / _US
        ):
            return False
        return self.stale

    def next(self, end: End | None = None) -> VoteMark:
        """Return a new mark that names `end`, by default `marked_end`."""
        self._sequence += 1
        return VoteMark(self._sequence, *(end or self.marked_end), *self.frontier, now_us())

    def contradicted(self, frames: Sequence[Frame]) -> bool:
        """True if the next frames include a different frame for the position at which the corrupt range ends."""
        damage = self.damage
        if damage is None or not frames[0].position <= damage.last <= frames[-1].position:
            return False
        return frames[damage.last - frames[0].position].header_crc != damage.chain

    def sequence_of_next(self) -> int:
        """Reserve and return the next sequence number, for a mark that another module creates."""
        self._sequence += 1
        return self._sequence

    def log_replaced(self, end: End, frontier: tuple[int, int], mark: VoteMark) -> None:
        """Record that a snapshot replaced the log, and that `mark` is durable."""
        self.frontier = frontier
        self.truncated(end, mark)

    def synced(self, end: End, now: float) -> bool:
        """Record that the log is durable up to `end`, and return True if the sync also made a mark durable.

        Args:
            end: the durable end.
            now: monotonic time, seconds.
        """
        if self.written is not None or self.newest.position >= self.durable[0]:
            self._since = now  # a mark covers all earlier syncs, so this sync is the oldest one without a mark
        self.durable = end
        # The log has its corrupt range back, so the durable end is again the right end for marks.
        if self.damage is not None and end[0] >= self.damage.last:
            self.damage = None
        if self.written is None:
            return False
        self.newest, self.written = self.written, None
        return True

    def set(self, mark: VoteMark) -> None:
        """Record a durable mark as the newest; no mark is pending in a slot."""
        self.newest, self.written = mark, None

    def truncated(self, end: End, mark: VoteMark) -> None:
        """Record that the log was truncated to `end`, and that `mark` is durable."""
        self.durable = end
        self.damage = None
        self.set(mark)


def now_us() -> int:
    """Return the wall clock, us."""
    return time.time_ns() // 1000
