"""Lanes: unordered batches to gateways, outcomes to their feed. As free of sockets, threads and clocks as the delivery is.

One lane takes what is new. When its gateway goes away, what was sent there waits for it, and what is new goes into another one's
lane. Theory of operation and failure cases: NOTES.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from gateway.client.delivery import Delivery
from gateway.client.feed import Feed
from gateway.client.lane import Lane
from gateway.client.receipt import Batch, Failure
from gateway.client.session import Identity
from gateway.core import limits
from gateway.data import wire
from gateway.data.states import SHUT
from gateway.errors import TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
Epoch = tuple[int, int]  # the producer's number, and its epoch


class Lanes:
    """All unordered batches of one producer. Called by one thread.

    Attributes:
        lanes: the talks there are: one takes what is new, others wait for the outcome of what they sent.
        gateways: of the group, name to url, as one of them named them last.
        unfit: why gateways were passed by, by name, since one took something.
    """

    def __init__(self, delivery: Delivery, feed: Feed, token: Callable[[], bytes]) -> None:
        """Deliver what `feed` holds under the epochs that `delivery` opens; `token` names a session, 16 random bytes."""
        self.delivery = delivery
        self.feed = feed
        self.lanes: list[Lane] = []
        self.gateways: dict[str, str] = dict(delivery.welcome.gateways) if delivery.welcome is not None else {}
        self.unfit: dict[str, str] = {}
        self._token = token
        self._taker: Lane | None = None
        self._ended = False
        # What is kept of each lane that was met: a group has some dozen gateways, and few of their disks are ever lost.
        self._serial = 0  # of the last batch that went into any lane
        self._serials: dict[str, int] = {}  # lane -> that of the last one there
        self._next: dict[str, tuple[Epoch, int]] = {}  # lane -> what comes next there in that epoch
        self._spoiled: dict[str, Epoch] = {}  # lane -> the epoch in which that is not known
        self._cut_off: set[str] = set()  # gateways that said so when they were turned to, since one took something
        self._settled: list[Batch] = []

    # -- the pump

    def work(self, now: float) -> None:
        """Do what is due: take batches from the feed to a lane, send, give up what is too old, tell outcomes."""
        if self._ended:
            return
        self.feed.expire_linger(now)
        for lane in list(self.lanes):
            lane.work(now)
        self._give_up_queued(now)
        self._arrange()
        self._put_aside()
        self._hand_out(now)
        for lane in self.lanes:
            lane.send(now)
        self._tell()

    def next_time(self, now: float) -> float | None:
        """When `work` has something to do, if nothing happens before (monotonic)."""
        times = [time for lane in self.lanes if (time := lane.next_time(now)) is not None]
        queue, linger = self.feed.queue, self.feed.linger_until
        if queue:
            times.append(queue[0].deadline)
        if linger is not None:
            times.append(linger)
        return min(times, default=None)

    def may_work(self, now: float) -> bool:
        """Whether the next batch of the queue could leave at once, or somebody is to be found for it."""
        queue, taker = self.feed.queue, self._taker
        if not queue or self._ended:
            return False
        if taker is None or taker not in self.lanes or not taker.takes():
            return self._seeks()
        return taker.ready(now) and taker.window.has_room(queue[0]) and queue[0].topic in taker.topics

    def batches(self) -> Iterator[Batch]:
        """What was sent and has no outcome."""
        return (batch for lane in self.lanes for batch in lane.window)

    def end(self, error: TuttiError) -> None:
        """Nothing more will be delivered; what has no outcome fails with `error`."""
        if self._ended:
            return
        self._ended = True
        failure = Failure(error)
        seized = self.feed.seize(error, ended=True)
        for lane in self.lanes:
            lane.window.fail_from(0, failure)
            lane.outbox.clear()
        for batch in seized:
            self.fail(batch, failure)
        self._tell()

    # -- who takes what is new

    def _arrange(self) -> None:
        """One lane takes what is new, another one is looked for when none does, and those that are of no use any more go."""
        if self._taker is None or self._taker not in self.lanes or not self._taker.takes():
            self._taker = next((lane for lane in self.lanes if lane.takes()), None)
        looking = [lane for lane in self.lanes if not lane.lane]  # for a gateway
        spare = looking if self._taker is not None else looking[1:]
        for lane in self.lanes:
            if lane.lane and lane is not self._taker and not len(lane.window) and self._taker is not None:
                spare.append(lane)
        for lane in spare:
            lane.unbind()
            self._settled += lane.window.take_settled()
            self.lanes.remove(lane)
        if self._taker is None and self.feed.queue and self._seeks():
            self.lanes.append(Lane(self, Identity(*self.delivery.identity[:2], self._token())))

    def _seeks(self) -> bool:
        """Whether to look for a gateway: there may be one that none of the lanes is bound to, and none is on its way there."""
        bound = {lane.gateway for lane in self.lanes if lane.lane}
        if len(bound) < len(self.lanes) or any(lane.over or lane.takes() for lane in self.lanes):
            return False  # one is, or an epoch is waited for
        return not bound or bool(self.gateways.keys() - bound)

    def _put_aside(self) -> None:
        """What is new does not wait for what waits for another gateway."""
        aside = sum(len(lane.window) for lane in self.lanes if lane is not self._taker)
        if aside != self.feed.aside:
            self.feed.aside = aside
            self.feed.close_idle()

    def _hand_out(self, now: float) -> None:
        taker, queue = self._taker, self.feed.queue
        if taker is None or not taker.ready(now):
            return
        while (batch := self.feed.head()) is not None and taker.window.has_room(batch) and taker.topic_number(batch.topic):
            self._serial += 1
            batch.serial = self._serials[taker.lane] = self._serial
            batch.lane = taker.lane
            taker.window.admit(queue.popleft())
            self._cut_off.clear()
            self.unfit.clear()

    # -- what lanes ask

    @property
    def timeout(self) -> str:
        """How long an outcome is waited for, for errors."""
        return f"{self.feed.options.delivery_timeout:g} s (delivery_timeout)"

    def hear(self, welcome: wire.Welcome) -> None:
        """A gateway says who there is, and its limits."""
        if welcome.state == "primary" or not self.gateways:
            self.gateways = dict(welcome.gateways)
        self.feed.frame_bytes_max = min(welcome.frame_bytes_max, limits.BODY_BYTES_MAX)
        self.feed.raw_bytes_max = min(welcome.raw_bytes_max, limits.RAW_BYTES_MAX)

    def why_not(self, welcome: wire.Welcome) -> str:
        """Why what is new does not go into that gateway's lane; empty if it does."""
        name, lane = welcome.gateway, welcome.lane
        if any(other.lane == lane for other in self.lanes):
            return f"gateway {name} is talked to already"
        if welcome.state in SHUT and name not in self._cut_off and len(welcome.gateways) > 1:
            self._cut_off.add(name)  # with all others away it takes them, next time
            return f"gateway {name} is {welcome.state}"
        if self._spoiled.get(lane) == self._epoch():
            self.delivery.renew()
            return f"gateway {name} takes unordered records of this producer in its next epoch, which is being opened"
        return ""

    def next_sequence(self, lane: Lane) -> int:
        """What comes next in that lane, in its epoch."""
        epoch, sequence = self._next.get(lane.lane, ((0, 0), 1))
        return sequence if epoch == (lane.number, lane.epoch) else 1

    def note_end(self, lane: Lane) -> None:
        """That lane is left."""
        self._next[lane.lane] = (lane.number, lane.epoch), lane.window.next_sequence

    def spoil(self, lane: Lane) -> None:
        """What comes next in that lane is not known: it takes nothing more in this epoch."""
        self._spoiled[lane.lane] = lane.number, lane.epoch

    def take_back(self, lane: Lane) -> None:
        """Batches of which nothing is or will be in that lane may go anywhere, and are the next to go.

        Not those that something newer has overtaken into another lane: there they would come behind it. They wait for their own.
        """
        overtaken = max((serial for name, serial in self._serials.items() if name != lane.lane), default=0)
        back = lane.window.take_back(overtaken)
        if back:
            with self.feed.lock:
                self.feed.queue.extendleft(reversed(back))

    def topic_refused(self, topic: str, error: TuttiError) -> None:
        """Batches of that topic at the head of the queue fail; nothing of them was sent."""
        failure, queue = Failure(error), self.feed.queue
        while queue and queue[0].topic == topic:
            self.fail(queue.popleft(), failure)

    def _epoch(self) -> Epoch:
        return self.delivery.number, self.delivery.epoch

    # -- outcomes

    def _give_up_queued(self, now: float) -> None:
        """The delivery deadline of what no gateway took."""
        queue = self.feed.queue
        if not queue or queue[0].deadline > now:
            return
        met = [*self.unfit.values(), *(lane.trouble for lane in self.lanes if lane.trouble)]
        troubles = "; ".join(dict.fromkeys(met))
        error = Unknown(
            f"an unordered record of producer {self.delivery.identity.name!r} to topic {queue[0].topic!r} was not taken by any "
            f"gateway within {self.timeout}: it is in no lane{f'; last trouble: {troubles}' if troubles else ''}"
        )
        LOG.warning("%s", error)
        failure = Failure(error)
        while queue and queue[0].deadline <= now:
            self.fail(queue.popleft(), failure)

    def fail(self, batch: Batch, failure: Failure) -> None:
        """A batch that no lane holds failed."""
        batch.settle(wire.OFFSET_UNKNOWN, failure)
        self._settled.append(batch)

    def _tell(self) -> None:
        """Outcomes to the feed, then to callbacks."""
        settled, self._settled = self._settled, []
        for lane in self.lanes:
            settled += lane.window.take_settled()
        if settled:
            self.feed.finished(settled)
        while self.feed.born_failed:
            settled.append(self.feed.born_failed.popleft())
        for batch in settled:
            if batch.callbacks is not None:
                batch.announce()
