"""What tells a file from every other one, and from a copy of itself: its number (inode) and its birth. Neither goes with the
content, whatever copies it, and neither changes when owner, mode, times or name of the file do.
"""

from __future__ import annotations

import os
import struct

import msgspec

from tutti.runtime.reserved_fds import patiently

_NS = 1_000_000_000

# statx(2): of a descriptor, and where in what it fills in (256 bytes) stand the mask of what is told and the time of birth.
_OF_DESCRIPTOR, _BIRTH, _SIZE = 0x1000, 0x800, 256
_MASK = struct.Struct("=I")
_TIME, _TIME_AT = struct.Struct("=qI"), 80

_GET_GENERATION = 0x80087601  # ioctl_iflags(2): FS_IOC_GETVERSION, which fills in an int


class Birth(msgspec.Struct, frozen=True):
    """Of one file. A number is given again once its file is gone, so when the file was made is told with it: `born`, ns since 1970,
    or where the file system tells no such time the number's `generation`. 0 is what it does not tell.
    """

    inode: int
    born: int = 0
    generation: int = 0

    def fits(self, other: Birth) -> bool:
        """Whether both may be of one file: what is told of both is the same, as a kernel may tell more than the one before."""
        pairs = ((self.born, other.born), (self.generation, other.generation))
        return self.inode == other.inode and all(not mine or not its or mine == its for mine, its in pairs)


def birth_of(path: str) -> Birth:
    """That of the file under a path.

    Raises:
        OSError: it cannot be opened.
    """
    fd = patiently(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    try:
        born = _born(fd)
        return Birth(os.fstat(fd).st_ino, born, 0 if born else _generation(fd))
    finally:
        os.close(fd)


def _born(fd: int) -> int:
    """Time of birth, ns; 0 where it is not told: by the file system, the kernel, its filter of calls, or the C library."""
    import ctypes  # noqa: PLC0415 - only a gateway needs it, and clients import this

    found = ctypes.create_string_buffer(_SIZE)
    try:
        failed = ctypes.CDLL(None).statx(fd, b"", _OF_DESCRIPTOR, _BIRTH, found)
    except AttributeError:
        return 0
    if failed or not _MASK.unpack_from(found)[0] & _BIRTH:
        return 0
    seconds, rest = _TIME.unpack_from(found, _TIME_AT)
    return int(seconds * _NS + rest)


def _generation(fd: int) -> int:
    """How often, or at which draw, the number was given; 0 where it is not told."""
    import fcntl  # noqa: PLC0415 - clients are imported also on systems without it, and ask for nothing here

    found = bytearray(8)
    try:
        fcntl.ioctl(fd, _GET_GENERATION, found)
    except OSError:
        return 0
    return int.from_bytes(found[:4], "little")
