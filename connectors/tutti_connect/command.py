"""`tutti connect`: one subcommand for each connector."""

from __future__ import annotations

import click

from tutti_connect.files.command import files
from tutti_connect.http.command import http
from tutti_connect.kafka.command import kafka_in, kafka_out
from tutti_connect.zeromq.command import zeromq_in, zeromq_out


@click.group()
def connect() -> None:
    """Move records between the log and other systems."""


for command in (files, http, kafka_in, kafka_out, zeromq_in, zeromq_out):
    connect.add_command(command)
