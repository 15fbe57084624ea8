"""A gateway's data directory: its identity, its lock for one writer process, and the detection of copies.

A copy of a directory lacks the promises and votes that the gateway made after the copy, so a gateway must detect that its directory
is a copy. Therefore `identity.json` records the inode and birth time of its own file, which differ in a copy. Each start writes a
new identity file before the gateway makes a promise, and a running gateway rewrites the file from time to time. A copy that is
restored at the same path is also detected, because it records an older file. Each write replaces the whole file, so a crash leaves
a valid file.
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
_IGNORED = {LOCK, _NEW, _TEMPORARY, "lost+found"}  # names that may exist in a directory that no gateway uses yet
_US = 1_000_000
_NAMED_MAX = 7  # number of subdirectories that an error names; `tutti dev` creates at most this many
_IN_USE_HINT = "stop that gateway first, or give this one a directory of its own"


class Identity(msgspec.Struct, frozen=True):
    """Content of identity.json: the owner of the directory.

    Attributes:
        format: format version of the directory.
        gateway, group: names of the owner and its group.
        incarnation: uuid of the disk, hex.
        log: uuid of the log, hex; empty until the log exists.
        left: why the group continues without this disk; empty if the disk has not left.
        place: inode of the log's folder at the time of writing; 0 if unknown. A copy of the folder has a different inode.
        file: identity of the file that contains this record, or None if unknown. A copy of the file has a different identity.
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
        # Check the format first: an identity of a different format may have other fields.
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

    The text of the error names subdirectories that have an identity, for example those that `tutti dev` creates.
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
        """Store the uuid of the log, once the log durably exists."""

    def declare_original(self) -> None:
        """Declare that this directory is the original and no copy. Each start calls this method before it makes a promise."""

    def refresh_identity(self, after_us: int) -> None:
        """Rewrite the identity if the last write is older than `after_us`, so that earlier copies become detectable."""

    def refresh_if_stale(self, after_us: int) -> None:
        """As `refresh_identity`, but only if a promise or vote has followed the last write. Called when the disk is idle."""

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
        """Uuid of this disk, 16 bytes; each directory of a gateway has its own."""
        return bytes.fromhex(self.identity.incarnation)

    @property
    def log(self) -> bytes:
        """Uuid of the log, 16 bytes; empty until the log exists."""
        return bytes.fromhex(self.identity.log)

    def store_log_uuid(self, log: bytes) -> None:
        """Store the uuid of the log, once the log durably exists."""
        if log != self.log:
            self._write(log=log.hex())

    def mark_left(self, reason: str) -> None:
        """Store the reason why the group continues without this disk. From then on, no gateway can start on this disk."""
        self._write(left=reason)

    def declare_original(self) -> None:
        """Declare this directory the original, so that earlier copies become detectable.

        Each start calls this method before it makes a promise.
        """
        try:
            self._write(place=_log_inode(self.path))
        except OSError as error:
            # On a full disk, an original may start without the write, because its stored identity is still valid.
            if self.copied or not is_disk_full(error):
                raise
        self.copied, self._is_original = False, True

    def refresh_identity(self, after_us: int) -> None:
        """Rewrite the identity if the last write is older than `after_us`. Call this method after each promise or vote.

        Without the rewrite, a copy that was made during this run could replace the directory after a crash, undetected.

        Raises:
            SyncFailed: the disk failed. After any other error, a call retries the write when `after_us` has passed.
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
        """As `refresh_identity`, but only if a promise or vote has followed the last write. Called when the disk is idle.

        Raises:
            SyncFailed: as `refresh_identity`.
        """
        if self._stale:
            self.refresh_identity(after_us)

    def become_new_disk(self) -> None:
        """Turn a copied or outdated directory into a new disk, which keeps the log but has no vote.

        With its old vote, the disk could contradict promises and votes that are no longer in the directory.
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

        If a gateway has run, first write the identity again, so that copies that were made during the run become detectable.
        """
        if self._lock < 0:
            return
        try:
            if self._is_original:
                with contextlib.suppress(OSError):  # without this write, the stored identity is older but still valid
                    self._write()
        finally:
            os.close(self._lock)
            self._lock = -1


def open_directory(path: str, *, gateway: str, group: str, create: bool = True, storage: Storage | None = None) -> DataDirectory:
    """Lock the data directory of a gateway; with `create`, initialise a new or empty one.

    Raises:
        DirectoryRefused: the directory is locked, or is not readable or writable.
        WrongDirectory: the directory belongs to another gateway or group, has a different format, or holds other files.
        Damaged: the identity is corrupt, or the log is lost.
    """
    return _open(os.path.abspath(path), gateway, group, create, storage or Storage(), _IN_USE_HINT)


def lock_directory(path: str | os.PathLike[str], storage: Storage | None = None) -> DataDirectory:
    """Lock an existing data directory, whatever its gateway and group. Tools use this function while the gateway is down.

    Raises:
        WrongDirectory: the path is not a data directory.
        DirectoryRefused, Damaged: as `open_directory`.
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
    """Declare that a directory was moved and is still the original. Return True if it had looked like a copy.

    Raises:
        WrongDirectory, DirectoryRefused, Damaged: as `lock_directory`.
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
        _check(path, gateway, group, create)  # before the lock file is created, so that a refused directory stays unchanged
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
        # Without a sync of the parent directory, a power loss could remove the new directory with everything in it.
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
    # Only the flock protects the directory. The pid in the file is for the error message of another process.
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _check(path: str, gateway: str, group: str, create: bool) -> Identity | None:
    """Check that this gateway may use a directory. Return its identity, or None if the directory must still be initialised."""
    # Another process that initialises the directory writes the identity last, so a read after the listing cannot miss it.
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
    # Only a gateway (`create`) is refused here; tools may still read and repair a disk that has left its group.
    if found.left and create:
        raise WrongDirectory(f"no gateway can start on data directory {path} again: {found.left}")
    if not os.path.isdir(os.path.join(path, LOG)):
        raise Damaged(f"the {LOG} folder of data directory {path} is missing: restore it, or use a new directory")
    return found


def _load_or_create(path: str, gateway: str, group: str, create: bool, storage: Storage) -> Identity:
    found = _check(path, gateway, group, create)
    if found is None:
        # The identity is written last, so a crash before it leaves only an empty log folder, which the next start accepts.
        os.makedirs(os.path.join(path, LOG), exist_ok=True)
        found = _write_identity(path, Identity(FORMAT_VERSION, gateway, group, uuid.uuid4().hex, place=_log_inode(path)), storage)
    return found


def _is_copy(path: str, identity: Identity) -> bool:
    """True if the log's folder or the identity file is not the one that the identity records.

    Owner and mode are not compared, because some hosts change them at each start.
    """
    file = identity.file
    return 0 < identity.place != _log_inode(path) or not (
        file is None or file.matches(file_identity_of(os.path.join(path, IDENTITY)))
    )


def _log_inode(path: str) -> int:
    """Return the inode of the log's folder. The folder of a copy has a different inode."""
    return os.stat(os.path.join(path, LOG)).st_ino


def _is_interrupted_start(path: str, name: str) -> bool:
    """True for an empty log folder: a first start leaves one if it is interrupted before it writes the identity."""
    return name == LOG and os.path.isdir(os.path.join(path, LOG)) and not os.listdir(os.path.join(path, LOG))


def _write_identity(path: str, identity: Identity, storage: Storage) -> Identity:
    """Write the identity to a new file, together with the inode and birth time of that file, and return it."""
    made = _new_file(os.path.join(path, _NEW), os.path.join(path, _TEMPORARY), storage)
    identity = msgspec.structs.replace(identity, file=made)
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    # `replace_file` writes into the file with the temporary name, which is the new file whose inode the content names.
    storage.replace_file(os.path.join(path, IDENTITY), data)
    return identity


def _new_file(path: str, then: str, storage: Storage) -> FileIdentity | None:
    """Create a file, rename it, and return its inode and birth time.

    Return None on a file system that derives inodes from paths: a rename changes the inode there, so it identifies no file.
    """
    # Each write creates a new file, so that a copy of an older identity names a file that no longer exists.
    storage.close(storage.open(path, create=True))
    made = file_identity_of(path)
    storage.rename(path, then)
    return made if made == file_identity_of(then) else None
