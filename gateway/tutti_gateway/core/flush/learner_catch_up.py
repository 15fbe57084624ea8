"""Catch-up of a learner: a gateway in no view copies decided frames, so that a view can add it without waiting (flush, F15).

A learner copies frames only from a view above its accepted view. The learner moves its frontier only over durable frames, and never
stops it between a batch and its ABORT. The catch-up does not change the learner's accepted view.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.install_snapshot import SnapshotInstall
from tutti_gateway.core.flush.log_adoption import LogAdoption
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.messages import Fetch, Fetched, FetchedSnapshot
from tutti_gateway.core.view.peers import Peers


class Learner:
    """Copies decided frames from the nearest member of a view, in chunks.

    Attributes:
        ready: True if this gateway has recently held all frames that its source reported as decided.
    """

    def __init__(
        self, context: Context, peers: Peers, adoption: LogAdoption, snapshot: SnapshotInstall, decide: Callable[[int], None]
    ) -> None:
        self._snapshot = snapshot
        self._view_state = context.view_state
        self._window = context.window
        self._peers = peers
        self._adoption = adoption
        self._decide = decide
        self._source = 0
        self._next = 0
        self._silent = 0
        self._unable: set[int] = set()  # sources that did not send the next frames
        self._stop = 0  # last copied position to which the source allows the frontier to move
        self._ready = 0

    @property
    def ready(self) -> bool:
        """True if this gateway has recently held all frames that its source reported as decided."""
        return self._ready > 0

    def stop(self) -> None:
        """End the catch-up, because this gateway is in a view or will soon join one."""
        self._source = self._ready = 0
        self._snapshot.stop()

    def beat(self) -> None:
        """Run one heartbeat of a gateway in no view: choose a source, or repeat a request."""
        self._ready = max(self._ready - 1, 0)
        if self._snapshot.replacing:
            return  # nothing else may change the log until the disk has replaced it by a snapshot
        patience = limits.RESEND_HEARTBEATS + 2 * self._peers.round_beats()
        if self._source and self._silent < patience and self._peers.fresh(self._source):
            self._silent += 1
            if self._silent > 1:
                self._snapshot.request_next()  # one chunk of many may be lost
            return
        if self._source:
            self._unable.add(self._source)
        self._source = 0
        self._snapshot.stop()
        self._choose_source()

    def _choose_source(self) -> None:
        """Choose the nearest member of an active view as the source, and request the next frames."""
        view_state = self._view_state
        sources = [
            (self._peers.distance_us(peer.number), peer.number)
            for peer in self._peers
            if peer.beat is not None
            and self._peers.fresh(peer.number)
            # A gateway that receives no heartbeats of a coordinator may be in a view that has ended.
            and not peer.beat.misses
            # A view up to the accepted view may have ended, and a later view may have replaced its undecided frames (flush, F15).
            and peer.beat.view > view_state.accepted
            and peer.beat.frontier >= self._window.frontier
        ]
        # A source that did not answer gets another request only after all other sources have failed.
        able = [source for source in sources if source[1] not in self._unable]
        if sources and not able:
            self._unable.clear()  # ask all sources again
        if able:
            self._source = min(able)[1]
            self._next = self._window.frontier + 1
            self._stop = 0
            self._request_next()

    def _request_next(self) -> None:
        self._silent = 0
        self._adoption.send_fetch(self._source, Fetch(0, self._next, limits.POSITION_MAX))

    def on_fetched(self, sender: int, message: Fetched) -> None:
        """Append decided frames and request the next ones. If the source has no later decided frame, this gateway is ready."""
        if sender != self._source or message.first != self._next or message.source <= self._view_state.accepted:
            return
        if self._snapshot.busy:
            return
        # An empty answer with stop 0 means that the source cannot read the frames, so another source is needed.
        if not message.frames and not message.stop:
            self._unable.add(sender)
            self._source = 0
            return
        # An empty answer with another stop means that this gateway already holds all decided frames of the source.
        if not message.frames:
            self._unable.clear()
            self._ready = limits.READY_HEARTBEATS
            self._source = 0  # the next heartbeat chooses a source again
            return
        last = message.frames[-1].position
        following = self._adoption.append(sender, message, self._next, last)
        if following == self._next or not self._view_state.active:
            return  # if no valid frame arrives, a later heartbeat chooses another source
        self._unable.clear()
        self._next = following
        self._stop = max(self._stop, min(message.stop, self._next - 1))
        source = self._peers.get(sender)
        if source is not None and source.beat is not None and self._stop >= source.beat.frontier:
            self._ready = limits.READY_HEARTBEATS
        self._request_next()
        self.durable()

    def on_snapshot(self, sender: int, message: FetchedSnapshot) -> None:
        """Handle a chunk of a snapshot, which the source sends if it has trimmed the requested frames."""
        if sender != self._source or message.source <= self._view_state.accepted:
            return
        if not self._snapshot.busy and message.position < self._next:
            return
        self._silent = 0
        if not self._snapshot.on_chunk(sender, message, limits.POSITION_MAX):
            self._unable.add(sender)
            self._source = 0

    def known(self, position: int) -> None:
        """Continue after `position`, because this log holds all frames up to there, and they are decided."""
        self._continue(position + 1, self._window.reach(position))
        self.durable()

    def log_replaced(self) -> None:
        """Continue with the frames after the snapshot that replaced the log."""
        self._continue(self._window.end + 1, self._window.frontier)

    def _continue(self, following: int, stop: int) -> None:
        self._unable.clear()
        self._next, self._stop = following, stop
        if self._source:
            self._request_next()

    def durable(self) -> None:
        """Move the frontier to the position that the source allows, if all frames up to that position are durable."""
        window = self._window
        stop = min(self._stop, window.end)
        # The frontier must not stop between a batch and its ABORT, because readers would see a void batch (atomic, A13).
        if self._source and window.frontier < stop <= window.mark(CommitStage.DURABLE) and window.reach(stop) == stop:
            self._decide(stop)
