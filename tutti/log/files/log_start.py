"""Where the log of a directory begins: the segment before which nothing counts, whatever files are still there.

A trim says so durably before any file goes, so that a crash in between leaves files that nobody looks at and the next start
removes. A log that is taken over as a snapshot says so before its first segment is there (`replacing`): a start then finishes that.
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


class Start(NamedTuple):
    """The begin of a log.

    Attributes:
        first: first position of its first segment.
        offset: the first offset that is still to be read; it may stand further on in that segment.
        replacing: everything is being replaced by the snapshot before `first`, whose segment may not be there yet.
    """

    first: int = 1
    offset: int = 0
    replacing: bool = False


def start_path(directory: str) -> str:
    """Path of the file."""
    return os.path.join(directory, START)


def read_start(directory: str) -> Start:
    """Where the log begins: with position 1, unless the directory says something else.

    Raises:
        Damaged: what it says fails its CRC.
        WrongDirectory: it was written by a newer release.
    """
    path = start_path(directory)
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return Start()
    head = data[: _HEAD.size]
    if len(data) < _HEAD.size + _CRC.size or head[:4] != _MAGIC or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        raise Damaged(
            f"{path} fails its CRC, so where the log begins is not known; restore the file from a backup, or start the gateway "
            "with a new directory"
        )
    _, version, first, offset, replacing = _HEAD.unpack(head)
    if version != _VERSION:
        raise WrongDirectory(f"{path} has format {version} and this release reads format {_VERSION}: use the release that wrote it")
    return Start(first, offset, bool(replacing))


def write_start(directory: str, start: Start, storage: Storage) -> None:
    """Say durably where the log begins."""
    head = _HEAD.pack(_MAGIC, _VERSION, start.first, start.offset, start.replacing)
    storage.replace_file(start_path(directory), head + _CRC.pack(crc32c(head)))
