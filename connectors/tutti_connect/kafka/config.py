"""What the connectors from and to Kafka are told: a TOML file each, checked as a gateway's is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tutti.data.names import is_name
from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti_connect.config import check_connector_name, check_gateways, check_topic, example
from tutti_connect.kafka import limits

#: Topics that Kafka keeps for itself: a connector that creates one breaks the broker, and no client may write to them.
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
)


class Source(Struct, frozen=True):
    """Table [kafka].

    Attributes:
        servers: `HOST:PORT[,HOST:PORT...]` to find Kafka by.
        topics: their names.
        start: where partitions start at the first start of a topic; one that is added later starts at its beginning.
        lost: what to do where Kafka's retention has removed messages that the log has not.
        settings: for Kafka's client (librdkafka), as `"security.protocol" = "SSL"`.
    """

    servers: Annotated[str, example("127.0.0.1:9092")]
    topics: Annotated[list[str], Meta(min_length=1, extra_json_schema={"examples": [["orders"]]})]
    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["fail", "skip"] = "fail"
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)


class Inflow(Struct, frozen=True):
    """From Kafka into the log.

    Attributes:
        name: the connector's: its instances share the partitions under it, and producers in the log begin with it.
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        kafka: the source.
        topic: the topic of all records; each in the topic of its own name without it.
        quarantine: directory for records that no log takes.
        metrics: HOST:PORT of a page for Prometheus; none without it.
        insecure: whether that page may be seen from beyond this host: there is no TLS, nor a token.
    """

    name: Annotated[str, example("orders")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    kafka: Source
    quarantine: Annotated[str, example("quarantine/orders")]
    topic: str = ""
    metrics: str = ""
    insecure: bool = False


def load_inflow(path: str) -> Inflow:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Inflow)
    check_connector_name(path, config.name)
    for topic in config.kafka.topics:
        if not is_name(topic):
            raise ConfigError(f"{path}: kafka.topics has {topic!r}: name topics one by one, as Kafka does (patterns are not taken)")
        if config.kafka.topics.count(topic) > 1:
            raise ConfigError(f"{path}: kafka.topics has {topic!r} twice: name it once")
    if config.topic:
        check_topic(path, "topic", config.topic)
    check_gateways(path, config.gateways)
    return config


class Transaction(Struct, frozen=True):
    """Table [transaction]: how much goes into one. More is more a second, less is sooner.

    Attributes:
        records, bytes: it is committed when it has so many.
        wait_ms: and so long after its first record was there.
    """

    records: Annotated[int, Meta(ge=1, le=limits.TRANSACTION_RECORDS_MAX)] = limits.TRANSACTION_RECORDS
    bytes: Annotated[int, Meta(ge=1, le=limits.TRANSACTION_BYTES_MAX)] = limits.TRANSACTION_BYTES
    wait_ms: Annotated[int, Meta(ge=0, le=limits.TRANSACTION_MS_MAX)] = limits.TRANSACTION_MS


class Target(Struct, frozen=True):
    """Table [kafka] of the way out.

    Attributes:
        servers: `HOST:PORT[,HOST:PORT...]` to find Kafka by.
        topic: the topic of all records; each goes to the topic of its own name without it.
        names: of topics that are called something else in Kafka: name in the log -> name there.
        order: "key": records of one key stay in order, those without one likewise; "total": all of a topic, in one partition.
        partitions: of topics that are not there and are made; 0 makes none.
        offset_header: of the header that says each record's offset in the log; none without it.
        position_topic: where its position stands; `tutti.NAME.position` without it.
        settings: for Kafka's client (librdkafka), as `"security.protocol" = "SSL"`.
    """

    servers: Annotated[str, example("127.0.0.1:9092")]
    topic: str = ""
    names: dict[str, str] = field(default_factory=dict)
    order: Literal["key", "total"] = "key"
    partitions: Annotated[int, Meta(ge=0, le=10_000)] = 0
    offset_header: str = ""
    position_topic: str = ""
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)


class Outflow(Struct, frozen=True):
    """From the log to Kafka.

    Attributes:
        name: the connector's: its transactional id in Kafka and its position go by it.
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        kafka: the target.
        quarantine: directory for records that Kafka does not take.
        topics: of the log; all without it.
        start: where to begin when Kafka has no position.
        lost: what to do where the log's retention has removed records that are not in Kafka.
        metrics: HOST:PORT of a page for Prometheus; none without it.
        insecure: whether that page may be seen from beyond this host: there is no TLS, nor a token.
        transaction: how much goes into one.
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
        """Where its position stands in Kafka."""
        return self.kafka.position_topic or f"tutti.{self.name}.position"


def load_outflow(path: str) -> Outflow:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Outflow)
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
        raise ConfigError(
            f"{path}: kafka.topic and kafka.names: all records go to one topic, or some by names; leave one of them out"
        )
    if config.position_topic in {kafka.topic, *kafka.names.values()}:
        raise ConfigError(f"{path}: kafka.position_topic is {config.position_topic!r}, which records go to: name one of its own")
    for topic in config.topics:
        target = kafka.topic or kafka.names.get(topic, topic)
        if target in INTERNAL_TOPICS or target == config.position_topic:
            raise ConfigError(
                f"{path}: topics has {topic!r}, whose records would go to Kafka's topic {target!r}, which takes no records: leave "
                f"it out, or map it to another topic (kafka.names)"
            )
    return config


def _check_target(path: str, key: str, name: str) -> None:
    """Refuse a topic of Kafka that the connector cannot write to.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    check_topic(path, key, name)
    if name in INTERNAL_TOPICS:
        raise ConfigError(f"{path}: {key} is {name!r}, a topic that Kafka keeps for itself: name another one")
