"""The *repair* layer: a member requests missing frames, and a member that holds them sends them (protocol/repair; see NOTES.md)."""

from __future__ import annotations

from collections.abc import Callable

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol import messages
from tutti_gateway.core.protocol.events import LogRead
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.repair.requester import Receiving, Requester
from tutti_gateway.core.repair.responder import Responder
from tutti_gateway.core.repair.timing import Timing


class Repair:
    """Requests frames that are missing here, and sends frames that other members miss.

    `receiver` handles the ordered stream. `distances` returns the one-way distance to a member, in microseconds.

    Attributes:
        requester, responder: the two roles of the layer, with their counters.
    """

    def __init__(self, context: Context, receiver: Receiving, distances: Callable[[int], int], random: RandomSource) -> None:
        self._view_state = context.view_state
        self._receiver = receiver
        timing = Timing(context.view_state, distances, random)
        self.requester = Requester(context, receiver, timing)
        self.responder = Responder(context, timing)

    def installed(self) -> None:
        """Begin a view. Delete all repair state, because it belongs to the previous view (protocol/repair, R13)."""
        self.requester.reset()
        self.responder.reset()

    def log_end_reported(self, member: int, end: int) -> None:
        """Note that the log of a member of this view reaches `end`, so that the loss of the last message is detected too."""
        if member in self._view_state.others:
            self.responder.log_end_reported(member, end)
            self._receiver.log_end_reported(member, end)

    def on_missing(self, sender: int, message: messages.Missing) -> None:
        """Handle a repair request of a member."""
        if self._counts(sender, message.view, message.ranges):
            self.requester.on_other_request(message.ranges)
            # A request to another member only postpones this member's own requests (repair, R4 and R6).
            if message.of in (0, self._view_state.me):
                self.responder.on_request(sender, message.ranges, message.of)
                self.responder.on_timer()

    def on_repairing(self, sender: int, message: messages.Repairing) -> None:
        """Note that another member repairs."""
        if self._counts(sender, message.view, message.ranges):
            self.requester.on_other_claim(sender, message.ranges)
            for first, last in message.ranges:
                self.responder.on_other_repair(first, last)

    def on_repair(self, sender: int, message: messages.Repair) -> None:
        """Handle a repair. A member that receives the repair does not repair the same frames."""
        frames = message.frames
        if frames and self._counts(sender, message.view, ((frames[0].position, frames[-1].position),)):
            self.responder.on_other_repair(frames[0].position, frames[-1].position)
            self._receiver.on_repair(sender, message)

    def on_log_read(self, event: LogRead) -> bool:
        """Handle frames that the disk read. Return True if they were for this layer."""
        return self.responder.on_read(event.token, event.frames)

    def _counts(self, sender: int, view: int, ranges: tuple[tuple[int, int], ...]) -> bool:
        if not self._view_state.current(view) or sender not in self._view_state.others:
            return False
        return len(ranges) <= limits.REPAIR_RANGES_MAX and all(0 < first <= last for first, last in ranges)

    def end_of_step(self) -> None:
        """End a step: check for frames that are newly missing or have arrived."""
        view_state = self._view_state
        if view_state.others and view_state.current(view_state.view):
            self.requester.update()

    def on_timer(self) -> None:
        """Send the requests and repairs that are due; in no view, delete all state."""
        view_state = self._view_state
        if view_state.current(view_state.view):
            # Requests and repairs belong to the view in which the frames are missing.
            self.requester.on_timer()
            self.responder.on_timer()
        else:
            self.installed()

    @property
    def deadline_us(self) -> int | None:
        """Time of the next `on_timer`; None if nothing is due."""
        asker_us, holder_us = self.requester.deadline_us, self.responder.deadline_us
        if asker_us is None or (holder_us is not None and holder_us < asker_us):
            return holder_us
        return asker_us
