"""Scan of the configured directory: finds files in the order in which they are read."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tutti.data.names import is_name
from tutti.errors import ConfigError, Unavailable, remedy
from tutti.runtime.durable_files import make_directory
from tutti_connect.files import limits

if TYPE_CHECKING:
    from tutti_connect.files.config import SourceConfig

#: Prefix of a file's name during its disposal; scans ignore files with this prefix.
RESERVED_PREFIX = ".tutti-"
_GZIP = ".gz"
_OUTSIDE_TOPICS = "a file outside the topic directories; move it to the directory of its topic, or set topic"


class ScannedFile(NamedTuple):
    """A file that a scan found: its path below the directory, its topic, its stat fields, and whether to copy it."""

    name: str
    topic: str
    inode: int
    size: int
    changed_ns: int
    wanted: bool


class Directory:
    """Scans the directory of a configuration."""

    def __init__(self, config: SourceConfig) -> None:
        """Prepare without scanning."""
        self._config = config
        self.root = Path(config.files.directory)
        self._pattern = re.compile(fnmatch.translate(config.files.pattern))
        self._hidden = config.files.pattern.startswith(".")
        self.skipped: set[str] = set()  # skipped names, with the reason

    def check(self) -> None:
        """Check at the start that the directory is readable, and that files can be moved to their target.

        Raises:
            ConfigError: a directory is unusable; the message has the directory, the problem and the remedy.
        """
        files = self._config.files
        try:
            with os.scandir(self.root):
                pass
            if files.after != "keep" and not os.access(self.root, os.W_OK | os.X_OK):
                raise ConfigError(
                    f'files.directory {self.root} is not writable, but after is "{files.after}": grant write permission'
                )
            if files.done:
                done = Path(files.done)
                make_directory(done)
                if done.stat().st_dev != self.root.stat().st_dev:
                    raise ConfigError(
                        f"files.done {done} is on another file system than {self.root}: choose a directory on the same one"
                    )
                if done.resolve() == self.root.resolve():
                    raise ConfigError(f"files.done {done} is files.directory itself: choose another directory")
            for key, path in (("state", self._config.state), ("quarantine", self._config.quarantine)):
                if self._is_scanned(Path(path).resolve()):
                    raise ConfigError(f"{key} {path} is inside the scanned directories: choose a directory outside {self.root}")
        except OSError as error:
            advice = "create it, or choose a readable directory" + (", and a writable one for done" if files.done else "")
            raise ConfigError(
                f"files.directory {error.filename}: {(error.strerror or str(error)).lower()}: {remedy(error, advice)}"
            ) from error

    def scan(self) -> list[ScannedFile]:
        """Return all files in the order of reading; files that are not copied come last.

        Raises:
            Unavailable: the directory is unreadable at this moment.
        """
        self.skipped = set()
        try:
            found = list(islice(self._all(), limits.FILES_MAX + 1))
        except OSError as error:
            raise Unavailable(f"{error.filename or self.root}: {(error.strerror or str(error)).lower()}") from error
        if len(found) > limits.FILES_MAX:
            raise Unavailable(f"{self.root} has more than {limits.FILES_MAX} files, which is the limit: move some away")
        if self._config.files.order == "time":
            return sorted(found, key=lambda seen: (not seen.wanted, seen.changed_ns, seen.name.encode()))
        return sorted(found, key=lambda seen: (not seen.wanted, seen.name.encode()))

    def _all(self) -> Iterator[ScannedFile]:
        yield from self._files(self.root, "", self._config.topic)
        if not self._config.topic:
            for folder in self._folders():
                yield from self._files(self.root / folder, f"{folder}/", folder)

    def _is_scanned(self, path: Path) -> bool:
        root = self.root.resolve()
        return path == root or (not self._config.topic and path.parent == root and not path.name.startswith("."))

    def _folders(self) -> list[str]:
        with os.scandir(self.root) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        done = Path(self._config.files.done).resolve() if self._config.files.done else None
        names = [name for name in names if (self.root / name).resolve() != done]
        self.skipped |= {f"{_shown(name)}/: not a valid topic name" for name in names if not is_name(name)}
        return [name for name in names if is_name(name)]

    def _files(self, folder: Path, prefix: str, topic: str) -> Iterator[ScannedFile]:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                try:
                    if not entry.is_file():
                        continue
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # deleted during the scan
                if not name.isprintable():  # includes names that are not UTF-8
                    self.skipped.add(f"{prefix}{_shown(name)}: its name has unprintable characters")
                    continue
                wanted = bool(topic) and self._is_wanted(name)
                if not topic and self._is_wanted(name):
                    self.skipped.add(_OUTSIDE_TOPICS)
                yield ScannedFile(prefix + name, topic, status.st_ino, status.st_size, status.st_mtime_ns, wanted)

    def _is_wanted(self, name: str) -> bool:
        shown = (self._hidden or not name.startswith(".")) and not name.startswith(RESERVED_PREFIX)
        return shown and self._pattern.match(name) is not None


def _shown(name: str) -> str:
    return ascii(name)[1:-1]


def is_opaque(name: str, form: str) -> bool:
    """True for gzip and Parquet files, in which a position of the connector is not a byte position on disk."""
    return form == "parquet" or name.lower().endswith(_GZIP)
