"""Receipts of posts that do not wait: what became of them, for who asks later. In memory alone: who needs more repeats the post."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem


class Receipts:
    """A bounded table. Those whose outcome is known go first, when they are old or when there is no room.

    Attributes:
        pending: how many have no outcome yet, of posts that are in no spool.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells seconds that only grow."""
        self._clock = clock
        self._pending: dict[str, None] = {}
        self._spooled: set[str] = set()  # no outcome yet: as many as the spool holds at most, which has its bound
        self._known: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    @property
    def pending(self) -> int:
        """How many have no outcome yet, of posts that are in no spool."""
        return len(self._pending)

    def open(self) -> str:
        """A new one; its id.

        Raises:
            Problem: 429: there is room for no more without an outcome.
        """
        self._expire()
        if len(self._pending) >= limits.RECEIPTS_MAX:
            raise Problem(429, f"{len(self._pending)} posts wait for their outcome: come again, or wait for it", committed="no")
        self._make_room()
        name = secrets.token_hex(16)
        self._pending[name] = None
        return name

    def open_spooled(self) -> str:
        """A new one, of a post that the spool keeps: there is room for it as long as there is room in there. Its id."""
        name = secrets.token_hex(16)
        self._spooled.add(name)
        return name

    def drop(self, name: str) -> None:
        """Let go of one that nobody was told of."""
        self._spooled.discard(name)

    def settle(self, name: str, outcome: dict[str, Any]) -> None:
        """Its outcome is known; of one that was let go nothing is kept."""
        if name in self._pending:
            del self._pending[name]
        elif name in self._spooled:
            self._spooled.remove(name)
        else:
            return
        self._make_room()
        self._known[name] = (self._clock(), outcome)

    def look(self, name: str) -> dict[str, Any]:
        """What is known of one.

        Raises:
            Problem: 404: nothing, which says nothing of the post.
        """
        self._expire()
        if name in self._pending or name in self._spooled:
            return {"id": name, "state": "pending"}
        found = self._known.get(name)
        if found is None:
            raise Problem(
                404,
                "this process has no such receipt: another one took the post, this one was started since, or its outcome was kept "
                f"for {limits.RECEIPT_S:g} s; a post with Tutti-Producer may be repeated, which tells",
            )
        return {"id": name, **found[1]}

    def _make_room(self) -> None:
        while self._known and len(self._pending) + len(self._known) >= limits.RECEIPTS_MAX:
            self._known.popitem(last=False)

    def _expire(self) -> None:
        old = self._clock() - limits.RECEIPT_S
        while self._known and next(iter(self._known.values()))[0] < old:
            self._known.popitem(last=False)
