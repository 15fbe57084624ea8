"""When the disk thread looks at what was decided long ago, and what is done with what it finds (design, section 6).

It looks while nothing else is to be done, a piece at a time; a disk that never rests spares a moment now and then. What cannot be
read is told to the stack, which fetches it from another gateway, and to the operator; a range at a time, so that what waits stays
bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from tutti.errors import DiskFailed, DiskFull
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Mend
from tutti_gateway.core.protocol.events import Event, Rotted
from tutti_gateway.node.common.interfaces import Mender

US = 1_000_000
_LOST = "a part of the log cannot be read: it is fetched from another gateway that has it; alone, see `tutti log repair`"
SNAPSHOT = "a snapshot is damaged, or was made again; no record is lost by it, and retention goes on"
LATE_S = 2.0  # a disk that never rests looks for damage so late

Result = TypeVar("Result")


class Sparing:
    """Looks for damage without ending what it stands beside.

    Attributes:
        over: a defect ended the looking.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        """`log` is for the operator."""
        self._log = log
        self._trouble = ""  # that was told and lasts
        self.over = False

    def spared(self, act: Callable[[], Result]) -> Result | None:
        """Do something; a defect in it ends the looking, and no more than that. None where it came to no end.

        Raises:
            DiskFull, DiskFailed: as `act`.
        """
        try:
            done = act()
        except (DiskFull, DiskFailed):
            raise
        except OSError as error:  # a file that cannot be opened now: the next look may find it, or find it lost
            trouble, self._trouble = self._trouble, str(error)
            if trouble != self._trouble:
                self._log.warning("a look for damage could not be finished; it is begun again until it can be", error=str(error))
        except Exception:  # noqa: BLE001 - looking at what is decided is beside the work, and must not end it
            self.over = True
            self._log.exception("looking for damage met a defect and ends; reads go on checking what they read")
        else:
            self._trouble = ""
            return done
        return None


class Scrubbing(Sparing):
    """Owned by the disk thread, but for `to_dict`, which looks."""

    def __init__(self, mender: Mender, report: Callable[[Event], None], log: FilteringBoundLogger) -> None:
        """Prepare; `report` takes events for the stack, `log` is for the operator."""
        super().__init__(log)
        self._mender = mender
        self._report = report
        self._mends: deque[Mend] = deque()
        self._look_at = 0.0
        self._rounds = 0

    @property
    def waiting(self) -> int:
        """How many pieces wait to be written."""
        return len(self._mends)

    def put(self, action: Mend) -> None:
        """Frames came for what is lost."""
        if not self.over:
            self._mends.append(action)

    def suspect(self, position: int) -> None:
        """Somebody could not read the position."""
        self._mender.suspect(position)

    def drop(self) -> None:
        """Nothing is written any more."""
        self._mends.clear()

    def wanted(self, now: float, late: float) -> bool:
        """Whether something is to be mended, or to be looked at for `late` seconds."""
        return bool(self._mends) or now >= self._look_at + late

    def mend(self) -> bool:
        """Write one piece of what was lost; whether there was one.

        Raises:
            DiskFailed: it could not be written.
        """
        if not self._mends or self.over:
            self._mends.clear()
            return False
        action = self._mends.popleft()
        try:
            count = self.spared(lambda: self._mender.mend(action.frames)) or 0
        except DiskFull:
            count = 0  # it is asked for again after a while
        if count and self._mender.lost is None:
            self._log.info("what could not be read is mended", up_to=action.frames[count - 1].position, mended=self._mender.mended)
        self._tell()
        return True

    def look(self, late: float = 0.0) -> bool:
        """Look at a piece if it is time, or has been for `late` seconds; whether the next one is wanted soon.

        Raises:
            DiskFailed: what was made again could not be written.
        """
        mender, now = self._mender, time.monotonic()
        if self.over or (now < self._look_at + late and not (mender.hurried and not late)):
            return False
        if self.spared(mender.look):
            self._tell()
            if mender.lost is not None:
                self._log.error(_LOST, damage=mender.told)
        for told in mender.snapshots.news():
            self._log.warning(SNAPSHOT, told=told)
        rested, self._rounds = mender.rounds > self._rounds, mender.rounds
        self._look_at = time.monotonic() + (limits.SCRUB_REST_US if rested else limits.SCRUB_WAIT_US) / US
        return mender.hurried

    def _tell(self) -> None:
        lost = self._mender.lost
        self._report(Rotted(lost.first, lost.last) if lost is not None else Rotted(0, 0))

    def to_dict(self) -> dict[str, object]:
        """For the status: what is lost now, how often something was, what was mended, and rounds over all of the log."""
        mender, lost = self._mender, self._mender.lost
        return {
            "lost": [lost.first, lost.last] if lost is not None else [],
            "told": mender.told,
            "found": mender.found,
            "mended_frames": mender.mended,
            "rounds": mender.rounds,
        }
