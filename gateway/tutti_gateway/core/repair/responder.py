"""Responder: a member that holds frames which another member lacks waits, and then repairs unless another member has done so.

A large repair begins with a claim, which stops the other responders.
"""

from __future__ import annotations

from typing import NamedTuple

from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import split_runs
from tutti_gateway.core.pending_window import weight
from tutti_gateway.core.protocol.messages import Repair, Repairing
from tutti_gateway.core.range_map import Range, RangeMap
from tutti_gateway.core.repair.timing import Timing
from tutti_gateway.core.repair.token_bucket import Bucket


class Want(NamedTuple):
    """State of a range of requested positions: the time of the repair, and the members that requested these positions.

    `late` is True if the positions are decided, so that only the log on the disk still has the frames.
    """

    deadline_us: int
    requesters: tuple[int, ...]
    late: bool = False


class Hold(NamedTuple):
    """State of a range that a member has repaired: further requests are ignored until `until_us` (protocol/repair, R9).

    `to` holds the members to which this member sent the repair. If another member repairs the range, `to` is None, and only that
    member answers further requests.
    """

    until_us: int
    to: frozenset[int] | None


class Responder:
    """The repairer's role of the layer.

    Attributes:
        deadline_us: time at which `on_timer` must be called next; None if no repair waits.
        claims: number of claims, each of which was sent to all other members.
        repairs: number of repairs, each of which is one run of frames, sent to one or more members.
        repaired: number of repaired frames, counted once for each receiver.
        suppressed: number of requested ranges that another member repaired first.
        hold_down_hits: number of ranges that were requested again while their repair was in transit.
        refused: number of ranges that were not repaired, because the byte budget was empty or a limit was reached.
        bucket: token bucket that limits the number of repair bytes a second.
    """

    def __init__(self, context: Context, timing: Timing) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._late_us = limits.REPAIR_LATE_HEARTBEATS * context.config.heartbeat_us
        self._timing = timing
        self._ends: dict[int, int] = {}  # member -> last position of its log, from its last heartbeat
        self._wants: RangeMap[Want] = RangeMap()
        self._holds: RangeMap[Hold] = RangeMap()
        self._reads: dict[int, tuple[int, ...]] = {}  # token of a read -> members that requested the frames
        self.deadline_us: int | None = None
        self.claims = self.repairs = self.repaired = self.suppressed = self.hold_down_hits = self.refused = 0
        self.bucket = Bucket(limits.REPAIR_BYTES_A_SECOND, limits.REPAIR_BYTES_BURST)

    def reset(self) -> None:
        """Delete all repair state when another view begins."""
        self._ends, self._reads = {}, {}
        self._wants.clear()
        self._holds.clear()
        self.deadline_us = None

    def log_end_reported(self, member: int, end: int) -> None:
        """Store the end of a member's log. Requests of that member for positions up to `end` need no repair any more."""
        self._ends[member] = max(end, self._ends.get(member, 0))

    def on_request(self, sender: int, ranges: tuple[Range, ...], of: int) -> None:
        """Schedule the repair of requested ranges. If a recent repair did not go to the requesting member, repeat it at once.

        If `of` is this member, the repair is due at once. If `of` is 0, this member waits, so that the nearest holder can repair
        first.
        """
        now_us = self._outbox.now.mono_us
        deadline_us = now_us if of else now_us + self._timing.answer_us(sender)
        for first, last in ranges:
            # Positions up to the last reported end of the sender's log have arrived there, so they need no repair.
            for low, high, hold in self._holds.slices(max(first, self._ends.get(sender, 0) + 1), min(last, self._window.end)):
                if hold is None or hold.until_us <= now_us:
                    self._want(low, high, sender, deadline_us)
                # The last repair went only to other members, so the sender of this request needs a repair too.
                elif hold.to is not None and sender not in hold.to and low > self._window.frontier:
                    self._repair(low, high, (sender,), hold.to)
                else:
                    self.hold_down_hits += 1
        self._arm()

    def _want(self, first: int, last: int, sender: int, deadline_us: int) -> None:
        # The sender repeats its request, so the repair of a range above the limit is only delayed.
        if len(self._wants) >= limits.REPAIR_RANGES_KEPT_MAX:
            self.refused += 1
            return
        for low, high, want in self._wants.slices(first, last):
            if want is None:
                self._wants.put(low, high, Want(deadline_us, (sender,)))
            elif sender not in want.requesters:
                self._wants.put(low, high, want._replace(requesters=(*want.requesters, sender)))

    def _arm(self) -> None:
        self.deadline_us = min((want.deadline_us for _, _, want in self._wants), default=None)

    def on_other_repair(self, first: int, last: int) -> None:
        """Leave the repair of the range to another member, which has sent a claim or the repair itself.

        If this member has already repaired the range too, it continues to answer requests for the range.
        """
        now_us = self._outbox.now.mono_us
        # A wrong message must not fill the table with positions that cannot exist.
        first, last = max(first, self._window.frontier + 1), min(last, self._window.end + limits.BUFFERED_FRAMES_MAX)
        hold = Hold(now_us + self._timing.round_us(), None)
        # The record of this member's own repair stays while the repair is in transit, because its receivers need no second one.
        for low, high, own in self._holds.slices(first, last):
            if own is None or own.to is None or own.until_us <= now_us:
                self._hold_down(low, high, hold)
        for low, high, want in self._wants.slices(first, last):
            if want is not None:
                self._wants.remove(low, high)
                self.suppressed += 1
        self._arm()

    def _hold_down(self, first: int, last: int, hold: Hold) -> None:
        if len(self._holds) >= limits.REPAIR_RANGES_KEPT_MAX:
            now_us = self._outbox.now.mono_us
            for low, high, old in self._holds:
                if old.until_us <= now_us:
                    self._holds.remove(low, high)
        # If the table is full, the range is not stored and may be repaired twice, which does no harm.
        if len(self._holds) < limits.REPAIR_RANGES_KEPT_MAX:
            self._holds.put(first, last, hold)

    def on_timer(self) -> None:
        """Send the repairs that are due: undecided frames from memory, and decided frames from the log on the disk."""
        now_us = self._outbox.now.mono_us
        if self.deadline_us is None or now_us < self.deadline_us:
            return
        claimed: list[Range] = []
        for low, high, want in self._wants:
            if want.deadline_us <= now_us:
                self._wants.remove(low, high)
                if low <= self._window.frontier:  # decided frames are no longer in the window
                    self._handle_decided(low, min(high, self._window.frontier), want)
                    low = self._window.frontier + 1
                if low <= high:
                    claimed += self._repair(low, high, want.requesters)
        self._claim(claimed)
        self._arm()

    def _handle_decided(self, first: int, last: int, want: Want) -> None:
        """Handle requests for decided positions.

        Every member has voted for these positions, so the requests are probably out of date. This member therefore waits, and reads
        the log only if no heartbeat shows that the requesting members have the frames (protocol/repair, R12).
        """
        requesters = tuple(requester for requester in want.requesters if self._ends.get(requester, 0) < last)
        # The wait saves a read of the log if a heartbeat shows that the requesting members have the frames.
        if not want.late and requesters:
            self._wants.put(first, last, Want(self._outbox.now.mono_us + self._late_us, requesters, late=True))
        elif requesters and len(self._reads) < limits.REPAIR_READS_MAX:
            self._reads[self._outbox.read_log(first, last)] = requesters
        elif requesters:
            self.refused += 1

    def on_read(self, token: int, frames: tuple[Frame, ...]) -> bool:
        """Send frames that the disk read for a repair. Return False if the responder did not request the read."""
        requesters = self._reads.pop(token, None)
        if requesters is None:
            return False
        for run in split_runs(frames, limits.REPAIR_MESSAGE_BYTES):
            if not self._send(run, requesters):
                break
        return True

    def _repair(self, first: int, last: int, requesters: tuple[int, ...], before: frozenset[int] = frozenset()) -> list[Range]:
        """Send undecided frames to the members that requested them, or a small repair to all members that may lack the frames.

        Return the ranges that this member must claim. `before` holds the members that got an earlier repair of these frames. After
        an earlier repair, the other members know its claim and send their own requests, so the new repair goes only to the
        requesters.
        """
        window = self._window
        until_us = self._outbox.now.mono_us + max(map(self._timing.round_us, requesters))
        start, unknown = window.frontier + 1, list[Range]()
        frames = [window.frames[position - start] for position in range(first, last + 1)]
        for run in split_runs(frames, limits.REPAIR_MESSAGE_BYTES):
            low, high = run[0].position, run[-1].position
            # A claim needs as many messages as a small repair to all members, so a small repair goes without a claim (repair, R8).
            small = _bytes(run) <= limits.REPAIR_TO_ALL_BYTES and not before
            targets = (
                tuple(member for member in self._view_state.others if self._ends.get(member, 0) < high) if small else requesters
            )
            if not self._send(run, targets):
                break
            self._hold_down(low, high, Hold(until_us, before.union(targets)))
            if not small:
                joined = bool(unknown) and unknown[-1][1] + 1 == low
                unknown.append((unknown.pop()[0] if joined else low, high))
        return unknown

    def _send(self, run: tuple[Frame, ...], targets: tuple[int, ...]) -> bool:
        """Send frames to members. If the byte budget is empty, return False; the members then repeat their requests."""
        if not self.bucket.consume(_bytes(run) * len(targets), self._outbox.now.mono_us):
            self.refused += 1
            return False
        repair = Repair(self._view_state.view, run)
        for member in targets:
            self._outbox.send(member, repair)
        self.repairs += 1
        self.repaired += len(run) * len(targets)
        return True

    def _claim(self, ranges: list[Range]) -> None:
        """Send a claim to all other members, so that none of them repairs the same frames.

        A member that also lacks these frames then requests them only from this member.
        """
        others = self._view_state.others
        # In a view of two, no other member could repair the same frames.
        if not ranges or len(others) < 2:
            return
        self.claims += 1
        for member in others:
            for at in range(0, len(ranges), limits.REPAIR_RANGES_MAX):
                self._outbox.send(member, Repairing(self._view_state.view, tuple(ranges[at : at + limits.REPAIR_RANGES_MAX])))


def _bytes(run: tuple[Frame, ...]) -> int:
    return sum(map(weight, run))
