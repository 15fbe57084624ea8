"""`tutti connect files`: runs one instance of the connector until SIGTERM or Ctrl-C."""

from __future__ import annotations

import click


@click.command("files")
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The connector's TOML file; `tutti config init --kind files` writes one.",
)
def files(path: str) -> int:
    """Copy the files of a directory to the log, each row once.

    The files are CSV, JSON lines, text or Parquet, and their rows keep their order. One line of JSON on standard output reports the
    connector as ready; logs go to standard error. After SIGTERM or Ctrl-C, the connector delivers the records that it has sent, and
    ends. A second instance of the same name takes over from the first. Exit codes: 2 for a wrong configuration, 3 if no gateway
    answers.
    """
    from tutti.runtime.worker_command import run
    from tutti_connect.files.config import load_source_config
    from tutti_connect.files.connector import Connector
    from tutti_connect.files.metrics import Metrics

    config = load_source_config(path)
    connector = Connector(config)
    ready_fields = {"name": config.name, "directory": config.files.directory}
    return run(connector, ready_fields, config.metrics, Metrics(connector), insecure=config.insecure, file=path)
