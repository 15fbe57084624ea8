"""`tutti connect`: the connectors, each a command."""

from __future__ import annotations

import click

from connectors.files.command import files
from connectors.http.command import http
from connectors.kafka.command import kafka_in, kafka_out
from connectors.zeromq.command import zeromq_in, zeromq_out


@click.group()
def connect() -> None:
    """Bring records into the log from elsewhere, and out of it."""


for command in (files, http, kafka_in, kafka_out, zeromq_in, zeromq_out):
    connect.add_command(command)
