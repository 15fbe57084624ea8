"""Serves this member's log to members of a view change and to learners (protocol/flush, F7 and F15).

The source sends frames from its log. If the requested frames are trimmed, the source sends the snapshot with which its log begins,
in chunks.
"""

from __future__ import annotations

from typing import NamedTuple

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import LogRead, SnapshotRead
from tutti_gateway.core.protocol.messages import Fetch, Fetched, FetchedSnapshot, FetchSnapshot, Reject


class _Reading(NamedTuple):
    token: int
    to: int
    message: Fetch | FetchSnapshot


class LogServer:
    """Answers Fetch and FetchSnapshot.

    For each requesting gateway, at most two reads are in progress: one for a request with an end, and one for a request without.
    """

    def __init__(self, context: Context) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._reading: dict[tuple[int, bool], _Reading] = {}  # (requesting gateway, True if its request has an end) -> read

    def on_fetch(self, sender: int, message: Fetch) -> None:
        """Send the requested frames from memory, or read them from the disk."""
        window, view_state = self._window, self._view_state
        # After this member has promised a higher view, its log may change and must not be copied for a lower view (flush, F7).
        if not self._serves(message.view):
            if message.view:
                self._outbox.send(sender, Reject(message.view, view_state.promised, "a higher view is promised"))
            return
        last = min(message.last, window.end if message.view else window.frontier)
        if message.first > last:
            if not message.view:
                self._outbox.send(
                    sender, Fetched(view=0, first=message.first, frames=(), source=view_state.view, stop=window.frontier)
                )
        # Undecided frames are still in memory, so they need no read.
        elif message.first > window.frontier:
            frames: list[Frame] = []
            size = 0
            for position in range(message.first, last + 1):
                frame = window.at(position)
                # The requesting gateway sends another request for frames beyond the limit of one answer.
                size += frame.size
                if frames and (size > limits.FETCH_BYTES or len(frames) == common_limits.FRAMES_A_MESSAGE_MAX):
                    break
                frames.append(frame)
            self._outbox.send(sender, Fetched(view=message.view, first=message.first, frames=tuple(frames)))
        else:
            # A later request of the same gateway replaces this entry, so the table has at most two entries for each gateway.
            token = self._outbox.read_log(message.first, min(last, window.frontier))
            self._reading[sender, message.last < limits.POSITION_MAX] = _Reading(token, sender, message)

    def _serves(self, view: int) -> bool:
        """True if this member serves requests with `view`: its promised view or, while it is in a view, 0 (learner or repair)."""
        view_state = self._view_state
        return view == view_state.promised if view else view_state.current(view_state.view)

    def on_log_read(self, event: LogRead) -> None:
        """Send the frames that the disk read, or read the snapshot if the frames are trimmed."""
        reading = self._read(event.token)
        if reading is None or not isinstance(reading.message, Fetch):
            return
        message = reading.message
        adopts = message.view or message.last == limits.POSITION_MAX  # otherwise the request is for a repair, which needs frames
        if not event.frames and adopts and message.first < self._window.state.start:
            self._read_snapshot(reading.to, message, 0, 0)
        elif self._serves(message.view):
            source = 0 if message.view else self._view_state.view
            stop = event.stop if event.frames else 0
            fetched = Fetched(view=message.view, first=message.first, frames=event.frames, source=source, stop=stop)
            self._outbox.send(reading.to, fetched)

    def _read(self, token: int) -> _Reading | None:
        """Remove the read with this token and return it, None if a later request of the same gateway has replaced the read."""
        found = next((one for one in self._reading.items() if one[1].token == token), None)
        if found is None:
            return None
        del self._reading[found[0]]
        return found[1]

    def on_fetch_snapshot(self, sender: int, message: FetchSnapshot) -> None:
        """Serve the next chunk of a snapshot."""
        if self._serves(message.view):
            self._read_snapshot(sender, message, message.position, message.at)

    def _read_snapshot(self, to: int, message: Fetch | FetchSnapshot, position: int, at: int) -> None:
        self._reading[to, False] = _Reading(self._outbox.read_snapshot(position, at), to, message)

    def on_snapshot_read(self, event: SnapshotRead) -> None:
        """Send a chunk of the snapshot that the disk read."""
        reading = self._read(event.token)
        if reading is None or not self._serves(reading.message.view):
            return
        message = reading.message
        source = 0 if message.view else self._view_state.view
        # If the disk has no snapshot, an empty answer makes the requesting gateway ask another source.
        if not event.size and isinstance(message, Fetch):
            self._outbox.send(reading.to, Fetched(view=message.view, first=message.first, frames=(), source=source))
            return
        # A Fetch does not contain the position of the snapshot, so the first chunk gets it from the disk.
        asked = message if isinstance(message, FetchSnapshot) else FetchSnapshot(message.view, event.position, 0)
        self._outbox.send(
            reading.to,
            FetchedSnapshot(
                view=message.view,
                position=asked.position,
                size=event.size,
                at=asked.at if event.size else 0,
                data=event.data,
                source=source,
            ),
        )
