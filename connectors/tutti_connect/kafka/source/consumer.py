"""Kafka side of kafka-in: a consumer in a group, and other requests to Kafka."""

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
    FINAL_ERRORS,
    LATEST,
    LOG,
    client_settings,
    converted_error,
    converted_errors,
    create_client,
    end_offset,
    ignore_error,
)
from tutti_connect.kafka.source.batches import Source
from tutti_connect.kafka.source.partition_copy import Key

if TYPE_CHECKING:
    from tutti_connect.kafka.config import SourceConfig

#: Settings that users cannot change: the client must store no offsets itself, and return only committed messages.
_FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",  # eager rebalancing, because `assign` always passes all partitions
}
#: The client prefetches 16 MiB. With its default backoff, it would pause for a second each time this queue is full.
DEFAULTS: dict[str, Any] = {"queued.max.messages.kbytes": 16_384, "fetch.queue.backoff.ms": 10, "fetch.wait.max.ms": 100}
#: Errors while a Kafka cluster chooses the coordinator of its first group.
_NO_COORDINATOR = {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
}
_CONSUMER_SETTINGS = {*_FIXED, *DEFAULTS, "group.id", "group.instance.id", "session.timeout.ms", "max.poll.interval.ms"}


class Consumed(NamedTuple):
    """Result of one `consume` call.

    Attributes:
        messages: messages of all partitions, in order within each partition.
        ended: partitions that were read to their end, each with the end offset.
        missing: partitions that have no message at the offset to read, each with the error.
    """

    messages: list[Message]
    ended: list[tuple[Key, int]]
    missing: list[tuple[Key, str]]


class KafkaSource:
    """Topics of Kafka, whose partitions are shared by a consumer group.

    One thread must make all calls of the consumer; any thread may call the methods that send requests through the admin client.
    """

    def __init__(self, config: SourceConfig) -> None:
        """Prepare without connecting.

        Raises:
            ConfigError: a setting of Kafka's client is wrong, or reserved for the connector.
        """
        self._names, self._where = config.kafka.topics, f"Kafka at {config.kafka.servers}"
        self._group = f"tutti-{config.name}"
        settings = client_settings(config.kafka.servers, config.kafka.settings, {**_FIXED, "group.id": self._group}, DEFAULTS)
        self._consumer = create_client(Consumer, settings)
        self._request_settings = {key: value for key, value in settings.items() if key != "group.instance.id"}
        other = {key: value for key, value in settings.items() if key not in _CONSUMER_SETTINGS}
        # Keep the AdminClient in an attribute: after its garbage collection, the futures of its requests never complete.
        self._admin = create_client(AdminClient, {**other, "error_cb": ignore_error})

    # -- requests to Kafka, from any thread

    def topics(self) -> dict[str, Source]:
        """Return the ids of the cluster and the topics. A recreated topic has a new id.

        Raises:
            Unavailable: Kafka does not answer.
            ConfigError: a topic does not exist, or this client has no permission to read it.
        """
        with converted_errors(self._admin, self._where):
            cluster = str(self._admin.describe_cluster(request_timeout=limits.KAFKA_S).result().cluster_id)
            results = self._admin.describe_topics(TopicCollection(self._names), request_timeout=limits.KAFKA_S)
        found = {}
        for name, future in results.items():
            with converted_errors(self._admin, f"{self._where}, topic {name}"):
                found[name] = Source(cluster, str(future.result().topic_id), name)
        return found

    def offset_range(self, key: Key) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset after the last message.

        Raises:
            Unavailable: Kafka does not answer.
            ConfigError: the topic does not exist, or this client has no permission to read it.
        """
        with converted_errors(self._admin, _partition_name(key)):
            low, high = (self._offset_at(TopicPartition(*key), which) for which in (EARLIEST, LATEST))
        return low, high

    def _offset_at(self, one: TopicPartition, which: Any) -> int:
        """Return an offset from the admin client, because the consumer blocks this request while another thread polls."""
        return int(self._admin.list_offsets({one: which}, request_timeout=limits.KAFKA_S)[one].result().offset)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition for committed reads, which is before the first open transaction.

        Raises:
            Unavailable: Kafka does not answer, or a partition has no leader.
            ConfigError: the topic does not exist, or this client has no permission to read it.
        """
        with converted_errors(self._admin, self._where):
            results = self._admin.describe_topics(TopicCollection([topic]), request_timeout=limits.KAFKA_S)[topic].result()
        found = {}
        for number in sorted(int(partition.id) for partition in results.partitions):
            with converted_errors(self._admin, f"{_partition_name((topic, number))}, whose end is the start offset"):
                found[number] = end_offset(self._admin, TopicPartition(topic, number), IsolationLevel.READ_COMMITTED)
        return found

    def group_offsets(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """Return the offsets and metadata that the group has committed (`commit_offsets`); -1 and "" without a commit.

        The method uses a second consumer, because confluent-kafka 2.16.1 crashes in the admin client's request while the group has
        no coordinator.

        Raises:
            Unavailable: Kafka does not answer.
            ConfigError: this client has no permission to use the group.
        """
        partitions = [TopicPartition(*key) for key in keys]
        consumer, deadline = create_client(Consumer, self._request_settings), time.monotonic() + limits.KAFKA_S
        try:
            while True:
                try:
                    results = consumer.committed(partitions, timeout=limits.KAFKA_S)
                    break
                except KafkaException as error:
                    if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() > deadline:
                        raise converted_error(error, f"{self._where}, group {self._group}") from error
                time.sleep(limits.LEADER_POLL_S)
        finally:
            consumer.close()
        return {(one.topic, one.partition): (max(-1, int(one.offset)), str(one.metadata or "")) for one in results}

    # -- the consumer

    def subscribe(self, assigned: Callable[[list[Key]], None], revoked: Callable[[], None], lost: Callable[[], None]) -> None:
        """Join the group; `consume` calls the callbacks. The client reads an assigned partition only after a call of `assign`."""

        def on_assign(consumer: Consumer, given: list[TopicPartition]) -> None:
            assigned([(one.topic, one.partition) for one in given])
            consumer.assign([])  # read nothing yet: the position of a partition is unknown until its producer is open

        def on_revoke(consumer: Consumer, _given: list[TopicPartition]) -> None:
            revoked()
            consumer.unassign()

        def on_lost(consumer: Consumer, _given: list[TopicPartition]) -> None:
            lost()
            consumer.unassign()

        self._consumer.subscribe(self._names, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def consume(self) -> Consumed:
        """Return the messages that arrive within `POLL_S`.

        Raises:
            Unavailable: the client has failed, and the connector must end.
            ConfigError: a topic does not exist, or this client has no permission to read it.
        """
        try:
            received: list[Message] = self._consumer.consume(limits.MESSAGES_A_POLL, limits.POLL_S)
        except KafkaException as error:
            raise converted_error(error, self._where) from error
        if not any(map(Message.error, received)):
            return Consumed(received, [], [])
        consumed = Consumed([message for message in received if message.error() is None], [], [])
        for message in received:
            self._process_error(message, consumed)
        return consumed

    def _process_error(self, message: Message, consumed: Consumed) -> None:
        """Add an error from Kafka's client to `consumed`, log it, or raise it if the client cannot continue."""
        error = message.error()
        if error is None:
            return
        number, offset = message.partition(), message.offset()
        key = message.topic() or "", -1 if number is None else number
        source = _partition_name(key) if key[0] else self._where
        if error.code() == KafkaError._PARTITION_EOF:
            if offset is not None and offset >= 0:
                consumed.ended.append((key, offset))
        elif error.fatal() or error.code() in FINAL_ERRORS:
            raise converted_error(KafkaException(error), source)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            consumed.missing.append((key, error.str()))
        else:
            CLIENT_LOG.warning("%s: %s", source, error.str())

    def assign(self, offsets: Mapping[Key, int]) -> None:
        """Replace the set of partitions to read, each with its offset; this drops prefetched messages and ends all pauses."""
        self._consumer.assign([TopicPartition(*key, offset) for key, offset in offsets.items()])

    def pause(self, keys: Iterable[Key]) -> None:
        """Pause reading of these partitions."""
        self._consumer.pause([TopicPartition(*key) for key in keys])

    def resume(self, keys: Iterable[Key]) -> None:
        """Resume reading of these partitions."""
        self._consumer.resume([TopicPartition(*key) for key in keys])

    def high_watermark(self, key: Key) -> int:
        """Return the last known end offset of an assigned partition; -1 if unknown."""
        # Call this only in the polling thread: in confluent-kafka 2.16.1, a poll blocks other threads for minutes.
        known = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        return int(known[1]) if known else -1

    def commit_offsets(self, offsets: Mapping[Key, tuple[int, str]], *, wait: bool) -> None:
        """Commit offsets with metadata to the group; log a failure, because only lag monitors and deleted messages need them."""
        results = [TopicPartition(*key, offset, metadata) for key, (offset, metadata) in offsets.items()]
        try:
            self._consumer.commit(offsets=results, asynchronous=not wait)
        except KafkaException as error:
            LOG.info("offsets were not committed to Kafka: %s", error.args[0].str())

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def _partition_name(key: Key) -> str:
    return f"{key[0]}[{key[1]}]"
