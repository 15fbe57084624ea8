"""`tutti connect`: the connectors, each a command."""

from __future__ import annotations

import click

from connectors.files.command import files
from connectors.http.command import http
from connectors.kafka.command import kafka_in


@click.group()
def connect() -> None:
    """Bring records into the log from elsewhere."""


connect.add_command(files)
connect.add_command(kafka_in)
connect.add_command(http)
