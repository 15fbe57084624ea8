"""A log in memory, with producers like those of the client: epochs fence, and a send can lose its outcome at any point."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from tutti.batching.receipt import Resume
from tutti.errors import Aborted, Fenced, TuttiError, Unavailable, Unknown
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import JSON, Records, parse
from tutti_connect.http.produce.post_history import History

Told = Callable[[TuttiError | None, Any], None]


class Row(NamedTuple):
    """A committed record."""

    producer: str
    sequence: int
    value: bytes


class Receipt(NamedTuple):
    """As the client's."""

    offset: int
    left: bool = True


class FakeLog:
    """One order. `trouble`: how likely a send does not end well."""

    def __init__(self, seed: int = 0, trouble: float = 0.0) -> None:
        self.rows: list[Row] = []
        self.counts: dict[str, int] = {}  # producer -> where it began to count
        self.epochs: dict[str, int] = {}
        self.progress: dict[str, bytes] = {}
        self.chance = random.Random(seed)
        self.trouble = trouble
        self.away = False
        self.begun = 0
        self.ended: TuttiError | None = None  # what befalls producers: none sends any more, and none is let in
        self._late: dict[str, Callable[[], int]] = {}

    def last(self, producer: str) -> int:
        counted = self.rows[self.counts.get(producer, 0) :]
        return max((row.sequence for row in counted if row.producer == producer), default=0)

    def forget(self, producer: str) -> None:
        """As an operator has it: it counts from 1 again, and what was open of it is over."""
        self.counts[producer] = len(self.rows)
        self.progress.pop(producer, None)
        self.epochs[producer] += 1

    def begin(self, producer: str) -> int:
        """An epoch: all that is under way is decided before it."""
        late = self._late.pop(producer, None)
        if late is not None and self.chance.random() < 0.5:
            late()
        self.begun += 1
        self.epochs[producer] = self.epochs.get(producer, 0) + 1
        return self.epochs[producer]

    def commit(self, producer: str, batch: pa.RecordBatch, progress: bytes | None) -> int:
        offset, sequence = len(self.rows), self.last(producer)
        values: list[Any] = batch.column("value").to_pylist()
        self.rows += [Row(producer, sequence + number, value) for number, value in enumerate(values, 1)]
        self.progress[producer] = progress or b""
        return offset

    def search(self, producer: str, history: History, first: int, records: Records) -> int | None:
        """As `reading.search`."""
        low, high = history.range_of(first)
        span = range(low, len(self.rows) if high is None else high)
        places = [offset for offset in span if self.rows[offset][:2] == (producer, first)]
        if not places:
            return None
        place = places[0 if history.begin >= 0 else -1]
        assert place >= self.counts.get(producer, 0)
        values = [row.value for row in self.rows[place : place + records.count]]
        if values != records.batch.column("value").to_pylist():
            raise Problem(409, "another post", conflict="different", expected=history.expected)
        return place

    def send(self, producer: str, batch: pa.RecordBatch, progress: bytes | None, told: Told) -> None:
        """One frame, which may go wrong."""
        if self.ended is not None:
            self.commit(producer, batch, progress)
            told(self.ended, Receipt(-1))
            return
        if self.chance.random() >= self.trouble:
            told(None, Receipt(self.commit(producer, batch, progress)))
            return
        match self.chance.randrange(5):
            case 0:
                self.commit(producer, batch, progress)
                told(Unknown("the answer was lost"), Receipt(-1))
            case 1:
                told(Unknown("nobody heard it"), Receipt(-1))
            case 2:
                told(Aborted("no room"), Receipt(-1))
            case 3:  # decided when the next epoch begins, or gone
                self._late[producer] = lambda: self.commit(producer, batch, progress)
                told(Unknown("the delivery deadline passed"), Receipt(-1))
            case _:
                self.commit(producer, batch, progress)
                told(None, Receipt(-1))


class FakeProducer:
    """As `tutti.Producer`, as far as the connector uses it."""

    def __init__(self, log: FakeLog, name: str) -> None:
        if log.away:
            raise Unavailable("no gateway let it in")
        if log.ended is not None:
            raise log.ended
        self._log, self.name = log, name
        self.epoch = log.begin(name)
        self.closed = False

    def resume(self, _timeout: float) -> Resume:
        if self._log.ended is not None:
            raise self._log.ended
        return Resume(self._log.last(self.name), self._log.progress.get(self.name, b""))

    def send_batch(self, _topic: str, batch: pa.RecordBatch, progress: bytes | None, told: Told) -> None:
        if self.closed or self._log.epochs[self.name] != self.epoch:
            raise Fenced("another instance has begun an epoch")
        self._log.send(self.name, batch, progress, told)

    def send(self, topic: str, value: bytes, _key: Any, _time: Any, _headers: Any, progress: bytes | None, told: Told) -> None:
        self.send_batch(topic, pa.record_batch({"value": pa.array([value], pa.binary())}), progress, told)

    def close(self) -> None:
        self.closed = True


def a_post(*values: bytes) -> Records:
    """Records as a body makes them."""
    body = json.dumps([{"value_base64": base64.b64encode(value).decode()} for value in values])
    return parse("t", JSON, body.encode(), False)
