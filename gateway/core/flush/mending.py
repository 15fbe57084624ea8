"""What this member's disk lost of the decided log is fetched from another gateway, while everything goes on (design, section 6).

The disk says what it lost, a range at a time (`Rotted`), and what is still lost after each `Mend`: it alone can tell whether the
frames that came are those that stood there. Here is only who is asked, and that nothing waits for ever. A gateway alone asks
nobody.
"""

from __future__ import annotations

from gateway.core import limits
from gateway.core.context import Context
from gateway.core.events import Rotted
from gateway.core.messages import Fetch, Fetched
from gateway.core.peers import Peers
from gateway.core.runs import whole
from gateway.data.frame import Frame, chained


class Mending:
    """Asks the nearest gateway that has it, one question at a time, in heartbeat time; of several that fail, one after the other.

    Attributes:
        first, last: what is wanted; 0 and 0 while nothing is.
    """

    def __init__(self, context: Context, peers: Peers) -> None:
        self._outbox = context.outbox
        self._peers = peers
        self.first = self.last = 0
        self._asked = 0  # of whom frames from `first` on were asked, 0 while nobody was
        self._silent = 0  # heartbeats since
        self._wait = 0  # heartbeats until all are asked once more
        self._gave = 0  # whose frames the disk is writing
        self._unable: set[int] = set()

    def on_rotted(self, event: Rotted) -> None:
        """The disk says what is lost."""
        if self._gave and event.first == self.first:
            self._unable.add(self._gave)  # they were not what stood there, or did not come to the disk whole
        else:
            self._unable.clear()
        self.first, self.last = event.first, event.last
        self._gave = self._asked = self._wait = 0
        self._ask()

    def on_fetched(self, sender: int, message: Fetched) -> bool:
        """Frames came; whether they were for this."""
        if message.view or sender != self._asked or message.first != self.first:
            return False
        self._asked = 0
        frames = self._good(message.frames)
        if frames:
            self._gave = sender
            self._outbox.mend(frames)
        else:
            self._unable.add(sender)
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
        """One heartbeat: look for a source, ask again, and again of all once nobody was able."""
        if not self.first or self._gave:
            return
        if self._asked:
            self._silent += 1
            if self._silent < limits.RESEND_HEARTBEATS + 2 * self._peers.round_beats() and self._peers.fresh(self._asked):
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
        sources = [
            (self._peers.distance_us(peer.number), peer.number)
            for peer in self._peers
            if peer.beat is not None and self._peers.fresh(peer.number) and peer.beat.view and peer.beat.frontier >= self.first
        ]
        able = [source for source in sources if source[1] not in self._unable]
        if able:
            self._asked, self._silent = min(able)[1], 0
            self._outbox.send(self._asked, Fetch(0, self.first, self.last))
        elif sources:
            self._wait = limits.MEND_WAIT_HEARTBEATS
