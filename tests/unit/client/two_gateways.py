"""Two fake gateways with lanes, for tests of unordered sends, and faults for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.unit.client.fake_gateway import FakeGateway, Log, Rule
from tutti.batching.receipt import Receipt
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.delivery.session import State
from tutti.producer import Producer

LANES = ("1-" + "a" * 32, "2-" + "b" * 32)


class Two:
    """Two gateways of one log, each with a lane."""

    def __init__(self) -> None:
        self.log = Log()
        self.g1 = FakeGateway(self.log, name="g1", lane=LANES[0])
        self.g2 = FakeGateway(self.log, name="g2", lane=LANES[1])
        for gateway in (self.g1, self.g2):
            gateway.gateways = {"g1": self.g1.url, "g2": self.g2.url}

    def close(self) -> None:
        self.g1.close()
        self.g2.close()


def send(producer: Producer, *numbers: int) -> list[Receipt]:
    """Unordered records, a batch each."""
    receipts = []
    for number in numbers:
        batch = pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())})
        receipts.append(producer.send_batch("t", batch, ordering="unordered"))
    return receipts


def values(gateway: FakeGateway) -> list[int]:
    """Return the values in the lane of a gateway, in order."""
    assert gateway.lane is not None
    return [int(value or b"") for value in gateway.lane.values()]


def unordered(gateway: FakeGateway) -> list[Frame]:
    """Return the frames received for the lane."""
    return [heard for heard in gateway.heard if isinstance(heard, Frame)]


def away(producer: Producer) -> bool:
    """Return whether the producer has noticed that the gateway it sent to is down."""
    lanes = producer._io.lanes if producer._io else None
    return lanes is not None and not any(lane.session.state is State.OPEN for lane in lanes.senders)


def silent(gateway: FakeGateway, *, decides: bool = False) -> Rule:
    """A rule: frames get no answer; `decides` puts them into the lane all the same."""

    def rule(heard: Any) -> list[Any] | None:
        if not isinstance(heard, Frame):
            return None
        if decides and gateway.judge(heard) == [None]:
            gateway.decide(heard)
        return []

    return rule


def turning_away(code: str, retry: bool, only: Callable[[Frame], bool] = lambda frame: True) -> Rule:
    """A rule: frames are refused."""

    def rule(heard: Any) -> list[Any] | None:
        if not isinstance(heard, Frame) or not only(heard):
            return None
        return [client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, code, "it is so", retry)]

    return rule
