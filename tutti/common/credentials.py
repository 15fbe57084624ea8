"""Credentials of a client: its token, and the public keys of the gateways that it may send the token to (docs/how-to/security.md).

One file has all of it, made by `tutti tokens new --client`:

    token = "tutti_..."
    certificates = '''-----BEGIN CERTIFICATE-----...'''     # who signed those of the gateways; left out: who the system trusts
    [gateways]                                              # as in group.keys
    jfk = "<40 characters>"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.errors import ConfigError, UsageError, remedy
from tutti.security.key_files import check_private, read_toml, read_whole
from tutti.zmtp import z85

if TYPE_CHECKING:  # the crypto, for those alone who have keys
    from tutti.zmtp.curve import Calling

FILE_VARIABLE, TOKEN_VARIABLE = "TUTTI_TOKEN_FILE", "TUTTI_TOKEN"
_MADE_BY = "`tutti tokens new NAME --client FILE` makes one"
_KEYS = frozenset({"token", "certificates", "gateways"})


class Credentials:
    """What a client is let in with. It may be pickled; what is printed of it has no secret.

    Args:
        token: the token; empty for a gateway of the group, which is known by its key.
        server_keys: gateway -> public key (Z85 text), or a path of `group.keys`. It is these alone that the client talks to.
        certificates: PEM of who signed the gateways' certificates, for reads; a `Path` is read; empty: who the system trusts.
        own: public and secret key (Z85 text), where the client is known by these; left out: some that nobody knows.

    Raises:
        ConfigError: a file cannot be read, or holds no such thing.
        UsageError: there is no key of a gateway: a token is shown to those alone whose keys are known.
    """

    def __init__(
        self,
        token: str = "",
        server_keys: Mapping[str, str] | str | Path = "",
        certificates: str | Path = "",
        own: tuple[str, str] | None = None,
    ) -> None:
        """Read what is named by its path, and refuse what cannot serve."""
        if not token.isascii():
            raise UsageError("a token is text, as `tutti tokens new` prints it")
        if not server_keys:
            raise UsageError(
                "credentials take the public keys of the gateways (`server_keys`, group.keys): a token is shown to no others"
            )
        keys = server_keys
        if isinstance(keys, str | Path):
            keys = _gateways(keys, read_toml(keys, "`tutti keys new` makes group.keys")[0])
        self.token = token
        self.server_keys = dict(keys)
        self.certificates = certificates if isinstance(certificates, str) else _text_of(certificates)
        self._own = own
        self.calling()  # a key that is none is found now

    def __repr__(self) -> str:
        """Without the token: this may land in a log."""
        return f"<credentials for {', '.join(self.server_keys)}>"

    @classmethod
    def read(cls, path: str | Path, token: str = "") -> Credentials:
        """Those in a file; `token` takes the place of the one in it.

        Raises:
            ConfigError: it cannot be read, it is malformed, or others may read it.
        """
        tree, found = read_toml(path, _MADE_BY)
        if unknown := set(tree) - _KEYS:
            raise ConfigError(f"{path} has {', '.join(sorted(unknown))[:100]}: it takes {', '.join(sorted(_KEYS))}; {_MADE_BY}")
        mine, certificates = token or tree.get("token", ""), tree.get("certificates", "")
        if not isinstance(mine, str) or not mine.isascii() or not isinstance(certificates, str):
            raise ConfigError(f"{path}: token and certificates are text; {_MADE_BY}")
        if not mine:
            raise ConfigError(f"{path} has no token: {_MADE_BY}")
        check_private(path, found)
        try:
            return cls(mine, _gateways(path, tree), certificates)
        except UsageError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def of_gateway(cls, secret_key: str | Path, public_keys: str | Path) -> Credentials:
        """Those of a gateway of the group, which is known by its key.

        Raises:
            ConfigError: a file cannot be read, or holds no such thing.
        """
        tree, found = read_toml(secret_key, "`tutti keys new` makes keys")
        check_private(secret_key, found)
        return cls(server_keys=public_keys, own=(str(tree.get("public", "")), str(tree.get("secret", ""))))

    def calling(self) -> Calling:
        """The handshake with one of the gateways.

        Raises:
            UsageError: a key is none.
        """
        from tutti.zmtp.curve import KEY_BYTES, Calling, Pair  # noqa: PLC0415 - the crypto, for those alone who have keys

        def decoded(key: object) -> bytes:
            try:
                raw = z85.decode(str(key))
            except ValueError:
                raw = b""
            if len(raw) != KEY_BYTES:
                raise UsageError("a key of `server_keys` is none: it takes 40 characters of Z85, as in group.keys")
            return raw

        own = None if self._own is None else Pair(decoded(self._own[0]), decoded(self._own[1]))
        return Calling([decoded(key) for key in self.server_keys.values()], own)

    def headers(self, location: str) -> list[tuple[bytes, bytes]]:
        """What goes with each call to a reads port.

        Raises:
            ConfigError: what is said there others can hear, and the token is not for them.
        """
        if not self.token:
            return []
        if location.startswith("grpc://") and not _is_here(location):
            raise ConfigError(
                f"reads are not encrypted at {location}, and a token is not shown there: have the gateway serve TLS "
                "(`security.tls_certificate`, `security.tls_key`)"
            )
        return [(b"authorization", b"Bearer " + self.token.encode("ascii"))]


def from_environment() -> Credentials | None:
    """Those that TUTTI_TOKEN_FILE names, with TUTTI_TOKEN in place of the token in it; None where neither is set.

    Raises:
        ConfigError: the file cannot serve, or there is a token alone.
    """
    path, token = os.environ.get(FILE_VARIABLE), os.environ.get(TOKEN_VARIABLE, "")
    if path:
        return Credentials.read(path, token.strip())
    if token:
        raise ConfigError(
            f"{TOKEN_VARIABLE} is set and {FILE_VARIABLE} is not: the keys of the gateways are in that file, and a token is shown "
            "to nobody else"
        )
    return None


def given(credentials: object) -> Credentials | None:
    """Credentials as an application gives them: none of its own are those of the environment; a path is read.

    Raises:
        UsageError: they are of another kind.
        ConfigError: a file cannot serve.
    """
    if credentials is None:
        return from_environment()
    if isinstance(credentials, str | Path):
        return Credentials.read(credentials)
    if not isinstance(credentials, Credentials):
        raise UsageError(f"credentials are a Credentials or the path of a file with them, not {type(credentials).__name__}")
    return credentials


def _gateways(path: object, tree: Mapping[str, object]) -> dict[str, str]:
    table = tree.get("gateways")
    if not isinstance(table, dict) or not table or not all(isinstance(key, str) for key in table.values()):
        raise ConfigError(f'{path} lists no public keys of gateways: write [gateways] and name = "key" below it, as in group.keys')
    return table


def _text_of(path: Path) -> str:
    try:
        return read_whole(path)[0].decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({(error.strerror or str(error)).lower()}): {remedy(error, 'name a file of certificates')}"
        ) from None


def _is_here(location: str) -> bool:
    host = location.partition("://")[2].rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")
