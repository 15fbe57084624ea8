"""Tests that the last gateway of a group cannot be removed, and that a hopeless request is refused at once."""

from __future__ import annotations

from tests.transcripts.whole_script import WholeScript
from tutti.data.client_protocol import Denied
from tutti_gateway.core.protocol.events import RosterAsked


def test_the_only_gateway_of_a_group_cannot_be_removed_however_long_one_asks() -> None:
    script = WholeScript()
    script.run("quiet\ngateways g1\nuntil primary g1\nbeats 2\n----\n")
    member = script.world.members["g1"]
    script.world.step(member, RosterAsked(1, 1, "remove", "g1"))
    (denied,) = [answer for _, answer in member.replies if isinstance(answer, Denied)]
    assert (denied.code, denied.retry) == ("roster", False)
    assert denied.reason == (
        "gateway 'g1' is the only one in its group: add another gateway first (`tutti members add`), or stop this one to end the "
        "group"
    )


def test_the_last_that_votes_may_go_when_another_one_has_caught_up() -> None:
    script = WholeScript()
    script.run("quiet\ngateways g1\nuntil primary g1\nbeats 2\nclient g1 s1 ewr\ngateway g2 g1\nkill g2\n----\n")
    script.run("roster g1 s1 #5 add g2 g2:7400\n----\n")
    script.run("until answer g1 s1 #5 Done\n----\n")
    member = script.world.members["g1"]
    script.world.step(member, RosterAsked(1, 6, "remove", "g1"))
    script.run("beats 4\n----\n")
    (denied,) = [answer for _, answer in member.replies if isinstance(answer, Denied)]
    assert denied.retry
    assert denied.reason == "gateway 'g1' is the last voter: remove it after another gateway has caught up"
