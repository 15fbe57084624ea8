"""Tokens, their rights, and the token file (docs/how-to/security.md).

A token is 32 random bytes as text, and gives a client the rights that the token file lists. The file contains only the SHA-256 of
each token, so a process that can read the file cannot use the tokens. A fast hash is enough, because 256 random bits cannot be
guessed.

    [tokens.jfk-feed]
    sha256 = "<64 hexadecimal digits>"
    produce = ["flights*"]              # topics that the token can write to; `*` matches any characters
    read = ["*"]                        # topics that the token can read
    producers = ["jfk-*"]               # producer names that the token can use; default: all
    admin = true                        # right to administer the group; default: no
    expires = 2027-01-31T00:00:00Z      # default: never
    records_per_s = 1000                # quota at each gateway; default: none
    bytes_per_s = 1000000               # quota at each gateway; default: none

After a change, the gateway reads the file again, as soon as it has stayed unmodified for about a second. If the changed file has a
mistake, the previous tokens stay valid. A file without tokens contains only `[tokens]`.
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
from tutti.errors import ConfigError, NotAllowed, UsageError, WrongFile
from tutti.runtime.durable_files import make_directory
from tutti.security.user_files import FileWatcher, check_not_world_writable, file_stamp, read_toml, replace_text

PREFIX = "tutti_"  # lets scanners for leaked secrets recognise a token
TOKEN_BYTES = 32
_MADE_BY = "`tutti tokens new` makes it"
_QUOTAS = ("records_per_s", "bytes_per_s")
_KEYS = frozenset({"sha256", "produce", "read", "producers", "admin", "expires", *_QUOTAS})
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PATTERN = re.compile(rf"[A-Za-z0-9._*-]{{1,{NAME_BYTES_MAX}}}\Z")
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

#: Codes of `NotAllowed`: "token" for a caller without a valid token, "rights" for a caller that lacks a right.
UNAUTHENTICATED, NO_RIGHT = "token", "rights"


class Access(NamedTuple):
    """Identity and rights of a caller.

    Attributes:
        name: name of the token, or of the gateway.
        sha256: hexadecimal SHA-256 of the token; empty for a gateway.
        produce, read: patterns of the topics that the caller can write to and read.
        admin: whether the caller can administer the group.
        expires_us: end of validity, us since 1970, UTC; 0 means never.
        producers: patterns of the producer names that the caller can use.
        records_per_s, bytes_per_s: quotas for the batches that one gateway accepts; 0 means no quota.
    """

    name: str
    sha256: str = ""
    produce: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    admin: bool = False
    expires_us: int = 0
    producers: tuple[str, ...] = ("*",)
    records_per_s: int = 0
    bytes_per_s: int = 0

    @property
    def has_quota(self) -> bool:
        """True if a quota limits the caller's batches."""
        return bool(self.records_per_s or self.bytes_per_s)

    def may_produce(self, topic: str) -> bool:
        """True if the caller can write to the topic."""
        return any(_matches(pattern, topic) for pattern in self.produce)

    def may_read(self, topic: str) -> bool:
        """True if the caller can read the topic."""
        return any(_matches(pattern, topic) for pattern in self.read)

    @property
    def may_read_all(self) -> bool:
        """True if the caller can read every topic, including future ones."""
        return "*" in self.read

    def require_produce(self, topic: str) -> None:
        """Check the right to write to a topic.

        Raises:
            NotAllowed: the caller lacks the right.
        """
        if not self.may_produce(topic):
            raise NotAllowed(
                f"token {self.name!r} may not write to topic {topic!r}: ask for a token that may (`tutti tokens new --produce`)",
                NO_RIGHT,
            )

    def require_producer(self, name: str) -> None:
        """Check the right to use a producer name. Every caller with a write right can use producers without a name.

        Raises:
            NotAllowed: the caller lacks the right, or cannot write to any topic.
        """
        if not self.produce:
            raise NotAllowed(
                f"token {self.name!r} may write to no topic: ask for a token that may (`tutti tokens new --produce`)", NO_RIGHT
            )
        if not is_nameless(name) and not any(_matches(pattern, name) for pattern in self.producers):
            raise NotAllowed(f"token {self.name!r} may not write as producer {name!r}: ask for a token that may", NO_RIGHT)

    def require_read(self, topics: Iterable[str] | None) -> None:
        """Check the right to read topics (None: all).

        Raises:
            NotAllowed: the caller cannot read one of the topics.
        """
        if self.may_read_all:
            return
        if topics is None:
            readable = ", ".join(self.read) or "none"
            raise NotAllowed(
                f"token {self.name!r} may not read all topics (it may read: {readable}): name the topics to be read", NO_RIGHT
            )
        for topic in topics:
            if not self.may_read(topic):
                raise NotAllowed(
                    f"token {self.name!r} may not read topic {topic!r}: ask for a token that may (`tutti tokens new --read`)",
                    NO_RIGHT,
                )

    def require_reader(self) -> None:
        """Check the right to be a named reader, which every caller has that can read at least one topic.

        Raises:
            NotAllowed: the caller can read no topic.
        """
        if not self.read:
            raise NotAllowed(
                f"token {self.name!r} may read no topic, so it cannot save an offset: ask for a token with --read", NO_RIGHT
            )

    def require_admin(self, to_do: str) -> None:
        """Check the right to administer the group; the error message names the operation `to_do`.

        Raises:
            NotAllowed: the caller lacks the right.
        """
        if not self.admin:
            raise NotAllowed(f"token {self.name!r} may not {to_do}: that needs a token with --admin (`tutti tokens new`)", NO_RIGHT)


#: Access of every caller at a gateway without authentication.
FULL_ACCESS = Access("", produce=("*",), read=("*",), admin=True)


def gateway_access(name: str) -> Access:
    """Return the access of a gateway of the group, which its key has authenticated: all rights."""
    return Access(name, produce=("*",), read=("*",), admin=True)


def _matches(pattern: str, topic: str) -> bool:
    """Return True if a topic matches a pattern, in which `*` matches any number of characters."""
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
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal, as in the token file."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


class Tokens:
    """The tokens of a file. Thread-safe.

    Attributes:
        trouble: error of the last reload, after which the previous tokens stay valid; empty if the reload succeeded.
        refused: number of rejected callers by reason: "missing", "unknown", "expired", "rights", or "clear" for an unencrypted
            connection, which the client port counts.
        version: number of successful reads of the file.
    """

    def __init__(self, path: str | Path, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        """Read the file; `clock_us` returns the time, us since 1970, UTC.

        Raises:
            ConfigError: the file is not readable, or its content is wrong.
        """
        self._path = Path(path)
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._changes = FileWatcher(path, file_stamp(path), clock_us)
        self._checked_us = clock_us()
        self._known = {access.sha256: access for access in read_tokens(path).values()}
        self.trouble = ""
        self.refused: Counter[str] = Counter()
        self.version = 1

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._known)

    def authenticate(self, token: str | None) -> Access:
        """Authenticate a token and return its access.

        Raises:
            NotAllowed: the token is missing, unknown or expired. The message is the same for unknown and expired tokens.
        """
        self.refresh()
        if not token:
            raise self._rejection(
                "missing", "this gateway requires a token, and the client sent none: set TUTTI_TOKEN_FILE, or give `credentials`"
            )
        digest = digest_of(token[: limits.TOKEN_CHARACTERS_MAX])
        found = self._known.get(digest)  # a timing attack on this lookup is useless: callers cannot choose the hash of a token
        if found is not None and not hmac.compare_digest(found.sha256, digest):
            found = None
        unknown = "the token is unknown to this gateway, or has expired: ask for a new one (`tutti tokens new`)"
        if found is None:
            raise self._rejection("unknown", unknown)
        if not self._is_valid(found):
            raise self._rejection("expired", unknown)
        return found

    def current_access(self, access: Access) -> Access | None:
        """Return the present access of an authenticated caller; None if the token was removed or has expired."""
        found = self._known.get(access.sha256)
        return found if found is not None and self._is_valid(found) else None

    def count_refused(self, error: NotAllowed) -> None:
        """Count the error if it means that an authenticated caller lacked a right."""
        if error.code == NO_RIGHT:
            self.count(NO_RIGHT)

    def count(self, reason: str, times: int = 1) -> None:
        """Count rejected callers."""
        with self._lock:
            self.refused[reason] += times

    def refresh(self) -> None:
        """Read the file again if it has changed. Check for changes at most once in `KEYS_CHECK_US`."""
        now_us = self._clock_us()
        with self._lock:
            if 0 <= now_us - self._checked_us < limits.KEYS_CHECK_US:
                return
            self._checked_us = now_us
            seen = self._changes.check()
            if seen is None:
                return
            try:
                known = read_tokens(self._path)
            except ConfigError as error:  # without `mark_read`, the next check reads the file again: the cause can be temporary
                self.trouble = f"the tokens read before stay valid: {error}"
                return
            self._changes.mark_read(seen)
            self.trouble = ""
            self._known = {access.sha256: access for access in known.values()}
            self.version += 1

    def _is_valid(self, access: Access) -> bool:
        return not access.expires_us or self._clock_us() < access.expires_us

    def _rejection(self, counter: str, message: str) -> NotAllowed:
        self.count(counter)
        return NotAllowed(message, UNAUTHENTICATED)


def read_tokens(path: str | Path) -> dict[str, Access]:
    """Read the tokens of a file, by name.

    Raises:
        ConfigError: the file is not readable, every user can write it, or its content is wrong.
    """
    tree, found = read_toml(path, _MADE_BY)
    table = tree.get("tokens")  # an empty file is rejected, because another process may still be writing it
    if set(tree) - {"tokens"} or not isinstance(table, dict):
        raise WrongFile(
            f"{path} is not a tokens file: it must contain one table [tokens.NAME] for each token and nothing else, or only the "
            f"line [tokens] for a file without tokens; {_MADE_BY}",
            str(path),
            "tokens",
        )
    if len(table) > limits.TOKENS_MAX:
        raise ConfigError(f"{path} lists {len(table)} tokens, above the limit of {limits.TOKENS_MAX}: remove old ones")
    tokens = {name: _access(path, name, fields) for name, fields in table.items()}
    owner: dict[str, str] = {}
    for name, access in tokens.items():
        if access.sha256 in owner:
            raise ConfigError(
                f"{path}: {owner[access.sha256]} and {name} are the same token: create one for each name with `tutti tokens new`"
            )
        owner[access.sha256] = name
    check_not_world_writable(path, found)
    return tokens


def _access(path: str | Path, name: str, fields: object) -> Access:
    try:
        check_name("token", name)
    except UsageError as error:
        raise ConfigError(f"{path}: {error}") from None
    where = f"{path}: tokens.{name}"
    if not isinstance(fields, dict):
        raise ConfigError(f"{where} is not a table: write [tokens.{name}] and its keys below")
    if unknown := set(fields) - _KEYS:
        raise ConfigError(f"{where} has {', '.join(sorted(unknown))[:100]}: it takes {', '.join(sorted(_KEYS))}")
    digest, admin, expires = fields.get("sha256"), fields.get("admin", False), fields.get("expires")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise ConfigError(
            f"{where}.sha256 is not a SHA-256 hash of a token: write its 64 lower-case hexadecimal digits, never the token itself; "
            f"{_MADE_BY}"
        )
    if not isinstance(admin, bool):
        raise ConfigError(f"{where}.admin is {admin!r}: write true or false")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise ConfigError(f"{where}.expires is {expires}: write a time with a zone, for example 2027-01-31T00:00:00Z")
    try:
        expires_us = (expires.astimezone(UTC) - _EPOCH) // _MICROSECOND or 1 if expires is not None else 0  # 0 would mean never
    except OverflowError:
        raise ConfigError(f"{where}.expires is {expires}: use a time in the years 1 to 9999 in UTC") from None
    produce, read, producers = (_patterns(where, fields, kind) for kind in ("produce", "read", "producers"))
    records_per_s, bytes_per_s = (_quota(where, fields, key) for key in _QUOTAS)
    return Access(
        name,
        digest,
        produce,
        read,
        admin,
        expires_us,
        producers if "producers" in fields else ("*",),
        records_per_s=records_per_s,
        bytes_per_s=bytes_per_s,
    )


def _quota(where: str, fields: Mapping[str, object], key: str) -> int:
    found = fields.get(key)
    if found is None:
        return 0
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= limits.QUOTA_MAX:
        raise ConfigError(
            f"{where}.{key} is {found!r}: it takes a whole number from 1 to {limits.QUOTA_MAX}; for no quota, remove the key"
        )
    return found


def _patterns(where: str, fields: Mapping[str, object], kind: str) -> tuple[str, ...]:
    found = fields.get(kind, [])
    if not isinstance(found, list) or len(found) > limits.RIGHT_PATTERNS_MAX:
        raise ConfigError(f'{where}.{kind} takes a list of up to {limits.RIGHT_PATTERNS_MAX} topics: ["flights*"]')
    return tuple(check_pattern(pattern, f"{where}.{kind}") for pattern in found)


def check_pattern(pattern: object, where: str) -> str:
    """Return `pattern` if it is a valid pattern for topics.

    Raises:
        ConfigError: the pattern is not valid; the message contains its key, `where`.
    """
    if not isinstance(pattern, str) or not _PATTERN.match(pattern):
        raise ConfigError(f"{where} has {pattern!r}: a topic takes letters, digits, '.', '_', '-', and '*' for any run of them")
    return pattern


def change_tokens(path: str | Path, change: Callable[[dict[str, Access]], None]) -> None:
    """Change the tokens of a file under a lock; `change` gets the tokens by name. Create the file if it does not exist.

    Raises:
        ConfigError: the file is not a token file, or would have too many tokens, or `change` raised; the file is unchanged.
        OSError: the file cannot be written.
    """
    target = Path(path)
    make_directory(target.parent, 0o777)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        tokens = read_tokens(target) if target.exists() else {}
        change(tokens)
        if len(tokens) > limits.TOKENS_MAX:
            raise ConfigError(
                f"{path} would list {len(tokens)} tokens, above the limit of {limits.TOKENS_MAX}: remove old ones first"
            )
        replace_text(target, _text(tokens.values()), 0o644)
    finally:
        os.close(directory)


def _text(tokens: Iterable[Access]) -> str:
    text = "# Tokens of clients, each by its SHA-256: the same file on every host. `tutti tokens` changes it.\n\n[tokens]\n"
    for access in sorted(tokens):
        name = f'"{access.name}"' if "." in access.name else access.name
        text += f'\n[tokens.{name}]\nsha256 = "{access.sha256}"\n'
        for kind, patterns in (("produce", access.produce), ("read", access.read)):
            if patterns:
                text += f"{kind} = [{', '.join(map(_quoted, patterns))}]\n"
        if access.producers != ("*",):
            text += f"producers = [{', '.join(map(_quoted, access.producers))}]\n"
        if access.admin:
            text += "admin = true\n"
        for key in _QUOTAS:
            if quota := getattr(access, key):
                text += f"{key} = {quota}\n"
        if access.expires_us:
            text += f"expires = {(_EPOCH + access.expires_us * _MICROSECOND).isoformat().replace('+00:00', 'Z')}\n"
    return text


def _quoted(pattern: str) -> str:
    return f'"{pattern}"'
