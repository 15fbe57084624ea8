"""Offsets of duplicates, looked up in the index by a thread of its own, off the way of new messages.

A duplicate is rare but comes in crowds: after a restart each producer sends again what was not answered. The client port is not
drained while more than a bounded number of them wait.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from structlog.typing import FilteringBoundLogger

from tutti import limits as common_limits
from tutti.data.client_protocol import OFFSET_UNKNOWN, Committed, Duplicate
from tutti.log.read.sequence_lookup import Run
from tutti_gateway.core import limits
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.common.thread_join import ended


class Index(Protocol):
    """What is needed of `tutti.log.read.reader.LogReader`."""

    def find_all(self, runs: Sequence[Run]) -> list[int | None]:
        """Offsets of committed records; None where the log no longer holds them, or does not hold them behind each other."""

    def close(self) -> None:
        """Let files go."""


class Located(NamedTuple):
    """Answers to duplicates of one session."""

    session: int
    answers: tuple[Committed, ...]


class Lookups:
    """Takes duplicates, gives `Located`."""

    def __init__(
        self,
        open_index: Callable[[], Index],
        report: Callable[[Located], None],
        log: FilteringBoundLogger,
        *,
        by_epoch: bool = False,
    ) -> None:
        """Prepare.

        Args:
            open_index: opens the index; called in the thread when it is first needed.
            report: takes answers; called in the thread.
            log: for what an operator must know.
            by_epoch: whether sequences begin anew in each epoch, as in a lane.
        """
        self._open_index = open_index
        self._by_epoch = by_epoch
        self._report = report
        self._log = log
        self._queue: Mailbox[tuple[int, list[Duplicate]] | None] = Mailbox()
        self._thread = threading.Thread(target=self._run, name="lookups", daemon=True)
        self._index: Index | None = None
        self._taken = 0  # written by the socket thread only
        self._answered = 0  # written by this one's only

    @property
    def waiting(self) -> int:
        """Duplicates that wait for their offset."""
        return self._taken - self._answered

    def put(self, session: int, duplicates: list[Duplicate]) -> None:
        """Queue duplicates of a session; they were decided and indexed, or soon will be."""
        self._taken += len(duplicates)
        self._queue.put((session, duplicates))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Answer what is queued and end the thread; one that a hanging disk holds is left, at once when `hurried`."""
        self._queue.put(None)
        if not ended(self._thread, hurried):
            return
        self._queue.close()
        if self._index is not None:
            self._index.close()

    def _run(self) -> None:
        while True:
            self._queue.wait(common_limits.POLL_US_MAX // 1000)
            taken = self._queue.take(limits.LOOKUP_ITEMS_A_TURN_MAX)
            self._answer([item for item in taken if item is not None])
            if None in taken:
                return

    def _answer(self, asked: list[tuple[int, list[Duplicate]]]) -> None:
        """Look the offsets up, of all in one pass over the index, and report them to each."""
        every = [one for _, duplicates in asked for one in duplicates]
        if not every:
            return
        found = self._find(every, alone=len(asked) == 1)
        if found is None:  # what one of them met is not for all
            for one in asked:
                self._answer([one])
            return
        offsets = iter(found)
        for session, duplicates in asked:
            answers = tuple(
                Committed(one.producer, one.epoch, one.first_sequence, one.count, offset)
                for one, offset in zip(duplicates, itertools.islice(offsets, len(duplicates)), strict=True)
            )
            self._answered += len(duplicates)
            self._report(Located(session, answers))

    def _find(self, duplicates: list[Duplicate], *, alone: bool) -> list[int] | None:
        try:
            if self._index is None:
                self._index = self._open_index()
            # A duplicate may be cut otherwise than its first copy was; then its records need not stand behind each other.
            found = self._index.find_all(
                [Run(one.producer, one.first_sequence, one.count, one.epoch if self._by_epoch else 0) for one in duplicates]
            )
        except Exception as error:  # noqa: BLE001 - whatever the index met, who waits gets an answer
            if not alone:
                return None
            # That they committed is certain; where is what the index could not tell.
            kind = type(error).__name__
            self._log.error("offsets of duplicates could not be looked up", error=f"{kind}: {error}", count=len(duplicates))
            return [OFFSET_UNKNOWN] * len(duplicates)
        return [OFFSET_UNKNOWN if offset is None else offset for offset in found]
