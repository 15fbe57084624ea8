"""Waiting until a query has processed a record: one question for all receipts of a producer that wait for the same query."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING

from tutti import limits
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.errors import TuttiError, Unavailable, UsageError
from tutti.io.endpoints import Route

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials
    from tutti.sources.query_progress import Progress

_TURN_S = limits.ANSWER_WAIT_US_MAX / 1e6  # of one question: no signal is heard meanwhile, as of Ctrl-C
_TELL_S = 1.0  # that may be taken to find out what to say where it was waited for in vain
_NAMES_TOLD = 10


class _Query:
    """What is known of one: the furthest position that it was at, who waits for what, and the thread that asks for all of them."""

    def __init__(self) -> None:
        self.position = -1
        self.wanted: list[int] = []
        self.asker: int | None = None


class Passing:
    """The queries that receipts wait for. Thread-safe; nothing is connected before the first wait."""

    def __init__(self, route: Route, log: str, credentials: Credentials | None = None) -> None:
        """Ask the gateways of `route`, those that are known when it is first waited, about log `log`."""
        self._route = route
        self._credentials = credentials
        self._log = log
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queries: dict[str, _Query] = {}
        self._gateways: Progress | None = None

    def wait(self, name: str, offset: int, count: int, timeout: float | None) -> int:
        """Wait until the query has passed `count` records from `offset` on (-1: which are committed, it is not known where).

        Returns its position: records below it are processed.

        Raises:
            TimeoutError: it has not after `timeout` seconds; the message says how far it is.
            Unavailable: no gateway could be asked for a minute.
            Refused: the gateway is of an older release.
            UsageError: called in a forked child, or by a signal handler whose thread waits in here already.
        """
        if os.getpid() != self._pid:
            raise UsageError("the producer of this receipt belongs to the process that forked this one: wait there")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._gateways is None:
                from tutti.sources.query_progress import Progress  # noqa: PLC0415 - Flight is loaded by who waits alone

                self._gateways = Progress(list(self._route.addresses), log=self._log, credentials=self._credentials)
            query = self._queries.setdefault(name, _Query())
        try:
            end = self._gateways.frontier(patience=_patience(deadline)).offset if offset == OFFSET_UNKNOWN else offset + count
            return self._reached(self._gateways, name, query, end, deadline)
        except Unavailable as error:
            if time.monotonic() < deadline:
                raise
            raise TimeoutError(
                f"whether query {name!r} has processed the record is not known after {round(timeout or 0.0, 1):g} s: {error}"
            ) from error
        except TimeoutError:
            raise TimeoutError(self._in_vain(self._gateways, name, offset, timeout)) from None

    def _reached(self, gateways: Progress, name: str, query: _Query, end: int, deadline: float) -> int:
        """The position of the query, once it is at `end`. Of those who wait for it one asks, for who wants least."""
        me = threading.get_ident()
        with self._changed:
            if query.asker == me:
                raise UsageError("a signal handler waits for a query that its own thread was asking about: let it set a flag")
            query.wanted.append(end)
        try:
            while True:
                with self._changed:
                    while query.asker is not None and query.position < end and time.monotonic() < deadline:
                        self._changed.wait(min(_TURN_S, deadline - time.monotonic()))
                    if query.position >= end:
                        return query.position
                    if query.asker is not None:
                        raise TimeoutError
                    query.asker, least = me, min(query.wanted)
                found = -1
                try:
                    turn = max(0.0, min(_TURN_S, deadline - time.monotonic()))
                    found = gateways.passed(name, least, turn, _patience(deadline))
                finally:
                    with self._changed:
                        query.asker, query.position = None, max(query.position, found)
                        self._changed.notify_all()
                if query.position < end and time.monotonic() >= deadline:
                    raise TimeoutError
        finally:
            with self._changed:
                query.wanted.remove(end)

    def _in_vain(self, gateways: Progress, name: str, offset: int, timeout: float | None) -> str:
        """What there is to say about a query that has not processed a record in time."""
        where = "" if offset == OFFSET_UNKNOWN else f" at offset {offset}"
        what = f"query {name!r} has not processed the record{where} after {round(timeout or 0.0, 1):g} s"
        try:
            saved = gateways.readers(_TELL_S)
            troubles = [f"; it is not kept: {one.trouble}" for one in gateways.queries(_TELL_S) if one.name == name and one.trouble]
        except TuttiError as error:
            return f"{what}; more is not known: {error}"
        if name in saved or troubles:
            at = f"it has processed what lies below {saved.get(name, 0)}"
            return f"{what}: {at}{''.join(troubles)}; `tutti queries` says more"
        there = f"there are {', '.join(sorted(saved)[:_NAMES_TOLD])}" if saved else "there is none at all"
        return f"{what}: no query or named reader of that name has told its position ({there}); a query does with option queryName"


def _patience(deadline: float) -> float:
    """For how many seconds a gateway is looked for."""
    return max(0.0, min(limits.READ_RETRY_US / 1e6, deadline - time.monotonic()))
