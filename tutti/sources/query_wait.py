"""Waits until a query has processed a record. All receipts that wait for the same query share one request."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING

from tutti import limits
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.errors import TuttiError, Unavailable, UsageError
from tutti.io.endpoints import Endpoints

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials
    from tutti.sources.query_progress import QueryProgress

_REQUEST_S_MAX = limits.ANSWER_WAIT_US_MAX / 1e6  # longest time of one request; Ctrl-C takes effect only between requests
_REPORT_S = 1.0  # time limit for requesting the query's position and errors for the timeout message
_NAMES_SHOWN = 10


class _Query:
    """State of one query: its highest known position, the offsets that receipts wait for, and the thread that sends the shared
    request.
    """

    def __init__(self) -> None:
        self.position = -1
        self.wanted: list[int] = []
        self.requester: int | None = None  # id of the thread that sends the shared request, None if no request is running


class QueryWait:
    """Waits for queries on behalf of receipts. Thread-safe; the first wait connects."""

    def __init__(self, route: Endpoints, log: str, credentials: Credentials | None = None) -> None:
        """Prepare without connecting; only the first wait reads the gateways from `route`."""
        self._route = route
        self._credentials = credentials
        self._log = log
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queries: dict[str, _Query] = {}
        self._gateways: QueryProgress | None = None

    def wait(self, name: str, offset: int, count: int, timeout: float | None) -> int:
        """Wait until the query has processed `count` records from `offset` on, and return the offset after its last record.

        Args:
            name: name of the query.
            offset: offset of the first record, or -1 if unknown, to wait for all records that are committed now.
            count: number of records.
            timeout: seconds to wait, from the call on, or None to wait without limit.

        Raises:
            TimeoutError: the query has not processed the records after `timeout` seconds; the message has the query's position.
            Unavailable: no gateway answered for a minute.
            Refused: the gateway's release does not support this request.
            UsageError: the caller is a forked child, or a signal handler that has interrupted this method in the same thread.
        """
        if os.getpid() != self._pid:
            raise UsageError("this receipt belongs to a producer of the parent process: call wait there, not in the forked child")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._gateways is None:
                from tutti.sources.query_progress import QueryProgress  # noqa: PLC0415 - only callers that wait load Arrow Flight

                self._gateways = QueryProgress(list(self._route.addresses), log=self._log, credentials=self._credentials)
            query = self._queries.setdefault(name, _Query())
        try:
            end = self._gateways.frontier(patience=_patience(deadline)).offset if offset == OFFSET_UNKNOWN else offset + count
            return self._wait_shared(self._gateways, name, query, end, deadline)
        except Unavailable as error:
            if time.monotonic() < deadline:
                raise
            raise TimeoutError(
                f"the position of query {name!r} is still unknown after {round(timeout or 0.0, 1):g} s: {error}"
            ) from error
        except TimeoutError:
            raise TimeoutError(self._timeout_message(self._gateways, name, offset, timeout)) from None

    def _wait_shared(self, gateways: QueryProgress, name: str, query: _Query, end: int, deadline: float) -> int:
        """Wait until the query has processed all records below `end`, and return the query's position.

        One thread sends a request for all waiting threads, with the lowest offset that any of them waits for.
        """
        me = threading.get_ident()
        with self._changed:
            if query.requester == me:
                raise UsageError("a signal handler must not wait for the query whose wait it has interrupted: set a flag instead")
            query.wanted.append(end)
        try:
            while True:
                with self._changed:
                    # Wait for the request of another thread. If its result is below `end`, this thread sends the next request.
                    while query.requester is not None and query.position < end and time.monotonic() < deadline:
                        self._changed.wait(min(_REQUEST_S_MAX, deadline - time.monotonic()))
                    if query.position >= end:
                        return query.position
                    if query.requester is not None:
                        raise TimeoutError
                    query.requester, least = me, min(query.wanted)
                found = -1
                try:
                    seconds = max(0.0, min(_REQUEST_S_MAX, deadline - time.monotonic()))
                    found = gateways.passed(name, least, seconds, _patience(deadline))
                finally:
                    with self._changed:
                        query.requester, query.position = None, max(query.position, found)
                        self._changed.notify_all()
                if query.position < end and time.monotonic() >= deadline:
                    raise TimeoutError
        finally:
            with self._changed:
                query.wanted.remove(end)

    def _timeout_message(self, gateways: QueryProgress, name: str, offset: int, timeout: float | None) -> str:
        """Return the error text for a query that did not process a record in time, with the query's position if known."""
        where = "" if offset == OFFSET_UNKNOWN else f" at offset {offset}"
        what = f"query {name!r} has not processed the record{where} after {round(timeout or 0.0, 1):g} s"
        try:
            saved = gateways.readers(_REPORT_S)
            troubles = [
                f"; the log does not store it: {one.trouble}"
                for one in gateways.queries(_REPORT_S)
                if one.name == name and one.trouble
            ]
        except TuttiError as error:
            return f"{what}; its position is unknown: {error}"
        if name in saved or troubles:
            at = f"it has processed the records below offset {saved.get(name, 0)}"
            return f"{what}: {at}{''.join(troubles)}; `tutti queries` shows details"
        known = f"known names: {', '.join(sorted(saved)[:_NAMES_SHOWN])}" if saved else "no names are known"
        return f"{what}: no query or reader of this name has committed a position ({known}); set option queryName on it"


def _patience(deadline: float) -> float:
    """Return the seconds that a search for a gateway may take, so that it ends at the deadline of the wait."""
    return max(0.0, min(limits.READ_RETRY_US / 1e6, deadline - time.monotonic()))
