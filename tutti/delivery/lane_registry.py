"""The ledger: what all lanes of one producer share, and what is known of lanes that were left and of gateways."""

from __future__ import annotations

from collections.abc import Collection

from tutti import limits
from tutti.batching.accumulator import Feed
from tutti.batching.receipt import Batch, Failure
from tutti.data import client_protocol
from tutti.data.gateway_states import SHUT
from tutti.delivery.ordered import Delivery
from tutti.delivery.window import Window
from tutti.errors import TuttiError

Epoch = tuple[int, int]  # the producer's number, and its epoch


class Ledger:
    """Used by one thread.

    Attributes:
        delivery: of the same producer: lanes go by its epochs.
        feed: where unordered batches come from.
        gateways: of the group, name to url, as one of them named them last.
        unfit: why gateways were passed by, by name, since one took something.
        bound: the lanes that are talked to now.
        settled: outcomes of batches that no lane holds, which nobody was told yet.
    """

    def __init__(self, delivery: Delivery, feed: Feed) -> None:
        """Begin without any lane."""
        self.delivery = delivery
        self.feed = feed
        self.gateways: dict[str, str] = dict(delivery.welcome.gateways) if delivery.welcome is not None else {}
        self.unfit: dict[str, str] = {}
        self.bound: set[str] = set()
        self.settled: list[Batch] = []
        # What is kept of each lane that was met: a group has some dozen gateways, and few of their disks are ever lost.
        self._serial = 0  # of the last batch that went into any lane
        self._serials: dict[str, int] = {}  # lane -> that of the last one there
        self._next: dict[str, tuple[Epoch, int]] = {}  # lane -> what comes next there in that epoch
        self._spoiled: dict[str, Epoch] = {}  # lane -> the epoch in which that is not known
        self._cut_off: set[str] = set()  # gateways that said so when they were turned to, since one took something

    @property
    def epoch(self) -> Epoch:
        """That the delivery has."""
        return self.delivery.number, self.delivery.epoch

    @property
    def timeout(self) -> str:
        """How long an outcome is waited for, for errors."""
        return f"{self.feed.options.delivery_timeout:g} s (delivery_timeout)"

    # -- gateways

    def hear(self, welcome: client_protocol.Welcome) -> None:
        """A gateway says who there is, and its limits."""
        if welcome.state == "primary" or not self.gateways:
            self.gateways = dict(welcome.gateways)
        self.feed.frame_bytes_max = min(welcome.frame_bytes_max, limits.BODY_BYTES_MAX)
        self.feed.raw_bytes_max = min(welcome.raw_bytes_max, limits.RAW_BYTES_MAX)

    def why_not(self, welcome: client_protocol.Welcome) -> str:
        """Why what is new does not go into that gateway's lane; empty if it does."""
        name, lane = welcome.gateway, welcome.lane
        if lane in self.bound:
            return f"gateway {name} is talked to already"
        if welcome.state in SHUT and name not in self._cut_off and len(welcome.gateways) > 1:
            self._cut_off.add(name)  # with all others away it takes them, next time
            return f"gateway {name} is {welcome.state}"
        if self._spoiled.get(lane) == self.epoch:
            self.delivery.renew()
            return f"gateway {name} takes unordered records of this producer in its next epoch, which is being opened"
        return ""

    # -- lanes

    def next_sequence(self, lane: str, epoch: Epoch) -> int:
        """What comes next in that lane, in that epoch."""
        known, sequence = self._next.get(lane, ((0, 0), 1))
        return sequence if known == epoch else 1

    def note_end(self, lane: str, epoch: Epoch, next_sequence: int) -> None:
        """That lane is left."""
        self._next[lane] = epoch, next_sequence

    def spoil(self, lane: str, epoch: Epoch) -> None:
        """What comes next in that lane is not known: it takes nothing more in this epoch."""
        self._spoiled[lane] = epoch

    # -- batches

    def hand_over(self, lane: str, window: Window) -> None:
        """The next batch goes into that lane."""
        batch = self.feed.queue.popleft()
        self._serial += 1
        batch.serial = self._serials[lane] = self._serial
        batch.lane = lane
        window.admit(batch)
        self._cut_off.clear()
        self.unfit.clear()

    def take_back(self, lane: str, window: Window) -> None:
        """Batches of which nothing is or will be in that lane may go anywhere, and are the next to go.

        Not those that something newer has overtaken into another lane: there they would come behind it. They wait for their own.
        """
        overtaken = max((serial for name, serial in self._serials.items() if name != lane), default=0)
        back = window.take_back(overtaken)
        if back:
            with self.feed.lock:
                self.feed.queue.extendleft(reversed(back))

    def topic_refused(self, topic: str, error: TuttiError) -> None:
        """Batches of that topic at the head of the queue fail; nothing of them was sent."""
        queue = self.feed.queue
        refused: list[Batch] = []
        while queue and queue[0].topic == topic:
            refused.append(queue.popleft())
        self.fail(refused, Failure(error))

    def fail(self, batches: Collection[Batch], failure: Failure) -> None:
        """Batches that no lane holds failed."""
        for batch in batches:
            batch.settle(client_protocol.OFFSET_UNKNOWN, failure)
            self.settled.append(batch)
