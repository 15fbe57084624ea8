"""The lanes as the stack has them: they wait until the log names this gateway, and follow the part of the group that it is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti.data.client_protocol import RefusedAnswer
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Far
from tutti_gateway.core.lanes.layer import Unordered
from tutti_gateway.core.protocol.events import LaneLog, LaneRead, LaneRotted, SubmittedUnordered
from tutti_gateway.core.protocol.messages import LaneMessage

_RENUMBERED = "this gateway was removed and added again under another number: its lane is over, and a start begins another one"


class Lanes:
    """Lanes begin when it is decided which number this gateway has: a frame of a lane names its origin by number.

    Args:
        part: the gateways that hear each other, this one among them, oldest first; nobody while it is no member.
        seen: who is told of every producer that something was decided of.
        far: how far the others are.
    """

    def __init__(self, context: Context, part: Callable[[], Sequence[int]], seen: Callable[[int], None], far: Far) -> None:
        self._context = context
        self._find_part = part
        self._seen = seen
        self._far = far
        self._part: tuple[int, ...] = ()
        self._logs: tuple[LaneLog, ...] = ()
        self._low = ""
        self._rotted: dict[tuple[int, bytes], LaneRotted] = {}  # of each lane, until they begin
        self._layer: Unordered | None = None

    def start(self, logs: tuple[LaneLog, ...]) -> None:
        """Take over what a start found."""
        self._logs = logs
        self._look()

    def _look(self) -> None:
        """See whether lanes can begin, and whether the part has changed."""
        context = self._context
        if self._layer is None and context.config.lanes and self._named():
            self._layer = Unordered(context, self._logs, self._seen, self._far)
            self._layer.space(self._low)
            self._logs = ()
            for event in self._rotted.values():
                self._layer.rotted(event)
            self._rotted.clear()
        if self._layer is not None:
            part = tuple(self._find_part())
            if part != self._part:
                self._part = part
                self._layer.members(part)

    @property
    def _renumbered(self) -> bool:
        """Whether this gateway was removed and added again since its lane began, which has its old number in every frame."""
        return self._layer is not None and self._layer.number != self._context.standing.me

    def _named(self) -> bool:
        """Whether it is decided that this gateway has the number that it knows."""
        voter = self._context.window.state.roster.get(self._context.standing.me)
        return voter is not None and voter.name == self._context.identity.gateway

    def on_submitted(self, event: SubmittedUnordered) -> None:
        """Batches of a client."""
        standing = self._context.standing
        if self._layer is not None and standing.taking_part and not self._renumbered:
            self._layer.submit(event.session, event.frames)
            return
        none = ("lane", f"{_RENUMBERED}; send to another gateway, as a new message")
        if not self._renumbered:
            none = "not_primary", "this gateway has no lane yet; send again, here or at another gateway"
        code, reason = standing.closed or none
        self._context.outbox.answers(event.session).extend(
            RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry=True) for frame in event.frames
        )

    def session_closed(self, session: int) -> None:
        """A client's session is over."""
        if self._layer is not None:
            self._layer.session_closed(session)

    def on_message(self, sender: int, message: LaneMessage) -> None:
        """A message of another gateway. One that comes before lanes can begin here is no trouble: it is said again."""
        if self._layer is not None:
            self._layer.on_message(sender, message)
        elif not self._context.config.lanes:
            self._context.outbox.drop(message, sender, "this gateway has no lanes")

    def persisted(self, token: int) -> None:
        """The disk has everything up to the PersistLane with the token."""
        if self._layer is not None:
            self._layer.persisted(token)

    def read(self, event: LaneRead) -> None:
        """What a ReadLane found."""
        if self._layer is not None:
            self._layer.read(event)

    def rotted(self, event: LaneRotted) -> None:
        """The disk says what it lost of a lane."""
        if self._layer is None:
            self._rotted[event.origin, event.incarnation] = event
        else:
            self._layer.rotted(event)

    def space(self, low: str) -> None:
        """The disk takes new messages (empty) or not."""
        self._low = low
        if self._layer is not None:
            self._layer.space(low)

    def beat(self) -> None:
        """One heartbeat."""
        self._look()
        if self._layer is not None:
            self._layer.beat()

    @property
    def halted(self) -> str:
        """Why nothing can follow in the own lane; empty while all is well."""
        if self._renumbered:
            return _RENUMBERED
        return "" if self._layer is None else self._layer.halted

    @property
    def sharers(self) -> tuple[int, ...]:
        """Whose disks have what is acknowledged in the own lane now, oldest first; nobody while nothing is."""
        return () if self._layer is None or self.halted else self._layer.sharers

    @property
    def quiet(self) -> bool:
        """Whether nothing of this gateway is undecided."""
        return self._layer is None or self._layer.quiet
