"""Tracer of `[logging] level = "debug"`: logs each step of every batch at this gateway.

The tracer wraps the stack and has the same interface, and exists only at level "debug". A line identifies a batch by its producer,
epoch and sequences (`first` to `last`), which are the same at all gateways. When the batch has a position, the line also contains
the position and the view:

    submitted  a client of this gateway sent it        written   it is queued for this gateway's disk
    received   another gateway sent it (`by`)          durable   frames up to `up_to` are on this gateway's disk
    vote       a peer has all frames up to `up_to`     confirm   the coordinator decided all frames up to `up_to`
    decided    the frontier passed it, with an offset  aborted   the frontier passed it, without an offset
    receipt    the client got its offset               no        a peer rejected it (`reason`)

A line about an unordered batch contains the `lane`, and the `attempt` instead of the view. The sequences, positions and offsets in
that line are those of the lane, and `confirm` means that the lane's origin decided. `tutti trace` merges the lines of all gateways.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from structlog.typing import FilteringBoundLogger

from tutti.data.client_protocol import Committed
from tutti.data.frames.frame import Frame, Kind
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState
from tutti.data.view_id import view_text
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Action, Deliver, DeliverUnordered, Persist, PersistLane, Reply
from tutti_gateway.core.protocol.events import (
    Event,
    LanePersisted,
    Now,
    Persisted,
    Received,
    Several,
    Submitted,
    SubmittedUnordered,
)
from tutti_gateway.core.protocol.messages import (
    Confirm,
    Fetched,
    Forward,
    LaneFetched,
    No,
    Order,
    Post,
    Posted,
    Repair,
    Settled,
    Vote,
)
from tutti_gateway.node.common.interfaces import Stack

Key = tuple[int, int, int]  # identifies a batch: producer, epoch and first sequence


class Tracer:
    """A stack that logs each step of every batch."""

    def __init__(
        self, stack: Stack, decided: Callable[[], LogState], own: Callable[[], LaneName], log: FilteringBoundLogger
    ) -> None:
        """Wrap a stack.

        Args:
            stack: the stack whose steps are logged.
            decided: returns the state of the decided log, for the names of producers and topics.
            own: returns the name of this gateway's lane.
            log: receives the trace lines.
        """
        self._stack = stack
        self._decided = decided
        self._own_lane = own
        self._log = log
        # Bounded, because writes may never complete.
        self._writing: deque[tuple[int, Mapping[str, object]]] = deque(
            maxlen=limits.BATCH_UNDECIDED_FRAMES_MAX
        )  # token, fields to log
        self._writing_lanes: deque[tuple[int, Mapping[str, object]]] = deque(maxlen=limits.BATCH_UNDECIDED_FRAMES_MAX)

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        """Step the stack, and log the event and the actions."""
        self._log_event(event)
        # Events are logged before the step, because the step assigns positions to the frames of submitted batches.
        actions = self._stack.step(event, now)
        # A receipt does not say whether its batch is in the lane, so collect the lane's batches that this step has decided.
        own_batches = {
            (frame.producer, frame.epoch, frame.first_sequence)
            for action in actions
            if isinstance(action, DeliverUnordered) and (action.origin, action.incarnation) == self._own_lane()
            for frame in action.frames
        }
        for action in actions:
            self._log_action(action, own_batches)
        return actions

    def _log_event(self, event: Event) -> None:
        match event:
            case Several():
                for one in event.events:
                    self._log_event(one)
            case Submitted():
                for session, frame in zip(event.sessions, event.frames, strict=True):
                    self._log_frames("submitted", (frame,), session=session)
            case SubmittedUnordered():
                self._log_frames("submitted", event.frames, self._own_lane(), session=event.session)
            case Received(message=Order() | Repair() | Forward() | Fetched() as message):
                self._log_frames("received", message.frames, by=type(message).__name__, sender=event.sender)
            case Received(message=Vote() | Confirm() as message):
                name = type(message).__name__.lower()
                self._log.debug(name, sender=event.sender, up_to=message.up_to, in_view=view_text(message.view))
            case Received(message=No() as message):
                fields = {"position": message.position, "in_view": view_text(message.view), "reason": message.reason}
                self._log.debug("no", sender=event.sender, **fields)
            case Persisted():
                self._log_durable(self._writing, event.token)
            case Received():
                self._received_of_lane(event)
            case LanePersisted():
                self._log_durable(self._writing_lanes, event.token)

    def _received_of_lane(self, event: Received) -> None:
        sender = event.sender
        match event.message:
            case Post() as message:
                self._log_frames("received", message.frames, LaneName(sender, message.incarnation), by="Post", sender=sender)
            case LaneFetched() as message:
                lane = LaneName(message.origin, message.incarnation)
                self._log_frames("received", message.frames, lane, by="LaneFetched", sender=sender)
            case Posted() as message:
                # Members send their votes only to the origin of a lane, so a vote that arrives here belongs to this gateway's lane.
                lane = LaneName(self._own_lane().origin, message.incarnation)
                fields = {"reason": message.low} if message.low else {}
                self._log.debug("vote", sender=sender, up_to=message.up_to, attempt=message.attempt, lane=lane.text, **fields)
            # Only the origin of a lane announces decisions (lanes, U16), so the sender names the lane.
            case Settled() as message:
                lane = LaneName(sender, message.incarnation)
                self._log.debug("confirm", sender=sender, up_to=message.up_to, attempt=message.attempt, lane=lane.text)

    def _log_durable(self, writing: deque[tuple[int, Mapping[str, object]]], token: int) -> None:
        """Log up to where the ordered log and each lane are durable, after the Persist with this token has completed."""
        last: dict[object, Mapping[str, object]] = {}
        # A token covers all earlier writes.
        while writing and writing[0][0] <= token:
            fields = writing.popleft()[1]
            last[fields.get("lane")] = fields
        for fields in last.values():
            self._log.debug("durable", **fields)

    def _log_action(self, action: Action, own_batches: Container[Key]) -> None:
        """Log an action of a step. `own_batches` holds the batches of this gateway's lane that the step decided."""
        match action:
            case Persist(frames=frames) if frames:
                self._writing.append((action.token, {"up_to": frames[-1].position}))
                self._log_frames("written", frames)
            case PersistLane(frames=frames) if frames:
                lane = LaneName(action.origin, action.incarnation)
                fields = {"up_to": frames[-1].position, "attempt": frames[-1].view, "lane": lane.text}
                self._writing_lanes.append((action.token, fields))
                self._log_frames("written", frames, lane)
            case Deliver():
                for frame, offset in zip(action.frames, action.offsets, strict=True):
                    if frame.position in action.aborted:
                        self._log_frames("aborted", [frame])
                    else:
                        self._log_frames("decided", [frame], offset=offset)
            case DeliverUnordered():
                offset = action.first_offset
                for frame in action.frames:
                    self._log_frames("decided", [frame], LaneName(action.origin, action.incarnation), offset=offset)
                    offset += frame.count
            case Reply():
                for answer in action.answers:
                    if isinstance(answer, Committed):
                        names = self._batch_fields(answer.producer, answer.epoch, answer.first_sequence, answer.count)
                        own = (answer.producer, answer.epoch, answer.first_sequence) in own_batches
                        fields = {"lane": self._own_lane().text} if own else {}
                        self._log.debug("receipt", session=action.session, offset=answer.offset, **fields, **names)

    def _log_frames(self, what: str, frames: Iterable[Frame], lane: LaneName | None = None, **facts: object) -> None:
        for frame in frames:
            fields: dict[str, object] = {"kind": Kind(frame.kind).name}
            if frame.kind == Kind.BATCH:
                fields |= self._batch_fields(frame.producer, frame.epoch, frame.first_sequence, frame.count)
                topic = self._decided().topics.get(frame.topic)
                fields["topic"] = topic.name if topic is not None else frame.topic
            if frame.position:
                view = {"in_view": view_text(frame.view)} if lane is None else {"attempt": frame.view}
                fields |= {"position": frame.position, **view, "origin": frame.origin}
            if lane is not None:
                fields["lane"] = lane.text
            self._log.debug(what, **fields, **facts)

    def _batch_fields(self, producer: int, epoch: int, first: int, count: int) -> dict[str, object]:
        known = self._decided().producers.get(producer)
        return {
            "producer": known.name if known is not None else "",
            "number": producer,
            "epoch": epoch,
            "first": first,
            "last": first + count - 1,
        }
