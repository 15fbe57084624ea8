"""Tests of the report of a roster change: it comes only when the removed gateway can stop without blocking the group, and a removed
voter still answers after a restart.
"""

from __future__ import annotations

from tests.transcripts.facts import is_so
from tests.transcripts.whole_script import WholeScript
from tutti.data.client_protocol import Denied
from tutti.data.frames.frame import Kind
from tutti_gateway.core.protocol.events import SessionClosed


def group(*names: str) -> WholeScript:
    script = WholeScript()
    script.run(f"quiet\ngateways {' '.join(names)}\nuntil primary {' '.join(names)}\nbeats 2\n----\n")
    return script


def check(script: WholeScript, *facts: str) -> None:
    for fact in facts:
        holds = is_so(script.world, fact.removeprefix("not ").split())
        assert holds != fact.startswith("not "), fact
    assert not script.problems


def removal(script: WholeScript, name: str) -> int:
    """Position of the last ROSTER on the gateway's disk."""
    return max(frame.position for frame in script.world.members[name].disk.frames if frame.kind == Kind.ROSTER)


def restart(script: WholeScript, watermarks: dict[str, int]) -> None:
    """All of these processes start again; their disks know so much of the log as decided."""
    for name in watermarks:
        script.run(f"kill {name}\n----\n")
    for name, watermark in watermarks.items():
        script.world.members[name].disk.watermark = watermark
        script.run(f"start {name}\n----\n")


def test_the_last_voter_reports_a_removal_when_its_own_disk_knows_it() -> None:
    script = group("g1", "g2")
    script.run("roster g2 s2 #5 remove g1\nsettle\nslow g2\nroster g2 s2 #6 remove g1\nbeats 5\n----\n")
    check(script, "not answer g2 s2 #5 Done", "not answer g2 s2 #6 Done")
    script.run("fast g2\nuntil answer g2 s2 #6 Done\n----\n")
    check(script, "answer g2 s2 #5 Done")
    assert script.world.members["g2"].disk.watermark >= removal(script, "g2")
    script.run("kill g1\npower g2\nstart g2\nuntil primary g2\n----\n")
    check(script, "primary g2")


def test_the_last_voter_reports_a_removal_although_no_other_member_remains() -> None:
    script = group("g1", "g2")
    script.run("roster g2 s2 #5 remove g1\nsettle\nkill g1\nbeats 9\n----\n")
    script.run("roster g2 s2 #6 remove g1\nuntil answer g2 s2 #6 Done\n----\n")
    check(script, "answer g2 s2 #6 Done")
    assert script.world.members["g2"].disk.watermark >= removal(script, "g2")


def test_a_removed_gateway_reports_its_removal_when_a_majority_of_the_remaining_ones_knows_it() -> None:
    script = group("g1", "g2", "g3")
    script.run("roster g3 s3 #5 remove g3\nsettle\nslow g1\nslow g2\nbeats 1\nroster g3 s3 #6 remove g3\nbeats 5\n----\n")
    check(script, "not answer g3 s3 #5 Done", "not answer g3 s3 #6 Done")
    script.run("fast g1\nfast g2\nuntil answer g3 s3 #6 Done\n----\n")
    check(script, "answer g3 s3 #5 Done", "answer g3 s3 #6 Done")


def test_a_change_that_was_decided_before_a_restart_is_reported_when_a_majority_knows_it() -> None:
    script = group("g1", "g2", "g3")
    script.run("roster g1 s1 #5 remove g3\nsettle\n----\n")
    restart(script, {"g1": removal(script, "g1"), "g2": removal(script, "g2") - 1})
    script.run("until primary g1 g2\nslow g2\nroster g1 s1 #6 remove g3\nbeats 5\n----\n")
    check(script, "primary g1 g2", "not answer g1 s1 #6 Done")
    script.run("fast g2\nuntil answer g1 s1 #6 Done\n----\n")
    assert script.world.members["g2"].disk.watermark >= removal(script, "g2")


def test_a_removed_voter_that_starts_again_answers_the_proposal_of_one_that_still_counts_it() -> None:
    script = group("g1", "g2")
    script.run("roster g2 s2 #5 remove g1\nsettle\n----\n")
    restart(script, {"g1": removal(script, "g1"), "g2": removal(script, "g2") - 1})
    script.run("until primary g2\n----\n")
    check(script, "not votes g1", "coordinator g2")


def test_a_removed_founder_of_a_group_that_began_with_it_alone_answers_after_a_restart() -> None:
    script = group("g1")
    script.run("gateway g2 g1\n----\n")
    script.run("roster g1 s1 #5 add g2 g2:7400\nuntil votes g2\nuntil primary g1 g2\nbeats 5\n----\n")
    script.run("roster g2 s2 #6 remove g1\nsettle\n----\n")
    restart(script, {"g1": removal(script, "g1"), "g2": removal(script, "g2") - 1})
    script.run("until primary g2\n----\n")
    check(script, "not halted g1", "coordinator g2")


def test_a_disk_without_the_name_of_a_removed_voter_has_no_number() -> None:
    script = group("g1", "g2", "g3")
    script.run("roster g1 s1 #5 remove g3\nuntil answer g1 s1 #5 Done\nkill g3\n----\n")
    disk = script.world.members["g3"].disk
    disk.watermark, disk.incarnation = disk.durable, b"copied".ljust(16, b"-")
    script.run("start g3\n----\n")
    assert script.world.members["g3"].me == 0, "what another disk promised and voted for is not this one's"


def test_a_change_that_follows_another_one_at_once_does_not_undo_it() -> None:
    script = group("g1", "g2", "g3", "g4")
    script.run("roster g1 s1 #5 add g5 g5:7400\nsettle\nroster g1 s1 #6 remove g4\nsettle\n----\n")
    roster = script.world.members["g1"].running.decided.roster
    assert [voter.name for voter in roster.values()] == ["g1", "g2", "g3", "g5"]


def test_a_group_of_one_reports_that_a_gateway_which_never_started_is_removed() -> None:
    script = group("g1")
    script.world.add("g2", {})
    script.run("roster g1 s1 #5 add g2 g2:7400\nuntil answer g1 s1 #5 Done\n----\n")
    script.run("roster g1 s1 #6 remove g2\nuntil answer g1 s1 #6 Done\n----\n")
    assert script.world.members["g1"].disk.watermark >= removal(script, "g1")
    check(script, "answer g1 s1 #6 Done")


def numbers(script: WholeScript, name: str) -> dict[str, int]:
    """The gateways of the roster that is decided at a gateway."""
    return {voter.name: voter.number for voter in script.world.members[name].running.decided.roster.values()}


def test_a_removed_voter_is_added_again_when_a_majority_knows_that_it_was_removed() -> None:
    """Its old number is still counted elsewhere, and another one is not: neither disk has a majority of its own."""
    script = group("g1", "g2")
    script.run("lose CONFIRM g1>*\nlose HEARTBEAT *>*\nroster g1 s1 #5 remove g1\nsettle\n----\n")
    script.run("roster g1 s1 #6 add g1 g1:7400\nsettle\nkill g2\nheal\nstart g2\nuntil primary g2\n----\n")
    check(script, "primary g2", "not answer g1 s1 #6 Done")
    assert numbers(script, "g2") == {"g2": 2}
    script.run("until answer g1 s1 #6 Denied\nroster g2 s2 #7 add g1 g1:7400\nuntil answer g2 s2 #7 Done\nuntil votes g1\n----\n")
    check(script, "answer g1 s1 #6 Denied", "votes g1")
    assert numbers(script, "g2") == {"g2": 2, "g1": 3}
    assert script.finish() == []


def test_an_addition_that_follows_the_removal_of_the_same_gateway_at_once_waits_and_is_done() -> None:
    script = group("g1", "g2", "g3")
    script.run("lose HEARTBEAT *>*\nroster g1 s1 #5 remove g3\nsettle\nroster g1 s1 #6 add g3 g3:7400\nsettle\n----\n")
    assert numbers(script, "g1") == {"g1": 1, "g2": 2}, "no heartbeat has said yet that a majority knows"
    script.run("heal\nuntil answer g1 s1 #6 Done\nuntil votes g3\n----\n")
    check(script, "answer g1 s1 #5 Done", "answer g1 s1 #6 Done", "votes g3")
    assert numbers(script, "g1") == {"g1": 1, "g2": 2, "g3": 4}
    assert script.finish() == []


def test_another_gateway_is_added_although_no_member_reports_a_removal_as_known() -> None:
    script = group("g1", "g2", "g3")
    script.world.add("g4", {})
    script.run("lose HEARTBEAT *>*\nroster g1 s1 #5 remove g3\nsettle\nroster g1 s1 #6 add g4 g4:7400\nsettle\n----\n")
    assert numbers(script, "g1") == {"g1": 1, "g2": 2, "g4": 4}


def without_a_majority(change: str = "add g4 g4:7400") -> WholeScript:
    """An operator asked for a change just before the majority, with the coordinator, was found to be lost."""
    script = group("g1", "g2", "g3")
    script.run(f"kill g1\nkill g2\nroster g3 s2 #5 {change}\nbeats 60\n----\n")
    check(script, "not answer g3 s2 #5 Done", "not answer g3 s2 #5 Denied")
    return script


def roster(script: WholeScript) -> list[str]:
    return sorted(voter.name for voter in script.world.members["g3"].running.decided.roster.values())


def test_a_request_from_before_a_forced_roster_is_denied_and_not_made() -> None:
    script = without_a_majority()
    script.run("force g3 s1 #9 g3\nuntil answer g3 s1 #9 Done\nuntil answer g3 s2 #5 Denied\nbeats 60\n----\n")
    assert roster(script) == ["g3"]
    denied = next(reply for _, reply in script.world.members["g3"].replies if isinstance(reply, Denied))
    assert (denied.request, denied.retry) == (5, False)
    assert denied.reason == (
        "an operator forced the roster meanwhile, without the change add 'g4'; check `tutti members`, and ask again if needed"
    )


def test_a_request_that_its_client_gave_up_is_not_repeated_when_the_majority_is_back() -> None:
    script = without_a_majority()
    script.world.step(script.world.members["g3"], SessionClosed(2))
    script.run("start g1\nstart g2\nuntil primary g1 g2 g3\nbeats 60\n----\n")
    assert roster(script) == ["g1", "g2", "g3"]


def test_a_request_whose_client_waits_is_made_when_the_majority_is_back() -> None:
    script = without_a_majority("remove g1")
    script.run("start g1\nstart g2\nuntil answer g3 s2 #5 Done\n----\n")
    assert roster(script) == ["g2", "g3"]
