"""An ordered delivery without a network: the test is the gateway and the clock."""

from __future__ import annotations

from typing import Any

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.encoder import check_record
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Receipt, Resume
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.data.frames.schema import decode_batch
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import Identity

NUMBER = 7  # of the producer
LOG = "a" * 32


class Rig:
    """Feed and delivery, with `now` as the time."""

    def __init__(self, name: str = "jfk", instance: bytes = b"i" * 16, **options: Any) -> None:
        self.now = 1000.0
        self.feed = Accumulator(BatchingOptions(**{"delivery_timeout": 60.0, **options}), lambda: self.now)
        self.delivery = OrderedDelivery(Identity(name, instance, b"s" * 16), self.feed)

    # -- the application

    def send(self, value: bytes = b"x", topic: str = "t", progress: bytes = b"", **more: Any) -> Receipt:
        record = check_record(value, more.pop("key", None), None, ())
        return self.feed.add(topic, record, progress, more.pop("on_delivery", None))

    # -- the gateway

    def hears(self) -> list[Any]:
        """Return the delivery's output so far: requests, and frames one by one."""
        self.delivery.work(self.now)
        heard: list[Any] = []
        while self.delivery.session.outbox:
            parts = [bytes(part) for part in self.delivery.session.outbox.popleft()]
            if parts[0][:1] == client_protocol.SUBMIT:
                heard += client_protocol.decode_submit(parts)
            else:
                heard.append(client_protocol.decode_request(parts[0]))
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
        data = (
            client_protocol.encode_receipts([answer])
            if isinstance(answer, client_protocol.Committed)
            else client_protocol.encode_control(answer)
        )
        self.delivery.receive(data, self.now)

    def welcome(self, log: str = LOG, **more: Any) -> client_protocol.Welcome:
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
        return client_protocol.Welcome(**{**facts, **more})

    def connect(self, **more: Any) -> client_protocol.OpenProducer:
        """Connect and welcome, and return the requested epoch."""
        self.delivery.session.connected(self.now)
        self.hear(client_protocol.Hello)
        self.say(self.welcome(**more))
        asked: client_protocol.OpenProducer = self.hear(client_protocol.OpenProducer)
        return asked

    def opened(self, asked: client_protocol.OpenProducer, sequence: int = 0, progress: bytes = b"") -> None:
        self.say(client_protocol.EpochOpened(asked.request, NUMBER, asked.epoch, sequence, progress))

    def ready(self, sequence: int = 0, progress: bytes = b"", **more: Any) -> Rig:
        """Open an epoch; `topic` answers requests for topics with numbers."""
        self.opened(self.connect(**more), sequence, progress)
        return self

    def topic(self, number: int = 1) -> None:
        """Answer the one question for a topic."""
        self.say(client_protocol.TopicOpened(self.hear(client_protocol.OpenTopic).request, number))

    def commit(self, frame: Frame, offset: int) -> None:
        self.say(client_protocol.Committed(NUMBER, frame.epoch, frame.first_sequence, frame.count, offset))

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
