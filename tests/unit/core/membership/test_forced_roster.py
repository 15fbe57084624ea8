"""Tests of forced rosters: when one is allowed, and that messages about forced rosters never make a member of the group leave."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.transcripts.whole_script import WholeScript
from tutti.data.client_protocol import Denied, Done
from tutti.data.view_id import coordinator_of, view_of
from tutti.errors import disk_remedy
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Send
from tutti_gateway.core.protocol.events import Now, Received, RosterForced
from tutti_gateway.core.protocol.messages import Heartbeat, Propose, Reject
from tutti_gateway.core.view.group_status import GroupStatus

TRANSCRIPTS = Path(__file__).parents[3] / "transcripts"
ALONE = "quiet\ngateways g1 g2 g3 g4 g5\nuntil primary g1 g2 g3 g4 g5\nkill g3\nkill g4\nkill g5\n"


def two(beats: int = limits.FORCE_HEARTBEATS + 20) -> WholeScript:
    """Two connected gateways of five; the others are gone for so many heartbeats."""
    script = WholeScript()
    script.run(f"{ALONE}beats {beats}\n----\n")
    return script


def asked(script: WholeScript, *names: str, gateway: str = "g1") -> list[Denied | Done]:
    """Return the gateway's immediate answers."""
    before = len(script.world.members[gateway].replies)
    script.world.step(script.world.members[gateway], RosterForced(1, 1, names))
    return [answer for _, answer in script.world.members[gateway].replies[before:] if isinstance(answer, Denied | Done)]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "no gateway was named"),
        (("g1", "g9"), "g9 not among them"),
        (("g2",), "this is gateway 'g1', which is not named"),
        (("g1", "g2", "g3", "g4", "g5"), "nothing to force; start the voters that are not heard"),
        (("g1",), "gateway g2 is heard"),
        (("g1", "g2", "g3"), "gateway g3 is named and is not heard"),
    ],
)
def test_names_that_cannot_be_all_that_remains_are_refused(names: tuple[str, ...], words: str) -> None:
    (denied,) = asked(two(), *names)
    assert isinstance(denied, Denied)
    assert words in denied.reason


def test_nothing_is_forced_while_a_majority_may_still_come() -> None:
    (denied,) = asked(two(beats=20), "g1", "g2")
    assert isinstance(denied, Denied)
    assert denied.retry
    assert "may still come" in denied.reason


def test_a_request_right_after_the_loss_waits_for_the_end_of_the_view() -> None:
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nkill g1\nkill g2\nbeats 6\n----\n")
    member = script.world.members["g3"]
    assert member.running.layers.context.view_state.primary
    (denied,) = asked(script, "g3", gateway="g3")
    assert isinstance(denied, Denied)
    assert denied.retry
    assert denied.reason.startswith("a majority is not heard, but view 1.")
    assert denied.reason.endswith(" has not ended yet: ask again after it has ended, in about 10 s")
    script.run("beats 80\nforce g3 s1 #9 g3\nuntil answer g3 s1 #9 Done\n----\n")


@pytest.mark.parametrize("names", [("g1", "g2", "g3"), ("g1", "g9"), ("g2",), ("g1",)])
def test_a_deciding_view_is_reported_before_the_names_are_checked(names: tuple[str, ...]) -> None:
    """Advice to start a running gateway, or to name another one, fits only a stopped group."""
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\n----\n")
    (denied,) = asked(script, *names)
    assert isinstance(denied, Denied)
    assert "decides: change members with `tutti members`; a forced roster is not allowed" in denied.reason
    assert not denied.retry


def test_nothing_is_forced_while_a_majority_is_connected_although_no_view_decides() -> None:
    script = two()
    for name in ("g1", "g2", "g3", "g4", "g5"):  # no disk promises anything
        script.run(f"slow {name}\n----\n")
    script.run("start g3\nstart g4\nstart g5\nbeats 5\nkill g3\nkill g4\nkill g5\n----\n")
    assert not script.world.members["g1"].view or not script.world.members["g1"].view.primary
    (denied,) = asked(script, "g1", "g2", "g3", "g4")
    assert isinstance(denied, Denied)
    assert denied.reason.startswith("a majority of the roster is heard")


def test_all_remaining_members_answer_before_a_log_is_chosen() -> None:
    """One of the two has something decided that the other one lacks."""
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3 g4 g5\nuntil primary g1 g2 g3 g4 g5\nclient g2 s1 ewr\nsplit g1 g2,g3,g4,g5\n----\n")
    script.run("until primary g2 g3 g4 g5\nsubmit g2 s1 p1/1 1+10\nuntil committed p1/1 1+10 g2 g3 g4 g5\n----\n")
    script.run("kill g3\nkill g4\nkill g5\nheal\nbeats 80\nhold STATE g2>g1\n----\n")
    assert asked(script, "g1", "g2") == []
    script.run("beats 5\nheal\nlet STATE g2>g1\nuntil answer g1 s1 #1 Done\nuntil committed p1/1 1+10 g1 g2\n----\n")
    assert script.finish() == []
    assert not [line for line in script.lines if line.startswith(("WRONG", "PROBLEM"))]


def test_a_gateway_with_another_disk_does_not_count_as_remaining() -> None:
    script = two()
    script.run("kill g2\nwipe g2\nstart g2\nbeats 5\n----\n")
    (denied,) = asked(script, "g1", "g2")
    assert isinstance(denied, Denied)
    assert "another disk" in denied.reason


def test_a_second_operator_waits_for_the_first() -> None:
    script = two()
    assert asked(script, "g1", "g2") == []
    script.world.step(script.world.members["g1"], RosterForced(1, 2, ("g1", "g2")))
    answer = script.world.members["g1"].replies[-1][1]
    assert isinstance(answer, Denied)
    assert (answer.request, answer.code) == (2, "busy")
    script.run("until answer g1 s1 #1 Done\n----\n")
    assert script.finish() == []


def test_a_member_connected_to_a_majority_does_not_promise_a_forced_view() -> None:
    """The link between the candidate and the others may be all that is broken."""
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3 g4 g5\nuntil primary g1 g2 g3 g4 g5\nkill g1\nbeats 3\n----\n")
    member = script.world.members["g2"]
    promised = member.disk.scalars.promised
    membership = member.running.layers.membership
    membership._leader_missed = limits.BOOT_HEARTBEATS_MAX  # it misses its coordinator, and hears three others
    proposed = Received(3, Propose(view_of(99, 3), (2, 3), True), b"g3/1".ljust(16, b"-"))
    actions = member.running.step(proposed, Now(script.world.mono_us, 0))
    refused = [action.message for action in actions if isinstance(action, Send) and isinstance(action.message, Reject)]
    assert refused
    assert "majority" in refused[0].reason
    assert member.disk.scalars.promised == promised


def renumbered() -> WholeScript:
    """A voter with an old log is connected to one of four others. All of these were removed and added again while it was down."""
    script = WholeScript()
    text = (TRANSCRIPTS / "group_renumbered_voters.txt").read_text("utf-8")
    script.run(text[: text.index("# All stop")])
    script.run("kill g1\nkill g2\nkill g3\nkill g4\nstart g1\nstart g5\n----\n")  # a restarted gateway is in no view
    script.run(f"beats {limits.FORCE_HEARTBEATS + 20}\n----\n")
    assert script.world.members["g5"].running.layers.peers.later() == {6}
    return script


def test_nothing_is_forced_by_an_old_log_while_a_gateway_with_a_later_one_is_connected() -> None:
    script = renumbered()
    (denied,) = asked(script, "g5", gateway="g5")
    assert isinstance(denied, Denied)
    assert "a later roster names" in denied.reason
    script.run("kill g1\nbeats 10\n----\n")
    assert asked(script, "g5", gateway="g5") == []
    script.run("until answer g5 s1 #1 Done\n----\n")


@pytest.mark.parametrize(("members", "refused"), [((4, 5), True), ((4, 5, 6), False)])
def test_a_member_connected_to_one_with_a_later_log_does_not_promise_a_forced_view_without_it(
    members: tuple[int, ...], refused: bool
) -> None:
    script = renumbered()
    member = script.world.members["g5"]
    script.world.step(member, Received(4, Propose(view_of(99, 4), members, True), b"g4/1".ljust(16, b"-")))
    assert (member.running.layers.flush.hard_state.promised != view_of(99, 4)) == refused


def test_the_operator_gets_the_reason_of_a_missing_answer() -> None:
    script = two()
    assert asked(script, "g1", "g2") == []
    script.run("kill g2\nuntil answer g1 s1 #1 Denied\n----\n")
    denied = script.world.members["g1"].replies[-1][1]
    assert isinstance(denied, Denied)
    assert denied.retry
    assert "no answer came in time from gateway 'g2'" in denied.reason


def test_the_last_one_of_three_continues_alone() -> None:
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g3 s1 ewr\nkill g1\nkill g2\nbeats 80\n----\n")
    script.run("force g3 s1 #9 g3\nuntil answer g3 s1 #9 Done\nuntil primary g3\n----\n")
    script.run(
        "client g3 s2 jfk\nsubmit g3 s2 p2/1 1+10\nuntil committed p2/1 1+10 g3\nkill g3\nstart g3\nuntil primary g3\n----\n"
    )
    state = script.world.members["g3"].running.layers.context.window.state
    assert coordinator_of(state.forced) == 3
    assert [voter.name for voter in state.roster.values()] == ["g3"]
    assert script.finish() == []


def test_a_named_member_does_not_leave_because_of_a_heartbeat() -> None:
    """Only a roster that was forced later than its own can exclude a member."""
    script = two()
    script.run("force g1 s1 #9 g1 g2\nuntil answer g1 s1 #9 Done\n----\n")
    member = script.world.members["g2"]
    window = member.running.layers.context.window
    base = Heartbeat(sent_us=1, log=window.log(), end=window.end, frontier=window.frontier, out=True)
    for forced in (0, view_of(1, 1), window.state.forced):
        beat = msgspec.structs.replace(base, forced=forced, forced_at=1 if forced else 0)
        script.world.step(member, Received(1, beat, b"g1/1".ljust(16, b"-")))
        assert not member.halted
    beat = msgspec.structs.replace(base, forced=window.state.forced + (1 << 16), forced_at=1)
    script.world.step(member, Received(1, beat, b"g1/1".ljust(16, b"-")))
    assert "continued without gateway 'g2'" in member.halted


def removed_undecided(group: str, removed: str, lost: str, message: str = "CONFIRM") -> WholeScript:
    """A group whose `lost` gateways are permanently gone, and whose others have the removal of a voter undecided, because each
    `message` was lost.
    """
    script = WholeScript()
    script.run(f"quiet\ngateways {group}\nuntil primary {group}\nbeats 2\nlose {message} *>*\nlose HEARTBEAT *>*\n----\n")
    script.run(f"roster g1 s1 #5 remove {removed}\nsettle\n----\n")
    script.run("".join(f"kill {name}\n" for name in lost.split()) + f"heal\nbeats {limits.FORCE_HEARTBEATS + 20}\n----\n")
    return script


@pytest.mark.parametrize("removed", ["g1", "g2"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_member_with_an_undecided_removal_continues_by_force_alone(removed: str, restarted: bool) -> None:
    """The last decided roster still counts, and with it the lost gateway."""
    script = removed_undecided("g1 g2", removed, "g1")
    if restarted:
        script.run(f"kill g2\nstart g2\nbeats {limits.FORCE_HEARTBEATS + 20}\n----\n")
    waits = "not heard of g1; 2 of 2 voters and 1 of 1 voters are needed: a change of the roster is undecided"
    assert GroupStatus(script.world.members["g2"].running).waits == waits
    assert asked(script, "g2", gateway="g2") == []
    script.run("until answer g2 s1 #1 Done\nuntil primary g2\nkill g2\nstart g2\nuntil primary g2\n----\n")
    assert [voter.name for voter in script.world.members["g2"].running.decided.roster.values()] == ["g2"]
    assert script.world.members["g2"].me == 2
    assert script.finish() == []


def test_a_gateway_with_an_undecided_removal_is_not_excluded_while_it_is_connected() -> None:
    """It may hold what those who remain lack."""
    script = removed_undecided("g1 g2 g3", "g1", "g3", "YES")
    (denied,) = asked(script, "g2", gateway="g2")
    assert isinstance(denied, Denied)
    assert "gateway g1 is heard" in denied.reason
    assert asked(script, "g1", "g2", gateway="g2") == []
    script.run("until answer g2 s1 #1 Done\nuntil primary g1 g2\nuntil same-log g1 g2\n----\n")
    assert [voter.name for voter in script.world.members["g2"].running.decided.roster.values()] == ["g1", "g2"]
    assert script.finish() == []


@pytest.mark.parametrize("removed", ["g1", "g2"])
def test_all_voters_of_a_removal_that_is_undecided_need_no_force(removed: str) -> None:
    script = removed_undecided("g1 g2", removed, "g1")
    (denied,) = asked(script, "g1", "g2", gateway="g2")
    assert isinstance(denied, Denied)
    assert "nothing to force; start the voters that are not heard" in denied.reason
    script.run("start g1\nuntil primary g2\n----\n")
    assert script.finish() == []


def test_a_group_of_two_continues_by_force_when_one_has_lost_its_disk() -> None:
    """A new disk takes the place of the old one by a majority of the roster, which one of two is not."""
    script = WholeScript()
    script.run("quiet\ngateways g1 g2\nuntil primary g1 g2\nclient g2 s1 ewr\nsubmit g2 s1 p1/1 1+10\n----\n")
    script.run("until committed p1/1 1+10 g1 g2\nkill g1\nwipe g1\nstart g1\nbeats 60\n----\n")
    script.run("roster g2 s2 #1 replace g1\nuntil answer g2 s2 #1 Denied\n----\n")
    others = {one.name: one for one in GroupStatus(script.world.members["g2"].running).members()}
    for reason in (GroupStatus(script.world.members["g1"].running).reason, others["g1"].reason):
        assert disk_remedy("g1", others_decide=False) in reason
        assert "members replace" not in reason
    script.run("kill g1\nbeats 10\n----\n")
    assert asked(script, "g2", gateway="g2") == []
    script.run("until answer g2 s1 #1 Done\nstart g1\nroster g2 s2 #3 add g1 g1:7400\nuntil votes g1\nuntil same-log g1 g2\n----\n")
    assert sorted(voter.name for voter in script.world.members["g1"].running.decided.roster.values() if voter.voting) == [
        "g1",
        "g2",
    ]
    assert script.finish() == []


@pytest.mark.parametrize(
    ("message", "obstacle"),
    [
        ("STATE", "no answer yet from gateway 'g2'"),
        ("INSTALLED", "gateway 'g2' must store the view"),
        ("YES", "its view is installed, and not decided yet"),
    ],
)
def test_a_second_request_gets_the_reason_why_the_first_is_not_done(message: str, obstacle: str) -> None:
    script = two()
    script.run(f"hold {message} g2>g1\n----\n")
    assert asked(script, "g1", "g2") == []
    script.run("beats 2\n----\n")
    script.world.step(script.world.members["g1"], RosterForced(1, 2, ("g1", "g2")))
    denied = script.world.members["g1"].replies[-1][1]
    assert isinstance(denied, Denied)
    assert denied.reason == f"an earlier request forces the roster g1, g2 here, and is not done: {obstacle}; ask again"
    script.run(f"let {message} g2>g1\nuntil answer g1 s1 #1 Done\n----\n")


def test_a_forced_roster_that_is_not_decided_in_time_is_denied_with_the_reason() -> None:
    script = two()
    script.run("lose YES *>*\n----\n")
    assert asked(script, "g1", "g2") == []
    script.run(f"beats {limits.ROSTER_WAIT_HEARTBEATS + 3}\n----\n")
    denied = script.world.members["g1"].replies[-1][1]
    assert isinstance(denied, Denied)
    assert denied.retry
    assert denied.reason == "the roster was not forced in time: its view is installed, and not decided yet; ask again"


def test_a_gateway_with_an_empty_log_forces_no_roster_and_is_left_out() -> None:
    script = two()
    script.run("kill g2\nwipe g2\nstart g2\nkill g1\nbeats 5\n----\n")
    (denied,) = asked(script, "g1", "g2", gateway="g2")
    assert isinstance(denied, Denied)
    assert denied.reason.startswith("the log of gateway 'g2' has no roster yet: leave g2 out")
