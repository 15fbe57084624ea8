"""The *order* layer: passes events, messages and decided frames to the parts of the layer (protocol/order)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti.data.frames.bodies import AbortBody, ForgetBody, OffsetsBody, decode_body
from tutti.data.frames.frame import SEQUENCED, STAGED, Frame, Kind
from tutti.errors import FormatError, InvariantViolated, invariant
from tutti_gateway.core.context import Context
from tutti_gateway.core.order.client_requests import Confirm, Requests
from tutti_gateway.core.order.forward_table import ForwardTable, Queue
from tutti_gateway.core.order.housekeeping import Housekeeping
from tutti_gateway.core.order.received_table import LineInput, LineState, ProducerLine, ReceivedTable
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.order.sequencer import LowerLayer, Sequencer
from tutti_gateway.core.protocol.events import EpochAsked, ForgetAsked, OffsetsAsked, SessionClosed, Submitted, TopicAsked
from tutti_gateway.core.protocol.messages import Asking, Deny, Echo, Forward, Order, Refuse, Resend
from tutti_gateway.core.view.view_state import NO_VIEW

_BATCH = int(Kind.BATCH)
Asked = EpochAsked | TopicAsked | OffsetsAsked | ForgetAsked


class Ordering:
    """Forwards client batches and requests, assigns positions as coordinator, and receives ordered frames as member.

    Attributes:
        low: reason why this gateway's disk accepts no new frames; empty if the disk accepts them.
        sequencer: assigns positions to batches, and to the frames of other layers.
        forward: batches of this gateway's clients whose outcome is not decided.
        requests: requests of this gateway's clients that wait for an answer.
        receiver: appends frames in sequence, and holds back frames that arrive too early.
        received: state of producers, names and readers at the end of the log.
        housekeeping: orders ticks, trims, and FORGETs of idle producers.
    """

    def __init__(self, context: Context, below: LowerLayer, confirm: Confirm, wall_us: Callable[[], int]) -> None:
        self.low = ""
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self.received = ReceivedTable(context.window.state)
        self.sequencer = Sequencer(context, self.received, below)
        self.forward = ForwardTable(context, self.received)
        self.requests = Requests(context, self.received, confirm)
        self.receiver = Receiver(context, self.received, self.forward, below)
        self.housekeeping = Housekeeping(context, self.received, self.sequencer, wall_us)

    # Clients

    def on_submitted(self, event: Submitted) -> None:
        """Forward clients' batches to the coordinator, or refuse them if this gateway accepts no messages."""
        self.submit(event)
        self.forward.flush()

    def submit(self, event: Submitted) -> None:
        """Queue clients' batches. The next call of `forward.flush` sends the batches of all clients together."""
        closed = self._closed()
        if closed:
            self.forward.refuse(event, *closed)
        else:
            self.forward.submit(event)

    def on_asked(self, event: Asked) -> None:
        """Pass a client's request to `requests`, or deny it if this gateway accepts no messages."""
        closed = self._closed()
        if closed:
            self.requests.deny(event.session, event.request, *closed, retry=True)
        elif isinstance(event, EpochAsked):
            self.requests.epoch(event.session, event.request, event.name, event.instance, event.epoch)
        elif isinstance(event, TopicAsked):
            self.requests.topic(event.session, event.request, event.name)
        elif isinstance(event, OffsetsAsked):
            self.requests.offsets(event.session, event.request, event.reader, event.offset, event.back)
        else:
            self.requests.forget(event.session, event.request, event.names)

    def _closed(self) -> tuple[str, str] | None:
        if self._view_state.closed is not None:
            return self._view_state.closed
        if not self._view_state.primary and not self._view_state.pausing:
            return "not_primary", f"{NO_VIEW}; send again to this gateway or to another one"
        # The coordinator refuses new messages only after this gateway has reported its low disk, so this gateway refuses them now.
        if self.low:
            return "space", f"no space for new messages ({self.low}); reads continue; send again when the disk has free space"
        return None

    def on_session_closed(self, event: SessionClosed) -> None:
        """Delete the state of a client session that has ended."""
        self.forward.session_closed(event.session)
        self.requests.session_closed(event.session)

    # Members

    def on_message(self, sender: int, message: Forward | Asking | Order | Echo | Resend | Refuse | Deny) -> None:
        """Pass a message to the part that handles its type.

        Ignore messages of other views, and messages that their sender must not send.
        """
        view_state = self._view_state
        if isinstance(message, Order):
            self.receiver.on_order(sender, message)
        elif isinstance(message, Echo):
            self.receiver.on_echo(sender, message)
        # A view orders no client messages before its VIEW frame is decided.
        elif not view_state.primary or not view_state.current(message.view) or sender not in view_state.members:
            return
        elif isinstance(message, Forward):
            # A coordinator that is about to leave orders nothing. The origins send their batches again to the next coordinator.
            if view_state.coordinating and not view_state.draining:
                self.sequencer.on_forward(sender, message.frames)
        elif isinstance(message, Asking):
            if view_state.coordinating and not view_state.draining:
                self.sequencer.on_request(sender, message.ask)
        elif sender == view_state.coordinator:
            if isinstance(message, Resend):
                self.forward.on_resend(message)
            elif isinstance(message, Refuse):
                self.forward.on_refuse(message)
            else:
                self.requests.on_deny(message)

    # The log

    def decided(self, run: tuple[Frame, ...], offsets: tuple[int, ...], void: frozenset[int]) -> None:
        """Answer the clients of a decided run, and order requests and batches that waited for the decision of its frames."""
        invariant(run[-1].position == self._window.frontier, "a decided run does not end at the frontier")
        lines, forward = self.received.lines, self.forward
        resolved: dict[int, ProducerLine] = {}
        aborts: dict[int, Frame] = {}
        number = -1
        line: ProducerLine | None = None
        queue: Queue | None = None
        for frame, offset in zip(run, offsets, strict=True):
            if frame.kind not in SEQUENCED:
                self._frame_decided(frame, resolved, aborts)
                number = -1
                continue
            # Consecutive frames of one producer share one lookup, which keeps this loop fast. They are of one epoch, because an
            # EPOCH frame stands before the first batch of the next epoch.
            if frame.producer != number:
                number = frame.producer
                line = lines.get(number)
                queues = forward.queues.get(number)
                queue = queues.get(frame.epoch) if queues else None
            if line is None:
                raise InvariantViolated(f"{frame!r} is decided, but its producer has no entry")
            line.undecided -= 1
            if not line.undecided:
                resolved[number] = line
            if frame.kind != _BATCH or frame.flags & STAGED:
                self.received.stage_decided(frame)
            # A staged batch has no offset yet, so its receipt contains the position, which the client's TXN repeats (order, O29).
            if queue is not None and queue.frames and frame.position not in void:
                forward.committed(queue, frame, frame.position if frame.flags & STAGED else offset)
        # Clients of aborted batches get answers after the whole run, because a later ABORT may void more batches of the epoch.
        for frame in aborts.values():
            self._aborted(frame)
        sequencer, now_us = self.sequencer, self._outbox.now.mono_us
        waiting = sequencer.waiting
        for number, line in resolved.items():
            self.housekeeping.seen_us[number] = now_us
            del lines[number]
            if waiting:
                sequencer.producer_resolved(line)
        self.sequencer.space_freed()

    def _aborted(self, frame: Frame) -> None:
        """Answer the waiting batches of an aborted epoch, after the last ABORT of that epoch in the run."""
        body = decode_body(AbortBody, frame.body)
        self.forward.aborted(frame.producer, frame.epoch, body.entry.sequence, body.reason)

    def _frame_decided(self, frame: Frame, resolved: dict[int, ProducerLine], aborts: dict[int, Frame]) -> None:
        """Answer the clients of a decided frame that is not a batch or TXN, and update the received-table."""
        kind = frame.kind
        if kind in (Kind.EPOCH, Kind.ABORT):
            line = self.received.lines[frame.producer]
            line.undecided -= 1
            if not line.undecided:
                resolved[line.number] = line
            if kind == Kind.EPOCH:
                if line.state is LineState.OPENING and line.epoch == frame.epoch:
                    line.on(LineInput.EPOCH_DECIDED)
                # Aborted batches must get the answer Aborted before the new epoch answers all remaining batches with Fenced.
                if frame.producer in aborts:
                    self._aborted(aborts.pop(frame.producer))
                self.forward.fenced(frame.producer, frame.epoch)
            else:
                aborts[frame.producer] = frame
        elif kind == Kind.FORGET:
            for number in decode_body(ForgetBody, frame.body).producers:
                self.received.forgotten.pop(number, None)
                self.housekeeping.forgotten(number)
                self.forward.forgotten(number)
        elif kind == Kind.OFFSETS:
            for reader in decode_body(OffsetsBody, frame.body).readers:
                self.received.offset_decided(reader)
        if kind in (Kind.EPOCH, Kind.TOPIC, Kind.FORGET, Kind.OFFSETS):
            self.requests.decided(frame)

    # Views and time

    def rebuild(self) -> None:
        """Rebuild the received-table after a start, or after the tail of the window was truncated."""
        self.received.rebuild(self._window.frames)

    def log_replaced(self) -> None:
        """Rebuild the received-table and answer waiting clients, because a snapshot replaced the log."""
        self.rebuild()
        self.forward.log_replaced()
        self.requests.log_replaced()

    def append_adopted(self, frames: Sequence[Frame]) -> tuple[int, str]:
        """Apply frames of another member's log to the received-table, before the frames are written.

        Return the number of valid frames, and the reason why the next frame is invalid.
        """
        for appended, frame in enumerate(frames):
            try:
                self.received.apply(frame)
            except FormatError as error:
                return appended, str(error)
        return len(frames), ""

    def ended(self) -> None:
        """End the view, and delete the requests that wait at this coordinator. Their origins repeat them in the next view."""
        self.sequencer.installed()

    def installed(self) -> None:
        """Begin an installed view: delete the buffered frames and waiting requests of the previous view."""
        self.sequencer.installed()
        self.receiver.installed()

    def primary(self) -> None:
        """Send all waiting batches and requests to the coordinator of the view, before any new message (order, O9)."""
        self.forward.installed()
        self.requests.installed()
        self.housekeeping.primary()

    def end_of_step(self) -> bool:
        """Send the frames that this step ordered to the members. Return False if the step ordered no frames."""
        if not self.sequencer.ordered:
            return False
        self.housekeeping.ordered()
        self.sequencer.publish()
        return True

    def beat(self) -> None:
        """Run one heartbeat: repeat batches and requests that got no answer."""
        if self._view_state.primary and self._view_state.current(self._view_state.view):
            self.forward.beat()
            self.requests.beat()

    @property
    def quiet(self) -> bool:
        """True if no client of this gateway waits for an answer of this layer."""
        return not self.forward.count and not self.requests.count
