"""The interface of the stack for the driver, so that a recorder can wrap the stack, and of the log for the disk thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti.log.files.options import FreeSpace
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.events import Event, Now, TrimProposed
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.log.upkeep.retention import BlockedSegments
from tutti_gateway.log.upkeep.scrubber import CorruptRange
from tutti_gateway.log.upkeep.snapshot_scrubber import SnapshotScrubber


class Scrubber(Protocol):
    """The part of `tutti_gateway.log.upkeep.scrubber.LogScrubber` that the disk thread uses."""

    message: str
    found: int
    repaired: int
    rounds: int

    @property
    def snapshots(self) -> SnapshotScrubber:
        """The scrubber of snapshots, whose steps are part of this scrubber's rounds."""

    @property
    def lost(self) -> CorruptRange | None:
        """The range to fetch from another gateway; None if every frame is readable."""

    @property
    def urgent(self) -> bool:
        """True if a read has failed at some position, so that the scrubber must check that position soon."""

    def scrub(self) -> bool:
        """Check the next part of the log. Return True if `lost` has changed."""

    def repair(self, frames: Sequence[Frame]) -> int:
        """Write frames that replace lost ones. Return how many of them were written."""

    def suspect(self, position: int) -> None:
        """Schedule an early check of a position, because a reader could not read it."""


class Stack(Protocol):
    """The part of `tutti_gateway.core.stack.Stack` that the driver uses."""

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        """Process an event. Return the actions to execute, in order."""


class TrimPolicy(Protocol):
    """The part of `tutti_gateway.log.upkeep.retention.LogRetention` that the disk thread uses."""

    def propose(self, now_us: int) -> TrimProposed | None:
        """Return the trim that retention allows at a time (us, UTC), or None."""

    @property
    def blocked(self) -> BlockedSegments | None:
        """The data that retention would trim if a named reader did not block it; None if there is none."""

    def read_snapshot(self, position: int, at: int) -> tuple[int, int, bytes]:
        """Return the last position and the size of the log's first snapshot, and the snapshot's chunk that starts at byte `at`."""


class Log(Protocol):
    """The part of `tutti_gateway.log.writer.LogWriter` that the disk thread uses. Any call may be repeated after `DiskFull`."""

    @property
    def scrubber(self) -> Scrubber:
        """The scrubber of the decided log."""

    def append(self, frames: Sequence[Frame], *, must: bool = False) -> None:
        """Write frames without a sync. If `must` is True, use the reserved disk space if necessary."""

    def sync(self) -> None:
        """Make all appended frames durable."""

    def write_hard_state(self, scalars: HardState) -> None:
        """Make the hard state durable."""

    def truncate(self, position: int) -> None:
        """Truncate the log after a position, durably."""

    def read(self, first: int, last: int) -> tuple[tuple[Frame, ...], int]:
        """Return valid durable frames from `first` on that fit into one answer, and the last position that no later ABORT
        covers.
        """

    def decided(self, frames: Sequence[Frame], offsets: Sequence[int], aborted: frozenset[int]) -> None:
        """Index a decided run."""

    def idle(self) -> bool:
        """Do background work while nothing is queued. Return True to be called again soon."""

    def space(self) -> FreeSpace:
        """Return the free disk space."""

    @property
    def corrupt_end(self) -> Damage | None:
        """The corrupt range at the end of the log, until it is overwritten or abandoned; None if there is none."""

    @property
    def retention(self) -> TrimPolicy:
        """Retention of the log."""

    def replace(self, snapshot: bytes) -> None:
        """Replace the log by a snapshot, durably."""
