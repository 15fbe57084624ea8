"""The own lane whose end the disk lost: what is known of it elsewhere comes back, and nothing else ever takes its place.

The rule, and why it is safe, is in NOTES.md ("A lost end"). Here is what is asked of whom, and when nothing more can be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.core.context import Context
from gateway.core.events import LostEnd
from gateway.core.messages import LaneAsk, LaneTail
from gateway.core.runs import whole
from gateway.core.unordered.box import Box
from gateway.core.unordered.lane import Lane
from gateway.data.bodies import ViewBody, decode_body
from gateway.data.frame import Frame, Kind, chained
from gateway.data.lanes import REPLACE


class Healing:
    """Until the origin resumes the last attempt, its lane is learned like that of another one (`member.py`).

    Attributes:
        lost: what a start found.
        learns: whether the lane is learned; False once the last attempt is resumed.
        settle: what is to be done when something of the lane is durable: the origin's.
        part: the gateways that hear each other, this one among them.
    """

    def __init__(self, context: Context, box: Box, lane: Lane, lost: LostEnd) -> None:
        self._context = context
        self._me = context.standing.me
        self._box = box
        self._lane = lane
        self.lost = lost
        self.learns = True
        self.settle: Callable[[], None] = lambda: None
        self.part: tuple[int, ...] = ()
        self._token = context.random.getrandbits(63)  # an answer to an earlier run may be older than what was decided since
        self._seen = lost.members  # of the attempt at the lane's end
        self._answers: dict[int, tuple[int, int]] = {}  # gateway -> attempt, and up to where it has it durable
        self._tail: list[Frame] = []  # undecided frames of the last attempt behind the lane's end, from others

    # What is known

    @property
    def attempt(self) -> int:
        """The last attempt: of no other one can anything be decided that does not stand below the mark."""
        return max(self.lost.promised, *(attempt for attempt, _ in self._answers.values()), 0)

    @property
    def members(self) -> tuple[int, ...]:
        """Those of the last attempt; nobody as long as its VIEW is not known."""
        for frame in self._tail:
            if frame.kind == Kind.VIEW:
                return decode_body(ViewBody, frame.body).members
        return self._seen if self._lane.attempt == self.attempt else ()

    @property
    def needed(self) -> tuple[int, ...]:
        """Whose answers are needed: the others of the last attempt; all that there are while nobody knows who that was, where one
        of them was removed (its disk may be back under another number), and where it was this gateway's alone: who learned of it
        is the only other one that has any of it.
        """
        roster, members = self._context.window.state.roster, self.members
        others = tuple(member for member in members if member != self._me)
        known = bool(others) and all(member in roster for member in members)
        return others if known else tuple(member for member in sorted(roster) if member != self._me)

    def removed(self, members: Collection[int]) -> tuple[int, ...]:
        """Which of them the roster names no more, as a primary view knows; nobody without one."""
        roster = self._context.window.state.roster
        return tuple(one for one in members if one not in roster) if self._context.standing.primary else ()

    def vote(self, member: int) -> int:
        """Up to where a member has what stands in the lane, as it answered."""
        attempt, up_to = self._answers[member]
        return up_to if attempt == self.attempt else min(up_to, self._lane.decided)

    @property
    def _ends(self) -> dict[int, int]:
        """Up to where those of the roster have the last attempt. Who was removed gives nothing any more, whatever it answered."""
        roster, last = self._context.window.state.roster, self.attempt
        return {one: up_to for one, (attempt, up_to) in self._answers.items() if attempt == last and one in roster}

    @property
    def _reach(self) -> int:
        """The last position that can be decided: whoever was in the last attempt has at least what was."""
        return max(self._ends.values(), default=0)

    def tail(self) -> Sequence[Frame] | None:
        """What is to be decided before anything new: all that the last attempt may have decided, behind the lane's end. None while
        something may be missing.
        """
        lane = self._lane
        here = lane.decided == lane.end >= self.lost.last and self._context.standing.primary
        if not here or any(member not in self._answers for member in self.needed):
            return None
        self._tidy()
        return self._tail if lane.end + len(self._tail) >= max(self._reach, self.lost.shown) else None

    def _tidy(self) -> None:
        """Forget what came to be known as decided, or does not follow that."""
        lane = self._lane
        self._tail = [frame for frame in self._tail if frame.position > lane.end]
        if self._tail and (self._tail[0].view != self.attempt or not self._follows(self._tail[0], lane.end, lane.chain)):
            self._tail = []

    def _follows(self, frame: Frame, end: int, chain: int) -> bool:
        return frame.position == end + 1 and chained(frame, chain)

    # What comes

    def learned(self, frames: Collection[Frame]) -> str:
        """Frames are durable here, as they are decided elsewhere. Why they cannot be; empty if they can."""
        lost = self.lost
        for frame in frames:
            if frame.kind == Kind.VIEW:
                self._seen = decode_body(ViewBody, frame.body).members
            if frame.position == lost.last and (frame.view, frame.header_crc) != (lost.attempt, lost.chain):
                return f"another frame is decided elsewhere at position {lost.last} than the one that its disk had there"
        return ""

    def on_tail(self, sender: int, message: LaneTail) -> None:
        """A gateway says how far it has the lane, and what of it is undecided."""
        if message.token != self._token or not self.learns:
            return
        self._answers[sender] = message.attempt, message.up_to
        self._tidy()
        for frame in message.frames:
            last = self._tail[-1] if self._tail else None
            end, chain, view = (
                (last.position, last.header_crc, last.view)
                if last is not None
                else (self._lane.end, self._lane.chain, self._lane.attempt)
            )
            if frame.position <= end:
                continue
            right = frame.view == self.attempt and frame.origin == self._me and (frame.view == view or frame.kind == Kind.VIEW)
            known = frame.kind in (Kind.BATCH, Kind.VIEW) and whole(frame)
            if not (right and known and self._follows(frame, end, chain)):
                self._box.drop(message, sender, f"{frame!r} did not come whole, or does not follow position {end}")
                return
            self._tail.append(frame)

    def beat(self) -> None:
        """One heartbeat: everybody hears what was durable here, which decides it, and says what it has. Who has most of the last
        attempt gives that.
        """
        if not self.learns:
            return
        self._tidy()
        end, lost = self._lane.end + len(self._tail), self.lost
        wanted = end if self._lane.decided == self._lane.end >= lost.last and self._reach > end else 0
        giver = next((one for one in self.part if self._ends.get(one) == self._reach), 0) if wanted else 0
        for peer in self.part:
            if peer != self._me:
                behind = wanted if peer == giver else 0
                self._box.send(peer, LaneAsk(self._lane.incarnation, self._token, lost.attempt, lost.last, behind))

    # For the operator

    def reason(self, unvoted: Sequence[int]) -> str:
        """Why the lane takes nothing, and what it waits for. `unvoted`: who has not written the end yet."""
        lane, lost = self._lane, self.lost
        begin = (
            f"the lane of this gateway takes nothing before what its disk lost of it, from position {lost.first} on, is here again"
        )
        if not self.learns:
            return f"{begin}: it waits for {_gateways(unvoted) if unvoted else 'its disk'} to write its last frames"
        if not self._context.standing.primary:
            return f"{begin}: it waits for a view of the group"
        silent = tuple(member for member in self.needed if member not in self._answers)
        last = max(lost.last, lost.shown)
        if lane.decided < last:
            lacks = f"position {lane.decided + 1} of {last}"
            roster = self._context.window.state.roster
            if any(up_to > lane.decided for one, (_, up_to) in self._answers.items() if one in roster):
                return f"{begin}: {lacks} is fetched from another gateway"
            away = tuple(one for one in sorted(roster) if one != self._me and one not in self._answers)
            if away:
                return f"{begin}: {lacks} is not at those that answer; it waits for {_gateways(away)}"
            return f"{begin}: {lacks} is at no other gateway; where it cannot be restored, {REPLACE}"
        if silent:
            return f"{begin}: it waits for {_gateways(silent)}, which may have more of it"
        ends, reach = self._ends, self._reach
        if reach > lane.end:
            return f"{begin}: it waits for more of it from {_gateways([one for one in sorted(ends) if ends[one] == reach])}"
        return f"{begin}: it waits for its disk"


def _gateways(numbers: Sequence[int]) -> str:
    return ", ".join(f"gateway {number}" for number in numbers)
