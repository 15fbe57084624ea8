"""Tests of the address in a roster change: a gateway is added only at an address that the others can reach and no
other member has.
"""

from __future__ import annotations

import pytest

from tests.transcripts.whole_script import WholeScript
from tutti.data.client_protocol import Denied
from tutti_gateway.core.protocol.events import RosterAsked


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("g1:7400", "gateway 'g1' already uses ports of g1:7400"),
        ("g1:7401", "gateway 'g1' already uses ports of g1:7400"),
        ("g1:9000/7401", "gateway 'g1' already uses ports of g1:7400"),
        ("0.0.0.0:7400", "no other host can connect to 0.0.0.0"),
        ("[::]:7400", "no other host can connect to ::"),
        ("nowhere", "HOST:P"),
        ("g4:0", "HOST:P"),
        ("g4:65535", "HOST:P"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_the_reason(address: str, words: str) -> None:
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nbeats 2\n----\n")
    member = script.world.members["g1"]
    script.world.step(member, RosterAsked(1, 1, "add", "g4", address))
    (denied,) = [answer for _, answer in member.replies if isinstance(answer, Denied)]
    assert words in denied.reason
    assert not denied.retry


def test_a_gateway_with_a_group_port_of_its_own_is_added() -> None:
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g1 s1 ewr\ngateway g4 g1\n----\n")
    script.run("roster g1 s1 #5 add g4 g4:7400/9000\n----\n")
    script.run("until answer g1 s1 #5 Done\n----\n")
    assert not [line for line in script.lines if line.startswith(("WRONG", "PROBLEM"))]
