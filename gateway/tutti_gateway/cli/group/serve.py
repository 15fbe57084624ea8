"""`tutti serve`: one gateway, from its configuration file."""

from __future__ import annotations

from typing import Literal

import click

from tutti_gateway.cli.common.interrupts import Loading


@click.command()
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The gateway's TOML file; docs/reference/config.md says what may be in it.",
)
@click.option(
    "--record",
    metavar="DIR",
    default="",
    help="Record what happens to the protocol and what it does in a file of DIR, for tutti log rerun: headers, never values.",
)
@click.option(
    "--log-level",
    "level",
    type=click.Choice(["info", "debug"]),
    help="For this run instead of `[logging] level`; debug: what becomes of each message, for tutti trace.",
)
def serve(path: str, record: str, level: Literal["info", "debug"] | None) -> int:
    """Run one gateway.

    One line of JSON on standard output says that it is ready; logs go to standard error. SIGTERM or Ctrl-C: it takes nothing new,
    finishes what is under way and ends. The exit code says why it ended: 0 as asked, 1 failed, 2 a wrong configuration or another
    gateway's directory, 3 something is not available, 4 damage.
    """
    with Loading():
        from tutti_gateway.config import load_config

    config = load_config(path)
    with Loading():
        from msgspec.structs import replace

        from tutti_gateway.node.main import run

    if level is not None:
        config = replace(config, logging=replace(config.logging, level=level))

    return run(config, record)
