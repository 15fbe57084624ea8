"""Identity of a file: its inode and its birth time, which distinguish the file from every other file and from its copies.

No copy tool preserves the inode and the birth time. A change of owner, mode, times or name does not change these two values.
"""

from __future__ import annotations

import os
import struct

import msgspec

from tutti.runtime.reserved_fds import with_descriptor_wait

_NS = 1_000_000_000

# Constants of statx(2): AT_EMPTY_PATH, STATX_BTIME and the size of struct statx.
_OF_DESCRIPTOR, _BIRTH, _SIZE = 0x1000, 0x800, 256
_MASK = struct.Struct("=I")
_TIME, _TIME_AT = struct.Struct("=qI"), 80  # format and byte offset of the field stx_btime in struct statx

_GET_GENERATION = 0x80087601  # request number FS_IOC_GETVERSION of ioctl_iflags(2)


class FileIdentity(msgspec.Struct, frozen=True):
    """Identity of one file.

    File systems reuse inodes, so the birth time `born` (ns since 1970) is part of the identity. On a file system without birth
    times, the `generation` of the inode is used instead. 0 means that a value is unknown.
    """

    inode: int
    born: int = 0
    generation: int = 0

    def matches(self, other: FileIdentity) -> bool:
        """True if both identities can belong to the same file.

        A value is compared only if it is known in both identities, because not every kernel returns every value.
        """
        pairs = ((self.born, other.born), (self.generation, other.generation))
        return self.inode == other.inode and all(not mine or not its or mine == its for mine, its in pairs)


def file_identity_of(path: str) -> FileIdentity:
    """Return the identity of the file at a path.

    Raises:
        OSError: the file cannot be opened.
    """
    # With O_NONBLOCK, the open does not wait for a writer if the path is a FIFO.
    fd = with_descriptor_wait(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    try:
        born = _birth_time(fd)
        return FileIdentity(os.fstat(fd).st_ino, born, 0 if born else _generation(fd))
    finally:
        os.close(fd)


def _birth_time(fd: int) -> int:
    """Return the birth time in ns; 0 if the file system, the kernel, a syscall filter or the C library does not provide it."""
    import ctypes  # noqa: PLC0415 - only gateways need ctypes, but clients import this module

    found = ctypes.create_string_buffer(_SIZE)
    try:
        failed = ctypes.CDLL(None).statx(fd, b"", _OF_DESCRIPTOR, _BIRTH, found)
    except AttributeError:
        return 0
    # In the mask, the kernel sets a bit for each field that the file system provides.
    if failed or not _MASK.unpack_from(found)[0] & _BIRTH:
        return 0
    seconds, rest = _TIME.unpack_from(found, _TIME_AT)
    return int(seconds * _NS + rest)


def _generation(fd: int) -> int:
    """Return the generation of the inode; 0 if unknown."""
    import fcntl  # noqa: PLC0415 - clients also run on systems without fcntl, and never call this function

    # According to the request number, the result is a long, but file systems write an int, so only four bytes are decoded.
    found = bytearray(8)
    try:
        fcntl.ioctl(fd, _GET_GENERATION, found)
    except OSError:
        return 0
    return int.from_bytes(found[:4], "little")
