"""Notifications to clients when the group's gateways, this gateway's connection to the group, or its lane change.

With these notifications, a client that connected long ago still has current addresses when its gateway fails. A client that rarely
sends learns early that its gateway can no longer order records, and switches to another gateway before a batch is refused.
"""

from __future__ import annotations

from tutti.data.client_protocol import Welcome, encode_control
from tutti.data.gateway_states import CUT_OFF
from tutti_gateway.node.clients.replies import Replies
from tutti_gateway.node.clients.sessions import Sessions

_Facts = tuple[dict[str, str], tuple[str, ...], bool, str]


class ViewNotifications:
    """Sends a Welcome to every client after a change of the gateways, the silent gateways, the connection to the group or the lane.

    Owned by the driver's thread.
    """

    def __init__(self, sessions: Sessions, replies: Replies) -> None:
        """Begin with no previous notification."""
        self._sessions = sessions
        self._replies = replies
        self._last_facts: _Facts | None = None

    def check(self, welcome: Welcome) -> None:
        """Send `welcome` to every client if one of these four facts has changed since the last check. Called about once a
        second.
        """
        facts: _Facts = welcome.gateways, welcome.silent, welcome.state in CUT_OFF, welcome.lane
        # The first check only stores the facts, because the clients have received them in answer to Hello.
        if self._last_facts is not None and facts != self._last_facts:
            data = encode_control(welcome)
            for session in self._sessions.all():
                # Only clients with a quota get a Welcome of their own, so the common one is encoded once for thousands of sessions.
                own = session.welcome(welcome)
                self._replies.send(session, data if own is welcome else encode_control(own))
        self._last_facts = facts
