"""Tests of votes and rosters: when a ROSTER may be ordered, when a new disk votes, and that a candidate counts by every ROSTER of
the log it adopts.
"""

from __future__ import annotations

import pytest

from tests.transcripts.group import ENTROPY, voters
from tests.transcripts.whole_script import WholeScript
from tutti.data.client_protocol import Denied, Done
from tutti.data.frames.bodies import RosterBody, decode_body, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState
from tutti_gateway.core.view.phases import Phase
from tutti_gateway.core.view.quorum import rosters_of

THREE = "quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nbeats 2\n"


def played(commands: str) -> WholeScript:
    script = WholeScript()
    output = script.run(f"{THREE}{commands}----\n")
    assert "WRONG" not in output, output
    assert script.problems == []
    return script


def rosters(script: WholeScript, name: str = "g1") -> list[list[str]]:
    """The names of each ROSTER of a gateway's log, those that vote in capitals; decided or not."""
    window = script.world.members[name].running.layers.context.window
    decided = script.world.members[name].disk.frames[: window.frontier]
    return [_names(frame) for frame in [*decided, *window.rosters] if frame.kind == Kind.ROSTER]


def _names(frame: Frame) -> list[str]:
    return [voter.name.upper() if voter.voting else voter.name for voter in decode_body(RosterBody, frame.body).voters]


def answers(script: WholeScript, name: str = "g1") -> list[Denied | Done]:
    return [answer for _, answer in script.world.members[name].replies if isinstance(answer, Denied | Done)]


# When a ROSTER is ordered


def test_a_roster_is_ordered_when_the_one_before_it_is_decided() -> None:
    """Two that are undecided change two voters at once: majorities of the first and of the last need not meet."""
    added = "gateway g4 g1 g2 g3\ngateway g5 g1 g2 g3\nbeats 2\nlose FETCHED *>*\n"
    script = played(f"{added}hold YES g2>g1\nroster g1 s1 #5 add g4 g4:7400\nsettle\nroster g1 s1 #6 add g5 g5:7400\nsettle\n")
    assert rosters(script) == [["G1", "G2", "G3"], ["G1", "G2", "G3", "g4"]]
    script.run("heal\nlose FETCHED *>*\nlet YES g2>g1\nuntil answer g1 s1 #6 Done\n----\n")
    assert rosters(script) == [["G1", "G2", "G3"], ["G1", "G2", "G3", "g4"], ["G1", "G2", "G3", "g4", "g5"]]


def test_a_roster_is_ordered_when_the_view_is_decided() -> None:
    """Until its VIEW frame is decided a view may hold fewer rosters than its log: others of that log count too."""
    script = played("kill g3\nhold YES g2>g1\nbeats 8\nsettle\n")
    layers = script.world.members["g1"].running.layers
    phases, may = [], []
    for commands in ("", "heal\nlet YES g2>g1\nsettle\n----\n"):
        script.run(commands)
        assert layers.context.view_state.coordinating
        phases.append(layers.flush.phase)
        may.append(layers.changes._may_order())
    assert (phases, may) == ([Phase.INSTALLING, Phase.PRIMARY], [False, True])


# When a new disk votes


def test_a_new_disk_is_not_put_in_place_of_the_old_one_before_it_has_caught_up() -> None:
    """A voter that lacks the log cannot replace one that fails meanwhile: the group would stop."""
    script = played(
        "kill g3\nuntil primary g1 g2\nwipe g3\nlose FETCHED *>g3\nstart g3\nbeats 12\nroster g1 s1 #5 replace g3\nsettle\n"
    )
    (denied,) = answers(script)
    assert isinstance(denied, Denied)
    assert (denied.retry, denied.reason) == (True, "gateway 'g3' has not caught up yet; ask again")
    assert rosters(script) == [["G1", "G2", "G3"]]
    script.run("heal\nbeats 12\nroster g1 s1 #6 replace g3\nuntil answer g1 s1 #6 Done\ncheck votes g3\n----\n")
    assert len(rosters(script)) == 2


def test_a_new_gateway_enters_a_view_after_it_caught_up_and_votes_only_there() -> None:
    script = played(
        "gateway g4 g1 g2 g3\nlose FETCHED *>g4\nroster g1 s1 #5 add g4 g4:7400\nuntil answer g1 s1 #5 Done\nbeats 30\n"
    )
    assert rosters(script) == [["G1", "G2", "G3"], ["G1", "G2", "G3", "g4"]]
    assert script.world.members["g1"].running.layers.context.view_state.members == (1, 2, 3)
    script.run("heal\nuntil votes g4\n----\n")
    assert rosters(script)[-1] == ["G1", "G2", "G3", "G4"]


def test_a_caught_up_gateway_votes_after_a_view_included_it() -> None:
    """It holds what the log has behind what it caught up with when it is a member: a vote before that would be for less."""
    script = played(
        "gateway g4 g1 g2 g3\nlose PROPOSE g1>g4\nlose HEARTBEAT g2>g4\nroster g1 s1 #5 add g4 g4:7400\n"
        "until answer g1 s1 #5 Done\nbeats 30\n"
    )
    peer = script.world.members["g1"].running.layers.peers.get(4)
    assert peer is not None
    assert peer.beat is not None
    assert peer.beat.ready, "the learner keeps up"
    assert 4 not in script.world.members["g1"].running.layers.context.view_state.members
    assert rosters(script)[-1] == ["G1", "G2", "G3", "g4"]


# Whom a candidate counts


def _frame(names: list[str], forced: bool = False) -> Frame:
    return Frame(Kind.ROSTER, encode_body(RosterBody("test", ENTROPY, voters(names), forced=forced)), origin=1)


@pytest.mark.parametrize(
    ("later", "counting"),
    [
        ([], [3]),
        ([["g1", "g2", "g3", "g4"]], [3, 4]),
        ([["g1", "g2", "g3", "g4"], ["g1", "g2", "g3", "g4", "g5"]], [3, 4, 5]),
    ],
)
def test_the_last_decided_roster_counts_and_every_later_one(later: list[list[str]], counting: list[int]) -> None:
    state = LogState()
    first = _frame(["g1", "g2", "g3"])
    first.stamp(1 << 16 | 1, 1, 0)
    state.apply(first)
    rosters = rosters_of(state, [_frame(names) for names in later])
    disks = {voter.number: voter.incarnation for voter in voters(["g1", "g2", "g3", "g4", "g5"])}
    for among in ([1, 2], [1, 2, 4], [1, 2, 5], [3, 4, 5], [1, 4, 5], [1, 2, 3], [2, 3, 4]):
        enough = all(2 * sum(number <= size for number in among) > size for size in counting)
        assert rosters.majority({number: disks[number] for number in among}) is enough, among


#: Five vote. g2, g4 and g5 decide a batch without g1, which knows four voters, and without g3. Then all three lose their power.
GROWN = """gateway g4 g1 g2 g3
beats 3
roster g1 s1 #5 add g4 g4:7400
until votes g4
until primary g1 g2 g3 g4
gateway g5 g1 g2 g3
split g1 g2,g3,g4,g5
until primary g2 g3 g4
client g2 s2 ewr
roster g2 s2 #5 add g5 g5:7400
until votes g5
until primary g2 g3 g4 g5
beats 2
split g1 g3 g2,g4,g5
until primary g2 g4 g5
beats 2
lose CONFIRM g2>*
submit g2 s2 p1/1 1+10
until answer g2 s2 Committed p1/1 1+10
power g2
power g4
power g5
heal
"""


def test_a_proof_of_a_candidate_has_to_hold_by_every_roster_of_the_log_that_it_adopts() -> None:
    """Two of four are in the way of every majority, two of five are not: the other three may have decided what is damaged."""
    script = played(GROWN)
    position = script.world.members["g2"].disk.durable
    script.run(f"damage g2 {position}\nlose PROPOSE g2>*\nlose PROPOSE g3>*\nstart g2\nbeats 60\n----\n")
    first = script.world.members["g1"]
    assert rosters(script)[-1] == ["G1", "G2", "G3", "G4", "G5"], "g1 has adopted what g2 can read"
    assert first.view is None or not first.view.primary
    assert first.running.layers.flush.failed
    output = script.run("heal\nstart g4\nuntil committed p1/1 1+10 g1 g2 g3 g4\ncheck not absent p1/1 1+10 g1\n----\n")
    assert "WRONG" not in output, output
    assert script.problems == []
