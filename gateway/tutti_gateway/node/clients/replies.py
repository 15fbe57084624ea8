"""Replies to clients: collected for each session during an iteration of the driver, then encoded and sent at the end of it.

Replies keep the order of the stack. Consecutive receipts for a client form one message; every other reply is a message of its own.
Only the receipts of duplicates come later, because a separate thread looks up their offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tutti.data.client_protocol import (
    SUBMIT_UNORDERED,
    Answer,
    Committed,
    Denied,
    Done,
    Duplicate,
    EpochFenced,
    EpochOpened,
    RefusedAnswer,
    StatusAnswer,
    TopicOpened,
    encode_control,
    encode_receipts,
)
from tutti_gateway.node.clients.duplicate_lookup import DuplicateLookup
from tutti_gateway.node.clients.port import ClientPort, SendResult
from tutti_gateway.node.clients.sessions import Session, Sessions
from tutti_gateway.node.common.counters import GatewayCounters

REQUEST_ANSWERS = (EpochOpened, EpochFenced, TopicOpened, Done, Denied, StatusAnswer)


class Replies:
    """Collects the replies for each session during an iteration, and sends them at the end of the iteration.

    Attributes:
        pending: the replies that `flush` will send, by session number.
    """

    def __init__(
        self,
        sessions: Sessions,
        clients: ClientPort,
        lookups: DuplicateLookup,
        lane_lookups: DuplicateLookup,
        counters: GatewayCounters,
        on_disconnect: Callable[[Session], None],
    ) -> None:
        """Begin without replies.

        Args:
            sessions, clients, counters: objects that the driver shares with its parts.
            lookups, lane_lookups: find the offsets of duplicates, in the ordered log and in this gateway's lane.
            on_disconnect: called for a session whose connection is closed.
        """
        self._sessions = sessions
        self._clients = clients
        self._lookups = lookups
        self._lane_lookups = lane_lookups
        self._counters = counters
        self._on_disconnect = on_disconnect
        self.pending: defaultdict[int, list[msgspec.Struct]] = defaultdict(list)

    def add(self, session: int, answers: Iterable[Answer]) -> None:
        """Append replies for a session."""
        self.pending[session].extend(answers)

    def add_one(self, session: int, message: msgspec.Struct) -> None:
        """Append one reply for a session. Unlike `add`, it also accepts replies that the core does not make, such as `Welcome`."""
        self.pending[session].append(message)

    def flush(self) -> None:
        """Send the collected replies. No reply waits for a sync, because the stack emits a reply only after `Persisted`."""
        if not self.pending:
            return
        pending, self.pending = self.pending, defaultdict(list)
        get, send = self._sessions.get, self._clients.send
        for number, messages in pending.items():
            session = get(number)
            if session is None:
                continue  # the session has ended in the meantime
            first = messages[0]
            # Most sessions get one receipt.
            if len(messages) == 1 and isinstance(first, Committed):
                sent = send(session.routing, encode_receipts((first,)))
                if sent is not SendResult.SENT:
                    self._not_sent(session, sent)
                continue
            for data in self._packed(session, messages):
                # After a disconnect the client repeats its requests on a new connection, so the remaining replies are dropped.
                if not self.send(session, data):
                    break

    def _packed(self, session: Session, messages: Sequence[msgspec.Struct]) -> list[bytes]:
        packed: list[bytes] = []
        receipts: list[Committed] = []
        duplicates: list[Duplicate] = []
        for message in messages:
            if isinstance(message, Committed):
                receipts.append(message)
                continue
            if isinstance(message, Duplicate):
                duplicates.append(message)
                continue
            if receipts:  # the receipts before a control message are sent first, because replies keep the stack's order
                packed.append(encode_receipts(receipts))
                receipts = []
            if isinstance(message, RefusedAnswer):
                self._counters.refused[message.code] += 1
            elif isinstance(message, REQUEST_ANSWERS):
                session.requests.discard(message.request)
                # From the opened epoch on, `authorize` permits batches of this producer in the session.
                if isinstance(message, EpochOpened):
                    session.producers.add(message.producer)
            packed.append(encode_control(message))
        if receipts:
            packed.append(encode_receipts(receipts))
        if duplicates:
            # Another thread looks up the offsets of duplicates, because the offsets are on the disk.
            self._counters.duplicates += len(duplicates)
            lookups = self._lane_lookups if session.form == SUBMIT_UNORDERED else self._lookups
            lookups.put(session.number, duplicates)
        return packed

    def send(self, session: Session, data: bytes) -> bool:
        """Send one message. Return False if the connection is closed."""
        sent = self._clients.send(session.routing, data)
        return sent is SendResult.SENT or self._not_sent(session, sent)

    def _not_sent(self, session: Session, sent: SendResult) -> bool:
        # The client repeats a request whose reply was dropped.
        if sent is SendResult.FULL:
            self._counters.sends_dropped += 1
            return True
        self._on_disconnect(session)
        return False

    def send_to(self, routing: bytes, message: msgspec.Struct) -> None:
        """Send a message to a connection that has no session."""
        self._clients.send(routing, encode_control(message))
