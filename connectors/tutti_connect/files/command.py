"""`tutti connect files`: one instance of the connector, until it is told to end."""

from __future__ import annotations

import click


@click.command("files")
@click.option("--config", "path", required=True, metavar="FILE", help="Its TOML file; conf/connectors/files.toml is an example.")
def files(path: str) -> int:
    """Bring the files of a directory into the log: CSV, JSON lines, lines or Parquet, each row once, in order.

    One line of JSON on standard output says that it is there; logs go to standard error. SIGTERM or Ctrl-C: what was sent is
    delivered, and it ends. A second one of the same name takes over from the first. Exit codes as of all commands: 2 for what has
    to be changed, 3 where no gateway answers.
    """
    from tutti.runtime.worker import run
    from tutti_connect.files.config import load_inflow
    from tutti_connect.files.connector import Connector
    from tutti_connect.files.metrics import Metrics

    config = load_inflow(path)
    connector = Connector(config)
    told = {"name": config.name, "directory": config.files.directory}
    return run(connector, told, config.metrics, Metrics(connector), insecure=config.insecure, file=path)
