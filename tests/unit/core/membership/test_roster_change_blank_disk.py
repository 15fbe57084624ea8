"""Tests of a gateway without a log: it reports of no other gateway that it is not in the roster."""

from __future__ import annotations

from random import Random

from tests.unit.core.stacks import started
from tutti.data.client_protocol import Denied
from tutti_gateway.core.protocol.actions import Reply
from tutti_gateway.core.protocol.events import Now, RosterAsked
from tutti_gateway.core.stack import Stack


def test_a_blank_disk_redirects_requests_to_another_gateway() -> None:
    stack = Stack(Random)
    stack.step(started({"g1": "g1:7400", "g2": "g2:7400"}), Now(1, 1))
    actions = stack.step(RosterAsked(1, 1, "replace", "g1"), Now(2, 2))
    (denied,) = [answer for action in actions if isinstance(action, Reply) for answer in action.answers]
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry) == ("not_primary", True)
    assert denied.reason.startswith("this gateway has no log yet: the group is founded once all its gateways run")
