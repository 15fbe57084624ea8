"""What both directions ask of Kafka's client: settings, its words in the project's terms, its troubles told once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as kafka_admin

from connectors.kafka.once import Once
from gateway.errors import ConfigError, TuttiError, Unavailable

LOG = logging.getLogger("tutti.kafka")

_OffsetSpec: Any = vars(kafka_admin)["OffsetSpec"]  # its types are not told
EARLIEST, LATEST = _OffsetSpec.earliest(), _OffsetSpec.latest()

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


def explained(error: KafkaException, where: str) -> TuttiError:
    """What Kafka's client raised, in the project's terms."""
    told: KafkaError = error.args[0]
    if told.code() in NEVER:
        return ConfigError(f"{where}: {told.str()}: name a topic that is there, and that this client may use")
    return Unavailable(f"{where}: {told.str()}")


CLIENT_LOG = logging.getLogger("tutti.kafka.client")
CLIENT_LOG.addFilter(Once())
