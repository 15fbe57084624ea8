"""A gateway's data directory: who owns it, and that one process at a time writes it."""

from __future__ import annotations

import os
import uuid
from typing import Annotated, Any

import msgspec

from gateway.errors import Damaged, DirectoryRefused, WrongDirectory
from gateway.log.layout import FORMAT_VERSION, IDENTITY, LOCK, LOG
from gateway.log.storage import Storage, read_file

_IGNORED = {LOCK, IDENTITY + ".tmp", "lost+found"}  # may stand in a directory that no gateway has begun to use
_GIVE_ANOTHER = "stop that gateway first, or give this one a directory of its own"


class Identity(msgspec.Struct, frozen=True):
    """identity.json: whose directory this is. `incarnation` and `log` are uuids as hex; `log` is empty until the log has begun.
    `left` says that the group went on without this disk, and how that was heard of; empty otherwise. `place` is the number (inode)
    of the log's folder when this was written, 0 where it was not noted: a copy of the directory has another one.
    """

    format: int
    gateway: str
    group: str
    incarnation: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    log: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    left: str = ""
    place: int = 0


def read_identity(path: str) -> Identity | None:
    """The identity of a directory, None if it has none.

    Raises:
        DirectoryRefused: it cannot be read.
        WrongDirectory: it has another format.
        Damaged: it is no identity.
    """
    file = os.path.join(path, IDENTITY)
    try:
        data = read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DirectoryRefused(f"{file} cannot be read: {error.strerror}; check its owner and mode") from error
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format")
        if isinstance(version, int) and version != FORMAT_VERSION:
            raise WrongDirectory(
                f"data directory {path} has format {version} and this release knows format {FORMAT_VERSION}: "
                "use the release that wrote it, or a new directory"
            )
        return msgspec.json.decode(data, type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{file} is not an identity of a gateway ({error}): restore it, or use a new directory") from error


def no_identity(path: str) -> WrongDirectory:
    """The error of a directory that no gateway has used; it names the one within that one has, if there is just one."""
    try:
        within = [entry for entry in sorted(os.listdir(path)) if os.path.isfile(os.path.join(path, entry, IDENTITY))]
    except OSError:
        within = []  # it is missing or cannot be read
    hint = f"; did you mean {os.path.join(path, within[0])}?" if len(within) == 1 else ""
    return WrongDirectory(f"{path} is not the data directory of a gateway: it has no {IDENTITY}{hint}")


class Directory:
    """An open and locked data directory. The lock goes with the process, whatever way that ends.

    Attributes:
        copied: whether it is a copy of the directory that its identity was written for: what that one did since is not known.
        renewed: what was done about that, for the operator; empty if nothing was.
    """

    def __init__(self, path: str, identity: Identity, lock: int, storage: Storage) -> None:
        """Made by `open_directory`."""
        self.path = path
        self.identity = identity
        self.storage = storage
        self._lock = lock
        self.copied = 0 < identity.place != _place(path)
        self.renewed = ""

    @property
    def gateway(self) -> str:
        """Name of the gateway."""
        return self.identity.gateway

    @property
    def group(self) -> str:
        """Name of its group."""
        return self.identity.group

    @property
    def incarnation(self) -> bytes:
        """16 bytes that name this disk: another directory of the same gateway has another."""
        return bytes.fromhex(self.identity.incarnation)

    @property
    def log(self) -> bytes:
        """Uuid of the log, 16 bytes, empty until it has begun."""
        return bytes.fromhex(self.identity.log)

    def remember_log(self, log: bytes) -> None:
        """Write down which log the directory holds, once it has durably begun."""
        if log != self.log:
            self._write(log=log.hex())

    def leave(self, reason: str) -> None:
        """Write down that the group went on without this disk, and why: no gateway begins on it again."""
        self._write(left=reason)

    def settle(self) -> None:
        """The directory stands here from now on, and is what its original was; done before anything is promised."""
        if self.copied or not self.identity.place:
            self._write(place=_place(self.path))
            self.copied = False

    def renew(self) -> None:
        """The directory is a copy in a group of several, or holds files of an earlier time: it becomes another disk, with a log to
        go on from and no vote. What the original promised and voted for since is not known here.
        """
        self._write(incarnation=uuid.uuid4().hex, place=_place(self.path))
        self.copied = False
        self.renewed = (
            f"data directory {self.path} is a copy, or older than its group knows: what {self.gateway} promised since is lost. It "
            f"learns as with a new disk, and votes again after `tutti members replace {self.gateway}`. A directory that is moved, "
            "with nothing left behind that may run, is declared so before its first start: `tutti log moved DIR`"
        )

    def _write(self, **changes: str | int) -> None:
        identity = msgspec.structs.replace(self.identity, **changes)
        _write_identity(self.path, identity, self.storage)
        self.identity = identity

    def close(self) -> None:
        """Let the directory go."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_directory(path: str, *, gateway: str, group: str, create: bool = True, storage: Storage | None = None) -> Directory:
    """Lock the data directory of a gateway; a new or empty one becomes its own.

    Raises:
        DirectoryRefused: it is locked, or cannot be read or written.
        WrongDirectory: it belongs to another gateway or group, has another format, or holds something else.
        Damaged: its identity is damaged, or its log is gone.
    """
    return _open(os.path.abspath(path), gateway, group, create, storage or Storage(), _GIVE_ANOTHER)


def lock_directory(path: str | os.PathLike[str], storage: Storage | None = None) -> Directory:
    """Lock a directory that a gateway has used, whoever it is (for repair).

    Raises:
        WrongDirectory: it is no data directory.
        DirectoryRefused, Damaged: as `open_directory`.
    """
    path = os.path.abspath(path)
    identity = read_identity(path)
    if identity is None:
        raise no_identity(path)
    advice = f"stop it first; to look at the log while it runs: tutti log verify {path}"
    return _open(path, identity.gateway, identity.group, False, storage or Storage(), advice)


def moved(path: str | os.PathLike[str]) -> bool:
    """Say of a directory that it stands here now and is what its original was; whether it was not known to.

    Raises:
        WrongDirectory, DirectoryRefused, Damaged: as `lock_directory`.
    """
    directory = lock_directory(path)
    try:
        copied = directory.copied
        directory.settle()
    finally:
        directory.close()
    return copied


def _open(path: str, gateway: str, group: str, create: bool, storage: Storage, when_in_use: str) -> Directory:
    try:
        if create:
            _make(path, storage)
        _look(path, gateway, group, create)  # before the lock is made: what is refused stays as it was
        lock = _lock(path, when_in_use)
    except OSError as error:
        raise DirectoryRefused(
            f"data directory {path} cannot be used: {error.strerror}; check the path, its owner and mode"
        ) from error
    try:
        identity = _own(path, gateway, group, create, storage)
    except OSError as error:
        os.close(lock)
        raise DirectoryRefused(f"data directory {path} cannot be used: {error.strerror}; check its owner and mode") from error
    except BaseException:
        os.close(lock)
        raise
    return Directory(path, identity, lock, storage)


def _make(path: str, storage: Storage) -> None:
    missing = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory)
        storage.sync_directory(os.path.dirname(directory))


def _lock(path: str, when_in_use: str) -> int:
    import fcntl  # noqa: PLC0415 - clients are imported also on systems without it, and lock nothing

    lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise DirectoryRefused(f"data directory {path} is in use by process {holder}: {when_in_use}") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _look(path: str, gateway: str, group: str, create: bool) -> Identity | None:
    """The identity of a directory that this gateway may use, None if that is still to be made."""
    # Listed before the identity is looked for: where another first start is under way, whatever it made after that has one.
    others = sorted(name for name in set(os.listdir(path)) - _IGNORED if not _begun(path, name))
    found = read_identity(path)
    if found is None:
        if others or not create:
            what = f"holds {others[0]!r}" if others else "is empty"
            raise WrongDirectory(
                f"{path} is not the data directory of a gateway: it {what} and has no {IDENTITY}; give a new directory"
            )
        return None
    for what, wanted, has in (("gateway", gateway, found.gateway), ("group", group, found.group)):
        if wanted != has:
            raise WrongDirectory(
                f"data directory {path} belongs to {what} {has!r}, not to {wanted!r}: give this gateway a directory of its own"
            )
    if found.left and create:
        raise WrongDirectory(f"no gateway begins on data directory {path} any more: {found.left}")
    if not os.path.isdir(os.path.join(path, LOG)):
        raise Damaged(f"data directory {path} has lost its {LOG} folder: restore it, or use a new directory")
    return found


def _own(path: str, gateway: str, group: str, create: bool, storage: Storage) -> Identity:
    found = _look(path, gateway, group, create)
    if found is None:
        os.makedirs(os.path.join(path, LOG), exist_ok=True)
        found = Identity(FORMAT_VERSION, gateway, group, uuid.uuid4().hex, place=_place(path))
        _write_identity(path, found, storage)
    return found


def _place(path: str) -> int:
    """The number of the log's folder, which a copy does not share."""
    return os.stat(os.path.join(path, LOG)).st_ino


def _begun(path: str, name: str) -> bool:
    """Whether it is the empty folder that a first start leaves when it is cut off before the identity."""
    return name == LOG and os.path.isdir(os.path.join(path, LOG)) and not os.listdir(os.path.join(path, LOG))


def _write_identity(path: str, identity: Identity, storage: Storage) -> None:
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    storage.replace_file(os.path.join(path, IDENTITY), data)
