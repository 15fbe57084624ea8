"""kafka-out: copies records to Kafka in the log's order, in consecutive transactions that also contain the position.

This module calls Kafka and the gateways only through interfaces (`Writer`, `Log`), so that tests can replace both.
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
from tutti.runtime.backoff import Backoff
from tutti_connect.kafka import limits
from tutti_connect.kafka.errors import RecordRejected, TopicRejected
from tutti_connect.kafka.repeated_warnings import shape
from tutti_connect.kafka.sink.messages import outgoing_records, sizes
from tutti_connect.kafka.sink.position import Position, check_same_log
from tutti_connect.quarantine import Quarantine, QuarantineFull

if TYPE_CHECKING:
    from tutti_connect.kafka import config as configs
    from tutti_connect.kafka.sink.messages import OutgoingRecord

LOG = logging.getLogger("tutti.kafka")


class LogReader(Protocol):
    """Reader of committed records, such as `tutti.Reader`."""

    @property
    def position(self) -> int:
        """Return the offset up to which the reader has returned all records of its topics."""

    def poll(self, timeout: float) -> pa.RecordBatch | None:
        """Return the next batch, None if none arrives within `timeout` seconds."""

    def close(self) -> None:
        """Close the reader."""


class Log(Protocol):
    """The committed log."""

    def span(self) -> tuple[str, int, int]:
        """Return the uuid, start offset and frontier of the log."""

    def read(self, uuid: str, start: int) -> LogReader:
        """Return a reader that starts at an offset; raise if the gateways no longer have the log `uuid`."""


class Writer(Protocol):
    """Transactional writer to Kafka. Its implementation `tutti_connect.kafka.sink.producer.KafkaWriter` documents the errors."""

    instance: str
    batch_bytes: int

    def open(self) -> Position | None:
        """Fence the previous instance, and return the position that is stored in Kafka."""

    def target_of(self, topic: str) -> str:
        """Return the topic in Kafka for a topic of the log; create the topic in Kafka if it does not exist."""

    def begin(self) -> None:
        """Start a transaction."""

    def add(self, target: str, records: list[OutgoingRecord]) -> list[tuple[OutgoingRecord, str]]:
        """Add records to the transaction; return the records that can never be sent, each with the reason."""

    def commit(self, log: str, next_offset: int, stop: threading.Event) -> None:
        """Commit the records and the position."""

    def abandon(self) -> None:
        """Discard the producer and its open transaction."""


class SinkConnector:
    """Copies the log to Kafka, each record once, in the log's order. One thread calls `run`; other threads may read the counters.

    Attributes:
        records: number of records that this instance has committed.
        transactions: number of transactions that this instance has committed.
        failures: number of restarts.
        next: offset below which every record is in Kafka or in quarantine; -1 while unknown.
        frontier: last known frontier of the log; -1 before the first answer.
        flowing: whether the connector copies records; if false, it waits for a restart.
    """

    def __init__(self, config: configs.SinkConfig, log: Log, sink: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare without sending a request.

        Raises:
            ConfigError: the quarantine directory is not writable.
        """
        self.config = config
        self.quarantine = Quarantine(config.quarantine)
        self.records = self.transactions = self.failures = 0
        self.next = self.frontier = -1
        self.flowing = False
        self._log, self._sink, self._clock = log, sink, clock
        self._uuid = ""
        self._reader: LogReader | None = None
        self._rest: pa.RecordBatch | None = None  # rest of the last batch, for the next transaction
        self._records_max = config.transaction.records
        self._in_transaction = 0  # number of records in the open transaction
        self._rejected_below = -1  # transactions stay small up to this offset, because Kafka has rejected a record below it
        # Kafka's error for the next record, after a transaction with no other record
        self._rejection: RecordRejected | None = None
        self._position_changed_at = self._update_at = 0.0
        self._backoff = Backoff(limits.RETRY_S_MIN, limits.UNREACHABLE_RETRY_S_MAX)
        self._trouble = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set, or until an error that a retry cannot resolve.

        Call `ready` after Kafka and a gateway have answered.

        Raises:
            Fenced: another instance of this name has taken over.
            ConfigError: the position belongs to a different log, Kafka rejects every record of a topic, or retention has deleted
                records before they were sent.
            Unavailable: Kafka or the gateways did not answer at the start.
        """
        is_ready = False
        try:
            while not stop.is_set():
                try:
                    if not self.flowing:
                        self._open(stop)
                        if not is_ready:
                            ready()
                            is_ready = True
                    self._step(stop)
                except RecordRejected as error:
                    self._isolate(error)
                except (Unavailable, QuarantineFull, OSError) as error:
                    if not is_ready:
                        raise
                    self._fail(error, stop)
        finally:
            self._release()

    # -- beginning

    def _open(self, stop: threading.Event) -> None:
        """Take over from the previous instance, and continue at the position that is stored in Kafka."""
        uuid, start, end = self._log.span()
        position = self._sink.open()
        if position is not None:
            check_same_log(position, uuid, self.config.name, self.config.position_topic)
        self._uuid = uuid
        next_offset = self._start_offset(position, start, end)
        self._sink.begin()
        self._sink.commit(uuid, next_offset, stop)  # stores this instance's id with the position, so that an older instance ends
        self.next, self._position_changed_at = next_offset, self._clock()
        self.flowing = True
        if not self._trouble:
            LOG.info("%s: starts at offset %d of log %s, which has %d to %d", self.config.name, next_offset, uuid, start, end)

    def _start_offset(self, position: Position | None, start: int, end: int) -> int:
        if position is None:
            return start if self.config.start == "earliest" else end
        next_offset = position.next
        if next_offset > end:
            # The connector sends only committed records to Kafka, so the gateways that answer must lag.
            raise Unavailable(f"the log ends at {end} at the gateways that answer, but Kafka has it up to {next_offset}")
        if next_offset >= start:
            return next_offset
        what = f"the log begins at offset {start}, but Kafka has it up to {next_offset}: records {next_offset} to {start - 1}"
        if self.config.lost == "fail":
            raise ConfigError(f'{what} were deleted before they were sent. To continue after them, set lost = "skip"')
        LOG.warning("%s: %s were deleted before they were sent; continues at %d", self.config.name, what, start)
        return start

    def _release(self) -> None:
        """Discard the producer, its transaction and the reader, so that `_open` can start again."""
        self.flowing, self._in_transaction = False, 0
        self._sink.abandon()
        reader, self._reader, self._rest = self._reader, None, None
        if reader is not None:
            reader.close()

    # -- one transaction

    def _step(self, stop: threading.Event) -> None:
        """Send one transaction, or none if no record arrives within `limits.LAG_UPDATE_S`."""
        self._update_frontier()
        batch = self._next_batch(limits.LAG_UPDATE_S)
        if batch is None:
            # Records of other topics are not sent. Move the position past them, so that their removal does not look like a loss.
            if self._position > self.next and self._clock() >= self._position_changed_at + limits.IDLE_S:
                self._sink.begin()
                self._commit(stop)
            return
        self._sink.begin()
        deadline = self._clock() + self.config.transaction.wait_ms / 1000
        bytes_left = self.config.transaction.bytes
        while batch is not None:
            part, size = self._split(batch, self._records_max - self._in_transaction, bytes_left)
            if part.num_rows == 0:
                break
            self._add(part)
            bytes_left -= size
            remaining = deadline - self._clock()
            full = self._in_transaction >= self._records_max or bytes_left <= 0 or self._rest is not None
            alone = part.num_rows == 1 and size > self._sink.batch_bytes
            if full or alone or remaining <= 0 or stop.is_set():
                break
            batch = self._next_batch(remaining)
        self._commit(stop)

    def _update_frontier(self) -> None:
        """Update the frontier, which only the metrics use; ignore unreachable gateways."""
        now = self._clock()
        if now >= self._update_at:
            self._update_at = now + limits.LAG_UPDATE_S
            with contextlib.suppress(Unavailable):
                self.frontier = max(self.frontier, self._log.span()[2])

    @property
    def _position(self) -> int:
        """Return the offset after the last record that is in Kafka or in the open transaction."""
        if self._rest is not None:
            return int(self._rest.column("offset")[0].as_py())
        return self._reader.position if self._reader is not None else self.next

    def _next_batch(self, timeout: float) -> pa.RecordBatch | None:
        """Return the rest of the last batch, or else the next batch, or None if none arrives within `timeout` seconds."""
        remaining, self._rest = self._rest, None
        if remaining is not None:
            return remaining
        try:
            if self._reader is None:
                self._reader = self._log.read(self._uuid, self.next)
            return self._reader.poll(timeout)
        except OffsetOutOfRange as error:
            raise Unavailable(f"the log was truncated while it was read: {error}") from error  # the restart reports the loss

    def _split(self, batch: pa.RecordBatch, records: int, bytes_left: int) -> tuple[pa.RecordBatch, int]:
        """Return the part of a batch that fits in the transaction, and its bytes; keep the rest for the next transaction.

        A record that may be too large for Kafka gets a transaction without other records, so that a rejection identifies this
        record.
        """
        each = sizes(batch)
        ends = np.cumsum(each)
        large = np.flatnonzero(each > self._sink.batch_bytes)[:1]
        rows = int(min(records, np.searchsorted(ends, bytes_left, "right"), *large))
        if self._in_transaction == 0:
            rows = max(1, rows)
        if rows < batch.num_rows:
            self._rest = batch.slice(rows)
            batch = batch.slice(0, rows)
        return batch, int(ends[rows - 1]) if rows else 0

    def _add(self, batch: pa.RecordBatch) -> None:
        """Add records to the transaction; quarantine a record that Kafka has rejected."""
        records = list(outgoing_records(batch, self.config.kafka.offset_header))
        if self._rejection is not None:  # the batch contains only the record that Kafka has rejected
            (record,) = records
            if isinstance(self._rejection, TopicRejected):
                raise self._undeliverable(record, self._rejection)
            self._quarantine(record, str(self._rejection))
            self._rejection, self._rejected_below = None, -1
            return
        self._in_transaction += len(records)
        for first, last, topic in _runs(batch.column("topic")):
            try:
                target = self._sink.target_of(topic)
            except TopicRejected as error:
                raise self._undeliverable(records[first], error) from error
            for record, reason in self._sink.add(target, records[first:last]):
                self._quarantine(record, reason)
                self._in_transaction -= 1

    def _undeliverable(self, record: OutgoingRecord, error: TopicRejected) -> ConfigError:
        """Return the error that ends the connector when a topic rejects all records, because these must not be skipped silently."""
        return ConfigError(
            f"{self.config.name}: the record at offset {record.offset} of topic {record.topic!r} cannot be written to Kafka: "
            f"{error}. Kafka has all records below offset {self.next}, and the connector stops here: map the topic to another "
            f"one (kafka.names), or list the topics to copy without this one (topics)"
        )

    def _quarantine(self, record: OutgoingRecord, reason: str) -> None:
        if self.quarantine.put(f"{record.topic}-{record.offset}", [self._uuid], reason, record.fields(self._uuid)):
            LOG.warning("%s: offset %d of topic %s: quarantined: %s", self.config.name, record.offset, record.topic, reason)

    def _commit(self, stop: threading.Event) -> None:
        next_offset = self._position
        self._sink.commit(self._uuid, next_offset, stop)
        self.next, self._position_changed_at = next_offset, self._clock()
        self.frontier = max(self.frontier, next_offset)
        self.records += self._in_transaction
        self.transactions += 1
        self._in_transaction = 0
        if next_offset >= self._rejected_below:
            self._records_max = self.config.transaction.records
        if self._trouble:
            LOG.info("%s: continues; Kafka has the log up to offset %d", self.config.name, next_offset)
        self._trouble = ""
        self._backoff.reset()

    # -- failures

    def _isolate(self, error: RecordRejected) -> None:
        """Halve the transactions until one contains only the rejected record, which `_add` then quarantines.

        Raises:
            ConfigError: Kafka rejects the position itself, because the transaction has no record.
        """
        if self._in_transaction == 0:
            raise ConfigError(
                f"{self.config.name}: topic {self.config.position_topic} rejects the connector's position ({error}): give "
                f"this client the right to write to the topic, or choose another topic (kafka.position_topic)"
            ) from error
        if self._in_transaction == 1:
            self._rejection = error
        self._rejected_below = max(self._rejected_below, self._position)
        self._records_max = max(1, self._in_transaction // 2)
        self._release()

    def _fail(self, error: Exception, stop: threading.Event) -> None:
        """Discard the producer and the reader after a failure, and wait for the retry delay."""
        self._rejection = None
        text = f"{type(error).__name__}: {error}"
        if shape(text) != shape(self._trouble):
            LOG.warning("%s: restarts at offset %d: %s", self.config.name, self.next, text)
        self._trouble = text
        self.failures += 1
        self._release()
        stop.wait(self._backoff.next_s())


def _runs(topics: pa.Array[Any]) -> list[tuple[int, int, str]]:
    """Divide rows into runs of equal topic; return (first row, row after the last one, topic) for each run."""
    encoded = topics.dictionary_encode()
    indices = encoded.indices.to_numpy()
    names = encoded.dictionary.to_pylist()
    bounds = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)]
    return [(first, last, names[indices[first]]) for first, last in itertools.pairwise(bounds)]
