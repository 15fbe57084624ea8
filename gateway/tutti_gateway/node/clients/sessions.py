"""Client sessions, found by the connection's routing id, by number (the stack's name for a session) or by the session token.

A client that reconnects has a new routing id. Hello with the same token finds the client's session, which keeps its number, so that
replies to earlier batches reach the client. The port does not report a disconnect, so a session ends when a send fails or after a
long silence. A client whose session has ended sends Hello again, which takes one round trip.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from tutti.data.client_protocol import SUBMIT_UNORDERED, Welcome
from tutti.security.tokens import FULL_ACCESS, Access
from tutti_gateway.core import limits

_US = 1_000_000


@dataclass(slots=True)
class Session:
    """The session of one client.

    Attributes:
        number: the stack's name for the session.
        routing: routing id of the connection.
        token: the client's session token.
        client: the client's name.
        received_us: monotonic time of the last message.
        requests: numbers of the unanswered requests.
        form: type of the submits, for the ordered log or for the lane; empty before the first submit.
        access: the client's permissions.
        topics: numbers of the topics to which the client may write, as far as they have been checked.
        producers: numbers of the producers for which the client has opened an epoch.
        held: first sequences of the batches that wait for the quota of the token, in the order of their arrival.
    """

    number: int
    routing: bytes
    token: bytes
    client: str
    received_us: int
    requests: set[int] = field(default_factory=set)
    form: bytes = b""
    access: Access = FULL_ACCESS
    topics: set[int] = field(default_factory=set)
    producers: set[int] = field(default_factory=set)
    held: deque[int] = field(default_factory=deque)
    _tables: float = 0.0  # bytes of sent producer tables that the rate limit did not yet allow at `_tables_us`
    _tables_us: int = 0

    def welcome(self, welcome: Welcome) -> Welcome:
        """Return the Welcome for this session. With a quota, the window is small, because batches wait in the gateway's memory."""
        access = self.access
        if not access.has_quota:
            return welcome
        # A gateway that orders no records also delays batches, but then the missing majority is the cause to report.
        held = self.held if welcome.state == "primary" or self.form == SUBMIT_UNORDERED else ()
        return msgspec.structs.replace(
            welcome,
            window_bytes=min(welcome.window_bytes, limits.QUOTA_WINDOW_BYTES),
            records_per_s=access.records_per_s,
            bytes_per_s=access.bytes_per_s,
            held_from=held[0] if held else 0,
        )

    def may_send_table(self, now_us: int) -> bool:
        """True if the rate limit allows a further producer table.

        Tables are large, and the gateway cannot see whether the client has read the earlier ones, so their rate is limited.
        """
        back = (now_us - self._tables_us) / _US * limits.TABLES_A_SESSION_BYTES_A_SECOND
        self._tables, self._tables_us = max(0.0, self._tables - back), now_us
        return self._tables < limits.TABLES_A_SESSION_BYTES

    def count_table(self, size: int) -> None:
        """Count a producer table of `size` bytes against the rate limit."""
        self._tables += size


class Sessions:
    """The table of sessions, with a fixed maximum."""

    def __init__(self, most: int) -> None:
        """Begin with an empty table of at most `most` sessions."""
        self._most = most
        self._by_routing: dict[bytes, Session] = {}
        self._by_number: dict[int, Session] = {}
        self._by_token: dict[bytes, Session] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def on_message(self, routing: bytes, now_us: int) -> Session | None:
        """Return the session of a connection that has sent a message; None if the client has not sent Hello on it."""
        session = self._by_routing.get(routing)
        if session is not None:
            session.received_us = now_us
        return session

    def at(self, routing: bytes) -> Session | None:
        """Return the session of a connection; None if the connection has no authenticated session."""
        return self._by_routing.get(routing)

    def has(self, routing: bytes) -> bool:
        """True if the connection has an authenticated session."""
        return routing in self._by_routing

    def get(self, number: int) -> Session | None:
        """Return the session with this number; None if it has ended."""
        return self._by_number.get(number)

    def all(self) -> list[Session]:
        """Return all sessions."""
        return list(self._by_number.values())

    def hello(self, routing: bytes, token: bytes, client: str, now_us: int) -> tuple[Session | None, list[Session]]:
        """Find or create the session of a client that sends Hello.

        Return the session and the sessions that were evicted for it. The session is None if the table is full of active clients.
        """
        evicted: list[Session] = []
        other = self._by_routing.get(routing)
        # A new token on the same connection means that the client has restarted and wants no earlier replies.
        if other is not None and other.token != token:
            self.remove(other)
            evicted.append(other)
        session = self._by_token.get(token)
        if session is not None:  # the client has reconnected: its session keeps the number, so that earlier replies arrive
            del self._by_routing[session.routing]
            session.routing, session.client, session.received_us = routing, client, now_us
            self._by_routing[routing] = session
            return session, evicted
        if len(self._by_number) >= self._most:
            # Only silent sessions are evicted for a new one.
            evicted.extend(self.idle(now_us - limits.SESSION_EVICT_US))
            for old in evicted:
                self.remove(old)
            if len(self._by_number) >= self._most:
                return None, evicted
        # Numbers are never reused, so a late answer for an ended session cannot reach another client.
        self._last_number += 1
        session = Session(self._last_number, routing, token, client, now_us)
        self._by_routing[routing] = self._by_number[session.number] = self._by_token[token] = session
        return session, evicted

    def idle(self, since_us: int) -> list[Session]:
        """Return the sessions without a message since `since_us`.

        A client that waits for an answer repeats its request, so its session never counts as idle.
        """
        return [session for session in self._by_number.values() if session.received_us < since_us]

    def remove(self, session: Session) -> None:
        """Remove a session. A second call has no effect."""
        if self._by_number.pop(session.number, None) is not None:
            del self._by_routing[session.routing]
            del self._by_token[session.token]

    def clear(self) -> list[Session]:
        """Remove and return all sessions."""
        removed = list(self._by_number.values())
        self._by_routing.clear()
        self._by_number.clear()
        self._by_token.clear()
        return removed
