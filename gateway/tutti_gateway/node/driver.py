"""The work of the socket thread without its sockets: takes messages and events, steps the stack and carries out its actions.

The order within a turn:

1. the frontier that readers see moves;
2. messages to other gateways and replies to clients leave;
3. the disk thread is woken for writes; it comes after the sends, because the network is the longer way to durability at the others,
   and a woken thread competes for the interpreter;
4. decided runs go to the index, because no client waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from structlog.typing import FilteringBoundLogger

from tutti import limits as common_limits
from tutti.data.client_protocol import SUBMIT_UNORDERED
from tutti.data.frames.bodies import ForgetBody, decode_body
from tutti.data.frames.frame import Kind
from tutti.data.view_id import view_text
from tutti.errors import invariant
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    Dropped,
    Halt,
    LaneHeld,
    LogReplaced,
    Peers,
    Persist,
    PersistLane,
    ReadIndex,
    ReadLane,
    ReadLog,
    ReadSnapshot,
    RepairLane,
    RepairLog,
    Reply,
    Send,
    SetTimer,
    Stopped,
    Suspect,
    ViewInstalled,
)
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    Event,
    LeaveAsked,
    Persisted,
    ReadIndexAsked,
    Recovered,
    SpaceChanged,
    Started,
    SubmittedUnordered,
    TimeAdvanced,
    WriteFailed,
    group_events,
)
from tutti_gateway.node.clients import control_requests
from tutti_gateway.node.clients.duplicate_lookup import LocatedDuplicates
from tutti_gateway.node.clients.in_flight import ArrivalTimes, OrderedInFlight, UnorderedInFlight
from tutti_gateway.node.clients.port import Message
from tutti_gateway.node.clients.replies import Replies
from tutti_gateway.node.clients.request_handler import RequestHandler
from tutti_gateway.node.clients.sessions import Session, Sessions
from tutti_gateway.node.clients.view_notifications import ViewNotifications
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.common.interfaces import DiskQueue, DuplicateQueue, LaneQueue, ReplySender, Stack, TimeSource
from tutti_gateway.node.peers.peers import PeerNetwork
from tutti_gateway.node.status.status_socket import ReadIndexRequest, StatusRequest

if TYPE_CHECKING:  # only a gateway with tokens loads this module
    from tutti_gateway.node.clients.authorization import Authorizer

DriverInput = Event | LocatedDuplicates | StatusRequest | ReadIndexRequest


class Driver:
    """One gateway without its I/O: the stack, the sessions and the queues to the disks. Owned by the socket thread."""

    def __init__(
        self,
        stack: Stack,
        *,
        clock: TimeSource,
        disk: DiskQueue,
        lanes: LaneQueue,
        clients: ReplySender,
        lookups: DuplicateQueue,
        lane_lookups: DuplicateQueue,
        network: PeerNetwork,
        frontier: Callable[[int, int], None],
        books: Callable[[Driver], control_requests.StatusDocuments],
        meters: GatewayCounters,
        log: FilteringBoundLogger,
        sessions_max: int = limits.SESSIONS_MAX,
        undecided_bytes_max: int = limits.UNDECIDED_BYTES_MAX,
        entropy: bytes,
        admission: Authorizer | None = None,
    ) -> None:
        """Assemble a gateway; `start` starts it.

        Args:
            stack: the protocol.
            clock, disk, lanes, clients, lookups, lane_lookups, network: interfaces to the I/O.
            frontier: publishes (last decided position, next offset) to readers on this machine; called before any receipt leaves.
            books: makes the status documents of this driver.
            meters, log: counters and messages for the operator.
            sessions_max, undecided_bytes_max: limits; above the latter the client port is not drained.
            entropy: 16 random bytes.
            admission: authorizes clients; None if every client may do everything.
        """
        self._stack = stack
        self._clock = clock
        self._disk = disk
        self._lanes = lanes
        self._lookups = lookups, lane_lookups
        self.network = network
        self._frontier = frontier
        self._log = log
        self._undecided_bytes_max = undecided_bytes_max
        self.books = books(self)
        self.meters = meters
        self.sessions = Sessions(sessions_max)
        self.answers = Replies(self.sessions, clients, lookups, lane_lookups, meters, self._client_gone)
        self._notifications = ViewNotifications(self.books.welcome, self.sessions, self.answers)
        self._fences = control_requests.PendingFences(entropy)
        self._request_handler = RequestHandler(
            self._step, self._confirm, self.sessions, self.answers, self._fences, self.books, meters, log, admission
        )
        self._next: deque[Event] = deque()  # events that result from answers of the stack
        self._disk_actions: list[tuple[Callable[[Any], None], Action]] = []  # writes and reads, in order
        self._delivered: list[Deliver] = []
        self._delivered_lanes: list[DeliverUnordered] = []
        self._in_flight = OrderedInFlight()
        self._awaited = UnorderedInFlight()
        self._committed_batches, self._committed_unordered = ArrivalTimes(), ArrivalTimes()  # batches decided in this turn
        self._voted, self._decided = ArrivalTimes(), ArrivalTimes()  # batches voted for and decided in this turn, for the latencies
        self._now = clock.now()  # all events of a turn have the same time
        self._timer_us: int | None = None
        self._closing: list[Session] = []
        self._last_read_index = 0  # number of the last request to confirm the frontier
        self._read_index_callbacks: dict[int, Callable[[bool], None]] = {}  # by the number of the request
        self.view: ViewInstalled | None = None
        self.position = self.offset = 0
        self.halted = ""
        self.cast_out = ""  # why this gateway is no longer in the group; empty while it is
        self._blocking: dict[int, str] = {}  # members that block decisions since the last decided frame, and why
        self.low = ""  # why the disk accepts no new records; empty if it does
        self.leaving = self.stopped = False

    # State for other modules

    @property
    def state(self) -> str:
        """The state of the gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""
        return "halted" if self.halted else self.books.state

    @property
    def suspected(self) -> str:
        """The members that block decisions, each with the reason; empty if there are none."""
        return "; ".join(self._blocking.values())

    @property
    def clients(self) -> int:
        """The number of client sessions."""
        return len(self.sessions)

    @property
    def leave_asked(self) -> bool:
        """True if a client with admin rights has asked this gateway to leave the group."""
        return self._request_handler.leave_asked

    def transport_facts(self) -> dict[str, object]:
        """Return the transport's figures: messages sent, received and lost."""
        return self.network.facts()

    @property
    def undecided_frames(self) -> int:
        """The number of frames that are queued or written but not decided."""
        return len(self._in_flight)

    @property
    def undecided_bytes(self) -> int:
        """The bytes of the undecided frames."""
        return self._in_flight.bytes

    @property
    def takes_messages(self) -> bool:
        """True if the client port is to be drained: lookups and undecided frames are below their limits.

        A halted gateway always drains its port, so that clients get refusals; its undecided frames do not increase.
        """
        ordered, unordered = self._lookups
        return ordered.waiting + unordered.waiting < limits.LOOKUPS_MAX and (
            bool(self.halted)
            or (self.undecided_bytes < self._undecided_bytes_max and self.undecided_frames < limits.BATCH_UNDECIDED_FRAMES_MAX)
        )

    def wait_us(self) -> int:
        """Return the time until the next timer, us; at most the poll interval."""
        if self._timer_us is None:
            return common_limits.POLL_US_MAX
        return min(common_limits.POLL_US_MAX, max(0, self._timer_us - self._clock.mono_us()))

    # Turns

    def start(self, started: Started) -> None:
        """Step the stack with its first event."""
        recovered: Recovered = started.recovered
        self.position, self.offset = recovered.state.position, recovered.state.next_offset
        self._in_flight.decided = self.position
        self._in_flight.wrote(recovered.tail)
        self._lanes.found(recovered.lanes)
        self._now = self._clock.now()
        self._step(started)
        self.flush()

    def leave(self) -> None:
        """Begin to leave the group in order."""
        if not self.leaving:
            self.leaving = True
            self._now = self._clock.now()
            self._step(LeaveAsked())
            self.flush()

    def turn(self, messages: Sequence[Message], happenings: Sequence[DriverInput]) -> None:
        """Process events, expired timers and client messages, and carry out the resulting actions."""
        now = self._now = self._clock.now()
        events: list[Event] = []
        for happening in happenings:
            if isinstance(happening, LocatedDuplicates):
                self.answers.add(happening.session, happening.answers)
            elif isinstance(happening, StatusRequest):
                self._step_each(events)
                events = []
                happening.answer(self.books.status())
            elif isinstance(happening, ReadIndexRequest):
                events.append(self._read_index_event(happening.answer))
            else:
                if isinstance(happening, WriteFailed):
                    self.halted = happening.reason
                elif isinstance(happening, SpaceChanged):
                    self.low = happening.reason if happening.low else ""
                elif isinstance(happening, Persisted):
                    self._voted += self._in_flight.voted(happening.token, now.mono_us)
                events.append(happening)
        if happenings:
            self._step_each(events)
            self.flush()
        if self._timer_us is not None and now.mono_us >= self._timer_us:
            self._timer_us = None
            self._step(TimeAdvanced())
        if messages:
            self._request_handler.take(messages, now.mono_us)
        self.flush()

    def sweep(self) -> None:
        """Close silent sessions, notify clients of changes, and pass the time to the stack; called about once a second.

        An idle group of one sets no timer, so only this call shows the stack that the wall clock has jumped.
        """
        self._now = self._clock.now()
        self._step(TimeAdvanced())
        for session in self.sessions.idle(self._now.mono_us - limits.SESSION_IDLE_US):
            self._request_handler.close(session)
        self._request_handler.sweep()
        self._notifications.look()
        self.flush()

    def drop_clients(self) -> None:
        """End all sessions, after all connections were closed."""
        self._now = self._clock.now()
        for session in self.sessions.clear():
            self._request_handler.end(session.number)

    def _client_gone(self, session: Session) -> None:
        self.sessions.remove(session)
        self._closing.append(session)  # the send failed during a flush, and the stack gets SessionClosed after it

    # Actions of the stack

    def _step(self, event: Event) -> None:
        self._carry_out(event)
        while self._next:
            self._carry_out(self._next.popleft())

    def _step_each(self, events: Sequence[Event]) -> None:
        for event in group_events(events):
            self._step(event)

    def _carry_out(self, event: Event) -> None:
        self.meters.steps += 1
        if isinstance(event, SubmittedUnordered):
            self._awaited.arrived(event.frames, self._now.mono_us)
        acts = self._handlers
        for action in self._stack.step(event, self._now):
            acts[type(action)](action)

    @cached_property
    def _handlers(self) -> dict[type, Callable[[Any], None]]:
        network = self.network
        return {
            Persist: self._persist,
            ReadLog: self._queue_on(self._disk.read),
            ReadSnapshot: self._queue_on(self._disk.read),
            RepairLog: self._queue_on(self._disk.mend),
            PersistLane: self._queue_on(self._lanes.persist),
            ReadLane: self._queue_on(self._lanes.read),
            RepairLane: self._queue_on(self._lanes.mend),
            LaneHeld: self._queue_on(self._lanes.held),
            DeliverUnordered: self._deliver_lane,
            Send: network.send,
            Reply: self._reply,
            Deliver: self._deliver,
            LogReplaced: self._relearned,
            SetTimer: self._set_timer,
            ReadIndex: self._read_index,
            ViewInstalled: self._view,
            Halt: self._halt,
            Stopped: self._stop,
            Suspect: self._suspect,
            Peers: network.meet,
            Dropped: network.dropped,
        }

    def _set_timer(self, action: SetTimer) -> None:
        self._timer_us = action.at_us

    def _halt(self, action: Halt) -> None:
        self.halted = action.reason
        if action.out:
            self.cast_out = action.reason
            self._log.error("removed: the group continued without this gateway, which exits", reason=action.reason)
        else:
            self._log.error("halted: this gateway takes no part in the group until a restart, reads continue", reason=action.reason)

    def _stop(self, _action: Stopped) -> None:
        self.stopped = True

    def _suspect(self, action: Suspect) -> None:
        logged = action.member in self._blocking or self.low  # the warning about a full disk is more specific
        name = self.network.name(action.member)
        self._blocking[action.member] = f"{name} blocks the group: {action.reason}" if name else action.reason
        if not logged:
            self._log.warning("a member blocks the group", member=name or action.member, reason=action.reason)

    def _persist(self, action: Persist) -> None:
        if action.cut is not None:
            self._in_flight.cut(action.cut)
        if action.frames:
            self._in_flight.wrote(action.frames)
            self._in_flight.arrived(action.frames, action.token, self._now.mono_us)
        self._disk_actions.append((self._disk.persist, action))

    def _queue_on(self, put: Callable[[Any], None]) -> Callable[[Action], None]:
        return lambda action: self._disk_actions.append((put, action))

    def _reply(self, action: Reply) -> None:
        session = self.sessions.get(action.session) if len(self._awaited) else None
        if session is not None and session.form == SUBMIT_UNORDERED:
            self._committed_unordered += self._awaited.answered(action.answers)
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
        self._blocking.clear()
        self._frontier(last, run.next_offset)
        self._delivered.append(run)
        meters = self.meters
        for frame in run.frames:
            if frame.visible and frame.position not in run.aborted:
                meters.frames_committed += 1
                meters.records_committed += frame.count
            elif frame.kind == Kind.FORGET:
                self._lanes.forget(decode_body(ForgetBody, frame.body).producers)
        landed, decided = self._in_flight.landed(run.frames)
        self._committed_batches += landed
        self._decided += decided

    def _deliver_lane(self, run: DeliverUnordered) -> None:
        self._lanes.show(run)
        for frame in run.frames:
            if frame.kind == Kind.BATCH:
                self.meters.frames_unordered += 1
                self.meters.records_unordered += frame.count
        self._delivered_lanes.append(run)

    def _relearned(self, action: LogReplaced) -> None:
        self._log.info(
            "a snapshot replaced the log: the other gateways have trimmed the frames that are missing here",
            position=action.position,
            start=action.next_offset,
        )
        self.position, self.offset = action.position, action.next_offset
        self._frontier(action.position, action.next_offset)
        self._in_flight.replaced(action.position)

    def _read_index_event(self, answer: Callable[[bool], None]) -> ReadIndexAsked:
        """Return the event of a read index request; `answer` is called with True once the stack has confirmed the frontier."""
        self._last_read_index += 1
        self._read_index_callbacks[self._last_read_index] = answer
        return ReadIndexAsked(self._last_read_index)

    def _confirm(self, answer: Callable[[bool], Event | None]) -> None:
        """Ask the stack to confirm the frontier; `answer` gets the result and may return the next event."""

        def confirmed(known: bool) -> None:
            if (event := answer(known)) is not None:
                self._next.append(event)

        self._step(self._read_index_event(confirmed))

    def _read_index(self, action: ReadIndex) -> None:
        self._read_index_callbacks.pop(action.number)(action.confirmed)

    def _view(self, view: ViewInstalled) -> None:
        self.view = view
        self.meters.views += 1
        names = self.network.names(view.members, self.books.gateway)
        self._log.info("view installed", view=view_text(view.view), members=list(view.members), names=names, primary=view.primary)

    def flush(self) -> None:
        """Send messages and replies, then queue writes and reads for the disks, then decided runs for the index."""
        self.network.flush()
        self.answers.flush()
        while self._closing:
            self._request_handler.end(self._closing.pop().number)
        for put, action in self._disk_actions:
            put(action)
        self._disk_actions.clear()
        if self._committed_batches or self._committed_unordered or self._voted:
            self._measure()
        for run in self._delivered:
            self._disk.deliver(run)
        self._delivered.clear()
        for part in self._delivered_lanes:
            self._lanes.deliver(part)
        self._delivered_lanes.clear()

    def _measure(self) -> None:
        """Add the latencies of the batches that this turn acknowledged or decided to the histograms."""
        now_us, meters = self._clock.mono_us(), self.meters
        for since, meter in (
            (self._committed_batches, meters.commit_us),
            (self._committed_unordered, meters.commit_unordered_us),
            (self._voted, meters.vote_us),
            (self._decided, meters.decide_us),
        ):
            for since_us, count in since:
                meter.add(now_us - since_us, count)
            since.clear()
