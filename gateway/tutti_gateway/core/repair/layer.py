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
    """Requests frames that this member lacks, and sends frames that other members lack.

    `receiver` handles the ordered stream. `distances` returns the one-way delay to a member, in microseconds.

    Attributes:
        requester: requests frames that this member lacks, and counts its requests.
        responder: sends frames that other members lack, and counts its repairs.
    """

    def __init__(self, context: Context, receiver: Receiving, distances: Callable[[int], int], random: RandomSource) -> None:
        self._view_state = context.view_state
        self._receiver = receiver
        timing = Timing(context.view_state, distances, random)
        self.requester = Requester(context, receiver, timing)
        self.responder = Responder(context, timing)

    def installed(self) -> None:
        """Delete all repair state when a view begins, because the state belongs to the previous view (protocol/repair, R13)."""
        self.requester.reset()
        self.responder.reset()

    def log_end_reported(self, member: int, end: int) -> None:
        """Handle a report that a member's log reaches `end`. Frames up to `end` that have not arrived here may be lost."""
        if member in self._view_state.others:
            self.responder.log_end_reported(member, end)
            self._receiver.log_end_reported(member, end)

    def on_missing(self, sender: int, message: messages.Missing) -> None:
        """Repair requested frames if this member or any holder must, and postpone this member's requests for the same frames."""
        if self._counts(sender, message.view, message.ranges):
            self.requester.on_other_request(message.ranges)
            # All members receive each request, but only the named member may repair (repair, R4 and R6).
            if message.of in (0, self._view_state.me):
                self.responder.on_request(sender, message.ranges, message.of)
                self.responder.on_timer()

    def on_repairing(self, sender: int, message: messages.Repairing) -> None:
        """Handle another member's claim: leave the repair to that member, and request missing frames among them from it."""
        if self._counts(sender, message.view, message.ranges):
            self.requester.on_other_claim(sender, message.ranges)
            for first, last in message.ranges:
                self.responder.on_other_repair(first, last)

    def on_repair(self, sender: int, message: messages.Repair) -> None:
        """Pass repaired frames to the receiver, and cancel this member's repair of the same frames."""
        frames = message.frames
        if frames and self._counts(sender, message.view, ((frames[0].position, frames[-1].position),)):
            self.responder.on_other_repair(frames[0].position, frames[-1].position)
            self._receiver.on_repair(sender, message)

    def on_log_read(self, event: LogRead) -> bool:
        """Send frames that the disk read for a repair. Return False if this layer did not request the read."""
        return self.responder.on_read(event.token, event.frames)

    def _counts(self, sender: int, view: int, ranges: tuple[tuple[int, int], ...]) -> bool:
        if not self._view_state.current(view) or sender not in self._view_state.others:
            return False
        return len(ranges) <= limits.REPAIR_RANGES_MAX and all(0 < first <= last for first, last in ranges)

    def end_of_step(self) -> None:
        """At the end of a step, start a wait for each newly missing frame, and end the waits for frames that have arrived."""
        if not self._receiver.gaps and self.requester.deadline_us is None:
            return  # nothing is missing, and nothing was
        view_state = self._view_state
        if view_state.others and view_state.current(view_state.view):
            self.requester.update()

    def on_timer(self) -> None:
        """Send the requests and repairs that are due. If no view is installed, delete all repair state instead."""
        view_state = self._view_state
        if view_state.current(view_state.view):
            self.requester.on_timer()
            self.responder.on_timer()
        else:
            self.installed()

    @property
    def deadline_us(self) -> int | None:
        """Time at which `on_timer` must be called next; None if no request or repair waits."""
        asker_us, holder_us = self.requester.deadline_us, self.responder.deadline_us
        if asker_us is None or (holder_us is not None and holder_us < asker_us):
            return holder_us
        return asker_us
