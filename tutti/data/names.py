"""What names may look like: topics, producers, gateways, groups, named readers."""

from __future__ import annotations

import hashlib
import re

from tutti.errors import UsageError

NAME_BYTES_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")
#: Producers without a name get a random one behind this sign, which no chosen name may start with.
NAMELESS = "~"
_NAMELESS_DIGITS = 24
#: What the log let go of is shown as this sign and its number, a form that no name has.
FORGOTTEN = "#"


def check_name(what: str, name: object) -> str:
    """`name` if it is a good name for a `what` ("topic", "producer", ...).

    Letters, digits, dot, underscore and hyphen, 1 to 249 of them, as Kafka's topics, so that names travel between both.

    Raises:
        UsageError: it is not; the message names the first wrong character.
    """
    if not isinstance(name, str):
        raise UsageError(f"a {what} name is text, not {type(name).__name__} ({name!r})")
    if not name or name in {".", ".."}:
        raise UsageError(f"{name!r} is no {what} name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-'")
    if len(name) > NAME_BYTES_MAX:
        raise UsageError(f"the {what} name {name[:40]!r}... has {len(name)} characters; at most {NAME_BYTES_MAX} are taken")
    if not _NAME.match(name):
        wrong = next(character for character in name if not _NAME.match(character))
        raise UsageError(f"the {what} name {name!r} has {wrong!r} in it: use letters, digits, '.', '_' and '-'")
    return name


def is_name(name: str) -> bool:
    """Whether `check_name` takes it."""
    return len(name) <= NAME_BYTES_MAX and name not in {".", ".."} and bool(_NAME.match(name))


def check_producer(name: str) -> str:
    """Like `check_name` for a producer, a nameless one (a `~` in front) included."""
    if name.startswith(NAMELESS):
        return NAMELESS + check_name("producer", name[1:])
    return check_name("producer", name)


def forgotten_name(number: int) -> str:
    """What stands for the name of a producer or a gateway that the log has let go of."""
    return f"{FORGOTTEN}{number}"


def is_nameless(name: str) -> bool:
    """Whether the producer was given its name at random, so that it may be forgotten when it is idle."""
    return name.startswith(NAMELESS)


def nameless_name(instance: bytes) -> str:
    """The name of a producer that was given none: made of its instance, 16 random bytes that are in no record, so that whoever has
    these shows that it is this producer, and whoever has read the name alone cannot.
    """
    return NAMELESS + hashlib.sha256(b"tutti producer " + instance).hexdigest()[:_NAMELESS_DIGITS]
