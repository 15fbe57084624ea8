"""The member's half of *order*: frames come in any order and are taken in theirs (hold-back queue; Sambhu 1999, "Members")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tutti import limits as common_limits
from tutti.data.frames.frame import HEADER_SIZE, Frame, Kind, chained, decode_header
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import whole
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.received_table import Received
from tutti_gateway.core.protocol.messages import Echo, Order, Repair
from tutti_gateway.core.ranges import Range, RangeMap
from tutti_gateway.core.window import weight


class Below(Protocol):
    """Where frames go that are in order."""

    def take(self, frames: Sequence[Frame]) -> None:
        """Take the next frames of the log."""


class Receiver:
    """Takes ORDER and echoes of the view's coordinator, and repairs of every member.

    Attributes:
        discarded: frames that were thrown away: damaged, of another view, unchained, unlike an own copy, too many, or such that
            they do not follow from what is before them though the chain goes on. What cannot be taken stays missing.
        streamed: the highest position that the coordinator itself sent, or told of, in this view.
        highest: the highest position heard of in this view.
    """

    def __init__(self, context: Context, received: Received, forward: ForwardTable, below: Below) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._received = received
        self._forward = forward
        self._below = below
        self._held: dict[int, Frame] = {}
        self._held_bytes = 0
        self._held_bytes_max = context.config.undecided_bytes_max + limits.HELD_MORE_BYTES_MAX
        undecided_bytes = max(context.config.undecided_bytes_max, limits.UNDECIDED_BYTES_LEAST)
        self._window_bytes_max = undecided_bytes + limits.HELD_MORE_BYTES_MAX  # the most that a coordinator has undecided
        self._gaps: RangeMap[None] = RangeMap()  # between the window's end and `highest`, without what is held back
        self.discarded = 0
        self.streamed = self.highest = 0
        self._wrong = ""  # why the last frame that was next was not taken

    def installed(self) -> None:
        """What was held back belongs to another view."""
        self._held, self._held_bytes = {}, 0
        self._gaps.clear()
        self.streamed = self.highest = 0

    def on_order(self, sender: int, message: Order) -> None:
        """Placed frames, whole."""
        if self._counts(sender, message.view) and message.frames:
            self._take(sender, message)
            self._streams(message.frames[-1].position)

    def on_repair(self, sender: int, message: Repair) -> None:
        """Placed frames of this view from any member that has them. A frame above the view's installed end is of the view."""
        standing = self._standing
        if standing.current(message.view) and sender in standing.others and not standing.coordinating:
            self._take(sender, message)

    def heard(self, sender: int, end: int) -> None:
        """A member of this view says that its log goes up to `end`: what this one has not got of it was lost, or is late.

        A member whose word is further off than anything may be undecided is not believed.
        """
        standing = self._standing
        if not standing.coordinating and end <= self._window.end + limits.HELD_FRAMES_MAX:
            self._tell(end)
            if sender == standing.coordinator:
                self._streams(end)

    def _take(self, sender: int, message: Order | Repair) -> None:
        view = self._standing.view
        for frame in message.frames:
            if frame.view != view:
                self.discarded += 1
            elif whole(frame):
                self._hold(frame)
            else:
                self._missed(frame.position)
        self._drain()
        self._tell_wrong(sender, message)

    def on_echo(self, sender: int, message: Echo) -> None:
        """Headers of own frames; the bodies are in the forward-table."""
        if not self._counts(sender, message.view):
            return
        for at in range(0, len(message.headers), HEADER_SIZE):
            try:
                echoed = decode_header(message.headers, at)
            except FormatError:
                self.discarded += 1
                break
            own = self._forward.find(echoed)
            if echoed.view != message.view:
                self.discarded += 1
            elif own is None or own.body_crc != echoed.body_crc or own.body_length != echoed.body_length:
                # Another body was ordered under this sequence: it has to come from somebody who has it.
                self._missed(echoed.position)
            else:
                echoed.body, echoed.progress = own.body, own.progress
                self._hold(echoed)
            self._streams(echoed.position)
        self._drain()
        self._tell_wrong(sender, message)

    def _counts(self, sender: int, view: int) -> bool:
        standing = self._standing
        return standing.current(view) and sender == standing.coordinator and sender != standing.me

    def _hold(self, frame: Frame) -> None:
        position = frame.position
        if position <= self._window.end or position in self._held:
            return
        full = self._held_bytes > self._held_bytes_max
        # What is next is taken however much is held: it is what the rest waits for.
        if position > self._window.end + (1 if full else limits.HELD_FRAMES_MAX):
            self._missed(position)
            return
        if position <= self.highest:
            self._gaps.cut(position, position)
        else:
            self._tell(position - 1)
            self.highest = position
        self._held[position] = frame
        self._held_bytes += weight(frame)
        if full:
            self._drain()

    def _missed(self, position: int) -> None:
        """A frame that was heard of and cannot be kept: it comes again by repair."""
        self._tell(position)
        self.discarded += 1

    def _is_near(self, position: int) -> bool:
        """Whether the position can exist: no more is undecided than may be held back, and some of it may have come meanwhile."""
        return position <= self._window.end + 2 * limits.HELD_FRAMES_MAX

    def _streams(self, position: int) -> None:
        """The coordinator's stream has come to the position."""
        if position > self.streamed and self._is_near(position):
            self.streamed = position

    def _tell(self, end: int) -> None:
        """Positions up to `end` exist; those above what was heard of are not here."""
        known = max(self.highest, self._window.end)
        if end > known and self._is_near(end):
            self._gaps.put(known + 1, end, None)
            self.highest = end

    def decided(self) -> None:
        """The frontier moved: the window may take more of what is held back."""
        if self._held and self._standing.current(self._standing.view):
            self._drain()

    def _room(self) -> tuple[int, int]:
        """How many frames, and about how many bytes, the window takes before more of it is decided here.

        A coordinator keeps to such a bound by its own frontier. A member that gets frames and no CONFIRM lags behind that frontier.
        It takes nothing over the bound and votes for nothing of it, which holds its coordinator up until it hears what is decided.
        """
        return common_limits.UNDECIDED_FRAMES_MAX - len(self._window.frames), self._window_bytes_max - self._window.bytes

    def _drain(self) -> None:
        """Take what is next, and what is next then, as long as the window has room. A VIEW needs none: it decides the rest."""
        held, end, chain = self._held, self._window.end, self._window.chain
        room_frames, room_bytes = self._room()
        run: list[Frame] = []
        while held:
            frame = held.get(end + 1)
            if frame is None or ((room_bytes <= 0 or len(run) >= room_frames) and frame.kind != Kind.VIEW):
                break
            del held[end + 1]
            size = weight(frame)
            self._held_bytes -= size
            room_bytes -= size
            if not chained(frame, chain):
                self._gaps.put(end + 1, end + 1, None)
                self.discarded += 1
                break
            try:
                self._received.take(frame)
            except FormatError as error:
                self._gaps.put(end + 1, end + 1, None)
                self.discarded += 1
                self._wrong = str(error)
                break
            run.append(frame)
            end, chain = frame.position, frame.header_crc
        if run:
            self._below.take(run)

    def _tell_wrong(self, sender: int, message: Order | Repair | Echo) -> None:
        """A frame that the chain puts here and that cannot stand here was not taken; it is asked for again.

        Its coordinator, or this member, is wrong, and one message does not tell who. So nobody halts: this member votes for nothing
        behind it, which makes its coordinator leave it out, and it learns what the others decide.
        """
        if self._wrong:
            self._outbox.drop(message, sender, self._wrong)
            self._wrong = ""

    def missing(self) -> list[Range]:
        """Ranges of positions that were heard of and are not here, the lowest ones: what repair has to ask for. In a view that
        decides nothing is asked for while the window has no room.
        """
        if not self._gaps or (self._standing.primary and min(self._room()) <= 0):
            return []
        return [(first, last) for first, last, _ in self._gaps.first(limits.REPAIR_RANGES_MAX)]
