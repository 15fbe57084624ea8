"""`tutti config`: what is wrong with a configuration file."""

from __future__ import annotations

import click

from gateway.cli.options import json_option
from gateway.cli.output import print_json


@click.group()
def config() -> None:
    """Check a configuration file."""


@config.command()
@click.argument("file")
@json_option
def check(file: str, as_json: bool) -> int:
    """Explain every mistake in FILE: where, what, what to do. Exit code 1 if there is any."""
    from gateway.config import check_config

    config, mistakes = check_config(file)
    if as_json:
        print_json({"file": file, "ok": not mistakes, "mistakes": [mistake._asdict() for mistake in mistakes]})
    elif config is None:
        for mistake in mistakes:
            print(mistake.text(file))
    else:
        places = f"clients at {config.client_address}, reads at {config.reads_address}, admin at {config.admin_address}"
        print(f"{file}: good: gateway {config.name} of group {config.group.name}, {places}, data in {config.data}")
    return 1 if mistakes else 0
