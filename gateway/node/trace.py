"""`[logging] level = "debug"`: what becomes of each message, in the log of every gateway, under the name that it has everywhere.

A tracer stands between driver and stack and is a stack to the driver, so that a gateway that logs less has none of it. A batch is
named by its producer, epoch and sequences (`first` to `last`), from the time on when it is placed also by position and view:

    submitted  a client of this gateway sent it        written   it is on its way to this gateway's disk
    received   another gateway sent it (`by`)          durable   everything up to `up_to` is on this gateway's disk
    vote       another one has everything up to there  confirm   the coordinator says that everything up to there is decided
    decided    the frontier passed it: its offset      aborted   the frontier passed it: it has none
    receipt    the client was told its offset         no        another one does not take it: why

`tutti trace` puts the lines of all gateways together. Unordered batches are not traced: sequences and offsets of a lane are its
own, and would be taken for those of ordered ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence

from structlog.typing import FilteringBoundLogger

from gateway.core import limits
from gateway.core.actions import Action, Deliver, DeliverUnordered, Persist, Reply
from gateway.core.events import Event, Now, Persisted, Received, Submitted
from gateway.core.messages import Confirm, Forward, No, Order, Repair, Vote
from gateway.data.frame import Frame, Kind
from gateway.data.state import LogState
from gateway.data.views import view_text
from gateway.data.wire import Committed
from gateway.node.edges import Stack


class Tracer:
    """A stack whose work on each message is logged."""

    def __init__(self, stack: Stack, decided: Callable[[], LogState], log: FilteringBoundLogger) -> None:
        """`decided` is the log up to the frontier, for the names of producers and topics."""
        self._stack = stack
        self._decided = decided
        self._log = log
        self._writing: deque[tuple[int, int]] = deque(maxlen=limits.BATCH_ROOM_FRAMES)  # token, last position

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        """Step the stack, and log what that does to messages."""
        self._happened(event)
        actions = self._stack.step(event, now)
        lane = {
            (frame.producer, frame.epoch, frame.first_sequence)
            for action in actions
            if isinstance(action, DeliverUnordered)
            for frame in action.frames
        }
        for action in actions:
            self._done(action, lane)
        return actions

    def _happened(self, event: Event) -> None:
        match event:
            case Submitted():
                self._tell("submitted", event.frames, session=event.session)
            case Received(message=Order() | Repair() | Forward() as message):
                self._tell("received", message.frames, by=type(message).__name__, sender=event.sender)
            case Received(message=Vote() | Confirm() as message):
                name = type(message).__name__.lower()
                self._log.debug(name, sender=event.sender, up_to=message.up_to, in_view=view_text(message.view))
            case Received(message=No() as message):
                told = {"position": message.position, "in_view": view_text(message.view), "reason": message.reason}
                self._log.debug("no", sender=event.sender, **told)
            case Persisted():
                up_to = 0
                while self._writing and self._writing[0][0] <= event.token:
                    up_to = self._writing.popleft()[1]
                if up_to:
                    self._log.debug("durable", up_to=up_to)

    def _done(self, action: Action, lane: Container[tuple[int, int, int]]) -> None:
        """What came of a step; `lane`: the unordered batches (producer, epoch, first sequence) that it decided."""
        match action:
            case Persist(frames=frames) if frames:
                self._writing.append((action.token, frames[-1].position))
                self._tell("written", frames)
            case Deliver():
                for frame, offset in zip(action.frames, action.offsets, strict=True):
                    if frame.position in action.aborted:
                        self._tell("aborted", [frame])
                    else:
                        self._tell("decided", [frame], offset=offset)
            case Reply():
                for answer in action.answers:
                    if isinstance(answer, Committed) and (answer.producer, answer.epoch, answer.first_sequence) not in lane:
                        names = self._names(answer.producer, answer.epoch, answer.first_sequence, answer.count)
                        self._log.debug("receipt", session=action.session, offset=answer.offset, **names)

    def _tell(self, what: str, frames: Iterable[Frame], **facts: object) -> None:
        for frame in frames:
            told: dict[str, object] = {"kind": Kind(frame.kind).name}
            if frame.kind == Kind.BATCH:
                told |= self._names(frame.producer, frame.epoch, frame.first_sequence, frame.count)
                topic = self._decided().topics.get(frame.topic)
                told["topic"] = topic.name if topic is not None else frame.topic
            if frame.position:
                told |= {"position": frame.position, "in_view": view_text(frame.view), "origin": frame.origin}
            self._log.debug(what, **told, **facts)

    def _names(self, producer: int, epoch: int, first: int, count: int) -> dict[str, object]:
        known = self._decided().producers.get(producer)
        return {
            "producer": known.name if known is not None else "",
            "number": producer,
            "epoch": epoch,
            "first": first,
            "last": first + count - 1,
        }
