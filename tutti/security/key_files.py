"""Files that people write (configurations, keys, tokens): read within a bound of bytes and time. Those that hold secrets are
checked for who else may read or write them, and are written whole.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tutti import limits
from tutti.errors import ConfigError, remedy

FILE_BYTES_MAX = 1 * limits.MIB
_KEY_PARTS_MAX = 64  # of a key in TOML, more than any file of ours has
_QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')
FILE_WAIT_S = 10.0  # for each part of what a pipe or a terminal gives in place of a file


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


def read_whole(path: str | Path, bytes_max: int = FILE_BYTES_MAX) -> tuple[bytes, os.stat_result]:
    """Return what a file holds and its status. The path may be a pipe (`<(...)` of a shell) or a device.

    Raises:
        OSError: the file cannot be read, holds more than `bytes_max` bytes, or nothing writes into the pipe; it names the path.
    """
    # A plain open of a pipe waits without limit for a process that writes into it.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except ValueError:
        raise OSError(errno.EINVAL, "the path holds a zero byte", str(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "it is a socket, or a device that is not there", str(path)) from None
        raise
    try:
        return _read(descriptor, bytes_max), os.fstat(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, bytes_max: int) -> bytes:
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    data = bytearray()
    while len(data) <= bytes_max:
        if not ready.poll(FILE_WAIT_S * 1000):
            raise OSError(errno.ETIMEDOUT, f"nothing was written into it for {FILE_WAIT_S:g} s")
        try:
            part = os.read(descriptor, bytes_max + 1 - len(data))
        except BlockingIOError:  # another process that reads the same pipe was quicker
            continue
        if not part:
            return bytes(data)
        data += part
    raise OSError(errno.EFBIG, f"it is larger than {bytes_max} bytes")


class TooDeep(ValueError):
    """A TOML text has a key of so many parts that the parser, which takes quadratic time for them, would not end soon."""

    def __init__(self, line: int) -> None:
        """`line`: on which the key stands, from 1."""
        super().__init__(f"a key has more than {_KEY_PARTS_MAX} parts (at line {line})")
        self.line = line


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds.

    Raises:
        TooDeep: it has a key of too many parts.
        ValueError, RecursionError: as `tomllib.loads`.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _KEY_PARTS_MAX and _QUOTED.sub("", line).partition("#")[0].count(".") > _KEY_PARTS_MAX:
            raise TooDeep(number)
    return tomllib.loads(text)


def read_toml(path: str | Path, made_by: str) -> tuple[dict[str, Any], os.stat_result]:
    """What a file holds, and what the system knows of it.

    Args:
        path: of the file.
        made_by: what makes a good one, for an error.

    Raises:
        ConfigError: it cannot be read, it is too large, or no TOML; nothing of what it holds is in the message.
    """
    try:
        data, found = read_whole(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}): {remedy(error, made_by)}") from None
    try:
        return parse_toml(data.decode()), found
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
        for path in (certificate, key):
            found = read_whole(path)[1]
            if not stat.S_ISREG(found.st_mode):  # it is read again: by the library, and when it changes
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        check_private(key, found)
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
