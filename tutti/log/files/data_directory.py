"""A gateway's data directory: its identity, its lock for one writer process, and the detection of copies.

A copy of a directory lacks the promises and votes that the gateway made after the copy, so a gateway must detect that its directory
is a copy. Therefore `identity.json` records the inode and birth time of its own file, which differ in a copy. Each start writes a
new identity file before the gateway makes a promise, and a running gateway rewrites the file from time to time. A copy that was
restored at the same path is also detected, because its `identity.json` records a file that no longer exists. Each write replaces
the whole file, so a crash leaves a valid file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from typing import Annotated, Any, Protocol

import msgspec

from tutti.data.lane_name import NEW_LANE_REMEDY
from tutti.errors import Damaged, DirectoryRefused, WrongDirectory, disk_remedy, remedy
from tutti.log.files.disk_space import is_disk_full
from tutti.log.files.file_identity import FileIdentity, file_identity_of
from tutti.log.files.lane_paths import lane_of_path
from tutti.log.files.layout import FORMAT_VERSION, IDENTITY, LOCK, LOG
from tutti.log.files.storage import Storage, SyncFailed, read_file
from tutti.runtime.durable_files import DIRECTORY_MODE, open_file

_TEMPORARY = IDENTITY + ".tmp"  # temporary name that `Storage.replace_file` uses for the identity file
_NEW = IDENTITY + ".new"
_IGNORED = {LOCK, _NEW, _TEMPORARY, "lost+found"}  # names of files that a new directory may contain
_US = 1_000_000
_NAMED_MAX = 7  # maximum number of subdirectories that an error text lists; `tutti dev` creates at most this many
_IN_USE_HINT = "stop that gateway first, or give this one a directory of its own"


class Identity(msgspec.Struct, frozen=True):
    """Content of identity.json: the owner of the directory.

    Attributes:
        format: format version of the directory.
        gateway, group: name of the gateway that owns the directory, and name of its group.
        incarnation: uuid of the disk, hex.
        log: uuid of the log, hex; empty until the log exists.
        left: reason why the group continues without this disk; empty if the disk has not left the group.
        place: inode of the log's folder at the time of writing; 0 if unknown. A copy of the folder has a different inode.
        file: inode and birth time of the file that contains this identity, or None if unknown. A copy has different values.
    """

    format: int
    gateway: str
    group: str
    incarnation: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    log: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    left: str = ""
    place: int = 0
    file: FileIdentity | None = None


def read_identity(path: str) -> Identity | None:
    """Return the identity of a directory, or None if it has none.

    Raises:
        DirectoryRefused: the file is not readable.
        WrongDirectory: the directory has a different format.
        Damaged: the file is not a valid identity.
    """
    file = os.path.join(path, IDENTITY)
    try:
        data = read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DirectoryRefused(f"{file} cannot be read: {error.strerror}; {remedy(error)}") from error
    try:
        # The format is checked first, because an identity in a different format may have other fields.
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format")
        if isinstance(version, int) and version != FORMAT_VERSION:
            raise WrongDirectory(
                f"data directory {path} has format {version}, but this release supports format {FORMAT_VERSION}: "
                "use the release that wrote it, or a new directory"
            )
        return msgspec.json.decode(data, type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{file} is not an identity of a gateway ({error}): restore it, or use a new directory") from error


def no_identity(path: str) -> WrongDirectory:
    """Return the error for a directory without an identity.

    The error text lists subdirectories that have an identity, for example subdirectories that `tutti dev` has created.
    """
    try:
        found = [os.path.join(path, entry) for entry in sorted(os.listdir(path))]
    except FileNotFoundError:
        return WrongDirectory(f"{path} is not the data directory of a gateway: it does not exist")
    except OSError:
        found = []
    within = [directory for directory in found if os.path.isfile(os.path.join(directory, IDENTITY))][:_NAMED_MAX]
    hint = f"; did you mean {' or '.join(within)}?" if within else ""
    return WrongDirectory(f"{path} is not the data directory of a gateway: it has no {IDENTITY}{hint}")


class LogDirectory(Protocol):
    """A directory with one writer process: a gateway's data directory, or the directory of a lane in it."""

    path: str
    storage: Storage

    @property
    def copied(self) -> bool:
        """True if the directory is a copy of the one that its identity describes."""

    @property
    def incarnation(self) -> bytes:
        """Uuid of this disk, 16 bytes."""

    @property
    def log(self) -> bytes:
        """Uuid of the log, 16 bytes; empty until the log exists."""

    def store_log_uuid(self, log: bytes) -> None:
        """Store the uuid of the log. Callers must store it only after the log durably exists."""

    def declare_original(self) -> None:
        """Declare that this directory is the original and not a copy. Each start calls this method before it makes a promise."""

    def refresh_identity(self, after_us: int) -> None:
        """Rewrite the identity file if its last write was more than `after_us` ago, so that earlier copies become detectable."""

    def refresh_if_stale(self, after_us: int) -> None:
        """Rewrite the identity file if a promise or vote followed its last write, and that write was more than `after_us` ago."""

    def become_new_disk(self) -> None:
        """Give the directory a new incarnation, because its promises are outdated."""

    def close(self) -> None:
        """Release the directory."""


class DataDirectory:
    """An open and locked data directory. The kernel releases the lock when the process ends, even after a crash.

    Attributes:
        copied: True if the directory is a copy, so that it may lack promises and votes of the original.
        renewed: message for the operator if the directory became a new disk; empty otherwise.
    """

    def __init__(self, path: str, identity: Identity, lock: int, storage: Storage) -> None:
        """Do not call this directly: use `open_directory` or `lock_directory`."""
        self.path = path
        self.identity = identity
        self.storage = storage
        self._lock = lock
        # Two threads write the identity: the disk thread, and the thread that handles a removal from the group.
        self._write_lock = threading.Lock()
        self._is_original = self._stale = False
        self._written_at = 0.0
        self.copied = _is_copy(path, identity)
        self.renewed = ""

    @property
    def gateway(self) -> str:
        """Name of the gateway."""
        return self.identity.gateway

    @property
    def group(self) -> str:
        """Name of the group."""
        return self.identity.group

    @property
    def incarnation(self) -> bytes:
        """Uuid of this disk, 16 bytes. Two directories never have the same uuid, unless one is a copy."""
        return bytes.fromhex(self.identity.incarnation)

    @property
    def log(self) -> bytes:
        """Uuid of the log, 16 bytes; empty until the log exists."""
        return bytes.fromhex(self.identity.log)

    def store_log_uuid(self, log: bytes) -> None:
        """Store the uuid of the log. Callers must store it only after the log durably exists."""
        if log != self.log:
            self._write(log=log.hex())

    def mark_left(self, reason: str) -> None:
        """Store the reason why the group continues without this disk. After this call, no gateway can start on this disk."""
        self._write(left=reason)

    def declare_original(self) -> None:
        """Declare that this directory is the original and not a copy, so that earlier copies become detectable.

        Each start calls this method before it makes a promise.
        """
        try:
            self._write(place=_log_inode(self.path))
        except OSError as error:
            # An original directory may start on a full disk without this write, because its stored identity is still valid.
            if self.copied or not is_disk_full(error):
                raise
        self.copied, self._is_original = False, True

    def refresh_identity(self, after_us: int) -> None:
        """Rewrite the identity file if its last write was more than `after_us` ago. Call this method after each promise or vote.

        Without the rewrite, an operator could replace the directory after a crash with a copy made during this run, and the gateway
        would not detect the copy. If the write fails, a later call retries it when `after_us` has passed.

        Raises:
            SyncFailed: the disk failed.
        """
        self._stale = True
        if time.monotonic() - self._written_at < after_us / _US:
            return
        try:
            self._write()
        except SyncFailed:
            raise
        except OSError:
            self._written_at = time.monotonic()

    def refresh_if_stale(self, after_us: int) -> None:
        """Rewrite the identity file if a promise or vote followed its last write, and that write was more than `after_us` ago.

        The writer of the log calls this method when the disk is idle.

        Raises:
            SyncFailed: the disk failed.
        """
        if self._stale:
            self.refresh_identity(after_us)

    def become_new_disk(self) -> None:
        """Give a copied or outdated directory the identity of a new disk, which keeps the log but has no vote.

        With a vote, the disk could contradict promises and votes that it made but has lost.
        """
        self._write(incarnation=uuid.uuid4().hex, place=_log_inode(self.path))
        self.copied, self._is_original = False, True
        self.renewed = (
            f"data directory {self.path} is a copy, was restored from one, or is older than its group knows: later promises of "
            f"{self.gateway} are lost. The gateway catches up as with a new disk and has no vote; to give it a vote, "
            f"{disk_remedy(self.gateway)}. After moving a directory with its gateway stopped, run `tutti log moved DIR` before the "
            "first start"
        )

    def _write(self, **changes: str | int) -> None:
        with self._write_lock:
            self.identity = _write_identity(self.path, msgspec.structs.replace(self.identity, **changes), self.storage)
            self._stale, self._written_at = False, time.monotonic()

    def close(self) -> None:
        """Release the lock on the directory.

        If a gateway has run in the directory, first rewrite the identity file, so that copies made during the run become
        detectable.
        """
        if self._lock < 0:
            return
        try:
            if self._is_original:
                with contextlib.suppress(OSError):  # if this write fails, the stored identity is older but still valid
                    self._write()
        finally:
            os.close(self._lock)
            self._lock = -1


def open_directory(path: str, *, gateway: str, group: str, create: bool = True, storage: Storage | None = None) -> DataDirectory:
    """Lock the data directory of a gateway. With `create`, initialise a directory that is new or empty.

    Raises:
        DirectoryRefused: the directory is locked, or is not readable or writable.
        WrongDirectory: the directory belongs to another gateway or group, has a different format, or holds other files.
        Damaged: the identity is corrupt, or the log is lost.
    """
    return _open(os.path.abspath(path), gateway, group, create, storage or Storage(), _IN_USE_HINT)


def lock_directory(path: str | os.PathLike[str], storage: Storage | None = None) -> DataDirectory:
    """Lock an existing data directory of any gateway and group. Tools use this function when the gateway is down.

    Raises:
        WrongDirectory: the path is not a data directory, or the directory has a different format.
        DirectoryRefused: the directory is locked, or is not readable or writable.
        Damaged: the identity is corrupt, or the log is lost.
    """
    path = os.path.abspath(path)
    if lane_of_path(path) is not None:
        raise WrongDirectory(
            f"{path} is a lane, and lanes are never truncated: its gateway fetches lost records from the others. If it is the "
            f"gateway's own lane, and `halted` in `lanes` of the status, {NEW_LANE_REMEDY}"
        )
    identity = read_identity(path)
    if identity is None:
        raise no_identity(path)
    advice = f"stop it first; to check the log while it runs: tutti log verify {path}"
    return _open(path, identity.gateway, identity.group, False, storage or Storage(), advice)


def declare_moved(path: str | os.PathLike[str]) -> bool:
    """Declare that a data directory was moved and is still the original. Return True if the directory looked like a copy.

    Raises:
        WrongDirectory, DirectoryRefused, Damaged: the directory cannot be locked; `lock_directory` describes these errors.
    """
    directory = lock_directory(path)
    try:
        copied = directory.copied
        directory.declare_original()
    finally:
        directory.close()
    return copied


def _open(path: str, gateway: str, group: str, create: bool, storage: Storage, when_in_use: str) -> DataDirectory:
    try:
        if create:
            _make_directories(path, storage)
        # The check precedes the lock, which creates a file, so that a refused directory stays unchanged.
        _check(path, gateway, group, create)
        lock = _lock(path, when_in_use)
    except OSError as error:
        raise DirectoryRefused(f"data directory {path} is not usable: {error.strerror}; {remedy(error)}") from error
    try:
        return DataDirectory(path, _load_or_create(path, gateway, group, create, storage), lock, storage)
    except OSError as error:
        os.close(lock)
        raise DirectoryRefused(f"data directory {path} is not usable: {error.strerror}; {remedy(error)}") from error
    except BaseException:
        os.close(lock)
        raise


def _make_directories(path: str, storage: Storage) -> None:
    missing: list[str] = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory, DIRECTORY_MODE if directory == missing[0] else 0o777)
        # The parent directory is synced, because a power loss could otherwise remove the new directory with all files in it.
        storage.sync_directory(os.path.dirname(directory))


def _lock(path: str, when_in_use: str) -> int:
    import fcntl  # noqa: PLC0415 - clients also run on systems without fcntl, and need no lock

    lock = open_file(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT)
    try:
        # The kernel releases an flock when the process ends, so that no stale lock remains after a crash.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise DirectoryRefused(f"data directory {path} is in use by process {holder}: {when_in_use}") from None
    # The flock alone protects the directory. The pid in the file is only for error texts of other processes.
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _check(path: str, gateway: str, group: str, create: bool) -> Identity | None:
    """Check that the gateway may use a directory. Return the identity, or None if the directory is not initialised yet."""
    # The identity is read after the listing, because a process that initialises the directory writes the identity last.
    others = sorted(name for name in set(os.listdir(path)) - _IGNORED if not _is_interrupted_start(path, name))
    found = read_identity(path)
    if found is None:
        if others or not create:
            what = f"holds {others[0]!r}" if others else "is empty"
            raise WrongDirectory(
                f"{path} is not the data directory of a gateway: it {what} and has no {IDENTITY}; use a new directory"
            )
        return None
    for what, wanted, has in (("gateway", gateway, found.gateway), ("group", group, found.group)):
        if wanted != has:
            raise WrongDirectory(
                f"data directory {path} belongs to {what} {has!r}, not to {wanted!r}: give this gateway a directory of its own"
            )
    # Only a gateway (`create`) is refused here, because tools may still read and repair a disk that has left its group.
    if found.left and create:
        raise WrongDirectory(f"no gateway can start on data directory {path} again: {found.left}")
    if not os.path.isdir(os.path.join(path, LOG)):
        raise Damaged(f"the {LOG} folder of data directory {path} is missing: restore it, or use a new directory")
    return found


def _load_or_create(path: str, gateway: str, group: str, create: bool, storage: Storage) -> Identity:
    # The check is repeated under the lock, because another process may have initialised the directory since the first check.
    found = _check(path, gateway, group, create)
    if found is None:
        # The identity is written last, so a crash before that write leaves only an empty log folder, which the next start accepts.
        os.makedirs(os.path.join(path, LOG), exist_ok=True)
        found = _write_identity(path, Identity(FORMAT_VERSION, gateway, group, uuid.uuid4().hex, place=_log_inode(path)), storage)
    return found


def _is_copy(path: str, identity: Identity) -> bool:
    """True if the log's folder or the identity file is a different one than the identity records.

    The owner and the mode of these files are not compared, because some hosts change them at each start.
    """
    file = identity.file
    return 0 < identity.place != _log_inode(path) or not (
        file is None or file.matches(file_identity_of(os.path.join(path, IDENTITY)))
    )


def _log_inode(path: str) -> int:
    """Return the inode of the log's folder, which is a different one in a copy of the directory."""
    return os.stat(os.path.join(path, LOG)).st_ino


def _is_interrupted_start(path: str, name: str) -> bool:
    """True for an empty log folder, which a first start leaves if it is interrupted before it writes the identity."""
    return name == LOG and os.path.isdir(os.path.join(path, LOG)) and not os.listdir(os.path.join(path, LOG))


def _write_identity(path: str, identity: Identity, storage: Storage) -> Identity:
    """Write the identity to a new file, together with the inode and birth time of that file, and return the new identity."""
    made = _new_file(os.path.join(path, _NEW), os.path.join(path, _TEMPORARY), storage)
    identity = msgspec.structs.replace(identity, file=made)
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    # `replace_file` writes into the file that `_new_file` has created, whose inode is in `data`, and then renames that file.
    storage.replace_file(os.path.join(path, IDENTITY), data)
    return identity


def _new_file(path: str, then: str, storage: Storage) -> FileIdentity | None:
    """Create a file, rename it, and return its inode and birth time.

    Return None if the file system derives inodes from paths, because an inode that changes with a rename does not identify a file.
    """
    # Each write of the identity creates a new file, so that an older copy records a file that no longer exists.
    storage.close(storage.open(path, create=True))
    made = file_identity_of(path)
    storage.rename(path, then)
    return made if made == file_identity_of(then) else None
