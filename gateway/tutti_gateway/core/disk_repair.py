"""What a disk lost of a decided log is fetched from another gateway, while everything goes on (design, section 6).

The disk says what it lost, a range at a time, and what is still lost after each write: it alone can tell whether the frames that
came are those that stood there. Here is only who is asked, one after another, and that nothing waits for ever. What is decided is
the same everywhere, so any gateway that has it decided is a source. The ordered log and each lane have one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tutti.data.frames.frame import Frame, chained
from tutti_gateway.core import limits
from tutti_gateway.core.frame_runs import whole


class Far(Protocol):
    """How far the others are."""

    def distance_us(self, number: int) -> int:
        """One-way distance to the gateway."""

    def round_beats(self) -> int:
        """Heartbeats in a round trip to the furthest."""


class Mending:
    """Asks the nearest gateway that has it, one question at a time, in heartbeat time; of several that fail, one after the other.

    Args:
        sources: who is heard and has a position decided.
        ask: asks one for the frames from a first to a last position.
        write: has frames written where they were lost.

    Attributes:
        first, last: what is wanted; 0 and 0 while nothing is.
    """

    __slots__ = ("_ask_for", "_asked", "_far", "_gave", "_silent", "_sources", "_unable", "_wait", "_write", "first", "last")

    def __init__(
        self,
        far: Far,
        sources: Callable[[int], Iterable[int]],
        ask: Callable[[int, int, int], None],
        write: Callable[[tuple[Frame, ...]], None],
    ) -> None:
        self._far = far
        self._sources = sources
        self._ask_for = ask
        self._write = write
        self.first = self.last = 0
        self._asked = 0  # of whom frames from `first` on were asked, 0 while nobody was
        self._silent = 0  # heartbeats since
        self._wait = 0  # heartbeats until all are asked once more
        self._gave = 0  # whose frames the disk is writing
        self._unable: set[int] = set()  # who did not give what stood there

    def rotted(self, first: int, last: int) -> None:
        """The disk says what is lost; 0 and 0 for nothing."""
        if self._gave and first == self.first:
            self._unable.add(self._gave)  # it was not what stood there, or did not come to the disk whole
        else:
            self._unable.clear()
        self.first, self.last = first, last
        self._gave = self._asked = self._wait = 0
        self._ask()

    def fetched(self, sender: int, first: int, frames: tuple[Frame, ...]) -> bool:
        """Frames came from `first` on; whether they were for this. An answer that comes late, on a slow link, is as good as any."""
        if self._gave or not self.first or first != self.first:
            return False
        good = self._good(frames)
        if good:
            self._gave, self._asked = sender, 0
            self._write(good)
            return True
        self._unable.add(sender)
        if sender == self._asked:
            self._asked = 0
            self._ask()
        return True

    def _good(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Those that are wanted, as far as they came whole and continue each other."""
        good: list[Frame] = []
        for frame in frames:
            following = not good or chained(frame, good[-1].header_crc)
            if frame.position != self.first + len(good) or frame.position > self.last or not following or not whole(frame):
                break
            good.append(frame)
        return tuple(good)

    def beat(self) -> None:
        """One heartbeat: who does not answer is passed over; once nobody was able, all are asked again after a while."""
        if not self.first or self._gave:
            return
        if self._asked:
            self._silent += 1
            patience = limits.RESEND_HEARTBEATS + 2 * self._far.round_beats()
            if self._silent < patience and self._asked in self._sources(self.first):
                return
            self._unable.add(self._asked)
            self._asked = 0
        if self._wait:
            self._wait -= 1
            if not self._wait:
                self._unable.clear()
        if not self._wait:
            self._ask()

    def _ask(self) -> None:
        if not self.first:
            return
        sources = [(self._far.distance_us(number), number) for number in self._sources(self.first)]
        able = [source for source in sources if source[1] not in self._unable]
        if able:
            self._asked, self._silent = min(able)[1], 0
            self._ask_for(self._asked, self.first, self.last)
        elif sources:
            self._wait = limits.MEND_WAIT_HEARTBEATS
