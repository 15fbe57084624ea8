"""`tutti keys`: the keys that gateways use for authentication and encryption."""

from __future__ import annotations

from pathlib import Path

import click

from tutti.errors import ConfigError, remedy
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json, print_table


@click.group()
def keys() -> None:
    """Create and show the keys that authenticate gateways.

    With keys, gateways encrypt and authenticate the traffic between them, and reject a connection whose key is not listed. Each
    gateway has its own secret file (`security.secret_key`), and all gateways have the same public file (`security.public_keys`).
    """


@keys.command()
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Directory for the key files; a missing directory is created.",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def new(directory: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Create a secret key for each gateway NAME.

    The command writes the secret key to DIR/NAME.secret, and adds the public key to DIR/group.keys. Copy each secret file to its
    gateway's host only, and group.keys to every host. The command never replaces existing keys.
    """
    from tutti_gateway.transport.keys import generate

    try:
        *secrets, public = generate(directory, names)
    except OSError as error:
        what = f"{error.filename or directory}: keys cannot be created there ({(error.strerror or str(error)).lower()})"
        raise ConfigError(f"{what}: {remedy(error, 'choose a writable directory with --out')}") from error
    if as_json:
        print_json({"secrets": {name: str(path) for name, path in zip(names, secrets, strict=True)}, "public": str(public)})
        return
    for name, path in zip(names, secrets, strict=True):
        print(f"{path}  only for the host of {name}")
    print(f"{public}  for every host")


@keys.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@json_option
def show(path: Path, as_json: bool) -> None:
    """Show the public keys in FILE, which is a secret file or group.keys. The command never shows a secret key."""
    from tutti_gateway.transport.keys import read_either

    found = read_either(path)
    if as_json:
        print_json(found)
    else:
        print_table(("gateway", "public"), sorted(found.items()), empty="no keys")
