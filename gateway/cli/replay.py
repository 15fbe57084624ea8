"""`tutti replay`: a committed range to a file."""

from __future__ import annotations

import click


@click.command()
def replay() -> None:
    """Write a committed range to a file, gateways up or down."""
