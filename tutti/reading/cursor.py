"""Cursor: the position of a reader in one log, and the batches that follow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tutti.common.deadlines import Deadline
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.sources.source import Source


class CursorProtocol(Protocol):
    """Interface of cursors over one log or over several lanes. No method waits longer than the deadline given to `open`."""

    @property
    def position(self) -> object:
        """The next offset to read, as `Reader.position` returns it."""

    @property
    def end(self) -> object:
        """The exclusive end, as `Reader.end` returns it; None for a range without an end."""

    @property
    def mark(self) -> object:
        """The lane and position in comparable form. Two different marks show that another call moved the position in between."""

    @property
    def lane(self) -> str:
        """The lane of the last batch; empty for the ordered log."""

    def advance(self, offset: int) -> None:
        """Set the position in the log of the last batch: the caller has received every record below this offset."""

    def finished(self) -> bool:
        """Return True if the position has reached the end of the range."""

    def open(self, deadline: Deadline) -> bool:
        """Open a scan from the position up to the frontier. Return False if no committed record is available."""

    def next_batch(self) -> ScanBatch | None:
        """Return the next batch of the open scan; None after the last batch."""

    def close(self) -> None:
        """Release the source."""


class Cursor:
    """A cursor over a range of one log. With `follow`, the cursor waits for records that are committed later.

    Args:
        source: source of the log's records.
        position: first offset.
        end: exclusive end offset (None: no end).
        follow: wait for records that are committed later.
        topics, columns: as in `ScanRequest`.
        patience: seconds to search for a gateway.
        lane: the lane whose log the cursor reads; empty for the ordered log.
    """

    def __init__(
        self,
        source: Source,
        position: int,
        end: int | None,
        follow: bool,
        topics: tuple[str, ...] | None,
        columns: tuple[str, ...],
        patience: float,
        lane: str = "",
    ) -> None:
        """Create a cursor at `position`, without a request to the source."""
        self.lane = lane
        self.source = source
        self.position = position
        self.end = end
        self._follow = follow
        self._topics = topics
        self._columns = columns
        self._patience = patience
        self._batches: Iterator[ScanBatch] | None = None
        self._upto = self._reached = position

    @property
    def mark(self) -> int:
        """See `CursorProtocol.mark`."""
        return self.position

    def advance(self, offset: int) -> None:
        """See `CursorProtocol.advance`."""
        self.position = offset

    def skip_to(self, start: int) -> None:
        """Move the start of an unread range to a later offset; move the end too if it would be below the new start."""
        self.position = start
        self.end = None if self.end is None else max(self.end, start)

    def finished(self) -> bool:
        """See `CursorProtocol.finished`."""
        return self.end is not None and self.position >= self.end

    def open(self, deadline: Deadline) -> bool:
        """See `CursorProtocol.open`; with `follow`, wait until the frontier is above the position."""
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
        """Return True if a scan is open and its next batch begins at the position."""
        if self._reached != self.position:  # the caller stopped within a batch, so it needs a new scan from the position
            self._batches = None
        return self._batches is not None

    @property
    def has_unread(self) -> bool:
        """True if the position is below the end of the latest scan."""
        return self.position < self._upto

    def open_upto(self, upto: int, deadline: Deadline) -> None:
        """Open a scan from the position up to a committed offset."""
        self._upto, self._reached = upto, self.position
        # With `follow`, a topic need not exist yet (`absent_ok`), because the cursor waits for its first record.
        request = ScanRequest(self.position, upto, self._topics, self._columns, absent_ok=self._follow, time_left=deadline.left)
        self._batches = self.source.scan(request)

    def next_batch(self) -> ScanBatch | None:
        """See `CursorProtocol.next_batch`; after the last batch, the position is the end of the scan."""
        # if `next` raises, the scan has ended, and the next call of `open` opens another
        batches, self._batches = self._batches, None
        batch = None if batches is None else next(batches, None)
        if batch is None:
            self.position = self._upto
        else:
            self._reached, self._batches = batch.next, batches
        return batch

    def close(self) -> None:
        """See `CursorProtocol.close`."""
        self._batches = None
        self.source.close()
