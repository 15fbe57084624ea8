"""Who may do what: tokens, their rights, and the file that lists them (docs/how-to/security.md).

A token is 32 random bytes as text, which whoever has it may do what is listed for it. The file holds no token, only the SHA-256 of
each: a token has more bits than anybody can try, so that nothing slower is needed, and who reads the file can let nobody in.

    [tokens.jfk-feed]
    sha256 = "<64 hexadecimal digits>"
    produce = ["flights*"]              # topics that it may write to; `*` stands for any run of characters
    read = ["*"]                        # topics that it may read
    producers = ["jfk-*"]               # producers' names that it may write under; left out: all
    admin = true                        # may do what changes the group, and see it; left out: may not
    expires = 2027-01-31T00:00:00Z      # left out: never

The file is read again when it changed and has stood still for a moment; one that is to list nothing has `[tokens]` alone. What a
mistake in it says does not count then, and what was read before still holds.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tutti import limits
from tutti.data.names import NAME_BYTES_MAX, check_name, is_nameless
from tutti.errors import ConfigError, NotAllowed, UsageError
from tutti.runtime.fsync import make_directory
from tutti.security.key_files import Changes, check_guarded, read_toml, stamp, write_whole

PREFIX = "tutti_"  # so that who finds one in a text knows what it is
TOKEN_BYTES = 32
_MADE_BY = "`tutti tokens new` makes it"
_KEYS = frozenset({"sha256", "produce", "read", "producers", "admin", "expires"})
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PATTERN = re.compile(rf"[A-Za-z0-9._*-]{{1,{NAME_BYTES_MAX}}}\Z")
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

#: Codes of `NotAllowed`: it is not known who asks; who asks may not do this.
WHO, WHAT = "token", "rights"


class Access(NamedTuple):
    """Who somebody is, and what they may do.

    Attributes:
        name: of the token; of the gateway, for one of those.
        sha256: of the token, hexadecimal; empty for a gateway.
        produce, read: patterns of topics that it may write to and read.
        admin: whether it may do what changes the group.
        expires_us: when that ends, us since 1970, UTC; 0: never.
        producers: patterns of the names that it may write under.
    """

    name: str
    sha256: str = ""
    produce: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    admin: bool = False
    expires_us: int = 0
    producers: tuple[str, ...] = ("*",)

    def may_produce(self, topic: str) -> bool:
        """Whether it may write to a topic."""
        return any(_matches(pattern, topic) for pattern in self.produce)

    def may_read(self, topic: str) -> bool:
        """Whether it may read a topic."""
        return any(_matches(pattern, topic) for pattern in self.read)

    @property
    def may_read_all(self) -> bool:
        """Whether it may read every topic, those that do not exist yet too."""
        return "*" in self.read

    def require_produce(self, topic: str) -> None:
        """Refuse a topic that it may not write to.

        Raises:
            NotAllowed: it may not.
        """
        if not self.may_produce(topic):
            raise NotAllowed(
                f"token {self.name!r} may not write to topic {topic!r}: ask for one that may (`tutti tokens new --produce`)", WHAT
            )

    def require_producer(self, name: str) -> None:
        """Refuse a producer's name that it may not write under; one that was made up at random is anybody's.

        Raises:
            NotAllowed: it may not, or may write nothing at all.
        """
        if not self.produce:
            raise NotAllowed(
                f"token {self.name!r} may write to no topic: ask for one that may (`tutti tokens new --produce`)", WHAT
            )
        if not is_nameless(name) and not any(_matches(pattern, name) for pattern in self.producers):
            raise NotAllowed(f"token {self.name!r} may not write as producer {name!r}: ask for one that may", WHAT)

    def require_read(self, topics: Iterable[str] | None) -> None:
        """Refuse topics (None: all) that it may not read.

        Raises:
            NotAllowed: it may not read one of them.
        """
        if self.may_read_all:
            return
        if topics is None:
            mine = ", ".join(self.read) or "none"
            raise NotAllowed(f"token {self.name!r} may not read all topics (it may read: {mine}): name the topics to be read", WHAT)
        for topic in topics:
            if not self.may_read(topic):
                raise NotAllowed(
                    f"token {self.name!r} may not read topic {topic!r}: ask for one that may (`tutti tokens new --read`)", WHAT
                )

    def require_reader(self) -> None:
        """Refuse who may read nothing, and so has no offset to save.

        Raises:
            NotAllowed: it may read no topic.
        """
        if not self.read:
            raise NotAllowed(f"token {self.name!r} may read no topic, and so be no reader: ask for one that may", WHAT)

    def require_admin(self, to_do: str) -> None:
        """Refuse who may not administer the group; `to_do` says what was wanted.

        Raises:
            NotAllowed: it may not.
        """
        if not self.admin:
            raise NotAllowed(f"token {self.name!r} may not {to_do}: that takes one with --admin (`tutti tokens new`)", WHAT)


#: Who asks where nobody is asked who they are.
ANYBODY = Access("", produce=("*",), read=("*",), admin=True)


def gateway_access(name: str) -> Access:
    """A gateway of the group, known by its key: it asks for all, on behalf of nobody."""
    return Access(name, produce=("*",), read=("*",), admin=True)


def _matches(pattern: str, topic: str) -> bool:
    """Whether a topic is of a pattern, in which `*` is any run of characters."""
    first, *rest = pattern.split("*")
    if not rest:
        return topic == first
    if not topic.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = topic.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(topic) - at >= len(rest[-1]) and topic.endswith(rest[-1])


def new_token() -> str:
    """A new token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    """What the file holds of a token: its SHA-256, hexadecimal."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


class Tokens:
    """The tokens that a file lists. Thread-safe.

    Attributes:
        trouble: why the file could not be read again, empty if it could. What it said before holds on.
        refused: how often who asked was refused, by why: "missing", "unknown", "expired", "rights".
        version: counts how often the file was read.
    """

    def __init__(self, path: str | Path, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        """Read the file; `clock_us` tells the time, us since 1970, UTC.

        Raises:
            ConfigError: it cannot be read, or something in it is wrong.
        """
        self._path = Path(path)
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._changes = Changes(path, stamp(path), clock_us)
        self._looked_us = clock_us()
        self._known = {access.sha256: access for access in read_tokens(path).values()}
        self.trouble = ""
        self.refused: Counter[str] = Counter()
        self.version = 1

    def __len__(self) -> int:
        """How many there are."""
        return len(self._known)

    def who(self, token: str | None) -> Access:
        """Who shows a token.

        Raises:
            NotAllowed: nobody is known by it, or not any more; which of them is not said to who asks, `refused` counts it.
        """
        self.refresh()
        if not token:
            raise self._nobody("missing", "a token is wanted here and none came: set TUTTI_TOKEN_FILE, or give `credentials`")
        digest = digest_of(token[: limits.TOKEN_CHARACTERS_MAX])
        found = self._known.get(digest)  # the time tells of a hash at most, which nobody can choose
        if found is not None and not hmac.compare_digest(found.sha256, digest):
            found = None
        unknown = "the token is not known here, or has expired: ask for a new one (`tutti tokens new`)"
        if found is None:
            raise self._nobody("unknown", unknown)
        if not self._lasts(found):
            raise self._nobody("expired", unknown)
        return found

    def still(self, access: Access) -> Access | None:
        """What somebody known from `who` may do by now; None if they are not known any more, or no longer."""
        found = self._known.get(access.sha256)
        return found if found is not None and self._lasts(found) else None

    def count_refused(self, error: NotAllowed) -> None:
        """Count a caller who is known and asked for what its rights do not allow."""
        if error.code == WHAT:
            self.count(WHAT)

    def count(self, reason: str, times: int = 1) -> None:
        """Count rejected callers."""
        with self._lock:
            self.refused[reason] += times

    def refresh(self) -> None:
        """Read the file again if it changed, looking once in a while."""
        now_us = self._clock_us()
        with self._lock:
            if 0 <= now_us - self._looked_us < limits.KEYS_LOOK_US:
                return
            self._looked_us = now_us
            seen = self._changes.look()
            if seen is None:
                return
            try:
                known = read_tokens(self._path)
            except ConfigError as error:  # whatever it is may pass though the file stays as it is: it is read again
                self.trouble = f"the tokens that were read before still hold: {error}"
                return
            self._changes.take(seen)
            self.trouble = ""
            self._known = {access.sha256: access for access in known.values()}
            self.version += 1

    def _lasts(self, access: Access) -> bool:
        return not access.expires_us or self._clock_us() < access.expires_us

    def _nobody(self, why: str, reason: str) -> NotAllowed:
        self.count(why)
        return NotAllowed(reason, WHO)


def read_tokens(path: str | Path) -> dict[str, Access]:
    """The tokens of a file, by name.

    Raises:
        ConfigError: it cannot be read, everybody may write it, or something in it is wrong; the message names it.
    """
    tree, found = read_toml(path, _MADE_BY)
    table = tree.get("tokens")  # nothing at all is no empty list: the file may be written at this moment
    if set(tree) - {"tokens"} or not isinstance(table, dict):
        raise ConfigError(
            f"{path} lists no tokens: write [tokens.NAME] tables and nothing else, or [tokens] alone for none; {_MADE_BY}"
        )
    if len(table) > limits.TOKENS_MAX:
        raise ConfigError(f"{path} lists {len(table)} tokens, and {limits.TOKENS_MAX} are taken: take old ones out")
    tokens = {name: _access(path, name, told) for name, told in table.items()}
    owner: dict[str, str] = {}
    for name, access in tokens.items():
        if access.sha256 in owner:
            raise ConfigError(f"{path}: {owner[access.sha256]} and {name} are one token: give each its own with `tutti tokens new`")
        owner[access.sha256] = name
    check_guarded(path, found)
    return tokens


def _access(path: str | Path, name: str, told: object) -> Access:
    try:
        check_name("token", name)
    except UsageError as error:
        raise ConfigError(f"{path}: {error}") from None
    where = f"{path}: tokens.{name}"
    if not isinstance(told, dict):
        raise ConfigError(f"{where} is no table: write [tokens.{name}] and what it has below it")
    if unknown := set(told) - _KEYS:
        raise ConfigError(f"{where} has {', '.join(sorted(unknown))[:100]}: it takes {', '.join(sorted(_KEYS))}")
    digest, admin, expires = told.get("sha256"), told.get("admin", False), told.get("expires")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise ConfigError(
            f"{where}.sha256 is no SHA-256: it takes 64 hexadecimal digits; {_MADE_BY}, and the token itself is not kept"
        )
    if not isinstance(admin, bool):
        raise ConfigError(f"{where}.admin is {admin!r}: it takes true or false")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise ConfigError(f"{where}.expires is {expires}: it takes a time with a zone, 2027-01-31T00:00:00Z for example")
    try:
        expires_us = (expires.astimezone(UTC) - _EPOCH) // _MICROSECOND or 1 if expires is not None else 0  # 0 would be never
    except OverflowError:
        raise ConfigError(f"{where}.expires is {expires}, which is outside of the years 1 to 9999 in UTC") from None
    produce, read, producers = (_patterns(where, told, kind) for kind in ("produce", "read", "producers"))
    return Access(name, digest, produce, read, admin, expires_us, producers if "producers" in told else ("*",))


def _patterns(where: str, told: Mapping[str, object], kind: str) -> tuple[str, ...]:
    found = told.get(kind, [])
    if not isinstance(found, list) or len(found) > limits.RIGHT_PATTERNS_MAX:
        raise ConfigError(f'{where}.{kind} takes a list of up to {limits.RIGHT_PATTERNS_MAX} topics: ["flights*"]')
    return tuple(check_pattern(pattern, f"{where}.{kind}") for pattern in found)


def check_pattern(pattern: object, where: str) -> str:
    """`pattern` if it is one of topics.

    Raises:
        ConfigError: it is not; `where` says where it stands.
    """
    if not isinstance(pattern, str) or not _PATTERN.match(pattern):
        raise ConfigError(f"{where} has {pattern!r}: a topic takes letters, digits, '.', '_', '-', and '*' for any run of them")
    return pattern


def change_tokens(path: str | Path, change: Callable[[dict[str, Access]], None]) -> None:
    """Change the tokens of a file, which is made if it is missing; one who changes it waits for another.

    Raises:
        ConfigError: what is there is no file of tokens, or what `change` raises; nothing was written then.
        OSError: it cannot be written.
    """
    place = Path(path)
    make_directory(place.parent, 0o777)
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        tokens = read_tokens(place) if place.exists() else {}
        change(tokens)
        if len(tokens) > limits.TOKENS_MAX:
            raise ConfigError(f"{path} would list {len(tokens)} tokens, and {limits.TOKENS_MAX} are taken: take old ones out first")
        write_whole(place, _text(tokens.values()), 0o644)
    finally:
        os.close(directory)


def _text(tokens: Iterable[Access]) -> str:
    told = "# Tokens of clients, each by its SHA-256: the same file on every host. `tutti tokens` changes it.\n\n[tokens]\n"
    for access in sorted(tokens):
        name = f'"{access.name}"' if "." in access.name else access.name
        told += f'\n[tokens.{name}]\nsha256 = "{access.sha256}"\n'
        for kind, patterns in (("produce", access.produce), ("read", access.read)):
            if patterns:
                told += f"{kind} = [{', '.join(map(_quoted, patterns))}]\n"
        if access.producers != ("*",):
            told += f"producers = [{', '.join(map(_quoted, access.producers))}]\n"
        if access.admin:
            told += "admin = true\n"
        if access.expires_us:
            told += f"expires = {(_EPOCH + access.expires_us * _MICROSECOND).isoformat().replace('+00:00', 'Z')}\n"
    return told


def _quoted(pattern: str) -> str:
    return f'"{pattern}"'
