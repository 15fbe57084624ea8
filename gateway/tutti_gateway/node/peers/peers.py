"""The other gateways, as the driver sees them: what the stack says goes out, what they say comes in, and troubles are logged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from tutti_gateway.core.protocol.actions import Dropped, Peers, Send
from tutti_gateway.transport.interface import Transport


class Known(Protocol):
    """What is needed of the stack."""

    @property
    def me(self) -> int:
        """This gateway's number."""

    @property
    def log(self) -> bytes:
        """Uuid of its log."""


class Network:
    """One transport and who is behind it. Owned by the driver's thread."""

    def __init__(self, transport: Transport, known: Known, log: FilteringBoundLogger) -> None:
        """`known` says who this gateway is by now; `log` is for the operator."""
        self._transport = transport
        self._known = known
        self._log = log
        self._introduced: tuple[int, bytes] = (0, b"")
        self._sent = False
        self.peers: tuple[tuple[int, str, str], ...] = ()

    def name(self, number: int) -> str:
        """Of another gateway; empty when nobody else has that number."""
        return next((name for known, name, _ in self.peers if known == number), "")

    def names(self, numbers: Iterable[int], own: str) -> list[str]:
        """Of several, this gateway's `own` among them; the number where nobody has told a name."""
        return [own if number == self._known.me else self.name(number) or str(number) for number in numbers]

    def meet(self, action: Peers) -> None:
        """The stack says who there is."""
        self.peers = action.peers
        self._introduce()
        self._transport.peers(action.peers)
        self._log.info("gateways of the group", peers={name: address for _, name, address in action.peers})

    def send(self, action: Send) -> None:
        """Queue a message; it leaves at the next `flush`."""
        self._transport.send(action.to, action.message)
        self._sent = True

    def flush(self) -> None:
        """Send what was queued."""
        if self._sent:
            self._sent = False
            self._introduce()
            self._transport.flush()

    def _introduce(self) -> None:
        known = self._known.me, self._known.log
        if known != self._introduced:
            self._introduced = known
            self._transport.introduce(*known)

    def dropped(self, action: Dropped) -> None:
        """The stack did not take messages of a member."""
        sender = self.name(action.sender) or action.sender
        self._log.warning(
            "messages of a member were not taken", kind=action.kind, sender=sender, reason=action.reason, count=action.count
        )

    def look(self) -> None:
        """Tell the operator what is wrong; called about once a second."""
        for trouble in self._transport.troubles():
            if trouble.peer:
                self._log.warning("trouble with another gateway", peer=trouble.peer, reason=trouble.reason)
            else:
                self._log.warning("trouble at the group port", reason=trouble.reason)

    def facts(self) -> dict[str, object]:
        """For the status."""
        return self._transport.facts()
