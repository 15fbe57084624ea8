"""kafka-in: one thread reads messages and passes them to the partitions' producers; a pool opens and closes producers.

This module calls Kafka and the gateways only through interfaces (`Kafka`, `Opener`), so that tests can replace both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tutti.errors import ConfigError, FormatError, NotAllowed, Refused, TuttiError, Unavailable, Unknown, UsageError
from tutti.runtime.backoff import Backoff
from tutti_connect.kafka import limits
from tutti_connect.kafka.source.batches import Source, offset_of, to_batches
from tutti_connect.kafka.source.partition_copy import Event, Key, Partition, State
from tutti_connect.kafka.source.position import KafkaPosition, check_same, offset_metadata, producer_name
from tutti_connect.kafka.source.start_offsets import Committer, Topic, resolve_latest
from tutti_connect.quarantine import Quarantine

if TYPE_CHECKING:
    from confluent_kafka import Message

    from tutti.producer import Producer
    from tutti_connect.kafka.config import SourceConfig
    from tutti_connect.kafka.source.consumer import Consumed

LOG = logging.getLogger("tutti.kafka")

#: Function that opens the producer with a name and a buffer size in bytes, and starts its epoch.
Opener = Callable[[str, int], "Producer"]
#: Function that returns as soon as a gateway has answered, and raises Unavailable if no gateway answers.
GatewayCheck = Callable[[], object]


class Kafka(Protocol):
    """Interface to Kafka. Its implementation `tutti_connect.kafka.source.consumer.KafkaSource` documents the errors."""

    def topics(self) -> dict[str, Source]:
        """Return the ids of the topics."""

    def offset_range(self, key: Key) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset after its last message."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition, before any open transaction."""

    def group_offsets(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """Return the offsets and metadata that the consumer group has committed."""

    def subscribe(self, assigned: Callable[[list[Key]], None], revoked: Callable[[], None], lost: Callable[[], None]) -> None:
        """Join the group."""

    def consume(self) -> Consumed:
        """Return the available messages."""

    def assign(self, offsets: Mapping[Key, int]) -> None:
        """Replace the set of partitions to read, each with the offset to read from."""

    def pause(self, keys: Iterable[Key]) -> None:
        """Pause reading of these partitions."""

    def resume(self, keys: Iterable[Key]) -> None:
        """Resume reading of these partitions."""

    def high_watermark(self, key: Key) -> int:
        """Return the last known end offset of a partition."""

    def commit_offsets(self, offsets: Mapping[Key, tuple[int, str]], *, wait: bool) -> None:
        """Commit offsets to the group."""

    def close(self) -> None:
        """Leave the group."""


class SourceConnector:
    """Copies topics of Kafka to the log, each record once, in the order of each partition.

    One thread calls `run`; the metrics thread may read `partitions` at any time.
    """

    def __init__(
        self, config: SourceConfig, kafka: Kafka, opener: Opener, check_gateway: GatewayCheck, committer: Committer
    ) -> None:
        """Prepare without sending a request.

        Raises:
            ConfigError: the quarantine directory is not writable.
        """
        self.config = config
        self.partitions: dict[Key, Partition] = {}
        self.quarantine = Quarantine(config.quarantine)
        self._kafka, self._opener, self._check_gateway, self._committer = kafka, opener, check_gateway, committer
        self._topics: dict[str, Source] = {}
        self._openings: dict[Key, Future[tuple[Producer, int, int]]] = {}
        self._pool = ThreadPoolExecutor(limits.OPENERS, "opener")
        self._checking: Future[dict[str, Source]] | None = None
        self._reassign = False
        self._paused: set[Key] = set()
        self._report_at = self._update_at = self._check_at = 0.0
        self._fatal: Exception | None = None

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set, or until an error that a retry cannot resolve.

        Call `ready` after Kafka and a gateway have answered, and the log has the start offsets.

        Raises:
            Unavailable: Kafka or the gateways do not answer at the start.
            NotAllowed: the gateways reject the connector.
            ConfigError: a topic does not exist, or was recreated while the connector ran.
        """
        try:
            self._topics = self._kafka.topics()
            # checked first, because an instance without gateways must not join the group and take over partitions
            self._check_gateway()
            if self.config.kafka.start == "latest":
                self._resolve_starts(stop)
            if stop.is_set():
                return
            self._kafka.subscribe(self._assigned, self._revoked, self._lost)
            ready()
            while not stop.is_set() and self._fatal is None:
                self._run_once()
            if self._fatal is not None:
                raise self._fatal
        finally:
            self._shut_down()

    def _resolve_starts(self, stop: threading.Event) -> None:
        """Commit the start offsets of all partitions to the log, before this instance is ready.

        Raises:
            TuttiError: Kafka or the gateways do not answer, or reject the connector.
        """
        waits = Backoff(limits.FENCED_S_MIN, limits.FENCED_S_MAX)
        waiting = list(self._topics.values())
        while waiting and not stop.is_set():
            topic = Topic(self.config.name, waiting[0], self.config.topic or waiting[0].topic)
            try:
                resolve_latest(topic, self._kafka, self._committer, self._check_same, self._for_each)
                waiting.pop(0)
            except (Refused, Unknown) as error:
                if isinstance(error, Refused) and error.code not in _RETRIED_CODES:
                    raise
                LOG.warning("%s: resolving the start offsets of topic %s again: %s", self.config.name, waiting[0].topic, error)
                stop.wait(waits.next_s())

    def _for_each(self, act: Callable[[int], object], numbers: Iterable[int]) -> None:
        """Call `act` with each number, in the pool's threads; when all calls have ended, raise the first error."""
        calls = [self._pool.submit(act, number) for number in numbers]
        wait(calls)
        for call in calls:
            call.result()

    # Kafka's client calls the next three methods inside `consume`, when the group's assignment changes.

    def _assigned(self, given: list[Key]) -> None:
        for topic, number in given:
            self.partitions[topic, number] = Partition(topic, number, self.config.topic or topic)
        LOG.info("%s: %d partitions are assigned to this instance", self.config.name, len(given))
        self._reassign = False

    def _revoked(self) -> None:
        wait(self._release_partitions(), timeout=limits.HANDOVER_S)

    def _lost(self) -> None:
        self._release_partitions()

    def _release_partitions(self) -> list[Future[None]]:
        """Release all partitions. Closing a producer delivers its records in flight, unless another instance fences it first."""
        left, self.partitions = self.partitions, {}
        openings, self._openings = self._openings, {}
        self._paused.clear()
        for opening in openings.values():
            opening.add_done_callback(_close_opened)
        return [self._pool.submit(producer.close) for one in left.values() if (producer := one.revoked()) is not None]

    # One iteration.

    def _run_once(self) -> None:
        consumed = self._kafka.consume()
        for key, messages in _by_partition(consumed.messages, self.config.kafka.topics):
            if (partition := self._flowing(key)) is not None:
                self._process(partition, messages)
        for key, end in consumed.ended:
            if (partition := self._flowing(key)) is not None:
                partition.queue((), end)
        for key, reason in consumed.missing:
            if (partition := self._flowing(key)) is not None:
                # Open the partition again, because `_open` compares its position with Kafka's offsets and reports the cause.
                self._fail(partition, Unavailable(f"Kafka has no message at offset {partition.next}: {reason}"))
        now = time.monotonic()
        for key, partition in list(self.partitions.items()):
            self._advance(key, partition, now)
        if self._reassign:
            self._assign()
        self._pause()
        if now >= self._update_at:
            self._update_at = now + limits.LAG_UPDATE_S
            self._update_high_watermarks()
        if now >= self._report_at:
            self._report_at = now + limits.REPORT_S
            self._commit_group_offsets(wait=False)
        self._check_topics(now)

    def _flowing(self, key: Key) -> Partition | None:
        partition = self.partitions.get(key)
        return partition if partition is not None and partition.state is State.FLOWING else None

    def _check_topics(self, now: float) -> None:
        """Check that no topic was recreated, because Kafka's client would silently continue in the new topic at the old offset."""
        checking = self._checking
        if checking is None and now >= self._check_at:
            self._checking = self._pool.submit(self._kafka.topics)
        elif checking is not None and checking.done():
            self._checking, self._check_at = None, now + limits.CHECK_S
            error = checking.exception()
            if error is None:
                try:
                    self._check_same(checking.result())
                except ConfigError as other:
                    self._set_fatal(other)
            elif isinstance(error, ConfigError):
                self._set_fatal(error)  # the topic no longer exists

    def _check_same(self, topics: Mapping[str, Source]) -> None:
        """Compare the ids of the topics and the cluster with those at the start of this instance.

        Raises:
            ConfigError: a topic was recreated, or the cluster is a different one.
        """
        for name, source in topics.items():
            if source != self._topics[name]:
                raise ConfigError(
                    f"{name}: the topic, or the Kafka cluster, has changed since this instance started: restart the connector"
                )

    def _set_fatal(self, error: Exception) -> None:
        """Let `run` end with this error, which a retry cannot resolve; keep an earlier error."""
        self._fatal = self._fatal or error

    def _process(self, partition: Partition, messages: Sequence[Message]) -> None:
        """Convert the new messages of a partition, queue the batches for its producer, and quarantine rejected messages."""
        # Skip messages below `next`: Kafka's client returns some messages again after an assignment.
        if offset_of(messages[0]) < partition.next:
            messages = [message for message in messages if offset_of(message) >= partition.next]
            if not messages:
                return
        batches, rejected_messages = to_batches(messages)
        try:
            for rejected in rejected_messages:
                source = self._topics[partition.topic]
                self.quarantine.put(f"{source.topic}-{rejected.partition_offset}", source, rejected.reason, rejected.fields(source))
                LOG.warning(
                    "%s[%d] offset %s: quarantined: %s",
                    partition.topic,
                    partition.number,
                    rejected.message.offset(),
                    rejected.reason,
                )
        except (TuttiError, OSError) as error:
            self._fail(partition, error)
            return
        partition.queue(batches, offset_of(messages[-1]) + 1)

    def _advance(self, key: Key, partition: Partition, now: float) -> None:
        """Open the partition when its retry time has come, and pass its queued batches to its producer."""
        if partition.state is State.WAITING and partition.retry_at <= now:
            partition.transition(Event.OPEN)
            self._openings[key] = self._pool.submit(self._open, partition)
        elif partition.state is State.OPENING and self._openings[key].done():
            opening = self._openings.pop(key)
            error = opening.exception()
            if error is None:
                partition.opened(*opening.result())
                self._reassign = True
                self._report_at = now  # commit to Kafka's group at once: lag monitors still see the previous owner's offset
            elif isinstance(error, TuttiError) and not isinstance(error, _FATAL_ERRORS):
                self._fail(partition, error)
            else:
                self._set_fatal(error if isinstance(error, Exception) else RuntimeError(str(error)))
        elif partition.state is State.FLOWING:
            topic = self._topics[partition.topic]
            try:
                partition.push(lambda next_offset: KafkaPosition(topic.cluster, topic.topic_id, next_offset).encode())
            except UsageError as error:
                self._set_fatal(error)
            except TuttiError as error:
                self._fail(partition, error)

    def _fail(self, partition: Partition, error: Exception) -> None:
        known = partition.trouble
        producer = partition.failed(error, time.monotonic())
        if partition.trouble.partition(":")[0] != known.partition(":")[0]:  # log only the first of consecutive errors of one class
            LOG.warning(
                "%s[%d]: restarts at offset %d: %s", partition.topic, partition.number, partition.committed, partition.trouble
            )
        if producer is not None:
            self._pool.submit(producer.close)
        self._reassign = True

    def _open(self, partition: Partition) -> tuple[Producer, int, int]:
        """Start an epoch, which fences the previous owner.

        Return the producer, the next offset to read from Kafka, and the position in the log (-1 without one).
        """
        name = producer_name(self.config.name, partition.topic, partition.number)
        share = limits.BUFFER_BYTES_ALL // max(1, len(self.partitions))
        producer = self._opener(name, min(limits.BUFFER_BYTES_MAX, max(limits.BUFFER_BYTES_MIN, share)))
        try:
            progress = producer.resume().progress
            # Start at the beginning, even with "latest": only a partition added after the topic's start has no progress.
            if not progress:
                return producer, self._offset_range(partition.key)[0], -1
            position = KafkaPosition.decode(progress, name)
            topic = self._topics[partition.topic]
            check_same(position, KafkaPosition(topic.cluster, topic.topic_id, 0), name, partition.source)
            return producer, self._next_offset(partition, position), position.next
        except BaseException:
            producer.close()
            raise

    def _offset_range(self, key: Key) -> tuple[int, int]:
        """Return the range of offsets that Kafka has for a partition, after checking that the topic is unchanged.

        Raises:
            ConfigError: the topic was recreated after this instance started.
        """
        offset_range = self._kafka.offset_range(key)
        self._check_same(self._kafka.topics())
        return offset_range

    def _next_offset(self, partition: Partition, position: KafkaPosition) -> int:
        """Return the offset at which to continue: the position in the log, or another one if Kafka no longer has that offset.

        Raises:
            ConfigError: Kafka lacks the offset, and `lost = "fail"` does not allow to continue elsewhere.
        """
        next_offset = position.next
        low, high = self._offset_range(partition.key)
        if next_offset < low:
            # Kafka may have deleted only transaction markers or quarantined messages, which do not move the position in the log.
            # The group's committed offset counts such messages: use it if its metadata contains the position in the log.
            offset, metadata = self._kafka.group_offsets([partition.key])[partition.key]
            if metadata == offset_metadata(position):
                next_offset = max(next_offset, offset)
        if low <= next_offset <= high:
            return next_offset
        if self.config.kafka.lost == "fail":
            raise ConfigError(
                f"{partition.source}: the next message to copy has offset {next_offset}, but Kafka has offsets {low} to {high}: "
                "messages were deleted before they were copied, or Kafka lost the end of the partition. "
                f'To continue with the existing messages, set lost = "skip" in [kafka]'
            )
        resumed = low if next_offset < low else high
        LOG.warning(
            "%s: Kafka has offsets %d to %d, but the log continues at %d: continues at %d",
            partition.source,
            low,
            high,
            next_offset,
            resumed,
        )
        return resumed

    def _assign(self) -> None:
        """Assign all flowing partitions with their offsets to Kafka's client.

        Only this method sets the offsets from which the client reads.
        """
        self._reassign = False
        self._kafka.assign({key: one.next for key, one in self.partitions.items() if one.state is State.FLOWING})
        self._paused.clear()

    def _pause(self) -> None:
        """Pause reading of partitions whose producer's buffer is full, and resume the others."""
        full = {key for key, one in self.partitions.items() if one.state is State.FLOWING and one.full}
        if newly_full := full - self._paused:
            self._kafka.pause(newly_full)
        if no_longer_full := self._paused - full:
            self._kafka.resume(key for key in no_longer_full if key in self.partitions)
        self._paused = full

    def _update_high_watermarks(self) -> None:
        """Update the end offsets for the metrics, in the polling thread, because a poll blocks requests of other threads."""
        for key, one in self.partitions.items():
            if one.state is State.FLOWING:
                one.high_watermark = max(one.high_watermark, self._kafka.high_watermark(key))

    def _commit_group_offsets(self, *, wait: bool) -> None:
        """Commit offsets to Kafka's group, for lag monitors, and for `_next_offset` after Kafka has deleted messages."""
        offsets = {}
        for key, one in self.partitions.items():
            if one.state is State.FLOWING:
                topic = self._topics[one.topic]
                offsets[key] = one.committed, offset_metadata(KafkaPosition(topic.cluster, topic.topic_id, one.logged))
        if offsets:
            self._kafka.commit_offsets(offsets, wait=wait)

    def _shut_down(self) -> None:
        """Deliver the records in flight, and leave the group."""
        flowing = [one for one in self.partitions.values() if one.state is State.FLOWING]
        deadline = time.monotonic() + limits.DELIVERY_S
        for one in flowing:
            if one.producer is not None:
                one.producer.flush(max(0.0, deadline - time.monotonic()))
        for one in flowing:
            one.advance_if_idle()
        self._commit_group_offsets(wait=True)
        closing = self._release_partitions()
        self._kafka.close()
        wait(closing, timeout=limits.HANDOVER_S)
        self._pool.shutdown(wait=True, cancel_futures=True)


def _by_partition(messages: Sequence[Message], topics: Sequence[str]) -> list[tuple[Key, Sequence[Message]]]:
    """Group messages by partition, in order; `topics` are all possible topics.

    Consecutive messages mostly have one partition, so the function finds where the partition changes, without a loop over messages.
    """
    if not messages:
        return []
    count, kind = len(messages), type(messages[0])
    partitions: Iterator[Any] = map(kind.partition, messages)
    keys = np.fromiter(partitions, np.int64, count)
    if len(topics) > 1:
        numbers: dict[str | None, int] = {topic: number for number, topic in enumerate(topics)}
        keys += np.fromiter(map(numbers.__getitem__, map(kind.topic, messages)), np.int64, count) << 32
    found: dict[int, list[Message]] = {}
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), count]):
        found.setdefault(int(keys[first]), []).extend(messages[first:last])
    return [((topics[key >> 32], key & 0xFFFF_FFFF), run) for key, run in found.items()]


#: Codes of `Refused` that a retry resolves, because another instance also committed start offsets, or a gateway was lost.
_RETRIED_CODES = {"aborted", "fenced", "staged"}
#: Errors that would occur again if the partition were opened again.
_FATAL_ERRORS = (ConfigError, UsageError, FormatError, NotAllowed)


def _close_opened(opening: Future[tuple[Producer, int, int]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
