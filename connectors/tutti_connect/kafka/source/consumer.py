"""Kafka's side of the way in: a consumer in a group, and what is asked of Kafka beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tutti_connect.kafka import limits
from tutti_connect.kafka.client import (
    CLIENT_LOG,
    EARLIEST,
    LATEST,
    LOG,
    NEVER,
    asking,
    end_of,
    explained,
    made,
    passed_by,
    settings_of,
)
from tutti_connect.kafka.source.batches import Source
from tutti_connect.kafka.source.partition import Key

if TYPE_CHECKING:
    from tutti_connect.kafka.config import Inflow

#: What no configuration may change: the log alone says where to go on, and nothing of an open transaction is taken.
_FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",  # eager: each assignment says all, as `assign` does
}
#: What was fetched ahead is bounded by bytes; where it is so much, Kafka's client would look again after a second, long after that
#: was taken.
DEFAULTS: dict[str, Any] = {"queued.max.messages.kbytes": 16_384, "fetch.queue.backoff.ms": 10, "fetch.wait.max.ms": 100}
#: As after the first question to a Kafka that has had no group yet.
_NO_COORDINATOR = {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
}
_OF_CONSUMERS = {*_FIXED, *DEFAULTS, "group.id", "group.instance.id", "session.timeout.ms", "max.poll.interval.ms"}


class Consumed(NamedTuple):
    """What a turn of the consumer brought.

    Attributes:
        messages: of all partitions, each one's in its order.
        ended: a partition was read to its end, which lies there: nothing committed is between its last message and that.
        missing: partitions that Kafka has nothing of where they are read.
    """

    messages: list[Message]
    ended: list[tuple[Key, int]]
    missing: list[tuple[Key, str]]


class KafkaSource:
    """Topics of Kafka, shared with others of the same group. One thread consumes, assigns and notes; the rest is for all."""

    def __init__(self, config: Inflow) -> None:
        """Prepare; nothing is connected yet.

        Raises:
            ConfigError: a setting of Kafka's client is wrong, or one that the connector decides.
        """
        self._names, self._where = config.kafka.topics, f"Kafka at {config.kafka.servers}"
        self._group = f"tutti-{config.name}"
        settings = settings_of(config.kafka.servers, config.kafka.settings, {**_FIXED, "group.id": self._group}, DEFAULTS)
        self._consumer = made(Consumer, settings)
        self._asking = {key: value for key, value in settings.items() if key != "group.instance.id"}
        other = {key: value for key, value in settings.items() if key not in _OF_CONSUMERS}
        # Kept: the futures of an AdminClient without a reference never complete.
        self._admin = made(AdminClient, {**other, "error_cb": passed_by})

    # -- asked of Kafka, by any thread

    def topics(self) -> dict[str, Source]:
        """The ids of the topics, which tell one that was made anew from the one before.

        Raises:
            Unavailable: Kafka does not answer.
            ConfigError: a topic is not there, or may not be read.
        """
        with asking(self._admin, self._where):
            cluster = str(self._admin.describe_cluster(request_timeout=limits.KAFKA_S).result().cluster_id)
            told = self._admin.describe_topics(TopicCollection(self._names), request_timeout=limits.KAFKA_S)
        found = {}
        for name, future in told.items():
            with asking(self._admin, f"{self._where}, topic {name}"):
                found[name] = Source(cluster, str(future.result().topic_id), name)
        return found

    def edges(self, key: Key) -> tuple[int, int]:
        """The first offset that Kafka has of a partition, and the one behind the last.

        Raises:
            Unavailable, ConfigError: as `topics`.
        """
        with asking(self._admin, _named(key)):
            low, high = (self._edge(TopicPartition(*key), which) for which in (EARLIEST, LATEST))
        return low, high

    def _edge(self, one: TopicPartition, which: Any) -> int:
        """The consumer answers no such question while it is polled."""
        return int(self._admin.list_offsets({one: which}, request_timeout=limits.KAFKA_S)[one].result().offset)

    def ends(self, topic: str) -> dict[int, int]:
        """The end of each partition, for readers of what is committed: records of a transaction that is open lie after it.

        Raises:
            Unavailable, ConfigError: as `topics`; a partition has no leader.
        """
        with asking(self._admin, self._where):
            told = self._admin.describe_topics(TopicCollection([topic]), request_timeout=limits.KAFKA_S)[topic].result()
        found = {}
        for number in sorted(int(partition.id) for partition in told.partitions):
            with asking(self._admin, f"{_named((topic, number))}, whose end is where it starts"):
                found[number] = end_of(self._admin, TopicPartition(topic, number), IsolationLevel.READ_COMMITTED)
        return found

    def noted(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """What the group has noted of partitions (`note`); -1 and nothing where it has not.

        A consumer asks that takes no part in the group: the admin client crashes while the group has no coordinator (2.16.1).

        Raises:
            Unavailable, ConfigError: as `topics`.
        """
        asked = [TopicPartition(*key) for key in keys]
        consumer, deadline = made(Consumer, self._asking), time.monotonic() + limits.KAFKA_S
        try:
            while True:
                try:
                    told = consumer.committed(asked, timeout=limits.KAFKA_S)
                    break
                except KafkaException as error:
                    if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() > deadline:
                        raise explained(error, f"{self._where}, group {self._group}") from error
                time.sleep(limits.LEADER_LOOK_S)
        finally:
            consumer.close()
        return {(one.topic, one.partition): (max(-1, int(one.offset)), str(one.metadata or "")) for one in told}

    # -- the consumer

    def subscribe(self, assigned: Callable[[list[Key]], None], revoked: Callable[[], None], lost: Callable[[], None]) -> None:
        """Take part in the group; the three are called inside of `consume`. What is assigned flows by `assign` alone."""

        def on_assign(consumer: Consumer, given: list[TopicPartition]) -> None:
            assigned([(one.topic, one.partition) for one in given])
            consumer.assign([])  # each as soon as its producer says where to go on

        def on_revoke(consumer: Consumer, _given: list[TopicPartition]) -> None:
            revoked()
            consumer.unassign()

        def on_lost(consumer: Consumer, _given: list[TopicPartition]) -> None:
            lost()
            consumer.unassign()

        self._consumer.subscribe(self._names, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def consume(self) -> Consumed:
        """What there is, within a turn.

        Raises:
            Unavailable, ConfigError: trying again does not mend it.
        """
        try:
            got: list[Message] = self._consumer.consume(limits.MESSAGES_A_TURN, limits.TURN_S)
        except KafkaException as error:
            raise explained(error, self._where) from error
        if not any(map(Message.error, got)):
            return Consumed(got, [], [])
        consumed = Consumed([message for message in got if message.error() is None], [], [])
        for message in got:
            self._hear(message, consumed)
        return consumed

    def _hear(self, message: Message, consumed: Consumed) -> None:
        """What Kafka says in place of a message: of a partition, of a topic or of the whole client."""
        error = message.error()
        if error is None:
            return
        number, offset = message.partition(), message.offset()
        key = message.topic() or "", -1 if number is None else number
        source = _named(key) if key[0] else self._where
        if error.code() == KafkaError._PARTITION_EOF:
            if offset is not None and offset >= 0:
                consumed.ended.append((key, offset))
        elif error.fatal() or error.code() in NEVER:
            raise explained(KafkaException(error), source)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            consumed.missing.append((key, error.str()))
        else:
            CLIENT_LOG.warning("%s: %s", source, error.str())

    def assign(self, places: Mapping[Key, int]) -> None:
        """Which partitions flow, and from where each: what was fetched before is dropped, and what was paused flows."""
        self._consumer.assign([TopicPartition(*key, offset) for key, offset in places.items()])

    def pause(self, keys: Iterable[Key]) -> None:
        """Have Kafka wait with these."""
        self._consumer.pause([TopicPartition(*key) for key in keys])

    def resume(self, keys: Iterable[Key]) -> None:
        """Have these flow again."""
        self._consumer.resume([TopicPartition(*key) for key in keys])

    def high(self, key: Key) -> int:
        """The offset behind the last message of a partition that flows, as far as it was heard; -1 before."""
        # Call it in the polling thread only: during a poll the consumer blocks other threads for minutes (2.16.1).
        known = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        return int(known[1]) if known else -1

    def note(self, places: Mapping[Key, tuple[int, str]], *, wait: bool) -> None:
        """Tell Kafka's group offsets and what they mean."""
        told = [TopicPartition(*key, offset, metadata) for key, (offset, metadata) in places.items()]
        try:
            self._consumer.commit(offsets=told, asynchronous=not wait)
        except KafkaException as error:
            LOG.info("offsets were not told to Kafka: %s", error.args[0].str())

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def _named(key: Key) -> str:
    return f"{key[0]}[{key[1]}]"
