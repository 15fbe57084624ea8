"""The *repair* layer: a member requests missing frames, and another one that holds them repairs (protocol/repair; see NOTES.md)."""

from __future__ import annotations

from collections.abc import Callable

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol import messages
from tutti_gateway.core.protocol.events import LogRead
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.repair.repairer import Repairer
from tutti_gateway.core.repair.requester import Receiving, Requester
from tutti_gateway.core.repair.timing import Timing


class Repair:
    """The repair layer.

    `receiver` takes the ordered stream. `distances` returns the one-way distance to a member in microseconds.

    Attributes:
        asker, holder: its two roles, with their counters.
    """

    def __init__(self, context: Context, receiver: Receiving, distances: Callable[[int], int], random: RandomSource) -> None:
        self._standing = context.standing
        self._receiver = receiver
        timing = Timing(context.standing, distances, random)
        self.asker = Requester(context, receiver, timing)
        self.holder = Repairer(context, timing)

    def installed(self) -> None:
        """Begin a view: all repair state belongs to the last one (protocol/repair, R13)."""
        self.asker.forget()
        self.holder.forget()

    def heard(self, member: int, end: int) -> None:
        """Note that the log of a member of this view reaches `end`, so that a lost last message shows too."""
        if member in self._standing.others:
            self.holder.heard(member, end)
            self._receiver.heard(member, end)

    def on_missing(self, sender: int, message: messages.Missing) -> None:
        """Take a repair request of a member."""
        if self._counts(sender, message.view, message.ranges):
            self.asker.others_asked(message.ranges)
            if message.of in (0, self._standing.me):
                self.holder.asked(sender, message.ranges, message.of)
                self.holder.time()

    def on_repairing(self, sender: int, message: messages.Repairing) -> None:
        """Note that another member repairs."""
        if self._counts(sender, message.view, message.ranges):
            self.asker.others_repair(sender, message.ranges)
            for first, last in message.ranges:
                self.holder.others_repair(first, last)

    def on_repair(self, sender: int, message: messages.Repair) -> None:
        """Take a repair. A member that receives the repair does not repair the same frames."""
        frames = message.frames
        if frames and self._counts(sender, message.view, ((frames[0].position, frames[-1].position),)):
            self.holder.others_repair(frames[0].position, frames[-1].position)
            self._receiver.on_repair(sender, message)

    def on_log_read(self, event: LogRead) -> bool:
        """Take frames that the disk read. Return True if they were for this layer."""
        return self.holder.on_read(event.token, event.frames)

    def _counts(self, sender: int, view: int, ranges: tuple[tuple[int, int], ...]) -> bool:
        if not self._standing.current(view) or sender not in self._standing.others:
            return False
        return len(ranges) <= limits.REPAIR_RANGES_MAX and all(0 < first <= last for first, last in ranges)

    def looked(self) -> None:
        """End a step: check for frames that are missing, or have arrived."""
        standing = self._standing
        if standing.others and standing.current(standing.view):
            self.asker.look()

    def time(self) -> None:
        """Send the requests and repairs that are due; in no view, delete all state."""
        standing = self._standing
        if standing.current(standing.view):
            self.asker.time()
            self.holder.time()
        else:
            self.installed()

    @property
    def due_us(self) -> int | None:
        """Next time for `time`, None without one."""
        asker_us, holder_us = self.asker.due_us, self.holder.due_us
        if asker_us is None or (holder_us is not None and holder_us < asker_us):
            return holder_us
        return asker_us
