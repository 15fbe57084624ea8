"""`tutti tokens`: the tokens by which clients are let in, and what each of them may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tutti.errors import ConfigError, UsageError, remedy
from tutti.security.tokens import Access
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json, print_table

_US = 1_000_000


@click.group()
def tokens() -> None:
    """Make, list and remove the tokens by which clients are let in.

    The file of tokens (`security.tokens`) says what each of them may do. It is the same on every host, holds no token but the
    SHA-256 of each, and is read again when it changes. A token is shown once, when it is made.
    """


def _file_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--file",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TUTTI_TOKENS",
        default="tokens.toml",
        show_default=True,
        help="The file of tokens ($TUTTI_TOKENS).",
    )(function)


@tokens.command()
@click.argument("name")
@click.option(
    "--produce", multiple=True, metavar="TOPICS", help="Topics that it may write to, * for any characters; may be repeated."
)
@click.option("--read", multiple=True, metavar="TOPICS", help="Topics that it may read, '*' for all; may be repeated.")
@click.option("--producer", "producers", multiple=True, metavar="NAMES", help="Producers' names that it may write under; else all.")
@click.option("--admin", is_flag=True, help="It may see and change the group: members, roster, leave, fence, forget.")
@click.option("--expires", metavar="TIME", help="Days, hours or minutes for which it holds: 30d, 12h, 90m. Without it: for ever.")
@click.option(
    "--client",
    "client",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all that a client needs into FILE, for TUTTI_TOKEN_FILE, in place of printing the token; takes --keys.",
)
@click.option("--keys", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="For --client: the file group.keys.")
@click.option(
    "--ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For --client: certificates (PEM) of who signed those of the gateways; without it who the client's system trusts.",
)
@_file_option
@json_option
def new(
    name: str,
    produce: tuple[str, ...],
    read: tuple[str, ...],
    producers: tuple[str, ...],
    admin: bool,
    expires: str | None,
    client: Path | None,
    keys: Path | None,
    ca: Path | None,
    path: Path,
    as_json: bool,
) -> None:
    """Make the token NAME and print it, this once; its SHA-256 is added to the file, which is made if it is missing.

    Give it to whoever uses it in a file of their own (TUTTI_TOKEN_FILE), never as an argument of a command: others see those.
    """
    from tutti.security.tokens import digest_of, new_token

    token = new_token()
    access = _made(Access(name, digest_of(token), produce, read, admin, 0, producers or ("*",)), expires)

    def add(known: dict[str, Access]) -> None:
        if name in known:
            raise ConfigError(f"{path} has a token {name!r} already: remove that one first, or choose another name")
        known[name] = access

    text = _client_text(token, client, keys, ca)
    _change(path, add)
    if client is not None:
        _write_client(client, text)
    if as_json:
        print_json({"name": name, "file": str(path), **({"token": token} if client is None else {"client": str(client)})})
    else:
        print(token if client is None else f"{client}  for who uses it alone: TUTTI_TOKEN_FILE={client}")


def _client_text(token: str, client: Path | None, keys: Path | None, ca: Path | None) -> str:
    """What a client's file holds, whose parts are looked at before anything is written."""
    from tutti.security.key_files import read_whole
    from tutti_gateway.transport.keys import read_public

    if client is None or keys is None:
        if client is None and keys is None and ca is None:
            return ""
        raise UsageError("--client FILE and --keys group.keys belong together: a client shows its token to those gateways alone")
    if client.exists():
        raise ConfigError(f"{client} is there already: name another file, or take that one away")
    lines = "".join(f'"{gateway}" = "{key}"\n' for gateway, key in sorted(read_public(keys).items()))
    certificates = ""
    if ca is not None:
        try:
            pem = read_whole(ca)[0].decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            raise ConfigError(f"{ca} cannot be read as PEM ({reason}): name a file of certificates") from None
        if "BEGIN CERTIFICATE" not in pem or "PRIVATE KEY" in pem or "'''" in pem:
            raise ConfigError(
                f"{ca} holds no certificates alone: name the file of who signed those of the gateways, without any key"
            )
        certificates = f"certificates = '''\n{pem}'''\n"
    said = "# What a client of Tutti is let in with (TUTTI_TOKEN_FILE). It holds a secret: keep it readable by its user alone.\n"
    return f'{said}token = "{token}"\n{certificates}\n[gateways]\n{lines}'


def _write_client(path: Path, text: str) -> None:
    from tutti.runtime.fsync import make_directory
    from tutti.security.key_files import write_new

    try:
        make_directory(path.parent, 0o777)
        write_new(path, text, 0o600)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{path} cannot be written ({reason}), and the token is made: remove it; {remedy(error, 'name another file')}"
        ) from error


def _made(access: Access, expires: str | None) -> Access:
    import time

    from tutti import limits
    from tutti.data.names import check_name
    from tutti.security.tokens import check_pattern
    from tutti_gateway.config.model import parse_duration

    check_name("token", access.name)
    for option, patterns in (("--produce", access.produce), ("--read", access.read), ("--producer", access.producers)):
        for pattern in patterns:
            check_pattern(pattern, option)
        if len(patterns) > limits.RIGHT_PATTERNS_MAX:
            raise UsageError(f"{option} was given {len(patterns)} times: {limits.RIGHT_PATTERNS_MAX} are taken")
    if not (access.produce or access.read or access.admin):
        raise UsageError(f"{access.name} would have no rights: say --produce TOPICS, --read TOPICS or --admin")
    return access._replace(expires_us=int(time.time()) * _US + parse_duration(expires)) if expires else access


@tokens.command(name="list")
@_file_option
@json_option
def listed(path: Path, as_json: bool) -> None:
    """List the tokens of the file and what each may do."""
    from tutti.security.tokens import read_tokens

    known = sorted(read_tokens(path).values())
    if as_json:
        print_json([{**line._asdict(), "expires_us": line.expires_us or None} for line in known])
        return
    rows = [
        (
            line.name,
            ", ".join(line.produce),
            ", ".join(line.read),
            ", ".join(line.producers),
            "yes" if line.admin else "",
            _until(line.expires_us),
        )
        for line in known
    ]
    print_table(("name", "produce", "read", "producers", "admin", "expires"), rows, empty="no tokens")


def _until(expires_us: int) -> str:
    from datetime import UTC, datetime

    if not expires_us:
        return "never"
    end = datetime.fromtimestamp(expires_us // _US, UTC)
    return f"{end.isoformat().removesuffix('+00:00')}Z{' (over)' if end < datetime.now(UTC) else ''}"


@tokens.command()
@click.argument("name")
@_file_option
def remove(name: str, path: Path) -> None:
    """Remove the token NAME from the file: a gateway lets in nobody who shows it, a second after it has the file."""

    def take(known: dict[str, Access]) -> None:
        if known.pop(name, None) is None:
            raise ConfigError(f"{path} has no token {name!r}: `tutti tokens list` shows those that are there")

    _change(path, take)


def _change(path: Path, change: Callable[[dict[str, Access]], None]) -> None:
    from tutti.security.tokens import change_tokens

    try:
        change_tokens(path, change)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = remedy(error, "name a file that can be written with --file")
        raise ConfigError(f"{path} cannot be changed ({reason}): {advice}") from error
