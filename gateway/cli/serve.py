"""`tutti serve`: one gateway, from its configuration file."""

from __future__ import annotations

import click

from gateway.cli.loading import Loading


@click.command()
@click.option(
    "--config", "path", required=True, metavar="FILE", help="The gateway's TOML file; docs/config.md says what may be in it."
)
@click.option(
    "--record",
    metavar="DIR",
    default="",
    help="Record what happens to the protocol and what it does in a file of DIR, for tutti log rerun: headers, never values.",
)
def serve(path: str, record: str) -> int:
    """Run one gateway.

    One line of JSON on standard output says that it is ready; logs go to standard error. SIGTERM or Ctrl-C: it takes nothing new,
    finishes what is under way and ends. The exit code says why it ended: 0 as asked, 1 failed, 2 a wrong configuration or another
    gateway's directory, 4 damage.
    """
    with Loading():
        from gateway.config import load_config

    config = load_config(path)
    with Loading():
        from gateway.node.main import run

    return run(config, record)
