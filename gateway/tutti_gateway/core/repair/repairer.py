"""Who has what another misses: waits, hears whether another repairs it, claims it and repairs."""

from __future__ import annotations

from typing import NamedTuple

from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import parts
from tutti_gateway.core.protocol.messages import Repair, Repairing
from tutti_gateway.core.ranges import Range, RangeMap
from tutti_gateway.core.repair.timing import Timing
from tutti_gateway.core.repair.token_bucket import Bucket
from tutti_gateway.core.window import weight


class Want(NamedTuple):
    """Positions that were asked for: when they are repaired, for whom, and whether they are `late`: the log is read for them."""

    due_us: int
    askers: tuple[int, ...]
    late: bool = False


class Hold(NamedTuple):
    """Positions that are repaired: they are left alone until `until_us`. `to`: whom this member sent them, None if another member
    repairs, who answers all that want them too.
    """

    until_us: int
    to: frozenset[int] | None


class Holder:
    """The other half of the layer.

    Attributes:
        due_us: when `time` is wanted next, None for never.
        claims: times that this member told all others that it repairs.
        repairs: runs that were repaired, each in one message to one member or to all.
        repaired: frames that were sent, once for each member that they went to.
        suppressed: ranges that another member repaired first.
        held_down: ranges that were asked for again while their repair was on its way.
        refused: ranges that were not repaired: out of tokens, or more than is remembered.
        bucket: bytes that may leave.
    """

    def __init__(self, context: Context, timing: Timing) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._late_us = limits.REPAIR_LATE_HEARTBEATS * context.config.heartbeat_us
        self._timing = timing
        self._ends: dict[int, int] = {}  # of members' logs, as far as it was heard
        self._wants: RangeMap[Want] = RangeMap()
        self._holds: RangeMap[Hold] = RangeMap()
        self._reads: dict[int, tuple[int, ...]] = {}  # token -> who asked
        self.due_us: int | None = None
        self.claims = self.repairs = self.repaired = self.suppressed = self.held_down = self.refused = 0
        self.bucket = Bucket(limits.REPAIR_BYTES_A_SECOND, limits.REPAIR_BYTES_BURST)

    def forget(self) -> None:
        """Another view begins: nobody asked for anything of it."""
        self._ends, self._reads = {}, {}
        self._wants.clear()
        self._holds.clear()
        self.due_us = None

    def heard(self, member: int, end: int) -> None:
        """The member's log goes up to `end`: what it asked for below came meanwhile."""
        self._ends[member] = max(end, self._ends.get(member, 0))

    def asked(self, sender: int, ranges: tuple[Range, ...], of: int) -> None:
        """A member misses the ranges, and wants them of the member `of`, who is this one: at once. Of anybody (0): who is first."""
        now_us = self._outbox.now.mono_us
        due_us = now_us if of else now_us + self._timing.answer_us(sender)
        for first, last in ranges:
            for low, high, hold in self._holds.over(max(first, self._ends.get(sender, 0) + 1), min(last, self._window.end)):
                if hold is None or hold.until_us <= now_us:
                    self._want(low, high, sender, due_us)
                elif hold.to is not None and sender not in hold.to and low > self._window.frontier:
                    self._repair(low, high, (sender,), hold.to)
                else:
                    self.held_down += 1
        self._arm()

    def _want(self, first: int, last: int, sender: int, due_us: int) -> None:
        if len(self._wants) >= limits.REPAIR_RANGES_KEPT_MAX:
            self.refused += 1
            return
        for low, high, want in self._wants.over(first, last):
            if want is None:
                self._wants.put(low, high, Want(due_us, (sender,)))
            elif sender not in want.askers:
                self._wants.put(low, high, want._replace(askers=(*want.askers, sender)))

    def _arm(self) -> None:
        self.due_us = min((want.due_us for _, _, want in self._wants), default=None)

    def others_repair(self, first: int, last: int) -> None:
        """Another member repairs the range. Of two that do, each goes on answering who wants it of that one."""
        now_us = self._outbox.now.mono_us
        first, last = max(first, self._window.frontier + 1), min(last, self._window.end + limits.HELD_FRAMES_MAX)
        hold = Hold(now_us + self._timing.round_us(), None)
        for low, high, own in self._holds.over(first, last):
            if own is None or own.to is None or own.until_us <= now_us:
                self._hold(low, high, hold)
        for low, high, want in self._wants.over(first, last):
            if want is not None:
                self._wants.cut(low, high)
                self.suppressed += 1
        self._arm()

    def _hold(self, first: int, last: int, hold: Hold) -> None:
        if len(self._holds) >= limits.REPAIR_RANGES_KEPT_MAX:
            now_us = self._outbox.now.mono_us
            for low, high, old in self._holds:
                if old.until_us <= now_us:
                    self._holds.cut(low, high)
        # What is not remembered may be repaired twice, which does no harm.
        if len(self._holds) < limits.REPAIR_RANGES_KEPT_MAX:
            self._holds.put(first, last, hold)

    def time(self) -> None:
        """Repair what is due, from memory, or from the log."""
        now_us = self._outbox.now.mono_us
        if self.due_us is None or now_us < self.due_us:
            return
        claimed: list[Range] = []
        for low, high, want in self._wants:
            if want.due_us <= now_us:
                self._wants.cut(low, high)
                if low <= self._window.frontier:
                    self._late(low, min(high, self._window.frontier), want)
                    low = self._window.frontier + 1
                if low <= high:
                    claimed += self._repair(low, high, want.askers)
        self._claim(claimed)
        self._arm()

    def _late(self, first: int, last: int, want: Want) -> None:
        """What is decided, all have voted for: who asked for it has it by now, and its next heartbeat says so. Only if none does is
        it read from the log.
        """
        askers = tuple(asker for asker in want.askers if self._ends.get(asker, 0) < last)
        if not want.late and askers:
            self._wants.put(first, last, Want(self._outbox.now.mono_us + self._late_us, askers, late=True))
        elif askers and len(self._reads) < limits.REPAIR_READS_MAX:
            self._reads[self._outbox.read_log(first, last)] = askers
        elif askers:
            self.refused += 1

    def on_read(self, token: int, frames: tuple[Frame, ...]) -> bool:
        """The log was read; whether it was for this layer."""
        askers = self._reads.pop(token, None)
        if askers is None:
            return False
        for run in parts(frames, limits.REPAIR_MESSAGE_BYTES):
            if not self._send(run, askers):
                break
        return True

    def _repair(self, first: int, last: int, askers: tuple[int, ...], before: frozenset[int] = frozenset()) -> list[Range]:
        """Send undecided frames to who asked, small ones to all that may miss them; what a claim has to name is returned.

        `before` are those to whom they were sent before, and who asked now heard the claim.
        """
        window = self._window
        until_us = self._outbox.now.mono_us + max(map(self._timing.round_us, askers))
        start, unknown = window.frontier + 1, list[Range]()
        frames = [window.frames[position - start] for position in range(first, last + 1)]
        for run in parts(frames, limits.REPAIR_MESSAGE_BYTES):
            low, high = run[0].position, run[-1].position
            small = _bytes(run) <= limits.REPAIR_TO_ALL_BYTES and not before
            targets = tuple(member for member in self._standing.others if self._ends.get(member, 0) < high) if small else askers
            if not self._send(run, targets):
                break
            self._hold(low, high, Hold(until_us, before.union(targets)))
            if not small:
                joined = bool(unknown) and unknown[-1][1] + 1 == low
                unknown.append((unknown.pop()[0] if joined else low, high))
        return unknown

    def _send(self, run: tuple[Frame, ...], targets: tuple[int, ...]) -> bool:
        """Send the frames if there are tokens for them; who asked asks again."""
        if not self.bucket.take(_bytes(run) * len(targets), self._outbox.now.mono_us):
            self.refused += 1
            return False
        repair = Repair(self._standing.view, run)
        for member in targets:
            self._outbox.send(member, repair)
        self.repairs += 1
        self.repaired += len(run) * len(targets)
        return True

    def _claim(self, ranges: list[Range]) -> None:
        """Tell the others, so that nobody else repairs the same; who misses it too says so to this member."""
        others = self._standing.others
        if not ranges or len(others) < 2:
            return
        self.claims += 1
        for member in others:
            for at in range(0, len(ranges), limits.REPAIR_RANGES_MAX):
                self._outbox.send(member, Repairing(self._standing.view, tuple(ranges[at : at + limits.REPAIR_RANGES_MAX])))


def _bytes(run: tuple[Frame, ...]) -> int:
    return sum(map(weight, run))
