"""`tutti connect kafka-in`: one instance of the connector, until it is told to end."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from typing import Any

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

    config = load_inflow(path)
    try:
        from connectors.kafka.inflow import Connector
    except ImportError as error:
        raise ConfigError(f"{error}: install Kafka's client, pip install 'tutti-ingest[kafka]'") from error

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    connector = Connector(config)
    told: dict[str, Any] = {"ready": True, "name": config.name, "topics": config.kafka.topics}
    if config.metrics:
        told["metrics"] = _serve(config.metrics, connector)
    print(json.dumps(told), flush=True)
    connector.run(stop)
    return 0


def _serve(listen: str, connector: Any) -> str:
    from prometheus_client import start_http_server

    from connectors.kafka.metrics import Metrics

    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"metrics is {listen!r}: write HOST:PORT, as 127.0.0.1:9464")
    try:
        server, _ = start_http_server(int(port), host.strip("[]"), Metrics(connector).registry())
    except OSError as error:
        raise ConfigError(f"metrics: {listen} cannot be listened on ({error.strerror}): name another port") from error
    return f"http://{host}:{server.server_port}/metrics"
