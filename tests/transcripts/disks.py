"""A disk of a whole group: it does what `actions.Persist` says, one after the other, and reports when the test lets it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tutti.data.frames.bodies import AbortBody, decode_body
from tutti.data.frames.frame import Frame, Kind, chained
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.actions import Persist, ReadLog
from tutti_gateway.core.protocol.events import LogRead, Recovered
from tutti_gateway.core.protocol.messages import Damage


class Wish(NamedTuple):
    """A Persist that is not done yet, and what was delivered when it was asked for."""

    persist: Persist
    frontier: int


@dataclass
class Disk:
    """What is on it.

    Attributes:
        frames: the log as far as it is done, position 1 first; all of it is synced.
        wishes: Persists that were not reported yet, in order.
        mark: end of the log that was synced, as the vote mark says; frames behind the log's end are damaged.
        watermark: the frontier as it is known durably; frontier: the one that was delivered.
        slow: it reports nothing.
    """

    incarnation: bytes
    frames: list[Frame] = field(default_factory=list)
    scalars: HardState = field(default_factory=HardState)
    wishes: deque[Wish] = field(default_factory=deque)
    mark: Damage = field(default_factory=lambda: Damage(0, 0, 0, 0))
    watermark: int = 0
    frontier: int = 0
    slow: bool = False

    @property
    def durable(self) -> int:
        """The last position that is synced."""
        return len(self.frames)

    def persist(self, action: Persist) -> None:
        """Take a Persist in."""
        self.wishes.append(Wish(action, self.frontier))

    def done(self) -> int:
        """The oldest Persist is done, durably; its token."""
        action, frontier = self.wishes.popleft()
        if action.cut is not None:
            assert action.cut <= self.mark.last, f"a cut behind {action.cut}, and the log ends at {self.mark.last}"
            del self.frames[action.cut :]
            self._mark()
        if action.scalars is not None:
            self.scalars = action.scalars
        self._append(action.frames)
        self.watermark = max(self.watermark, frontier)
        return action.token

    def _append(self, frames: tuple[Frame, ...]) -> None:
        for frame in frames:
            chain = self.frames[-1].header_crc if self.frames else 0
            assert frame.position == self.durable + 1, f"{frame!r} is written behind {self.durable}"
            assert chained(frame, chain), f"{frame!r} does not continue the log"
            self.frames.append(frame)
        if self.durable >= self.mark.last:
            self._mark()

    def _mark(self) -> None:
        last = self.frames[-1] if self.frames else None
        self.mark = Damage(0, self.durable, last.view, last.header_crc) if last else Damage(0, 0, 0, 0)

    def idle(self) -> None:
        """Nothing was to be done for a while: the frontier is noted."""
        if not self.wishes and self.mark.last == self.durable:
            self.watermark = self.frontier

    # What happens to it

    def crashed(self, keep: int) -> None:
        """The process is gone: of the frames that were written and not synced so many are there, and nothing behind a scalar or a
        cut that was not done.
        """
        for wish in self.wishes:
            if wish.persist.scalars is not None or wish.persist.cut is not None or not keep:
                break
            self._append(wish.persist.frames[:keep])
            keep -= min(keep, len(wish.persist.frames))
        self.wishes.clear()

    def damaged(self, first: int) -> None:
        """Nothing can be read from the position on."""
        assert self.watermark < first <= self.durable, f"{first} is not in the undecided end of the log"
        del self.frames[first - 1 :]

    def recover(self, void: frozenset[int]) -> Recovered:
        """What a start finds; `void` are positions of batches that are aborted in the decided log."""
        state = LogState()
        for frame in self.frames[: self.watermark]:
            state.apply(frame, frame.position in void)
        self.frontier = self.watermark
        mark, end = self.mark, self.durable
        damage = Damage(end + 1, mark.last, mark.view, mark.chain) if end < mark.last else None
        return Recovered(state.log, self.scalars, state, tuple(self.frames[self.watermark :]), damage)

    def read(self, action: ReadLog) -> LogRead:
        """Frames of the log."""
        found = tuple(self.frames[action.first - 1 : action.last])
        stop = action.first + len(found) - 1
        for frame in reversed(self.frames[action.first - 1 : action.last]):
            if frame.kind == Kind.ABORT and decode_body(AbortBody, frame.body).position <= stop < frame.position:
                stop = decode_body(AbortBody, frame.body).position - 1
        return LogRead(action.token, found, max(stop, action.first - 1))
