"""A cursor: where a reader is in one log, and what comes next there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tutti.common.durations import Deadline
from tutti.sources.source import Piece, Source


class Reading(Protocol):
    """What a reader goes through: one log, or several lanes. It does not wait beyond the deadline of the call."""

    @property
    def position(self) -> object:
        """Where to go on, for who asks."""

    @property
    def end(self) -> object:
        """Where to stop before, likewise; None for never."""

    @property
    def mark(self) -> object:
        """Where it is now, to see whether somebody else went on."""

    @property
    def lane(self) -> str:
        """The lane that the last piece is of; empty for the ordered log."""

    def advance(self, offset: int) -> None:
        """Everything below this offset was given, of the log that the last piece is of."""

    def finished(self) -> bool:
        """Whether the range is read."""

    def open(self, deadline: Deadline) -> bool:
        """Read on from where it is, as far as there is something committed; whether there is."""

    def piece(self) -> Piece | None:
        """The next one of what was opened; None behind the last."""

    def close(self) -> None:
        """Let go of what is open."""


class Cursor:
    """A range of one log, or one that follows it.

    Args:
        source: the log.
        position: first offset. end: the offset to stop before; None is never.
        follow: wait for what is committed later.
        topics, columns: only these; None is all.
        patience: seconds that a gateway is looked for.
        lane: whose log it is; empty for the ordered one.
    """

    def __init__(
        self,
        source: Source,
        position: int,
        end: int | None,
        follow: bool,
        topics: Sequence[str] | None,
        columns: Sequence[str] | None,
        patience: float,
        lane: str = "",
    ) -> None:
        """Begin at `position`; nothing is opened yet."""
        self.lane = lane
        self.source = source
        self.position = position
        self.end = end
        self._follow = follow
        self._topics = topics
        self._columns = columns
        self._patience = patience
        self._pieces: Iterator[Piece] | None = None
        self._upto = self._reached = position

    @property
    def mark(self) -> int:
        """As `Reading.mark`."""
        return self.position

    def advance(self, offset: int) -> None:
        """As `Reading.advance`."""
        self.position = offset

    def begin_later(self, start: int) -> None:
        """Begin at a later offset, nothing having been read yet; the range ends no earlier than it begins."""
        self.position = start
        self.end = None if self.end is None else max(self.end, start)

    def finished(self) -> bool:
        """As `Reading.finished`."""
        return self.end is not None and self.position >= self.end

    def open(self, deadline: Deadline) -> bool:
        """As `Reading.open`; it waits for the frontier of a log that it follows."""
        if self.is_open():
            return True
        upto = self.end
        if self._follow:
            left = deadline.left()
            frontier = self.source.frontier(self.position, left, min(left, self._patience)).offset
            if frontier <= self.position:
                return False
            upto = frontier if upto is None else min(upto, frontier)
        self.open_upto(self.position if upto is None else upto, deadline)
        return True

    def is_open(self) -> bool:
        """Whether pieces come from the position on; those of a batch that was left in its middle do not."""
        if self._reached != self.position:
            self._pieces = None
        return self._pieces is not None

    @property
    def left(self) -> bool:
        """Whether something was opened that was not given."""
        return self.position < self._upto

    def open_upto(self, upto: int, deadline: Deadline) -> None:
        """Have pieces come up to an offset that is committed."""
        self._upto, self._reached = upto, self.position
        self._pieces = self.source.pieces(
            self.position, upto, self._topics, self._columns, absent_ok=self._follow, left=deadline.left
        )

    def piece(self) -> Piece | None:
        """As `Reading.piece`; behind the last one the position is at its end."""
        pieces, self._pieces = self._pieces, None  # what raises has ended: it is opened anew where it was
        piece = None if pieces is None else next(pieces, None)
        if piece is None:
            self.position = self._upto
        else:
            self._reached, self._pieces = piece.next, pieces
        return piece

    def close(self) -> None:
        """As `Reading.close`."""
        self._pieces = None
        self.source.close()
