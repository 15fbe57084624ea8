"""Unordered delivery: sends unordered batches to the lanes of gateways, and returns outcomes to the accumulator. Sans-I/O.

New batches go into one lane. If its gateway becomes unavailable, batches in flight wait for that gateway, and new batches go into
another lane. NOTES.md has the theory of operation and the failure cases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import inf

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch, Failure
from tutti.delivery.lane import Lane
from tutti.delivery.lane_registry import LaneRegistry
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import US, Identity, State
from tutti.errors import TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
_SETTLE_S = limits.SILENCE_US_MIN / US


class UnorderedDelivery:
    """The unordered delivery of one producer. Called by one thread.

    Attributes:
        lanes: the current lanes. One gets new batches; the others wait for outcomes of batches in flight.
        feed: the accumulator of unordered batches.
    """

    def __init__(self, delivery: OrderedDelivery, feed: Accumulator, token: Callable[[], bytes]) -> None:
        """Deliver the batches of `feed` under the epochs that `delivery` opens. `token` makes session ids of 16 random bytes."""
        self.feed = feed
        self.lanes: list[Lane] = []
        self._ledger = LaneRegistry(delivery, feed)
        self._token = token
        self._current: Lane | None = None
        self._settle_until = 0.0  # time until which new batches wait for answers to earlier ones
        self._ended = False

    @property
    def gateways(self) -> dict[str, str]:
        """The gateways of the group, name to url, from the latest Welcome."""
        return self._ledger.gateways

    # -- for the producer's I/O

    def work(self, now: float) -> None:
        """Do what is due: move batches from the accumulator to a lane, send, enforce deadlines, publish outcomes."""
        if self._ended:
            return
        self.feed.expire_linger(now)
        for lane in list(self.lanes):
            lane.work(now)
        self._expire_queued(now)
        self._choose_lane(now)
        self._exclude_waiting()
        self._fill_lane(now)
        for lane in self.lanes:
            lane.send(now)
        self._publish()

    def next_time(self, now: float) -> float:
        """Return the monotonic time of the next action if nothing happens before; infinity if there is none."""
        times = [lane.next_time(now) for lane in self.lanes]
        queue, linger = self.feed.queue, self.feed.linger_until
        if queue:
            times += [queue[0].deadline, *([self._settle_until] if self._settling(now) else [])]
        if linger is not None:
            times.append(linger)
        return min(times, default=inf)

    def may_work(self, now: float) -> bool:
        """Return True if the next batch of the queue could be sent at once, or if it needs a gateway."""
        queue, taker = self.feed.queue, self._current
        if not queue or self._ended:
            return False
        if taker is None or taker not in self.lanes or not taker.takes():
            return self._needs_gateway()
        if not taker.ready(now) or self._settling(now):
            return False
        return taker.window.has_room(queue[0]) and queue[0].topic in taker.topics

    def batches(self) -> Iterator[Batch]:
        """Return an iterator over the batches in flight."""
        return (batch for lane in self.lanes for batch in lane.window)

    def end(self, error: TuttiError) -> None:
        """Deliver nothing more; fail all batches without an outcome with `error`."""
        if self._ended:
            return
        self._ended = True
        failure = Failure(error)
        seized = self.feed.seize(error, ended=True)
        for lane in self.lanes:
            lane.window.fail_from(0, failure)
            lane.outbox.clear()
        self._ledger.fail(seized, failure)
        self._publish()

    # -- choice of the lane for new batches

    def _choose_lane(self, now: float) -> None:
        """Choose the lane for new batches, look for a gateway if there is none, and remove lanes that are not needed."""
        if self._current is None or self._current not in self.lanes or not self._current.takes():
            if self._current is not None and len(self._current.window):
                self._settle_until = now + _SETTLE_S
            self._current = next((lane for lane in self.lanes if lane.takes()), None)
        looking = [lane for lane in self.lanes if not lane.lane]  # lanes that look for a gateway
        spare = looking if self._current is not None else looking[1:]
        for lane in self.lanes:
            if lane.lane and lane is not self._current and not len(lane.window) and self._current is not None:
                spare.append(lane)
        for lane in spare:
            lane.unbind()
            self._ledger.settled += lane.window.take_settled()
            self.lanes.remove(lane)
        if self._current is None and self.feed.queue and self._needs_gateway():
            identity = self._ledger.delivery.identity
            self.lanes.append(Lane(self._ledger, Identity(identity.name, identity.instance, self._token())))

    def _needs_gateway(self) -> bool:
        """Return True if an unbound gateway may exist and no lane is looking for one."""
        bound = {lane.gateway for lane in self.lanes if lane.lane}
        if len(bound) < len(self.lanes) or any(lane.over or lane.takes() for lane in self.lanes):
            return False  # a lane is looking for one, or waits for an epoch
        return not bound or bool(self.gateways.keys() - bound)

    def _exclude_waiting(self) -> None:
        """Exclude batches that wait for another gateway from the pending batches, so that new batches need not wait."""
        aside = sum(len(lane.window) for lane in self.lanes if lane is not self._current)
        if aside != self.feed.aside:
            self.feed.aside = aside
            self.feed.close_idle()

    def _settling(self, now: float) -> bool:
        """Return True if a gateway that accepts no new batches may soon reject a batch in flight.

        New batches wait for that answer, because the rejected batch could not move to another lane after a newer one.
        """
        return now < self._settle_until and any(
            lane.closed and lane.state is State.OPEN and lane.window.in_doubt for lane in self.lanes
        )

    def _fill_lane(self, now: float) -> None:
        taker = self._current
        if taker is None or not taker.ready(now) or self._settling(now):
            return
        while (batch := self.feed.head()) is not None and taker.window.has_room(batch) and taker.knows_topic(batch):
            self._ledger.hand_over(taker.lane, taker.window)

    # -- outcomes

    def _expire_queued(self, now: float) -> None:
        """Enforce the delivery deadline of batches that no gateway accepted."""
        queue = self.feed.queue
        if not queue or queue[0].deadline > now:
            return
        met = [*self._ledger.unfit.values(), *(lane.trouble for lane in self.lanes if lane.trouble)]
        troubles = "; ".join(dict.fromkeys(met))
        error = Unknown(
            f"an unordered record of producer {self._ledger.delivery.identity.name!r} to topic {queue[0].topic!r} was accepted by "
            f"no gateway within {self._ledger.timeout}: it is in no lane{f'; last error: {troubles}' if troubles else ''}"
        )
        LOG.warning("%s", error)
        late: list[Batch] = []
        while queue and queue[0].deadline <= now:
            late.append(queue.popleft())
        self._ledger.fail(late, Failure(error))

    def _publish(self) -> None:
        """Publish outcomes to the accumulator, then run the callbacks."""
        settled, self._ledger.settled = self._ledger.settled, []
        for lane in self.lanes:
            settled += lane.window.take_settled()
        if settled:
            self.feed.finished(settled)
        while self.feed.born_failed:
            settled.append(self.feed.born_failed.popleft())
        for batch in settled:
            batch.announce()
