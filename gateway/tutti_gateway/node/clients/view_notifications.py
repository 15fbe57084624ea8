"""Tells clients, without being asked, when the gateways of the group have changed, this one was cut off from its group, or its lane
began.

So a client that said Hello long ago still knows where to go when its gateway dies, though all others have moved since; and one that
sends little leaves a gateway that cannot order messages before its next one is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti.data.client_protocol import Welcome, encode_control
from tutti.data.gateway_states import CUT_OFF
from tutti_gateway.node.clients.replies import Answers
from tutti_gateway.node.clients.sessions import Sessions

_Facts = tuple[dict[str, str], tuple[str, ...], bool, str]


class News:
    """What clients were told last. Owned by the driver's thread."""

    def __init__(self, welcome: Callable[[], Welcome], sessions: Sessions, answers: Answers) -> None:
        """`welcome` says how things are now."""
        self._welcome = welcome
        self._sessions = sessions
        self._answers = answers
        self._told: _Facts | None = None

    def look(self) -> None:
        """Tell every client if anything changed since the last look; called about once a second."""
        welcome = self._welcome()
        facts: _Facts = welcome.gateways, welcome.silent, welcome.state in CUT_OFF, welcome.lane
        if self._told is not None and facts != self._told:
            data = encode_control(welcome)
            for session in self._sessions.everyone():
                self._answers.send(session, data)
        self._told = facts
