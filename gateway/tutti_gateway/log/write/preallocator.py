"""Prepares segments: fills them with zeros in advance.

A write into a prepared segment takes half the time of a write into a segment that is only allocated.
A low-priority thread fills segments while the log is idle. The thread works in small synced steps, so a log write waits for at most
one step. If no prepared segment is ready, the writer allocates a segment itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from tutti.log.files.layout import LOG, PREPARED
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.runtime.reserved_fds import with_descriptor_wait
from tutti_gateway.log.write.segment import prepared_paths

STEP_BYTES = 1 << 20
CHUNK_BYTES = 64 << 10  # size of one write; a larger write creates a larger page-cache folio, which makes later small writes slow
QUIET_S = 0.02  # time without a write after which the log counts as idle, s
POLL_S = 0.05
_NICE = 19


class SegmentPreallocator:
    """Preallocates segments in its own thread. The writer's thread calls `log_written` and `segment_used`."""

    def __init__(self, directory: str, options: LogOptions, storage: Storage) -> None:
        """Create a preallocator, which does nothing before `start`."""
        self._directory = directory
        self._options = options
        self._storage = storage
        self._wrote_at = 0.0
        self._needed = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which fills segments whenever the log is idle."""
        self._needed.set()
        self._thread = threading.Thread(target=self._run, name="prepare-segments", daemon=True)
        self._thread.start()

    def log_written(self) -> None:
        """Record a write to the log, which pauses preallocation for `QUIET_S` seconds."""
        self._wrote_at = time.monotonic()

    def segment_used(self) -> None:
        """Record that the writer took a prepared segment, so that the thread fills another one."""
        self._needed.set()

    def close(self) -> None:
        """Stop the thread. The next start removes an incomplete prepared segment."""
        self._stop.set()
        self._needed.set()
        if self._thread is not None:
            self._thread.join()

    def remove_unusable(self) -> None:
        """Remove prepared segments of an earlier run that are incomplete, or that the writer cannot use because of their size."""
        folder = os.path.join(self._directory, LOG)
        # With `first_segment_bytes`, segments have several sizes, so the writer uses no prepared segment.
        usable_bytes = 0 if self._options.first_segment_bytes else self._options.segment_bytes
        for name in with_descriptor_wait(lambda: os.listdir(folder)):
            path = os.path.join(folder, name)
            if name.startswith(PREPARED) and (name.endswith(".tmp") or os.path.getsize(path) != usable_bytes):
                self._storage.remove(path)

    def prepare_one(self, *, patient: bool) -> bool:
        """Write one segment of zeros, and return False if the preallocator was stopped or the disk is full.

        Args:
            patient: True to write only while the log is idle; False to write at once.

        Raises:
            OSError: the disk failed.
        """
        options, storage = self._options, self._storage
        # A prepared segment is optional, so it must not use space that records will need soon.
        if storage.free_bytes(self._directory) < options.disk_low_bytes + 2 * options.segment_bytes:
            return False
        number = time.time_ns()
        path = os.path.join(self._directory, LOG, f"{PREPARED}{number:020d}")
        size, zeros = options.segment_bytes, bytes(CHUNK_BYTES)
        fd = storage.open(path + ".tmp", create=True)
        done = False
        try:
            storage.allocate(fd, size)
            for at in range(0, size, STEP_BYTES):
                if patient and not self._wait_idle():
                    return False
                for chunk_at in range(at, min(at + STEP_BYTES, size), CHUNK_BYTES):
                    storage.write(fd, [zeros[: size - chunk_at]], chunk_at)
                # Each step is synced, because one large sync at the end would delay the sync of a log write for a long time.
                if patient:
                    storage.sync(fd)
            storage.sync(fd)
            done = True
        finally:
            storage.close(fd)
            if not done:
                storage.remove(path + ".tmp")
        # The writer uses every file whose name ends in `.seg`, so only a complete segment gets this name.
        storage.rename(path + ".tmp", path + ".seg")
        storage.sync_directory(os.path.dirname(path))
        return True

    def _wait_idle(self) -> bool:
        """Wait until the log is idle; return False if the preallocator is closed."""
        while not self._stop.is_set():
            idle_s = time.monotonic() - self._wrote_at
            if idle_s >= QUIET_S:
                return True
            self._stop.wait(POLL_S)
        return False

    def _run(self) -> None:
        # On Linux, this call lowers the priority of this thread only, not of the process.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            self._needed.wait()
            self._needed.clear()
            if self._stop.is_set():
                return
            with contextlib.suppress(OSError):  # the writer notices a failed disk itself, at its next write
                while len(prepared_paths(self._directory)) < self._options.prepared_segments:
                    if not self.prepare_one(patient=True):
                        break
