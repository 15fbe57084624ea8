"""Answers on their way out: gathered for each client during a turn, packed, and sent at its end.

Receipts of one client and one turn travel as one message. Whatever else there is goes as control messages, in the stack's order.
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
from tutti_gateway.node.clients.port import Sent
from tutti_gateway.node.clients.sessions import Session, Sessions
from tutti_gateway.node.common.counters import Meters
from tutti_gateway.node.common.interfaces import Clients, LookUp

REQUEST_ANSWERS = (EpochOpened, EpochFenced, TopicOpened, Done, Denied, StatusAnswer)


class Answers:
    """Gathers and sends."""

    def __init__(
        self,
        sessions: Sessions,
        clients: Clients,
        lookups: LookUp,
        lane_lookups: LookUp,
        meters: Meters,
        gone: Callable[[Session], None],
    ) -> None:
        """Prepare.

        Args:
            sessions, clients, meters: the driver's.
            lookups, lane_lookups: find the offsets of duplicates, in the ordered log and in the own lane.
            gone: called for a client that a send did not reach.
        """
        self._sessions = sessions
        self._clients = clients
        self._lookups = lookups
        self._lane_lookups = lane_lookups
        self._meters = meters
        self._gone = gone
        self._gathered: defaultdict[int, list[msgspec.Struct]] = defaultdict(list)

    def add(self, session: int, answers: Iterable[Answer]) -> None:
        """Answers for a session, behind those that it already has."""
        self._gathered[session].extend(answers)

    def add_one(self, session: int, message: msgspec.Struct) -> None:
        """One message of any kind for a session."""
        self._gathered[session].append(message)

    def flush(self) -> None:
        """Send what was gathered. Nothing in it may still wait for a sync: the stack gave it after `Persisted`."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, defaultdict(list)
        for number, messages in gathered.items():
            session = self._sessions.get(number)
            if session is None:
                continue
            for data in self._packed(session, messages):
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
            if receipts:
                packed.append(encode_receipts(receipts))
                receipts = []
            if isinstance(message, RefusedAnswer):
                self._meters.refused[message.code] += 1
            elif isinstance(message, REQUEST_ANSWERS):
                session.requests.discard(message.request)
                if isinstance(message, EpochOpened):
                    session.producers.add(message.producer)
            packed.append(encode_control(message))
        if receipts:
            packed.append(encode_receipts(receipts))
        if duplicates:
            self._meters.duplicates += len(duplicates)
            lookups = self._lane_lookups if session.form == SUBMIT_UNORDERED else self._lookups
            lookups.put(session.number, duplicates)
        return packed

    def send(self, session: Session, data: bytes) -> bool:
        """Send one message; False when the client is gone."""
        sent = self._clients.send(session.routing, data)
        if sent is Sent.FULL:
            self._meters.sends_dropped += 1
        elif sent is Sent.GONE:
            self._gone(session)
            return False
        return True

    def send_to(self, routing: bytes, message: msgspec.Struct) -> None:
        """Send a message to somebody who has no session."""
        self._clients.send(routing, encode_control(message))
