"""`tutti connect kafka-in` and `kafka-out`: run one instance of a connector until SIGTERM or Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from tutti.errors import ConfigError, install_remedy


@click.command("kafka-in")
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The connector's TOML file; `tutti config init --kind kafka-in` writes one.",
)
def kafka_in(path: str) -> int:
    """Copy topics of Kafka to the log, each record once.

    The records of a partition keep their order. Several instances with one configuration share the partitions. One line of JSON on
    standard output reports the connector as ready; logs go to standard error. After SIGTERM or Ctrl-C, the connector delivers the
    messages that it has received, and ends. Exit codes: 2 for a wrong configuration, 3 if Kafka or the gateways do not answer at
    the start.
    """
    from tutti.runtime.worker_command import run
    from tutti_connect.kafka.config import load_source_config

    config = load_source_config(path)
    with _client():
        from tutti_connect.kafka.source.consumer import KafkaSource
    from tutti_connect.kafka.gateway_clients import gateway_check, producer_opener, progress_committer
    from tutti_connect.kafka.metrics import SourceMetrics
    from tutti_connect.kafka.source.connector import SourceConnector

    url = config.gateways
    connector = SourceConnector(config, KafkaSource(config), producer_opener(url), gateway_check(url), progress_committer(url))
    ready_fields = {"name": config.name, "topics": config.kafka.topics}
    return run(connector, ready_fields, config.metrics, SourceMetrics(connector), insecure=config.insecure, file=path)


@click.command("kafka-out")
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The connector's TOML file; `tutti config init --kind kafka-out` writes one.",
)
def kafka_out(path: str) -> int:
    """Copy the log, or some topics, to Kafka, each record once.

    The records keep the log's order. The connector writes transactions that also contain its position. Only one instance of a name
    runs: a second instance takes over, and the first ends with exit code 1. One line of JSON on standard output reports the
    connector as ready; logs go to standard error. After SIGTERM or Ctrl-C, the connector commits the records that it has read, and
    ends. Exit codes: 2 for a wrong configuration, 3 if Kafka or the gateways do not answer at the start.
    """
    from tutti.runtime.worker_command import run
    from tutti_connect.kafka.config import load_sink_config

    config = load_sink_config(path)
    with _client():
        from tutti_connect.kafka.sink.producer import KafkaWriter
    from tutti_connect.kafka.gateway_clients import CommittedLog
    from tutti_connect.kafka.metrics import SinkMetrics
    from tutti_connect.kafka.sink.connector import SinkConnector

    connector = SinkConnector(config, CommittedLog(config.gateways, config.topics), KafkaWriter(config))
    ready_fields = {"name": config.name, "topics": config.topics, "position_topic": config.position_topic}
    return run(connector, ready_fields, config.metrics, SinkMetrics(connector), insecure=config.insecure, file=path)


@contextmanager
def _client() -> Iterator[None]:
    """Within this context, convert a failed import of Kafka's client to an error with the package to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error}: to install Kafka's client, {install_remedy('kafka')}") from error
