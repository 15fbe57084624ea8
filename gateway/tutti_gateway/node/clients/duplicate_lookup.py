"""Lookup of the offsets of duplicate batches in the index, in a separate thread so that new messages do not wait.

Duplicates are rare but arrive in bursts, because after a restart each producer sends its unanswered batches again. While too many
duplicates wait, the gateway does not drain the client port.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from tutti import limits as common_limits
from tutti.data.client_protocol import OFFSET_UNKNOWN, Committed, Duplicate
from tutti.log.read.reader import LogReader
from tutti.log.read.sequence_lookup import SequenceRun
from tutti_gateway.core import limits
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.common.thread_join import join_bounded


class LocatedDuplicates(NamedTuple):
    """Answers to duplicates of one session."""

    session: int
    answers: tuple[Committed, ...]


class DuplicateLookup:
    """Looks up the offsets of duplicates and reports each session's answers as `LocatedDuplicates`."""

    def __init__(
        self,
        open_index: Callable[[], LogReader],
        report: Callable[[LocatedDuplicates], None],
        log: FilteringBoundLogger,
        *,
        by_epoch: bool = False,
    ) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            open_index: opens the index; called in the lookup thread before the first lookup.
            report: receives the answers of each session; called in the lookup thread.
            log: receives messages for the operator.
            by_epoch: whether the sequences of a producer start at 1 in each epoch, as they do in a lane.
        """
        self._open_index = open_index
        self._by_epoch = by_epoch
        self._report = report
        self._log = log
        self._queue: Mailbox[tuple[int, list[Duplicate]] | None] = Mailbox()
        self._thread = threading.Thread(target=self._run, name="lookups", daemon=True)
        self._index: LogReader | None = None
        # Two counters with one writer each need no lock; a single counter would lose updates, because `+=` is not atomic.
        self._queued_count = 0  # written by the socket thread only
        self._answered_count = 0  # written by the lookup thread only

    @property
    def waiting(self) -> int:
        """Number of duplicates that wait for their offset."""
        return self._queued_count - self._answered_count

    def put(self, session: int, duplicates: list[Duplicate]) -> None:
        """Queue duplicates of a session. Every duplicate is decided, so the index contains its first copy now or soon."""
        self._queued_count += len(duplicates)
        self._queue.put((session, duplicates))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Answer the queued duplicates and end the thread.

        If a hanging disk blocks the thread, abandon it after a time limit, or at once when `hurried` returns True.
        """
        self._queue.put(None)
        # An abandoned thread may still use its eventfd and its log reader, so both stay open until the process ends.
        if not join_bounded(self._thread, hurried):
            return
        self._queue.close()
        if self._index is not None:
            self._index.close()

    def _run(self) -> None:
        while True:
            self._queue.wait(common_limits.POLL_US_MAX // 1000)
            taken = self._queue.drain(limits.LOOKUP_DRAIN_ITEMS_MAX)
            self._answer([item for item in taken if item is not None])
            if None in taken:
                return

    def _answer(self, asked: list[tuple[int, list[Duplicate]]]) -> None:
        """Look up all offsets in one pass over the index, and report each session's answers."""
        every = [one for _, duplicates in asked for one in duplicates]
        if not every:
            return
        found = self._find(every, alone=len(asked) == 1)
        if found is None:  # one session's duplicates may cause the error, so look up each session alone
            for one in asked:
                self._answer([one])
            return
        offsets = iter(found)
        for session, duplicates in asked:
            answers = tuple(
                Committed(one.producer, one.epoch, one.first_sequence, one.count, offset)
                for one, offset in zip(duplicates, itertools.islice(offsets, len(duplicates)), strict=True)
            )
            # The count falls before the report wakes the loop, so that the loop sees whether it may drain the client port again.
            self._answered_count += len(duplicates)
            self._report(LocatedDuplicates(session, answers))

    def _find(self, duplicates: list[Duplicate], *, alone: bool) -> list[int] | None:
        try:
            if self._index is None:
                self._index = self._open_index()
            # A duplicate may have other batch boundaries than its first copy, so its records may lie in several places of the log.
            found = self._index.find_all(
                [SequenceRun(one.producer, one.first_sequence, one.count, one.epoch if self._by_epoch else 0) for one in duplicates]
            )
        except Exception as error:  # noqa: BLE001 - a client that waits gets an answer whatever the index raises
            if not alone:
                return None
            # The batches are certainly committed; only their offsets are unknown.
            kind = type(error).__name__
            self._log.error("offsets of duplicates could not be looked up", error=f"{kind}: {error}", count=len(duplicates))
            return [OFFSET_UNKNOWN] * len(duplicates)
        return [OFFSET_UNKNOWN if offset is None else offset for offset in found]
