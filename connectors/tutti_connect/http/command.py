"""`tutti connect http`: one process of the connector, until it is told to end."""

from __future__ import annotations

import click


@click.command("http")
@click.option("--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/http.toml is an example.")
def http(path: str) -> int:
    """Take records over HTTP into the log, and give them out.

    Several of them with one configuration serve the same producers. One line of JSON on standard output says that it is there, and
    its address; logs go to standard error. SIGTERM or Ctrl-C: what was taken is delivered, and it ends. Exit codes as of all
    commands: 2 for what has to be changed, 3 where no gateway answers at the start.
    """
    from tutti.runtime.worker import run
    from tutti_connect.http.config import load_http
    from tutti_connect.http.server import Connector

    config = load_http(path)
    connector = Connector(config)
    return run(connector, {"name": config.name, "url": connector.address})
