"""Entry of messages from other gateways: validates each message, and passes it to the layer that handles its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import Received
from tutti_gateway.core.protocol.message_checks import OF_A_VIEW, far_ahead, malformed
from tutti_gateway.core.protocol.messages import Heartbeat, LaneEnds, LaneTail, Message, Posted
from tutti_gateway.core.view.peers import Peers

#: Messages that report which frames the sender's disk holds, or that vote for frames on that disk.
OF_A_DISK = frozenset({Posted, LaneEnds, LaneTail})


class Inbound:
    """Validates the messages of other gateways, and passes all messages to the layers.

    Args:
        handlers: for each message type, the function of (sender, message) that handles it.
    """

    def __init__(self, context: Context, peers: Peers, handlers: Mapping[type, Callable[[int, Any], None]]) -> None:
        self._context = context
        self._peers = peers
        self._handlers = handlers
        self._disks: dict[int, bytes] = {}  # member of the view -> incarnation of its disk when the view began

    def view_began(self) -> None:
        """Store which disks the members of the new view have, so that messages of replaced disks are dropped."""
        known = self._peers.incarnations(self._context.view_state.others)
        self._disks = {number: incarnation for number, incarnation in known.items() if incarnation}

    def on_received(self, event: Received) -> None:
        """Validate another gateway's message, and drop it or pass it to its layer."""
        sender, message = event.sender, event.message
        # A later roster, which this log does not contain yet, may list an unknown gateway that has the same log.
        if isinstance(message, Heartbeat) and message.log and message.log == self._context.window.log():
            self._peers.admit(sender)
        peer = self._peers.get(sender)
        if peer is None:
            self._context.outbox.drop(message, sender, "the gateway is not known here")
            return
        wrong = malformed(message) or far_ahead(message, self._context.view_state.promised)
        # A member's new disk lacks the frames and promises of the old one, so its messages do not count in this view (flush, F18).
        if not wrong and type(message) in OF_A_VIEW and self._disks.setdefault(sender, event.incarnation) != event.incarnation:
            wrong = "it has another disk than when this view began"
        if not wrong and type(message) in OF_A_DISK and self._context.window.state.disk_of(sender) not in (b"", event.incarnation):
            wrong = "it has another disk than the roster names: what that disk holds and votes for does not count"
        if wrong:
            self._context.outbox.drop(message, sender, wrong)
            return
        # Any valid message, and not only a heartbeat, shows that the gateway is alive.
        peer.missed, peer.probed, peer.up = 0, -1, True
        # The last heartbeat describes the log on the sender's old disk, so it must not count for the new disk.
        if event.incarnation != peer.incarnation:
            peer.incarnation, peer.beat = event.incarnation, None
        self.on_message(sender, message)

    def on_message(self, sender: int, message: Message) -> None:
        """Pass a message to the layer that handles its type."""
        self._handlers[type(message)](sender, message)
