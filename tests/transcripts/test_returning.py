"""Proves that a majority goes on when one member dies for good just as another one comes back, whenever that is."""

from pathlib import Path

import pytest

from tests.transcripts.whole_script import WholeScript
from tutti_gateway.core.protocol.events import Received, TimeAdvanced
from tutti_gateway.core.view.group_status import GroupStatus

START = (
    "quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g1 s1 ewr\nkill g3\nuntil primary g1 g2\n"
    "submit g1 s1 p1/1 1+1 body=x\nsettle\n"
)


@pytest.mark.parametrize("dead", ["g1", "g2"])
@pytest.mark.parametrize("beats", [0, 1, 3, 5, 8, 20])
def test_a_returning_member_is_admitted_although_another_is_dead(dead: str, beats: int) -> None:
    left = "g1" if dead == "g2" else "g2"
    script = WholeScript()
    told = script.run(f"{START}kill {dead}\nbeats {beats}\nstart g3\nuntil primary {left} g3\n----\n")
    assert "WRONG" not in told
    assert script.world.members["g3"].frontier == script.world.members[left].frontier
    assert not script.problems


def test_a_gateway_without_a_current_number_reports_that_it_catches_up() -> None:
    script = WholeScript()
    text = (Path(__file__).parent / "group_all_renumbered.txt").read_text("utf-8")
    script.run(text[: text.index("# g3 starts")])
    script.run("hold FETCHED g2>g3\nstart g3\nbeats 10\n----\n")
    assert GroupStatus(script.world.members["g3"].running).waits == "copies the log from the view that decides"
    script.run("kill g2\nbeats 20\n----\n")
    assert GroupStatus(script.world.members["g3"].running).waits.startswith("not heard of g1 and g2")


def test_a_gateway_of_the_same_log_is_accepted_before_the_log_names_it() -> None:
    script = WholeScript()
    script.run(f"{START}----\n")
    member, other = script.world.members["g1"], script.world.members["g2"]
    stack = member.running
    peers = stack.layers.peers
    peer = peers.get(2)
    assert peer is not None
    assert peer.beat is not None
    before = {peer.number for peer in peers}
    assert 9 not in before
    stack.layers.inbound.on_received(Received(9, peer.beat, other.disk.incarnation))
    assert {peer.number for peer in peers} == before | {9}
    assert not peers.member(9)
    assert not peers.counts(9)


def test_a_blank_disk_accepts_no_view_of_which_another_gateway_is_a_member_by_its_configured_number() -> None:
    """The configuration of b gives it number 2, which is the number of c in the log."""
    script = WholeScript()
    script.run(
        "quiet\ngateways a c d\nuntil primary a c d\ngateway b a c d\nroster a s1 #1 add b b:7400\nuntil votes b\nbeats 5\n----\n"
    )
    assert script.world.members["b"].me == 4
    script.run("kill b\nwipe b\nhold HEARTBEAT b>*\nstart b\nsettle\n----\n")
    assert script.world.members["b"].me == 2
    candidate = script.world.members["a"]
    candidate.running.layers.flush.campaign((1, 2, 3, 4))
    script.world.step(candidate, TimeAdvanced())
    told = script.run("loud\nsettle\nquiet\nheal\nbeats 5\n----\n")
    assert "a>b INSTALL" in told
    assert "b accepts" not in told
    assert "WRONG" not in script.run("until primary a c d\nroster a s1 #2 replace b\nuntil votes b\nuntil same-log a b c d\n----\n")
    assert not script.problems
