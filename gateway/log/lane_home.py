"""The directory of one lane: all that a data directory has but the lock, which is that of the gateway's."""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

import msgspec

from gateway.data.lanes import LaneName
from gateway.errors import Damaged, InvariantViolated
from gateway.log.directory import Identity, read_identity
from gateway.log.lanes_there import lane_path
from gateway.log.layout import FORMAT_VERSION, IDENTITY, LOG, positions_named
from gateway.log.storage import Storage


class Owner(Protocol):
    """The gateway's directory, locked: `gateway.log.directory.Directory`."""

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


class LaneHome:
    """The directory of one lane. Whoever holds the lock of the gateway's directory writes it."""

    def __init__(self, path: str, identity: Identity, owner: Owner, storage: Storage) -> None:
        """Made by `open_home`."""
        self.path = path
        self.storage = storage
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

    def renew(self) -> None:
        """It has nobody's vote: that is its gateway's."""
        raise InvariantViolated(f"the lane in {self.path} was to become another disk's")

    def close(self) -> None:
        """Its gateway has the lock."""


def open_home(owner: Owner, lane: LaneName, storage: Storage) -> LaneHome:
    """The directory of a lane, which is made, durably, if it is not there.

    Raises:
        Damaged: there is a log in it and nothing says whose.
    """
    path = lane_path(owner.path, lane)
    identity = read_identity(path)
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
    return LaneHome(path, identity, owner, storage)


def _write_identity(path: str, identity: Identity, storage: Storage) -> None:
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    storage.replace_file(os.path.join(path, IDENTITY), data)
