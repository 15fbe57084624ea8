"""Base class of the disk threads: processes items in rounds, sleeps between rounds, and reports a failure that ends writing."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from tutti.errors import DiskFull, TuttiError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Event, WriteFailed
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.common.thread_join import join_bounded

US_PER_MS = 1000

Item = TypeVar("Item")


class DiskWorker(ABC, Generic[Item]):
    """Base class of the disk thread and the lane thread.

    Attributes:
        failed: reason why this thread writes nothing more in this run; empty while writing works.
        full: reason why the queued items cannot be written now; empty while the disk has free space.
    """

    def __init__(self, name: str, report: Callable[[Event], None], log: FilteringBoundLogger) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            name: name of the thread in log lines: "disk" or "lanes".
            report: receives events for the stack; called in the thread.
            log: receives messages for the operator.
        """
        self._name = name
        self._report = report
        self._log = log
        self._queue: Mailbox[Item | None] = Mailbox()
        self._stopping = False
        self._on_end: Callable[[], None] = _nothing
        # A thread that hangs in a write cannot be ended, but a daemon does not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failed = self.full = ""

    @property
    @abstractmethod
    def depth(self) -> int:
        """Number of queued items."""

    @property
    @abstractmethod
    def _has_waiting(self) -> bool:
        """True if drained items still wait for a write, a read or a repair, so that the next round must follow at once."""

    @abstractmethod
    def run_once(self) -> bool:
        """Process the queued items in one round. Return False if there was nothing to do."""

    @abstractmethod
    def _idle(self) -> bool:
        """Do background work while nothing is queued. Return True if work is left. A `DiskFull` raised here does not end
        writing.
        """

    # For the socket thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, last: Callable[[], None] | None = None, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Finish the queued items, then end the thread. If the disk is full or has failed, the thread ends without finishing them.

        Args:
            last: called in the thread at its end; closes the log.
            hurried: polled during the wait, which ends early if `hurried` returns True.

        Return True if the thread ended. Return False if the disk hangs and the thread is abandoned.
        """
        self._on_end = last or _nothing
        self._queue.put(None)
        if not join_bounded(self._thread, hurried):
            self._log.error(
                "the disk hangs: the gateway exits without waiting for it, as in a crash; no acknowledged record is lost",
                thread=self._name,
            )
            return False
        # Only a thread that has ended releases the eventfd; an abandoned thread may still poll the descriptor.
        self._queue.close()
        return True

    # In the thread

    def _run(self) -> None:
        if self._work():
            self._end()

    def _end(self) -> None:
        # The log is closed in this thread, because only this thread may use it.
        self._guarded(self._close)

    def _close(self) -> bool:
        self._on_end()
        return False

    def _acquire(self) -> bool:
        """Wait for the exclusive use of the log. Return False if this thread must end its work."""
        return True

    def _release(self) -> None:
        """End the exclusive use of the log."""

    def _nap_us(self) -> int:
        """Return the duration of a nap. A nap is short, because the vote mark must be written soon after the last sync."""
        return limits.MARK_IDLE_US - limits.MARK_LATE_US

    def _is_needed(self) -> bool:
        """Return True if this thread must not sleep although nothing is queued."""
        return False

    def _work(self) -> bool:
        """Work until the thread is stopped. Return False if `_acquire` has ended the work."""
        timed_out = False
        while self._acquire():
            try:
                busy = self.run_once()
                # A stop does not wait for a full or failed disk, because unwritten frames have no vote and no receipt yet.
                if self._stopping and (self.failed or self.full or not self.depth):
                    return True
                if busy and self._has_waiting:
                    continue
                # After work, sleep at once: the socket thread now needs the interpreter lock more than idle work does.
                # Idle work also runs while the disk is full, because it may free disk space.
                soon = (busy and not timed_out) or (not self.failed and self._guarded(self._idle_unless_full)) or bool(self.full)
            finally:
                self._release()
            # Without work, the thread still wakes four times a second to check the free space and the retention.
            timeout_ms = -(-(self._nap_us() if soon else limits.SPACE_CHECK_US) // US_PER_MS)
            timed_out = self._queue.wait(timeout_ms, nap=soon, needed=self._is_needed)
        return False

    def _idle_unless_full(self) -> bool:
        try:
            return self._idle()
        except DiskFull:
            return False  # idle work can wait; the next write reports the full disk

    def _guarded(self, act: Callable[[], bool]) -> bool:
        """Return the result of `act`. An exception in `act` ends writing and is reported."""
        try:
            return act()
        except (TuttiError, OSError) as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a silent end of the thread would block the gateway's votes permanently
            self._log.exception("a disk thread failed because of a defect", thread=self._name)
            self._fail(f"a defect in the thread {self._name}: {type(error).__name__}: {error}")
        return False

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._log.error(
            "writing failed: this gateway accepts no records until it is restarted, and continues to serve reads",
            reason=reason,
            thread=self._name,
        )
        self._report(WriteFailed(reason))


def _nothing() -> None:
    """Do nothing."""
