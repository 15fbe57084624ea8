"""Who may do what: bearer tokens, by the file that gateways take too."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request


class Anybody:
    """Who asks where nobody is asked who they are."""

    def require_produce(self, topic: str) -> None:
        """May write to all topics."""

    def require_read(self, topics: Iterable[str] | None) -> None:
        """May read all topics."""

    def require_producing(self) -> None:
        """May write to some topic."""

    def may_read(self, topic: str) -> bool:
        """May read all topics."""
        return True


class Guard:
    """Knows who asks."""

    def of(self, request: Request) -> Anybody:
        """Who asks."""
        return Anybody()
