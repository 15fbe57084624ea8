"""`tutti config`: checks a configuration file."""

from __future__ import annotations

import click

from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json

RESOLVE_S_MAX = 5.0  # time limit for resolving all host names in the file


@click.group()
def config() -> None:
    """Check a configuration file."""


@config.command()
@click.argument("file")
@json_option
def check(file: str, as_json: bool) -> int:
    """Report every mistake in the configuration FILE.

    The report has the line and the key of each mistake, the error, and the correction. The exit code is 2 if FILE has a mistake,
    and 0 if there is only advice.
    """
    from tutti_gateway.config import advice, check_config, unknown_hosts

    config, mistakes = check_config(file)
    advised = [*advice(config), *unknown_hosts(config, RESOLVE_S_MAX)] if config is not None else []
    if as_json:
        found = {"mistakes": [one._asdict() for one in mistakes], "advice": [one._asdict() for one in advised]}
        print_json({"file": file, "ok": not mistakes, **found})
    elif config is None:
        for mistake in mistakes:
            print(mistake.text(file))
    else:
        addresses = f"clients at {config.client_address}, reads at {config.reads_address}, admin at {config.admin_address}"
        print(f"{file}: valid: gateway {config.name} of group {config.group.name}, {addresses}, data in {config.data}")
        for one in advised:
            print(f"advice: {one.text(file)}")
    return 2 if mistakes else 0
