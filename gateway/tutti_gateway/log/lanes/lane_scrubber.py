"""Scrubs the decided frames of lanes, one piece of one lane at a time, and repairs corrupt frames in place.

Each lane has its own scrubber (`scrubber.py`). This module chooses the next lane and keeps the results. After a failed read of a
lane, a file in the lane's directory marks the lane as suspected until a scrub has read the whole lane, even after a restart of the
gateway. A corrupt lane still accepts writes, because the corrupt frames are before the lane's end and other gateways have them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from tutti.data.frames.frame import Frame
from tutti.data.lane_name import LaneName
from tutti.errors import DirectoryRefused, FormatError
from tutti.log.files.lane_paths import SUSPECT, lane_path, list_lanes
from tutti.log.files.storage import Storage
from tutti_gateway.core.protocol.events import LaneCorrupt
from tutti_gateway.log.upkeep.scrubber import LogScrubber

_SOON = "a read of the lane failed, and the whole lane is scrubbed"
_CLOSED = "the lane cannot be opened and is not scrubbed before the next start; the other lanes are"
_FETCHED = "the gateway fetches the frames from another gateway and rewrites them; until then the others serve them"


class LaneScrubber:
    """Checks and repairs lanes. Only the thread that writes lanes may call its methods; any thread may read `damaged`.

    Attributes:
        damaged: a message for each lane that is suspected, corrupt or not scrubbed.
        rounds: number of complete scrub rounds over all lanes.
        repaired: number of frames rewritten since the start.
    """

    def __init__(
        self,
        directory: str,
        storage: Storage,
        scrubber: Callable[[LaneName], LogScrubber],
        lanes: Callable[[], Sequence[LaneName]],
    ) -> None:
        """Create a scrubber of lanes.

        Args:
            directory: data directory of the gateway.
            scrubber: returns the scrubber of a lane, and opens the lane if it is closed.
            lanes: returns the open lanes. Closed lanes are scrubbed only if they are suspected.
        """
        self._directory = directory
        self._storage = storage
        self._scrubber_of = scrubber
        self._open_lanes = lanes
        # for each suspected lane, the scrubber that checks it; None before the check begins
        self._suspects: dict[LaneName, LogScrubber | None] = {}
        self._lost: dict[LaneName, tuple[int, int]] = {}
        self._skipped: set[LaneName] = set()  # lanes that cannot be opened
        self._round: list[LaneName] = []
        self._messages: list[str] = []
        self.damaged: dict[LaneName, str] = {}
        self.rounds = self.repaired = 0

    def start(self) -> None:
        """Load the lanes that the previous run suspected, so that they are scrubbed first."""
        for lane in list_lanes(self._directory):
            if os.path.exists(self._file(lane)):
                self._suspects[lane] = None
                self.damaged[lane] = _SOON

    def suspect(self, lane: LaneName) -> bool:
        """Record that a read of the lane failed, and return True if the lane was not suspected before."""
        if lane in self._suspects or lane in self._lost or lane in self._skipped:
            return False
        self._suspects[lane] = None
        self.damaged[lane] = _SOON
        # This file needs no sync: if a power loss removes the file, the lane is only scrubbed later.
        self._storage.replace_file(self._file(lane), b"", durable=False)
        return True

    def _file(self, lane: LaneName) -> str:
        return os.path.join(lane_path(self._directory, lane), SUSPECT)

    @property
    def urgent(self) -> bool:
        """True if a lane must be scrubbed soon."""
        return any(lane not in self._lost for lane in self._suspects)

    def scrub(self) -> LaneCorrupt | None:
        """Scrub the next piece of a lane. Return the lane's corrupt range if it has changed, else None.

        Raises:
            DiskFailed, DiskFull: a rebuilt file could not be written.
            OSError: a file could not be read.
        """
        # Suspected lanes come first. A lane whose corrupt range is known waits for frames of another gateway.
        lane = next((one for one in self._suspects if one not in self._lost), None) or self._next()
        if lane is None:
            return None
        try:
            scrubber = self._scrubber_of(lane)
            # If the lane was closed and opened again, its new scrubber has not checked any part of the lane yet.
            if lane in self._suspects and self._suspects[lane] is not scrubber:
                self._suspects[lane] = scrubber
                scrubber.suspect_all()
            scrubber.scrub()
        except (FormatError, DirectoryRefused) as error:
            return self._skip(lane, error)
        self._messages += scrubber.snapshots.pop_messages()
        return self._record_result(lane, scrubber)

    def _skip(self, lane: LaneName, error: Exception) -> LaneCorrupt | None:
        """Skip a lane until the next start, because it cannot be opened, and add one message for the operator.

        The file that marks a suspected lane remains.
        """
        self._skipped.add(lane)
        self._suspects.pop(lane, None)
        if lane in self._round:
            self._round.remove(lane)
        self.damaged[lane] = f"{_CLOSED}: {error}"
        self._messages.append(f"lane {lane.text}: {self.damaged[lane]}")
        return LaneCorrupt(*lane, 0, 0) if self._lost.pop(lane, None) is not None else None

    def pop_messages(self) -> list[str]:
        """Return and clear the collected messages for the operator, which are about snapshots and skipped lanes."""
        messages, self._messages = self._messages, []
        return messages

    def _next(self) -> LaneName | None:
        """Return the next lane of the scrub round, or None if no lane is open. Begin a new round if this one is complete."""
        open_lanes = [lane for lane in self._open_lanes() if lane not in self._skipped]
        self._round = [lane for lane in self._round if lane in open_lanes] or open_lanes
        return self._round[0] if self._round else None

    def _record_result(self, lane: LaneName, scrubber: LogScrubber) -> LaneCorrupt | None:
        """Record the result of a scrub or a repair. Return the lane's corrupt range if it has changed, else None."""
        lost = (scrubber.lost.first, scrubber.lost.last) if scrubber.lost is not None else None
        before = self._lost.pop(lane, None)
        # A lane with a corrupt range leaves the round, which would otherwise wait for frames of another gateway.
        if lane in self._round and (lost is not None or not scrubber.in_round):
            self._round.remove(lane)
            self.rounds += not self._round
        if lost is not None:
            self._lost[lane] = lost
            self.damaged[lane] = f"{scrubber.message}: {_FETCHED}"
            return LaneCorrupt(*lane, *lost) if lost != before else None
        # A scrub has read the whole lane since the failed read, which ends the suspicion.
        if self._suspects.get(lane) is scrubber and not scrubber.urgent:
            del self._suspects[lane]
            with contextlib.suppress(FileNotFoundError):
                self._storage.remove(self._file(lane))
        if lane in self._suspects:
            self.damaged[lane] = _SOON
        else:
            self.damaged.pop(lane, None)
        return LaneCorrupt(*lane, 0, 0) if before is not None else None

    def repair(self, lane: LaneName, frames: Sequence[Frame]) -> LaneCorrupt:
        """Write those of `frames` that fit into the corrupt range of a lane.

        Return the range that is still corrupt, with positions 0 and 0 if nothing is corrupt any more.

        Raises:
            DiskFull, DiskFailed: the frames could not be written.
        """
        try:
            scrubber = self._scrubber_of(lane)
            if scrubber.lost is None:  # the lane was closed and opened again, so a new scrub must find the corrupt range
                self._lost.pop(lane, None)
                self.suspect(lane)
            self.repaired += scrubber.repair(frames)
        except (FormatError, DirectoryRefused) as error:
            return self._skip(lane, error) or LaneCorrupt(*lane, 0, 0)
        self._lost.pop(lane, None)
        return self._record_result(lane, scrubber) or LaneCorrupt(*lane, 0, 0)
