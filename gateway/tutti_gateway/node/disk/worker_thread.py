"""A thread that works for a disk: it takes what is queued, in rounds, rests between them, and says what ends its writing."""

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
from tutti_gateway.node.common.thread_join import ended

US_PER_MS = 1000

Item = TypeVar("Item")


class Working(ABC, Generic[Item]):
    """What the disk's thread and that of the lanes have in common.

    Attributes:
        failed: why nothing more is written in this run; full: why what waits cannot be written now; both empty while all is well.
    """

    def __init__(self, name: str, report: Callable[[Event], None], log: FilteringBoundLogger) -> None:
        """Prepare.

        Args:
            name: of the thread, as the log tells it to people: "disk", "lanes".
            report: takes events for the stack; called in the thread.
            log: for what an operator must know.
        """
        self._name = name
        self._report = report
        self._log = log
        self._queue: Mailbox[Item | None] = Mailbox()
        self._stopping = False
        self._last: Callable[[], None] = _nothing
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failed = self.full = ""

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many things wait."""

    @property
    @abstractmethod
    def _pressing(self) -> bool:
        """Whether something that was taken from the queue waits for the next round, which is to come at once."""

    @abstractmethod
    def run_once(self) -> bool:
        """Do one round of what is queued; False when there was nothing to do."""

    @abstractmethod
    def _idle(self) -> bool:
        """Do what is to be done when nothing is queued; whether more of it is left. A lack of room ends no writing."""

    # For the socket thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, last: Callable[[], None] | None = None, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Finish what is queued, then end the thread. Waits for it, but not for a disk that is full or failed, and not for ever.

        Args:
            last: done at the end, in the thread: closes the log.
            hurried: asked now and then whether the waiting is to be cut short.

        Returns whether the thread ended; if not, the disk hangs in it, and it is left.
        """
        self._last = last or _nothing
        self._queue.put(None)
        if not ended(self._thread, hurried):
            self._log.error(
                "the disk hangs: the gateway ends without it, as by a crash; nothing that was acknowledged is lost",
                thread=self._name,
            )
            return False
        self._queue.close()
        return True

    # In the thread

    def _run(self) -> None:
        self._work()
        self._guarded(self._close)

    def _close(self) -> bool:
        self._last()
        return False

    def _work(self) -> None:
        rested = False
        while True:
            busy = self.run_once()
            if self._stopping and (self.failed or self.full or not self.depth):
                return
            if busy and self._pressing:
                continue
            # Straight back to sleep after work: who was just told of it wants the interpreter now, and idle work can wait.
            # What is done while idle may make room, so that a full disk is no reason to leave it.
            soon = (busy and not rested) or (not self.failed and self._guarded(self._at_rest)) or bool(self.full)
            nap_us = limits.MARK_IDLE_US - limits.MARK_LATE_US
            rested = self._queue.wait((nap_us if soon else limits.SPACE_LOOK_US) // US_PER_MS, nap=soon)

    def _at_rest(self) -> bool:
        try:
            return self._idle()
        except DiskFull:
            return False  # it can wait; what must be written says itself that it cannot be

    def _guarded(self, act: Callable[[], bool]) -> bool:
        """Do something, whose result is returned; whatever goes wrong in it ends writing, and is told."""
        try:
            return act()
        except (TuttiError, OSError) as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would leave the gateway voting for nothing
            self._log.exception("a thread of the disk met a defect", thread=self._name)
            self._fail(f"a defect in the thread {self._name}: {type(error).__name__}: {error}")
        return False

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._log.error(
            "writing failed; this gateway takes no more records until it is started again, and goes on serving reads",
            reason=reason,
            thread=self._name,
        )
        self._report(WriteFailed(reason))


def _nothing() -> None:
    """Nothing is left to do."""
