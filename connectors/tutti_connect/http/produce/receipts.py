"""Receipts: outcomes of posts with wait=false, kept in memory only. A caller that loses a receipt repeats its post."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem


class Receipts:
    """Bounded table of receipts.

    A receipt with an outcome expires after `limits.RECEIPT_S`, or earlier if a full table needs space for a new receipt.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a monotonic clock in seconds."""
        self._clock = clock
        self._pending: dict[str, None] = {}
        self._spooled: set[str] = set()  # receipts of spooled posts without an outcome; the spool's size bounds their number
        self._resolved: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    @property
    def pending(self) -> int:
        """Return the number of receipts without an outcome, not counting posts in the spool."""
        return len(self._pending)

    def open(self) -> str:
        """Create a receipt, and return its id.

        Raises:
            Problem: 429: too many receipts have no outcome.
        """
        self._expire()
        if len(self._pending) >= limits.RECEIPTS_MAX:
            raise Problem(
                429, f"{len(self._pending)} posts wait for their outcome: retry later, or post with wait=true", committed="no"
            )
        self._evict()
        name = secrets.token_hex(16)
        self._pending[name] = None
        return name

    def open_spooled(self) -> str:
        """Create a receipt for a post in the spool, and return its id. The spool bounds the number of these receipts."""
        name = secrets.token_hex(16)
        self._spooled.add(name)
        return name

    def drop(self, name: str) -> None:
        """Remove a receipt whose id was not sent to a caller."""
        self._spooled.discard(name)

    def resolve(self, name: str, outcome: dict[str, Any]) -> None:
        """Store the outcome of a receipt; do nothing if the receipt was dropped."""
        if name in self._pending:
            del self._pending[name]
        elif name in self._spooled:
            self._spooled.remove(name)
        else:
            return
        self._evict()
        self._resolved[name] = (self._clock(), outcome)

    def get(self, name: str) -> dict[str, Any]:
        """Return the state of a receipt.

        Raises:
            Problem: 404: this process has no such receipt; the post may still be committed.
        """
        self._expire()
        if name in self._pending or name in self._spooled:
            return {"id": name, "state": "pending"}
        found = self._resolved.get(name)
        if found is None:
            raise Problem(
                404,
                "this process has no such receipt: another process took the post, this one has restarted, or the outcome "
                f"expired after {limits.RECEIPT_S:g} s; repeat a post with Tutti-Producer to get its outcome",
            )
        return {"id": name, **found[1]}

    def _evict(self) -> None:
        while self._resolved and len(self._pending) + len(self._resolved) >= limits.RECEIPTS_MAX:
            self._resolved.popitem(last=False)

    def _expire(self) -> None:
        old = self._clock() - limits.RECEIPT_S
        while self._resolved and next(iter(self._resolved.values()))[0] < old:
            self._resolved.popitem(last=False)
