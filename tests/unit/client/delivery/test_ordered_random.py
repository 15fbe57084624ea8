"""Random test of ordered delivery without a network: every record has one outcome, and the log agrees with it. Records are sent
while messages and answers arrive, get lost, wait or change order, connections break, and gateways restart, refuse and abort. Then
the faults stop, and every record must get its outcome.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from tests.unit.client.delivery.delivery_harness import Rig
from tests.unit.client.fake_gateway import Rules
from tutti.batching.receipt import Receipt
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.delivery.session import State
from tutti.errors import Aborted, Refused

ROUTING = b"client"


class World:
    """A producer, a gateway, and the messages in flight between them."""

    def __init__(self, uses_progress: bool) -> None:
        self.rig = Rig(name="p", delivery_timeout=1e9, batch_bytes=1024, buffer_bytes=1 << 30)
        self.gateway = Rules(rule=self.rule)
        self.to_gateway: deque[list[bytes]] = deque()
        self.to_client: list[bytes] = []
        self.connected = False
        self.next_frame: list[str] = []  # what happens to the next frames that arrive
        self.uses_progress = uses_progress
        self.sent: list[tuple[bytes, Receipt]] = []
        self.failed_before: list[int] = []  # for each record sent: how many had failed by then

    def rule(self, heard: Any) -> list[Any] | None:
        if not isinstance(heard, Frame) or not self.next_frame:
            return None
        fate = self.next_frame.pop()
        if fate == "lost":
            return []
        if fate == "refused":
            return [client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, "busy", "full", retry=True)]
        if fate == "malformed":
            return [
                client_protocol.RefusedAnswer(
                    heard.producer, heard.epoch, heard.first_sequence, "malformed", "no Arrow", retry=False
                )
            ]
        line = self.gateway.log.lines["p"]
        if heard.epoch == line.epoch and heard.first_sequence > line.sequence:
            line.closed = True  # an abort; the default answers with it
        return None

    # -- choices

    def send(self, choice: int) -> None:
        value = b"%d" % len(self.sent)
        progress = value if self.uses_progress and choice % 3 else b""
        failed = sum(receipt.done() and receipt.error is not None for _, receipt in self.sent)
        try:
            receipt = self.rig.send(value, topic="ab"[choice % 7 == 0], progress=progress)
        except Aborted:
            assert self.uses_progress
            if self.rig.feed.wait_opened(0) is not None:
                self.rig.feed.lift_stop()
            return
        self.sent.append((value, receipt))
        self.failed_before.append(failed)

    def work(self) -> None:
        delivery = self.rig.delivery
        delivery.work(self.rig.now)
        if delivery.session.drop:
            self.break_connection(0)
            return
        while delivery.session.outbox:
            assert self.connected
            self.to_gateway.append([bytes(part) for part in delivery.session.outbox.popleft()])

    def arrive(self) -> None:
        if self.to_gateway:
            self.to_client += self.gateway.answers(ROUTING, self.to_gateway.popleft())

    def hear(self, choice: int) -> None:
        """An answer arrives: mostly the first, at times a receipt out of order, at times it is lost."""
        if not self.to_client or not self.connected:
            return
        at = choice % len(self.to_client) if choice % 5 == 0 and self.to_client[0][:1] == client_protocol.RECEIPTS else 0
        if self.to_client[at][:1] != client_protocol.RECEIPTS:
            at = 0
        answer = self.to_client.pop(at)
        if choice % 11 != 7 or answer[:1] != client_protocol.RECEIPTS:
            self.rig.delivery.receive(answer, self.rig.now)

    def break_connection(self, choice: int) -> None:
        """Lose messages to the gateway, of which some may still arrive, and all answers."""
        if not self.connected:
            return
        for _ in range(choice % 4):
            self.arrive()
        self.to_gateway.clear()
        self.to_client.clear()
        self.gateway.known.clear()
        self.connected = False
        self.rig.delivery.disconnected()

    def connect(self) -> None:
        if not self.connected and self.rig.delivery.session.state is not State.ENDED:
            self.connected = True
            self.rig.delivery.session.connected(self.rig.now)

    def choose(self, choice: int) -> None:
        kind, choice = choice % 16, choice // 16
        if kind < 5:
            self.send(choice)
        elif kind < 8:
            self.work()
        elif kind < 10:
            self.arrive()
        elif kind < 13:
            self.hear(choice)
        elif kind == 13:
            self.rig.now += (0.01, 0.03, 0.3, 2.5)[choice % 4]
        elif kind == 14:
            if choice % 3:
                self.connect()
            else:
                self.break_connection(choice)
        else:
            self.next_frame.append(("lost", "refused", "lost", "refused", "abort", "malformed")[choice % 6])

    def heal(self) -> None:
        """Stop the faults, and wait until everything completes."""
        self.next_frame.clear()
        with self.rig.feed.lock:
            self.rig.feed.close_open()
        for _ in range(2000):
            self.connect()
            self.work()
            while self.to_gateway:
                self.arrive()
            while self.to_client and self.connected:
                self.rig.delivery.receive(self.to_client.pop(0), self.rig.now)
            if not self.rig.feed.undelivered():
                return
            self.rig.now += 0.05
        raise AssertionError(f"{self.rig.feed.undelivered()} records have no outcome, {self.rig.delivery.session.state}")

    def check(self) -> None:
        log = self.gateway.log
        values = log.values()
        assert len(set(values)) == len(values), "a record is in the log twice"
        assert [int(value or b"") for value in values] == sorted(int(value or b"") for value in values), "order"
        for value, receipt in self.sent:
            assert receipt.done()
            if receipt.error is not None:
                assert isinstance(receipt.error, Aborted | Refused)
                assert value not in values, "the producer received a failure for a record in the log"
            elif receipt.offset == -1:
                assert value in values
            else:
                assert receipt.offset is not None
                assert values[receipt.offset] == value
        failed = [number for number, (_, receipt) in enumerate(self.sent) if receipt.error is not None]
        for number, (_, receipt) in enumerate(self.sent):
            if receipt.error is None:
                earlier = sum(other < number for other in failed)
                assert earlier <= self.failed_before[number], "it overtook a record that failed"
        line = log.lines.get("p")
        if line is not None and self.rig.feed.opened is not None:
            assert self.rig.committed == (line.sequence, line.progress)
        assert self.rig.feed.buffered == self.rig.feed.pending == 0


@pytest.mark.parametrize("seed", range(8))
def test_every_record_has_one_outcome_and_the_log_agrees(seed: int) -> None:
    for number in range(25):
        chance = random.Random(f"{seed} {number}")
        world = World(uses_progress=chance.random() < 0.5)
        world.connect()
        try:
            for _ in range(chance.randrange(50, 600)):
                world.choose(chance.randrange(16 * 120))
            world.heal()
            world.check()
        except Exception as error:
            error.add_note(f"world {number} of seed {seed}")
            raise
