"""Kafka side of kafka-out: a transactional producer, and the position that it commits with the records.

The class of an error tells the caller what to do:
- `RetryTransaction`: call `open` again, which returns the position that Kafka has.
- `RecordRejected`: call `open` again, and send smaller transactions to find the rejected record.
- `Fenced`: end, because another instance has taken over.
- `ConfigError`: end, because a retry cannot help.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tutti.errors import ConfigError, Fenced, TuttiError
from tutti_connect.kafka import limits
from tutti_connect.kafka.client import (
    FINAL_ERRORS,
    LOG,
    NO_TOPIC,
    client_settings,
    converted_error,
    create_client,
    end_offset,
    ignore_error,
    with_cause,
)
from tutti_connect.kafka.config import INTERNAL_TOPICS
from tutti_connect.kafka.errors import RecordRejected, RetryTransaction, TopicRejected
from tutti_connect.kafka.sink.position import Position, decode_position

if TYPE_CHECKING:
    from tutti_connect.kafka.config import SinkConfig
    from tutti_connect.kafka.sink.messages import OutgoingRecord

#: Broker errors that concern a single record.
_RECORD_ERRORS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
#: Broker errors that concern a single topic.
_TOPIC_ERRORS = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION}
#: Errors of requests that describe or create a topic; a retry cannot resolve them.
_UNWRITABLE_ERRORS = FINAL_ERRORS | {KafkaError.INVALID_REQUEST, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_CONFIG}
_AUTHORIZATION_ERRORS = FINAL_ERRORS - NO_TOPIC - {KafkaError._UNKNOWN_PARTITION}
_POSITION_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(limits.POSITION_SEGMENT_BYTES)}
_TOTAL_PARTITION = 0


class KafkaWriter:
    """Writes transactions, with one producer at a time. A new producer fences all earlier producers of its transactional id.

    One thread uses it.

    Attributes:
        instance: random id of this instance, which it stores in each position.
        batch_bytes: size up to which Kafka certainly accepts a batch of records.
    """

    def __init__(self, config: SinkConfig) -> None:
        """Prepare without connecting.

        Raises:
            ConfigError: a setting of Kafka's client is wrong, or reserved for the connector.
        """
        self.instance = secrets.token_hex(8)
        self._name, self._kafka, self._where = config.name, config.kafka, f"Kafka at {config.kafka.servers}"
        self._position_topic = config.position_topic
        self._partition = _TOTAL_PARTITION if config.kafka.order == "total" else -1
        fixed: dict[str, Any] = {
            "transactional.id": f"tutti-{config.name}",
            "enable.idempotence": True,
            "acks": "all",
            # `murmur2` is the partitioner of Kafka's Java client, so both clients send a key to the same partition.
            # In librdkafka, `murmur2` also sends all records without a key to one partition, which keeps their order.
            "partitioner": "murmur2",
            # The queue holds the largest transaction, so that `produce` never blocks.
            "queue.buffering.max.messages": 2 * limits.TRANSACTION_RECORDS_MAX,
            "queue.buffering.max.kbytes": 2 * limits.TRANSACTION_BYTES_MAX // 1024,
        }
        defaults: dict[str, Any] = {
            "message.max.bytes": limits.MESSAGE_BYTES_MAX,
            "batch.size": 1_000_000,  # below the brokers' default limit; a larger record is sent alone
            "linger.ms": 5,
        }
        self._settings = client_settings(config.kafka.servers, config.kafka.settings, fixed, defaults)
        self._settings["error_cb"] = ignore_error  # without a callback, `poll` raises
        other = {key: value for key, value in self._settings.items() if key not in {*fixed, *defaults, *_PRODUCER_SETTINGS}}
        other["error_cb"] = ignore_error
        self._reader_settings = {
            **other,
            "group.id": f"tutti-{config.name}",  # required by the client; this consumer never joins a group
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._admin = create_client(AdminClient, other)
        self._producer: Any = None
        self.batch_bytes = int(self._settings["batch.size"])
        self._existing: set[str] = set()
        self._claimed = False  # True once Kafka has a position with this instance's id
        self._request_at = 0.0  # monotonic time at which the current request started

    def open(self) -> Position | None:
        """Open a producer, which fences the previous producer and decides its transaction; return the position stored in Kafka.

        Raises:
            RetryTransaction: Kafka does not answer.
            Fenced: another instance has committed a position after this one.
            ConfigError: Kafka rejects a request, or the position or its topic was deleted.
            FormatError: another program has written to the position topic.
        """
        self.abandon()
        self._start_request()
        try:
            if self._claimed:  # this instance has stored a position, so a missing topic was deleted and must not be created again
                existing = self._topic_description(self._position_topic) is not None
                # Check the owner before opening a producer, because that would fence a newer instance.
                self._check_owner(self._read_position(IsolationLevel.READ_COMMITTED) if existing else None)
            self._ensure_position_topic()
            self._producer = create_client(Producer, {**self._settings, "batch.size": self.batch_bytes})
            self._producer.init_transactions(limits.KAFKA_S)
        except KafkaException as error:
            raise self._request_error(error) from error
        position = self._read_position(IsolationLevel.READ_UNCOMMITTED)
        if self._claimed:
            self._check_owner(position)
        return position

    def target_of(self, topic: str) -> str:
        """Return the topic in Kafka for a topic of the log; create the topic in Kafka if it does not exist.

        Raises:
            TopicRejected: the topic does not exist and must not be created, or the connector must not write to it.
            RetryTransaction: Kafka does not answer, or accepts only smaller batches, for which the caller must open a new producer.
        """
        target = self._kafka.topic or self._kafka.names.get(topic, topic)
        if target not in self._existing:
            if target == self._position_topic:
                raise TopicRejected(f"topic {target} holds the connector's position")
            if target in INTERNAL_TOPICS:
                raise TopicRejected(f"topic {target} is reserved for Kafka")
            self._start_request()
            try:
                self._ensure(target)
                bytes_max = int(self._topic_configuration(target)["max.message.bytes"].value) - limits.BATCH_OVERHEAD_BYTES
            except KafkaException as error:
                kafka_error: KafkaError = error.args[0]
                if kafka_error.code() in _UNWRITABLE_ERRORS:
                    raise TopicRejected(f"{self._where}, topic {target}: {kafka_error.str()}") from error
                raise self._request_error(error, f", topic {target}") from error
            if len(self._existing) >= limits.TARGETS_MAX:
                self._existing.clear()
            if bytes_max < self.batch_bytes:
                self.batch_bytes = max(1, bytes_max)
                raise RetryTransaction(
                    f"{self._where}: topic {target} accepts batches of at most {bytes_max} bytes: the connector reduces its batches"
                )
            self._existing.add(target)
        return target

    def begin(self) -> None:
        """Start a transaction."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._transaction_error(error) from error

    def add(self, target: str, records: Iterable[OutgoingRecord]) -> list[tuple[OutgoingRecord, str]]:
        """Add records of one topic to the transaction, in order, without those that can never be sent.

        Return the records that can never be sent, each with the reason.

        Raises:
            RecordRejected, RetryTransaction: the transaction has failed.
        """
        produce, partition = self._producer.produce, self._partition
        rejected = []
        for record in records:
            if record.time_ms < 0:
                rejected.append((record, record.reason))
                continue
            try:
                # Send time 1 instead of 0, because Kafka's client replaces time 0 by the current time.
                produce(target, record.value, record.key, partition, timestamp=record.time_ms or 1, headers=record.headers)
            except (KafkaException, BufferError) as error:
                if not _is_record_error(error):
                    raise self._transaction_error(self._root_cause(error)) from error
                rejected.append((record, error.args[0].str()))
        _poll(self._producer)
        return rejected

    def commit(self, log: str, next_offset: int, stop: threading.Event) -> None:
        """Commit the transaction: the added records, and the position after them.

        Raises:
            RecordRejected: the transaction is aborted, because Kafka rejects one of its records.
            TopicRejected: the transaction is aborted, because Kafka rejects every record of a topic.
            RetryTransaction: the outcome of the transaction is unknown until the next `open` returns the committed position.
        """
        self._start_request()
        value = Position(log, next_offset, self.instance).encode()
        started, wait_logged, end_at = time.monotonic(), False, 0.0
        try:
            self._producer.produce(self._position_topic, value, self._name, 0)
        except (KafkaException, BufferError) as error:
            raise self._transaction_error(self._root_cause(error)) from error
        while True:
            try:
                self._producer.commit_transaction(limits.COMMIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise self._transaction_error(error) from error
                now = time.monotonic()
                end_at = end_at or (now + limits.END_S if stop.is_set() else 0.0)
                if end_at and now >= end_at:
                    raise RetryTransaction(f"{self._where}: {self._error_text(error.args[0])}") from error
                if not wait_logged and now >= started + limits.WAIT_LOG_S:
                    LOG.warning("%s: waiting for the commit of a transaction: %s", self._where, self._error_text(error.args[0]))
                    wait_logged = True
            else:
                self._claimed = True
                if wait_logged:
                    LOG.info("%s: the transaction is committed after %.0f s", self._where, time.monotonic() - started)
                return

    def abandon(self) -> None:
        """Discard the producer and its records; the next `open` aborts the open transaction in Kafka."""
        producer, self._producer = self._producer, None
        self._existing.clear()
        if producer is not None:
            with contextlib.suppress(KafkaException):  # raised by a fenced producer
                producer.purge()

    # -- errors

    def _start_request(self) -> None:
        """Record when a request starts, so that an error text uses only connection failures that were logged after this time."""
        self._poll_clients()
        self._request_at = time.monotonic()

    def _poll_clients(self) -> None:
        for client in (self._admin, self._producer):
            if client is not None:
                _poll(client)  # a poll writes the client's queued log lines

    def _error_text(self, error: KafkaError) -> str:
        """Return the text of an error, with the connection failure that caused it, if the client has logged one."""
        self._poll_clients()
        return with_cause(error, self._request_at)

    def _request_error(self, error: KafkaException, what: str = "") -> TuttiError:
        kafka_error: KafkaError = error.args[0]
        if kafka_error.code() in FINAL_ERRORS:
            return converted_error(error, f"{self._where}{what}")
        return RetryTransaction(f"{self._where}{what}: {self._error_text(kafka_error)}")

    def _transaction_error(self, error: Exception) -> TuttiError:
        """Return the `TuttiError` for an error that ended the transaction."""
        if not isinstance(error, KafkaException):
            return RetryTransaction(f"{self._where}: {error}")
        kafka_error: KafkaError = error.args[0]
        if kafka_error.code() in _TOPIC_ERRORS:
            return TopicRejected(f"{self._where}: {kafka_error.str()}")
        if kafka_error.code() in _AUTHORIZATION_ERRORS:
            return converted_error(error, self._where)
        if kafka_error.code() in _RECORD_ERRORS:
            return RecordRejected(kafka_error.str())
        return RetryTransaction(f"{self._where}: {self._error_text(kafka_error)}")

    def _root_cause(self, error: Exception) -> Exception:
        """Return the error that made the transaction fail: after `produce` has failed, only a commit reports this error."""
        if isinstance(error, KafkaException) and error.args[0].code() in {KafkaError._STATE, KafkaError._FATAL}:
            try:
                self._producer.commit_transaction(limits.COMMIT_S)
            except KafkaException as kafka_error:
                return kafka_error
        return error

    def _check_owner(self, position: Position | None) -> None:
        """Check that the position in Kafka is still the one that this instance has committed.

        Raises:
            Fenced: another instance has taken over and committed a position.
            ConfigError: the position was deleted.
        """
        if position is None:
            raise ConfigError(
                f"{self._where}: the connector's position was deleted from topic {self._position_topic}: "
                f"find the cause of the removal before you restart the connector, which would begin again at `start`"
            )
        if position.instance != self.instance:
            raise Fenced(
                f"another instance of connector {self._name!r} has taken over at offset {position.next}: "
                "run only one instance of this connector"
            )

    # -- topics

    def _ensure(self, target: str) -> None:
        """Create a topic unless it exists.

        Raises:
            TopicRejected: the topic does not exist and must not be created, or is an internal topic of Kafka.
        """
        existing = self._topic_description(target)
        if existing is not None and existing.is_internal:
            raise TopicRejected(f"topic {target} is reserved for Kafka")
        if existing is not None:
            return
        if not self._kafka.partitions:
            raise TopicRejected(
                f"{self._where} has no topic {target!r}: create it, or let the connector create missing topics (kafka.partitions)"
            )
        self._create(NewTopic(target, self._kafka.partitions, -1))
        LOG.info("%s: created topic %s with %d partitions", self._where, target, self._kafka.partitions)

    def _ensure_position_topic(self) -> None:
        name = self._position_topic
        try:
            if self._topic_description(name) is None:
                self._create(NewTopic(name, 1, -1, config=_POSITION_SETTINGS))
                LOG.info("%s: created topic %s for the position", self._where, name)
            policy = self._topic_configuration(name)["cleanup.policy"].value
        except KafkaException as error:
            raise self._request_error(error, f", position topic {name}") from error
        if policy != "compact":
            raise ConfigError(
                f"{self._where}: topic {name}, which holds the position, has cleanup.policy={policy}, which would "
                f"delete the position in time: set cleanup.policy=compact, or choose another topic (kafka.position_topic)"
            )

    def _topic_configuration(self, name: str) -> Any:
        """Return the configuration of a topic; retry for `TOPIC_KNOWN_S`, because a broker might not know a new topic yet."""
        resource, until = ConfigResource(ResourceType.TOPIC, name), time.monotonic() + limits.TOPIC_KNOWN_S
        while True:
            try:
                return self._admin.describe_configs([resource], request_timeout=limits.KAFKA_S)[resource].result()
            except KafkaException as error:
                if error.args[0].code() not in NO_TOPIC or time.monotonic() >= until:
                    raise
            time.sleep(limits.TOPIC_KNOWN_POLL_S)

    def _topic_description(self, name: str) -> Any:
        """Return Kafka's description of a topic, None if it does not exist."""
        try:
            results = self._admin.describe_topics(TopicCollection([name]), request_timeout=limits.KAFKA_S)
            return results[name].result()
        except KafkaException as error:
            if error.args[0].code() in NO_TOPIC:
                return None
            raise

    def _create(self, topic: Any) -> None:
        try:
            for future in self._admin.create_topics([topic], request_timeout=limits.KAFKA_S).values():
                future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    # -- the position

    def _read_position(self, isolation: Any) -> Position | None:
        """Return the last committed position, or None if Kafka has none.

        With READ_COMMITTED, ignore messages of open transactions. With READ_UNCOMMITTED, wait until all open transactions are
        decided.

        Raises:
            RetryTransaction: Kafka does not answer.
            FormatError: another program has written to the position topic.
        """
        one = TopicPartition(self._position_topic, 0)
        consumer = create_client(Consumer, self._reader_settings)
        try:
            high = end_offset(self._admin, one, isolation)
            low, _ = consumer.get_watermark_offsets(one, timeout=limits.KAFKA_S)
            back = limits.POSITION_SEARCH_MESSAGES
            while True:
                start = max(low, high - back)
                position = self._last_position(consumer, start, high)
                if position is not None or start == low:
                    return position
                back *= 16
        except KafkaException as error:
            raise self._request_error(error, f", position topic {self._position_topic}") from error
        finally:
            consumer.close()

    def _last_position(self, consumer: Any, start: int, high: int) -> Position | None:
        """Return the last position of this connector among the messages [start, high) of the position topic, None without one.

        The time limit `limits.KAFKA_S` starts with this call, and again with each position found.
        """
        deadline = time.monotonic() + limits.KAFKA_S
        consumer.assign([TopicPartition(self._position_topic, 0, start)])
        found = None
        reached = start
        while reached < high:
            if time.monotonic() > deadline:
                raise RetryTransaction(
                    f"{self._where}: reading the position in {self._position_topic} timed out at offset {reached} of {high}"
                )
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                reached = max(reached, message.offset() + (error is None))
                if error is None and message.key() == self._name.encode():
                    found = decode_position(message.value() or b"", self._position_topic)
                    deadline = time.monotonic() + limits.KAFKA_S  # Kafka does answer, so the time limit starts again
        return found


def _poll(client: Any) -> None:
    """Let the client run its callbacks and write its log lines; ignore a fatal error, because transaction calls raise it too."""
    with contextlib.suppress(KafkaException):
        client.poll(0)


def _is_record_error(error: Exception) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _RECORD_ERRORS


#: Settings that consumers and admin clients do not accept.
_PRODUCER_SETTINGS = {
    "compression.type", "compression.codec", "compression.level", "batch.num.messages", "queue.buffering.max.ms", "retries",
    "message.send.max.retries", "retry.backoff.ms", "message.timeout.ms", "delivery.timeout.ms", "request.timeout.ms",
    "request.required.acks", "transaction.timeout.ms", "max.in.flight", "max.in.flight.requests.per.connection",
    "sticky.partitioning.linger.ms", "delivery.report.only.error", "dr_cb", "dr_msg_cb",
}  # fmt: skip
