"""The live page: what a running gateway tells the other processes of its machine about its log, without a sync or a message.

A page of the file `live`, mapped by the gateway and by its readers. Every field is one aligned 8-byte word and is stored at once.
It is never synced: it is good for as long as the kernel runs that it was written under (the page cache outlives the gateway), which
the boot id in it tells. A copy of a directory does not pass for the original, because the page names its own inode.

The frontier only grows while a boot lasts: a new run of the gateway takes over that of the one before, so that a reader never sees
it move back (C7). The generation grows whenever another segment may come under the name of one of which nothing was decided: with
each run, and each cut.
"""

from __future__ import annotations

import functools
import mmap
import os
from typing import Final

from tutti.data.log_state import LogState
from tutti.log.files.layout import LIVE, PAGE
from tutti.log.files.mapped_pages import map_file
from tutti.runtime.fsync import open_file
from tutti.runtime.reserved_fds import spared

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
    """16 bytes that name the run of the kernel."""
    with open(_BOOT_FILE, encoding="ascii") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def process_started(pid: int) -> int:
    """When a process started, in clock ticks after boot; 0 if it does not run. With the pid it names a process for a boot."""
    try:
        with spared(lambda: open(f"/proc/{pid}/stat", "rb")) as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in b"ZX" else int(fields[19])  # a zombie runs no more, it only was not waited for


class LivePage:
    """The gateway's side: the only writer."""

    def __init__(self, directory: str) -> None:
        """Map the page, which is made if it is not there; `publish` makes it good.

        Raises:
            OSError: there is no room for it, or the disk failed.
        """
        path = os.path.join(directory, LIVE)
        fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, PAGE)  # a store into a page without a block ends the process when the disk is full
            self._inode = os.fstat(fd).st_ino
            self._map = mmap.mmap(fd, PAGE)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def inherited(self) -> tuple[int, int]:
        """Frontier (position, offset) of the run before, if that was under this boot; else zeros."""
        return (self._words[FRONTIER_POSITION], self._words[FRONTIER_OFFSET]) if _good(self._words, self._inode) else (0, 0)

    @property
    def failed_before(self) -> bool:
        """Whether the page cache may show what no disk holds: the last run ended with a failed sync, or nothing says that it did
        not.
        """
        return not _good(self._words, self._inode) or bool(self._words[FAILED])

    def fail(self) -> None:
        """Say so for the next run."""
        self._words[FAILED] = 1

    def publish(self, state: LogState, segment: int) -> None:
        """Begin a run: frontier and index go as far as `state`, `segment` is the first position of the newest segment."""
        words = self._words
        if not _good(words, self._inode):  # readers look at it only once the boot id is in
            for word in (BOOT_LOW, BOOT_HIGH, HEARTBEAT_US, GENERATION):
                words[word] = 0  # what stood there means nothing, and may be all ones
        words[PID] = os.getpid()
        words[STARTED] = process_started(os.getpid())
        words[GENERATION] += 1
        words[FAILED] = 0
        words[HEARTBEAT_US] = 0  # it is not at work yet
        self.segment(segment)
        self.frontier(state.position, state.next_offset)
        self.indexed(state)  # behind the frontier, as while the log grows: no tick and no row shows beyond it
        words[INODE] = self._inode
        words[MAGIC] = _MAGIC
        boot = boot_id()
        words[BOOT_HIGH] = int.from_bytes(boot[8:], "little")
        words[BOOT_LOW] = int.from_bytes(boot[:8], "little")

    def frontier(self, position: int, offset: int) -> None:
        """Move the frontier; done before any receipt leaves. The offset is stored last: what it shows has a position that shows."""
        self._words[FRONTIER_POSITION] = position
        self._words[FRONTIER_OFFSET] = offset

    def segment(self, first: int) -> None:
        """Say which segment is the newest (its first position); done before anything in it can be decided."""
        self._words[SEGMENT] = first

    def start(self, offset: int) -> None:
        """The log begins at an offset from now on, as the directory says already; done before any file goes."""
        self._words[START_OFFSET] = offset

    def cut(self, first: int) -> None:
        """The log was cut, and the newest segment begins with position `first`; done before anything is written behind the cut."""
        self.segment(first)
        self._words[GENERATION] += 1

    def renew(self) -> None:
        """Readers are to map files anew."""
        self._words[GENERATION] += 1

    def replaced(self, state: LogState) -> None:
        """The log is what `state` says, and its one segment begins behind it."""
        self.cut(state.position + 1)
        self.frontier(state.position, state.next_offset)
        self.indexed(state)

    def indexed(self, state: LogState) -> None:
        """Say that index rows are written as far as `state`."""
        words = self._words
        words[TICK] = state.tick
        words[TICK_TIME] = state.tick_time
        words[INDEXED_OFFSET] = state.next_offset
        words[INDEXED_POSITION] = state.position

    def beat(self, time_us: int) -> None:
        """Say that the gateway is at work, at wall clock `time_us`."""
        self._words[HEARTBEAT_US] = time_us

    def retract(self) -> None:
        """Make the page say nothing: readers then take the watermark."""
        self._words[BOOT_LOW] = self._words[BOOT_HIGH] = 0

    def close(self) -> None:
        """End the run in order and unmap the page; the frontier in it stays good."""
        self._words[PID] = 0
        self._words.release()
        self._map.close()


class LiveView:
    """A reader's side: a read-only mapping."""

    def __init__(self, fd: int) -> None:
        """Map the page behind a descriptor, which may be closed afterwards."""
        self.inode = os.fstat(fd).st_ino
        self.words = memoryview(map_file(fd, PAGE)).cast("Q")

    @property
    def good(self) -> bool:
        """Whether what the page says was said under the running kernel."""
        return _good(self.words, self.inode)

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it still runs."""
        pid = self.words[PID]
        return self.good and bool(pid) and process_started(pid) == self.words[STARTED]


def inode_of(directory: str) -> int:
    """The inode of the live page that a directory has now, 0 if it has none."""
    try:
        return os.stat(os.path.join(directory, LIVE)).st_ino
    except FileNotFoundError:
        return 0


def open_live(directory: str) -> LiveView | None:
    """The live page of a directory, None if there is none."""
    try:
        fd = spared(lambda: open_file(os.path.join(directory, LIVE), os.O_RDONLY))
    except FileNotFoundError:
        return None
    try:
        return LiveView(fd) if os.fstat(fd).st_size >= PAGE else None
    finally:
        os.close(fd)


def _good(words: memoryview, inode: int) -> bool:
    if words[MAGIC] != _MAGIC or words[INODE] != inode:
        return False
    boot = boot_id()
    return words[BOOT_LOW] == int.from_bytes(boot[:8], "little") and words[BOOT_HIGH] == int.from_bytes(boot[8:], "little")
