"""Frames that the coordinator orders without a client's request: ticks, trims, and FORGETs of idle producers without a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti import limits as common_limits
from tutti.data.frames.bodies import TickBody, TrimBody
from tutti.data.frames.frame import Kind
from tutti.data.names import is_nameless
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.order.sequencer import Sequencer


class Housekeeping:
    """Orders TICK, TRIM and FORGET frames while this member coordinates a view that decides.

    Attributes:
        seen_us: the last time at which a frame of a producer was decided, by producer number.
        deadline_us: time at which `on_timer` must be called next; None if neither a tick nor a FORGET waits.
    """

    def __init__(self, context: Context, received: ReceivedTable, sequencer: Sequencer, wall_us: Callable[[], int]) -> None:
        self._config = context.config
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._received = received
        self._sequencer = sequencer
        self._wall_us = wall_us
        self._tick_us: int | None = None
        self._idle_check_us: int | None = None
        self.deadline_us: int | None = None
        self._since_us = 0
        self.seen_us: dict[int, int] = {}

    def primary(self) -> None:
        """Start the timers when a view begins to decide. The idle times of all producers start at zero.

        If the log has records after the last tick, order a tick at once.
        """
        now_us = self._outbox.now.mono_us
        self._since_us, self.seen_us = now_us, {}
        self._idle_check_us = now_us + limits.IDLE_PRODUCER_CHECK_US
        self._tick_us = now_us if self._received.dirty else None
        self.on_timer()

    def _arm(self) -> None:
        due = [at for at in (self._tick_us, self._idle_check_us) if at is not None]
        self.deadline_us = min(due, default=None)

    def ordered(self) -> None:
        """Schedule the next tick, if this step has ordered the first records after the last tick."""
        # Without new records, no tick is scheduled, so an idle log gets no ticks (order, O34).
        if self._received.dirty and self._tick_us is None and self._active:
            self._tick_us = self._outbox.now.mono_us + self._config.tick_interval_us
            self._arm()

    def producer_seen(self, producer: int) -> None:
        """Reset the producer's idle time, because a frame of the producer was decided in the ordered log."""
        self.seen_us[producer] = self._outbox.now.mono_us

    def lane_producer_seen(self, producer: int) -> None:
        """Reset the producer's idle time, because a frame of the producer was decided in a lane."""
        if producer in self._window.state.producers:
            self.producer_seen(producer)

    def forgotten(self, producer: int) -> None:
        """Delete the idle time of a producer that a FORGET has removed."""
        self.seen_us.pop(producer, None)

    @property
    def _active(self) -> bool:
        return self._view_state.primary and self._view_state.coordinating

    def on_timer(self) -> None:
        """Order a tick and a FORGET of idle producers, each if it is due."""
        if not self._active:
            self._tick_us = self._idle_check_us = self.deadline_us = None
            return
        now, crowded = self._outbox.now, self._window.crowded
        if self._tick_us is not None and now.mono_us >= self._tick_us:
            # The last space in a crowded window is reserved for ABORT, VIEW and ROSTER frames, so the tick waits another interval.
            self._tick_us = now.mono_us + self._config.tick_interval_us if crowded else None
            if self._received.dirty and not crowded:
                received = self._received
                # If the clock has gone back, the tick repeats the last tick's time, because times of ticks must not decrease.
                self._sequencer.order_frame(Kind.TICK, TickBody(received.tick + 1, max(received.tick_time, self._wall_us())))
        if self._idle_check_us is not None and now.mono_us >= self._idle_check_us:
            self._idle_check_us = now.mono_us + limits.IDLE_PRODUCER_CHECK_US
            if not crowded:
                self._forget(now.mono_us)
        self._arm()

    def _forget(self, now_us: int) -> None:
        """Order a FORGET of the producers without a name of which no frame was decided for the idle time."""
        # A new coordinator does not know which producers were active before, so it first waits for the whole idle time.
        if now_us - self._since_us < self._config.idle_producer_us or self._view_state.closed is not None:
            return
        idle = []
        # A producer with staged batches gets more time, because its TXN may follow much later, after a micro-batch (order, O26).
        stages = {staged.producer for staged in self._window.state.staged.values()}
        for number, producer in self._window.state.producers.items():
            # A named producer may return after any time, so only an operator deletes it.
            if not is_nameless(producer.name) or number in self._received.forgotten or self._sequencer.busy(number):
                continue
            patience = self._config.idle_producer_us * (limits.STAGED_IDLE_FACTOR if number in stages else 1)
            if now_us - self.seen_us.get(number, self._since_us) >= patience:
                idle.append(number)
                if len(idle) == common_limits.DELETE_PRODUCERS_MAX:
                    break
        if idle:
            self._sequencer.forget(idle)

    def trim(self, starts: Sequence[tuple[int, int]], up_to: int) -> None:
        """Order a TRIM to the last of `starts` (position, offset of the first record) that is decided and at most `up_to` + 1.

        If no TRIM is possible now, order nothing. Retention repeats its proposal.
        """
        window, received = self._window, self._received
        if not self._active or self._view_state.draining or window.crowded:
            return
        # Every voter holds the log up to `up_to`, unless retention forces the trim (log, D27).
        last = min(up_to + 1, window.frontier)
        # The log must begin at the start of a segment, because retention removes whole files.
        good = [start for start in starts if received.start < start[0] <= last]
        if good:
            self._sequencer.order_frame(Kind.TRIM, TrimBody(*max(good)))
