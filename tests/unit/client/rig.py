"""A delivery without a network: a test is the gateway and the clock."""

from __future__ import annotations

from typing import Any

from gateway.client.delivery import Delivery
from gateway.client.encode import check_record
from gateway.client.feed import Feed
from gateway.client.options import FeedOptions
from gateway.client.receipt import Receipt, Resume
from gateway.client.session import Identity
from gateway.core import limits
from gateway.data import wire
from gateway.data.frame import Frame
from gateway.data.schema import decode_batch

NUMBER = 7  # of the producer
LOG = "a" * 32


class Rig:
    """Feed and delivery, with `now` as the time."""

    def __init__(self, name: str = "jfk", instance: bytes = b"i" * 16, **options: Any) -> None:
        self.now = 1000.0
        self.feed = Feed(FeedOptions(**{"delivery_timeout": 60.0, **options}), lambda: self.now)
        self.delivery = Delivery(Identity(name, instance, b"s" * 16), self.feed)

    # -- the application

    def send(self, value: bytes = b"x", topic: str = "t", progress: bytes = b"", **more: Any) -> Receipt:
        record = check_record(value, more.pop("key", None), None, ())
        return self.feed.add(topic, record, progress, more.pop("on_delivery", None))

    # -- the gateway

    def hears(self) -> list[Any]:
        """What the delivery has to say now: requests, and frames one by one."""
        self.delivery.work(self.now)
        heard: list[Any] = []
        while self.delivery.outbox:
            parts = [bytes(part) for part in self.delivery.outbox.popleft()]
            if parts[0][:1] == wire.SUBMIT:
                heard += wire.decode_submit(parts)
            else:
                heard.append(wire.decode_request(parts[0]))
        return heard

    def hear(self, kind: type) -> Any:
        """The one thing that the delivery has to say now, which is of that kind."""
        heard = self.hears()
        assert [type(one) for one in heard] == [kind], heard
        return heard[0]

    def frames(self) -> list[Frame]:
        """Frames that it sends now, and nothing else."""
        heard = self.hears()
        assert all(isinstance(one, Frame) for one in heard), heard
        return heard

    def say(self, answer: Any) -> None:
        data = wire.encode_receipts([answer]) if isinstance(answer, wire.Committed) else wire.encode_control(answer)
        self.delivery.receive(data, self.now)

    def welcome(self, log: str = LOG, **more: Any) -> wire.Welcome:
        facts: dict[str, Any] = {
            "protocol": 1,
            "gateway": "g1",
            "group": "test",
            "log": log,
            "state": "primary",
            "version": "0",
            "reads": "",
            "admin": "",
            "gateways": {"g1": "tutti://g1:1"},
            "window_bytes": limits.WINDOW_BYTES,
            "frame_bytes_max": limits.BODY_BYTES_MAX,
            "raw_bytes_max": limits.RAW_BYTES_MAX,
        }
        return wire.Welcome(**{**facts, **more})

    def connect(self, **more: Any) -> wire.OpenProducer:
        """Connect and welcome; what epoch is asked for."""
        self.delivery.connected(self.now)
        self.hear(wire.Hello)
        self.say(self.welcome(**more))
        asked: wire.OpenProducer = self.hear(wire.OpenProducer)
        return asked

    def opened(self, asked: wire.OpenProducer, sequence: int = 0, progress: bytes = b"") -> None:
        self.say(wire.EpochOpened(asked.request, NUMBER, asked.epoch, sequence, progress))

    def ready(self, sequence: int = 0, progress: bytes = b"", **more: Any) -> Rig:
        """In an open epoch; topics get numbers as they are asked for by `topic`."""
        self.opened(self.connect(**more), sequence, progress)
        return self

    def topic(self, number: int = 1) -> None:
        """Answer the one question for a topic."""
        self.say(wire.TopicOpened(self.hear(wire.OpenTopic).request, number))

    def commit(self, frame: Frame, offset: int) -> None:
        self.say(wire.Committed(NUMBER, frame.epoch, frame.first_sequence, frame.count, offset))

    @property
    def committed(self) -> Resume:
        return self.feed.committed


def values_of(frame: Frame) -> list[bytes | None]:
    """The values in a frame."""
    values: list[bytes | None] = decode_batch(frame.body).column(1).to_pylist()
    return values


def sequences(frames: list[Frame]) -> list[tuple[int, int]]:
    """(first sequence, count) of frames."""
    return [(frame.first_sequence, frame.count) for frame in frames]


def in_flight(count: int, **options: Any) -> tuple[Rig, list[Frame]]:
    """A producer with so many batches in flight, of one record each."""
    rig = Rig(**options).ready()
    rig.send(b"0")
    rig.topic()
    frames = rig.frames()
    for number in range(1, count):
        rig.send(b"%d" % number)
        with rig.feed.lock:
            rig.feed.close_open()
        frames += rig.frames()
    assert sequences(frames) == [(number + 1, 1) for number in range(count)]
    return rig, frames
