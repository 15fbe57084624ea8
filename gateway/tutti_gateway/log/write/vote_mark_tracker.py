"""Tracks the content of the next vote mark: the durable end and the frontier of the log.

If the end of the log becomes corrupt, marks still record the position where the log ended before, because the frames up to there
were durable. The log's real end is recorded again when the corrupt range is rewritten or abandoned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tutti.data.frames.frame import Frame
from tutti.log.format.vote_mark import VoteMark
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Damage

_US = 1_000_000

End = tuple[int, int, int]  # the end of a log: position, view and chain value of the last frame


class MarkTracker:
    """Follows the syncs of a log, and creates marks that record the durable end after these syncs.

    Attributes:
        durable: the end of the log that the last sync made durable.
        frontier: last decided position, and the offset after the last decided record.
        newest: the newest durable mark.
        written: the mark that was written to a slot and is not durable yet, or None.
        damage: the corrupt range at the end of the log, or None. Marks record the end of this range as the durable end.
    """

    def __init__(self, durable: End, frontier: tuple[int, int], newest: VoteMark, damage: Damage | None) -> None:
        """Create a tracker with the durable end, the frontier, the newest mark and the corrupt range that recovery found."""
        self.durable = durable
        self.frontier = frontier
        self.newest = newest
        self.written: VoteMark | None = None
        self.damage = damage
        self._sequence = newest.sequence
        self._since = 0.0  # time (monotonic, s) of the first sync that the newest mark does not cover

    @property
    def marked_end(self) -> End:
        """Return the end that the next mark records: the end of the corrupt range or, without a corrupt range, the durable end."""
        damage = self.damage
        return self.durable if damage is None else (damage.last, damage.view, damage.chain)

    @property
    def stale(self) -> bool:
        """True if a new mark would contain another end or another frontier than the newest durable mark."""
        return self.newest.position != self.marked_end[0] or self.newest.frontier_position != self.frontier[0]

    def due(self, now: float, late_us: int) -> bool:
        """True if the next write must carry a mark, because the newest mark does not cover many frames, or not an old sync.

        Args:
            now: monotonic time, seconds.
            late_us: age at which the oldest uncovered sync makes a mark due, us.
        """
        # The previous mark must become durable with a sync before the next mark is written.
        if self.written is not None or (
            self.durable[0] - self.newest.position < limits.MARK_FRAMES and now - self._since < late_us / _US
        ):
            return False
        return self.stale

    def next(self, end: End | None = None) -> VoteMark:
        """Return a new mark that records `end`, by default `marked_end`, as the durable end."""
        self._sequence += 1
        return VoteMark(self._sequence, *(end or self.marked_end), *self.frontier, now_us())

    def contradicted(self, frames: Sequence[Frame]) -> bool:
        """True if `frames` would put a different frame at the last position of the corrupt range."""
        damage = self.damage
        if damage is None or not frames[0].position <= damage.last <= frames[-1].position:
            return False
        return frames[damage.last - frames[0].position].header_crc != damage.chain

    def sequence_of_next(self) -> int:
        """Reserve the next sequence number for a mark that another module creates, and return the number."""
        self._sequence += 1
        return self._sequence

    def log_replaced(self, end: End, frontier: tuple[int, int], mark: VoteMark) -> None:
        """Record that a snapshot replaced the log, and that `mark` is durable."""
        self.frontier = frontier
        self.truncated(end, mark)

    def synced(self, end: End, now: float) -> bool:
        """Record that the log is durable up to `end`, and return True if the sync also made a mark durable.

        Args:
            end: the end of the log that the sync made durable.
            now: monotonic time, seconds.
        """
        if self.written is not None or self.newest.position >= self.durable[0]:
            self._since = now  # a mark covers all earlier syncs, so this sync is the oldest one without a mark
        self.durable = end
        # The corrupt range is completely rewritten, so marks record the durable end again.
        if self.damage is not None and end[0] >= self.damage.last:
            self.damage = None
        if self.written is None:
            return False
        self.newest, self.written = self.written, None
        return True

    def set(self, mark: VoteMark) -> None:
        """Record `mark`, which is durable, as the newest mark."""
        self.newest, self.written = mark, None

    def truncated(self, end: End, mark: VoteMark) -> None:
        """Record that the log was truncated to `end`, and that `mark` is durable."""
        self.durable = end
        self.damage = None
        self.set(mark)


def now_us() -> int:
    """Return the time of the wall clock in microseconds."""
    return time.time_ns() // 1000
