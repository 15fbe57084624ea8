"""Unordered delivery: sends unordered batches to the lanes of gateways, and returns outcomes to the accumulator (sans-I/O).

New batches go into one lane. If the gateway of this lane becomes unavailable, batches in flight wait for the same gateway, and new
batches go into another lane. tutti/NOTES.md contains the rules and the failure cases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import inf

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch, Failure
from tutti.delivery.lane_registry import LaneRegistry
from tutti.delivery.lane_sender import LaneSender
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import US, Identity, State
from tutti.errors import Aborted, TuttiError

LOG = logging.getLogger("tutti.client")
_ANSWER_WAIT_S = limits.SILENCE_US_MIN / US


class UnorderedDelivery:
    """The unordered delivery of one producer. Called by one thread.

    Attributes:
        senders: one sender for each current lane; one of them gets new batches, the others only wait for outcomes.
        accumulator: the accumulator of unordered batches.
    """

    def __init__(self, ordered: OrderedDelivery, accumulator: Accumulator, token: Callable[[], bytes]) -> None:
        """Deliver the batches of `accumulator` under the epochs that `ordered` opens. `token` returns 16 random bytes."""
        self.accumulator = accumulator
        self.senders: list[LaneSender] = []
        self._registry = LaneRegistry(ordered, accumulator)
        self._token = token
        self._current: LaneSender | None = None
        self._answers_until = 0.0  # until this time, new batches wait for the answers to batches in flight
        self._ended = False
        self.resent_by_ended_lanes = 0

    @property
    def gateways(self) -> dict[str, str]:
        """The urls of the group's gateways by name, from the latest Welcome."""
        return self._registry.gateways

    # -- for the producer's I/O

    def work(self, now: float) -> None:
        """Perform the actions that are due: move batches to a lane, send, enforce deadlines, publish outcomes."""
        if self._ended:
            return
        self.accumulator.expire_linger(now)
        # Run the lanes first: batches that a lane returns to the head of the queue then go to another lane before newer batches.
        for lane in list(self.senders):
            lane.work(now)
        self._expire_queued(now)
        self._choose_lane(now)
        self._exclude_pinned()
        self._fill_lane(now)
        for lane in self.senders:
            lane.send(now)
        self._publish()

    def next_time(self, now: float) -> float:
        """Return the monotonic time of the next action if no event occurs before; infinity if no action is planned."""
        times = [lane.next_time(now) for lane in self.senders]
        queue, linger = self.accumulator.queue, self.accumulator.linger_until
        if queue:
            times += [queue[0].deadline, *([self._answers_until] if self._awaits_refusals(now) else [])]
        if linger is not None:
            times.append(linger)
        return min(times, default=inf)

    def may_work(self, now: float) -> bool:
        """Return True if the first batch of the queue can be sent at once, or if a lane must look for a gateway."""
        queue, current = self.accumulator.queue, self._current
        if not queue or self._ended:
            return False
        if current is None or current not in self.senders or not current.accepts_batches:
            return self._needs_gateway()
        if not current.ready(now) or self._awaits_refusals(now):
            return False
        return current.window.has_capacity(queue[0]) and queue[0].topic in current.session.topics

    def batches(self) -> Iterator[Batch]:
        """Iterate over the batches in flight of all lanes."""
        return (batch for lane in self.senders for batch in lane.window)

    def end(self, error: TuttiError) -> None:
        """Stop delivering; fail all batches without an outcome with `error`."""
        if self._ended:
            return
        self._ended = True
        failure = Failure(error)
        unsent = self.accumulator.drain_unsent(error, ended=True)
        for lane in self.senders:
            lane.window.fail_from(0, failure)
            lane.session.outbox.clear()
        self._registry.fail(unsent, failure)
        self._publish()

    # -- choice of the lane for new batches

    def _choose_lane(self, now: float) -> None:
        """Choose the lane for new batches. If no lane accepts batches, look for a gateway. Remove lanes that are not needed."""
        if self._current is None or self._current not in self.senders or not self._current.accepts_batches:
            if self._current is not None and len(self._current.window):
                # The gateway may reject batches in flight, which must then enter the next lane before newer batches.
                self._answers_until = now + _ANSWER_WAIT_S
            self._current = next((lane for lane in self.senders if lane.accepts_batches), None)
        # At most one lane looks for a gateway at a time, and no lane does while another lane accepts batches.
        looking = [lane for lane in self.senders if not lane.lane]  # lanes that look for a gateway
        spare = looking if self._current is not None else looking[1:]
        for lane in self.senders:
            if lane.lane and lane is not self._current and not len(lane.window) and self._current is not None:
                spare.append(lane)
        for lane in spare:
            lane.unbind()
            # Save the outcomes of the lane here, because `_publish` runs after the removal and would miss them.
            self._registry.resolved += lane.window.pop_resolved()
            # Added before the removal, so that a sum over all lanes in another thread never decreases.
            self.resent_by_ended_lanes += lane.window.records_resent
            self.senders.remove(lane)
        if self._current is None and self.accumulator.queue and self._needs_gateway():
            identity = self._registry.ordered.session.identity
            self.senders.append(LaneSender(self._registry, Identity(identity.name, identity.instance, self._token())))

    def _needs_gateway(self) -> bool:
        """Return True if a lane must look for a gateway: a gateway without a lane may exist, and no lane is looking yet."""
        bound = {lane.gateway for lane in self.senders if lane.lane}
        if len(bound) < len(self.senders) or any(lane.epoch_ended or lane.accepts_batches for lane in self.senders):
            return False  # a lane is looking for a gateway, accepts batches, or waits for the next epoch
        # If each gateway already has a lane of this producer, batches wait until one of these lanes accepts them.
        return not bound or bool(self.gateways.keys() - bound)

    def _exclude_pinned(self) -> None:
        """Count the batches that wait in other lanes (`pinned`), so that the open batch closes without waiting for them."""
        pinned = sum(len(lane.window) for lane in self.senders if lane is not self._current)
        if pinned != self.accumulator.pinned:
            self.accumulator.pinned = pinned
            self.accumulator.close_idle()

    def _awaits_refusals(self, now: float) -> bool:
        """Return True if a gateway that accepts no new batches may soon reject a batch in flight.

        New batches wait for the rejection, because a rejected batch cannot move to a lane that already has a newer batch.
        """
        return now < self._answers_until and any(
            lane.closed and lane.session.state is State.OPEN and lane.window.in_doubt for lane in self.senders
        )

    def _fill_lane(self, now: float) -> None:
        current = self._current
        if current is None or not current.ready(now) or self._awaits_refusals(now):
            return
        while (batch := self.accumulator.head()) is not None and current.window.has_capacity(batch) and current.knows_topic(batch):
            self._registry.assign(current.lane, current.window)

    # -- outcomes

    def _expire_queued(self, now: float) -> None:
        """Enforce the delivery deadline of batches that no gateway accepted."""
        queue = self.accumulator.queue
        if not queue or queue[0].deadline > now:
            return
        errors = [*self._registry.unusable.values(), *(lane.session.trouble for lane in self.senders if lane.session.trouble)]
        troubles = "; ".join(dict.fromkeys(errors))
        error = Aborted(
            f"an unordered record of producer {self._registry.ordered.name!r} to topic {queue[0].topic!r} was accepted by "
            f"no gateway within {self._registry.timeout}: it is in no lane{f'; last error: {troubles}' if troubles else ''}"
        )
        LOG.warning("%s", error)
        late: list[Batch] = []
        # Each lane keeps its order without these batches, because no lane contains them, so later batches need not fail.
        while queue and queue[0].deadline <= now:
            late.append(queue.popleft())
        self._registry.fail(late, Failure(error))

    def _publish(self) -> None:
        """Publish outcomes to the accumulator, then run the callbacks."""
        resolved, self._registry.resolved = self._registry.resolved, []
        for lane in self.senders:
            resolved += lane.window.pop_resolved()
        if resolved:
            self.accumulator.finished(resolved)
        while self.accumulator.rejected:
            resolved.append(self.accumulator.rejected.popleft())
        for batch in resolved:
            batch.announce()
