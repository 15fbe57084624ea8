"""Tests that every message between gateways is classified: of a view or not, about a disk or not, to one member or to all.

`OF_A_VIEW`, `OF_A_DISK` and `TO_ALL` decide how a message is checked and sent. A message that is missing in them is still
delivered, so only these lists notice it.
"""

from typing import get_args

from tutti_gateway.core.inbound_messages import OF_A_DISK
from tutti_gateway.core.protocol import messages
from tutti_gateway.core.protocol.message_checks import OF_A_VIEW
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.multicast.multicast import TO_ALL

ALL = set(get_args(Message))
#: Messages that gateways exchange whatever view they are in: heartbeats, the change of a view, catching up, and lanes.
OUTSIDE_OF_VIEWS = {
    messages.Heartbeat,
    messages.Probe,
    messages.Propose,
    messages.State,
    messages.Reject,
    messages.Install,
    messages.Installed,
    messages.Fetch,
    messages.Fetched,
    messages.FetchSnapshot,
    messages.FetchedSnapshot,
    messages.Post,
    messages.Posted,
    messages.Settled,
    messages.LaneEnds,
    messages.LaneFetch,
    messages.LaneFetched,
    messages.LaneAsk,
    messages.LaneTail,
}
#: Messages of a view to one member. All others of a view leave by multicast.
TO_ONE = {
    messages.Forward,
    messages.Asking,
    messages.Echo,
    messages.Resend,
    messages.Refuse,
    messages.Deny,
    messages.Vote,
    messages.No,
}
#: Messages of lanes that say nothing about what the sender's disk holds.
NOT_OF_A_DISK = {messages.Post, messages.Settled, messages.LaneFetch, messages.LaneFetched, messages.LaneAsk}


def test_each_message_is_of_a_view_or_outside_of_views() -> None:
    assert OF_A_VIEW | OUTSIDE_OF_VIEWS == ALL
    assert not OF_A_VIEW & OUTSIDE_OF_VIEWS


def test_each_message_of_a_view_goes_to_one_member_or_to_all() -> None:
    assert set(TO_ALL) | TO_ONE == OF_A_VIEW
    assert not set(TO_ALL) & TO_ONE


def test_each_message_of_lanes_is_about_a_disk_or_not() -> None:
    lanes = {message for message in ALL if message.__name__.startswith(("Lane", "Post", "Settled"))}
    assert lanes == OF_A_DISK | NOT_OF_A_DISK
    assert not OF_A_DISK & NOT_OF_A_DISK
