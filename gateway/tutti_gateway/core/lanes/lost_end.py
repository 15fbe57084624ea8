"""Recovery of this gateway's lane after its disk lost the last frames.

This gateway copies the lost frames from other gateways, and gives their positions to no other frames. NOTES.md ("A lost end") lists
the rules and explains why they are safe. This module decides which gateways to ask, and when no decided frame can be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tutti.data.frames.bodies import LaneViewBody, decode_body
from tutti.data.frames.frame import Frame, Kind, chained
from tutti.data.lane_name import NEW_LANE_REMEDY, LaneName
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import payload_intact
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.lanes.outbox import LaneOutbox
from tutti_gateway.core.protocol.events import LostEnd
from tutti_gateway.core.protocol.messages import LaneAsk, LaneTail


class LostEndRecovery:
    """State of the recovery of a lost end.

    The recovery has two parts. In the first part, this gateway copies its own lane from other gateways, as it copies any other lane
    (`lane_replica.py`). In the second part, the origin continues the last attempt.

    Attributes:
        lost: description of the lost end that the disk reported at the start.
        copying: True in the first part, while this gateway copies the lane; False in the second part.
        deliver_decided: function that is called when further frames of the lane are durable; the origin sets it.
        connected: the gateways that exchange heartbeats with each other, this one included.
        attempt: the last attempt that any gateway has reported. After the position of the vote mark, only frames of this attempt
            can be decided.
    """

    def __init__(self, context: Context, outbox: LaneOutbox, lane: Lane, lost: LostEnd) -> None:
        self._context = context
        self._me = context.view_state.me
        self._outbox = outbox
        self._lane = lane
        self.lost = lost
        self.copying = True
        self.deliver_decided: Callable[[], None] = lambda: None
        self.connected: tuple[int, ...] = ()
        self.attempt = lost.promised
        # An answer to a request from before a restart may lack later decisions, so each run accepts only answers with a new token.
        self._token = context.random.getrandbits(63)
        self._known_members = LaneViewBody(lost.members, lost.disks).by_number  # member -> disk, in the attempt at the lane's end
        # Only reports about disks in the roster count, so `drop_reports` removes the reports about a replaced disk.
        self._answers: dict[int, tuple[int, int]] = {}  # gateway -> (attempt in which its copy ends, last durable position)
        self._decided: dict[int, int] = {}  # gateway -> decided end of its copy
        self._removed: dict[int, int] = {}  # gateway -> position up to which retention has trimmed its copy
        self._unresponsive: set[int] = set()  # gateways that have not answered a request since the last frame arrived
        self._reported = False  # True after a permanent loss was logged
        self._tail: list[Frame] = []  # undecided frames of the last attempt after the lane's end, received from other gateways

    # Known state

    @property
    def members(self) -> Mapping[int, bytes]:
        """Members of the last attempt and their disks; empty until the VIEW of that attempt is known."""
        for frame in self._tail:
            if frame.kind == Kind.VIEW:
                return decode_body(LaneViewBody, frame.body).by_number
        return self._known_members if self._lane.attempt == self.attempt else {}

    @property
    def needed(self) -> tuple[int, ...]:
        """Gateways that must answer: those that now have the disks of the other members of the last attempt.

        If the roster lacks one of these disks, all gateways of the roster must answer. If this gateway was the only member, any
        gateway may have copied the lost frames, so all gateways must answer too.
        """
        roster = self._context.window.state.roster
        there = {voter.incarnation: number for number, voter in roster.items() if voter.incarnation}
        disks = [disk for member, disk in self.members.items() if member != self._me]
        # A disk that is not in the roster may hold the most frames, so all other gateways must report theirs (lanes, U31).
        known = bool(disks) and all(disk in there for disk in disks)
        return tuple(there[disk] for disk in disks) if known else self._others

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(number for number in sorted(self._context.window.state.roster) if number != self._me)

    def removed(self, members: Collection[int]) -> tuple[int, ...]:
        """Return the members that are no longer in the roster of the primary view; empty if there is no primary view."""
        roster = self._context.window.state.roster
        return tuple(one for one in members if one not in roster) if self._context.view_state.primary else ()

    def vote(self, member: int) -> int:
        """Return the position up to which a member's copy agrees with the last attempt, according to the member's answer."""
        attempt, up_to = self._answers[member]
        # If a copy ends in an earlier attempt, its undecided frames might not belong to the lane, so they do not count.
        return up_to if attempt == self.attempt else min(up_to, self._lane.decided)

    @property
    def _current_answers(self) -> dict[int, tuple[int, int]]:
        """Answers of gateways that are in the roster. A removed gateway can no longer send frames, so its answer does not count."""
        roster = self._context.window.state.roster
        return {one: answer for one, answer in self._answers.items() if one in roster}

    @property
    def _ends(self) -> dict[int, int]:
        """Last durable position of each gateway of the roster whose copy ends in the last attempt."""
        last = self.attempt
        return {one: up_to for one, (attempt, up_to) in self._current_answers.items() if attempt == last}

    @property
    def _reach(self) -> int:
        """Last position that may be decided: the end of the longest copy, because every member holds all decided frames."""
        return max(self._ends.values(), default=0)

    @property
    def _certain(self) -> int:
        """Last position that is certainly decided, according to the vote mark or to another gateway of the roster."""
        return max(self.lost.last, *(self._decided.get(one, 0) for one in self._others), 0)

    def tail(self) -> Sequence[Frame] | None:
        """Return all frames after the lane's end that the last attempt may have decided, None while frames may be missing."""
        lane = self._lane
        # Soon after a start, the roster in this log may be out of date, so the recovery waits for a primary view (lanes, U32).
        here = lane.decided == lane.end >= self._certain and self._context.view_state.primary
        if not here or any(member not in self._answers for member in self.needed):
            return None
        self._prune_tail()
        return self._tail if lane.end + len(self._tail) >= max(self._reach, self.lost.shown) else None

    def _prune_tail(self) -> None:
        """Remove received frames that the lane already contains, or that do not continue the lane."""
        lane = self._lane
        self._tail = [frame for frame in self._tail if frame.position > lane.end]
        if self._tail and (self._tail[0].view != self.attempt or not self._follows(self._tail[0], lane.end, lane.chain)):
            self._tail = []

    def _follows(self, frame: Frame, end: int, chain: int) -> bool:
        return frame.position == end + 1 and chained(frame, chain)

    # Reports and frames

    def on_copied(self, frames: Collection[Frame]) -> str:
        """Return the reason why copied frames contradict the vote mark; empty if they agree with the mark."""
        lost = self.lost
        self._unresponsive.clear()
        for frame in frames:
            if frame.kind == Kind.VIEW:
                self._known_members = decode_body(LaneViewBody, frame.body).by_number
            # The vote mark contains the chain value at this position, so a different frame means that two frames were decided.
            if frame.position == lost.last and (frame.view, frame.header_crc) != (lost.attempt, lost.chain):
                return f"another gateway has decided a different frame at position {lost.last} than this disk had there"
        return ""

    def on_tail(self, sender: int, message: LaneTail) -> None:
        """Handle a gateway's report of the end of its copy, with its undecided frames."""
        if message.token != self._token or not self.copying:
            return
        self._answers[sender] = message.attempt, message.up_to
        # If this disk has lost the promise of a later attempt, frames of that attempt in another copy show it.
        self.attempt = max(self.attempt, message.attempt)
        self._prune_tail()
        for frame in message.frames:
            last = self._tail[-1] if self._tail else None
            end, chain, view = (
                (last.position, last.header_crc, last.view)
                if last is not None
                else (self._lane.end, self._lane.chain, self._lane.attempt)
            )
            if frame.position <= end:
                continue
            # The first frame of an attempt is its VIEW, so any other frame must continue the same attempt.
            right = frame.view == self.attempt and frame.origin == self._me and (frame.view == view or frame.kind == Kind.VIEW)
            known = frame.kind in (Kind.BATCH, Kind.VIEW) and payload_intact(frame)
            if not (right and known and self._follows(frame, end, chain)):
                self._outbox.drop(message, sender, f"{frame!r} is corrupt, or does not follow position {end}")
                return
            self._tail.append(frame)

    def on_end(self, peer: int, decided: int) -> None:
        """Store the decided end of a gateway's copy of the lane."""
        self._decided[peer] = decided

    def on_trimmed(self, source: int, position: int) -> None:
        """Store the position up to which retention has trimmed a gateway's copy of the lane."""
        self._removed[source] = position

    def on_no_answer(self, source: int) -> None:
        """Record that a gateway did not send the missing frames in time."""
        self._unresponsive.add(source)

    def drop_reports(self, number: int) -> None:
        """Drop the reports about a gateway's old disk, because the roster contains the gateway's new disk."""
        for reports in (self._answers, self._decided, self._removed):
            reports.pop(number, None)
        self._unresponsive.discard(number)

    def beat(self) -> None:
        """Run one heartbeat: send the position of the vote mark to all gateways, and ask them for the ends of their copies.

        The gateway with the longest copy of the last attempt is also asked for the undecided frames in that copy.
        """
        if not self.copying:
            return
        if self.unrecoverable and not self._reported:
            self._reported = True
            self._context.outbox.suspect(self._me, self.reason(()))
        self._prune_tail()
        end, lost = self._lane.end + len(self._tail), self.lost
        # Undecided frames follow the decided frames, so they are requested only when all decided frames are here.
        wanted = end if self._lane.decided == self._lane.end >= lost.last and self._reach > end else 0
        holder = next((one for one in self.connected if self._ends.get(one) == self._reach), 0) if wanted else 0
        for peer in self.connected:
            if peer != self._me:
                behind = wanted if peer == holder else 0
                self._outbox.send(peer, LaneAsk(self._lane.incarnation, self._token, lost.attempt, lost.last, behind))

    # For the operator

    @property
    def _missing(self) -> int:
        """First missing position that was certainly decided or acknowledged; 0 if no such position is missing."""
        lane, shown = self._lane, self.lost.shown
        if lane.decided < self._certain:
            return lane.decided + 1
        # Clients have seen records up to `shown`. If all copies end before that position, acknowledged frames are lost.
        reach = max(lane.decided, self._reach)
        return reach + 1 if reach < shown and not self._silent else 0

    @property
    def _silent(self) -> tuple[int, ...]:
        return tuple(member for member in self.needed if member not in self._answers)

    @property
    def _unreported(self) -> tuple[int, ...]:
        """Other gateways in the roster that have not yet reported how far their copies of the lane reach."""
        return tuple(one for one in self._others if one not in self._answers or one not in self._decided)

    def _holders(self, position: int) -> list[int]:
        """Return the gateways that still hold the frame at a position, if the frame is decided or can become decided.

        If a copy ends in an earlier attempt than the vote mark, only its decided frames count. When that attempt ended, this disk
        wrote a NO to all frames that it had not written. This NO is lost, and it may concern any undecided frame in that copy.
        """
        lost = self.lost
        least = lost.attempt if position <= lost.last else self.attempt
        have = {one for one, (attempt, up_to) in self._current_answers.items() if attempt >= least and up_to >= position}
        have |= {one for one in self._others if self._decided.get(one, 0) >= position}
        return sorted(one for one in have if self._removed.get(one, 0) < position)

    @property
    def unrecoverable(self) -> bool:
        """True if no gateway can send a missing position, although all gateways of the roster have reported."""
        waits = self.copying and self._context.view_state.primary
        return waits and bool(position := self._missing) and not self._unreported and not self._holders(position)

    def reason(self, unvoted: Sequence[int]) -> str:
        """Return the reason why the lane accepts no batches, and what it waits for.

        `unvoted` holds the members that have not yet voted for all frames of the last attempt.
        """
        lane, lost = self._lane, self.lost
        begin = (
            f"the lane of this gateway takes nothing until the frames that its disk lost from position {lost.first} on are restored"
        )
        if not self.copying:
            return f"{begin}: it waits for {_gateways(unvoted) if unvoted else 'its disk'} to write its last frames"
        if not self._context.view_state.primary:
            return f"{begin}: it waits for a view of the group"
        if position := self._missing:
            return f"{begin}: {self._holders_text(position)}"
        if silent := self._silent:
            return f"{begin}: it waits for {_gateways(silent)}, which may have more of the frames"
        ends, reach = self._ends, self._reach
        if reach > lane.end:
            return f"{begin}: it waits for more frames from {_gateways([one for one in sorted(ends) if ends[one] == reach])}"
        return f"{begin}: it waits for its disk"

    def _holders_text(self, position: int) -> str:
        """Return a text that names the gateways with a missing position, and what the operator can do."""
        lacks = f"position {position} of {max(self._certain, self.lost.shown)}"
        holders = self._holders(position)
        near = [one for one in holders if one in self.connected]
        if asked := [one for one in near if one not in self._unresponsive]:
            return f"{lacks} is fetched from {_gateways(asked)}"
        if holders != near:
            return f"it waits for {_gateways([one for one in holders if one not in near])}, which has {lacks}"
        if near:
            return f"{_gateways(near)} has {lacks} but cannot read it: see `damaged` in `lanes` of its status"
        notes = "; ".join(self._notes(position))
        notes = f" ({notes})" if notes else ""
        if unreported := self._unreported:
            return f"{lacks} is at no gateway that has answered{notes}; it waits for {_gateways(unreported)}"
        return f"{lacks} is at no other gateway{notes}; if it cannot be restored, {NEW_LANE_REMEDY}"

    def _notes(self, position: int) -> list[str]:
        """Return texts for the operator: why no gateway can send a frame, and which gateways hold an undecided frame there."""
        notes = []
        if removed := [one for one in self._others if self._removed.get(one, 0) >= position]:
            notes.append(f"retention removed it at {_gateways(removed)}")
        for one, (attempt, up_to) in sorted(self._current_answers.items()):
            if up_to >= position and self._lane.attempt <= attempt < self.lost.attempt:
                name = LaneName(self._me, self._lane.incarnation).text
                first = max(position, self._decided.get(one, 0) + 1)
                held = f"position {first}" if first == up_to else f"positions {first} to {up_to}"
                notes.append(
                    f"gateway {one} holds {held} undecided, and only the lost frames showed if clients got an acknowledgement: "
                    f"`tutti log inspect DIR/lanes/{name}` lists the frames there as pending"
                )
        return notes


def _gateways(numbers: Sequence[int]) -> str:
    return ", ".join(f"gateway {number}" for number in numbers)
