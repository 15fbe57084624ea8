"""The directory of one lane. A lane has the files of a data directory, but no lock, because the gateway's lock covers its lanes.

A corrupt identity file of a lane can be rebuilt: the name of the directory gives the origin, and a segment header with a valid CRC
shows that the lane has begun.
"""

from __future__ import annotations

import contextlib
import errno
import os

import msgspec

from tutti.data.lane_name import LaneName
from tutti.errors import Damaged, DirectoryRefused, InvariantViolated, WrongDirectory
from tutti.log.files.data_directory import DataDirectory, Identity, read_identity
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import FORMAT_VERSION, IDENTITY, LOG, list_positions, read_header
from tutti.log.files.storage import Storage


class LaneDirectory:
    """The directory of one lane. Only the process that holds the lock of the gateway's directory may write to it.

    Attributes:
        renewed: message for the operator about a rebuilt identity file; empty if there is none.
    """

    def __init__(self, path: str, identity: Identity, owner: DataDirectory, storage: Storage, renewed: str) -> None:
        """Create the directory object; use `open_lane_directory` instead."""
        self.path = path
        self.storage = storage
        self.renewed = renewed
        self._identity = identity
        self._owner = owner

    @property
    def copied(self) -> bool:
        """Return False, because copies are detected by the gateway's directory and not by the directories of its lanes."""
        return False

    @property
    def incarnation(self) -> bytes:
        """Return the incarnation of the lane's origin: 16 bytes that identify its disk."""
        return bytes.fromhex(self._identity.incarnation)

    @property
    def log(self) -> bytes:
        """Return the incarnation if the lane has begun, else empty bytes."""
        return bytes.fromhex(self._identity.log)

    def store_log_uuid(self, log: bytes) -> None:
        """Record durably whether the lane has begun.

        Args:
            log: incarnation of the lane if the lane has begun, else empty bytes.
        """
        if log != self.log:
            self._identity = msgspec.structs.replace(self._identity, log=log.hex())
            _write_identity(self.path, self._identity, self.storage)

    def declare_original(self) -> None:
        """Do nothing, because the identity of the gateway's directory also detects copies of its lanes."""

    def refresh_identity(self, after_us: int) -> None:
        """Refresh the identity file of the gateway, which also detects older copies of the gateway's lanes."""
        self._owner.refresh_identity(after_us)

    def refresh_if_stale(self, after_us: int) -> None:
        """Refresh the identity file of the gateway if a promise or vote was made after the file's last write."""
        self._owner.refresh_if_stale(after_us)

    def become_new_disk(self) -> None:
        """Raise an error, because votes belong to the gateway and not to a lane."""
        raise InvariantViolated(f"the lane in {self.path} cannot take the identity of another disk")

    def close(self) -> None:
        """Do nothing, because the gateway's directory holds the lock and a lane has none."""


def open_lane_directory(owner: DataDirectory, lane: LaneName, storage: Storage) -> LaneDirectory:
    """Open the directory of a lane, and create it durably if it does not exist.

    Raises:
        Damaged: the identity file is missing or corrupt, and cannot be rebuilt.
        WrongDirectory: a newer release wrote the lane's log.
        DirectoryRefused: the system denies access to the identity file.
    """
    path, renewed = lane_path(owner.path, lane), ""
    try:
        identity = _read(path, lane)
    except Damaged as error:
        identity = _rebuild_identity(path, owner, lane, error)
        _write_identity(path, identity, storage)
        renewed = f"{os.path.join(path, IDENTITY)} was corrupt and was rebuilt from the other files of the lane: {error}"
    if identity is None:
        # Segments without an identity are an error, because a new lane would assign their positions to different records.
        if list_positions(path, "seg"):
            raise Damaged(f"{os.path.join(path, IDENTITY)} is missing, but the lane's log exists: restore the file")
        # The identity is written last, so a crash during the creation leaves a lane that the next start creates again.
        for folder in (os.path.dirname(path), path, os.path.join(path, LOG)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        identity = Identity(FORMAT_VERSION, owner.gateway, owner.group, lane.incarnation.hex())
        _write_identity(path, identity, storage)
        # Two directory entries must be durable: that of the lane in `lanes`, and that of `lanes` in the gateway's directory.
        storage.make_names_durable(os.path.dirname(path))
        storage.make_names_durable(owner.path)
    elif not os.path.isdir(os.path.join(path, LOG)):
        raise Damaged(f"{path} has lost its {LOG} folder: restore the folder")
    return LaneDirectory(path, identity, owner, storage, renewed)


def _read(path: str, lane: LaneName) -> Identity | None:
    """Return the identity of a lane's directory, or None if it has none.

    An identity counts as corrupt if it has another format, or another disk than the name of the directory.
    """
    try:
        identity = read_identity(path)
    except WrongDirectory as error:
        raise Damaged(str(error)) from error
    except DirectoryRefused as error:
        # A bad sector affects only this lane, so it counts as corruption. Other errors (permissions, for example) need an operator.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO:
            raise Damaged(str(error)) from error
        raise
    name = lane.incarnation.hex()
    if identity is not None and (identity.incarnation != name or identity.log not in ("", name)):
        raise Damaged(
            f"{os.path.join(path, IDENTITY)} names disk {identity.incarnation!r} and log {identity.log!r}, "
            f"but the lane belongs to disk {name}"
        )
    return identity


def _rebuild_identity(path: str, owner: DataDirectory, lane: LaneName, reason: Damaged) -> Identity:
    """Rebuild a corrupt identity from the newest segment header that is valid.

    Raises:
        Damaged: no segment header is valid, or the newest valid one belongs to another lane (`reason`).
        WrongDirectory: a newer release wrote a segment.
    """
    # A rebuilt identity says that the lane has begun, so a segment header of this lane must prove it.
    if _newest_log(path) != lane.incarnation:
        raise reason
    name = lane.incarnation.hex()
    return Identity(FORMAT_VERSION, owner.gateway, owner.group, name, log=name)


def _newest_log(path: str) -> bytes:
    """Return the incarnation in the newest segment header that is valid; empty bytes if none is."""
    for first in reversed(list_positions(path, "seg", include_trimmed=True)):
        # Recovery rebuilds a corrupt header later, but only in a directory that has its identity.
        with contextlib.suppress(Damaged):
            return read_header(path, first).log
    return b""


def _write_identity(path: str, identity: Identity, storage: Storage) -> None:
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    storage.replace_file(os.path.join(path, IDENTITY), data)
