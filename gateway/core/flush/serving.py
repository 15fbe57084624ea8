"""Giving frames of this member's log to others: to those of a view change, and to learners (design, 4.2 and 5.3)."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core import limits
from gateway.core.context import Context
from gateway.core.events import LogRead
from gateway.core.messages import Fetch, Fetched, Reject
from gateway.data.frame import Frame


class _Reading(NamedTuple):
    token: int
    to: int
    message: Fetch


class Serving:
    """Answers Fetch. For each gateway one read of the log is under way, the last one that it wanted, and one of what it mends."""

    def __init__(self, context: Context) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._reading: dict[tuple[int, bool], _Reading] = {}  # by who asks, and whether for an end that it knows

    def on_fetch(self, sender: int, message: Fetch) -> None:
        """Frames are wanted."""
        window, standing = self._window, self._standing
        if not self._serves(message.view):
            if message.view:
                self._outbox.send(sender, Reject(message.view, standing.promised, "a higher view is promised"))
            return
        last = min(message.last, window.end if message.view else window.frontier)
        if message.first > last:
            if not message.view:
                self._outbox.send(
                    sender, Fetched(view=0, first=message.first, frames=(), source=standing.view, stop=window.frontier)
                )
        elif message.first > window.frontier:
            frames: list[Frame] = []
            size = 0
            for position in range(message.first, last + 1):
                frame = window.at(position)
                size += frame.size
                if frames and (size > limits.FETCH_BYTES or len(frames) == limits.FRAMES_A_MESSAGE_MAX):
                    break
                frames.append(frame)
            self._outbox.send(sender, Fetched(view=message.view, first=message.first, frames=tuple(frames)))
        else:
            token = self._outbox.read_log(message.first, min(last, window.frontier))
            self._reading[sender, message.last < limits.POSITION_MAX] = _Reading(token, sender, message)

    def _serves(self, view: int) -> bool:
        """A view change is served while its view is promised, durably; learners by members of a view, up to their frontier."""
        standing = self._standing
        return view == standing.promised if view else standing.current(standing.view)

    def on_log_read(self, event: LogRead) -> None:
        """The log was read."""
        reading = next((one for one in self._reading.values() if one.token == event.token), None)
        if reading is None:
            return
        message = reading.message
        del self._reading[reading.to, message.last < limits.POSITION_MAX]
        if self._serves(message.view):
            source = 0 if message.view else self._standing.view
            stop = event.stop if event.frames else 0
            fetched = Fetched(view=message.view, first=message.first, frames=event.frames, source=source, stop=stop)
            self._outbox.send(reading.to, fetched)
