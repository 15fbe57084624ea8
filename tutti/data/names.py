"""Checks the names of topics, producers, gateways, groups and named readers."""

from __future__ import annotations

import hashlib
import re

from tutti.errors import UsageError

NAME_BYTES_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")
#: Prefix of the random names of nameless producers. A user-defined name cannot start with this prefix.
NAMELESS = "~"
_NAMELESS_DIGITS = 24
#: Prefix of the number that readers return instead of a name that the log no longer has. No valid name starts with this prefix.
FORGOTTEN = "#"


def check_name(what: str, name: object) -> str:
    """Return `name` if it is a valid name.

    A name has 1 to 249 letters, digits, dots, underscores and hyphens. Kafka has the same rule for topics, so a topic can have the
    same name in both systems.

    Args:
        what: kind of the name for error texts, for example "topic" or "producer".

    Raises:
        UsageError: the name is not valid; the error text contains the first wrong character.
    """
    if not isinstance(name, str):
        raise UsageError(f"a {what} name must be text, not {type(name).__name__} ({name!r})")
    if not name or name in {".", ".."}:
        raise UsageError(f"{name!r} is not a valid {what} name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-'")
    if len(name) > NAME_BYTES_MAX:
        raise UsageError(f"the {what} name {name[:40]!r}... has {len(name)} characters: use at most {NAME_BYTES_MAX}")
    if not _NAME.match(name):
        wrong = next(character for character in name if not _NAME.match(character))
        raise UsageError(f"the {what} name {name!r} contains {wrong!r}: use letters, digits, '.', '_' and '-'")
    return name


def is_name(name: str) -> bool:
    """True if `check_name` accepts the name."""
    return len(name) <= NAME_BYTES_MAX and name not in {".", ".."} and bool(_NAME.match(name))


def check_producer(name: str) -> str:
    """Return `name` if it is a valid name of a producer, or the random name of a nameless producer, which begins with `~`."""
    if name.startswith(NAMELESS):
        return NAMELESS + check_name("producer", name[1:])
    return check_name("producer", name)


def forgotten_name(number: int) -> str:
    """Return the text that readers return instead of a name that the log no longer has."""
    return f"{FORGOTTEN}{number}"


def is_nameless(name: str) -> bool:
    """True if the name belongs to a nameless producer. The log may delete the state of such a producer if it is idle."""
    return name.startswith(NAMELESS)


def nameless_name(instance: bytes) -> str:
    """Return the name of a nameless producer: a hash of its instance (16 random bytes).

    Readers see only the hash and not the instance, so only the producer itself can prove that it owns the name.
    """
    return NAMELESS + hashlib.sha256(b"tutti producer " + instance).hexdigest()[:_NAMELESS_DIGITS]
