"""Safe access to user files (configurations, keys, tokens).

Reads are limited in size and time. Files with secrets must have restrictive modes. Files are replaced atomically.
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
_KEY_PARTS_MAX = 64  # limit of the parts of a dotted TOML key; valid files have fewer
_QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')
FILE_WAIT_S = 10.0  # longest wait for the next part of the input from a pipe or terminal


Stamp = tuple[int, int, int]


def file_stamp(path: str | Path) -> Stamp:
    """Return modification time, inode and size, which change with each write of a file; zeros if the file does not exist."""
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def monotonic_us() -> int:
    """Return the time of a monotonic clock in microseconds."""
    return time.monotonic_ns() // 1000


class FileWatcher:
    """Detects that a file has changed and has then stayed unchanged for `KEYS_UNCHANGED_US`. Used by one thread at a time.

    The delay avoids the read of a partial file, which can look complete. `cp`, and editors that write in place, produce a partial
    file for a moment.
    """

    def __init__(self, path: str | Path, read_stamp: Stamp, clock_us: Callable[[], int] = monotonic_us) -> None:
        """Watch a file. `read_stamp` is the stamp that the file had when it was last read; `clock_us` returns the time."""
        self._path = path
        self._read_stamp = self._seen = read_stamp
        self._clock_us = clock_us
        self._since_us = clock_us()

    def check(self) -> Stamp | None:
        """Return the file's stamp if the file must be read again, else None. `mark_read` records that it was read."""
        seen, now_us = file_stamp(self._path), self._clock_us()
        if seen != self._seen or now_us < self._since_us:
            self._seen, self._since_us = seen, now_us
        return seen if seen != self._read_stamp and now_us - self._since_us >= limits.KEYS_UNCHANGED_US else None

    def mark_read(self, stamp: Stamp) -> None:
        """Record that the file was read with this stamp."""
        self._read_stamp = stamp


def read_limited(path: str | Path, bytes_max: int = FILE_BYTES_MAX) -> tuple[bytes, os.stat_result]:
    """Return the content of a file and its status. The path may be a pipe (`<(...)` of a shell) or a device.

    Raises:
        OSError: the file cannot be read, has more than `bytes_max` bytes, or no input arrives; the error contains the path.
    """
    # Open without blocking, because a plain open of a named pipe waits without limit for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except ValueError:
        raise OSError(errno.EINVAL, "the path contains a zero byte", str(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "it is a socket, or a device that does not exist", str(path)) from None
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
            raise OSError(errno.ETIMEDOUT, f"no input arrived for {FILE_WAIT_S:g} s")
        try:
            part = os.read(descriptor, bytes_max + 1 - len(data))
        except BlockingIOError:  # another reader of the same pipe has taken the data
            continue
        if not part:
            return bytes(data)
        data += part
    raise OSError(errno.EFBIG, f"it is larger than {bytes_max} bytes")


class TooDeep(ValueError):
    """A dotted TOML key has too many parts. The parser would need quadratic time for the key."""

    def __init__(self, line: int) -> None:
        """Compose the message; `line` is the line of the key, from 1."""
        super().__init__(f"a key has more than {_KEY_PARTS_MAX} parts (at line {line})")
        self.line = line


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text, after a check for keys that take too long to parse.

    Raises:
        TooDeep: a key has too many parts.
        ValueError, RecursionError: as `tomllib.loads`.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _KEY_PARTS_MAX and _QUOTED.sub("", line).partition("#")[0].count(".") > _KEY_PARTS_MAX:
            raise TooDeep(number)
    return tomllib.loads(text)


def read_toml(path: str | Path, made_by: str) -> tuple[dict[str, Any], os.stat_result]:
    """Read a TOML file. Return its content and its status.

    Args:
        path: path of the file.
        made_by: remedy in error messages: the command that creates a file of this kind.

    Raises:
        ConfigError: the file is not readable, too large, or not TOML. The message contains nothing from the file, because it may be
            secret.
    """
    try:
        data, found = read_limited(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}): {remedy(error, made_by)}") from None
    try:
        return parse_toml(data.decode()), found
    except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8, and integers with thousands of digits
        raise ConfigError(f"{path} is not TOML ({error}): {made_by}") from None


def check_private(path: str | Path, found: os.stat_result) -> None:
    """Check that only the owner of a file with a secret can read or write it.

    Raises:
        ConfigError: other users can read or write the file.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path} contains a secret, and other users can read or write it (mode {mode:04o}): chmod 600 {path}")


def check_not_world_writable(path: str | Path, found: os.stat_result) -> None:
    """Check that a file that grants access is not writable by every user.

    Raises:
        ConfigError: every user can write the file.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o002:
        raise ConfigError(f"{path} grants access, and every user can write it (mode {mode:04o}): chmod 644 {path}")


def write_new(path: Path, text: str, mode: int) -> None:
    """Create a file with this text and mode, durably.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # independent of the umask
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def replace_text(path: str | Path, text: str, mode: int) -> None:
    """Replace a file atomically, so that concurrent readers never see a partial file.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    write_new(temporary, text, mode)
    temporary.replace(target)
