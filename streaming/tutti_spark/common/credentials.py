"""Credentials as options say them: read by the driver, and carried to the workers with what they are told to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tutti.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials

FILE, TOKEN = "tokenFile", "token"
TAKES = {
    FILE: "a file of credentials on the driver, as `tutti tokens new --client` makes it; TUTTI_TOKEN_FILE names one by default",
    TOKEN: "a token, in place of the one in tokenFile",
}
HIDDEN = "(not shown)"


def credentials_of(given: Mapping[str, str]) -> Credentials | None:
    """What the options of a read or a write are let in with; without them what the driver's environment names.

    Raises:
        UsageError: they cannot serve; no token is in the message.
    """
    from tutti.common.credentials import Credentials, from_environment

    path, token = given.get(FILE, "").strip(), given.get(TOKEN, "").strip()
    try:
        if path:
            return Credentials.read(path, token)
        if token:
            raise UsageError(f"option {TOKEN!r} needs {FILE!r}, too: the keys of the gateways that may see it are in that file")
        return from_environment()
    except ConfigError as error:
        raise UsageError(f"option {FILE!r}: {error}") from None


def shown(name: str, value: str) -> str:
    """An option's value for a message: not where the name speaks of a secret, however it is spelled."""
    low = name.lower()
    return HIDDEN if any(word in low for word in ("token", "secret", "password", "credential")) else repr(value)
