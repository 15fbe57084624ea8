"""What a connector from Kafka is told: a TOML file, checked as a gateway's is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from connectors.config import TOPIC_BYTES_MAX, check_connector_name, check_gateways, check_topic, example, is_name
from gateway.config.reading import load_struct
from gateway.errors import ConfigError


class Source(Struct, frozen=True):
    """Table [kafka].

    Attributes:
        servers: `HOST:PORT[,HOST:PORT...]` to find Kafka by.
        topics: their names.
        start: where a partition begins that the log has nothing of.
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
    """

    name: Annotated[str, example("orders")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    kafka: Source
    quarantine: Annotated[str, example("quarantine/orders")]
    topic: str = ""
    metrics: str = ""


def load_inflow(path: str) -> Inflow:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Inflow)
    check_connector_name(path, config.name)
    for topic in config.kafka.topics:
        if not is_name(topic, TOPIC_BYTES_MAX):
            raise ConfigError(f"{path}: kafka.topics has {topic!r}: name topics one by one, as Kafka does (patterns are not taken)")
        if config.kafka.topics.count(topic) > 1:
            raise ConfigError(f"{path}: kafka.topics has {topic!r} twice: name it once")
    if config.topic:
        check_topic(path, "topic", config.topic)
    check_gateways(path, config.gateways)
    return config
