"""Who misses something: waits, hears whether others ask for the same, asks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Missing, Repair
from tutti_gateway.core.ranges import Range, RangeMap
from tutti_gateway.core.repair.timing import Timing
from tutti_gateway.core.repair.token_bucket import Bucket


class Receiving(Protocol):
    """Where frames come in, and what is missing is known."""

    @property
    def streamed(self) -> int:
        """The highest position that the coordinator itself sent in this view."""

    def missing(self) -> list[Range]:
        """Ranges of positions that were heard of and are not here, the lowest ones."""

    def heard(self, sender: int, end: int) -> None:
        """A member of the view says that its log goes up to `end`."""

    def on_repair(self, sender: int, message: Repair) -> None:
        """Frames of a member that has them; nothing of it is trusted."""


class Wait(NamedTuple):
    """What is known of missing positions.

    Attributes:
        due_us: when they are asked for.
        deaf_us: requests of others before then belong to a round that this wait has counted.
        sure_us: they were asked for of all, or of who repairs them, who is not told again before then.
        tries: rounds so far; each doubles the wait.
        streamed: where the coordinator's stream stood, for positions beyond it that only others told of; None for all others.
    """

    due_us: int
    deaf_us: int
    sure_us: int
    tries: int
    streamed: int | None


class Asker:
    """The one half of the layer.

    Attributes:
        due_us: when `time` is wanted next, None for never.
        requests: requests that were multicast.
        joined: requests that went to one member, who had said that it repairs.
        suppressed: ranges that were not asked for because another member did.
        bucket: requests that may leave.
    """

    def __init__(self, context: Context, receiver: Receiving, timing: Timing) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._receiver = receiver
        self._timing = timing
        self._waits: RangeMap[Wait] = RangeMap()
        self._looked: tuple[list[Range], int] = ([], 0)
        self.due_us: int | None = None
        self.requests = self.joined = self.suppressed = 0
        self.bucket = Bucket(limits.REPAIR_ASKS_A_SECOND, limits.REPAIR_ASKS_BURST)

    def forget(self) -> None:
        """Nothing is missing any more, or of this view."""
        self._waits.clear()
        self._looked, self.due_us = ([], 0), None

    def look(self) -> None:
        """See what is missing now: what is new waits, what is here is forgotten."""
        missing, streamed = self._receiver.missing(), self._receiver.streamed
        if not missing:
            if self.due_us is not None:
                self.forget()
        elif (missing, streamed) != self._looked:
            self._looked = (missing, streamed)
            self._update(missing, streamed)

    def _update(self, missing: list[Range], streamed: int) -> None:
        now_us = self._outbox.now.mono_us
        after_us = self._timing.ask_us()
        lost = Wait(now_us + after_us, 0, 0, 0, None)
        # What only others told of may be on its way: it waits as long as the stream goes on, and for the way that it has then.
        late = Wait(now_us + after_us + self._timing.source_us(), 0, 0, 0, streamed)
        waits: RangeMap[Wait] = RangeMap()
        for first, last in missing:
            for low, high, wait in self._waits.over(first, last):
                # What was asked for already is lost, as far as this member can know.
                if wait is not None and wait.streamed in (None, streamed):
                    waits.put(low, high, wait)
                else:
                    waits.put(low, min(high, streamed), lost)
                    waits.put(max(low, streamed + 1), high, late)
            if len(waits) >= limits.REPAIR_RANGES_KEPT_MAX:
                break
        self._waits = waits
        self._arm()

    def _arm(self) -> None:
        self.due_us = min((wait.due_us for _, _, wait in self._waits), default=None)

    def others_asked(self, ranges: tuple[Range, ...]) -> None:
        """Another member asked: who misses the same lets it, and waits twice as long; a request that crossed doubles nothing."""
        if self.due_us is None:
            return
        now_us = self._outbox.now.mono_us
        after_us = self._timing.ask_us()
        for first, last in ranges:
            for low, high, wait in self._waits.over(first, last):
                if wait is not None and now_us >= wait.deaf_us:
                    self._waits.put(
                        low, high, self._again(wait, after_us << min(wait.tries + 1, limits.REPAIR_BACKOFF_MAX), wait.sure_us)
                    )
                    self.suppressed += 1
        self._arm()

    def _again(self, wait: Wait, after_us: int, sure_us: int) -> Wait:
        now_us, tries = self._outbox.now.mono_us, min(wait.tries + 1, limits.REPAIR_BACKOFF_MAX)
        return Wait(now_us + after_us, now_us + after_us // 2, sure_us, tries, None)

    def others_repair(self, sender: int, ranges: tuple[Range, ...]) -> None:
        """Another member repairs: who misses the same says so to it, and to nobody else, and waits until that has come."""
        if self.due_us is None:
            return
        now_us = self._outbox.now.mono_us
        until_us = now_us + self._timing.round_us(sender)
        wanted = [
            (low, high, wait)
            for first, last in ranges
            for low, high, wait in self._waits.over(first, last)
            if wait is not None and wait.streamed is None and now_us >= wait.sure_us
        ]
        for low, high, wait in wanted:
            self._waits.put(low, high, wait._replace(sure_us=until_us, due_us=max(wait.due_us, until_us)))
        if wanted:
            self.joined += 1
            self._outbox.send(sender, Missing(self._standing.view, _ranges(wanted), sender))
            self._arm()

    def time(self) -> None:
        """Ask for what is due, in one request to all members of the view; what would soon be goes along."""
        now_us = self._outbox.now.mono_us
        if self.due_us is None or now_us < self.due_us:
            return
        soon_us = now_us + self._timing.typical_us()
        due = [
            (low, high, wait)
            for low, high, wait in self._waits
            if wait.due_us <= now_us or (wait.due_us <= soon_us and wait.sure_us <= now_us and wait.streamed is None)
        ]
        ranges, of = _ranges(due), self._whom(max(wait.tries for _, _, wait in due))
        if self.bucket.take(1, now_us):
            self.requests += 1
            for member in self._standing.others:
                self._outbox.send(member, Missing(self._standing.view, ranges, of))
        # Also when the bucket is empty: it waits for its next round, as if the request had been lost.
        after_us, round_us = self._timing.ask_us(), self._timing.round_us(of)
        for low, high, wait in due:
            if low <= ranges[-1][1]:
                self._waits.put(low, high, self._again(wait, round_us + (after_us << wait.tries), now_us + round_us))
        self._arm()

    def _whom(self, tries: int) -> int:
        """Who is to repair: the nearest; then the coordinator, who has everything unless it is gone; then anybody."""
        if tries == 0:
            return self._timing.nearest()
        return self._standing.coordinator if tries == 1 else 0


def _ranges(pieces: list[tuple[int, int, Wait]]) -> tuple[Range, ...]:
    """The pieces as ranges, as many as a request may have; neighbours are one."""
    ranges: list[Range] = []
    for low, high, _ in pieces:
        if ranges and ranges[-1][1] + 1 == low:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    return tuple(ranges[: limits.REPAIR_RANGES_MAX])
