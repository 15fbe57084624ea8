"""Requester: a member that lacks frames waits, and then requests them unless another member has done so (repair, R3 to R5)."""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple, Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Missing, Repair
from tutti_gateway.core.range_map import Range, RangeMap
from tutti_gateway.core.repair.timing import Timing
from tutti_gateway.core.repair.token_bucket import Bucket


class Receiving(Protocol):
    """The part of the receiver of ordered frames that repair uses. The receiver knows the missing positions."""

    @property
    def gaps(self) -> Sized:
        """The missing positions."""

    @property
    def streamed(self) -> int:
        """Highest position that the coordinator itself has sent in this view."""

    def missing(self) -> list[Range]:
        """Return the lowest ranges of announced positions that this member lacks and that must be requested."""

    def log_end_reported(self, sender: int, end: int) -> None:
        """Handle a report that the log of a member of this view reaches `end`."""

    def on_repair(self, sender: int, message: Repair) -> None:
        """Handle ordered frames that a member sends again, and check them like frames of the coordinator."""


class Wait(NamedTuple):
    """State of a range of missing positions.

    Attributes:
        deadline_us: time at which to request the range.
        ignore_until_us: time up to which requests of other members belong to the current round, and do not double the wait again.
        no_repeat_until_us: time before which the range is not requested again from the member that repairs it.
        tries: number of rounds so far, each of which doubles the wait.
        streamed: last position of the coordinator's stream at the start of the wait, if the range may still be in transit from the
            coordinator; None if the range is lost.
    """

    deadline_us: int
    ignore_until_us: int
    no_repeat_until_us: int
    tries: int
    streamed: int | None


class Requester:
    """The requester's role of the layer.

    Attributes:
        deadline_us: time at which `on_timer` must be called next; None if no request waits.
        requests: number of requests that were sent to all members.
        joined: number of requests that were sent only to a member that had claimed the repair.
        suppressed: number of ranges whose request was postponed because another member requested them.
        bucket: token bucket that limits the number of requests a second.
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
        """Add a wait for each newly missing range, and remove the waits for ranges that have arrived."""
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
        # A position that only other members announced may still be in transit from the coordinator (repair, R2).
        # Each new frame of the stream restarts the wait of such a position, which includes the delay from the coordinator.
        late = Wait(now_us + after_us + self._timing.source_us(), 0, 0, 0, streamed)
        waits: RangeMap[Wait] = RangeMap()
        for first, last in missing:
            for low, high, wait in self._waits.slices(first, last):
                # A range keeps its wait if it is lost, or if it may be in transit and the stream has brought no new frame since.
                if wait is not None and wait.streamed in (None, streamed):
                    waits.put(low, high, wait)
                else:
                    waits.put(low, min(high, streamed), lost)
                    waits.put(max(low, streamed + 1), high, late)
            # The lowest ranges block the frontier, so higher ranges may wait until the lowest have arrived.
            if len(waits) >= limits.REPAIR_RANGES_KEPT_MAX:
                break
        self._waits = waits
        self._arm()

    def _arm(self) -> None:
        self.deadline_us = min((wait.deadline_us for _, _, wait in self._waits), default=None)

    def on_other_request(self, ranges: tuple[Range, ...]) -> None:
        """Double the wait for frames that another member requests, but at most one time in each round."""
        if self.deadline_us is None:
            return
        now_us = self._outbox.now.mono_us
        after_us = self._timing.ask_us()
        for first, last in ranges:
            for low, high, wait in self._waits.slices(first, last):
                # The repair that another member requests will reach this member too.
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
        """If another member claims the repair of missing frames, request them from that member only, and wait for the repair."""
        if self.deadline_us is None:
            return
        now_us = self._outbox.now.mono_us
        until_us = now_us + self._timing.round_us(sender)
        wanted = [
            (low, high, wait)
            for first, last in ranges
            for low, high, wait in self._waits.slices(first, last)
            # A position that may still be in transit from the coordinator is not requested (repair, R2).
            if wait is not None and wait.streamed is None and now_us >= wait.no_repeat_until_us
        ]
        for low, high, wait in wanted:
            self._waits.put(low, high, wait._replace(no_repeat_until_us=until_us, deadline_us=max(wait.deadline_us, until_us)))
        if wanted:
            self.joined += 1
            self._outbox.send(sender, Missing(self._view_state.view, _ranges(wanted), sender))
            self._arm()

    def on_timer(self) -> None:
        """If a range is due, send all members of the view one request for all ranges that are due now or soon."""
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
        # Without the bucket, a member that misses many frames could flood the group with requests (repair, R11).
        if self.bucket.consume(1, now_us):
            self.requests += 1
            for member in self._view_state.others:
                self._outbox.send(member, Missing(self._view_state.view, ranges, of))
        # If the bucket is empty, the ranges wait for the next round, as if the request had been lost.
        after_us, round_us = self._timing.ask_us(), self._timing.round_us(of)
        for low, high, wait in due:
            # Ranges that did not fit into this request keep their deadline, so that the next request contains them.
            if low <= ranges[-1][1]:
                self._waits.put(low, high, self._backed_off(wait, round_us + (after_us << wait.tries), now_us + round_us))
        self._arm()

    def _choose_repairer(self, tries: int) -> int:
        """Return the member that must repair: the nearest one in the first round, then the coordinator, then any holder (0)."""
        # The nearest member may lack the frames too, but the coordinator certainly has them.
        if tries == 0:
            return self._timing.nearest()
        return self._view_state.coordinator if tries == 1 else 0


def _ranges(slices: list[tuple[int, int, Wait]]) -> tuple[Range, ...]:
    """Join adjacent slices into ranges, and return at most as many ranges as one request may contain."""
    ranges: list[Range] = []
    for low, high, _ in slices:
        if ranges and ranges[-1][1] + 1 == low:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    return tuple(ranges[: limits.REPAIR_RANGES_MAX])
