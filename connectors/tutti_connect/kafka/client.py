"""Helpers around Kafka's client, for both connectors: settings, conversion of errors to `TuttiError`, throttled log lines."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin as kafka_admin

from tutti.errors import ConfigError, TuttiError, Unavailable
from tutti_connect.kafka import limits
from tutti_connect.kafka.repeated_warnings import RepeatFilter

LOG = logging.getLogger("tutti.kafka")

_OffsetSpec: Any = vars(kafka_admin)["OffsetSpec"]  # the type stubs lack it
EARLIEST, LATEST = _OffsetSpec.earliest(), _OffsetSpec.latest()

NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
#: Temporary errors: for example, a new topic has no leader for a moment.
NO_LEADER = {*NO_TOPIC, KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
#: Errors of the client itself that a failed connection can cause.
_UNREACHABLE = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
#: Errors that a retry cannot resolve.
FINAL_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


def client_settings(
    servers: str, given: Mapping[str, Any], fixed: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge the settings for Kafka's client: the user's settings replace defaults, but must not contain a fixed setting.

    Raises:
        ConfigError: the user has set a setting that the connector fixes.
    """
    own = {**fixed, "bootstrap.servers": servers}
    for name in given.keys() & own.keys():
        raise ConfigError(f'kafka.settings: "{name}" is set by the connector ({own[name]!r}): remove it')
    return {**defaults, **given, **own, "logger": CLIENT_LOG}


def create_client(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """Create a client of class `kind` (`Producer`, `Consumer` or `AdminClient`).

    Raises:
        ConfigError: a setting is wrong.
    """
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"kafka.settings: {reason}: see the settings of librdkafka") from error


def converted_error(error: KafkaException, where: str, since: float | None = None) -> TuttiError:
    """Convert an error of Kafka's client; add the connection failures that the client logged after `since` (monotonic)."""
    kafka_error: KafkaError = error.args[0]
    if kafka_error.code() in FINAL_ERRORS:
        return ConfigError(f"{where}: {kafka_error.str()}: choose a topic that exists and that this client may use")
    return Unavailable(f"{where}: {kafka_error.str() if since is None else with_cause(kafka_error, since)}")


def with_cause(kafka_error: KafkaError, since: float) -> str:
    """Return the text of an error, or, for an error that no broker sent, the connection failure logged after `since`, if any."""
    # Other local errors, and answers of a broker, have a cause of their own.
    if kafka_error.code() not in _UNREACHABLE:
        return kafka_error.str()
    if cause := CONNECTION_FAILURES.failure_since(since):
        return f"no answer: {cause}; check that the brokers run, and that kafka.servers and kafka.settings fit them"
    return f"no answer in time ({kafka_error.str()})" if kafka_error.code() == KafkaError._TIMED_OUT else kafka_error.str()


@contextmanager
def converted_errors(admin: Any, where: str) -> Iterator[None]:
    """Convert errors of requests to Kafka in the block.

    Raises:
        Unavailable: Kafka does not answer; the message has the cause.
        ConfigError: a retry cannot help, for example because a topic does not exist.
    """
    admin.poll(0)  # writes the client's queued log lines now, so that an old failure does not count as the cause of a new one
    started = time.monotonic()
    try:
        yield
    except KafkaException as error:
        admin.poll(0)
        raise converted_error(error, where, started) from error


def end_offset(admin: Any, one: TopicPartition, isolation: Any) -> int:
    """Return the offset after the last message of a partition; wait up to `KAFKA_S` for the partition's leader.

    With isolation READ_COMMITTED, return the offset of the first message of an open transaction, if the partition has one.

    Raises:
        KafkaException: Kafka does not answer, or the partition has no leader for `KAFKA_S`.
    """
    deadline = time.monotonic() + limits.KAFKA_S
    while True:
        try:
            results = admin.list_offsets({one: LATEST}, isolation_level=isolation, request_timeout=limits.KAFKA_S)
            return int(results[one].result().offset)
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER or time.monotonic() > deadline:
                raise
        time.sleep(limits.LEADER_POLL_S)


def ignore_error(_error: KafkaError) -> None:
    """Ignore an error that Kafka's client passes to `error_cb`, because the client also logs it and each call reports its
    failure.
    """


class ConnectionFailureFilter(logging.Filter):
    """Log filter that passes all lines of Kafka's client, and keeps the last connection failure, in plain words."""

    #: Parts of the client's lines, and their plain words. A line begins with the address and the number of a broker.
    _PLAIN = (
        (re.compile(r"^(\S+)/(?:bootstrap|\d+): "), r"\1: "),
        (re.compile(r" \(after \d+ms in state .*\)$"), ""),
        (re.compile(r"Connect to ipv[46]#\S+ failed: "), ""),
        (re.compile(r"Failed to resolve '\S*': "), "cannot resolve the host name: "),
        (re.compile(r"Receive failed: Invalid response size .*"), "the port does not speak Kafka's protocol, or needs TLS"),
    )
    _FAILED = re.compile(r"FAIL \[.*?\] (?:\[thrd:.*?\]: )?(.*)", re.DOTALL)

    def __init__(self) -> None:
        """Start without a failure."""
        super().__init__()
        self._last = -1.0, ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Store the line's text if it reports a connection failure; always return True, which passes the line."""
        if found := self._FAILED.match(record.getMessage()):
            text = found[1]
            for part, plain in self._PLAIN:
                text = part.sub(plain, text)
            self._last = time.monotonic(), text
        return True

    def failure_since(self, since: float) -> str:
        """Return the last connection failure after `since` (monotonic), or "" if no connection has failed since then."""
        at, text = self._last
        return text if at >= since else ""


CONNECTION_FAILURES = ConnectionFailureFilter()
CLIENT_LOG = logging.getLogger("tutti.kafka.client")
CLIENT_LOG.addFilter(CONNECTION_FAILURES)
CLIENT_LOG.addFilter(RepeatFilter())
