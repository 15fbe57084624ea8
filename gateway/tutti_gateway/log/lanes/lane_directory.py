"""The directory of one lane: all that a data directory has but the lock, which is that of the gateway's.

What its identity says is known without it: the name of the directory tells whose lane it is, and its segments, under a CRC, that it
has begun. So one that is damaged is written again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol

import msgspec

from tutti.data.lane_name import LaneName
from tutti.errors import Damaged, DirectoryRefused, InvariantViolated, WrongDirectory
from tutti.log.files.data_directory import Identity, read_identity
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import FORMAT_VERSION, IDENTITY, LOG, positions_named, read_header
from tutti.log.files.storage import Storage


class Owner(Protocol):
    """The gateway's directory, locked: `tutti.log.files.data_directory.Directory`."""

    path: str

    @property
    def gateway(self) -> str:
        """Name of the gateway."""

    @property
    def group(self) -> str:
        """Name of its group."""

    @property
    def incarnation(self) -> bytes:
        """16 bytes that name this disk."""

    def freshen(self, after_us: int) -> None:
        """Something was promised or voted for: have that told from copies made before."""

    def rested(self, after_us: int) -> None:
        """The disk rests: have that told, if something was."""


class LaneHome:
    """The directory of one lane. Whoever holds the lock of the gateway's directory writes it.

    Attributes:
        renewed: what was wrong with its identity, which was written again, for the operator; empty if nothing was.
    """

    def __init__(self, path: str, identity: Identity, owner: Owner, storage: Storage, renewed: str) -> None:
        """Made by `open_home`."""
        self.path = path
        self.storage = storage
        self.renewed = renewed
        self._identity = identity
        self._owner = owner

    @property
    def copied(self) -> bool:
        """A copy is told by the directory that it is in."""
        return False

    @property
    def incarnation(self) -> bytes:
        """16 bytes: of the disk whose lane it is."""
        return bytes.fromhex(self._identity.incarnation)

    @property
    def log(self) -> bytes:
        """The same once the lane has begun, empty before."""
        return bytes.fromhex(self._identity.log)

    def remember_log(self, log: bytes) -> None:
        """Write down that the lane has durably begun, or has not."""
        if log != self.log:
            self._identity = msgspec.structs.replace(self._identity, log=log.hex())
            _write_identity(self.path, self._identity, self.storage)

    def settle(self) -> None:
        """It is what it was."""

    def freshen(self, after_us: int) -> None:
        """A lane of an earlier time is told by the directory that it is in."""
        self._owner.freshen(after_us)

    def rested(self, after_us: int) -> None:
        """Likewise."""
        self._owner.rested(after_us)

    def renew(self) -> None:
        """It has nobody's vote: that is its gateway's."""
        raise InvariantViolated(f"the lane in {self.path} was to become another disk's")

    def close(self) -> None:
        """Its gateway has the lock."""


def open_home(owner: Owner, lane: LaneName, storage: Storage) -> LaneHome:
    """The directory of a lane, which is made, durably, if it is not there.

    Raises:
        Damaged: there is a log in it and nothing says whose, or its identity is damaged and nothing else says that it has begun.
        WrongDirectory: the log in it was written by a newer release.
        DirectoryRefused: the system does not let its identity be read.
    """
    path, renewed = lane_path(owner.path, lane), ""
    try:
        identity = _read(path, lane)
    except Damaged as error:
        identity = _made_again(path, owner, lane, error)
        _write_identity(path, identity, storage)
        renewed = f"{os.path.join(path, IDENTITY)} was damaged and is written again from what else tells of the lane: {error}"
    if identity is None:
        if positions_named(path, "seg"):
            raise Damaged(f"{os.path.join(path, IDENTITY)} is missing and the lane's log is there: restore the file")
        for folder in (os.path.dirname(path), path, os.path.join(path, LOG)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        identity = Identity(FORMAT_VERSION, owner.gateway, owner.group, lane.incarnation.hex())
        _write_identity(path, identity, storage)
        storage.make_names_durable(os.path.dirname(path))
        storage.make_names_durable(owner.path)
    elif not os.path.isdir(os.path.join(path, LOG)):
        raise Damaged(f"{path} has lost its {LOG} folder: restore it")
    return LaneHome(path, identity, owner, storage, renewed)


def _read(path: str, lane: LaneName) -> Identity | None:
    """The identity of a lane's directory, None if it has none. One that is not the lane's is damaged: the gateway's own, which is
    looked at before any lane, is of this release's format.
    """
    try:
        identity = read_identity(path)
    except WrongDirectory as error:
        raise Damaged(str(error)) from error
    except DirectoryRefused as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO:
            raise Damaged(str(error)) from error
        raise
    name = lane.incarnation.hex()
    if identity is not None and (identity.incarnation != name or identity.log not in ("", name)):
        raise Damaged(
            f"{os.path.join(path, IDENTITY)} is of disk {identity.incarnation!r} and of log {identity.log!r}, not of {name}"
        )
    return identity


def _made_again(path: str, owner: Owner, lane: LaneName, reason: Damaged) -> Identity:
    """A damaged identity as it was, of a lane that has begun: a header under a CRC says so. Where none does, it stays as it is."""
    firsts = positions_named(path, "seg", all_there=True)
    if not firsts or read_header(path, firsts[-1]).log != lane.incarnation:
        raise reason
    name = lane.incarnation.hex()
    return Identity(FORMAT_VERSION, owner.gateway, owner.group, name, log=name)


def _write_identity(path: str, identity: Identity, storage: Storage) -> None:
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    storage.replace_file(os.path.join(path, IDENTITY), data)
