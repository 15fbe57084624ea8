"""`tutti connect zeromq-in` and `zeromq-out`: run one instance of a connector until SIGTERM or Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from tutti.errors import ConfigError, install_remedy


@click.command("zeromq-in")
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The connector's TOML file; `tutti config init --kind zeromq-in` writes one.",
)
def zeromq_in(path: str) -> int:
    """Copy messages from ZeroMQ PUSH or PUB sockets to the log.

    One line of JSON on standard output reports the connector as ready, with its bound addresses; logs go to standard error. After
    SIGTERM or Ctrl-C, the connector delivers the messages that it has received, and ends. Exit codes: 2 for a wrong configuration,
    3 if no gateway answers.
    """
    from tutti_connect.zeromq.config import load_source_config

    with _library():
        from tutti_connect.zeromq.source import SourceConnector
    from tutti.runtime.worker_command import run
    from tutti_connect.zeromq.metrics import InMetrics

    config = load_source_config(path)
    connector = SourceConnector(config)
    connector.ready_fields["name"] = config.name
    return run(connector, connector.ready_fields, config.metrics, InMetrics(connector), insecure=config.insecure, file=path)


@click.command("zeromq-out")
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The connector's TOML file; `tutti config init --kind zeromq-out` writes one.",
)
def zeromq_out(path: str) -> int:
    """Publish records to ZeroMQ subscribers, in total order.

    One line of JSON on standard output reports the connector as ready, with its bound addresses; logs go to standard error. After
    SIGTERM or Ctrl-C, the connector commits its offset to the log, and ends. Exit codes: 2 for a wrong configuration, 3 if no
    gateway answers.
    """
    from tutti_connect.zeromq.config import load_sink_config
    from tutti_connect.zeromq.metrics import OutMetrics

    with _library():
        from tutti_connect.zeromq.sink import Publisher
    from tutti.runtime.worker_command import run

    config = load_sink_config(path)
    publisher = Publisher(config)
    publisher.ready_fields["name"] = config.name
    return run(publisher, publisher.ready_fields, config.metrics, OutMetrics(publisher), insecure=config.insecure, file=path)


@contextmanager
def _library() -> Iterator[None]:
    """Within this context, convert a failed import of ZeroMQ's library to an error with the package to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error}: to install ZeroMQ's library, {install_remedy('zeromq')}") from error
