"""Clients that said Hello: by the id of their connection, by number (the stack's word for them) and by their own token.

A client that connects again has another id; it says Hello with the same token and keeps its number, so that answers to what it sent
before reach it. Nobody tells here when a client goes away: a send to it fails, or it is forgotten after a long silence; either
way it then has to say Hello again, which costs it nothing but the round trip.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tutti.security.tokens import ANYBODY, Access
from tutti_gateway.core import limits

_US = 1_000_000


@dataclass(slots=True)
class Session:
    """One client. `requests` numbers what it asked and was not yet answered; `heard_us` is when it last said something (mono).
    `form` is that of its submits, for the ordered log or for the lane; empty before the first. `access` says what it may do;
    `topics` are those that it was found to be allowed to write to, `producers` those of whom it opened an epoch.
    """

    number: int
    routing: bytes
    token: bytes
    client: str
    heard_us: int
    requests: set[int] = field(default_factory=set)
    form: bytes = b""
    access: Access = ANYBODY
    topics: set[int] = field(default_factory=set)
    producers: set[int] = field(default_factory=set)
    _tables: float = 0.0  # bytes of tables that it was sent, less what time gave back until `_tables_us`
    _tables_us: int = 0

    def may_have_table(self, now_us: int) -> bool:
        """Whether it may be sent one more table: nobody knows whether it read those before."""
        back = (now_us - self._tables_us) / _US * limits.TABLES_A_SESSION_BYTES_A_SECOND
        self._tables, self._tables_us = max(0.0, self._tables - back), now_us
        return self._tables < limits.TABLES_A_SESSION_BYTES

    def has_table(self, size: int) -> None:
        """It is sent one."""
        self._tables += size


class Sessions:
    """The table of clients, bounded by `most`."""

    def __init__(self, most: int) -> None:
        """An empty table."""
        self._most = most
        self._by_routing: dict[bytes, Session] = {}
        self._by_number: dict[int, Session] = {}
        self._by_token: dict[bytes, Session] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def heard(self, routing: bytes, now_us: int) -> Session | None:
        """The client that something came from; None if it has not said Hello."""
        session = self._by_routing.get(routing)
        if session is not None:
            session.heard_us = now_us
        return session

    def knows(self, routing: bytes) -> bool:
        """Whether somebody who was let in comes by that connection."""
        return routing in self._by_routing

    def get(self, number: int) -> Session | None:
        """The client of that number, None if it is gone."""
        return self._by_number.get(number)

    def everyone(self) -> list[Session]:
        """All clients."""
        return list(self._by_number.values())

    def hello(self, routing: bytes, token: bytes, client: str, now_us: int) -> tuple[Session | None, list[Session]]:
        """Take a client in.

        Returns its session (None: all places are taken by clients that are at work) and those that had to go for it.
        """
        gone: list[Session] = []
        other = self._by_routing.get(routing)
        if other is not None and other.token != token:
            self.remove(other)
            gone.append(other)
        session = self._by_token.get(token)
        if session is not None:
            del self._by_routing[session.routing]
            session.routing, session.client, session.heard_us = routing, client, now_us
            self._by_routing[routing] = session
            return session, gone
        if len(self._by_number) >= self._most:
            gone.extend(self.idle(now_us - limits.SESSION_EVICT_US))
            for old in gone:
                self.remove(old)
            if len(self._by_number) >= self._most:
                return None, gone
        self._last_number += 1
        session = Session(self._last_number, routing, token, client, now_us)
        self._by_routing[routing] = self._by_number[session.number] = self._by_token[token] = session
        return session, gone

    def idle(self, since_us: int) -> list[Session]:
        """Clients that said nothing since then. One that waits for an answer asks for it again and again, and so is heard."""
        return [session for session in self._by_number.values() if session.heard_us < since_us]

    def remove(self, session: Session) -> None:
        """Forget a client; harmless when it is forgotten already."""
        if self._by_number.pop(session.number, None) is not None:
            del self._by_routing[session.routing]
            del self._by_token[session.token]

    def clear(self) -> list[Session]:
        """Forget all clients; returns them."""
        gone = list(self._by_number.values())
        self._by_routing.clear()
        self._by_number.clear()
        self._by_token.clear()
        return gone
