"""What other gateways say: looked at once as a whole, then handed to the layer that it is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from gateway.core.checks import OF_A_VIEW, far_ahead, fault
from gateway.core.events import Received
from gateway.core.messages import (
    Asking,
    AskRoster,
    Confirm,
    Deny,
    Echo,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Forward,
    Heartbeat,
    Install,
    Installed,
    LaneMessage,
    Message,
    Missing,
    No,
    Order,
    Probe,
    Propose,
    Refuse,
    Reject,
    Repairing,
    Resend,
    State,
    Vote,
)
from gateway.core.messages import Repair as RepairMessage

if TYPE_CHECKING:
    from gateway.core.stack import Layers


class Inbound:
    """The one way in for messages, those of this member to itself too."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._disks: dict[int, bytes] = {}  # of the view's members, as they were when it began

    def view_began(self) -> None:
        """A view was installed: its members have the disks that they have now."""
        layers = self._layers
        known = layers.peers.incarnations(layers.context.standing.others)
        self._disks = {number: incarnation for number, incarnation in known.items() if incarnation}

    def on_received(self, event: Received) -> None:
        """A message of another gateway."""
        sender, message = event.sender, event.message
        if isinstance(message, Heartbeat) and message.log and message.log == self._layers.context.window.log():
            self._layers.peers.admit(sender)
        peer = self._layers.peers.get(sender)
        if peer is None:
            self._layers.context.outbox.drop(message, sender, "the gateway is not known here")
            return
        wrong = fault(message) or far_ahead(message, self._layers.context.standing.promised)
        if not wrong and type(message) in OF_A_VIEW and self._disks.setdefault(sender, event.incarnation) != event.incarnation:
            wrong = "it has another disk than when this view began"
        if wrong:
            self._layers.context.outbox.drop(message, sender, wrong)
            return
        peer.missed, peer.probed, peer.up = 0, -1, True
        if event.incarnation != peer.incarnation:
            peer.incarnation, peer.beat = event.incarnation, None
        self.on_message(sender, message)

    def on_message(self, sender: int, message: Message) -> None:
        """A message, to the layer that it is for."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(sender, message)
        elif isinstance(message, Asking) and isinstance(message.ask, AskRoster):
            if self._layers.context.standing.current(message.view):
                self._layers.changes.order(sender, message.ask)
        elif isinstance(message, Deny) and isinstance(message.ask, AskRoster):
            if self._layers.context.standing.current(message.view) and sender == self._layers.context.standing.coordinator:
                self._layers.changes.denied(message)
        elif isinstance(message, Asking | Deny):
            self._layers.order.on_message(sender, message)

    @cached_property
    def _handlers(self) -> dict[type, Callable[[int, Any], None]]:
        flush, candidate = self._layers.flush, self._layers.flush.candidate
        return {
            **dict.fromkeys((Forward, Order, Echo, Resend, Refuse), self._layers.order.on_message),
            Vote: self._layers.atomic.on_vote,
            Confirm: self._layers.atomic.on_confirm,
            No: self._layers.atomic.on_no,
            Heartbeat: self._layers.membership.on_heartbeat,
            Probe: lambda sender, _: self._layers.membership.on_probe(sender),
            Propose: flush.on_propose,
            State: candidate.on_state,
            Reject: candidate.on_reject,
            Install: flush.on_install,
            Installed: candidate.on_installed,
            Fetch: flush.on_fetch,
            Fetched: flush.on_fetched,
            FetchSnapshot: flush.serving.on_fetch_snapshot,
            FetchedSnapshot: flush.on_snapshot,
            Missing: self._layers.repair.on_missing,
            Repairing: self._layers.repair.on_repairing,
            RepairMessage: self._layers.repair.on_repair,
            **dict.fromkeys(get_args(LaneMessage), self._layers.lanes.on_message),
        }
