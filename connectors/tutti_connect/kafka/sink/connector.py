"""From the log to Kafka: records in the log's order, one transaction after another, each with the position behind it.

No Kafka and no gateway in here: `Sink` and `Log` are what is asked of them, so that tests play both.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from tutti.errors import ConfigError, OffsetOutOfRange, Unavailable
from tutti.runtime.backoff import Doubling
from tutti_connect.kafka import limits
from tutti_connect.kafka.errors import NotTaken, TopicNotTaken
from tutti_connect.kafka.repeated_warnings import shape
from tutti_connect.kafka.sink.messages import outgoing, sizes
from tutti_connect.kafka.sink.position import Position, check_same_log
from tutti_connect.quarantine import Full, Quarantine

if TYPE_CHECKING:
    from tutti_connect.kafka import config as configs
    from tutti_connect.kafka.sink.messages import Outgoing

LOG = logging.getLogger("tutti.kafka")


class Reading(Protocol):
    """Committed records from an offset on, as `tutti.Reader` gives them."""

    @property
    def position(self) -> int:
        """All below it was given, or is of no topic that was asked for."""

    def poll(self, timeout: float) -> pa.RecordBatch | None:
        """The next batch, or none within `timeout` seconds."""

    def close(self) -> None:
        """Let go."""


class Log(Protocol):
    """The committed log."""

    def span(self) -> tuple[str, int, int]:
        """Its uuid, the first offset that it holds, and where what is committed ends."""

    def read(self, uuid: str, start: int) -> Reading:
        """Follow it from an offset on, if it is that log still."""


class Sink(Protocol):
    """Kafka, as `tutti_connect.kafka.sink.producer.Sink` has it: errors and meaning stand there."""

    instance: str
    batch_bytes: int

    def open(self) -> Position | None:
        """Fence the one before, learn the position."""

    def target_of(self, topic: str) -> str:
        """Where records of a topic go, which is there."""

    def begin(self) -> None:
        """Begin a transaction."""

    def add(self, target: str, records: list[Outgoing]) -> list[tuple[Outgoing, str]]:
        """Add records; returns those that are refused at once."""

    def commit(self, log: str, following: int, stop: threading.Event) -> None:
        """Commit them and the position."""

    def give_up(self) -> None:
        """Let go of the producer."""


class Outflow:
    """Brings the log to Kafka, each record once, in the log's order. `run` belongs to one thread; figures may be read by others.

    Attributes:
        records: committed by this instance.
        transactions: likewise.
        failures: times that it had to begin again.
        next: all below it is in Kafka, or in quarantine; -1 before it is known.
        frontier: where what is committed in the log ends, as far as it was heard; -1 before.
        flowing: whether it is between `open` and a failure.
    """

    def __init__(self, config: configs.Outflow, log: Log, sink: Sink, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is asked yet.

        Raises:
            ConfigError: the quarantine cannot be written.
        """
        self.config = config
        self.quarantine = Quarantine(config.quarantine)
        self.records = self.transactions = self.failures = 0
        self.next = self.frontier = -1
        self.flowing = False
        self._log, self._sink, self._clock = log, sink, clock
        self._uuid = ""
        self._reading: Reading | None = None
        self._left: pa.RecordBatch | None = None  # of the last batch, what was in no transaction yet
        self._most = config.transaction.records
        self._taken = 0  # records of the transaction that is open
        self._suspect = -1  # below it is a record that Kafka refuses
        self._refused: NotTaken | None = None  # why it refuses the next one, which was alone
        self._moved_at = self._look_at = 0.0
        self._waits = Doubling(limits.RETRY_S_MIN, limits.AWAY_S_MAX)
        self._trouble = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Until `stop`, or something that trying again cannot mend; `ready` is called when Kafka and a gateway have answered.

        Raises:
            Fenced: another instance of this name has taken over.
            ConfigError: the position is of another log, a topic of Kafka takes no record, records were removed before they went.
            Unavailable: one of both did not answer at the start.
        """
        told = False
        try:
            while not stop.is_set():
                try:
                    if not self.flowing:
                        self._open(stop)
                        if not told:
                            ready()
                            told = True
                    self._turn(stop)
                except NotTaken as error:
                    self._narrow(error)
                except (Unavailable, Full, OSError) as error:
                    if not told:
                        raise
                    self._fail(error, stop)
        finally:
            self._let_go()

    # -- beginning

    def _open(self, stop: threading.Event) -> None:
        """Take over from whoever was there before, and begin where Kafka's position is."""
        uuid, start, end = self._log.span()
        position = self._sink.open()
        if position is not None:
            check_same_log(position, uuid, self.config.name, self.config.position_topic)
        self._uuid = uuid
        following = self._beginning(position, start, end)
        self._sink.begin()
        self._sink.commit(uuid, following, stop)  # who reads it knows that this instance has it
        self.next, self._moved_at = following, self._clock()
        self.flowing = True
        if not self._trouble:
            LOG.info("%s: begins at offset %d of log %s, which has %d to %d", self.config.name, following, uuid, start, end)

    def _beginning(self, position: Position | None, start: int, end: int) -> int:
        if position is None:
            return start if self.config.start == "earliest" else end
        following = position.next
        if following > end:
            # What was sent was committed, so the gateways that answer are not as far as others.
            raise Unavailable(f"the log ends at {end} at the gateways that answer, and Kafka has it up to {following}")
        if following >= start:
            return following
        what = f"the log begins at offset {start}, and Kafka has it up to {following}: records {following} to {start - 1}"
        if self.config.lost == "fail":
            raise ConfigError(f'{what} were removed before they were sent. To go on behind them, set lost = "skip"')
        LOG.warning("%s: %s were removed before they were sent; goes on at %d", self.config.name, what, start)
        return start

    def _let_go(self) -> None:
        """Of both sides: `_open` begins anew."""
        self.flowing, self._taken = False, 0
        self._sink.give_up()
        reading, self._reading, self._left = self._reading, None, None
        if reading is not None:
            reading.close()

    # -- one transaction

    def _turn(self, stop: threading.Event) -> None:
        """One transaction, if there is something for it within a moment."""
        self._look()
        batch = self._next(limits.LOOK_S)
        if batch is None:
            # Records of other topics went by: retention may remove them, and they are not lost.
            if self._position > self.next and self._clock() >= self._moved_at + limits.IDLE_S:
                self._sink.begin()
                self._commit(stop)
            return
        self._sink.begin()
        until = self._clock() + self.config.transaction.wait_ms / 1000
        room = self.config.transaction.bytes
        while batch is not None:
            taken, size = self._cut(batch, self._most - self._taken, room)
            if taken.num_rows == 0:
                break
            self._add(taken)
            room -= size
            left = until - self._clock()
            full = self._taken >= self._most or room <= 0 or self._left is not None
            alone = taken.num_rows == 1 and size > self._sink.batch_bytes
            if full or alone or left <= 0 or stop.is_set():
                break
            batch = self._next(left)
        self._commit(stop)

    def _look(self) -> None:
        """How far the log is, for the metrics: of no account where no gateway says it."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + limits.LOOK_S
            with contextlib.suppress(Unavailable):
                self.frontier = max(self.frontier, self._log.span()[2])

    @property
    def _position(self) -> int:
        """The offset behind all that was taken from the log so far."""
        if self._left is not None:
            return int(self._left.column("offset")[0].as_py())
        return self._reading.position if self._reading is not None else self.next

    def _next(self, timeout: float) -> pa.RecordBatch | None:
        """What was left of the last batch, or the next one."""
        left, self._left = self._left, None
        if left is not None:
            return left
        try:
            if self._reading is None:
                self._reading = self._log.read(self._uuid, self.next)
            return self._reading.poll(timeout)
        except OffsetOutOfRange as error:
            raise Unavailable(f"the log was cut while it was read: {error}") from error  # `_open` says what is lost

    def _cut(self, batch: pa.RecordBatch, records: int, room: int) -> tuple[pa.RecordBatch, int]:
        """The beginning of a batch that a transaction has room for, one record at least if it is the first; the rest is left.

        What may be too large for Kafka goes alone: if it is refused, it is known which record that was.
        """
        each = sizes(batch)
        ends = np.cumsum(each)
        large = np.flatnonzero(each > self._sink.batch_bytes)[:1]
        rows = int(min(records, np.searchsorted(ends, room, "right"), *large))
        if self._taken == 0:
            rows = max(1, rows)
        if rows < batch.num_rows:
            self._left = batch.slice(rows)
            batch = batch.slice(0, rows)
        return batch, int(ends[rows - 1]) if rows else 0

    def _add(self, batch: pa.RecordBatch) -> None:
        """Hand records to Kafka's client, topic by topic, as they follow each other."""
        records = list(outgoing(batch, self.config.kafka.offset_header))
        if self._refused is not None:  # the first of what is read again, one alone
            (record,) = records
            if isinstance(self._refused, TopicNotTaken):
                raise self._undeliverable(record, self._refused)
            self._set_aside(record, str(self._refused))
            self._refused, self._suspect = None, -1
            return
        self._taken += len(records)
        for first, last, topic in _runs(batch.column("topic")):
            try:
                target = self._sink.target_of(topic)
            except TopicNotTaken as error:
                raise self._undeliverable(records[first], error) from error
            for record, reason in self._sink.add(target, records[first:last]):
                self._set_aside(record, reason)
                self._taken -= 1

    def _undeliverable(self, record: Outgoing, error: TopicNotTaken) -> ConfigError:
        """What ends the connector where a topic takes no record: records after it would leave the log's order and the position."""
        return ConfigError(
            f"{self.config.name}: the record at offset {record.offset} of topic {record.topic!r} cannot go to Kafka: {error}. "
            f"Kafka has all records below offset {self.next}, and gets no others until this is changed: map the topic to another "
            f"one (kafka.names), or name the topics that go to Kafka, without this one (topics)"
        )

    def _set_aside(self, record: Outgoing, reason: str) -> None:
        if self.quarantine.put(f"{record.topic}-{record.offset}", [self._uuid], reason, record.told(self._uuid)):
            LOG.warning("%s: offset %d of topic %s: quarantined: %s", self.config.name, record.offset, record.topic, reason)

    def _commit(self, stop: threading.Event) -> None:
        following = self._position
        self._sink.commit(self._uuid, following, stop)
        self.next, self._moved_at = following, self._clock()
        self.frontier = max(self.frontier, following)
        self.records += self._taken
        self.transactions += 1
        self._taken = 0
        if following >= self._suspect:
            self._most = self.config.transaction.records
        if self._trouble:
            LOG.info("%s: goes on, Kafka has it up to offset %d", self.config.name, following)
        self._trouble = ""
        self._waits.reset()

    # -- what goes wrong

    def _narrow(self, error: NotTaken) -> None:
        """Some record of the transaction is refused: half as many until behind it, down to it alone, which is set aside.

        Raises:
            ConfigError: there was no record in it, only the position.
        """
        if self._taken == 0:
            raise ConfigError(
                f"{self.config.name}: topic {self.config.position_topic} does not take the connector's position: {error}: give "
                f"this client the right to write there, or name another topic (kafka.position_topic)"
            ) from error
        if self._taken == 1:
            self._refused = error
        self._suspect = max(self._suspect, self._position)
        self._most = max(1, self._taken // 2)
        self._let_go()

    def _fail(self, error: Exception, stop: threading.Event) -> None:
        """Let go of everything, and wait before it begins again."""
        self._refused = None
        text = f"{type(error).__name__}: {error}"
        if shape(text) != shape(self._trouble):
            LOG.warning("%s: begins again behind offset %d: %s", self.config.name, self.next, text)
        self._trouble = text
        self.failures += 1
        self._let_go()
        stop.wait(self._waits.next_s())


def _runs(topics: pa.Array[Any]) -> list[tuple[int, int, str]]:
    """Where records of one topic follow each other: first, last (exclusive), topic."""
    encoded = topics.dictionary_encode()
    indices = encoded.indices.to_numpy()
    names = encoded.dictionary.to_pylist()
    edges = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)]
    return [(first, last, names[indices[first]]) for first, last in itertools.pairwise(edges)]
