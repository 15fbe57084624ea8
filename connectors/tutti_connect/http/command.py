"""`tutti connect http`: runs one process of the connector until SIGTERM or Ctrl-C."""

from __future__ import annotations

import click


@click.command("http")
@click.option(
    "--config", "path", required=True, metavar="FILE", help="The connector's TOML file; `tutti config init --kind http` writes one."
)
def http(path: str) -> int:
    """Accept records over HTTP, and serve reads of the log.

    Several processes with one configuration serve the same producers. One line of JSON on standard output reports the connector as
    ready, with its address; logs go to standard error. After SIGTERM or Ctrl-C, the connector delivers the records that it has
    accepted, and ends. Exit codes: 2 for a wrong configuration, 3 if no gateway answers at the start.
    """
    from tutti.runtime.worker_command import run
    from tutti_connect.http.config import load_http
    from tutti_connect.http.server import Connector

    config = load_http(path)
    connector = Connector(config)
    return run(connector, {"name": config.name, "url": connector.address})
