"""`tutti tokens`: the tokens that authenticate clients, with their access rights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tutti import limits
from tutti.errors import ConfigError, UsageError, remedy
from tutti.security.tokens import Access
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json, print_table

_US = 1_000_000
_QUOTA = click.IntRange(1, limits.QUOTA_MAX)


@click.group()
def tokens() -> None:
    """Create, list and remove the tokens of clients.

    The token file (`security.tokens`) lists the rights of each token. The file is the same on every host, and holds only the
    SHA-256 of each token. Gateways reload the file when it changes. A token is shown only once, when it is created.
    """


def _file_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--file",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TUTTI_TOKENS",
        default="tokens.toml",
        show_default=True,
        help="The token file ($TUTTI_TOKENS).",
    )(function)


@tokens.command()
@click.argument("name")
@click.option(
    "--produce", multiple=True, metavar="TOPICS", help="Topics that the client may write to; * matches any characters; repeatable."
)
@click.option("--read", multiple=True, metavar="TOPICS", help="Topics that the client may read; '*' allows all topics; repeatable.")
@click.option(
    "--producer", "producers", multiple=True, metavar="NAMES", help="Producer names that the client may use. [default: all]"
)
@click.option("--admin", is_flag=True, help="Allow admin requests: members, roster, leave, fence, forget.")
@click.option(
    "--records-per-s", type=_QUOTA, metavar="N", help="Quota: records a second that each gateway accepts. [default: unlimited]"
)
@click.option(
    "--bytes-per-s",
    type=_QUOTA,
    metavar="N",
    help="Quota: bytes a second that each gateway accepts, as they arrive (compressed). [default: unlimited]",
)
@click.option("--expires", metavar="TIME", help="Lifetime of the token: 30d, 12h, 90m. [default: unlimited]")
@click.option(
    "--client",
    "client",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write token and public keys to FILE, for TUTTI_TOKEN_FILE, instead of printing the token; needs --keys.",
)
@click.option("--keys", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="For --client: the file group.keys.")
@click.option(
    "--ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For --client: CA certificates (PEM) of the gateways. [default: the CAs that the client's system trusts]",
)
@_file_option
@json_option
def new(
    name: str,
    produce: tuple[str, ...],
    read: tuple[str, ...],
    producers: tuple[str, ...],
    admin: bool,
    records_per_s: int | None,
    bytes_per_s: int | None,
    expires: str | None,
    client: Path | None,
    keys: Path | None,
    ca: Path | None,
    path: Path,
    as_json: bool,
) -> None:
    """Create the token NAME and print it.

    The command adds the SHA-256 of the token to the token file. A missing token file is created. A gateway delays the records above
    a quota, and refuses none. Give the token to the client in a file (TUTTI_TOKEN_FILE), never as a command argument, because other
    users of the host can read command arguments.
    """
    from tutti.security.tokens import digest_of, new_token

    token = new_token()
    quotas = {"records_per_s": records_per_s or 0, "bytes_per_s": bytes_per_s or 0}
    access = _checked_access(Access(name, digest_of(token), produce, read, admin, 0, producers or ("*",), **quotas), expires)

    def add(known: dict[str, Access]) -> None:
        if name in known:
            raise ConfigError(f"{path} already has a token {name!r}: remove that token first, or choose another name")
        known[name] = access

    text = _client_text(token, client, keys, ca)
    _change(path, add)
    if client is not None:
        _write_client(client, text)
    if as_json:
        print_json({"name": name, "file": str(path), **({"token": token} if client is None else {"client": str(client)})})
    else:
        print(token if client is None else f"{client}  only for the client that uses it: TUTTI_TOKEN_FILE={client}")


def _client_text(token: str, client: Path | None, keys: Path | None, ca: Path | None) -> str:
    """Return the content of the file for --client: the token, the gateways' public keys, and the CA certificates."""
    from tutti.security.user_files import read_limited
    from tutti_gateway.transport.keys import read_public

    if client is None or keys is None:
        if client is None and keys is None and ca is None:
            return ""
        raise UsageError("--client FILE needs --keys group.keys: a client sends its token only to the gateways listed there")
    if client.exists():
        raise ConfigError(f"{client} already exists: choose another file, or remove this one")
    lines = "".join(f'"{gateway}" = "{key}"\n' for gateway, key in sorted(read_public(keys).items()))
    certificates = ""
    if ca is not None:
        try:
            pem = read_limited(ca)[0].decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            raise ConfigError(f"{ca} cannot be read as PEM ({reason}): give a file of certificates") from None
        if "BEGIN CERTIFICATE" not in pem or "PRIVATE KEY" in pem or "'''" in pem:
            raise ConfigError(
                f"{ca} must hold certificates only: give the CA certificates of the gateways, without any private key"
            )
        certificates = f"certificates = '''\n{pem}'''\n"
    comment = "# Credentials of a Tutti client (TUTTI_TOKEN_FILE). The file holds a secret: keep it readable only by its owner.\n"
    return f'{comment}token = "{token}"\n{certificates}\n[gateways]\n{lines}'


def _write_client(path: Path, text: str) -> None:
    from tutti.runtime.durable_files import make_directory
    from tutti.security.user_files import write_new

    try:
        make_directory(path.parent, 0o777)
        write_new(path, text, 0o600)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{path} cannot be written ({reason}), but the token was created: remove it with `tutti tokens remove`, and "
            + remedy(error, "choose another file")
        ) from error


def _checked_access(access: Access, expires: str | None) -> Access:
    import time

    from tutti.data.names import check_name
    from tutti.security.tokens import check_pattern
    from tutti_gateway.config.model import parse_duration

    check_name("token", access.name)
    for option, patterns in (("--produce", access.produce), ("--read", access.read), ("--producer", access.producers)):
        for pattern in patterns:
            check_pattern(pattern, option)
        if len(patterns) > limits.RIGHT_PATTERNS_MAX:
            raise UsageError(f"{option} is given {len(patterns)} times: at most {limits.RIGHT_PATTERNS_MAX} are allowed")
    if not (access.produce or access.read or access.admin):
        raise UsageError(f"{access.name} would have no rights: give --produce TOPICS, --read TOPICS or --admin")
    return access._replace(expires_us=int(time.time()) * _US + parse_duration(expires)) if expires else access


@tokens.command(name="list")
@_file_option
@json_option
def listed(path: Path, as_json: bool) -> None:
    """List the tokens in the token file, with their rights and quotas."""
    from tutti.security.tokens import read_tokens

    known = sorted(read_tokens(path).values())
    if as_json:
        unset = ("expires_us", "records_per_s", "bytes_per_s")
        print_json([{**line._asdict(), **{key: getattr(line, key) or None for key in unset}} for line in known])
        return
    rows = [
        (
            line.name,
            ", ".join(line.produce),
            ", ".join(line.read),
            ", ".join(line.producers),
            "yes" if line.admin else "",
            _until(line.expires_us),
            line.records_per_s or None,
            line.bytes_per_s or None,
        )
        for line in known
    ]
    print_table(("name", "produce", "read", "producers", "admin", "expires", "records/s", "bytes/s"), rows, empty="no tokens")


def _until(expires_us: int) -> str:
    from datetime import UTC, datetime

    if not expires_us:
        return "never"
    end = datetime.fromtimestamp(expires_us // _US, UTC)
    return f"{end.isoformat().removesuffix('+00:00')}Z{' (expired)' if end < datetime.now(UTC) else ''}"


@tokens.command()
@click.argument("name")
@_file_option
def remove(name: str, path: Path) -> None:
    """Remove the token NAME from the token file.

    Copy the changed file to every host. Within about a second, each gateway reloads its file, and then rejects the token.
    """

    def delete(known: dict[str, Access]) -> None:
        if known.pop(name, None) is None:
            raise ConfigError(f"{path} has no token {name!r}: `tutti tokens list` lists the existing tokens")

    _change(path, delete)


def _change(path: Path, change: Callable[[dict[str, Access]], None]) -> None:
    from tutti.security.tokens import change_tokens

    try:
        change_tokens(path, change)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = remedy(error, "choose a writable file with --file")
        raise ConfigError(f"{path} cannot be changed ({reason}): {advice}") from error
