"""`tutti log`: a data directory, looked at and mended with its gateway down or up."""

from __future__ import annotations

import click


@click.group()
def log() -> None:
    """Verify, inspect, digest or repair a data directory."""
