"""What this member's disk lost of decided lanes, its own among them, is fetched from another gateway and written in place.

The disk says what it lost of a lane, a range at a time (`LaneRotted`), and what is still lost after each `MendLane`: it alone can
tell whether the frames that came are those that stood there. Here is only who is asked, one after another, and that nothing waits
for ever. A frame is named by lane, attempt and position, and what is decided is the same everywhere: so any gateway that has it
decided is a source, the lane's origin like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.core import limits
from gateway.core.events import LaneRotted
from gateway.core.messages import LaneFetch, LaneFetched
from gateway.core.runs import whole
from gateway.core.unordered.box import Box
from gateway.data.frame import Frame, chained

Key = tuple[int, bytes]  # origin's number, incarnation of its disk


class _Wanted:
    """What is lost of one lane.

    Attributes:
        first, last: its positions.
        asked: of whom, 0 while nobody was; silent: heartbeats since.
        wait: heartbeats until all are asked once more.
        gave: whose frames the disk is writing.
        unable: who did not give what stood there.
    """

    __slots__ = ("asked", "first", "gave", "last", "silent", "unable", "wait")

    def __init__(self) -> None:
        self.first = self.last = self.asked = self.silent = self.wait = self.gave = 0
        self.unable: set[int] = set()


class LaneMending:
    """Asks for what is lost, one question at a time for each lane.

    Args:
        ends: up to where each gateway that is heard has a lane decided, as it says.
    """

    def __init__(self, box: Box, ends: Callable[[Key], Mapping[int, int]]) -> None:
        self._box = box
        self._ends = ends
        self._lanes: dict[Key, _Wanted] = {}

    def on_rotted(self, event: LaneRotted) -> None:
        """The disk says what is lost of a lane."""
        key = event.origin, event.incarnation
        if not event.first:
            self._lanes.pop(key, None)
            return
        wanted = self._lanes.setdefault(key, _Wanted())
        if wanted.gave and wanted.first == event.first:
            wanted.unable.add(wanted.gave)  # it was not what stood there, or did not come to the disk whole
        else:
            wanted.unable.clear()
        wanted.first, wanted.last = event.first, event.last
        wanted.gave = wanted.asked = wanted.wait = 0
        self._ask(key, wanted)

    def on_fetched(self, sender: int, message: LaneFetched) -> bool:
        """Frames came; whether they were for this. An answer that comes late, on a slow link, is as good as any."""
        key = message.origin, message.incarnation
        wanted = self._lanes.get(key)
        if wanted is None or wanted.gave or not message.frames or message.frames[0].position != wanted.first:
            return False
        wanted.asked = 0
        frames = _good(message.frames, wanted)
        if frames:
            wanted.gave = sender
            self._box.mend(key, frames)
        else:
            wanted.unable.add(sender)
            self._ask(key, wanted)
        return True

    def beat(self) -> None:
        """One heartbeat: who does not answer is passed over; once nobody was able, all are asked again after a while."""
        for key, wanted in self._lanes.items():
            if wanted.gave:
                continue
            if wanted.asked:
                wanted.silent += 1
                if wanted.silent < limits.RESEND_HEARTBEATS:
                    continue
                wanted.unable.add(wanted.asked)
                wanted.asked = 0
            if wanted.wait:
                wanted.wait -= 1
                if not wanted.wait:
                    wanted.unable.clear()
            if not wanted.wait:
                self._ask(key, wanted)

    def _ask(self, key: Key, wanted: _Wanted) -> None:
        sources = [source for source, decided in self._ends(key).items() if decided >= wanted.first]
        able = [source for source in sources if source not in wanted.unable]
        if able:
            wanted.asked, wanted.silent = min(able), 0
            self._box.send(wanted.asked, LaneFetch(*key, wanted.first))
        elif sources:
            wanted.wait = limits.MEND_WAIT_HEARTBEATS


def _good(frames: tuple[Frame, ...], wanted: _Wanted) -> tuple[Frame, ...]:
    """Those that are wanted, as far as they came whole and continue each other."""
    good: list[Frame] = []
    for frame in frames:
        following = not good or chained(frame, good[-1].header_crc)
        if frame.position != wanted.first + len(good) or frame.position > wanted.last or not following or not whole(frame):
            break
        good.append(frame)
    return tuple(good)
