"""Start of lanes when the log lists this gateway, and notification of lanes about changes of the connected gateways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti.data.client_protocol import RefusedAnswer
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Distances
from tutti_gateway.core.lanes.layer import Unordered
from tutti_gateway.core.protocol.events import LaneCorrupt, LaneLog, LaneRead, SubmittedUnordered
from tutti_gateway.core.protocol.messages import LaneMessage

_RENUMBERED = (
    "this gateway was removed and added again under another number: its lane has ended; restart the gateway to begin another one"
)


class Lanes:
    """Starts lanes when the number of this gateway is decided, because a lane frame identifies its origin by number (lanes, U10).

    Args:
        connected: returns the gateways that exchange heartbeats with each other, oldest first; empty if this one is not a member.
        on_producer: function that is called with the number of each producer of a decided batch.
        distances: distances to other gateways, so that a repair asks the nearest gateway first.
    """

    def __init__(
        self, context: Context, connected: Callable[[], Sequence[int]], on_producer: Callable[[int], None], distances: Distances
    ) -> None:
        self._context = context
        self._find_connected = connected
        self._on_producer = on_producer
        self._distances = distances
        self._connected: tuple[int, ...] = ()
        self._logs: tuple[LaneLog, ...] = ()
        self._low = ""
        self._corrupt: dict[tuple[int, bytes], LaneCorrupt] = {}  # the disk's last report about each lane, until lanes begin
        self._layer: Unordered | None = None

    def start(self, logs: tuple[LaneLog, ...]) -> None:
        """Store the lanes that the disk held at the start, and begin lanes if this gateway's number is decided."""
        self._logs = logs
        self._update()

    def _update(self) -> None:
        """Begin lanes if this gateway's number is decided, and pass on any change of the connected gateways."""
        context = self._context
        if self._layer is None and context.config.lanes and self._named():
            self._layer = Unordered(context, self._logs, self._on_producer, self._distances)
            self._layer.space(self._low)
            self._logs = ()
            # The disk may report lost ranges before lanes begin, and does not repeat these reports.
            for event in self._corrupt.values():
                self._layer.on_corrupt(event)
            self._corrupt.clear()
        if self._layer is not None:
            connected = tuple(self._find_connected())
            if connected != self._connected:
                self._connected = connected
                self._layer.set_connected(connected)

    @property
    def _renumbered(self) -> bool:
        """True if this gateway was removed and added again, so its new number differs from the number in its lane's frames."""
        return self._layer is not None and self._layer.number != self._context.view_state.me

    def _named(self) -> bool:
        """True if the decided roster lists this gateway under the number that this gateway uses."""
        voter = self._context.window.state.roster.get(self._context.view_state.me)
        # The configured number of a gateway with a blank disk may belong to another gateway in the log (flush, F9).
        return voter is not None and voter.name == self._context.identity.gateway

    def on_submitted(self, event: SubmittedUnordered) -> None:
        """Pass a client's batches to this gateway's lane, or refuse them if the lane cannot accept batches."""
        view_state = self._context.view_state
        if self._layer is not None and view_state.active and not self._renumbered:
            self._layer.submit(event.session, event.frames)
            return
        none = ("lane", f"{_RENUMBERED}; send to another gateway, as a new message")
        if not self._renumbered:
            none = "not_primary", "this gateway has no lane yet; send again to this gateway or to another one"
        code, reason = view_state.closed or none
        self._context.outbox.answers(event.session).extend(
            RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry=True) for frame in event.frames
        )

    def session_closed(self, session: int) -> None:
        """Send no more answers to a session that has ended."""
        if self._layer is not None:
            self._layer.session_closed(session)

    def on_message(self, sender: int, message: LaneMessage) -> None:
        """Pass another gateway's message to the lanes.

        Before the lanes begin, this gateway ignores such messages, because the sender repeats them.
        """
        if self._layer is not None:
            self._layer.on_message(sender, message)
        elif not self._context.config.lanes:
            self._context.outbox.drop(message, sender, "this gateway has no lanes")

    def persisted(self, token: int) -> None:
        """Pass the report that all lane writes up to the token are durable to the lanes."""
        if self._layer is not None:
            self._layer.persisted(token)

    def read(self, event: LaneRead) -> None:
        """Send the frames that the disk read to the gateway that requested them."""
        if self._layer is not None:
            self._layer.read(event)

    def on_corrupt(self, event: LaneCorrupt) -> None:
        """Begin to repair a range of a lane that the disk reports as lost, or store the report until lanes begin."""
        if self._layer is None:
            self._corrupt[event.origin, event.incarnation] = event
        else:
            self._layer.on_corrupt(event)

    def space(self, low: str) -> None:
        """Set the reason why the disk is low; empty if it has free space."""
        self._low = low
        if self._layer is not None:
            self._layer.space(low)

    def beat(self) -> None:
        """Run one heartbeat of the lanes, and begin lanes if this gateway's number has become decided."""
        self._update()
        if self._layer is not None:
            self._layer.beat()

    @property
    def halted(self) -> str:
        """Reason why this gateway's lane accepts no frames; empty if the lane accepts them."""
        if self._renumbered:
            return _RENUMBERED
        return "" if self._layer is None else self._layer.halted

    @property
    def replicas(self) -> tuple[int, ...]:
        """Members whose disks hold all acknowledged frames of this gateway's lane, oldest first; empty without an attempt."""
        return () if self._layer is None or self.halted else self._layer.replicas

    @property
    def quiet(self) -> bool:
        """True if this gateway's lane has no undecided frames."""
        return self._layer is None or self._layer.quiet
