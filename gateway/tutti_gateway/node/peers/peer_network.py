"""The driver's view of the other gateways: sends the stack's messages, knows the names of peers, and logs transport problems."""

from __future__ import annotations

from collections.abc import Iterable

from structlog.typing import FilteringBoundLogger

from tutti_gateway.core.protocol.actions import Dropped, Peers, Send
from tutti_gateway.core.stack import Stack
from tutti_gateway.transport.interface import Transport


class PeerNetwork:
    """One transport and the peers that it reaches. Owned by the driver's thread."""

    def __init__(self, transport: Transport, stack: Stack, log: FilteringBoundLogger) -> None:
        """Use a transport.

        Args:
            transport: connects to the other gateways.
            stack: the protocol, which knows this gateway's number and log.
            log: receives messages for the operator.
        """
        self._transport = transport
        self._stack = stack
        self._log = log
        self._introduced: tuple[int, bytes] = (0, b"")
        self._sent = False
        self.peers: tuple[tuple[int, str, str], ...] = ()

    def name(self, number: int) -> str:
        """Return the name of another gateway; empty if no other gateway has this number."""
        return next((name for known, name, _ in self.peers if known == number), "")

    def names(self, numbers: Iterable[int], own: str) -> list[str]:
        """Return the names of gateways, with `own` in place of this gateway's name, and a number in place of an unknown name."""
        return [own if number == self._stack.me else self.name(number) or str(number) for number in numbers]

    def set_peers(self, action: Peers) -> None:
        """Set the other gateways of the group, as the stack reports them."""
        self.peers = action.peers
        self._introduce()
        # Links introduce this gateway when they open, so the number and the log above are set before the links.
        self._transport.set_peers(action.peers)
        self._log.info("gateways of the group", peers={name: address for _, name, address in action.peers})

    def send(self, action: Send) -> None:
        """Queue a message. The next `flush` sends it."""
        self._transport.send(action.to, action.message)
        self._sent = True

    def flush(self) -> None:
        """Send the queued messages."""
        if self._sent:
            self._sent = False
            # The last step may have set this gateway's number or log, which peers must know before its next messages.
            self._introduce()
            self._transport.flush()

    def _introduce(self) -> None:
        known = self._stack.me, self._stack.log
        if known != self._introduced:
            self._introduced = known
            self._transport.introduce(*known)

    def dropped(self, action: Dropped) -> None:
        """Log that the stack dropped messages of a member."""
        sender = self.name(action.sender) or action.sender
        self._log.warning(
            "messages of a member were dropped", kind=action.kind, sender=sender, reason=action.reason, count=action.count
        )

    def log_troubles(self) -> None:
        """Log new problems of the transport. Called about once a second."""
        for trouble in self._transport.maintain():
            if trouble.peer:
                self._log.warning("trouble with another gateway", peer=trouble.peer, reason=trouble.reason)
            else:
                self._log.warning("trouble at the group port", reason=trouble.reason)

    def facts(self) -> dict[str, object]:
        """Return the transport's counters for the status."""
        return self._transport.facts()
