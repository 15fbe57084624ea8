"""A gateway's data directory: who owns it, that one process at a time writes it, and whether it is the original.

What a gateway promised and voted for since a copy was made is not in the copy. So `identity.json` says which file it is written
into, and is written into a new one at each start, before anything is promised, and now and then while the gateway runs: a copy has
another file, and one from before that says of another file that it was it, however it was put back: beside the original, in its
place, or file by file into its own folders. Each is replaced whole, so that a crash leaves one that tells the truth.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from typing import Annotated, Any

import msgspec

from tutti.data.lane_name import NEW_LANE
from tutti.errors import Damaged, DirectoryRefused, WrongDirectory, disk_remedy, remedy
from tutti.log.files.disk_space import no_room
from tutti.log.files.file_identity import Birth, birth_of
from tutti.log.files.lane_paths import lane_at
from tutti.log.files.layout import FORMAT_VERSION, IDENTITY, LOCK, LOG
from tutti.log.files.storage import Storage, SyncFailed, read_file
from tutti.runtime.fsync import DIRECTORY_MODE, open_file

_TEMPORARY = IDENTITY + ".tmp"  # what `replace_file` writes, and then gives its name
_NEW = IDENTITY + ".new"
_IGNORED = {LOCK, _NEW, _TEMPORARY, "lost+found"}  # may stand in a directory that no gateway has begun to use
_US = 1_000_000
_NAMED_MAX = 7  # gateways that `tutti dev` runs at most
_GIVE_ANOTHER = "stop that gateway first, or give this one a directory of its own"


class Identity(msgspec.Struct, frozen=True):
    """identity.json: whose directory this is. `incarnation` and `log` are uuids as hex; `log` is empty until the log has begun.
    `left` says that the group went on without this disk, and how that was heard of; empty otherwise. `place` is the number (inode)
    of the log's folder when this was written, 0 where it was not noted, and `file` the file that this was written into, None where
    it was not noted: a copy of the directory has others.
    """

    format: int
    gateway: str
    group: str
    incarnation: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    log: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    left: str = ""
    place: int = 0
    file: Birth | None = None


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
        raise DirectoryRefused(f"{file} cannot be read: {error.strerror}; {remedy(error)}") from error
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
    """The error of a directory that no gateway has used; it names those within that one has, as `tutti dev` makes them."""
    try:
        found = [os.path.join(path, entry) for entry in sorted(os.listdir(path))]
    except FileNotFoundError:
        return WrongDirectory(f"{path} is not the data directory of a gateway: it does not exist")
    except OSError:
        found = []  # it cannot be read
    within = [directory for directory in found if os.path.isfile(os.path.join(directory, IDENTITY))][:_NAMED_MAX]
    hint = f"; did you mean {' or '.join(within)}?" if within else ""
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
        self._writing = threading.Lock()  # the disk's thread writes the identity, and whoever hears that the group left this disk
        self._settled = self._stale = False
        self._noted_at = 0.0
        self.copied = _copied(path, identity)
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
        """The directory stands here from now on, and is what its original was; done at each start, before anything is promised, so
        that what was copied before is told from it.
        """
        try:
            self._write(place=_place(self.path))
        except OSError as error:
            if self.copied or not no_room(error):  # else what was noted is still true
                raise
        self.copied, self._settled = False, True

    def freshen(self, after_us: int) -> None:
        """Note anew which file the identity is, if that was done longer ago: no start stands between a copy of a running gateway's
        files, and its being put back after a crash. To be called when something was promised or voted for.

        Raises:
            SyncFailed: the disk failed. What else fails is tried again as late: what was noted is still true.
        """
        self._stale = True
        if time.monotonic() - self._noted_at < after_us / _US:
            return
        try:
            self._write()
        except SyncFailed:
            raise
        except OSError:
            self._noted_at = time.monotonic()

    def rested(self, after_us: int) -> None:
        """The disk rests: do so, if something was promised or voted for since it was done, so long ago. Raises as `freshen`."""
        if self._stale:
            self.freshen(after_us)

    def renew(self) -> None:
        """The directory is a copy in a group of several, or holds files of an earlier time: it becomes another disk, with a log to
        go on from and no vote. What the original promised and voted for since is not known here.
        """
        self._write(incarnation=uuid.uuid4().hex, place=_place(self.path))
        self.copied, self._settled = False, True
        self.renewed = (
            f"data directory {self.path} is a copy, was put back from one, or is older than its group knows: what {self.gateway} "
            f"promised since is lost. It learns as with a new disk, and has no vote; to give it one, {disk_remedy(self.gateway)}. "
            "A directory that is moved, with nothing left behind that may run, is declared so before its first start: "
            "`tutti log moved DIR`"
        )

    def _write(self, **changes: str | int) -> None:
        with self._writing:
            self.identity = _write_identity(self.path, msgspec.structs.replace(self.identity, **changes), self.storage)
            self._stale, self._noted_at = False, time.monotonic()

    def close(self) -> None:
        """Let the directory go; where a gateway ran, copies that were made of its files meanwhile are none of what it leaves."""
        if self._lock < 0:
            return
        try:
            if self._settled:
                with contextlib.suppress(OSError):  # what was noted is still true
                    self._write()
        finally:
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
    if lane_at(path) is not None:
        raise WrongDirectory(
            f"{path} is a lane, from which nothing is cut: its gateway takes what is lost from the others; where it is the "
            f"gateway's own lane, and `halted` in `lanes` of the status, {NEW_LANE}"
        )
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
        raise DirectoryRefused(f"data directory {path} cannot be used: {error.strerror}; {remedy(error)}") from error
    try:
        return Directory(path, _own(path, gateway, group, create, storage), lock, storage)
    except OSError as error:
        os.close(lock)
        raise DirectoryRefused(f"data directory {path} cannot be used: {error.strerror}; {remedy(error)}") from error
    except BaseException:
        os.close(lock)
        raise


def _make(path: str, storage: Storage) -> None:
    missing: list[str] = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory, DIRECTORY_MODE if directory == missing[0] else 0o777)
        storage.sync_directory(os.path.dirname(directory))


def _lock(path: str, when_in_use: str) -> int:
    import fcntl  # noqa: PLC0415 - clients are imported also on systems without it, and lock nothing

    lock = open_file(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT)
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
        found = _write_identity(path, Identity(FORMAT_VERSION, gateway, group, uuid.uuid4().hex, place=_place(path)), storage)
    return found


def _copied(path: str, identity: Identity) -> bool:
    """Whether the log's folder or the identity is not the one that was noted. Nothing is compared that owner or mode change: some
    machines set these again at each start.
    """
    file = identity.file
    return 0 < identity.place != _place(path) or not (file is None or file.fits(birth_of(os.path.join(path, IDENTITY))))


def _place(path: str) -> int:
    """The number of the log's folder, which a copy does not share."""
    return os.stat(os.path.join(path, LOG)).st_ino


def _begun(path: str, name: str) -> bool:
    """Whether it is the empty folder that a first start leaves when it is cut off before the identity."""
    return name == LOG and os.path.isdir(os.path.join(path, LOG)) and not os.listdir(os.path.join(path, LOG))


def _write_identity(path: str, identity: Identity, storage: Storage) -> Identity:
    """Put the identity into a new file, and note in it which one that is; returns what was written."""
    made = _new_file(os.path.join(path, _NEW), os.path.join(path, _TEMPORARY), storage)
    identity = msgspec.structs.replace(identity, file=made)
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    storage.replace_file(os.path.join(path, IDENTITY), data)
    return identity


def _new_file(path: str, then: str, storage: Storage) -> Birth | None:
    """Make a file under a path, rename it, and say which one it is; None where that changes with the name, as on file systems that
    make a number of the path: nothing must be noted then that does not last.
    """
    storage.close(storage.open(path, create=True))
    made = birth_of(path)
    storage.rename(path, then)
    return made if made == birth_of(then) else None
