"""The driver: the work of the socket thread, except for the sockets themselves.

In each iteration, the driver processes messages and events, steps the stack, and executes the stack's actions in this order:

1. Move the frontier that readers see.
2. Send messages to other gateways and replies to clients.
3. Wake the disk thread for writes. This follows the sends, because the network and the other disks take longer than the local disk,
   and because the woken thread would compete with the sends for the interpreter lock.
4. Pass decided runs to the index, because no client waits for the index.
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
from tutti.data.frames.frame import SEQUENCED, STAGED, Kind
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
    Received,
    Recovered,
    SpaceChanged,
    Started,
    SubmittedUnordered,
    TimeAdvanced,
    WriteFailed,
    group_events,
)
from tutti_gateway.node.clients import control_requests
from tutti_gateway.node.clients.duplicate_lookup import DuplicateLookup, LocatedDuplicates
from tutti_gateway.node.clients.in_flight import ArrivalTimes, OrderedInFlight, UnorderedInFlight
from tutti_gateway.node.clients.port import ClientPort, Message
from tutti_gateway.node.clients.quotas import Quotas
from tutti_gateway.node.clients.replies import Replies
from tutti_gateway.node.clients.request_handler import RequestHandler
from tutti_gateway.node.clients.sessions import Session, Sessions
from tutti_gateway.node.clients.view_notifications import ViewNotifications
from tutti_gateway.node.common.clock import Clock
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.common.interfaces import Stack
from tutti_gateway.node.disk.lane_thread import LaneThread
from tutti_gateway.node.disk.log_thread import LogThread
from tutti_gateway.node.peers.peer_network import PeerNetwork
from tutti_gateway.node.status.snapshot import DriverSnapshot
from tutti_gateway.node.status.status import StatusDocuments
from tutti_gateway.node.status.status_socket import ReadIndexRequest, StatusRequest

if TYPE_CHECKING:  # only a gateway with tokens loads this module
    from tutti_gateway.node.clients.authorization import Authorizer

_FORGET = int(Kind.FORGET)
DriverInput = Event | LocatedDuplicates | StatusRequest | ReadIndexRequest


class Driver:
    """One gateway without its I/O: the stack, the sessions and the queues to the disks. Owned by the socket thread."""

    def __init__(
        self,
        stack: Stack,
        *,
        clock: Clock,
        disk: LogThread,
        lanes: LaneThread,
        clients: ClientPort,
        lookups: DuplicateLookup,
        lane_lookups: DuplicateLookup,
        network: PeerNetwork,
        frontier: Callable[[int, int], None],
        documents: Callable[[DriverSnapshot], StatusDocuments],
        counters: GatewayCounters,
        log: FilteringBoundLogger,
        sessions_max: int = limits.SESSIONS_MAX,
        undecided_bytes_max: int = limits.UNDECIDED_BYTES_MAX,
        entropy: bytes,
        authorizer: Authorizer | None = None,
    ) -> None:
        """Assemble a gateway; `start` starts it.

        Args:
            stack: the protocol.
            clock, disk, lanes, clients, lookups, lane_lookups, network: the parts that do I/O, for which the driver queues work.
            frontier: publishes (last decided position, next offset) to readers on this machine, before any receipt is sent.
            documents: creates the gateway's status documents from the state of this driver.
            counters, log: counters and messages for the operator.
            sessions_max: largest number of client sessions.
            undecided_bytes_max: bytes of undecided frames above which the client port is not drained.
            entropy: 16 random bytes, the producer instance under which this gateway fences producers.
            authorizer: authorizes clients; None if clients need no permissions.
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
        self._make_documents = documents
        self.counters = counters
        self.sessions = Sessions(sessions_max)
        self.replies = Replies(self.sessions, clients, lookups, lane_lookups, counters, self._on_disconnect)
        self._notifications = ViewNotifications(self.sessions, self.replies)
        self._quotas = Quotas(self.sessions)
        self._fences = control_requests.PendingFences(entropy)
        self._read_indexes = control_requests.PendingReadIndexes()
        self._request_handler = RequestHandler(
            self.sessions, self.replies, self._fences, self._read_indexes, self.documents, counters, log, self._quotas, authorizer
        )
        # Events that result from actions wait here for the end of the current step, because `step` is not reentrant.
        self._next: deque[Event] = deque()
        self._disk_actions: list[tuple[Callable[[Any], None], Action]] = []  # writes and reads, in order
        self._delivered: list[Deliver] = []
        self._delivered_lanes: list[DeliverUnordered] = []
        self._in_flight = OrderedInFlight()
        self._unordered_in_flight = UnorderedInFlight()
        self._committed_batches, self._committed_unordered = ArrivalTimes(), ArrivalTimes()  # batches decided in this iteration
        self._voted, self._decided = ArrivalTimes(), ArrivalTimes()  # start times for `vote_us` and `decide_us`
        self._now = clock.now()  # all events of an iteration have the same time
        self._timer_us: int | None = None
        self._messages_us = 0  # time at which the client port was last drained
        self._closing: list[Session] = []
        self.view: ViewInstalled | None = None
        self._last_members: tuple[int, ...] = ()  # gateway numbers of the last view, for the log line about the next one
        self.position = self.offset = 0
        self.halted = ""
        self.removed = ""  # why the group removed this gateway; empty while it is a member
        self._blocking: dict[int, str] = {}  # members that block decisions, with reasons; each decision clears them
        self.disk_low = ""  # reason why the disk accepts no new records; empty if it accepts them
        self.leaving = self.stopped = False

    # State for other modules

    @property
    def suspected(self) -> str:
        """The members that block decisions, each with the reason; empty if there are none."""
        return "; ".join(self._blocking.values())

    def documents(self) -> StatusDocuments:
        """Return the current status documents."""
        return self._make_documents(
            DriverSnapshot(
                position=self.position,
                offset=self.offset,
                halted=self.halted,
                suspected=self.suspected,
                sessions=len(self.sessions),
                undecided_frames=self.undecided_frames,
                undecided_bytes=self.undecided_bytes,
                counters=self.counters,
                transport=self.network.facts(),
                quotas=self._quotas.to_dict(self._clock.mono_us()),
            )
        )

    @property
    def leave_requested(self) -> bool:
        """True if a client with admin rights has asked this gateway to leave the group."""
        return self._request_handler.leave_requested

    @property
    def undecided_frames(self) -> int:
        """The number of frames that are queued or written but not decided."""
        return self._in_flight.frames

    @property
    def undecided_bytes(self) -> int:
        """The bytes of the undecided frames."""
        return self._in_flight.bytes

    @property
    def accepts_messages(self) -> bool:
        """True if lookups and undecided frames are below their limits, so that the loop drains the client port.

        A halted gateway drains its port even with too many undecided frames, so that its clients get refusals.
        """
        ordered, unordered = self._lookups
        in_flight = self._in_flight
        free = in_flight.bytes < self._undecided_bytes_max and in_flight.frames < limits.BATCH_UNDECIDED_FRAMES_MAX
        return (free or bool(self.halted)) and ordered.waiting + unordered.waiting < limits.LOOKUPS_MAX

    def hold_us(self) -> int:
        """Return the microseconds for which client messages stay in their sockets. Return 0 if the loop drains the port now.

        Each group of frames costs each member a fixed time. While a small group is undecided, messages therefore wait for each
        other, and then share a group. The time limit keeps the wait short if the decision takes long.
        """
        in_flight = self._in_flight
        if not in_flight.groups or in_flight.bytes > limits.HOLD_BYTES_MAX:
            return 0
        return max(0, self._messages_us + limits.HOLD_US - self._clock.mono_us())

    def may_read(self, routing: bytes) -> bool:
        """True if the client port may read a connection: the batches that wait for a quota are below their memory limits."""
        session = self.sessions.at(routing)
        # A connection without a session is always read, because only its Hello shows which token and quota apply.
        return session is None or self._quotas.may_read(session.access)

    def wait_us(self) -> int:
        """Return the microseconds until the next timer, or until the next waiting batch is due, at most the poll interval."""
        # A due batch must not end the sleep while the port is not drained, because the loop would spin without progress.
        due_us = self._timer_us
        if self._quotas.waiting and self.accepts_messages:
            quota_us = self._quotas.next_us()
            if due_us is None or (quota_us is not None and quota_us < due_us):
                due_us = quota_us
        if due_us is None:
            return common_limits.POLL_US_MAX
        return min(common_limits.POLL_US_MAX, max(0, due_us - self._clock.mono_us()))

    # Iterations

    def start(self, started: Started) -> None:
        """Step the stack with its first event."""
        recovered: Recovered = started.recovered
        self.position, self.offset = recovered.state.position, recovered.state.next_offset
        self._in_flight.decided = self.position
        # Undecided frames found in the log count against the limits too, because the group may still decide them.
        self._in_flight.add(recovered.tail)
        self._lanes.set_recovered(recovered.lanes)
        self._now = self._clock.now()
        self._step(started)
        self.flush()

    def leave(self) -> None:
        """Begin an orderly leave: step the stack with `LeaveAsked`. A second call has no effect."""
        if not self.leaving:
            self.leaving = True
            self._now = self._clock.now()
            self._step(LeaveAsked())
            self.flush()

    def run_once(self, messages: Sequence[Message], inputs: Sequence[DriverInput]) -> None:
        """Process events, expired timers and client messages, and execute the resulting actions."""
        now = self._now = self._clock.now()
        events: list[Event] = []
        for item in inputs:
            if type(item) is Received:  # the most frequent input
                events.append(item)
            elif isinstance(item, Persisted):
                # Vote times are stored before the step, because in a group of one the same step decides the frames.
                self._voted += self._in_flight.pop_voted(item.token, now.mono_us)
                events.append(item)
            elif isinstance(item, LocatedDuplicates):
                self.replies.add(item.session, item.answers)
            elif isinstance(item, StatusRequest):
                # The status must include the events that arrived before the request.
                self._step_each(events)
                events = []
                item.answer(self.documents().status())
            elif isinstance(item, ReadIndexRequest):
                events.append(self._read_indexes.begin(item.answer))
            else:
                if isinstance(item, WriteFailed):
                    self.halted = item.reason  # set before the step, because a halted gateway drains its port to refuse requests
                elif isinstance(item, SpaceChanged):
                    self.disk_low = item.reason if item.low else ""
                events.append(item)
        if inputs:
            self._step_each(events)
            self.flush()
        stepped = bool(messages)
        if self._timer_us is not None and now.mono_us >= self._timer_us:
            stepped = True
            self._timer_us = None  # cleared before the step, which may set the next timer
            self._step(TimeAdvanced())
        if messages:
            self._messages_us = now.mono_us
            for event in self._request_handler.receive(messages, now.mono_us):
                self._step(event)
        if self._quotas.waiting and self.accepts_messages:
            stepped = True
            # Batches that waited for a quota obey the limits of undecided work too; otherwise they would bypass the back-pressure.
            for event in self._request_handler.pop_due(now.mono_us):
                self._step(event)
        if stepped:
            self.flush()

    def sweep(self) -> None:
        """Close silent sessions, notify clients of changes, and pass the time to the stack. Called about once a second.

        The stack of an idle single gateway sets no timer, so only this call makes it notice a jump of the wall clock.
        """
        self._now = self._clock.now()
        self._step(TimeAdvanced())
        for session in self.sessions.idle(self._now.mono_us - limits.SESSION_IDLE_US):
            self._step(self._request_handler.close(session))
        for event in self._request_handler.end_expired():
            self._step(event)
        self._notifications.check(self.documents().welcome())
        self.flush()

    def drop_clients(self) -> None:
        """End all sessions, after all connections were closed."""
        self._now = self._clock.now()
        # Waiting batches of ended sessions would keep their memory until the quota reaches them, but memory is short now.
        self._quotas.clear(self._now.mono_us)
        for session in self.sessions.clear():
            self._step(self._request_handler.end(session.number))

    def _on_disconnect(self, session: Session) -> None:
        self.sessions.remove(session)
        self._closing.append(session)  # `flush` sends the remaining replies, and then steps the stack with SessionClosed

    # Actions of the stack

    def _step(self, event: Event) -> None:
        self._execute(event)
        while self._next:
            self._execute(self._next.popleft())

    def _step_each(self, events: Sequence[Event]) -> None:
        if len(events) > 1:
            events = group_events(events)
        for event in events:
            self._step(event)

    def _execute(self, event: Event) -> None:
        self.counters.steps += 1
        # Batches are tracked before the step, because the step may already answer them.
        if isinstance(event, SubmittedUnordered):
            self._unordered_in_flight.track(event.frames, self._now.mono_us)
        handlers, pending = self._handlers, self.replies.pending
        # Only answers to fences and to unordered batches need `_reply`, and both are noted before this step.
        plain = not self._fences.waiting and not self._unordered_in_flight.arrived_us
        for action in self._stack.step(event, self._now):
            if plain and isinstance(action, Reply):  # the most frequent action
                pending[action.session].extend(action.answers)
            else:
                # An action without a handler raises KeyError and ends the process, because a lost action could lose a record.
                handlers[type(action)](action)

    @cached_property
    def _handlers(self) -> dict[type, Callable[[Any], None]]:
        network = self.network
        return {
            Persist: self._persist,
            **dict.fromkeys((ReadLog, ReadSnapshot, RepairLog), self._queue_on(self._disk.put)),
            **dict.fromkeys((PersistLane, ReadLane, RepairLane, LaneHeld), self._queue_on(self._lanes.put)),
            DeliverUnordered: self._deliver_lane,
            Send: network.send,
            Reply: self._reply,
            Deliver: self._deliver,
            LogReplaced: self._on_log_replaced,
            SetTimer: self._set_timer,
            ReadIndex: self._read_index,
            ViewInstalled: self._on_view,
            Halt: self._halt,
            Stopped: self._stop,
            Suspect: self._suspect,
            Peers: network.set_peers,
            Dropped: network.dropped,
        }

    def _set_timer(self, action: SetTimer) -> None:
        self._timer_us = action.at_us

    def _halt(self, action: Halt) -> None:
        self.halted = action.reason
        if action.out:
            self.removed = action.reason
            self._log.error("removed: the group continued without this gateway, which exits", reason=action.reason)
        else:
            self._log.error("halted: this gateway takes no part in the group until a restart, reads continue", reason=action.reason)

    def _stop(self, _action: Stopped) -> None:
        self.stopped = True

    def _suspect(self, action: Suspect) -> None:
        logged = action.member in self._blocking or self.disk_low  # a full disk has its own warning
        name = self.network.name(action.member)
        self._blocking[action.member] = f"{name} blocks the group: {action.reason}" if name else action.reason
        if not logged:
            self._log.warning("a member blocks the group", member=name or action.member, reason=action.reason)

    def _persist(self, action: Persist) -> None:
        # One Persist may truncate the log and then append frames, so its truncation is counted first.
        if action.cut is not None:
            self._in_flight.truncate(action.cut)
        if action.frames:
            self._in_flight.add(action.frames)
            self._in_flight.track(action.frames, action.token, self._now.mono_us)
        self._disk_actions.append((self._disk.put, action))

    def _queue_on(self, put: Callable[[Any], None]) -> Callable[[Action], None]:
        return lambda action: self._disk_actions.append((put, action))

    def _reply(self, action: Reply) -> None:
        session = self.sessions.get(action.session)
        if session is not None and session.form == SUBMIT_UNORDERED:
            self._committed_unordered += self._unordered_in_flight.pop_answered(action.answers)
        for answer in action.answers:
            translated = self._fences.translate(action.session, answer)
            if isinstance(translated, EpochAsked):
                self._next.append(translated)
            else:
                self.replies.add_one(action.session, translated)

    def _deliver(self, run: Deliver) -> None:
        last = run.frames[-1].position
        invariant(
            last > self.position and run.next_offset >= self.offset, f"the frontier would move back from {self.position} to {last}"
        )
        self.position, self.offset = last, run.next_offset
        # A decision needs the vote of every member of the view (atomic, A2), so no member blocks the group after a decision.
        self._blocking.clear()
        # Publish the frontier before any receipt is sent, so that a client with the receipt of a record can read the record.
        self._frontier(last, run.next_offset)
        self._delivered.append(run)
        counters, aborted = self.counters, run.aborted
        batches = records = 0
        for frame in run.frames:
            # The counters include exactly the records that readers see.
            if frame.kind in SEQUENCED and not frame.flags & STAGED and not (aborted and frame.position in aborted):
                batches += 1
                records += frame.count
            elif frame.kind == _FORGET:
                # Producer numbers in lanes come from the ordered log (lanes, U22), so a FORGET there also applies to the lanes.
                self._lanes.forget(decode_body(ForgetBody, frame.body).producers)
        counters.frames_committed += batches
        counters.records_committed += records
        committed, decided = self._in_flight.pop_decided(run.frames)
        self._committed_batches += committed
        self._decided += decided

    def _deliver_lane(self, run: DeliverUnordered) -> None:
        self._lanes.publish_frontier(run)
        for frame in run.frames:
            if frame.kind == Kind.BATCH:
                self.counters.frames_unordered += 1
                self.counters.records_unordered += frame.count
        self._delivered_lanes.append(run)

    def _on_log_replaced(self, action: LogReplaced) -> None:
        self._log.info(
            "a snapshot replaced the log: the other gateways have trimmed the frames that are missing here",
            position=action.position,
            start=action.next_offset,
        )
        self.position, self.offset = action.position, action.next_offset
        self._frontier(action.position, action.next_offset)
        # The replaced log ends with the snapshot, so it has no undecided frames.
        self._in_flight.reset(action.position)

    def _read_index(self, action: ReadIndex) -> None:
        if (event := self._read_indexes.resolve(action)) is not None:
            self._next.append(event)

    def _on_view(self, view: ViewInstalled) -> None:
        self.view = view
        self.counters.views += 1
        if not view.view:
            self._log.info("no view: this gateway takes part in no decision until the next view")
            return
        own = self.documents().gateway
        facts: dict[str, object] = {"view": view_text(view.view), "members": list(view.members)}
        facts["names"] = self.network.names(view.members, own)
        if left := self.network.names((number for number in self._last_members if number not in view.members), own):
            facts["left"] = left
        self._last_members = view.members
        self._log.info("view installed", **facts, primary=view.primary)

    def flush(self) -> None:
        """Send messages and replies. Then queue writes and reads for the disks, and decided runs for the index."""
        # Peers and clients come first, because the network takes longer than the disk.
        # A disk thread that wakes now would also compete with the sends for the interpreter lock.
        self.network.flush()
        self.replies.flush()
        while self._closing:
            self._step(self._request_handler.end(self._closing.pop().number))
        if self._disk_actions:
            self._disk.decided = self.position
            for put, action in self._disk_actions:
                put(action)
            self._disk_actions.clear()
        if self._committed_batches or self._committed_unordered or self._voted:
            self._measure()
        # No client waits for the index.
        if self._delivered:
            for run in self._delivered:
                self._disk.deliver(run)
            self._delivered.clear()
        if self._delivered_lanes:
            for lane_run in self._delivered_lanes:
                self._lanes.deliver(lane_run)
            self._delivered_lanes.clear()

    def _measure(self) -> None:
        """Add the latencies of this iteration's batches to the histograms."""
        # Latencies include the sends of an iteration, so the clock is read again instead of using `self._now`.
        now_us, counters = self._clock.mono_us(), self.counters
        for since, histogram in (
            (self._committed_batches, counters.commit_us),
            (self._committed_unordered, counters.commit_unordered_us),
            (self._voted, counters.vote_us),
            (self._decided, counters.decide_us),
        ):
            if since:
                for since_us, count in since:
                    histogram.add(now_us - since_us, count)
                since.clear()
