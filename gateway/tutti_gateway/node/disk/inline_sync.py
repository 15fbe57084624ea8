"""Inline sync: the socket thread itself writes and syncs a small group of frames while nothing else is under way.

An inline sync saves the two hand-overs between the socket thread and the disk thread. The disk thread watches each inline sync. If
a sync lasts too long, the disk thread takes the loop over, so that heartbeats and clients do not wait for the disk. The stalled
thread becomes the disk thread when its sync returns.

Two locks guard the roles. The holder of `_log` uses the log. `_roles` guards `_began`, which shows whether the thread that is in an
inline sync still has the loop.
"""

from __future__ import annotations

import threading
import time

from tutti.data.frames.frame import sizes_of
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Persist

US = 1_000_000


class InlineSync:
    """Decides which writes the socket thread does itself, and which of the two threads has the loop.

    Attributes:
        due: True while the loop must call `LogThread.sync_inline` at the end of its iteration.
        thread: the thread of the last inline sync.
        ended: end of the last inline sync (monotonic, s); 0 before the first one.
        syncs: number of inline syncs.
        takeovers: number of times that the disk thread has taken the loop over.
    """

    def __init__(self) -> None:
        self._log = threading.Lock()
        self._roles = threading.Lock()
        self._began = 0.0  # start of the inline sync (monotonic, s); 0 if none is under way or the disk thread has taken the loop
        self._fast_syncs = 0  # number of syncs since the last slow one
        self.due = False
        self.ended = 0.0
        self.thread = threading.current_thread()
        self.syncs = self.takeovers = 0

    def to_dict(self) -> dict[str, object]:
        """Return the counters by name."""
        return {"syncs": self.syncs, "takeovers": self.takeovers}

    def suits(self, action: Persist, decided: int) -> bool:
        """Return True if the socket thread may write and sync `action` itself.

        Args:
            action: the write.
            decided: the last decided position, after which `action` must be the only write.
        """
        frames = action.frames
        return (
            self._fast_syncs >= limits.INLINE_FAST_SYNCS
            and bool(frames)
            and action.cut is None
            and not action.snapshot
            and frames[0].position == decided + 1
            and len(frames) <= limits.INLINE_FRAMES_MAX
            and sum(sizes_of(frames)) <= limits.INLINE_BYTES_MAX
        )

    def measure(self, took_us: int) -> None:
        """Count a sync. A disk with slow syncs would make the threads swap their roles at each record."""
        self._fast_syncs = self._fast_syncs + 1 if took_us <= limits.INLINE_FAST_US else 0

    def pause(self) -> None:
        """Leave the next syncs to the disk thread."""
        self._fast_syncs = 0

    # For the thread that has the loop

    def begin(self) -> bool:
        """Begin an inline sync. Return False if the disk thread uses the log now."""
        if not self._log.acquire(blocking=False):
            return False
        self.thread = threading.current_thread()
        self._began = time.monotonic()
        self.syncs += 1
        return True

    def end(self) -> bool:
        """End an inline sync. Return False if the disk thread has taken the loop over."""
        with self._roles:
            kept, self._began = bool(self._began), 0.0
        self.ended = time.monotonic()
        self._log.release()
        return kept

    # For the disk thread

    def acquire(self) -> bool:
        """Wait until no other thread uses the log. Return False if this thread has taken the loop over, because a sync stalls."""
        patience_s = limits.INLINE_US_MAX / US
        while not self._log.acquire(timeout=patience_s):
            with self._roles:
                if self._began and time.monotonic() - self._began >= patience_s:
                    self._began, self._fast_syncs = 0.0, 0
                    self.takeovers += 1
                    return False
        return True

    @property
    def under_way(self) -> bool:
        """True while a thread that has the loop is in an inline sync, which the disk thread must watch."""
        return bool(self._began)

    def release(self) -> None:
        """End a use of the log."""
        self._log.release()
