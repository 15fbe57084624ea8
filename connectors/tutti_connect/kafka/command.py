"""`tutti connect kafka-in` and `kafka-out`: one instance of a connector, until it is told to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from tutti.errors import ConfigError


@click.command("kafka-in")
@click.option("--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/kafka-in.toml is an example.")
def kafka_in(path: str) -> int:
    """Bring topics of Kafka into the log, each record once, in the order of each partition.

    Several of them with one configuration share the partitions. One line of JSON on standard output says that it is there; logs go
    to standard error. SIGTERM or Ctrl-C: what was taken is delivered, and it ends. Exit codes as of all commands: 2 for what has to
    be changed, 3 where Kafka or the gateways do not answer at the start.
    """
    from tutti.runtime.worker import run
    from tutti_connect.kafka.config import load_inflow

    config = load_inflow(path)
    with _client():
        from tutti_connect.kafka.source.consumer import KafkaSource
    from tutti_connect.kafka.gateway_clients import gateway_asker, producer_opener, progress_committer
    from tutti_connect.kafka.metrics import InflowMetrics
    from tutti_connect.kafka.source.connector import Connector

    url = config.gateways
    connector = Connector(config, KafkaSource(config), producer_opener(url), gateway_asker(url), progress_committer(url))
    told = {"name": config.name, "topics": config.kafka.topics}
    return run(connector, told, config.metrics, InflowMetrics(connector), insecure=config.insecure, file=path)


@click.command("kafka-out")
@click.option(
    "--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/kafka-out.toml is an example."
)
def kafka_out(path: str) -> int:
    """Bring the log, or topics of it, to Kafka, each record once, in the log's order.

    It writes in transactions that hold its position, too. One instance of a name runs: a second one takes over, and the first ends
    with exit code 1. One line of JSON on standard output says that it is there; logs go to standard error. SIGTERM or Ctrl-C: what
    was taken is committed, and it ends. Exit codes as of all commands: 2 for what has to be changed, 3 where Kafka or the gateways
    do not answer at the start.
    """
    from tutti.runtime.worker import run
    from tutti_connect.kafka.config import load_outflow

    config = load_outflow(path)
    with _client():
        from tutti_connect.kafka.sink.producer import Sink
    from tutti_connect.kafka.gateway_clients import CommittedLog
    from tutti_connect.kafka.metrics import OutflowMetrics
    from tutti_connect.kafka.sink.connector import Outflow

    connector = Outflow(config, CommittedLog(config.gateways, config.topics), Sink(config))
    told = {"name": config.name, "topics": config.topics, "position_topic": config.position_topic}
    return run(connector, told, config.metrics, OutflowMetrics(connector), insecure=config.insecure, file=path)


@contextmanager
def _client() -> Iterator[None]:
    """Say what to install where Kafka's client is not there."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error}: install Kafka's client, pip install 'tutti-ingest[kafka]'") from error
