"""`tutti connect zeromq-in` and `zeromq-out`: one instance of each, until it is told to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from tutti.errors import ConfigError


@click.command("zeromq-in")
@click.option(
    "--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/zeromq-in.toml is an example."
)
def zeromq_in(path: str) -> int:
    """Bring ZeroMQ's messages into the log, from PUSH or PUB sockets.

    One line of JSON on standard output says that it is there, and what it is bound to; logs go to standard error. SIGTERM or
    Ctrl-C: what was taken is delivered, and it ends. Exit codes as of all commands: 2 for what has to be changed, 3 where no
    gateway answers.
    """
    from tutti_connect.zeromq.config import load_inflow

    with _library():
        from tutti_connect.zeromq.source import Connector
    from tutti.runtime.worker import run
    from tutti_connect.zeromq.metrics import InMetrics

    config = load_inflow(path)
    connector = Connector(config)
    connector.told["name"] = config.name
    return run(connector, connector.told, config.metrics, InMetrics(connector), insecure=config.insecure, file=path)


@click.command("zeromq-out")
@click.option(
    "--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/zeromq-out.toml is an example."
)
def zeromq_out(path: str) -> int:
    """Publish the log's records to ZeroMQ's subscribers, in their one order.

    One line of JSON on standard output says that it is there, and what it is bound to; logs go to standard error. SIGTERM or
    Ctrl-C: it notes in the log how far it is, and ends. Exit codes as of all commands: 2 for what has to be changed, 3 where no
    gateway answers.
    """
    from tutti_connect.zeromq.config import load_outflow
    from tutti_connect.zeromq.metrics import OutMetrics

    with _library():
        from tutti_connect.zeromq.sink import Publisher
    from tutti.runtime.worker import run

    config = load_outflow(path)
    publisher = Publisher(config)
    publisher.told["name"] = config.name
    return run(publisher, publisher.told, config.metrics, OutMetrics(publisher), insecure=config.insecure, file=path)


@contextmanager
def _library() -> Iterator[None]:
    """Name the command that installs ZeroMQ's library where it is missing."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error}: install ZeroMQ's library, pip install 'tutti-ingest[zeromq]'") from error
