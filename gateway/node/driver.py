"""The socket thread's work without its sockets: messages and events in, the stack stepped, its actions carried out in order.

A turn ends with `flush`. By then every Persist is queued for the disk, the frontier that readers see has moved, and only then the
answers leave; decided runs go to the index last, because nobody waits for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from structlog.typing import FilteringBoundLogger

from gateway.core import limits
from gateway.core.actions import (
    Deliver,
    Dropped,
    Halt,
    Peers,
    Persist,
    ReadLog,
    Reply,
    SetTimer,
    Stopped,
    Suspect,
    ViewInstalled,
)
from gateway.core.events import (
    EpochAsked,
    Event,
    LeaveAsked,
    Recovered,
    SessionClosed,
    SpaceChanged,
    Started,
    Submitted,
    TimeAdvanced,
    WriteFailed,
)
from gateway.data.frame import Frame, Kind
from gateway.data.views import view_text
from gateway.data.wire import (
    CONTROL,
    PROTOCOL,
    SUBMIT,
    Bye,
    Denied,
    Done,
    Hello,
    Leave,
    Producers,
    Request,
    StatusAnswer,
    decode_request,
    decode_submit,
)
from gateway.errors import FormatError, UsageError, invariant
from gateway.node import requests
from gateway.node.answers import Answers
from gateway.node.desk import StatusAsked
from gateway.node.edges import Clients, DiskQueue, LookUp, Stack, Ticking
from gateway.node.ingest import Gate
from gateway.node.lookup import Located
from gateway.node.meters import Meters
from gateway.node.port import PARTS_MAX, Message
from gateway.node.sessions import Session, Sessions
from gateway.node.underway import Landed, UnderWay

CLIENT_NAME_CHARACTERS_MAX = 100
SESSION_BYTES = 16


Happening = Event | Located | StatusAsked


class Driver:
    """One gateway between its edges. Owned by one thread."""

    def __init__(
        self,
        stack: Stack,
        *,
        clock: Ticking,
        disk: DiskQueue,
        clients: Clients,
        lookups: LookUp,
        frontier: Callable[[int, int], None],
        books: Callable[[Driver], requests.Books],
        meters: Meters,
        log: FilteringBoundLogger,
        sessions_max: int = limits.SESSIONS_MAX,
        undecided_bytes_max: int = limits.UNDECIDED_BYTES_MAX,
        entropy: bytes,
    ) -> None:
        """Put a gateway together; `start` sets it off.

        Args:
            stack: the protocol.
            clock, disk, clients, lookups: its edges.
            frontier: shows (last decided position, next offset) to readers of this machine; called before any receipt leaves.
            books: makes what answers questions about this driver.
            meters, log: for the operator.
            sessions_max, undecided_bytes_max: bounds.
            entropy: 16 random bytes.
        """
        self._stack = stack
        self._clock = clock
        self._disk = disk
        self._lookups = lookups
        self._frontier = frontier
        self._log = log
        self._gate = Gate()
        self._undecided_bytes_max = undecided_bytes_max
        self.books = books(self)
        self.meters = meters
        self.sessions = Sessions(sessions_max)
        self.answers = Answers(self.sessions, clients, lookups, meters, self._client_gone)
        self._fences = requests.Fences(entropy)
        self._next: deque[Event] = deque()  # what answers of the stack led to
        self._delivered: list[Deliver] = []
        self._under_way = UnderWay()
        self._landed: Landed = []  # what was decided in this turn
        self._arrived_us = 0
        self._timer_us: int | None = None
        self._closing: list[Session] = []
        self.view: ViewInstalled | None = None
        self.peers: tuple[tuple[int, str, str], ...] = ()  # (number, name, address); nothing connects to them yet
        self.position = 0
        self.offset = 0
        self.halted = ""
        self.suspected = ""
        self.low = ""  # why the disk takes no new records
        self.leaving = self.leave_asked = False  # asked: by an operator, over the client port
        self.stopped = False

    # What others ask

    @property
    def state(self) -> str:
        """`primary`, `minority`, `joining` or `halted`."""
        if self.halted:
            return "halted"
        if self.view is None:
            return "joining"
        return "primary" if self.view.primary else "minority"

    @property
    def clients(self) -> int:
        """How many have said Hello."""
        return len(self.sessions)

    @property
    def undecided_frames(self) -> int:
        """How many frames were handed to the disk and are not decided."""
        return len(self._under_way)

    @property
    def undecided_bytes(self) -> int:
        """How many bytes they are."""
        return self._under_way.bytes

    @property
    def takes_messages(self) -> bool:
        """Whether the client port is to be drained: not above the bounds of what waits inside.

        What is undecided when the gateway halts stays so, and nothing joins it: whoever comes is told.
        """
        return self._lookups.waiting < limits.LOOKUPS_MAX and (
            bool(self.halted)
            or (self.undecided_bytes < self._undecided_bytes_max and self.undecided_frames < limits.BATCH_ROOM_FRAMES)
        )

    def wait_us(self) -> int:
        """How long nothing has to be done, if nothing happens."""
        if self._timer_us is None:
            return limits.POLL_US_MAX
        return min(limits.POLL_US_MAX, max(0, self._timer_us - self._clock.now().mono_us))

    # What happens

    def start(self, started: Started) -> None:
        """The first event."""
        recovered: Recovered = started.recovered
        self.position, self.offset = recovered.state.position, recovered.state.next_offset
        self._under_way.decided = self.position
        self._under_way.wrote(recovered.tail)
        self._step(started)
        self.flush()

    def leave(self) -> None:
        """Begin the orderly stop."""
        if not self.leaving:
            self.leaving = True
            self._step(LeaveAsked())
            self.flush()

    def turn(self, messages: Iterable[Message], happenings: Iterable[Happening]) -> None:
        """Take what happened and what clients said, and the time; carry out what follows."""
        for happening in happenings:
            if isinstance(happening, Located):
                self.answers.add(happening.session, happening.answers)
            elif isinstance(happening, StatusAsked):
                happening.answer(self.books.status())
            else:
                if isinstance(happening, WriteFailed):
                    self.halted = happening.reason
                elif isinstance(happening, SpaceChanged):
                    self.low = happening.reason if happening.low else ""
                self._step(happening)
        self.flush()
        now = self._clock.now()
        if self._timer_us is not None and now.mono_us >= self._timer_us:
            self._timer_us = None
            self._step(TimeAdvanced())
        self._take(messages, now.mono_us)
        self.flush()

    def sweep(self) -> None:
        """Forget clients that have been silent for long; called now and then."""
        for session in self.sessions.idle(self._clock.now().mono_us - limits.SESSION_IDLE_US):
            self._close(session)

    def drop_clients(self) -> None:
        """Every connection was closed: all sessions are over."""
        for session in self.sessions.clear():
            self._end(session.number)

    # Messages of clients

    def _take(self, messages: Iterable[Message], now_us: int) -> None:
        self._arrived_us = now_us
        self._gate.begin_turn()
        submitted: dict[int, list[Frame]] = {}
        for message in messages:
            parts = message.parts
            kind = bytes(parts[0][:1]) if parts else b""
            session = self.sessions.heard(message.routing, now_us)
            try:
                if kind == SUBMIT and session is not None:
                    frames = decode_submit(parts)
                    self.meters.bytes += message.size
                    submitted.setdefault(session.number, []).extend(self._check(session, frames))
                elif kind == CONTROL and len(parts) == 1:
                    if session is not None:  # order within a client is kept
                        self._submit(session.number, submitted.pop(session.number, ()))
                    self._control(message.routing, session, decode_request(parts[0]), now_us)
                elif kind in (SUBMIT, CONTROL) and session is None:
                    self._deny(message.routing, "hello", "this gateway does not know the connection: say Hello first")
                else:
                    raise FormatError(_not_taken(message))
            except FormatError as error:
                self.meters.messages_malformed += 1
                self._deny(message.routing, "malformed", str(error))
        for number, good in submitted.items():
            self._submit(number, good)

    def _check(self, session: Session, frames: list[Frame]) -> list[Frame]:
        good, refused = self._gate.check(session.number, frames)
        meters = self.meters
        meters.frames += len(frames)
        meters.records += sum(frame.count for frame in good)
        if refused:
            self.answers.add(session.number, refused)
        return good

    def _submit(self, number: int, frames: Sequence[Frame]) -> None:
        if frames:
            self._step(Submitted(number, tuple(frames)))

    def _control(self, routing: bytes, session: Session | None, asked: Request, now_us: int) -> None:
        if isinstance(asked, Hello):
            self._hello(routing, asked, now_us)
            return
        if session is None:
            self._deny(routing, "hello", "this gateway does not know the connection: say Hello first", getattr(asked, "request", 0))
            return
        if isinstance(asked, Bye):
            self._close(session)
            return
        self.meters.requests += 1
        number, waiting = session.number, session.requests
        waiting.add(asked.request)  # one that is asked again while it waits gets one answer, and has one place
        if len(waiting) > limits.REQUESTS_A_SESSION_MAX:
            reason = (
                f"{limits.REQUESTS_A_SESSION_MAX} requests of this client wait for their answers, which is the limit; wait for some"
            )
            self.answers.add_one(number, Denied(asked.request, "limit", reason, retry=True))
            return
        if isinstance(asked, Producers) and not session.may_have_table(now_us):
            reason = "this client was sent many tables of producers a moment ago; ask again in some seconds"
            self.answers.add_one(number, Denied(asked.request, "busy", reason, retry=True))
            return
        try:
            event = requests.take(asked, number, self.books, self._fences)
        except UsageError as error:
            self.answers.add_one(number, Denied(asked.request, "name", str(error)))
            return
        if isinstance(event, Event):
            self._step(event)
        else:
            if isinstance(event, StatusAnswer) and isinstance(asked, Producers):
                session.has_table(len(event.json))
            elif isinstance(event, Done) and isinstance(asked, Leave):
                self.leave_asked = True
                self._log.info("told to leave", by=session.client)
            self.answers.add_one(number, event)

    def _hello(self, routing: bytes, hello: Hello, now_us: int) -> None:
        if hello.protocol != PROTOCOL:
            reason = f"the client speaks protocol {hello.protocol} and this gateway {PROTOCOL}: use releases that fit each other"
            self._deny(routing, "protocol", reason)
            return
        if len(hello.session) != SESSION_BYTES:
            self._deny(routing, "malformed", f"a session is named by {SESSION_BYTES} random bytes, not {len(hello.session)}")
            return
        session, gone = self.sessions.hello(routing, hello.session, hello.client[:CLIENT_NAME_CHARACTERS_MAX], now_us)
        for other in gone:
            self._end(other.number)
        if session is None:
            self._deny(
                routing,
                "limit",
                f"all {len(self.sessions)} places for clients are taken: close some, or raise limits.sessions",
                retry=True,
            )
            return
        self.answers.add_one(session.number, self.books.welcome())

    def _deny(self, routing: bytes, code: str, reason: str, request: int = 0, *, retry: bool = False) -> None:
        self.answers.send_to(routing, Denied(request, code, reason, retry))

    def _close(self, session: Session) -> None:
        self.sessions.remove(session)
        self._end(session.number)

    def _client_gone(self, session: Session) -> None:
        self.sessions.remove(session)
        self._closing.append(session)  # told to the stack after the flush that found it

    def _end(self, number: int) -> None:
        self._fences.forget(number)
        self._step(SessionClosed(number))

    # Actions of the stack

    def _step(self, event: Event) -> None:
        self._carry_out(event)
        while self._next:
            self._carry_out(self._next.popleft())

    def _carry_out(self, event: Event) -> None:
        self.meters.steps += 1
        for action in self._stack.step(event, self._clock.now()):
            match action:
                case Persist():
                    self._persist(action)
                case ReadLog():
                    self._disk.read(action)
                case Reply():
                    self._reply(action)
                case Deliver():
                    self._deliver(action)
                case SetTimer():
                    self._timer_us = action.at_us
                case ViewInstalled():
                    self._view(action)
                case Halt():
                    self.halted = action.reason
                    self._log.error("halted: this gateway takes no part any more, reads go on", reason=action.reason)
                case Stopped():
                    self.stopped = True
                case Suspect():
                    told = self.suspected or self.low  # once is enough, and that of the disk says more
                    self.suspected = action.reason
                    if not told:
                        self._log.warning("a member holds the group up", member=action.member, reason=action.reason)
                case Peers():
                    self.peers = action.peers
                case Dropped():
                    self._log.warning(
                        "messages of a member were not taken",
                        kind=action.kind,
                        sender=action.sender,
                        reason=action.reason,
                        count=action.count,
                    )
                case _:
                    invariant(False, f"a gateway alone sends nothing and its log keeps no lanes, and the stack wants {action}")

    def _persist(self, action: Persist) -> None:
        if action.cut is not None:
            self._under_way.cut(action.cut)
        if action.frames:
            self._under_way.wrote(action.frames)
            self._under_way.arrived(action.frames, self._arrived_us)
        self._disk.persist(action)

    def _reply(self, action: Reply) -> None:
        if not self._fences.waiting:
            self.answers.add(action.session, action.answers)
            return
        for answer in action.answers:
            translated = self._fences.translate(action.session, answer)
            if isinstance(translated, EpochAsked):
                self._next.append(translated)
            else:
                self.answers.add_one(action.session, translated)

    def _deliver(self, run: Deliver) -> None:
        last = run.frames[-1].position
        invariant(
            last > self.position and run.next_offset >= self.offset, f"the frontier would move back from {self.position} to {last}"
        )
        self.position, self.offset = last, run.next_offset
        self.suspected = ""
        self._frontier(last, run.next_offset)
        self._delivered.append(run)
        meters = self.meters
        for frame in run.frames:
            if frame.kind == Kind.BATCH and frame.position not in run.aborted:
                meters.frames_committed += 1
                meters.records_committed += frame.count
        self._landed += self._under_way.landed(run.frames)

    def _view(self, view: ViewInstalled) -> None:
        self.view = view
        self._log.info("view installed", view=view_text(view.view), members=list(view.members), primary=view.primary)

    def flush(self) -> None:
        """Send the answers, then hand decided runs to the index."""
        self.answers.flush()
        while self._closing:
            self._end(self._closing.pop().number)
        if self._landed:
            now_us = self._clock.now().mono_us
            for arrived_us, count in self._landed:
                self.meters.commit_us.add(now_us - arrived_us, count)
            self._landed.clear()
        for run in self._delivered:
            self._disk.deliver(run)
        self._delivered.clear()


def _not_taken(message: Message) -> str:
    if not message.parts:
        return (
            f"a message of {message.size} bytes has too many bytes or parts: a gateway takes up to {limits.MESSAGE_BYTES_MAX} "
            f"bytes in up to {PARTS_MAX} parts; send fewer frames at once"
        )
    return f"a message of {message.size} bytes in {len(message.parts)} parts is none of this protocol"
