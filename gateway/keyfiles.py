"""Files that hold keys and tokens: read within a bound and as TOML, judged by who else may read or write them, written whole."""

from __future__ import annotations

import os
import stat
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.core import limits
from gateway.errors import ConfigError, remedy

FILE_BYTES_MAX = 1 * limits.MIB


Stamp = tuple[int, int, int]


def stamp(path: str | Path) -> Stamp:
    """What changes when a file is written; zeros while there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def monotonic_us() -> int:
    """A clock that is never set, us."""
    return time.monotonic_ns() // 1000


class Changes:
    """Whether a file is another one than it was, told once it has stood still for a while: who writes it in place (`cp`, an editor)
    leaves half of it there for a moment, which may look whole. Owned by one thread at a time.
    """

    def __init__(self, path: str | Path, taken: Stamp, clock_us: Callable[[], int] = monotonic_us) -> None:
        """`taken` is its stamp as it was before it was read; `clock_us` tells the time."""
        self._path = path
        self._taken = self._seen = taken
        self._clock_us = clock_us
        self._since_us = clock_us()

    def look(self) -> Stamp | None:
        """The stamp of the file where it is to be read again, else None. It is so until `take`."""
        seen, now_us = stamp(self._path), self._clock_us()
        if seen != self._seen or now_us < self._since_us:
            self._seen, self._since_us = seen, now_us
        return seen if seen != self._taken and now_us - self._since_us >= limits.KEYS_STILL_US else None

    def take(self, read: Stamp) -> None:
        """The file was read as it was with that stamp."""
        self._taken = read


def read_toml(path: str | Path, made_by: str) -> tuple[dict[str, Any], os.stat_result]:
    """What a file holds, and what the system knows of it.

    Args:
        path: of the file.
        made_by: what makes a good one, for an error.

    Raises:
        ConfigError: it cannot be read, it is too large, or no TOML; nothing of what it holds is in the message.
    """
    try:
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}): {remedy(error, made_by)}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes: it is no such file; {made_by}")
    try:
        return tomllib.loads(data.decode()), found
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, an integer of thousands of digits, nested too deeply
        raise ConfigError(f"{path} is not TOML ({error}): {made_by}") from None


def check_private(path: str | Path, found: os.stat_result) -> None:
    """Refuse a file with a secret that others than its user may read or write.

    Raises:
        ConfigError: they may.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path} holds a secret and others may read or write it (mode {mode:04o}): chmod 600 {path}")


def check_guarded(path: str | Path, found: os.stat_result) -> None:
    """Refuse a file that says who may come in, where all may write it.

    Raises:
        ConfigError: they may.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o002:
        raise ConfigError(f"{path} says who may come in, and everybody may write it (mode {mode:04o}): chmod 644 {path}")


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a file that is not there yet.

    Raises:
        OSError: it is there, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # whatever the umask takes away
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def write_whole(path: str | Path, text: str, mode: int) -> None:
    """Write a file anew, whole or not at all: somebody may read it at any moment.

    Raises:
        OSError: it cannot be written.
    """
    place = Path(path)
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    write_new(fresh, text, mode)
    fresh.replace(place)


def check_certificate(certificate: str | Path, key: str | Path) -> None:
    """Refuse a certificate and its key that cannot serve.

    Raises:
        ConfigError: one cannot be read, others may read the key, or they are not of each other; the message says what to do.
    """
    import ssl  # noqa: PLC0415 - for those alone who have a certificate

    try:
        with Path(certificate).open("rb"), Path(key).open("rb") as file:
            check_private(key, os.fstat(file.fileno()))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise ConfigError(
            f"{certificate} and {key} are no certificate and its key ({reason}): name both as PEM, of one pair"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{error.filename or certificate} cannot be read ({reason}): {remedy(error, 'name a file of PEM')}"
        ) from None


def _no_password() -> str:
    """A gateway has nobody to ask."""
    return ""
