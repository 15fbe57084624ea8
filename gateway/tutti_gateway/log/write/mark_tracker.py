"""What the next mark is to say: how far the log is durable and decided, and what of its end was durable and cannot be read."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tutti.data.frames.frame import Frame
from tutti.log.format.vote_mark import Mark
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Damage

_US = 1_000_000

End = tuple[int, int, int]  # of a log: position, view and chain of its last frame


class Marking:
    """Follows the syncs of a log.

    Attributes:
        durable: the end that the last sync reached.
        frontier: last decided position, and the offset behind its last record.
        newest: the newest durable mark.
        written: one that stands in a slot and is not durable yet.
        damage: what marks go on naming until it is written anew or given up.
    """

    def __init__(self, durable: End, frontier: tuple[int, int], newest: Mark, damage: Damage | None) -> None:
        """Go on from what a start found."""
        self.durable = durable
        self.frontier = frontier
        self.newest = newest
        self.written: Mark | None = None
        self.damage = damage
        self._sequence = newest.sequence
        self._since = 0.0  # when the first sync ended that the newest mark does not name

    @property
    def held(self) -> End:
        """The end that a mark names: the durable one, or a damaged one that was durable."""
        damage = self.damage
        return self.durable if damage is None else (damage.last, damage.view, damage.chain)

    @property
    def behind(self) -> bool:
        """Whether the newest durable mark says less than is known."""
        return self.newest.position != self.held[0] or self.newest.frontier_position != self.frontier[0]

    def due(self, now: float, late_us: int) -> bool:
        """Whether the next write brings a mark: what was synced since the newest is much, or old (of `late_us`, at `now` in s)."""
        if self.written is not None or (
            self.durable[0] - self.newest.position < limits.MARK_FRAMES and now - self._since < late_us / _US
        ):
            return False
        return self.behind

    def next(self, end: End | None = None) -> Mark:
        """The next mark; it names `end` if that is given."""
        self._sequence += 1
        return Mark(self._sequence, *(end or self.held), *self.frontier, now_us())

    def contradicted(self, frames: Sequence[Frame]) -> bool:
        """Whether these, which are to be written next, put another frame in the place of the damaged end."""
        damage = self.damage
        if damage is None or not frames[0].position <= damage.last <= frames[-1].position:
            return False
        return frames[damage.last - frames[0].position].header_crc != damage.chain

    def sequence_of_next(self) -> int:
        """The number of a mark that is made elsewhere: above all others."""
        self._sequence += 1
        return self._sequence

    def replaced(self, end: End, frontier: tuple[int, int], mark: Mark) -> None:
        """The log is another one, and `mark` says so durably."""
        self.frontier = frontier
        self.cut(end, mark)

    def synced(self, end: End, now: float) -> bool:
        """The log is durable up to `end` at `now` (s), and so is what stands in the slot: whether there was something new in it."""
        if self.written is not None or self.newest.position >= self.durable[0]:
            self._since = now  # all before it has its mark
        self.durable = end
        if self.damage is not None and end[0] >= self.damage.last:
            self.damage = None
        if self.written is None:
            return False
        self.newest, self.written = self.written, None
        return True

    def set(self, mark: Mark) -> None:
        """The mark is the newest, and durable; none waits in a slot."""
        self.newest, self.written = mark, None

    def cut(self, end: End, mark: Mark) -> None:
        """The log was cut, and `mark` says so durably."""
        self.durable = end
        self.damage = None
        self.set(mark)


def now_us() -> int:
    """Wall clock, us."""
    return time.time_ns() // 1000
