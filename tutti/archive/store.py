"""Storage of an archive: a local directory, or any file system with a URL that pyarrow or fsspec supports.

The name of an archived file never changes. Writes are atomic in a local directory and in most object stores. Other stores may leave
a part of a file after a crash, so the archiver reads each file back before a manifest names it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyarrow import fs as arrow_fs

from tutti import limits
from tutti.errors import ConfigError, DiskFull, Unavailable, install_remedy, remedy
from tutti.log.files.disk_space import is_disk_full
from tutti.runtime.backoff import Backoff
from tutti.runtime.durable_files import open_file, sync_directory

T = TypeVar("T")
_NO_LINK_ERRNOS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
#: Errors that a retry cannot resolve.
_PERMANENT_ERRNOS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_PARTIAL = ".partial"


class Entry(NamedTuple):
    """A file: its path below the archive, its size, and its write time (us since 1970; 0 if unknown)."""

    path: str
    bytes: int
    written_us: int


class Store(Protocol):
    """Access to the files of an archive by their paths below it.

    Raises (all methods):
        FileNotFoundError: the file does not exist.
        DiskFull: the disk is full.
        Unavailable: the file system failed; the message has the file and the reason.
    """

    @property
    def where(self) -> str:
        """The location of the archive, as messages show it."""

    def read(self, path: str) -> pa.Buffer:
        """Return the content of a file."""

    def read_back(self, path: str) -> pa.Buffer:
        """Return the content of a file, if possible from the storage medium and not from a cache."""

    def read_at(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a file from position `start`, or fewer at the end of the file."""

    def write(self, path: str, data: pa.Buffer) -> None:
        """Write a file durably. Writing the same file again is allowed."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a file durably, unless it exists; return False if it exists. Some file systems cannot do both in one atomic
        step.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; empty if the folder does not exist."""

    def walk(self, folder: str) -> Iterator[Entry]:
        """Yield all files below a folder."""

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""


def open_store(where: str | os.PathLike[str]) -> Store:
    """Open the store at a directory, or at a URL such as `file:///DIR` or `s3://BUCKET/DIR` (all URLs of pyarrow and fsspec).

    Raises:
        ConfigError: the location is not valid, contains a password, or needs a package that is not installed.
    """
    text = os.fspath(where)
    if not text.strip() or "\0" in text:
        raise ConfigError(f"{where!r} is not the location of an archive: give a directory, or a URL such as s3://BUCKET/DIR")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return LocalStore(text if not separator else "/" + rest.lstrip("/"))
    shown = _redacted_url(text)
    try:
        found, path = arrow_fs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        found, path = _by_fsspec(text, shown)
    except OSError as error:
        raise Unavailable(f"the archive {shown} is not reachable: {_redact(text, shown, error)}") from None
    return RemoteStore(shown, found, path)


def _redacted_url(url: str) -> str:
    """Return the URL without its parts after `?` or `#`, which might contain a secret, for messages, logs and query plans.

    Raises:
        ConfigError: the URL contains a password.
    """
    scheme, _, rest = url.partition("://")
    location = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority = location.partition("/")[0]
    if ":" in rest.rpartition("@")[0]:  # search the whole URL, because the password may contain a slash
        raise ConfigError(
            f"the {scheme}:// URL of the archive contains a password, which command lines, plans and logs would show: use the "
            "environment variables of the file system (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://, FSSPEC_* for others)"
        )
    return f"{scheme}://{authority.rpartition('@')[2]}{location[len(authority) :]}"


def _redact(url: str, shown: str, error: Exception) -> str:
    """Return the text of an error, without the parts of the URL that might contain a secret."""
    text = str(error).replace(url, shown)
    parts = re.split(r"[?#]", url, maxsplit=1)
    return text.replace(parts[1], "...") if len(parts) > 1 and parts[1] else text


def _by_fsspec(url: str, shown: str) -> tuple[arrow_fs.FileSystem, str]:
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError(f"{shown}: {scheme}:// needs the package fsspec: {install_remedy('archive')}") from error
    try:
        found, path = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{shown}: fsspec has no file system for {scheme}:// ({_redact(url, shown, error)})") from None
    handler: Any = arrow_fs.FSSpecHandler
    return arrow_fs.PyFileSystem(handler(found)), path


class LocalStore:
    """A local directory."""

    def __init__(self, root: str) -> None:
        """Use `root`, without creating it."""
        self.where = os.path.abspath(root)

    def _path(self, path: str) -> str:
        return os.path.join(self.where, path)

    def check_directory(self) -> None:
        """Check that the location is a directory or does not exist yet.

        Raises:
            ConfigError: the location is not a directory.
        """
        try:
            is_directory = stat.S_ISDIR(os.stat(self.where).st_mode)
        except NotADirectoryError:
            is_directory = False
        except OSError:
            return  # a later read or write raises the error
        if not is_directory:
            raise ConfigError(f"archive {self.where} is not a directory: give a directory, or a URL such as s3://BUCKET/DIR")

    def check_writable(self) -> None:
        """Check at the start that the location is writable, because a wrong location must fail at once and not be retried.

        Raises:
            ConfigError: the location is not writable; the message has the reason.
        """
        try:
            with self._partial(self._path("probe"), pa.py_buffer(b"")):
                pass
        except OSError as error:
            if error.errno in _PERMANENT_ERRNOS:
                where = f"archive {self.where} is not writable"
                raise ConfigError(f"{where} ({error.strerror}): {remedy(error, 'give a writable directory')}") from error

    def read(self, path: str) -> pa.Buffer:
        """As `Store.read`."""
        with self._translated("read", path), open(self._path(path), "rb", opener=open_file) as file:
            return pa.py_buffer(file.read())

    def read_back(self, path: str) -> pa.Buffer:
        """As `Store.read_back`. Drop the file from the page cache first, so that the read reaches the disk."""
        with self._translated("read", path), open(self._path(path), "rb", opener=open_file) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return pa.py_buffer(file.read())

    def read_at(self, path: str, start: int, length: int) -> bytes:
        """As `Store.read_at`."""
        with self._translated("read", path), open(self._path(path), "rb", buffering=0, opener=open_file) as file:
            return os.pread(file.fileno(), length, start)

    def write(self, path: str, data: pa.Buffer) -> None:
        """As `Store.write`."""
        with self._translated("write", path):
            target = self._path(path)
            with self._partial(target, data) as partial:
                os.replace(partial, target)
            sync_directory(os.path.dirname(target))

    def create(self, path: str, data: bytes) -> bool:
        """As `Store.create`."""
        with self._translated("write", path):
            target = self._path(path)
            with self._partial(target, pa.py_buffer(data)) as partial:
                try:
                    os.link(partial, target)  # a link fails if the target exists, so only one of two archivers succeeds
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_LINK_ERRNOS:
                        raise
                    # The file system has no hard links, so check and rename; another archiver may write between the two.
                    if os.path.exists(target):
                        return False
                    os.replace(partial, target)
            sync_directory(os.path.dirname(target))
            return True

    @contextlib.contextmanager
    def _partial(self, target: str, data: pa.Buffer) -> Iterator[str]:
        """Write the data durably to a temporary file beside `target`, and yield its path; remove the file at the end."""
        self._make_folders(os.path.dirname(target))
        partial = f"{target}.{uuid.uuid4().hex}{_PARTIAL}"
        try:
            with open(partial, "wb", buffering=0) as file:
                for at in range(0, data.size, limits.ARCHIVE_STEP_BYTES):
                    rest = memoryview(data)[at : at + limits.ARCHIVE_STEP_BYTES]
                    while len(rest):
                        rest = rest[file.write(rest) :]
                    # Sync after each part, because one long sync would delay the syncs of a gateway on the same disk.
                    os.fdatasync(file.fileno())
                os.fsync(file.fileno())
            yield partial
        finally:
            with contextlib.suppress(OSError):
                os.unlink(partial)

    def _make_folders(self, folder: str) -> None:
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make_folders(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        # needed even if another process created the folder, because that process might not have synced it yet
        sync_directory(parent)

    def names(self, folder: str) -> list[str]:
        """As `Store.names`."""
        try:
            with self._translated("list", folder):
                return [name for name in os.listdir(self._path(folder)) if not name.endswith(_PARTIAL)]
        except FileNotFoundError:
            return []

    def walk(self, folder: str) -> Iterator[Entry]:
        """Do as `Store.walk`, and also yield temporary files that interrupted writes have left."""
        for directory, _, files in os.walk(self._path(folder)):
            for name in files:
                path = os.path.join(directory, name)
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(path)
                    yield Entry(os.path.relpath(path, self.where), found.st_size, found.st_mtime_ns // 1000)

    def remove(self, path: str) -> None:
        """As `Store.remove`."""
        with self._translated("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(path))

    @contextlib.contextmanager
    def _translated(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            target = self._path(path)
            if is_disk_full(error):
                raise DiskFull(f"the disk is full at {target} ({error.strerror}): free some space for the archive") from error
            raise Unavailable(f"cannot {what} {target} of the archive: {error.strerror or error}") from error


class RemoteStore:
    """A remote file system of pyarrow or fsspec. Failed operations are retried."""

    def __init__(self, where: str, found: arrow_fs.FileSystem, root: str) -> None:
        """Use the directory `root` of file system `found` as archive; messages show `where` as its location."""
        self.where = where.rstrip("/")
        self._fs = found
        self._root = root.rstrip("/")

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def read(self, path: str) -> pa.Buffer:
        """As `Store.read`."""

        def read() -> pa.Buffer:
            with self._fs.open_input_file(self._path(path)) as file:
                return file.read_buffer()

        return self._with_retries("read", path, read)

    read_back = read

    def read_at(self, path: str, start: int, length: int) -> bytes:
        """As `Store.read_at`."""

        def read() -> bytes:
            file: Any
            with self._fs.open_input_file(self._path(path)) as file:
                return bytes(file.read_at(length, start))

        return self._with_retries("read", path, read)

    def write(self, path: str, data: pa.Buffer) -> None:
        """As `Store.write`."""

        def write() -> None:
            target = self._path(path)
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(target) as file:
                file.write(data)

        self._with_retries("write", path, write)

    def create(self, path: str, data: bytes) -> bool:
        """Do as `Store.create`, but not atomically, because pyarrow's file systems cannot create a file exclusively."""

        def exists() -> bool:
            return self._fs.get_file_info(self._path(path)).type != arrow_fs.FileType.NotFound

        if self._with_retries("check for", path, exists):
            return False
        self.write(path, pa.py_buffer(data))
        return True

    def names(self, folder: str) -> list[str]:
        """As `Store.names`."""
        return [info.base_name for info in self._listed(folder, recursive=False)]

    def walk(self, folder: str) -> Iterator[Entry]:
        """As `Store.walk`."""
        for info in self._listed(folder, recursive=True):
            path = info.path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")
            yield Entry(path, info.size or 0, (info.mtime_ns or 0) // 1000)

    def _listed(self, folder: str, *, recursive: bool) -> list[Any]:
        selector = arrow_fs.FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        found = self._with_retries("list", folder, lambda: self._fs.get_file_info(selector))
        return [info for info in found if info.type == arrow_fs.FileType.File]

    def remove(self, path: str) -> None:
        """As `Store.remove`."""
        with contextlib.suppress(FileNotFoundError):
            self._with_retries("remove", path, lambda: self._fs.delete_file(self._path(path)))

    def _with_retries(self, what: str, path: str, act: Callable[[], T]) -> T:
        backoff = Backoff(limits.ARCHIVE_RETRY_US_MIN / 1e6, limits.ARCHIVE_RETRY_US_MAX / 1e6)
        for tries_left in reversed(range(limits.ARCHIVE_TRIES)):
            try:
                return act()
            except FileNotFoundError:
                raise
            except Exception as error:  # file systems raise arbitrary types
                if isinstance(error, OSError) and is_disk_full(error):
                    raise DiskFull(f"the disk is full at {self.where}/{path}: {error}") from error
                if not tries_left or isinstance(error, PermissionError | NotImplementedError):
                    raise Unavailable(f"cannot {what} {self.where}/{path}: {type(error).__name__}: {error}") from error
                time.sleep(backoff.next_s())
        raise AssertionError("the last try returns or raises")
