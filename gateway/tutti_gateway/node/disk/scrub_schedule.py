"""Schedule of the scrubber in the disk threads, and the repair of the corrupt frames that it finds (design, section 6).

The scrubber checks the decided log in parts while the disk thread is idle. If the disk is never idle, the scrubber runs when a
scrub is overdue. The thread reports an unreadable range to the operator and to the stack, which fetches the range from another
gateway. The thread reports only one range at a time, so that the queue of repairs stays bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from tutti.errors import DiskFailed, DiskFull
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import RepairLog
from tutti_gateway.core.protocol.events import Event, LogCorrupt
from tutti_gateway.node.common.interfaces import Scrubber

US = 1_000_000
_LOST = "a part of the log cannot be read; another gateway that has it sends a copy; without one, run `tutti log repair`"
SNAPSHOT = "a snapshot is corrupt, or was written again; no record is lost, and retention continues"
LATE_S = 2.0  # a thread that is never idle scrubs only after a scrub has been overdue for this time

Result = TypeVar("Result")


class ScrubGuard:
    """Runs scrub steps so that a failed step does not end the disk thread.

    Attributes:
        ended: True after a defect has ended scrubbing.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        """Begin without failures. `log` receives messages for the operator."""
        self._log = log
        self._trouble = ""  # the failure that is already logged; empty after a step without failure
        self.ended = False

    def run(self, act: Callable[[], Result]) -> Result | None:
        """Run a scrub step; return its result, or None if the step failed. An unexpected exception ends scrubbing, but not the
        thread.

        Raises:
            DiskFull, DiskFailed: as `act`.
        """
        try:
            done = act()
        except (DiskFull, DiskFailed):
            raise
        except OSError as error:  # a file that cannot be opened now may be readable at the next scrub
            trouble, self._trouble = self._trouble, str(error)
            if trouble != self._trouble:
                self._log.warning("a scrub step failed and is tried again", error=str(error))
        except Exception:  # noqa: BLE001 - a defect in the scrubber must not end the disk thread
            self.ended = True
            self._log.exception("the scrubber ended because of a defect; reads still check every frame that they read")
        else:
            self._trouble = ""
            return done
        return None


class ScrubSchedule(ScrubGuard):
    """Scrub and repair of the ordered log. Owned by the disk thread, except for `to_dict`."""

    def __init__(self, scrubber: Scrubber, report: Callable[[Event], None], log: FilteringBoundLogger) -> None:
        """Begin without repairs.

        Args:
            scrubber: the scrubber of the log.
            report: receives events for the stack.
            log: receives messages for the operator.
        """
        super().__init__(log)
        self._scrubber = scrubber
        self._report = report
        self._repairs: deque[RepairLog] = deque()
        self._next_scrub_at = 0.0
        self._rounds = 0

    @property
    def waiting(self) -> int:
        """Number of repairs that wait to be written."""
        return len(self._repairs)

    def put(self, action: RepairLog) -> None:
        """Queue frames that replace lost ones."""
        if not self.ended:
            self._repairs.append(action)

    def suspect(self, position: int) -> None:
        """Make the scrubber check a position soon, because a reader could not read it."""
        self._scrubber.suspect(position)

    def drop(self) -> None:
        """Drop the queued repairs, because writing has failed."""
        self._repairs.clear()

    def wanted(self, now: float, late: float) -> bool:
        """True if a repair must be written or a scrub is at least `late` seconds overdue."""
        return bool(self._repairs) or now >= self._next_scrub_at + late

    def repair(self) -> bool:
        """Write one queued repair. Return True if there was one.

        Raises:
            DiskFailed: the write failed.
        """
        # A defect in the scrubber also ends repairs, because the scrubber's code checks and writes the frames.
        if not self._repairs or self.ended:
            self._repairs.clear()
            return False
        action = self._repairs.popleft()
        try:
            count = self.run(lambda: self._scrubber.repair(action.frames)) or 0
        except DiskFull:
            count = 0  # the stack requests the range again later
        if count and self._scrubber.lost is None:
            up_to, repaired = action.frames[count - 1].position, self._scrubber.repaired
            self._log.info("the unreadable part of the log is repaired", up_to=up_to, repaired=repaired)
        self._report_lost()  # reported even after a failed write, because the stack waits for the report before its next request
        return True

    def scrub(self, late: float = 0.0) -> bool:
        """Scrub a part if a scrub is at least `late` seconds overdue. Return True if the next part is due soon.

        Raises:
            DiskFailed: a repaired file could not be written.
        """
        scrubber, now = self._scrubber, time.monotonic()
        if self.ended or (now < self._next_scrub_at + late and not (scrubber.urgent and not late)):
            return False
        if self.run(scrubber.scrub):
            self._report_lost()
            if scrubber.lost is not None:
                self._log.error(_LOST, damage=scrubber.message)
        for finding in scrubber.snapshots.pop_messages():
            self._log.warning(SNAPSHOT, finding=finding)
        # The pause after a complete round is longer than the pause between two parts.
        round_done, self._rounds = scrubber.rounds > self._rounds, scrubber.rounds
        # The pause begins at the end of a step, so that the scrubber reads at most 4 MiB a second (log, D20).
        self._next_scrub_at = time.monotonic() + (limits.SCRUB_PAUSE_US if round_done else limits.SCRUB_WAIT_US) / US
        return scrubber.urgent

    def _report_lost(self) -> None:
        lost = self._scrubber.lost
        self._report(LogCorrupt(lost.first, lost.last) if lost is not None else LogCorrupt(0, 0))

    def to_dict(self, found_at_start: int = 0) -> dict[str, object]:
        """Return the values for the status: the lost range, and the numbers of losses, repaired frames and scrub rounds.

        `found_at_start` is the number of losses that the start of the gateway has found.
        """
        scrubber, lost = self._scrubber, self._scrubber.lost
        return {
            "lost": [lost.first, lost.last] if lost is not None else [],
            "told": scrubber.message,
            "found": found_at_start + scrubber.found,
            "mended_frames": scrubber.repaired,
            "rounds": scrubber.rounds,
        }
