"""Requester: a member that misses frames waits, watches for requests by others, and then asks (repair, R3 to R5)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Missing, Repair
from tutti_gateway.core.range_map import Range, RangeMap
from tutti_gateway.core.repair.timing import Timing
from tutti_gateway.core.repair.token_bucket import Bucket


class Receiving(Protocol):
    """The receiver of frames, which knows the missing ones."""

    @property
    def streamed(self) -> int:
        """The highest position that the coordinator itself sent in this view."""

    def missing(self) -> list[Range]:
        """Return the lowest ranges of positions that were announced and are not here."""

    def log_end_reported(self, sender: int, end: int) -> None:
        """Note that the log of a member of the view reaches `end`."""

    def on_repair(self, sender: int, message: Repair) -> None:
        """Handle frames of a member that holds them, and check them like the stream."""


class Wait(NamedTuple):
    """State of missing positions.

    Attributes:
        deadline_us: time at which to request them.
        ignore_until_us: requests by others before this time belong to a round that is already counted.
        no_repeat_until_us: the request was sent to all members or to the repairer. It is not repeated to the repairer before this
            time.
        tries: number of rounds so far. Each round doubles the wait.
        streamed: position of the coordinator's stream, if only other members announced these later positions; else None.
    """

    deadline_us: int
    ignore_until_us: int
    no_repeat_until_us: int
    tries: int
    streamed: int | None


class Requester:
    """The requester's role of the layer.

    Attributes:
        deadline_us: time of the next `on_timer`; None if nothing is due.
        requests: number of requests to all members.
        joined: number of requests to a member that had claimed the repair.
        suppressed: number of ranges that were not requested because another member requested them.
        bucket: budget of requests to send.
    """

    def __init__(self, context: Context, receiver: Receiving, timing: Timing) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._receiver = receiver
        self._timing = timing
        self._waits: RangeMap[Wait] = RangeMap()
        self._last_missing: tuple[list[Range], int] = ([], 0)
        self.deadline_us: int | None = None
        self.requests = self.joined = self.suppressed = 0
        self.bucket = Bucket(limits.REPAIR_ASKS_A_SECOND, limits.REPAIR_ASKS_BURST)

    def reset(self) -> None:
        """Delete all waits, because nothing is missing or a new view begins."""
        self._waits.clear()
        self._last_missing, self.deadline_us = ([], 0), None

    def update(self) -> None:
        """Update the waits. Add a wait for each newly missing range, and remove the waits for ranges that have arrived."""
        missing, streamed = self._receiver.missing(), self._receiver.streamed
        if not missing:
            if self.deadline_us is not None:
                self.reset()
        elif (missing, streamed) != self._last_missing:
            self._last_missing = (missing, streamed)
            self._update(missing, streamed)

    def _update(self, missing: list[Range], streamed: int) -> None:
        now_us = self._outbox.now.mono_us
        after_us = self._timing.ask_us()
        lost = Wait(now_us + after_us, 0, 0, 0, None)
        # A position that only other members announced may still be on its way from the coordinator (repair, R2).
        # Such a position waits as long as the stream continues, and then for one more distance to the coordinator.
        late = Wait(now_us + after_us + self._timing.source_us(), 0, 0, 0, streamed)
        waits: RangeMap[Wait] = RangeMap()
        for first, last in missing:
            for low, high, wait in self._waits.slices(first, last):
                # A range that was already requested once counts as lost.
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
        self.deadline_us = min((wait.deadline_us for _, _, wait in self._waits), default=None)

    def on_other_request(self, ranges: tuple[Range, ...]) -> None:
        """Note a request of another member. Double the wait for the same frames, but only once for all requests of one round."""
        if self.deadline_us is None:
            return
        now_us = self._outbox.now.mono_us
        after_us = self._timing.ask_us()
        for first, last in ranges:
            for low, high, wait in self._waits.slices(first, last):
                if wait is not None and now_us >= wait.ignore_until_us:
                    self._waits.put(
                        low,
                        high,
                        self._backed_off(wait, after_us << min(wait.tries + 1, limits.REPAIR_BACKOFF_MAX), wait.no_repeat_until_us),
                    )
                    self.suppressed += 1
        self._arm()

    def _backed_off(self, wait: Wait, after_us: int, no_repeat_until_us: int) -> Wait:
        now_us, tries = self._outbox.now.mono_us, min(wait.tries + 1, limits.REPAIR_BACKOFF_MAX)
        return Wait(now_us + after_us, now_us + after_us // 2, no_repeat_until_us, tries, None)

    def on_other_claim(self, sender: int, ranges: tuple[Range, ...]) -> None:
        """Note a claim of another member. Request the same frames from that member only, and wait until they have arrived."""
        if self.deadline_us is None:
            return
        now_us = self._outbox.now.mono_us
        until_us = now_us + self._timing.round_us(sender)
        wanted = [
            (low, high, wait)
            for first, last in ranges
            for low, high, wait in self._waits.slices(first, last)
            # A position that may still arrive with the stream is not requested (repair, R2).
            if wait is not None and wait.streamed is None and now_us >= wait.no_repeat_until_us
        ]
        for low, high, wait in wanted:
            self._waits.put(low, high, wait._replace(no_repeat_until_us=until_us, deadline_us=max(wait.deadline_us, until_us)))
        if wanted:
            self.joined += 1
            self._outbox.send(sender, Missing(self._view_state.view, _ranges(wanted), sender))
            self._arm()

    def on_timer(self) -> None:
        """Send one request for all ranges that are due, or soon will be, to all members of the view."""
        now_us = self._outbox.now.mono_us
        if self.deadline_us is None or now_us < self.deadline_us:
            return
        soon_us = now_us + self._timing.typical_us()
        due = [
            (low, high, wait)
            for low, high, wait in self._waits
            if wait.deadline_us <= now_us
            or (wait.deadline_us <= soon_us and wait.no_repeat_until_us <= now_us and wait.streamed is None)
        ]
        ranges, of = _ranges(due), self._choose_repairer(max(wait.tries for _, _, wait in due))
        # The bucket bounds a member's rate of requests, even if many frames are lost (repair, R11).
        if self.bucket.consume(1, now_us):
            self.requests += 1
            for member in self._view_state.others:
                self._outbox.send(member, Missing(self._view_state.view, ranges, of))
        # An empty bucket has the same effect as a lost request: the ranges wait for their next round.
        after_us, round_us = self._timing.ask_us(), self._timing.round_us(of)
        for low, high, wait in due:
            # Ranges above the limit of one request stay due.
            if low <= ranges[-1][1]:
                self._waits.put(low, high, self._backed_off(wait, round_us + (after_us << wait.tries), now_us + round_us))
        self._arm()

    def _choose_repairer(self, tries: int) -> int:
        """Return the member that must repair: the nearest, then the coordinator, then any holder (0)."""
        if tries == 0:
            return self._timing.nearest()
        return self._view_state.coordinator if tries == 1 else 0


def _ranges(slices: list[tuple[int, int, Wait]]) -> tuple[Range, ...]:
    """Return the slices as ranges, as many as a request may contain. Adjacent slices form one range."""
    ranges: list[Range] = []
    for low, high, _ in slices:
        if ranges and ranges[-1][1] + 1 == low:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    return tuple(ranges[: limits.REPAIR_RANGES_MAX])
