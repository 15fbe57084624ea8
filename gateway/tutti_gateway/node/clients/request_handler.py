"""Request handler of the client port: turns client messages into events for the stack, or answers them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from tutti import limits as common_limits
from tutti.data.client_protocol import (
    CONTROL,
    PROTOCOL,
    SUBMIT,
    SUBMIT_UNORDERED,
    Bye,
    Denied,
    Done,
    Fence,
    Hello,
    Leave,
    Producers,
    Request,
    StatusAnswer,
    decode_lone_submit,
    decode_request,
    decode_submit,
)
from tutti.data.frames.frame import Frame
from tutti.errors import FormatError, NotAllowed, UsageError
from tutti.security.tokens import FULL_ACCESS, UNAUTHENTICATED
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Event, SessionClosed, Submitted, SubmittedUnordered, group_events, submitted
from tutti_gateway.node.clients import control_requests
from tutti_gateway.node.clients.batch_validation import BatchValidator, lone_valid
from tutti_gateway.node.clients.port import PARTS_MAX, Message
from tutti_gateway.node.clients.quotas import Quotas
from tutti_gateway.node.clients.replies import Replies
from tutti_gateway.node.clients.sessions import Session, Sessions
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.status.status import StatusDocuments

if TYPE_CHECKING:  # only a gateway with tokens loads this module
    from tutti_gateway.node.clients.authorization import Authorizer

CLIENT_NAME_CHARACTERS_MAX = 100
_SUBMITS = (SUBMIT, SUBMIT_UNORDERED)
SESSION_BYTES = 16
_NO_SESSION = "the connection has no session at this gateway: send Hello first"


class RequestHandler:
    """Turns the messages of clients into events. Owned by the driver's thread.

    Events are yielded lazily: the driver steps the stack with each event before the next message is handled. Replies therefore have
    the order of the requests.
    """

    def __init__(
        self,
        sessions: Sessions,
        replies: Replies,
        fences: control_requests.PendingFences,
        read_indexes: control_requests.PendingReadIndexes,
        documents: Callable[[], StatusDocuments],
        counters: GatewayCounters,
        log: FilteringBoundLogger,
        quotas: Quotas,
        authorizer: Authorizer | None = None,
    ) -> None:
        """Begin without messages.

        Args:
            sessions, replies, fences, read_indexes, counters, log, quotas: objects that the driver shares with its parts.
            documents: returns the current status documents.
            authorizer: authorizes clients; None if clients need no permissions.
        """
        self._authorizer = authorizer
        self._sessions = sessions
        self._replies = replies
        self._fences = fences
        self._read_indexes = read_indexes
        self._documents = documents
        self._counters = counters
        self._log = log
        self._quotas = quotas
        self._validator = BatchValidator()
        self._cache = control_requests.DocumentCache(documents)
        self._unconfirmed: set[tuple[int, int]] = set()  # (session, request) of each fence that waits for a read index
        self.leave_requested = False  # True after a client with admin rights has requested that this gateway leaves the group

    def receive(self, messages: Iterable[Message], now_us: int) -> Iterator[Event]:
        """Yield the events for messages, in the order in which each client sent them. `now_us` is monotonic."""
        self._validator.reset_budgets()
        # All clients that ask in one iteration share one copy of each document, because a status takes 0.1 ms to create.
        self._cache = control_requests.DocumentCache(self._documents)
        sessions: list[int] = []  # the session of each frame in `ordered`
        ordered: list[Frame] = []
        unordered: dict[int, list[Frame]] = {}  # session -> its batches for the lane
        counters, on_message = self._counters, self._sessions.on_message
        for message in messages:
            routing, parts, size = message
            session = on_message(routing, now_us)
            # Most messages contain one plain batch. This branch makes all checks of such a batch, without the general path.
            if session is not None and len(parts) == 1 and session.form != SUBMIT_UNORDERED:
                lone = decode_lone_submit(parts[0])
                if lone is not None and lone_valid(lone) and (self._authorizer is None or self._known(session, lone)):
                    session.form = SUBMIT
                    counters.bytes += size
                    counters.frames += 1
                    counters.frames_alone += 1
                    counters.records += lone.count
                    sessions.append(session.number)
                    ordered.append(lone)
                    continue
            kind = bytes(parts[0][:1]) if parts else b""
            try:
                if kind in _SUBMITS and session is not None:
                    frames = decode_submit(parts)
                    _bind_form(session, kind)
                    counters.bytes += size
                    good = self._check(session, frames)
                    if self._quotas.applies_to(session.access):
                        self._quotas.put(session, good, now_us)
                    elif kind == SUBMIT:
                        sessions += [session.number] * len(good)
                        ordered += good
                    else:
                        unordered.setdefault(session.number, []).extend(good)
                elif kind == CONTROL and len(parts) == 1:
                    # pass on the earlier batches first, so that the stack gets the messages of a client in order
                    if session is not None:
                        if ordered:
                            yield Submitted(tuple(sessions), tuple(ordered))
                            sessions, ordered = [], []
                        if frames := unordered.pop(session.number, []):
                            yield SubmittedUnordered(session.number, tuple(frames))
                        if self._quotas.applies_to(session.access):
                            yield from self.pop_due(now_us)
                    yield from self._control(message.routing, session, decode_request(parts[0]), now_us)
                elif kind in (*_SUBMITS, CONTROL) and session is None:
                    self._deny(message.routing, "hello", _NO_SESSION)
                else:
                    raise FormatError(_malformed_text(message))
            except FormatError as error:
                self._counters.messages_malformed += 1
                self._deny(message.routing, "malformed", str(error))
        # The batches of all clients form one step, so that the stack sends and writes them together (lifecycle, L4).
        if ordered:
            yield Submitted(tuple(sessions), tuple(ordered))
        for number, frames in unordered.items():
            if frames:
                yield SubmittedUnordered(number, tuple(frames))

    def pop_due(self, now_us: int) -> Iterator[Event]:
        """Yield the events for the batches that waited for a quota and are due now."""
        due = self._quotas.pop_due(now_us, limits.DRAIN_BYTES_MAX)
        yield from group_events([_submitted(session, frames) for session, frames in due])

    def _known(self, session: Session, frame: Frame) -> bool:
        """True if the session was authorized for the producer and the topic of the batch before, and no quota applies to it."""
        permitted = frame.producer in session.producers and frame.topic in session.topics
        return permitted and not self._quotas.applies_to(session.access)

    def _check(self, session: Session, frames: list[Frame]) -> list[Frame]:
        good, refused = self._validator.check(session.number, frames, lane=session.form == SUBMIT_UNORDERED)
        counters = self._counters
        counters.frames += len(frames)
        if self._authorizer is not None and good:
            good, unauthorized = self._authorizer.authorize(session, good)
            refused += unauthorized
        counters.records += sum(frame.count for frame in good)
        if refused:
            self._replies.add(session.number, refused)
        return good

    def _control(self, routing: bytes, session: Session | None, request: Request, now_us: int) -> Iterator[Event]:
        if isinstance(request, Hello):
            yield from self._hello(routing, request, now_us)
            return
        if session is None:
            self._deny(routing, "hello", _NO_SESSION, getattr(request, "request", 0))
            return
        if isinstance(request, Bye):
            yield self.close(session)
            return
        self._counters.requests += 1
        number, waiting = session.number, session.requests
        waiting.add(request.request)  # a repeated request counts once and gets one answer
        if len(waiting) > limits.REQUESTS_A_SESSION_MAX:
            reason = f"this client has {limits.REQUESTS_A_SESSION_MAX} unanswered requests, which is the limit; wait for an answer"
            self._replies.add_one(number, Denied(request.request, "limit", reason, retry=True))
            return
        if isinstance(request, Producers) and not (
            session.may_send_table(now_us) and self._cache.table_bytes < limits.TABLES_A_SESSION_BYTES
        ):
            reason = "this gateway sent many producer tables a moment ago; ask again in a few seconds"
            self._replies.add_one(number, Denied(request.request, "busy", reason, retry=True))
            return
        try:
            if self._authorizer is not None:
                self._authorizer.check(session, request)
            event = control_requests.handle(request, number, self._cache, self._fences)
        except UsageError as error:
            self._replies.add_one(number, Denied(request.request, "name", str(error)))
            return
        except NotAllowed as error:
            self._replies.add_one(number, Denied(request.request, error.code, str(error)))
            return
        if isinstance(event, Event):
            yield event
        elif isinstance(event, Denied) and isinstance(request, Fence):
            # This gateway's log may lag and not have the producer yet, so the refusal waits until the frontier is confirmed.
            if (number, request.request) not in self._unconfirmed:  # a repeated request is already waiting
                self._unconfirmed.add((number, request.request))
                yield self._read_indexes.begin(partial(self._fence_unknown, request, number))
        else:
            if isinstance(event, StatusAnswer) and isinstance(request, Producers):
                session.count_table(len(event.json))
                self._cache.table_bytes += len(event.json)
            elif isinstance(event, Done) and isinstance(request, Leave):
                self.leave_requested = True
                self._log.info("a client asked this gateway to leave the group", by=session.client)
            self._replies.add_one(number, event)

    def _fence_unknown(self, request: Fence, session: int, confirmed: bool) -> Event | None:
        """Fence a producer that this gateway did not know. A refusal is final only if the frontier is `confirmed`.

        Does nothing if the session has ended in the meantime.
        """
        if (session, request.request) not in self._unconfirmed:
            return None
        self._unconfirmed.remove((session, request.request))
        # A new cache reads the producers again, because frames decided during the read index may contain the producer.
        event = control_requests.handle(request, session, control_requests.DocumentCache(self._documents), self._fences)
        if isinstance(event, Event):
            return event
        if isinstance(event, Denied) and not confirmed:
            reason = (
                f"{event.reason}; this gateway lags or is cut off from a majority, so another gateway may know the producer: "
                "ask another gateway"
            )
            event = Denied(event.request, "behind", reason, retry=True)
        self._replies.add_one(session, event)
        return None

    def _hello(self, routing: bytes, hello: Hello, now_us: int) -> Iterator[Event]:
        if hello.protocol != PROTOCOL:
            reason = f"the client speaks protocol {hello.protocol} and this gateway speaks {PROTOCOL}: install matching releases"
            self._deny(routing, "protocol", reason)
            return
        if len(hello.session) != SESSION_BYTES:
            reason = f"a session token must have {SESSION_BYTES} random bytes, and this one has {len(hello.session)}"
            self._deny(routing, "malformed", reason)
            return
        # The token is checked before the session exists, so that callers without a token take no place in the table.
        access = FULL_ACCESS
        if self._authorizer is not None:
            try:
                access = self._authorizer.access(routing, hello)
            except NotAllowed as error:
                self._deny(routing, error.code, str(error))
                return
        session, evicted = self._sessions.hello(routing, hello.session, hello.client[:CLIENT_NAME_CHARACTERS_MAX], now_us)
        for other in evicted:
            yield self.end(other.number)
        if session is None:
            self._deny(
                routing,
                "limit",
                f"all {len(self._sessions)} client sessions are in use: close some clients, or raise limits.sessions",
                retry=True,
            )
            return
        if session.access != access:  # earlier checks used the previous token, so each topic and producer is checked again
            session.access = access
            session.topics.clear()
            session.producers.clear()
        self._replies.add_one(session.number, session.welcome(self._cache.documents.welcome()))

    def end_expired(self) -> Iterator[Event]:
        """End the sessions whose token is no longer valid, and yield an event for each. Called about once a second."""
        if self._authorizer is not None:
            for session in self._authorizer.expired(self._sessions.all()):
                self._log.info("a session ends: its token is no longer valid", token=session.access.name, client=session.client)
                self._deny(
                    session.routing, UNAUTHENTICATED, "the token was revoked or has expired: ask the operator for a new token"
                )
                yield self.close(session)

    def _deny(self, routing: bytes, code: str, reason: str, request: int = 0, *, retry: bool = False) -> None:
        self._replies.send_to(routing, Denied(request, code, reason, retry))

    def close(self, session: Session) -> SessionClosed:
        """Close a session whose client has disconnected. Return the event that reports its end."""
        self._sessions.remove(session)
        return self.end(session.number)

    def end(self, number: int) -> SessionClosed:
        """Release the state of a session that has ended. Return the event that reports its end."""
        self._fences.forget(number)
        # A session that has ended gets no answers, so its waiting fences are dropped.
        self._unconfirmed = {key for key in self._unconfirmed if key[0] != number}
        return SessionClosed(number)


def _submitted(session: Session, frames: Sequence[Frame]) -> Submitted | SubmittedUnordered:
    if session.form == SUBMIT_UNORDERED:
        return SubmittedUnordered(session.number, tuple(frames))
    return submitted(session.number, frames)


def _bind_form(session: Session, form: bytes) -> None:
    """Bind a session at its first batch to the ordered log or to the lane, which number a producer's records separately.

    Raises:
        FormatError: the session is already bound to the other form.
    """
    if session.form not in (b"", form):
        raise FormatError(
            "a session sends either ordered batches (S) or unordered batches (U), not both: open another session for the others"
        )
    session.form = form


def _malformed_text(message: Message) -> str:
    if not message.parts:
        return (
            f"a message of {message.size} bytes has too many bytes or parts: the limits are "
            f"{common_limits.MESSAGE_BYTES_MAX} bytes and {PARTS_MAX} parts; send fewer frames at once"
        )
    return f"a message of {message.size} bytes in {len(message.parts)} parts does not belong to this protocol"
