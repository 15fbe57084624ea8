"""Making this member's log that of another one: frames are fetched, compared, and only where they differ the own log is cut.

Candidates, members and learners all do it here (design, 4.2, 5.3, 5.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame, chained
from tutti.errors import invariant
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.install_snapshot import Relearning
from tutti_gateway.core.flush.log_compare import Common, Extent, common
from tutti_gateway.core.frame_runs import whole
from tutti_gateway.core.protocol.messages import Damage, Fetch, Fetched, FetchedSnapshot
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.window import Stage


class Log(Protocol):
    """What is done to the log of this member."""

    def cut(self, to: int) -> None:
        """Give up what stands behind a position, in every layer and on the disk."""

    def learned(self, up_to: int) -> None:
        """Everything up to the position is decided elsewhere and durable here."""

    def carry(self, frames: Sequence[Frame]) -> tuple[int, str]:
        """Take frames that continue it; they are written. How many follow, and why the next one does not."""

    def contradicted(self, reason: str) -> None:
        """What others hold cannot follow what this member holds: it takes no part any more."""


class Wanted:
    """What the log is to become: that of `source`, up to position `end`, whose chain value is `chain` (None: not known before).

    Attributes:
        next: the position that is wanted next. asked, of: what was asked for last, and of whom.
        silent: heartbeats since an answer.
        unable: who could not give what is wanted next.
        stop: up to where a source said that what it gave is decided.
    """

    __slots__ = ("asked", "chain", "end", "next", "of", "silent", "source", "stop", "unable", "view")

    def __init__(self, view: int, source: int, end: int, chain: int | None, next_: int) -> None:
        self.view = view
        self.source = source
        self.end = end
        self.chain = chain
        self.next = next_
        self.asked = self.of = self.silent = self.stop = 0
        self.unable: set[int] = set()


class Adopting:
    """Adopts one log at a time.

    Attributes:
        damage: the end of the own log that cannot be read, until it is replaced.
    """

    def __init__(self, context: Context, log: Log, peers: Peers, relearning: Relearning) -> None:
        self._relearning = relearning
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._log = log
        self._peers = peers
        self.damage: Damage | None = None
        self._wanted: Wanted | None = None
        self._refused = (0, 0)  # position and chain value of a frame that continues the log and cannot follow it
        self._asked_since = False

    def extent(self) -> Extent:
        """What this member can say of its own log, but for a damaged end."""
        window = self._window
        return Extent(window.base, tuple(window.runs), window.end)

    def begin(self, view: int, source: int, theirs: Extent, chain: int | None) -> None:
        """Begin to adopt a log; `done` says when it is there."""
        window = self._window
        equal: Common = common(self.extent(), theirs, window.frontier)
        if chain is not None and window.frontier <= theirs.end <= window.end and window.chain_at(theirs.end) == chain:
            equal = Common(theirs.end, True)  # one value names a whole log, wherever the tables reach
        if equal.known and self.damage is None and window.end > equal.position:
            self._log.cut(equal.position)
        self._wanted = Wanted(view, source, theirs.end, chain, equal.position + 1)
        self.ask()

    def stop(self) -> None:
        """Give it up."""
        self._wanted = None
        self._relearning.stop()

    def ask(self) -> None:
        """Ask for what comes next, unless that is on its way, or there is no room before more of what came is decided here."""
        wanted = self._wanted
        if wanted is None or wanted.next > wanted.end or wanted.asked == wanted.next or self._relearning.busy:
            return
        if wanted.source != self._standing.me and not self._has_room(0):
            return
        if wanted.source == self._standing.me:
            invariant(self._window.end >= wanted.end, "this member's own log is short of what it said of it")
            wanted.next = wanted.end + 1
            return
        wanted.asked, wanted.silent = wanted.next, 0
        self._put(wanted)

    def _put(self, wanted: Wanted) -> None:
        """Put the question. What the source cannot read is asked of others, but only what is decided there: that is one log."""
        last = wanted.end
        wanted.of = wanted.source
        if wanted.source in wanted.unable:
            others = [
                (peer.number, peer.beat.frontier)
                for peer in self._peers
                if peer.beat is not None and self._peers.fresh(peer.number)
            ]
            able = [(number, frontier) for number, frontier in others if frontier >= wanted.next and number not in wanted.unable]
            if not able:
                wanted.silent = limits.BOOT_HEARTBEATS_MAX
                return
            wanted.of, frontier = min(able)
            last = min(last, frontier)
        self.send_fetch(wanted.of, Fetch(wanted.view, wanted.next, last))

    def on_fetched(self, sender: int, message: Fetched) -> bool:
        """Frames came; whether they were what was asked for."""
        wanted = self._wanted
        if wanted is None or sender != wanted.of or message.view != wanted.view or message.first != wanted.next:
            return False
        if self._relearning.busy:
            return False
        before = wanted.next
        wanted.next = self.graft(sender, message, wanted.next, wanted.end)
        if not self._standing.taking_part:
            return False
        wanted.stop = max(wanted.stop, min(message.stop, wanted.next - 1))
        if wanted.next > before:
            wanted.asked = 0
            wanted.unable.clear()
            self.ask()
        else:
            wanted.unable.add(sender)
            self._put(wanted)
        return True

    def on_snapshot(self, sender: int, message: FetchedSnapshot) -> bool:
        """A piece of the state came with which the log begins where frames were asked for; whether that was so."""
        wanted, damage = self._wanted, self.damage
        if wanted is None or sender != wanted.of or message.view != wanted.view:
            return False
        if not self._relearning.busy and message.position < wanted.next:
            return False
        wanted.silent = 0
        # A damaged end that reaches further counted as present: the mark that names it must not be lost before it is there again.
        reaches = damage is not None and damage.last > message.position
        if reaches or not self._relearning.on_piece(sender, message, wanted.end):
            self._relearning.stop()
            wanted.unable.add(sender)
            self._put(wanted)
        return True

    def known(self, position: int) -> None:
        """The log is the wanted one up to the position, which is decided."""
        wanted = self._wanted
        if wanted is not None:
            wanted.next, wanted.asked = max(wanted.next, position + 1), 0
            wanted.stop = max(wanted.stop, self._window.reach(position))
            wanted.unable.clear()
            self.durable()
            self.ask()

    def relearned(self) -> None:
        """The log was replaced by the state, and goes on behind it."""
        self.damage = None
        wanted = self._wanted
        if wanted is not None:
            wanted.next, wanted.asked = self._window.end + 1, 0
            wanted.unable.clear()
            self.ask()

    def durable(self) -> None:
        """More is durable: what its source had decided is decided here too, or a log that is far behind would never find room."""
        wanted, window = self._wanted, self._window
        if wanted is None or not window.frontier < wanted.stop <= window.mark(Stage.DURABLE):
            return
        if window.reach(wanted.stop) == wanted.stop:
            self._log.learned(wanted.stop)
            self.ask()

    def graft(self, sender: int, message: Fetched, first: int, last: int) -> int:
        """Take frames from `first` on as far as they continue the log and there is room; the position that is wanted next.

        Where the log has the very same frame, nothing happens; from where it has another one, it is cut.
        """
        window = self._window
        fresh: list[Frame] = []
        end, chain = window.end, window.chain
        for frame in message.frames:
            if frame.position != first or first > last:
                break
            if first <= window.end and not fresh:
                if first <= window.frontier or window.at(first).header_crc == frame.header_crc:
                    first += 1
                    continue
                if not whole(frame) or not chained(frame, window.chain_at(first - 1)):
                    break  # no reason to cut anything
                # A damaged end is written over, never cut first: until it is whole again its mark must say that it was there.
                self._log.cut(first - 1)
                self.damage = None  # it lies behind what was not decided
                end, chain = window.end, window.chain
            if first != end + 1 or not whole(frame) or not self._has_room(len(fresh)):
                break
            if not chained(frame, chain):
                if end == window.frontier:  # else its undecided end is of another view
                    self._contradicted(sender, message, frame, "it does not continue what is decided here")
                break
            fresh.append(frame)
            end, chain, first = first, frame.header_crc, first + 1
        if fresh:
            taken, wrong = self._log.carry(fresh)
            if wrong:
                first = fresh[taken].position
                self._contradicted(sender, message, fresh[taken], wrong)
        if self.damage is not None and window.end >= self.damage.last:
            self.replaced(window.end)
        return first

    def _has_room(self, more: int) -> bool:
        window = self._window
        frames_max = common_limits.UNDECIDED_FRAMES_MAX + limits.WINDOW_MORE_FRAMES
        return len(window.frames) + more < frames_max and window.bytes <= limits.UNDECIDED_BYTES_MOST + limits.HELD_MORE_BYTES_MAX

    def _contradicted(self, sender: int, message: Fetched, frame: Frame, wrong: str) -> None:
        """A frame continues the log by its chain and cannot follow it.

        One message, or copies of it, prove nothing, and are dropped. The same frame in answer to another question proves that
        some member took what nobody may take. This one cannot go on: it halts, so that the others are not held up.
        """
        self._outbox.drop(message, sender, wrong)
        if self._refused == (frame.position, frame.header_crc) and self._asked_since:
            self._log.contradicted(f"{self._window.state.gateway_text(sender)} holds what cannot follow this log: {wrong}")
        self._refused, self._asked_since = (frame.position, frame.header_crc), False

    def send_fetch(self, to: int, fetch: Fetch) -> None:
        """Ask for frames."""
        self._asked_since = True
        self._outbox.send(to, fetch)

    def done(self) -> bool | None:
        """True when the log is the wanted one (it still has to become durable), False when it turned out not to be, None until
        then.
        """
        wanted, window = self._wanted, self._window
        if wanted is None or wanted.next <= wanted.end:
            return None
        self._wanted = None
        if self.damage is not None or window.end > wanted.end:
            self.replaced(wanted.end)
        return window.end == wanted.end and wanted.chain in (None, window.chain)

    def replaced(self, end: int) -> None:
        """The damaged end is written over: the disk forgets what stood there."""
        self._log.cut(end)
        if self.damage is not None:
            self.damage = None
            self._outbox.persist(cut=end)

    @property
    def silent(self) -> int:
        """Heartbeats in a row without an answer."""
        return self._wanted.silent if self._wanted is not None else 0

    def beat(self) -> None:
        """One heartbeat passed: the question is put again now and then."""
        wanted = self._wanted
        if wanted is not None and not self._relearning.replacing:
            wanted.silent += 1
            if wanted.asked and wanted.silent % limits.RESEND_HEARTBEATS == 0:
                if self._relearning.busy:
                    self._relearning.ask()
                else:
                    self._put(wanted)
