"""Credentials of a client: its token, and the public keys of the gateways that may receive it (docs/how-to/security.md).

`tutti tokens new --client` creates a credentials file, which contains the token and the keys:

    token = "tutti_..."
    certificates = '''-----BEGIN CERTIFICATE-----...'''     # CAs of the gateways; default: those of the system
    [gateways]                                              # names and public keys, as in group.keys
    jfk = "<40 characters>"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.errors import ConfigError, UsageError, WrongFile, remedy
from tutti.security.user_files import check_private, read_limited, read_toml
from tutti.zmtp import z85

if TYPE_CHECKING:  # at run time, only clients with keys import the cryptography library
    from tutti.zmtp.curve import CurveClientHandshake

FILE_VARIABLE, TOKEN_VARIABLE = "TUTTI_TOKEN_FILE", "TUTTI_TOKEN"
_MADE_BY = "`tutti tokens new NAME --client FILE` makes one"
_KEYS = frozenset({"token", "certificates", "gateways"})


class Credentials:
    """Credentials that authenticate a client. Credentials can be pickled, and `repr()` shows no secret.

    The client connects only to gateways whose public keys are in the credentials, so that no other peer gets the token.

    Args:
        token: the token; empty for a gateway of the group, which uses its key instead.
        server_keys: gateway name -> public key (Z85 text), or a path of `group.keys`.
        certificates: PEM text, or a `Path`, of the CAs of the gateways' TLS certificates; by default those of the system.
        own: the client's public and secret key (Z85 text), if a key authenticates the client; by default a random pair.

    Raises:
        ConfigError: a file cannot be read, or is malformed.
        UsageError: `server_keys` is empty, or the token or a key is malformed.
    """

    def __init__(
        self,
        token: str = "",
        server_keys: Mapping[str, str] | str | Path = "",
        certificates: str | Path = "",
        own: tuple[str, str] | None = None,
    ) -> None:
        """Read the files, and validate the content."""
        if not token.isascii():
            raise UsageError("the token has characters that are not ASCII: use the token as `tutti tokens new` printed it")
        if not server_keys:
            raise UsageError(
                "credentials without public keys of gateways: set `server_keys`, for example to the path of group.keys, because a "
                "client sends its token only to a gateway whose key it knows"
            )
        keys = server_keys
        if isinstance(keys, str | Path):
            keys = _gateways(keys, read_toml(keys, "`tutti keys new` makes group.keys")[0])
        self.token = token
        self.server_keys = dict(keys)
        self.certificates = certificates if isinstance(certificates, str) else _text_of(certificates)
        self._own = own
        self.calling()  # raises now if a key is malformed

    def __repr__(self) -> str:
        """Return a text without the token, because the text may be logged."""
        return f"<credentials for {', '.join(self.server_keys)}>"

    @classmethod
    def read(cls, path: str | Path, token: str = "") -> Credentials:
        """Read credentials from a file; `token` replaces the token in the file.

        Raises:
            ConfigError: the file cannot be read, is malformed, or is readable by other users.
        """
        tree, found = read_toml(path, _MADE_BY)
        if unknown := set(tree) - _KEYS:
            what = f"{path} has {', '.join(sorted(unknown))[:100]}: use only {', '.join(sorted(_KEYS))}; {_MADE_BY}"
            raise WrongFile(what, str(path), "credentials")
        mine, certificates = token or tree.get("token", ""), tree.get("certificates", "")
        if not isinstance(mine, str) or not mine.isascii() or not isinstance(certificates, str):
            raise ConfigError(f"{path}: token and certificates must be text: {_MADE_BY}")
        if not mine:
            raise ConfigError(f"{path} has no token: {_MADE_BY}")
        check_private(path, found)
        try:
            return cls(mine, _gateways(path, tree), certificates)
        except UsageError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def of_gateway(cls, secret_key: str | Path, public_keys: str | Path) -> Credentials:
        """Return the credentials of a gateway of the group, which its secret key authenticates.

        Raises:
            ConfigError: a file cannot be read, or is malformed.
        """
        tree, found = read_toml(secret_key, "`tutti keys new` makes keys")
        check_private(secret_key, found)
        return cls(server_keys=public_keys, own=(str(tree.get("public", "")), str(tree.get("secret", ""))))

    def calling(self) -> CurveClientHandshake:
        """Return the client side of a CURVE handshake with one of the gateways.

        Raises:
            UsageError: a key is malformed.
        """
        from tutti.zmtp.curve import KEY_BYTES, CurveClientHandshake, KeyPair  # noqa: PLC0415 - loads cryptography only with keys

        def decoded(key: object) -> bytes:
            try:
                raw = z85.decode(str(key))
            except ValueError:
                raw = b""
            if len(raw) != KEY_BYTES:
                raise UsageError("a key in `server_keys` is malformed: it must have 40 characters of Z85, as in group.keys")
            return raw

        own = None if self._own is None else KeyPair(decoded(self._own[0]), decoded(self._own[1]))
        return CurveClientHandshake([decoded(key) for key in self.server_keys.values()], own)

    def headers(self, location: str) -> list[tuple[bytes, bytes]]:
        """Return the headers of a call to a reads port, which contain the token.

        Raises:
            ConfigError: the connection would expose the token, because it is not encrypted.
        """
        if not self.token:
            return []
        if location.startswith("grpc://") and not _is_loopback(location):
            raise ConfigError(
                f"reads at {location} are not encrypted, and would expose the token: configure TLS on the gateway "
                "(`security.tls_certificate`, `security.tls_key`)"
            )
        return [(b"authorization", b"Bearer " + self.token.encode("ascii"))]


def from_environment() -> Credentials | None:
    """Return the credentials that environment variables name, or None without these variables.

    TUTTI_TOKEN_FILE names a credentials file, and TUTTI_TOKEN replaces the token in the file.

    Raises:
        ConfigError: the file is unusable, or TUTTI_TOKEN is set alone.
    """
    path, token = os.environ.get(FILE_VARIABLE), os.environ.get(TOKEN_VARIABLE, "")
    if path:
        return Credentials.read(path, token.strip())
    if token:
        raise ConfigError(
            f"{TOKEN_VARIABLE} is set and {FILE_VARIABLE} is not: set {FILE_VARIABLE} to a file with the "
            "public keys of the gateways, because a client sends its token to no other peers"
        )
    return None


def given(credentials: object) -> Credentials | None:
    """Return the credentials that an application passed: a `Credentials`, the path of a file, or None (use the environment).

    Raises:
        UsageError: the argument has another type.
        ConfigError: a file is unusable.
    """
    if credentials is None:
        return from_environment()
    if isinstance(credentials, str | Path):
        return Credentials.read(credentials)
    if not isinstance(credentials, Credentials):
        raise UsageError(f"credentials must be a Credentials or the path of a file with them, not {type(credentials).__name__}")
    return credentials


def _gateways(path: object, tree: Mapping[str, object]) -> dict[str, str]:
    table = tree.get("gateways")
    if not isinstance(table, dict) or not table or not all(isinstance(key, str) for key in table.values()):
        raise ConfigError(f'{path} lists no public keys of gateways: write [gateways] and name = "key" below it, as in group.keys')
    return table


def _text_of(path: Path) -> str:
    try:
        return read_limited(path)[0].decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({(error.strerror or str(error)).lower()}): {remedy(error, 'name a file of certificates')}"
        ) from None


def _is_loopback(location: str) -> bool:
    host = location.partition("://")[2].rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")
