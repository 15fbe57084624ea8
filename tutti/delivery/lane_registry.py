"""Lane registry: the state that all lanes of one producer share, with former lanes and with gateways that cannot be used."""

from __future__ import annotations

from collections.abc import Collection

from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch, Failure
from tutti.data import client_protocol
from tutti.data.gateway_states import NO_NEW_UNORDERED
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.window import Window
from tutti.errors import TuttiError

Epoch = tuple[int, int]  # the producer's number, and its epoch


class LaneRegistry:
    """The shared state of one producer's lanes. Used by one thread.

    Attributes:
        ordered: the ordered delivery of the same producer, whose epochs the lanes use.
        accumulator: the accumulator of unordered batches.
        gateways: gateways of the group, name -> url, from the latest Welcome.
        unusable: gateway name -> reason why the gateway was skipped; cleared when a lane accepts a batch.
        bound: the lanes to which a sender is bound at present.
        resolved: batches in no lane that have an outcome, which is not published yet.
    """

    def __init__(self, ordered: OrderedDelivery, accumulator: Accumulator) -> None:
        """Create a registry without lanes."""
        self.ordered = ordered
        self.accumulator = accumulator
        welcome = ordered.session.welcome
        self.gateways: dict[str, str] = dict(welcome.gateways) if welcome is not None else {}
        self.unusable: dict[str, str] = {}
        self.bound: set[str] = set()
        self.resolved: list[Batch] = []
        # The state of each lane that the producer has used is never deleted: a group has few gateways, and lanes are rarely lost.
        self._serial = 0  # serial of the last batch of any lane
        self._serials: dict[str, int] = {}  # lane -> serial of its last batch
        self._next: dict[str, tuple[Epoch, int]] = {}  # lane -> latest epoch in the lane, and the next sequence in this epoch
        self._unknown_next: dict[str, Epoch] = {}  # lane -> epoch in which the next sequence of the lane is unknown
        self._in_minority: set[str] = set()  # gateways that were in a minority when tried; cleared when a lane accepts a batch

    @property
    def epoch(self) -> Epoch:
        """The producer number and epoch of the ordered delivery."""
        return self.ordered.session.number, self.ordered.session.epoch

    @property
    def timeout(self) -> str:
        """The delivery timeout, as text for error messages."""
        return f"{self.accumulator.options.delivery_timeout:g} s (delivery_timeout)"

    # -- gateways

    def update_gateways(self, welcome: client_protocol.Welcome) -> None:
        """Store the list of gateways and the limits that a Welcome contains."""
        if welcome.state == "primary" or not self.gateways:
            self.gateways = dict(welcome.gateways)
        self.accumulator.set_limits(welcome)

    def refusal_reason(self, welcome: client_protocol.Welcome) -> str:
        """Return the reason why the lane of that gateway cannot get new batches; empty if it can."""
        name, lane = welcome.gateway, welcome.lane
        if lane in self.bound:
            return f"gateway {name} already has a session of this producer"
        if welcome.state in NO_NEW_UNORDERED and name not in self._in_minority and len(welcome.gateways) > 1:
            self._in_minority.add(name)  # skip this gateway once; if no other gateway is reachable, the next attempt uses it
            return f"gateway {name} is {welcome.state}"
        if self._unknown_next.get(lane) == self.epoch:
            self.ordered.end_epoch_when_idle()
            return f"gateway {name} accepts unordered records of this producer again after the next epoch opens"
        return ""

    # -- lanes

    def next_sequence(self, lane: str, epoch: Epoch) -> int:
        """Return the next sequence of a lane in an epoch; 1 for an epoch that the lane has not seen."""
        known, sequence = self._next.get(lane, ((0, 0), 1))
        return sequence if known == epoch else 1

    def note_end(self, lane: str, epoch: Epoch, next_sequence: int) -> None:
        """Remember the next sequence of a lane when its sender unbinds."""
        self._next[lane] = epoch, next_sequence

    def mark_next_unknown(self, lane: str, epoch: Epoch) -> None:
        """Mark the next sequence of a lane as unknown, so that the lane gets no more batches in this epoch."""
        self._unknown_next[lane] = epoch

    # -- batches

    def assign(self, lane: str, window: Window) -> None:
        """Move the first batch of the queue into a lane."""
        batch = self.accumulator.queue.popleft()
        self._serial += 1
        batch.serial = self._serials[lane] = self._serial
        batch.lane = lane
        window.admit(batch)
        self._in_minority.clear()
        self.unusable.clear()

    def requeue(self, lane: str, window: Window) -> None:
        """Move batches that are not in the lane, and never will be, from the window back to the head of the queue.

        A batch stays in the window if a newer batch went to another lane, because in that lane it would follow the newer batch.
        """
        overtaken = max((serial for name, serial in self._serials.items() if name != lane), default=0)
        batches = window.withdraw(overtaken)
        if batches:
            with self.accumulator.lock:
                self.accumulator.queue.extendleft(reversed(batches))

    def fail_topic(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of that topic at the head of the queue. No gateway can still accept a queued batch."""
        queue = self.accumulator.queue
        refused: list[Batch] = []
        while queue and queue[0].topic == topic:
            refused.append(queue.popleft())
        self.fail(refused, Failure(error))

    def fail(self, batches: Collection[Batch], failure: Failure) -> None:
        """Fail batches that are in no lane."""
        for batch in batches:
            batch.resolve(client_protocol.OFFSET_UNKNOWN, failure)
            self.resolved.append(batch)
