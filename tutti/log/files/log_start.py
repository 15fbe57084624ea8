"""Start of a directory's log: the first segment that belongs to the log. Older segment files are ignored.

A trim stores the new start durably before it removes files. If a crash interrupts the removal, the next start of the gateway
removes the ignored files. The installation of a snapshot stores the new start with the flag `replacing` before it creates the first
segment. If a crash interrupts the installation, the next start of the gateway completes the installation.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from tutti.data.frames.frame import crc32c
from tutti.errors import Damaged, WrongDirectory
from tutti.log.files.storage import Storage, read_file

START = "start"

_MAGIC = b"TUTB"
_VERSION = 1
_HEAD = struct.Struct("<4sIQqI")
_CRC = struct.Struct("<I")


class LogStart(NamedTuple):
    """The start of a log.

    Attributes:
        first: first position of the first segment.
        offset: first readable offset, which can lie inside the first segment.
        replacing: True until the installation of the snapshot before `first` is complete; the first segment may not exist yet.
    """

    first: int = 1
    offset: int = 0
    replacing: bool = False


def start_path(directory: str) -> str:
    """Return the path of the file that stores the start of a directory's log."""
    return os.path.join(directory, START)


def read_start(directory: str) -> LogStart:
    """Return the start of a directory's log: position 1 unless the file contains a different one.

    Raises:
        Damaged: the file fails its CRC.
        WrongDirectory: the file has a format version that this release does not support.
    """
    path = start_path(directory)
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        # A log that was never trimmed has no file `start`.
        return LogStart()
    head = data[: _HEAD.size]
    # A corrupt file is an error, because a guessed start could make trimmed files visible again or hide records.
    if len(data) < _HEAD.size + _CRC.size or head[:4] != _MAGIC or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        raise Damaged(
            f"{path} fails its CRC, so the start of the log is unknown; never restore this file alone from a backup, because an "
            "older copy names an earlier start"
        )
    _, version, first, offset, replacing = _HEAD.unpack(head)
    if version != _VERSION:
        raise WrongDirectory(
            f"{path} has format {version}, but this release supports format {_VERSION}: use the release that wrote it"
        )
    return LogStart(first, offset, bool(replacing))


def write_start(directory: str, start: LogStart, storage: Storage) -> None:
    """Store the start of the log durably."""
    head = _HEAD.pack(_MAGIC, _VERSION, start.first, start.offset, start.replacing)
    # The new start must be durable when this call returns, because the caller then removes files.
    storage.replace_file(start_path(directory), head + _CRC.pack(crc32c(head)))
