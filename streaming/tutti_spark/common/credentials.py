"""Credentials from options. The driver reads the credentials, and workers get them in the pickled options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tutti.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials

FILE, TOKEN = "tokenFile", "token"
TAKES = {
    FILE: "a file of credentials on the driver, from `tutti tokens new --client`; the default is in TUTTI_TOKEN_FILE",
    TOKEN: "a token, in place of the one in tokenFile",
}
HIDDEN = "(not shown)"


def credentials_of(given: Mapping[str, str]) -> Credentials | None:
    """Return the credentials in the options of a read or a write, or else those of the driver's environment.

    Raises:
        UsageError: the credentials are not usable; the message contains no token.
    """
    from tutti.common.credentials import Credentials, from_environment

    path, token = given.get(FILE, "").strip(), given.get(TOKEN, "").strip()
    try:
        if path:
            return Credentials.read(path, token)
        if token:
            raise UsageError(
                f"option {TOKEN!r} also needs {FILE!r}: a file with the public keys of the gateways that may get the token"
            )
        return from_environment()
    except ConfigError as error:
        raise UsageError(f"option {FILE!r}: {error}") from None


def redacted(name: str, value: str) -> str:
    """Return the value of an option as text for a message; a placeholder if the option's name suggests a secret."""
    low = name.lower()
    return HIDDEN if any(word in low for word in ("token", "secret", "password", "credential")) else repr(value)
