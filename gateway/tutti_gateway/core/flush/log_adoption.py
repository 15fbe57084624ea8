"""Adoption of another member's log: fetch its frames, compare them, and truncate this member's log only where the two differ.

Candidates, members and learners use this module (protocol/flush, F7, F9 and F15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame, chained
from tutti.errors import invariant
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.install_snapshot import SnapshotInstall
from tutti_gateway.core.flush.log_compare import Common, Extent, common
from tutti_gateway.core.frame_runs import payload_intact
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.messages import Damage, Fetch, Fetched, FetchedSnapshot
from tutti_gateway.core.view.peers import Peers


class Log(Protocol):
    """Operations that change the log of this member."""

    def truncate(self, to: int) -> None:
        """Truncate the log after position `to`, in every layer and on the disk."""

    def advance_frontier(self, up_to: int) -> None:
        """Advance the frontier to `up_to`, over durable frames that a view without this member has decided."""

    def append_adopted(self, frames: Sequence[Frame]) -> tuple[int, str]:
        """Append and write frames that continue the log.

        Return the number of appended frames, and the reason why the next frame was rejected.
        """

    def halt_inconsistent(self, reason: str) -> None:
        """Halt this member, because its log contradicts frames of other members."""


class WantedLog:
    """The log to adopt: the log of gateway `source` up to position `end`. `chain` is the chain value at `end`, if known.

    Attributes:
        next: position of the next frame to fetch.
        requested: first position in the last request, 0 if the request was answered.
        peer: number of the gateway that received the last request.
        silent: number of heartbeats since the last answer.
        unable: gateways that could not send the next frames.
        stop: position up to which a source has reported the fetched frames as decided.
    """

    __slots__ = ("chain", "end", "next", "peer", "requested", "silent", "source", "stop", "unable", "view")

    def __init__(self, view: int, source: int, end: int, chain: int | None, next_: int) -> None:
        self.view = view
        self.source = source
        self.end = end
        self.chain = chain
        self.next = next_
        self.requested = self.peer = self.silent = self.stop = 0
        self.unable: set[int] = set()


class LogAdoption:
    """Adopts one log at a time.

    Attributes:
        damage: corrupt end of this member's log; None if the log is intact, or after the corrupt frames were overwritten.
    """

    def __init__(self, context: Context, log: Log, peers: Peers, snapshot: SnapshotInstall) -> None:
        self._snapshot = snapshot
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._log = log
        self._peers = peers
        self.damage: Damage | None = None
        self._wanted: WantedLog | None = None
        self._refused = (0, 0)  # position and checksum of the last frame that contradicted this member's decided log
        self._requested_since = False

    def extent(self) -> Extent:
        """Return the extent of the readable part of this member's log."""
        window = self._window
        return Extent(window.base, tuple(window.runs), window.end)

    def begin(self, view: int, source: int, theirs: Extent, chain: int | None) -> None:
        """Begin to adopt the log of gateway `source`, which has the extent `theirs` and ends with chain value `chain`, if known."""
        window = self._window
        equal: Common = common(self.extent(), theirs, window.frontier)
        if chain is not None and window.frontier <= theirs.end <= window.end and window.chain_at(theirs.end) == chain:
            equal = Common(theirs.end, True)  # equal chain values prove that all earlier frames are equal too
        # If the tables do not show the first difference, no frame is truncated until fetched frames show it (flush, F9).
        if equal.known and self.damage is None and window.end > equal.position:
            self._log.truncate(equal.position)
        self._wanted = WantedLog(view, source, theirs.end, chain, equal.position + 1)
        self.request_next()

    def stop(self) -> None:
        """Stop the adoption, and drop the chunks of an incomplete snapshot."""
        self._wanted = None
        self._snapshot.stop()

    def request_next(self) -> None:
        """Request the next frames, unless a request is open or the window is full."""
        wanted = self._wanted
        if wanted is None or wanted.next > wanted.end or wanted.requested == wanted.next or self._snapshot.busy:
            return
        # Undecided frames stay in memory, so with a full window, further frames would exceed the memory budget.
        if wanted.source != self._view_state.me and not self._has_space(0):
            return
        if wanted.source == self._view_state.me:
            invariant(self._window.end >= wanted.end, "this member's log is shorter than it reported")
            wanted.next = wanted.end + 1
            return
        wanted.requested, wanted.silent = wanted.next, 0
        self._send_request(wanted)

    def _send_request(self, wanted: WantedLog) -> None:
        """Request the next frames from the source. If it cannot read them, request the decided ones from another gateway."""
        last = wanted.end
        wanted.peer = wanted.source
        if wanted.source in wanted.unable:
            others = [
                (peer.number, peer.beat.frontier)
                for peer in self._peers
                if peer.beat is not None and self._peers.fresh(peer.number)
            ]
            # Another gateway may hold different undecided frames, so only its decided frames can replace those of the source.
            able = [(number, frontier) for number, frontier in others if frontier >= wanted.next and number not in wanted.unable]
            if not able:  # without any source, the silence is set to its maximum, so that the next heartbeat abandons the view
                wanted.silent = limits.BOOT_HEARTBEATS_MAX
                return
            # Decided frames are equal everywhere, so any gateway that has them can be the source.
            wanted.peer, frontier = min(able)
            last = min(last, frontier)
        self.send_fetch(wanted.peer, Fetch(wanted.view, wanted.next, last))

    def on_fetched(self, sender: int, message: Fetched) -> bool:
        """Append fetched frames, and request the next ones. Return False if the frames do not answer the current request."""
        wanted = self._wanted
        # Only frames from position `next` on are needed, so a late answer to an earlier request is ignored.
        if wanted is None or sender != wanted.peer or message.view != wanted.view or message.first != wanted.next:
            return False
        if self._snapshot.busy:
            return False
        before = wanted.next
        wanted.next = self.append(sender, message, wanted.next, wanted.end)
        # `append` halts this member if a fetched frame contradicts the decided log.
        if not self._view_state.active:
            return False
        wanted.stop = max(wanted.stop, min(message.stop, wanted.next - 1))
        if wanted.next > before:
            wanted.requested = 0
            wanted.unable.clear()
            self.request_next()
        else:
            wanted.unable.add(sender)
            self._send_request(wanted)
        return True

    def on_snapshot(self, sender: int, message: FetchedSnapshot) -> bool:
        """Handle a chunk of a snapshot, which a source sends instead of frames that it has trimmed.

        Return False if the chunk does not answer the current request.
        """
        wanted, damage = self._wanted, self.damage
        if wanted is None or sender != wanted.peer or message.view != wanted.view:
            return False
        # A snapshot that ends before the next wanted frame is a late answer to an earlier request.
        if not self._snapshot.busy and message.position < wanted.next:
            return False
        wanted.silent = 0
        # STATE has reported the corrupt end. A snapshot that does not cover all of it must not delete its vote mark.
        reaches = damage is not None and damage.last > message.position
        if reaches or not self._snapshot.on_chunk(sender, message, wanted.end):
            self._snapshot.stop()
            wanted.unable.add(sender)
            self._send_request(wanted)
        return True

    def known(self, position: int) -> None:
        """Continue after `position`, because this log equals the wanted log up to there, and is decided up to there."""
        wanted = self._wanted
        if wanted is not None:
            wanted.next, wanted.requested = max(wanted.next, position + 1), 0
            wanted.stop = max(wanted.stop, self._window.reach(position))
            wanted.unable.clear()
            self.durable()
            self.request_next()

    def log_replaced(self) -> None:
        """Fetch the frames that follow the snapshot which has replaced the log."""
        self.damage = None
        wanted = self._wanted
        if wanted is not None:
            wanted.next, wanted.requested = self._window.end + 1, 0
            wanted.unable.clear()
            self.request_next()

    def durable(self) -> None:
        """Advance the frontier over durable frames that the source has decided, so that they do not fill the window."""
        wanted, window = self._wanted, self._window
        if wanted is None or not window.frontier < wanted.stop <= window.mark(CommitStage.DURABLE):
            return
        # The ABORT of the last batch might not have arrived yet, and the frontier must not stop before that ABORT.
        if window.reach(wanted.stop) == wanted.stop:
            self._log.advance_frontier(wanted.stop)
            self.request_next()

    def append(self, sender: int, message: Fetched, first: int, last: int) -> int:
        """Append the frames from position `first` on that continue the log and fit into the window. Return the next position.

        Frames that the log already holds are skipped. At the first frame that differs from this log, the log is truncated.
        """
        window = self._window
        following: list[Frame] = []
        end, chain = window.end, window.chain
        for frame in message.frames:
            if frame.position != first or first > last:
                break
            if first <= window.end and not following:
                if first <= window.frontier or window.at(first).header_crc == frame.header_crc:
                    first += 1
                    continue
                if not payload_intact(frame) or not chained(frame, window.chain_at(first - 1)):
                    break  # an invalid frame must not cause a truncation
                # If a frame before the corrupt end differs, the corrupt frames were undecided, and their vote mark is not needed.
                self._log.truncate(first - 1)
                self.damage = None
                end, chain = window.end, window.chain
            if first != end + 1 or not payload_intact(frame) or not self._has_space(len(following)):
                break
            if not chained(frame, chain):
                # After an undecided frame, a broken chain is no contradiction, because the undecided frame may be wrong.
                if end == window.frontier:
                    self._on_contradiction(sender, message, frame, "it does not continue the decided log here")
                break
            following.append(frame)
            end, chain, first = first, frame.header_crc, first + 1
        # All frames are appended in one call, so that the disk writes them together.
        if following:
            appended, wrong = self._log.append_adopted(following)
            if wrong:
                first = following[appended].position
                self._on_contradiction(sender, message, following[appended], wrong)
        if self.damage is not None and window.end >= self.damage.last:
            self.end_overwritten(window.end)
        return first

    def _has_space(self, more: int) -> bool:
        window = self._window
        # The coordinator counts undecided frames from its own, higher frontier, so a fetched log may exceed the limit here.
        frames_max = common_limits.UNDECIDED_FRAMES_MAX + limits.WINDOW_MORE_FRAMES
        return (
            len(window.frames) + more < frames_max
            and window.bytes <= limits.UNDECIDED_BYTES_CONFIG_MAX + limits.BUFFERED_MORE_BYTES_MAX
        )

    def _on_contradiction(self, sender: int, message: Fetched, frame: Frame, wrong: str) -> None:
        """Handle a frame of another member that is invalid or contradicts this member's decided log.

        The first message with such a frame may be corrupt, so it is only dropped. If another request brings the same frame, the
        source really holds it, and one of the two logs is wrong. This member then halts, so that the other members can continue.
        """
        self._outbox.drop(message, sender, wrong)
        # A duplicate of the first answer proves nothing, so only an answer to another request counts.
        if self._refused == (frame.position, frame.header_crc) and self._requested_since:
            self._log.halt_inconsistent(
                f"{self._window.state.gateway_text(sender)} holds a frame that cannot follow this log: {wrong}"
            )
        self._refused, self._requested_since = (frame.position, frame.header_crc), False

    def send_fetch(self, to: int, fetch: Fetch) -> None:
        """Send a Fetch, and record that it was sent after the last contradiction."""
        self._requested_since = True
        self._outbox.send(to, fetch)

    def done(self) -> bool | None:
        """Return True if the log equals the wanted log, durably or not; False if it cannot become equal; None if still unknown."""
        wanted, window = self._wanted, self._window
        if wanted is None or wanted.next <= wanted.end:
            return None
        self._wanted = None
        # `begin` does not truncate if the tables hide the first difference, so this log may be longer than the wanted log.
        if self.damage is not None or window.end > wanted.end:
            self.end_overwritten(wanted.end)
        # If two logs with equal ends differ in the chain value there, an earlier frame differs.
        return window.end == wanted.end and wanted.chain in (None, window.chain)

    def end_overwritten(self, end: int) -> None:
        """Truncate the log after `end`, and let the disk delete its record of the corrupt range, which is overwritten now."""
        self._log.truncate(end)
        if self.damage is not None:
            self.damage = None
            self._outbox.persist(truncate_after=end)

    @property
    def silent(self) -> int:
        """Number of heartbeats since the last answer to a request; 0 if no log is being adopted."""
        return self._wanted.silent if self._wanted is not None else 0

    def beat(self) -> None:
        """Count one heartbeat without an answer, and repeat the request at fixed intervals."""
        wanted = self._wanted
        if wanted is not None and not self._snapshot.replacing:
            wanted.silent += 1
            if wanted.requested and wanted.silent % limits.RESEND_HEARTBEATS == 0:
                if self._snapshot.busy:
                    self._snapshot.request_next()
                else:
                    self._send_request(wanted)
