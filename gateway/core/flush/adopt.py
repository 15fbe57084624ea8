"""Making this member's log that of another one: frames are fetched, compared, and only where they differ the own log is cut.

Candidates, members and learners all do it here (design, 4.2, 5.3, 5.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.core import limits
from gateway.core.context import Context
from gateway.core.flush.logs import Common, Extent, common
from gateway.core.messages import Damage, Fetch, Fetched
from gateway.core.runs import whole
from gateway.data.frame import Frame, chained
from gateway.errors import invariant


class Log(Protocol):
    """What is done to the log of this member."""

    def cut(self, to: int) -> None:
        """Give up what stands behind a position, in every layer and on the disk."""

    def carry(self, frames: Sequence[Frame]) -> None:
        """Take frames that continue it; they are written."""


class Wanted:
    """What the log is to become: that of `source`, up to position `end`, whose chain value is `chain` (None: not known before)."""

    __slots__ = ("asked", "chain", "end", "next", "silent", "source", "view")

    def __init__(self, view: int, source: int, end: int, chain: int | None, next_: int) -> None:
        self.view = view
        self.source = source
        self.end = end
        self.chain = chain
        self.next = next_  # position that is wanted next
        self.asked = 0  # the position asked for last
        self.silent = 0  # heartbeats since an answer


class Adopting:
    """Adopts one log at a time.

    Attributes:
        damage: the end of the own log that cannot be read, until it is replaced.
    """

    def __init__(self, context: Context, log: Log) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._log = log
        self.damage: Damage | None = None
        self._wanted: Wanted | None = None

    def extent(self) -> Extent:
        """What this member can say of its own log, but for a damaged end."""
        window = self._window
        return Extent(window.base, tuple(window.runs), window.end)

    def begin(self, view: int, source: int, theirs: Extent, chain: int | None) -> None:
        """Begin to adopt a log; `done` says when it is there."""
        window = self._window
        equal: Common = common(self.extent(), theirs, window.frontier)
        if equal.known and self.damage is None and window.end > equal.position:
            self._log.cut(equal.position)
        self._wanted = Wanted(view, source, theirs.end, chain, equal.position + 1)
        self.ask()

    def stop(self) -> None:
        """Give it up."""
        self._wanted = None

    def ask(self) -> None:
        """Ask for what comes next, unless that is on its way."""
        wanted = self._wanted
        if wanted is not None and wanted.next <= wanted.end and wanted.asked != wanted.next:
            if wanted.source == self._standing.me:
                invariant(self._window.end >= wanted.end, "this member's own log is short of what it said of it")
                wanted.next = wanted.end + 1
                return
            wanted.asked, wanted.silent = wanted.next, 0
            self._outbox.send(wanted.source, Fetch(wanted.view, wanted.next, wanted.end))

    def on_fetched(self, sender: int, message: Fetched) -> bool:
        """Frames came; whether they were what was asked for."""
        wanted = self._wanted
        if wanted is None or sender != wanted.source or message.view != wanted.view or message.first != wanted.next:
            return False
        if message.frames:
            wanted.asked = 0
            wanted.next = self.graft(message.frames, wanted.next, wanted.end)
            self.ask()
        else:
            wanted.silent = limits.BOOT_HEARTBEATS_MAX  # it cannot read them
        return True

    def graft(self, frames: Sequence[Frame], first: int, last: int) -> int:
        """Take frames from `first` on as far as they continue the log; the position that is wanted next.

        Where the log has the very same frame, nothing happens; from where it has another one, it is cut.
        """
        window = self._window
        fresh: list[Frame] = []
        end, chain = window.end, window.chain
        for frame in frames:
            if frame.position != first or first > last:
                break
            if first <= window.end and not fresh:
                if first <= window.frontier or window.at(first).header_crc == frame.header_crc:
                    first += 1
                    continue
                # A damaged end is written over, never cut first: until it is whole again its mark must say that it was there.
                self._log.cut(first - 1)
                end, chain = window.end, window.chain
            if first != end + 1 or not whole(frame) or not chained(frame, chain):
                break
            fresh.append(frame)
            end, chain, first = first, frame.header_crc, first + 1
        if fresh:
            self._log.carry(fresh)
        return first

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
        if wanted is not None:
            wanted.silent += 1
            if wanted.asked and wanted.silent % limits.RESEND_HEARTBEATS == 0:
                self._outbox.send(wanted.source, Fetch(wanted.view, wanted.next, wanted.end))
