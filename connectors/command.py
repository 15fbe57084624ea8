"""`tutti connect`: the connectors, each a command."""

from __future__ import annotations

import click

from connectors.kafka.command import kafka_in


@click.group()
def connect() -> None:
    """Bring records into the log from elsewhere."""


connect.add_command(kafka_in)
