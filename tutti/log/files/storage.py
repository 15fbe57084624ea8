"""Storage layer between the log and the operating system.

All durable writes use this layer, so that tests can replace it. One test replacement records writes and syncs, and rebuilds the
disk states that are possible after a power loss. Another test replacement raises errors on demand. The methods raise plain
OSErrors, and their callers convert these to errors of the log.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence

from tutti.data.frames.frame import Buffer
from tutti.runtime.durable_files import open_file, sync_directory
from tutti.runtime.reserved_fds import with_descriptor_wait

NS_PER_US = 1000
IOV_MAX = 1024  # maximum number of buffers in one vectored write (Linux UIO_MAXIOV)
WRITE_BYTES = 1 << 20  # larger writes are split: in new files, one write of 4 MiB took up to ten times as long as four of 1 MiB


class SyncFailed(OSError):
    """A sync failed with any error number, so the page cache can differ from the disk.

    Some file systems report a full disk only at the sync (thin volumes, quotas, NFS). The written data is then lost, even if a
    second sync succeeds.
    """


class MediumError(OSError):
    """The device cannot read the content of a file, so the file counts as corrupt, but the disk stays in use.

    If a write fails instead, the log treats the whole disk as failed.
    """


class Storage:
    """File operations on descriptors and paths.

    Written data is durable after `make_durable`. Creations, renames and deletions are durable after `make_names_durable`.

    Attributes:
        group_time_us: function that returns the group's time (us, UTC), or 0 if it is unknown. `replace_file` sets the modification
            time of files to this time, because retention without ticks takes the age of records from snapshot files.
    """

    group_time_us: Callable[[], int] = int

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing. With `create`, create the file if it does not exist."""
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return with_descriptor_wait(lambda: open_file(path, flags))

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Return `size` bytes from byte `at`, or fewer at the end of the file."""
        parts = []
        with translating_read_errors():
            # The loop is needed, because pread may return fewer bytes than requested before the end of the file.
            while size > 0 and (part := os.pread(fd, size, at)):
                parts.append(part)
                size -= len(part)
                at += len(part)
        return b"".join(parts)

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        """Write all buffers consecutively from byte `at`, without a copy."""
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
        """Make the data of a file durable with fdatasync, which omits only metadata that reads do not need, such as timestamps."""
        os.fdatasync(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Allocate blocks for the first `size` bytes of the file. New blocks read as zeros."""
        # Allocated blocks keep later writes from failing on a full disk, except on copy-on-write file systems.
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        """Set the size of a file. If the file grows, the new bytes read as zeros, but have no allocated blocks."""
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        """Return the file's size in bytes."""
        return os.fstat(fd).st_size

    def rename(self, old: str, new: str) -> None:
        """Rename a file. An existing file with the new name is replaced."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Sync a directory, so that creations, renames and deletions of its files are durable."""
        with_descriptor_wait(lambda: sync_directory(path))

    def make_durable(self, fd: int) -> None:
        """Sync a file.

        Raises:
            SyncFailed: the data may be lost, so this run must not rely on the file any more.
        """
        try:
            self.sync(fd)
        except OSError as error:
            # The kernel may have marked the failed pages as clean, so a second sync could succeed without the data.
            raise SyncFailed(error.errno, error.strerror) from error

    def make_names_durable(self, path: str) -> None:
        """Sync a directory, so that creations, renames and deletions of its files are durable.

        Raises:
            SyncFailed: the sync failed, so these changes may be lost.
        """
        try:
            self.sync_directory(path)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def free_bytes(self, path: str) -> int:
        """Return the number of free bytes in the file system that contains `path`."""
        # `f_bavail` excludes the blocks that the file system reserves for root, which a gateway cannot use.
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def replace_file(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the content of a file atomically, so that a crash leaves either the old or the new content.

        The steps are: write a temporary file, fsync, rename, fsync the directory. With `durable=False`, the syncs are skipped,
        which is safe only for files that contain a CRC and can be rebuilt.
        """
        temporary = path + ".tmp"
        fd = self.open(temporary, create=True)
        try:
            # A crash may have left a longer temporary file, whose last bytes would remain after the new content.
            self.truncate(fd, 0)
            self.write(fd, [data], 0)
            if written_us := self.group_time_us():
                with contextlib.suppress(PermissionError):  # some file systems do not let users set file times
                    os.utime(fd, ns=(written_us * NS_PER_US, written_us * NS_PER_US))
            if durable:
                self.make_durable(fd)
        finally:
            self.close(fd)
        # The content is durable before the rename, because a power loss could otherwise leave an empty file under the new name.
        self.rename(temporary, path)
        if durable:
            self.make_names_durable(os.path.dirname(path))


@contextlib.contextmanager
def translating_read_errors(path: str | None = None) -> Iterator[None]:
    """Convert an EIO error that the block raises to `MediumError`. The block must only read the content of a file.

    Raises:
        MediumError: the device cannot read the data.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise MediumError(error.errno, error.strerror, path) from error
        raise


def read_file(path: str, size: int = -1) -> bytes:
    """Return the content of a file, or its first `size` bytes.

    This function does not use `Storage`, because the test replacements change only the durability of writes, not what a read sees.

    Raises:
        OSError: the file cannot be opened.
        MediumError: the device cannot read the file.
    """
    with with_descriptor_wait(lambda: open(path, "rb", opener=open_file)) as file, translating_read_errors(path):
        return file.read(size)


def _write_rest(fd: int, parts: Sequence[Buffer], at: int, done: int) -> None:
    """Write the bytes that a short write left out. If the disk is full, this second write raises the error."""
    left = memoryview(b"".join(parts))[done:]
    at += done
    while left:
        done = os.pwrite(fd, left, at)
        left = left[done:]
        at += done
