"""Configuration of the Kafka connectors: one TOML file for each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tutti.data.names import is_name
from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti.toml.units import Milliseconds, Size
from tutti_connect.config import check_connector_name, check_gateways, check_topic, example
from tutti_connect.kafka import limits

#: Internal topics of Kafka. Clients must not write to these topics, and a client that creates one breaks the broker.
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
)


class Source(Struct, frozen=True):
    """Table [kafka] of kafka-in.

    Attributes:
        servers: bootstrap servers, as `HOST:PORT[,HOST:PORT...]`.
        topics: names of the topics to copy.
        start: position at which a topic's first copy begins; a partition added later begins at its first message.
        lost: reaction if Kafka's retention has deleted messages before they were copied.
        settings: settings of Kafka's client (librdkafka), as `"security.protocol" = "SSL"`.
    """

    servers: Annotated[str, example("127.0.0.1:9092")]
    topics: Annotated[list[str], Meta(min_length=1, extra_json_schema={"examples": [["orders"]]})]
    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["fail", "skip"] = "fail"
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)


class SourceConfig(Struct, frozen=True):
    """Configuration of kafka-in, from Kafka to the log.

    Attributes:
        name: name of the connector, shared by its instances, and prefix of its producers' names in the log.
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        kafka: table [kafka], the source.
        topic: topic of all records in the log; by default, a record keeps the name of its topic in Kafka.
        quarantine: directory for records that the log rejects.
        metrics: address of the endpoint for Prometheus, as HOST:PORT; without it, the connector serves no metrics.
        insecure: allow other hosts to reach the metrics endpoint, which has neither TLS nor a token.
    """

    name: Annotated[str, example("orders")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    kafka: Source
    quarantine: Annotated[str, example("quarantine/orders")]
    topic: str = ""
    metrics: str = ""
    insecure: bool = False


def load_source_config(path: str) -> SourceConfig:
    """Load the configuration of kafka-in.

    Raises:
        ConfigError: the file is unreadable or wrong; the message has the key, the problem and the remedy.
    """
    config = load_struct(path, SourceConfig)
    check_connector_name(path, config.name)
    for topic in config.kafka.topics:
        if not is_name(topic):
            raise ConfigError(f"{path}: kafka.topics has {topic!r}: list the topic names one by one (patterns are not supported)")
        if config.kafka.topics.count(topic) > 1:
            raise ConfigError(f"{path}: kafka.topics has {topic!r} twice: keep one")
    if config.topic:
        check_topic(path, "topic", config.topic)
    check_gateways(path, config.gateways)
    return config


class Transaction(Struct, frozen=True):
    """Table [transaction]: size of a transaction. Larger transactions give more throughput, smaller transactions less latency.

    Attributes:
        records, bytes: size at which the connector commits a transaction.
        wait_ms: longest time from the first record of a transaction to its commit.
    """

    records: Annotated[int, Meta(ge=1, le=limits.TRANSACTION_RECORDS_MAX)] = limits.TRANSACTION_RECORDS
    bytes: Annotated[Size, Meta(ge=1, le=limits.TRANSACTION_BYTES_MAX)] = limits.TRANSACTION_BYTES
    wait_ms: Annotated[Milliseconds, Meta(ge=0, le=limits.TRANSACTION_MS_MAX)] = limits.TRANSACTION_MS


class Target(Struct, frozen=True):
    """Table [kafka] of kafka-out.

    Attributes:
        servers: bootstrap servers, as `HOST:PORT[,HOST:PORT...]`.
        topic: topic of all records in Kafka; by default, a record keeps the name of its topic in the log.
        names: name in the log -> name in Kafka, for topics whose names differ.
        order: "key" keeps the order of records with equal keys and of records without a key; "total" keeps the order of all records
            of a topic, in one partition.
        partitions: number of partitions of topics that the connector creates; 0 if it must not create topics.
        offset_header: name of a header with the record's offset in the log; without a name, records get no such header.
        position_topic: topic in Kafka for the connector's position; by default `tutti.NAME.position`.
        settings: settings of Kafka's client (librdkafka), as `"security.protocol" = "SSL"`.
    """

    servers: Annotated[str, example("127.0.0.1:9092")]
    topic: str = ""
    names: dict[str, str] = field(default_factory=dict)
    order: Literal["key", "total"] = "key"
    partitions: Annotated[int, Meta(ge=0, le=10_000)] = 0
    offset_header: str = ""
    position_topic: str = ""
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)


class SinkConfig(Struct, frozen=True):
    """Configuration of kafka-out, from the log to Kafka.

    Attributes:
        name: name of the connector, used in its transactional id and position.
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        kafka: table [kafka], the target.
        quarantine: directory for records that Kafka rejects.
        topics: topics of the log to copy; by default all.
        start: position in the log at which the copy begins if Kafka has no position of the connector.
        lost: reaction if the log's retention has deleted records before they were copied.
        metrics: address of the endpoint for Prometheus, as HOST:PORT; without it, the connector serves no metrics.
        insecure: allow other hosts to reach the metrics endpoint, which has neither TLS nor a token.
        transaction: table [transaction], the size of a transaction.
    """

    name: Annotated[str, example("orders-out")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    kafka: Target
    quarantine: Annotated[str, example("quarantine/orders-out")]
    topics: list[str] = field(default_factory=list)
    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["fail", "skip"] = "fail"
    metrics: str = ""
    insecure: bool = False
    transaction: Transaction = field(default_factory=Transaction)

    @property
    def position_topic(self) -> str:
        """Return the topic in Kafka that contains the connector's position."""
        return self.kafka.position_topic or f"tutti.{self.name}.position"


def load_sink_config(path: str) -> SinkConfig:
    """Load the configuration of kafka-out.

    Raises:
        ConfigError: the file is unreadable or wrong; the message has the key, the problem and the remedy.
    """
    config = load_struct(path, SinkConfig)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    kafka = config.kafka
    for topic in config.topics:
        check_topic(path, "topics has", topic)
    for key, name in (("kafka.topic", kafka.topic), ("kafka.position_topic", kafka.position_topic)):
        if name:
            _check_target(path, key, name)
    for topic, name in kafka.names.items():
        _check_target(path, f"kafka.names.{topic}", name)
    if kafka.topic and kafka.names:
        raise ConfigError(f"{path}: kafka.topic and kafka.names exclude each other: remove one of them")
    if config.position_topic in {kafka.topic, *kafka.names.values()}:
        raise ConfigError(
            f"{path}: kafka.position_topic is {config.position_topic!r}, but records go to this topic: choose a separate topic"
        )
    for topic in config.topics:
        target = kafka.topic or kafka.names.get(topic, topic)
        if target in INTERNAL_TOPICS or target == config.position_topic:
            raise ConfigError(
                f"{path}: records of topic {topic!r} (topics) would go to Kafka's topic {target!r}, which accepts no records: "
                f"remove {topic!r}, or map it to another topic (kafka.names)"
            )
    return config


def _check_target(path: str, key: str, name: str) -> None:
    """Reject a topic of Kafka that the connector cannot write to.

    Raises:
        ConfigError: the name is invalid or reserved for Kafka; the message has `path` and the remedy.
    """
    check_topic(path, key, name)
    if name in INTERNAL_TOPICS:
        raise ConfigError(f"{path}: {key} is {name!r}, a topic reserved for Kafka: choose another topic")
