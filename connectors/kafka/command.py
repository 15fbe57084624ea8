"""`tutti connect kafka-in`: one instance of the connector, until it is told to end."""

from __future__ import annotations

import click

from gateway.errors import ConfigError


@click.command("kafka-in")
@click.option("--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/kafka-in.toml is an example.")
def kafka_in(path: str) -> int:
    """Bring topics of Kafka into the log, each record once, in the order of each partition.

    Several of them with one configuration share the partitions. One line of JSON on standard output says that it is there; logs go
    to standard error. SIGTERM or Ctrl-C: what was taken is delivered, and it ends. Exit codes as of all commands: 2 for what has to
    be changed, 3 where Kafka does not answer.
    """
    from connectors.kafka.config import load_inflow
    from connectors.running import run

    config = load_inflow(path)
    try:
        from connectors.kafka.inflow import Connector
    except ImportError as error:
        raise ConfigError(f"{error}: install Kafka's client, pip install 'tutti-ingest[kafka]'") from error
    from connectors.kafka.metrics import Metrics

    connector = Connector(config)
    return run(connector, {"name": config.name, "topics": config.kafka.topics}, config.metrics, Metrics(connector))
