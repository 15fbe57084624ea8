"""From Kafka into the log: one thread takes messages and hands them to the partitions' producers, others open and close those."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from connectors.kafka import limits
from connectors.kafka.client import EARLIEST, LATEST, LOG, NEVER, explained, made, settings_of
from connectors.kafka.partition import Partition, State, Turn
from connectors.kafka.place import Place, check_same, decode_place, producer_name
from connectors.kafka.records import Source, cuts, offset_of, sorted_out
from connectors.quarantine import Quarantine
from gateway.client import Producer
from gateway.errors import ConfigError, FormatError, TuttiError, Unavailable, UsageError

if TYPE_CHECKING:
    from connectors.kafka.config import Inflow

#: What no configuration may change: the log alone says where to go on, and nothing of an open transaction is taken.
_FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",  # eager: each assignment says all, as `_assign` does
}
_DEFAULTS: dict[str, Any] = {"queued.max.messages.kbytes": 16_384, "fetch.wait.max.ms": 100}

Key = tuple[str, int]


class Connector:
    """Brings topics of Kafka into the log, each record once, in each partition's order.

    `run` belongs to one thread; `partitions` may be looked at by others (metrics).
    """

    def __init__(self, config: Inflow) -> None:
        """Prepare; nothing is connected yet.

        Raises:
            ConfigError: a setting of Kafka's client is wrong, or one that the connector decides.
        """
        self.config = config
        self.partitions: dict[Key, Partition] = {}
        self.quarantine = Quarantine(config.quarantine)
        fixed = {**_FIXED, "group.id": f"tutti-{config.name}"}
        self._settings = settings_of(config.kafka.servers, config.kafka.settings, fixed, _DEFAULTS)
        self._consumer = made(Consumer, self._settings)
        self._admin = made(AdminClient, {key: value for key, value in self._settings.items() if key not in _OF_CONSUMERS})
        self._topics: dict[str, Source] = {}
        self._openings: dict[Key, Future[tuple[Producer, int]]] = {}
        self._pool = ThreadPoolExecutor(limits.OPENERS, "opener")
        self._checking: Future[dict[str, Source]] | None = None
        self._moved = False
        self._paused: set[Key] = set()
        self._report_at = self._look_at = self._check_at = 0.0
        self._fatal: Exception | None = None

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Until `stop`, or something that trying again cannot mend; `ready` is called when Kafka has answered.

        Raises:
            Unavailable: Kafka does not answer.
            ConfigError: a topic is not there, or another one than before.
        """
        try:
            self._topics = self._known_topics()
            self._consumer.subscribe(
                self.config.kafka.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            ready()
            while not stop.is_set() and self._fatal is None:
                self._turn()
            if self._fatal is not None:
                raise self._fatal
        finally:
            self._end()

    def _known_topics(self) -> dict[str, Source]:
        """The ids of the topics, which tell one that was made anew from the one before."""
        names = self.config.kafka.topics
        try:
            cluster = str(self._admin.describe_cluster(request_timeout=limits.KAFKA_S).result().cluster_id)
            told = self._admin.describe_topics(TopicCollection(names), request_timeout=limits.KAFKA_S)
            return {name: Source(cluster, str(future.result().topic_id), name) for name, future in told.items()}
        except KafkaException as error:
            raise explained(error, f"Kafka at {self.config.kafka.servers}") from error

    # What Kafka's client calls, inside of `consume`.

    def _assigned(self, _consumer: Consumer, given: list[TopicPartition]) -> None:
        for one in given:
            target = self.config.topic or one.topic
            self.partitions[one.topic, one.partition] = Partition(one.topic, one.partition, target)
        LOG.info("%s: %d partitions are this instance's", self.config.name, len(given))
        self._consumer.assign([])  # each as soon as its producer says where to go on
        self._moved = False

    def _revoked(self, _consumer: Consumer, _given: list[TopicPartition]) -> None:
        wait(self._hand_over(), timeout=limits.HANDOVER_S)
        self._consumer.unassign()

    def _lost(self, _consumer: Consumer, _given: list[TopicPartition]) -> None:
        self._hand_over()
        self._consumer.unassign()

    def _hand_over(self) -> list[Future[None]]:
        """Let go of all partitions; what they have on its way is delivered, unless another instance is there first."""
        left, self.partitions = self.partitions, {}
        openings, self._openings = self._openings, {}
        self._paused.clear()
        for opening in openings.values():
            opening.add_done_callback(_close_opened)
        return [self._pool.submit(producer.close) for one in left.values() if (producer := one.taken()) is not None]

    # One turn.

    def _turn(self) -> None:
        for key, messages in _by_partition(self._consumed()):
            partition = self.partitions.get(key)
            if partition is not None and partition.state is State.FLOWING:
                self._take(partition, messages)
        now = time.monotonic()
        for key, partition in list(self.partitions.items()):
            self._tend(key, partition, now)
        if self._moved:
            self._assign()
        self._pause()
        if now >= self._look_at:
            self._look_at = now + limits.LOOK_S
            self._look()
        if now >= self._report_at:
            self._report_at = now + limits.REPORT_S
            self._report(asynchronous=True)
        self._check_topics(now)

    def _check_topics(self, now: float) -> None:
        """See that no topic was made anew under its name, whose records would be taken for those behind the old ones."""
        checking = self._checking
        if checking is None and now >= self._check_at:
            self._checking = self._pool.submit(self._known_topics)
        elif checking is not None and checking.done():
            self._checking, self._check_at = None, now + limits.CHECK_S
            error = checking.exception()
            if error is None:
                for name, source in checking.result().items():
                    if source != self._topics[name]:
                        self._end_by(
                            ConfigError(f"{name}: the topic, or Kafka, is another one than when this instance was started")
                        )
            elif isinstance(error, ConfigError):
                self._end_by(error)  # it is gone

    def _end_by(self, error: Exception) -> None:
        """End with what trying again cannot mend; the first such reason counts."""
        self._fatal = self._fatal or error

    def _consumed(self) -> list[Message]:
        try:
            messages: list[Message] = self._consumer.consume(limits.MESSAGES_A_TURN, limits.TURN_S)
        except KafkaException as error:
            raise explained(error, f"Kafka at {self.config.kafka.servers}") from error
        wrong = [message for message in messages if message.error() is not None]
        for message in wrong:
            self._hear(message)
        return [message for message in messages if message.error() is None] if wrong else messages

    def _take(self, partition: Partition, messages: Sequence[Message]) -> None:
        """New messages of one partition: what can be a record waits for its producer, the rest goes into quarantine."""
        # What was on its way when its partition was assigned anew comes again.
        fresh = [message for message in messages if offset_of(message) >= partition.next]
        if not fresh:
            return
        good, bad = sorted_out(fresh)
        try:
            for poison in bad:
                source = self._topics[partition.topic]
                self.quarantine.put(f"{source.topic}-{poison.place}", source, poison.reason, poison.told(source))
                LOG.warning(
                    "%s[%d] offset %s: quarantined: %s", partition.topic, partition.number, poison.message.offset(), poison.reason
                )
        except (TuttiError, OSError) as error:
            self._fail(partition, error)
            return
        partition.take(cuts(good), offset_of(fresh[-1]) + 1)

    def _hear(self, message: Message) -> None:
        """What Kafka says in place of a message: of a partition, of a topic or of the whole client."""
        error: KafkaError | None = message.error()
        if error is None:
            return
        key = message.topic() or "", -1 if message.partition() is None else int(message.partition() or 0)
        partition = self.partitions.get(key)
        source = f"{key[0]}[{key[1]}]" if key[0] else f"Kafka at {self.config.kafka.servers}"
        if error.fatal() or error.code() in NEVER:
            self._end_by(explained(KafkaException(error), source))
        elif error.code() != KafkaError._AUTO_OFFSET_RESET:
            LOG.warning("%s: %s", source, error.str())
        elif partition is not None and partition.state is State.FLOWING:
            self._fail(partition, Unavailable(f"Kafka has nothing at offset {partition.next}: {error.str()}"))  # `_open` looks why

    def _tend(self, key: Key, partition: Partition, now: float) -> None:
        """Open it when it is time, and hand its producer what waits."""
        if partition.state is State.WAITING and partition.retry_at <= now:
            partition.turn(Turn.OPEN)
            self._openings[key] = self._pool.submit(self._open, partition)
        elif partition.state is State.OPENING and self._openings[key].done():
            opening = self._openings.pop(key)
            error = opening.exception()
            if error is None:
                partition.opened(*opening.result())
                self._moved = True
                self._report_at = now  # a place that only Kafka knows of is told to it at once
            elif isinstance(error, TuttiError) and not isinstance(error, ConfigError | UsageError | FormatError):
                self._fail(partition, error)
            else:
                self._end_by(error if isinstance(error, Exception) else RuntimeError(str(error)))
        elif partition.state is State.FLOWING:
            topic = self._topics[partition.topic]
            try:
                partition.push(lambda following: Place(topic.cluster, topic.topic_id, following).encode())
            except UsageError as error:
                self._end_by(error)
            except TuttiError as error:
                self._fail(partition, error)

    def _fail(self, partition: Partition, error: Exception) -> None:
        producer = partition.failed(error, time.monotonic())
        LOG.warning("%s[%d]: begins again behind %d: %s", partition.topic, partition.number, partition.committed, partition.trouble)
        if producer is not None:
            self._pool.submit(producer.close)
        self._moved = True

    def _open(self, partition: Partition) -> tuple[Producer, int]:
        """Begin an epoch, which ends that of whoever had the partition before; and the offset to go on with."""
        config = self.config
        name = producer_name(config.name, partition.topic, partition.number)
        share = limits.BUFFER_BYTES_ALL // max(1, len(self.partitions))
        room = min(limits.BUFFER_BYTES_MAX, max(limits.BUFFER_BYTES_MIN, share))
        producer = Producer(config.gateways, producer=name, buffer_bytes=room, on_full="raise", delivery_timeout=limits.DELIVERY_S)
        try:
            progress = producer.resume().progress
            if not progress:
                return producer, self._beginning(partition)
            place = decode_place(progress, name)
            topic = self._topics[partition.topic]
            source = f"{partition.topic}[{partition.number}]"
            check_same(place, Place(topic.cluster, topic.topic_id, 0), name, source)
            return producer, self._still_there(partition, place.next)
        except KafkaException as error:
            producer.close()
            raise explained(error, f"{partition.topic}[{partition.number}]") from error
        except BaseException:
            producer.close()
            raise

    def _still_there(self, partition: Partition, following: int) -> int:
        """Where to go on, if Kafka still has what comes next.

        Raises:
            ConfigError: it has not, and somebody has to say that this may be.
        """
        low, high = self._edge(partition, EARLIEST), self._edge(partition, LATEST)
        if low <= following <= high:
            return following
        source = f"{partition.topic}[{partition.number}]"
        if self.config.kafka.lost == "fail":
            raise ConfigError(
                f"{source}: the log goes on at offset {following} of Kafka, which has {low} to {high}: what lies between was "
                f'removed before it came, or Kafka lost its end. To go on with what is there, set lost = "skip" below [kafka]'
            )
        there = low if following < low else high
        LOG.warning("%s: Kafka has offsets %d to %d and the log goes on at %d: goes on at %d", source, low, high, following, there)
        return there

    def _beginning(self, partition: Partition) -> int:
        """Where a partition begins that the log has nothing of."""
        if self.config.kafka.start == "earliest":
            return self._edge(partition, EARLIEST)
        one = TopicPartition(partition.topic, partition.number)
        # What comes from now on is taken, also when this instance ends before the first of it is in the log: it is noted in Kafka.
        asked = ConsumerGroupTopicPartitions(self._settings["group.id"], [one])
        noted = self._admin.list_consumer_group_offsets([asked], request_timeout=limits.KAFKA_S)[asked.group_id].result()
        place = int(noted.topic_partitions[0].offset)
        return place if place >= 0 else self._edge(partition, LATEST)

    def _edge(self, partition: Partition, which: Any) -> int:
        """The first offset of Kafka, or the one behind the last. Its consumer answers no such question while it is polled."""
        one = TopicPartition(partition.topic, partition.number)
        return int(self._admin.list_offsets({one: which}, request_timeout=limits.KAFKA_S)[one].result().offset)

    def _assign(self) -> None:
        """Say to Kafka's client which partitions flow, and from where each: the one way in which places change."""
        self._moved = False
        flowing = [one for one in self.partitions.values() if one.state is State.FLOWING]
        self._consumer.assign([TopicPartition(one.topic, one.number, one.next) for one in flowing])
        self._paused.clear()

    def _pause(self) -> None:
        """Have Kafka wait where a producer has no room."""
        full = {key for key, one in self.partitions.items() if one.state is State.FLOWING and one.full}
        if more := full - self._paused:
            self._consumer.pause([TopicPartition(*key) for key in more])
        if less := self._paused - full:
            self._consumer.resume([TopicPartition(*key) for key in less if key in self.partitions])
        self._paused = full

    def _look(self) -> None:
        """Note how much Kafka has, for the metrics: its consumer lets other threads wait as long as it is polled."""
        for one in self.partitions.values():
            if one.state is State.FLOWING:
                known = self._consumer.get_watermark_offsets(TopicPartition(one.topic, one.number), cached=True)
                if known:
                    one.high = int(known[1])

    def _report(self, *, asynchronous: bool) -> None:
        """Tell Kafka what the log has: for those who watch the lag there, nothing goes by it."""
        places = [
            TopicPartition(one.topic, one.number, one.committed) for one in self.partitions.values() if one.state is State.FLOWING
        ]
        if not places:
            return
        try:
            self._consumer.commit(offsets=places, asynchronous=asynchronous)
        except KafkaException as error:
            LOG.info("offsets were not told to Kafka: %s", error.args[0].str())

    def _end(self) -> None:
        """Deliver what was taken, and leave."""
        flowing = [one for one in self.partitions.values() if one.state is State.FLOWING]
        deadline = time.monotonic() + limits.DELIVERY_S
        for one in flowing:
            if one.producer is not None:
                one.producer.flush(max(0.0, deadline - time.monotonic()))
        self._report(asynchronous=False)
        closing = self._hand_over()
        self._consumer.close()
        wait(closing, timeout=limits.HANDOVER_S)
        self._pool.shutdown(wait=True, cancel_futures=True)


def _by_partition(messages: Iterable[Message]) -> list[tuple[Key, list[Message]]]:
    """Messages of each partition, in its order."""
    found: dict[Key, list[Message]] = {}
    for key, run in itertools.groupby(messages, key=lambda message: (message.topic(), message.partition())):
        topic, partition = key
        if topic is not None and partition is not None:
            found.setdefault((topic, partition), []).extend(run)
    return list(found.items())


def _close_opened(opening: Future[tuple[Producer, int]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


_OF_CONSUMERS = {*_FIXED, *_DEFAULTS, "group.id", "group.instance.id", "session.timeout.ms", "max.poll.interval.ms"}
