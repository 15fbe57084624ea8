"""The thin layer between the log and the operating system.

Everything that must survive a crash goes through it, so that tests can replace it: one that records writes and syncs rebuilds what
a disk may hold after a power loss, another one fails on demand. Errors are those of the system (OSError); the writer gives them
their meaning.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence

from tutti.data.frames.frame import Buffer
from tutti.runtime.fsync import open_file, sync_directory
from tutti.runtime.reserved_fds import patiently

NS_PER_US = 1000
IOV_MAX = 1024  # buffers that one gathered write takes (Linux UIO_MAXIOV)
WRITE_BYTES = 1 << 20  # larger writes are split: into fresh files one of 4 MiB took up to ten times as long as four of 1 MiB


class SyncFailed(OSError):
    """A sync failed: what the page cache holds is not known any more, whatever the system gives as the reason. A lack of room too
    may be told by the sync alone (thin volumes, quotas, NFS); what was written is lost then, and a second sync would say nothing.
    """


class Unreadable(OSError):
    """The device cannot read what a file holds: that is damage of the file. What cannot be written is a disk that fails."""


class Storage:
    """Files by descriptor and path. Nothing is durable before `make_durable` of the file (and `make_names_durable` for names).

    Attributes:
        group_time_us: the time (us, UTC) with which `replace_file` dates files. Where no tick dates records, retention measures
            their age by the dates of snapshots. 0: not known yet, and the host's clock dates the files.
    """

    group_time_us: Callable[[], int] = int

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; with `create` the file is made if it is not there."""
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return patiently(lambda: open_file(path, flags))

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Up to `size` bytes from `at`; fewer only at the end of the file."""
        parts = []
        with reading():
            while size > 0 and (part := os.pread(fd, size, at)):
                parts.append(part)
                size -= len(part)
                at += len(part)
        return b"".join(parts)

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        """Write the buffers back to back from `at`, without a copy; returns when all of it was taken."""
        lengths = list(map(len, parts))
        if len(parts) <= IOV_MAX and (length := sum(lengths)) <= WRITE_BYTES:
            done = os.pwritev(fd, parts, at)
            if done < length:
                _write_rest(fd, parts, at, done)
            return
        start = 0
        while start < len(parts):
            end, length = start + 1, lengths[start]
            while end < min(start + IOV_MAX, len(parts)) and length + lengths[end] <= WRITE_BYTES:
                length += lengths[end]
                end += 1
            some = parts[start:end]
            done = os.pwritev(fd, some, at)
            if done < length:
                _write_rest(fd, some, at, done)
            start, at = end, at + length

    def sync(self, fd: int) -> None:
        """Make the file's data durable, and what is needed to read it back (fdatasync)."""
        os.fdatasync(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve blocks for the file's first `size` bytes, which read as zeros."""
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        """Set the file's size; what is added reads as zeros and has no blocks."""
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        """The file's size, bytes."""
        return os.fstat(fd).st_size

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Take a file's name away."""
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Make names made, changed or taken away in the directory durable."""
        patiently(lambda: sync_directory(path))

    def make_durable(self, fd: int) -> None:
        """Sync what must never be taken for durable when it is not.

        Raises:
            SyncFailed: it is not durable, and nothing may be built on it in this run.
        """
        try:
            self.sync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def make_names_durable(self, path: str) -> None:
        """Like `make_durable`, for the names in a directory."""
        try:
            self.sync_directory(path)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be allocated on the file system of `path`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def replace_file(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Put `data` under `path`: a crash leaves the old file or the new one, never a mix (temp, fsync, rename, fsync directory).

        What is not `durable` saves the syncs: only for files that carry a CRC and can be made again.
        """
        temporary = path + ".tmp"
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write(fd, [data], 0)
            if written_us := self.group_time_us():
                with contextlib.suppress(PermissionError):  # a file system that keeps its own dates leaves the one of its clock
                    os.utime(fd, ns=(written_us * NS_PER_US, written_us * NS_PER_US))
            if durable:
                self.make_durable(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.make_names_durable(os.path.dirname(path))


@contextlib.contextmanager
def reading(path: str | None = None) -> Iterator[None]:
    """Read a file's content.

    Raises:
        Unreadable: the device cannot.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise Unreadable(error.errno, error.strerror, path) from error
        raise


def read_file(path: str, size: int = -1) -> bytes:
    """A file's content, or its first `size` bytes. Reading needs no storage: what was written is seen.

    Raises:
        OSError: it cannot be opened.
        Unreadable: the device cannot read it.
    """
    with patiently(lambda: open(path, "rb", opener=open_file)) as file, reading(path):
        return file.read(size)


def _write_rest(fd: int, parts: Sequence[Buffer], at: int, done: int) -> None:
    """Go on after a short write: a signal or a nearly full disk may end one early; a full one raises here."""
    left = memoryview(b"".join(parts))[done:]
    at += done
    while left:
        done = os.pwrite(fd, left, at)
        left = left[done:]
        at += done
