"""Live page: shared memory in which a running gateway publishes the state of its log to other processes on the host.

The page is in the file `live`, which the gateway and its readers map. Every field is one aligned 8-byte word that is stored
atomically. The page is never synced, but it remains after the gateway ends, because the page cache stays until the host restarts.
To detect a restart of the host, readers compare the boot id in the page with that of the kernel. The page also contains the inode
of the file `live`, so that readers do not mistake a copy of the directory for the original.

A new run of the gateway continues with the frontier of the previous run, so during one boot the frontier only grows (C7). The
generation number grows at each run and at each truncation, because a new segment file can then have the name of an old one. When
the generation number changes, readers map the files again.
"""

from __future__ import annotations

import functools
import mmap
import os
from typing import Final

from tutti.data.log_state import LogState
from tutti.log.files.layout import LIVE, PAGE
from tutti.log.files.mapped_pages import map_file
from tutti.runtime.durable_files import open_file
from tutti.runtime.reserved_fds import with_reserved_descriptor

_MAGIC: Final = int.from_bytes(b"TUTLIVE1", "little")
_BOOT_FILE = "/proc/sys/kernel/random/boot_id"

# Words of the page.
MAGIC, BOOT_LOW, BOOT_HIGH, INODE, PID, STARTED = 0, 1, 2, 3, 4, 5
FRONTIER_POSITION, FRONTIER_OFFSET = 6, 7
INDEXED_POSITION, INDEXED_OFFSET = 8, 9
SEGMENT, TICK, TICK_TIME = 10, 11, 12
HEARTBEAT_US, GENERATION, FAILED = 13, 14, 15
START_OFFSET = 16


@functools.cache
def boot_id() -> bytes:
    """Return the boot id of the kernel, 16 bytes."""
    with open(_BOOT_FILE, encoding="ascii") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def process_started(pid: int) -> int:
    """Return the start time of a process in clock ticks after boot; 0 if the process does not run.

    A pid can be reused, so only pid and start time together identify a process.
    """
    try:
        with with_reserved_descriptor(lambda: open(f"/proc/{pid}/stat", "rb")) as file:
            # The second field, the command name in parentheses, may contain spaces, so only the text after it is split.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in b"ZX" else int(fields[19])  # a zombie has ended


class LivePage:
    """The gateway's side of the page. Only the gateway writes the page."""

    def __init__(self, directory: str) -> None:
        """Map the page, and create the file if it does not exist. The page becomes valid with `publish`.

        Raises:
            OSError: the disk is full or failed.
        """
        path = os.path.join(directory, LIVE)
        fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            # On a full disk, a store into a page without an allocated block would end the process with SIGBUS.
            os.posix_fallocate(fd, 0, PAGE)
            self._inode = os.fstat(fd).st_ino
            self._map = mmap.mmap(fd, PAGE)
        finally:
            os.close(fd)
        self._fields = memoryview(self._map).cast("Q")

    def previous_frontier(self) -> tuple[int, int]:
        """Return the frontier (position, offset) of the previous run; zeros if the host has restarted after that run."""
        return (self._fields[FRONTIER_POSITION], self._fields[FRONTIER_OFFSET]) if _good(self._fields, self._inode) else (0, 0)

    @property
    def last_run_failed(self) -> bool:
        """True if the last run may have ended with a failed sync, so that the page cache can differ from the disk."""
        return not _good(self._fields, self._inode) or bool(self._fields[FAILED])

    def record_failure(self) -> None:
        """Record a failed sync for the next run."""
        self._fields[FAILED] = 1

    def publish(self, state: LogState, segment: int) -> None:
        """Publish the start of a run of the gateway.

        Args:
            state: state of the log at the frontier, up to which all index rows are written.
            segment: first position of the newest segment.
        """
        words = self._fields
        # Old values are deleted if they come from another boot or from a copied file. Without the boot id, readers ignore the page.
        if not _good(words, self._inode):
            for word in (BOOT_LOW, BOOT_HIGH, HEARTBEAT_US, GENERATION):
                words[word] = 0
        words[PID] = os.getpid()
        words[STARTED] = process_started(os.getpid())
        words[GENERATION] += 1
        words[FAILED] = 0
        words[HEARTBEAT_US] = 0  # the gateway does not serve yet
        self.segment(segment)
        self.frontier(state.position, state.next_offset)
        self.indexed(state)  # must follow `frontier`, so that readers never see a tick or an index row above the frontier
        words[INODE] = self._inode
        # The boot id is stored last, because it makes the page valid for readers.
        words[MAGIC] = _MAGIC
        boot = boot_id()
        words[BOOT_HIGH] = int.from_bytes(boot[8:], "little")
        words[BOOT_LOW] = int.from_bytes(boot[:8], "little")

    def frontier(self, position: int, offset: int) -> None:
        """Publish a new frontier. Callers must publish it before they send a receipt for a record below it.

        The offset is stored last, so a reader that sees the new offset also sees the new position.
        """
        self._fields[FRONTIER_POSITION] = position
        self._fields[FRONTIER_OFFSET] = offset

    def segment(self, first: int) -> None:
        """Publish the first position of the newest segment. Callers must publish it before a frame of the segment is decided."""
        self._fields[SEGMENT] = first

    def start(self, offset: int) -> None:
        """Publish the start offset of the log. Callers first store the start durably, and remove files only after this call."""
        self._fields[START_OFFSET] = offset

    def truncated(self, first: int) -> None:
        """Publish that the log was truncated, and that the newest segment now has first position `first`.

        Callers must publish the truncation before they write after the new end, because readers must map the files again.
        """
        self.segment(first)
        self._fields[GENERATION] += 1

    def bump_generation(self) -> None:
        """Increase the generation number, so that readers map the files of the log again."""
        self._fields[GENERATION] += 1

    def log_replaced(self, state: LogState) -> None:
        """Publish that a snapshot with `state` has replaced the log. The only segment of the new log begins after that state."""
        self.truncated(state.position + 1)
        self.frontier(state.position, state.next_offset)
        self.indexed(state)

    def indexed(self, state: LogState) -> None:
        """Publish that all index rows up to the position of `state` are written, and publish the last tick in `state`."""
        words = self._fields
        words[TICK] = state.tick
        words[TICK_TIME] = state.tick_time
        words[INDEXED_OFFSET] = state.next_offset
        words[INDEXED_POSITION] = state.position

    def heartbeat(self, time_us: int) -> None:
        """Publish that the gateway was alive at wall clock `time_us`."""
        self._fields[HEARTBEAT_US] = time_us

    def invalidate(self) -> None:
        """Invalidate the page, so that readers use the stored watermark instead."""
        self._fields[BOOT_LOW] = self._fields[BOOT_HIGH] = 0

    def close(self) -> None:
        """Publish the clean end of the run, and unmap the page. Readers can still use the frontier in the page."""
        # A pid of 0 shows readers that the gateway has stopped.
        self._fields[PID] = 0
        # The memoryview is released first, because Python cannot close an mmap that has a memoryview.
        self._fields.release()
        self._map.close()


class LiveView:
    """The readers' side of the page: a read-only mapping."""

    def __init__(self, fd: int) -> None:
        """Map the page from an open descriptor, which the caller may close after this call."""
        self.inode = os.fstat(fd).st_ino
        self.fields = memoryview(map_file(fd, PAGE)).cast("Q")

    @property
    def valid(self) -> bool:
        """True if the page was written since the last restart of the host, and belongs to this file."""
        return _good(self.fields, self.inode)

    @property
    def alive(self) -> bool:
        """True if the process that writes the page is running."""
        # The start time is compared, too, because a later process can have the same pid as the gateway.
        pid = self.fields[PID]
        return self.valid and bool(pid) and process_started(pid) == self.fields[STARTED]


def inode_of(directory: str) -> int:
    """Return the inode of a directory's live page; 0 if the directory has none."""
    try:
        return os.stat(os.path.join(directory, LIVE)).st_ino
    except FileNotFoundError:
        return 0


def open_live(directory: str) -> LiveView | None:
    """Open the live page of a directory. Return None if the directory has no complete page."""
    try:
        fd = with_reserved_descriptor(lambda: open_file(os.path.join(directory, LIVE), os.O_RDONLY))
    except FileNotFoundError:
        return None
    try:
        # A shorter file, which a crash before the allocation leaves, is not mapped, because an access beyond its end raises SIGBUS.
        return LiveView(fd) if os.fstat(fd).st_size >= PAGE else None
    finally:
        os.close(fd)


def _good(words: memoryview, inode: int) -> bool:
    if words[MAGIC] != _MAGIC or words[INODE] != inode:
        return False
    boot = boot_id()
    return words[BOOT_LOW] == int.from_bytes(boot[:8], "little") and words[BOOT_HIGH] == int.from_bytes(boot[8:], "little")
