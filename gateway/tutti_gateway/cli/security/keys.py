"""`tutti keys`: the keys by which gateways know each other."""

from __future__ import annotations

from pathlib import Path

import click

from tutti.errors import ConfigError, remedy
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json, print_table


@click.group()
def keys() -> None:
    """Make and show the keys by which gateways know each other.

    With keys, what gateways say to each other is encrypted and authenticated, and nobody else is let in. Each gateway has a secret
    file of its own (`security.secret_key`) and all have the same public file (`security.public_keys`).
    """


@keys.command()
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the files are written; made if it is missing.",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def new(directory: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Make keys for gateways: DIR/NAME.secret for each, and a line for each in DIR/group.keys, which is made or added to.

    A secret file belongs on its gateway's host alone, group.keys on every host. Keys that are there already are never replaced.
    """
    from tutti_gateway.transport.keys import generate

    try:
        *secrets, public = generate(directory, names)
    except OSError as error:
        what = f"{error.filename or directory}: keys cannot be made there ({(error.strerror or str(error)).lower()})"
        raise ConfigError(f"{what}: {remedy(error, 'name a directory with --out in which files can be made')}") from error
    if as_json:
        print_json({"secrets": {name: str(path) for name, path in zip(names, secrets, strict=True)}, "public": str(public)})
        return
    for name, path in zip(names, secrets, strict=True):
        print(f"{path}  for the host of {name} alone")
    print(f"{public}  for every host")


@keys.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@json_option
def show(path: Path, as_json: bool) -> None:
    """Show the public keys in FILE, a public or a secret file; of a secret file, never the secret."""
    from tutti_gateway.transport.keys import read_either

    found = read_either(path)
    if as_json:
        print_json(found)
    else:
        print_table(("gateway", "public"), sorted(found.items()), empty="no keys")
