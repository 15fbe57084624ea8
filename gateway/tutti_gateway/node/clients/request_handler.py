"""Request handler of the client port: turns client messages into events for the stack, or answers them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    decode_request,
    decode_submit,
)
from tutti.data.frames.frame import Frame
from tutti.errors import FormatError, NotAllowed, UsageError
from tutti.security.tokens import FULL_ACCESS, UNAUTHENTICATED
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Event, SessionClosed, Submitted, SubmittedUnordered, group_events
from tutti_gateway.node.clients import control_requests
from tutti_gateway.node.clients.batch_validation import BatchValidator
from tutti_gateway.node.clients.port import PARTS_MAX, Message
from tutti_gateway.node.clients.replies import Replies
from tutti_gateway.node.clients.sessions import Session, Sessions
from tutti_gateway.node.common.counters import GatewayCounters

if TYPE_CHECKING:  # only a gateway with tokens loads this module
    from tutti_gateway.node.clients.authorization import Authorizer

CLIENT_NAME_CHARACTERS_MAX = 100
_SUBMITS = (SUBMIT, SUBMIT_UNORDERED)
SESSION_BYTES = 16
_NO_SESSION = "the connection has no session at this gateway: send Hello first"


class RequestHandler:
    """Handles the messages of clients. Owned by the driver's thread."""

    def __init__(
        self,
        step: Callable[[Event], None],
        confirm: Callable[[Callable[[bool], Event | None]], None],
        sessions: Sessions,
        answers: Replies,
        fences: control_requests.PendingFences,
        books: control_requests.StatusDocuments,
        meters: GatewayCounters,
        log: FilteringBoundLogger,
        admission: Authorizer | None = None,
    ) -> None:
        """Begin without messages.

        Args:
            step: passes an event to the stack.
            confirm: asks the stack whether this gateway has every decided frame, and calls its argument with the answer.
            sessions, answers, fences, books, meters, log: those of the driver.
            admission: authorizes clients; None if every client may do everything.
        """
        self._admission = admission
        self._step = step
        self._confirm = confirm
        self._sessions = sessions
        self._answers = answers
        self._fences = fences
        self._books = books
        self._meters = meters
        self._log = log
        self._validator = BatchValidator()
        self._turn = control_requests.TurnDocuments()
        self._unconfirmed: set[tuple[int, int]] = set()  # (session, request) of each fence that waits for `confirm`
        self.leave_asked = False  # True once a client with admin rights has asked this gateway to leave the group

    def take(self, messages: Iterable[Message], now_us: int) -> None:
        """Handle messages, in the order in which each client sent them; `now_us` is monotonic."""
        self._validator.begin_turn()
        self._turn = control_requests.TurnDocuments()
        submitted: dict[int, tuple[Session, list[Frame]]] = {}
        for message in messages:
            parts = message.parts
            kind = bytes(parts[0][:1]) if parts else b""
            session = self._sessions.heard(message.routing, now_us)
            try:
                if kind in _SUBMITS and session is not None:
                    frames = decode_submit(parts)
                    _bind_form(session, kind)
                    self._meters.bytes += message.size
                    submitted.setdefault(session.number, (session, []))[1].extend(self._check(session, frames))
                elif kind == CONTROL and len(parts) == 1:
                    if session is not None:  # earlier batches of the same client are processed before its control message
                        self._submit(*submitted.pop(session.number, (session, ())))
                    self._control(message.routing, session, decode_request(parts[0]), now_us)
                elif kind in (*_SUBMITS, CONTROL) and session is None:
                    self._deny(message.routing, "hello", _NO_SESSION)
                else:
                    raise FormatError(_malformed_text(message))
            except FormatError as error:
                self._meters.messages_malformed += 1
                self._deny(message.routing, "malformed", str(error))
        for event in group_events([_submitted(session, good) for session, good in submitted.values() if good]):
            self._step(event)

    def _check(self, session: Session, frames: list[Frame]) -> list[Frame]:
        good, refused = self._validator.check(session.number, frames, lane=session.form == SUBMIT_UNORDERED)
        meters = self._meters
        meters.frames += len(frames)
        if self._admission is not None and good:
            good, beyond = self._admission.judge(session, good)
            refused += beyond
        meters.records += sum(frame.count for frame in good)
        if refused:
            self._answers.add(session.number, refused)
        return good

    def _submit(self, session: Session, frames: Sequence[Frame]) -> None:
        if frames:
            self._step(_submitted(session, frames))

    def _control(self, routing: bytes, session: Session | None, asked: Request, now_us: int) -> None:
        if isinstance(asked, Hello):
            self._hello(routing, asked, now_us)
            return
        if session is None:
            self._deny(routing, "hello", _NO_SESSION, getattr(asked, "request", 0))
            return
        if isinstance(asked, Bye):
            self.close(session)
            return
        self._meters.requests += 1
        number, waiting = session.number, session.requests
        waiting.add(asked.request)  # a request that the client repeats counts once and gets one answer
        if len(waiting) > limits.REQUESTS_A_SESSION_MAX:
            reason = f"this client has {limits.REQUESTS_A_SESSION_MAX} unanswered requests, which is the limit; wait for an answer"
            self._answers.add_one(number, Denied(asked.request, "limit", reason, retry=True))
            return
        if isinstance(asked, Producers) and not (
            session.may_have_table(now_us) and self._turn.tables < limits.TABLES_A_SESSION_BYTES
        ):
            reason = "this gateway sent many producer tables a moment ago; ask again in a few seconds"
            self._answers.add_one(number, Denied(asked.request, "busy", reason, retry=True))
            return
        try:
            if self._admission is not None:
                self._admission.check(session, asked)
            event = control_requests.take(asked, number, self._books, self._fences, self._turn)
        except UsageError as error:
            self._answers.add_one(number, Denied(asked.request, "name", str(error)))
            return
        except NotAllowed as error:
            self._answers.add_one(number, Denied(asked.request, error.code, str(error)))
            return
        if isinstance(event, Event):
            self._step(event)
        elif isinstance(event, Denied) and isinstance(asked, Fence):
            if (number, asked.request) not in self._unconfirmed:  # a repeated request waits already
                self._unconfirmed.add((number, asked.request))
                self._confirm(partial(self._fence_unknown, asked, number))
        else:
            if isinstance(event, StatusAnswer) and isinstance(asked, Producers):
                session.has_table(len(event.json))
                self._turn.tables += len(event.json)
            elif isinstance(event, Done) and isinstance(asked, Leave):
                self.leave_asked = True
                self._log.info("a client asked this gateway to leave the group", by=session.client)
            self._answers.add_one(number, event)

    def _fence_unknown(self, asked: Fence, session: int, confirmed: bool) -> Event | None:
        """Fence a producer that this gateway did not know. The refusal is final only if the frontier is `confirmed`.

        A session that has closed in the meantime has withdrawn its request.
        """
        if (session, asked.request) not in self._unconfirmed:
            return None
        self._unconfirmed.remove((session, asked.request))
        event = control_requests.take(asked, session, self._books, self._fences, self._turn)
        if isinstance(event, Event):
            return event
        if isinstance(event, Denied) and not confirmed:
            reason = (
                f"{event.reason}; this gateway lags or is cut off from a majority, so another gateway may know the producer: "
                "ask another gateway"
            )
            event = Denied(event.request, "behind", reason, retry=True)
        self._answers.add_one(session, event)
        return None

    def _hello(self, routing: bytes, hello: Hello, now_us: int) -> None:
        if hello.protocol != PROTOCOL:
            reason = f"the client speaks protocol {hello.protocol} and this gateway speaks {PROTOCOL}: install matching releases"
            self._deny(routing, "protocol", reason)
            return
        if len(hello.session) != SESSION_BYTES:
            reason = f"a session token must have {SESSION_BYTES} random bytes, and this one has {len(hello.session)}"
            self._deny(routing, "malformed", reason)
            return
        access = FULL_ACCESS
        if self._admission is not None:
            try:
                access = self._admission.access(routing, hello)
            except NotAllowed as error:
                self._deny(routing, error.code, str(error))
                return
        session, gone = self._sessions.hello(routing, hello.session, hello.client[:CLIENT_NAME_CHARACTERS_MAX], now_us)
        for other in gone:
            self.end(other.number)
        if session is None:
            self._deny(
                routing,
                "limit",
                f"all {len(self._sessions)} client sessions are in use: close some clients, or raise limits.sessions",
                retry=True,
            )
            return
        if session.access != access:
            session.access = access
            session.topics.clear()
            session.producers.clear()
        self._answers.add_one(session.number, self._books.welcome())

    def sweep(self) -> None:
        """End the sessions whose token is no longer valid; called about once a second."""
        if self._admission is not None:
            for session in self._admission.over(self._sessions.everyone()):
                self._log.info("a session ends: its token is no longer valid", token=session.access.name, client=session.client)
                self._deny(
                    session.routing, UNAUTHENTICATED, "the token was revoked or has expired: ask the operator for a new token"
                )
                self.close(session)

    def _deny(self, routing: bytes, code: str, reason: str, request: int = 0, *, retry: bool = False) -> None:
        self._answers.send_to(routing, Denied(request, code, reason, retry))

    def close(self, session: Session) -> None:
        """Close a session whose client has disconnected."""
        self._sessions.remove(session)
        self.end(session.number)

    def end(self, number: int) -> None:
        """Release the state of a session that has ended, and report its end to the stack."""
        self._fences.forget(number)
        self._unconfirmed = {key for key in self._unconfirmed if key[0] != number}
        self._step(SessionClosed(number))


def _submitted(session: Session, frames: Sequence[Frame]) -> Submitted | SubmittedUnordered:
    return (SubmittedUnordered if session.form == SUBMIT_UNORDERED else Submitted)(session.number, tuple(frames))


def _bind_form(session: Session, form: bytes) -> None:
    """Bind a session to the ordered log or to the lane at its first batch, because each has its own sequences.

    Raises:
        FormatError: the session has sent batches of the other form before.
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
