"""`tutti serve`: runs one gateway with a configuration file."""

from __future__ import annotations

from typing import Literal

import click

from tutti_gateway.cli.common.interrupts import ImportGuard


@click.command()
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The gateway's TOML file; `tutti config init` writes one with every key.",
)
@click.option(
    "--record",
    metavar="DIR",
    default="",
    help="Record the protocol's events and actions in a file of DIR, for `tutti log rerun`. The file has no record values.",
)
@click.option(
    "--log-level",
    "level",
    type=click.Choice(["info", "debug"]),
    help="Log level, instead of `[logging] level`. debug: log each step of each message, for `tutti trace`.",
)
def serve(path: str, record: str, level: Literal["info", "debug"] | None) -> int:
    """Run one gateway.

    When the gateway is ready, it prints one line of JSON to standard output; logs go to standard error. After SIGTERM or Ctrl-C,
    the gateway accepts no new records, finishes pending work and ends. Exit codes: 0: ended on request; 1: failed; 2: the
    configuration is wrong, or the data directory belongs to another gateway; 3: unavailable; 4: corruption found.
    """
    with ImportGuard():
        from tutti_gateway.config import load_config

    config = load_config(path)
    with ImportGuard():
        from msgspec.structs import replace

        from tutti_gateway.node.main import run

    if level is not None:
        config = replace(config, logging=replace(config.logging, level=level))

    return run(config, record)
