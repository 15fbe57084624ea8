"""What both directions ask of Kafka's client: settings, its words in the project's terms, its troubles told once."""

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
from tutti_connect.kafka.repeated_warnings import Once

LOG = logging.getLogger("tutti.kafka")

_OffsetSpec: Any = vars(kafka_admin)["OffsetSpec"]  # its types are not told
EARLIEST, LATEST = _OffsetSpec.earliest(), _OffsetSpec.latest()

NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
#: A topic that was just created has none for a moment.
NO_LEADER = {*NO_TOPIC, KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
#: What trying again does not mend.
NEVER = {
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


def settings_of(servers: str, given: Mapping[str, Any], fixed: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """For Kafka's client, checked.

    Raises:
        ConfigError: one is the connector's own.
    """
    own = {**fixed, "bootstrap.servers": servers}
    for name in given.keys() & own.keys():
        raise ConfigError(f'kafka.settings: "{name}" is the connector\'s own ({own[name]!r}): leave it out')
    return {**defaults, **given, **own, "logger": CLIENT_LOG}


def made(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """A client of Kafka.

    Raises:
        ConfigError: a setting is wrong.
    """
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"kafka.settings: {reason}: see librdkafka's list of settings") from error


def explained(error: KafkaException, where: str, since: float | None = None) -> TuttiError:
    """What Kafka's client raised, in the project's terms; with what it logged of its connections `since` then (monotonic)."""
    told: KafkaError = error.args[0]
    if told.code() in NEVER:
        return ConfigError(f"{where}: {told.str()}: name a topic that is there, and that this client may use")
    return Unavailable(f"{where}: {told.str() if since is None else with_cause(told, since)}")


def with_cause(told: KafkaError, since: float) -> str:
    """An error in words; where it is the client's own (as that it timed out), with why no connection was there, if it was heard."""
    cause = CAUSE.heard(since) if told.code() < 0 else ""
    return f"{told.str()}: {cause}" if cause else told.str()


@contextmanager
def asking(admin: Any, where: str) -> Iterator[None]:
    """A block that asks Kafka.

    Raises:
        Unavailable: it does not answer, and why.
        ConfigError: trying again does not mend it.
    """
    admin.poll(0)  # what it says of its connections is heard when it is polled
    began = time.monotonic()
    try:
        yield
    except KafkaException as error:
        admin.poll(0)
        raise explained(error, where, began) from error


def end_of(admin: Any, one: TopicPartition, isolation: Any) -> int:
    """The offset after the last message of a partition (READ_COMMITTED: before the first undecided one). Waits for its leader.

    Raises:
        KafkaException: Kafka does not answer, or the partition has no leader for `KAFKA_S`.
    """
    deadline = time.monotonic() + limits.KAFKA_S
    while True:
        try:
            asked = admin.list_offsets({one: LATEST}, isolation_level=isolation, request_timeout=limits.KAFKA_S)
            return int(asked[one].result().offset)
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER or time.monotonic() > deadline:
                raise
        time.sleep(limits.LEADER_LOOK_S)


def passed_by(_error: KafkaError) -> None:
    """For `error_cb`: Kafka's client logs its troubles itself, and each call says what has become of it."""


class Cause(logging.Filter):
    """Lets all lines of Kafka's client pass, and keeps the last one that says why a connection failed."""

    _FAILED = re.compile(r"FAIL \[.*?\] (?:\[thrd:.*?\]: )?(.*)", re.DOTALL)

    def __init__(self) -> None:
        """Nothing was heard yet."""
        super().__init__()
        self._last = -1.0, ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hear a line."""
        if found := self._FAILED.match(record.getMessage()):
            self._last = time.monotonic(), found[1]
        return True

    def heard(self, since: float) -> str:
        """Why a connection failed `since` then (monotonic); empty where none did."""
        at, text = self._last
        return text if at >= since else ""


CAUSE = Cause()
CLIENT_LOG = logging.getLogger("tutti.kafka.client")
CLIENT_LOG.addFilter(CAUSE)
CLIENT_LOG.addFilter(Once())
