"""Safe access to user files (configurations, keys, tokens): size and time of reads are limited.

Files with secrets must have restrictive modes, and are replaced atomically.
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
_KEY_PARTS_MAX = 64  # limit of a TOML key's parts, more than any valid file has
_QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')
FILE_WAIT_S = 10.0  # seconds to wait for each part of the input from a pipe or terminal


Stamp = tuple[int, int, int]


def file_stamp(path: str | Path) -> Stamp:
    """Return values that change with each write of a file; zeros if it does not exist."""
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def monotonic_us() -> int:
    """Return a monotonic clock, us."""
    return time.monotonic_ns() // 1000


class FileWatcher:
    """Detects that a file changed and then stayed unchanged for `KEYS_UNCHANGED_US`. Owned by one thread at a time.

    The delay avoids half-written files: `cp`, and editors that write in place, produce a partial file for a moment. A partial file
    can look complete.
    """

    def __init__(self, path: str | Path, read_stamp: Stamp, clock_us: Callable[[], int] = monotonic_us) -> None:
        """Watch a file. `read_stamp` is its stamp before the last read; `clock_us` returns the time."""
        self._path = path
        self._read_stamp = self._seen = read_stamp
        self._clock_us = clock_us
        self._since_us = clock_us()

    def check(self) -> Stamp | None:
        """Return the file's stamp if it must be read again, else None. The answer stays until `mark_read`."""
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
        OSError: the file cannot be read, has more than `bytes_max` bytes, or no process writes into the pipe; the error names the
            path.
    """
    # A plain open of a pipe waits without limit for a process that writes into it.
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
        except BlockingIOError:  # another process has read the data from the same pipe
            continue
        if not part:
            return bytes(data)
        data += part
    raise OSError(errno.EFBIG, f"it is larger than {bytes_max} bytes")


class TooDeep(ValueError):
    """A TOML key has too many parts: the parser needs quadratic time for them."""

    def __init__(self, line: int) -> None:
        """Name the line (from 1) of the key."""
        super().__init__(f"a key has more than {_KEY_PARTS_MAX} parts (at line {line})")
        self.line = line


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

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
        made_by: remedy for the error text: the command that creates such a file.

    Raises:
        ConfigError: the file is not readable, too large, or not TOML. The message contains none of its content.
    """
    try:
        data, found = read_limited(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}): {remedy(error, made_by)}") from None
    try:
        return parse_toml(data.decode()), found
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, an integer of thousands of digits, nested too deeply
        raise ConfigError(f"{path} is not TOML ({error}): {made_by}") from None


def check_private(path: str | Path, found: os.stat_result) -> None:
    """Check that only its owner can read or write a file with a secret.

    Raises:
        ConfigError: other users can read or write the file.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path} contains a secret, and other users can read or write it (mode {mode:04o}): chmod 600 {path}")


def check_not_world_writable(path: str | Path, found: os.stat_result) -> None:
    """Check that not every user can write a file that grants access.

    Raises:
        ConfigError: every user can write the file.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o002:
        raise ConfigError(f"{path} grants access, and every user can write it (mode {mode:04o}): chmod 644 {path}")


def write_new(path: Path, text: str, mode: int) -> None:
    """Create a file with a text.

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


def check_certificate(certificate: str | Path, key: str | Path) -> None:
    """Check that a certificate and its key are usable.

    Raises:
        ConfigError: a file is not readable, other users can read the key, or the two do not match.
    """
    import ssl  # noqa: PLC0415 - only gateways with a certificate load it

    try:
        for path in (certificate, key):
            found = read_limited(path)[1]
            if not stat.S_ISREG(found.st_mode):  # pipes do not work, because the library reads the file again after changes
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        check_private(key, found)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise ConfigError(
            f"{certificate} and {key} are not a certificate and its key ({reason}): give a matching pair in PEM format"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{error.filename or certificate} cannot be read ({reason}): {remedy(error, 'give a PEM file')}"
        ) from None


def _no_password() -> str:
    """Return an empty password, because a gateway cannot ask for one."""
    return ""
