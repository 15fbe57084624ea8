"""What a connector from Kafka is told: a TOML file, checked as a gateway's is."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gateway.client.url import parse_url
from gateway.config.reading import load_struct
from gateway.errors import ConfigError

NAME_BYTES_MAX = 100  # producers are named by it, a topic and a partition
TOPIC_BYTES_MAX = 249
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_BYTES_MAX}}}")
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_BYTES_MAX}}}")


def _text(*examples: str) -> Meta:
    return Meta(min_length=1, extra_json_schema={"examples": list(examples)})


class Source(Struct, frozen=True):
    """Table [kafka].

    Attributes:
        servers: `HOST:PORT[,HOST:PORT...]` to find Kafka by.
        topics: their names.
        start: where a partition begins that the log has nothing of.
        lost: what to do where Kafka's retention has removed messages that the log has not.
        settings: for Kafka's client (librdkafka), as `"security.protocol" = "SSL"`.
    """

    servers: Annotated[str, _text("127.0.0.1:9092")]
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

    name: Annotated[str, _text("orders")]
    gateways: Annotated[str, _text("tutti://127.0.0.1:7400")]
    kafka: Source
    quarantine: Annotated[str, _text("quarantine/orders")]
    topic: str = ""
    metrics: str = ""


def load_inflow(path: str) -> Inflow:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Inflow)
    if not _NAME.fullmatch(config.name):
        raise ConfigError(f"{path}: name is {config.name!r}: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")
    for topic in config.kafka.topics:
        if not _TOPIC.fullmatch(topic):
            raise ConfigError(f"{path}: kafka.topics has {topic!r}: name topics one by one, as Kafka does (patterns are not taken)")
        if config.kafka.topics.count(topic) > 1:
            raise ConfigError(f"{path}: kafka.topics has {topic!r} twice: name it once")
    if config.topic and not _TOPIC.fullmatch(config.topic):
        raise ConfigError(f"{path}: topic is {config.topic!r}: use 1 to {TOPIC_BYTES_MAX} letters, digits, '.', '_' and '-'")
    try:
        parse_url(config.gateways)
    except ConfigError as error:
        raise ConfigError(f"{path}: gateways: {error}") from error
    return config
