"""Tests of the group status: what a gateway reports of itself and of others, from the first heartbeat to a group with members
disconnected or removed.
"""

from __future__ import annotations

from random import Random

from tests.transcripts.network import rule
from tests.transcripts.whole import USUAL, Gateway, Whole
from tests.unit.core.stacks import batches
from tutti.data.client_protocol import Denied
from tutti.errors import disk_remedy
from tutti_gateway.core.protocol.events import EpochAsked, LeaveAsked, RosterAsked, SpaceChanged, StackConfig, TopicAsked, submitted
from tutti_gateway.core.stack import Stack
from tutti_gateway.core.view.group_status import GroupStatus, Member

SECOND = 1_000_000
NAMES = ("g1", "g2", "g3")


def group(*started: str) -> Whole:
    world = Whole(StackConfig(), lambda *_: None, USUAL)
    for name in NAMES:
        world.add(name, {other: f"{other}:7400/7409" for other in NAMES})
    for name in started or NAMES:
        world.start(name)
    world.run(3 * SECOND)
    return world


def later(world: Whole, seconds: float) -> None:
    world.run(world.mono_us + int(seconds * SECOND))


def seen(gateway: Gateway) -> dict[str, Member]:
    return {member.name: member for member in GroupStatus(gateway.running).members()}


def states(gateway: Gateway) -> dict[str, str]:
    return {name: member.state for name, member in seen(gateway).items()}


def cut(world: Whole, name: str) -> None:
    world.network.split([[name], [other for other in NAMES if other != name]])


def test_a_stack_before_its_start_knows_no_member() -> None:
    stack = Stack(Random)
    told = GroupStatus(stack)
    assert (told.state, told.members(), told.reason, told.waits, told.view) == ("joining", [], "", "", (0, (), 0))
    assert told.repair == {}


def test_a_whole_group_is_primary_and_has_one_coordinator() -> None:
    world = group()
    for name in NAMES:
        gateway = world.members[name]
        assert GroupStatus(gateway.running).state == "primary"
        told = seen(gateway)
        assert states(gateway) == dict.fromkeys(NAMES, "primary")
        assert [member.number for member in told.values()] == [1, 2, 3]
        assert [member.name for member in told.values() if member.coordinator] == ["g1"]
        assert [member.age for member in told.values()] == [1, 2, 3]
        assert all(member.voter for member in told.values())
        assert told["g2"].address == "g2:7400/7409"
        assert told["g3"].incarnation == world.members["g3"].disk.incarnation
        assert GroupStatus(gateway.running).view == (1 << 16 | 1, (1, 2, 3), 1)


def test_before_all_members_connect_none_is_primary() -> None:
    world = group("g1", "g2")
    gateway = world.members["g1"]
    assert GroupStatus(gateway.running).state == "joining"
    assert states(gateway) == {"g1": "joining", "g2": "joining", "g3": "silent"}
    assert seen(gateway)["g3"].heard_us == -1
    assert GroupStatus(gateway.running).waits == "the group is founded when g3 is running too: not heard of"
    assert seen(gateway)["g1"].reason == GroupStatus(gateway.running).waits
    world.start("g3")
    later(world, 3)
    assert (GroupStatus(gateway.running).state, GroupStatus(gateway.running).waits) == ("primary", "")
    assert {member.reason for member in seen(gateway).values()} == {""}


def test_a_lone_gateway_at_a_first_start_names_the_missing_ones() -> None:
    waits = GroupStatus(group("g1").members["g1"].running).waits
    assert waits.startswith("the group is founded when g2 and g3 are running too: not heard of; if the group exists already")


def test_gateways_with_other_members_in_their_configuration_say_so() -> None:
    world = Whole(StackConfig(), lambda *_: None, USUAL)
    for name in NAMES:
        world.add(name, {other: f"{other}:{7400 + (name == 'g3')}" for other in NAMES})
        world.start(name)
    later(world, 3)
    g1 = world.members["g1"]
    assert GroupStatus(g1.running).waits == "g3 has other `group.members` than this gateway: configure the same members everywhere"
    assert seen(g1)["g3"].reason == "has other `group.members` than the gateway that was asked"
    assert GroupStatus(world.members["g3"].running).waits.startswith("g1 and g2 have other `group.members`")


def test_a_disconnected_member_is_a_minority_and_silent_to_the_others() -> None:
    world = group()
    cut(world, "g3")
    later(world, 0.5)
    assert GroupStatus(world.members["g3"].running).state == "primary", "it has not missed anybody yet"
    later(world, 3)
    assert GroupStatus(world.members["g3"].running).state == "joining", "what clients send is kept for the next view"
    later(world, 10)
    assert states(world.members["g3"]) == {"g1": "silent", "g2": "silent", "g3": "minority"}
    assert states(world.members["g1"]) == {"g1": "primary", "g2": "primary", "g3": "silent"}
    silent = seen(world.members["g1"])["g3"]
    assert (silent.age, silent.voter) == (0, True)
    assert silent.heard_us > 10 * SECOND
    assert GroupStatus(world.members["g3"].running).waits == "not heard of g1 and g2; 2 of 3 voters are needed"
    assert GroupStatus(world.members["g1"].running).waits == ""


def test_a_member_without_a_majority_names_the_missing_ones() -> None:
    world = group()
    world.kill("g1", 0)
    later(world, 5)
    world.kill("g2", 0)
    world.wipe("g2")
    later(world, 10)  # nobody is in a view any more, from which it could learn
    world.start("g2")
    later(world, 5)
    g3 = world.members["g3"]
    lacking = "not heard of g1; g2 has another disk than the roster names, and so no vote; 2 of 3 voters are needed"
    assert (GroupStatus(g3.running).state, GroupStatus(g3.running).waits) == ("minority", lacking)
    assert disk_remedy("g2") in seen(g3)["g2"].reason, "g1 may come back, and may be gone for good"
    assert GroupStatus(world.members["g2"].running).waits.startswith("g3 has a log already and this gateway has none")


def test_another_partition_is_reported_by_the_members_it_cannot_reach() -> None:
    world = group()
    world.kill("g1", 0)
    world.network.split([["g2"], ["g3"]])
    later(world, 15)
    world.network.rules.clear()
    world.run(world.mono_us + 5 * SECOND, lambda: seen(world.members["g2"])["g3"].state == "minority")
    assert seen(world.members["g2"])["g3"].reason.startswith("does not hear g1")


def test_an_added_gateway_reports_that_it_catches_up_and_from_which_member() -> None:
    world = group()
    world.slow("g2", True)  # nothing is decided, and nobody taken in
    world.slow("g3", True)
    world.add("g4", {name: f"{name}:7400/7409" for name in (*NAMES, "g4")})
    world.step(world.members["g1"], RosterAsked(1, 1, "add", "g4", "g4:7400/7409"))
    later(world, 0.5)
    world.slow("g2", False)
    world.slow("g3", False)
    world.start("g4")
    said = set()
    for _ in range(100):
        later(world, 0.02)
        own = GroupStatus(world.members["g4"].running)
        said.add((own.reason, own.waits, seen(world.members["g1"])["g4"].reason))
    assert {reason for reason, _, _ in said} == {""}, "it is no other disk than the roster names"
    assert any(waits.startswith("was added, and votes when it has caught up: ") and "that g1" in waits for _, waits, _ in said)
    assert any(told == "was added, and votes when it has caught up" for _, _, told in said)
    assert ("", "", "") in said, "in the end it votes"


def test_lag_counts_the_missing_positions_of_a_member() -> None:
    world = group()
    g1 = world.members["g1"]
    assert {member.lag for member in seen(g1).values()} == {0}
    cut(world, "g3")
    later(world, 5)
    world.step(g1, EpochAsked(1, 1, "p", b"p" * 16, 1))
    world.step(g1, TopicAsked(1, 2, "t"))
    later(world, 1)
    world.step(g1, submitted(1, batches(1, 20)))
    later(world, 1)
    told = seen(g1)
    assert told["g1"].frontier - told["g3"].frontier == told["g3"].lag > 20
    assert told["g2"].lag == 0
    world.network.rules.clear()
    later(world, 0.3)
    assert seen(world.members["g3"])["g3"].lag > 20, "it hears how far the others are before it has learned all of it"
    later(world, 5)
    assert {member.lag for member in seen(g1).values()} == {0}
    assert states(world.members["g3"]) == dict.fromkeys(NAMES, "primary")


def test_a_leaving_gateway_reports_it() -> None:
    world = group()
    world.step(world.members["g2"], LeaveAsked())
    assert GroupStatus(world.members["g2"].running).state == "leaving"
    assert "until the others continue without it" in GroupStatus(world.members["g2"].running).waits
    world.run(world.mono_us + SECOND, lambda: states(world.members["g1"])["g2"] == "leaving")
    assert states(world.members["g1"])["g2"] == "leaving"


def test_a_removed_gateway_gets_its_remedy() -> None:
    world = group()
    world.step(world.members["g1"], RosterAsked(1, 1, "remove", "g3"))
    later(world, 20)
    gone = world.members["g3"].running
    assert GroupStatus(gone).state != "primary"
    assert "members add" in GroupStatus(gone).reason
    assert [member.name for member in GroupStatus(world.members["g1"].running).members()] == ["g1", "g2"]
    assert GroupStatus(world.members["g1"].running).reason == ""
    assert GroupStatus(gone).waits == "", "nobody takes it into a view"


def test_a_removed_gateway_that_starts_again_reports_a_remedy() -> None:
    world = group()
    world.step(world.members["g1"], RosterAsked(1, 1, "remove", "g3"))
    later(world, 20)
    world.kill("g3", 0)
    world.start("g3")
    later(world, 20)
    own = GroupStatus(world.members["g3"].running)
    assert own.state == "minority"
    assert own.reason == "this gateway was removed from the group: it can be stopped, or added again with `tutti members add`"
    assert own.waits == "", "no view takes it in"


def test_a_gateway_with_another_disk_than_the_group_knows_reports_a_remedy() -> None:
    world = group()
    world.kill("g2", 0)
    world.wipe("g2")
    world.start("g2")
    later(world, 5)
    assert GroupStatus(world.members["g2"].running).reason.endswith(disk_remedy("g2", others_decide=True))
    assert seen(world.members["g1"])["g2"].reason.endswith(disk_remedy("g2", others_decide=True))
    assert GroupStatus(world.members["g1"].running).reason == ""


def test_a_full_new_disk_is_known_at_other_gateways_too() -> None:
    """Only its own status said why it does not catch up."""
    world = group()
    world.kill("g2", 0)
    world.wipe("g2")
    world.start("g2")
    world.step(world.members["g2"], SpaceChanged(low=True, reason="3 MB are left"))
    later(world, 5)
    told = seen(world.members["g1"])["g2"].reason
    assert told.startswith("its disk has no free space; has another disk than the roster names")


def test_a_gateway_with_a_full_disk_is_reported_by_name() -> None:
    world = group()
    world.step(world.members["g2"], SpaceChanged(low=True, reason="3 MB are left"))
    later(world, 0.5)
    reason = GroupStatus(world.members["g1"].running).reason
    assert reason == "new messages are refused because a member's disk has no free space: gateway 'g2': 3 MB are left"


def test_lost_and_repaired_messages_are_counted() -> None:
    world = group()
    first, last = world.members["g1"], world.members["g3"]
    before = GroupStatus(last.running).repair
    world.network.rules.append(rule("lose", ["ORDER", "ECHO", "g1>g3"]))
    world.step(first, TopicAsked(1, 1, "t"))
    later(world, 1)
    world.network.rules.clear()
    later(world, 2)
    asked, told = GroupStatus(last.running).repair, [GroupStatus(world.members[name].running).repair for name in ("g1", "g2")]
    assert asked["requests"] > before["requests"]
    assert sum(one["repairs"] for one in told) >= 1
    assert sum(one["repaired_frames"] for one in told) >= 1
    outbox = last.running.layers.context.outbox
    assert asked["dropped_messages"] == outbox.drops


def test_frames_that_arrive_in_sequence_are_counted() -> None:
    world = group()
    first, member = world.members["g1"], world.members["g2"]
    before = GroupStatus(member.running).repair["in_sequence_frames"]
    world.step(first, TopicAsked(1, 1, "t"))
    later(world, 1)
    assert GroupStatus(member.running).repair["in_sequence_frames"] > before
    assert GroupStatus(first.running).repair["in_sequence_frames"] == 0, "the coordinator receives no frames"


def test_a_majority_is_reported_until_a_gateway_is_cut_off() -> None:
    world = group()
    assert not GroupStatus(Stack(Random)).majority
    assert all(GroupStatus(world.members[name].running).majority for name in NAMES)
    cut(world, "g1")
    later(world, 3)
    assert [GroupStatus(world.members[name].running).majority for name in NAMES] == [False, True, True]


def test_a_roster_change_without_a_majority_is_denied_with_the_missing_voters() -> None:
    world = group()
    cut(world, "g1")
    later(world, 6)  # until then, the request waits in the old view
    world.step(world.members["g1"], RosterAsked(1, 5, "remove", "g2"))
    denied = world.members["g1"].replies[-1][1]
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry) == ("not_primary", True)
    assert denied.reason == "this gateway cannot reach a majority: not heard of g2 and g3; 2 of 3 voters are needed"
