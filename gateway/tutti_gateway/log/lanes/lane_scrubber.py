"""What is decided in lanes is looked at, a piece of one lane at a time, and what cannot be read is written anew in place.

Each lane has a `Mender` as the ordered log has (`mending.py`); here is only which lane comes next, and what is known of each. That
somebody could not read a lane is kept in a file in its directory until all of it could be read, so that no restart forgets it.
Nothing of this keeps a lane from being written: what is lost is below its end, and the others have it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from tutti.data.frames.frame import Frame
from tutti.data.lane_name import LaneName
from tutti.errors import DirectoryRefused, FormatError
from tutti.log.files.lane_paths import SUSPECT, lane_path, lanes_there
from tutti.log.files.storage import Storage
from tutti_gateway.core.protocol.events import LaneRotted
from tutti_gateway.log.upkeep.scrubber import Mender

_SOON = "somebody could not read it, and all of it is looked at"
_CLOSED = "it cannot be opened, and nothing of it is looked at before the next start; the other lanes are"
_FETCHED = "it is fetched from another gateway that has it, and written again in place; until then the others serve it"


class LaneMending:
    """Looks, and mends. Owned by the thread that writes lanes, but for `damaged`, which any thread may read.

    Attributes:
        damaged: lanes of which something decided cannot be read here: what is known of it, and what is done about it.
        rounds: how often all lanes were looked at; mended: how many frames were written again.
    """

    def __init__(
        self,
        directory: str,
        storage: Storage,
        mender: Callable[[LaneName], Mender],
        lanes: Callable[[], Sequence[LaneName]],
    ) -> None:
        """Prepare.

        Args:
            directory: the gateway's.
            mender: of a lane, which is opened for it.
            lanes: those that are open, which are looked at without a reason, too.
        """
        self._directory = directory
        self._storage = storage
        self._mender = mender
        self._open = lanes
        self._suspects: dict[LaneName, Mender | None] = {}  # and who looks: a lane that was closed meanwhile has another one
        self._lost: dict[LaneName, tuple[int, int]] = {}
        self._passed: set[LaneName] = set()  # those that cannot be opened
        self._round: list[LaneName] = []
        self._news: list[str] = []
        self.damaged: dict[LaneName, str] = {}
        self.rounds = self.mended = 0

    def start(self) -> None:
        """What the run before suspected is looked at first."""
        for lane in lanes_there(self._directory):
            if os.path.exists(self._file(lane)):
                self._suspects[lane] = None
                self.damaged[lane] = _SOON

    def suspect(self, lane: LaneName) -> bool:
        """Somebody could not read the lane; whether that is news."""
        if lane in self._suspects or lane in self._lost or lane in self._passed:
            return False
        self._suspects[lane] = None
        self.damaged[lane] = _SOON
        self._storage.replace_file(self._file(lane), b"", durable=False)
        return True

    def _file(self, lane: LaneName) -> str:
        return os.path.join(lane_path(self._directory, lane), SUSPECT)

    @property
    def hurried(self) -> bool:
        """Whether something is to be looked at soon."""
        return any(lane not in self._lost for lane in self._suspects)

    def look(self) -> LaneRotted | None:
        """Look at the next piece: what came to be known as lost of a lane, or as lost no more; None if nothing did.

        Raises:
            DiskFailed, DiskFull: what was made again could not be written.
            OSError: a file could not be looked at now.
        """
        lane = next((one for one in self._suspects if one not in self._lost), None) or self._next()
        if lane is None:
            return None
        try:
            mender = self._mender(lane)
            if lane in self._suspects and self._suspects[lane] is not mender:
                self._suspects[lane] = mender
                mender.suspect_all()
            mender.look()
        except (FormatError, DirectoryRefused) as error:
            return self._pass_over(lane, error)
        self._news += mender.snapshots.news()
        return self._learned(lane, mender)

    def _pass_over(self, lane: LaneName, error: Exception) -> LaneRotted | None:
        """A lane that cannot be opened keeps no other from being looked at: it is told, once. Its file stays for the next start."""
        self._passed.add(lane)
        self._suspects.pop(lane, None)
        if lane in self._round:
            self._round.remove(lane)
        self.damaged[lane] = f"{_CLOSED}: {error}"
        self._news.append(f"lane {lane.text}: {self.damaged[lane]}")
        return LaneRotted(*lane, 0, 0) if self._lost.pop(lane, None) is not None else None

    def news(self) -> list[str]:
        """What became known of snapshots in lanes, and of lanes that cannot be opened, since this was asked: sentences."""
        news, self._news = self._news, []
        return news

    def _next(self) -> LaneName | None:
        """The lane whose turn it is."""
        there = [lane for lane in self._open() if lane not in self._passed]
        self._round = [lane for lane in self._round if lane in there] or there
        return self._round[0] if self._round else None

    def _learned(self, lane: LaneName, mender: Mender) -> LaneRotted | None:
        """What a look, or a mend, came to; None where that is no news."""
        lost = (mender.lost.first, mender.lost.last) if mender.lost is not None else None
        before = self._lost.pop(lane, None)
        if lane in self._round and (lost is not None or not mender.looking):
            self._round.remove(lane)
            self.rounds += not self._round
        if lost is not None:
            self._lost[lane] = lost
            self.damaged[lane] = f"{mender.told}: {_FETCHED}"
            return LaneRotted(*lane, *lost) if lost != before else None
        if self._suspects.get(lane) is mender and not mender.hurried:
            del self._suspects[lane]
            with contextlib.suppress(FileNotFoundError):
                self._storage.remove(self._file(lane))
        if lane in self._suspects:
            self.damaged[lane] = _SOON
        else:
            self.damaged.pop(lane, None)
        return LaneRotted(*lane, 0, 0) if before is not None else None

    def mend(self, lane: LaneName, frames: Sequence[Frame]) -> LaneRotted:
        """Write what was lost of a lane, as far as the frames are what stood there; what is lost of it now.

        Raises:
            DiskFull, DiskFailed: they could not be written.
        """
        try:
            mender = self._mender(lane)
            if mender.lost is None:  # it was closed meanwhile: it is looked for anew
                self._lost.pop(lane, None)
                self.suspect(lane)
            self.mended += mender.mend(frames)
        except (FormatError, DirectoryRefused) as error:
            return self._pass_over(lane, error) or LaneRotted(*lane, 0, 0)
        self._lost.pop(lane, None)
        return self._learned(lane, mender) or LaneRotted(*lane, 0, 0)
