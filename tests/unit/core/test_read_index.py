"""Tests of the read index: a gateway confirms its frontier with a majority after the request arrives, and refuses no request
permanently before.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.transcripts.whole import Pace
from tests.transcripts.whole_script import WholeScript
from tests.unit.core.order.test_offset_commits import carry, three_with_records
from tests.unit.core.stacks import VIEW, answers, batches, opened, three
from tutti.data.client_protocol import Denied, Done
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Action, ReadIndex
from tutti_gateway.core.protocol.codec import decode_message
from tutti_gateway.core.protocol.events import (
    ForgetAsked,
    OffsetsAsked,
    Persisted,
    ReadIndexAsked,
    Received,
    SessionClosed,
    TimeAdvanced,
    submitted,
)
from tutti_gateway.core.protocol.messages import Confirm, Heartbeat, Probe


def denials(member: Member) -> list[tuple[str, bool]]:
    """Code of each denial that the member gave, and whether it passes."""
    return [(one.code, one.retry) for one in answers(member, Denied) if isinstance(one, Denied)]


def confirmed(actions: list[Action]) -> list[tuple[int, bool]]:
    return [(action.number, action.confirmed) for action in actions if isinstance(action, ReadIndex)]


def heartbeat(group: Group, member: Member, sender: str, *, promised: int = VIEW, echo_us: int | None = None) -> list[Action]:
    """What follows from a heartbeat of another member."""
    number = group.members[sender].number
    beat = Heartbeat(
        sent_us=1, echo_us=group.mono_us if echo_us is None else echo_us, view=VIEW, promised=promised, accepted=VIEW, misses=False
    )
    return group.step(member, Received(number, beat, incarnation(sender)))


def introduced(group: Group) -> Group:
    """Each knows whose disks the others have, as heartbeats tell it."""
    for member in group.members.values():
        peers = member.stack.layers.peers
        peers.refresh()
        for peer in peers:
            peer.incarnation = incarnation(peer.name)
    group.advance(1000)
    group.settle()
    return group


def asking() -> tuple[Group, Member]:
    """The second member of three has been asked, and nothing of what it says arrives."""
    group = introduced(three_with_records())
    second = group.members["g2"]
    assert confirmed(group.step(second, ReadIndexAsked(7))) == []
    group.network.clear()
    return group, second


def test_a_group_of_one_confirms_its_decided_frontier_at_once() -> None:
    group, member = opened()
    assert confirmed(group.step(member, ReadIndexAsked(1))) == [(1, True)]
    group.step(member, submitted(1, batches(1, 1)))
    assert confirmed(group.step(member, ReadIndexAsked(2))) == []
    assert confirmed(group.step(member, Persisted(member.persists[-1].token))) == [(2, True)]


def test_every_voter_is_asked_and_one_more_is_a_majority_of_three() -> None:
    group = introduced(three_with_records())
    second = group.members["g2"]
    group.step(second, ReadIndexAsked(7))
    asked = [(to.name, type(decode_message(data))) for sender, to, data in group.network if sender is second]
    assert asked == [("g1", Heartbeat), ("g1", Probe), ("g3", Heartbeat), ("g3", Probe)]
    assert confirmed(heartbeat(group, second, "g3")) == [(7, True)]
    assert confirmed(heartbeat(group, second, "g1")) == []


def test_an_answer_to_an_earlier_heartbeat_confirms_nothing() -> None:
    group, second = asking()
    assert confirmed(heartbeat(group, second, "g3", echo_us=group.mono_us - 1)) == []
    assert confirmed(heartbeat(group, second, "g3", echo_us=group.mono_us + 1)) == []
    assert confirmed(heartbeat(group, second, "g3")) == [(7, True)]


def test_a_member_that_promised_a_higher_view_confirms_nothing() -> None:
    group, second = asking()
    assert confirmed(heartbeat(group, second, "g3", promised=VIEW + (1 << 16))) == []
    assert confirmed(heartbeat(group, second, "g1")) == [(7, True)]


def lagging() -> tuple[Group, Member]:
    """Records 20 to 24 are decided at the coordinator, and the second member has them and has not heard of the decision."""
    group = introduced(three_with_records())
    first, second, _ = group.members.values()
    group.step(first, submitted(1, batches(21, 5)))
    while group.network or any(member.persists for member in group.members.values()):
        while group.network:
            group.deliver()
        for member in group.members.values():
            group.persisted(member)
    assert (first.stack.decided.next_offset, second.stack.decided.next_offset) == (25, 20)
    return group, second


def test_the_frontier_reaches_the_end_of_the_log_at_the_time_of_the_request() -> None:
    group, second = lagging()
    assert confirmed(group.step(second, ReadIndexAsked(7))) == []
    assert confirmed(heartbeat(group, second, "g3")) == []  # a majority has answered, and the frontier is too low
    answered: list[tuple[int, bool]] = []
    group.watch = lambda member, event, actions: answered.extend(confirmed(actions))
    while group.network:  # no time passes: the coordinator tells of the decision because it is asked
        group.deliver()
    assert answered == [(7, True)]
    assert second.stack.decided.next_offset == 25


def test_a_question_that_no_majority_answers_ends() -> None:
    group, second = asking()
    for _ in range(limits.READ_INDEX_HEARTBEATS + 1):
        second.stack.layers.read_index.beat()
    assert confirmed(group.step(second, TimeAdvanced())) == [(7, False)]


def sent_by(group: Group, member: Member) -> list[type]:
    return [type(decode_message(data)) for sender, _, data in group.network if sender is member]


def test_questions_that_come_while_one_is_under_way_share_the_next_inquiry() -> None:
    group, second = asking()
    for number in range(100, 2100):
        assert confirmed(group.step(second, ReadIndexAsked(number))) == []
    assert sent_by(group, second) == []
    group.mono_us += 1000
    began_us = group.mono_us
    assert confirmed(heartbeat(group, second, "g3", echo_us=began_us - 1000)) == [(7, True)]
    assert sent_by(group, second) == [Heartbeat, Probe] * 2
    assert confirmed(group.step(second, ReadIndexAsked(8))) == []
    group.mono_us += 1000
    assert confirmed(heartbeat(group, second, "g3", echo_us=began_us - 1)) == []
    assert confirmed(heartbeat(group, second, "g3", echo_us=began_us)) == [(number, True) for number in range(100, 2100)]
    assert confirmed(heartbeat(group, second, "g3", echo_us=began_us)) == []  # the last one came after that inquiry began
    assert confirmed(heartbeat(group, second, "g3")) == [(8, True)]
    assert sent_by(group, second) == [Heartbeat, Probe] * 4


def test_a_question_that_shares_the_next_inquiry_waits_no_longer_than_the_first() -> None:
    group, second = asking()
    second.stack.layers.read_index.beat()
    assert confirmed(group.step(second, ReadIndexAsked(8))) == []
    for _ in range(limits.READ_INDEX_HEARTBEATS - 1):
        second.stack.layers.read_index.beat()
    assert confirmed(heartbeat(group, second, "g3")) == [(7, True), (8, True)]  # no time passes: the answer is to both
    assert confirmed(group.step(second, ReadIndexAsked(9))) == [(9, True)]
    group, second = asking()
    second.stack.layers.read_index.beat()
    assert confirmed(group.step(second, ReadIndexAsked(8))) == []
    for _ in range(limits.READ_INDEX_HEARTBEATS):
        second.stack.layers.read_index.beat()
    assert confirmed(group.step(second, TimeAdvanced())) == [(7, False)]
    second.stack.layers.read_index.beat()
    assert confirmed(group.step(second, TimeAdvanced())) == [(8, False)]
    assert not second.stack.layers.read_index.waiting


def test_a_view_that_ends_answers_all_questions() -> None:
    group, second = asking()
    assert confirmed(group.step(second, ReadIndexAsked(8))) == []
    standing = second.stack.layers.context.view_state
    standing.primary = standing.pausing = False
    assert confirmed(group.step(second, TimeAdvanced())) == [(7, False), (8, False)]
    assert not second.stack.layers.read_index.waiting


def test_wrong_commits_of_one_client_cost_a_few_messages_and_block_no_other() -> None:
    group = introduced(three_with_records())
    second = group.members["g2"]
    for number in range(limits.REQUESTS_A_SESSION_MAX):
        group.step(second, OffsetsAsked(1, number, "r", 10**6))
    assert sent_by(group, second) == [Heartbeat, Probe] * 2
    assert confirmed(group.step(second, ReadIndexAsked(7))) == []
    answered: list[tuple[int, bool]] = []
    group.watch = lambda member, event, actions: answered.extend(confirmed(actions))
    group.settle()
    assert answered == [(7, True)]
    assert denials(second) == [("offset", False)] * limits.REQUESTS_A_SESSION_MAX


def test_a_step_judges_the_inquiry_that_is_under_way_and_not_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    group, second = asking()
    for number in range(100, 300):
        group.step(second, ReadIndexAsked(number))
    judged: list[None] = []
    read_index = second.stack.layers.read_index
    confirms = read_index._confirmed

    def counted(inquiry: Any) -> bool:
        judged.append(None)
        return confirms(inquiry)

    monkeypatch.setattr(read_index, "_confirmed", counted)
    group.step(second, TimeAdvanced())
    assert len(judged) == 1


def test_a_commit_that_a_laggard_cannot_judge_is_for_another_gateway() -> None:
    """It is of a record that was read elsewhere, and nobody answers the laggard."""
    group, second = lagging()
    group.step(second, OffsetsAsked(1, 9, "r", 25))
    group.network.clear()
    assert not answers(second, Denied)
    for _ in range(limits.READ_INDEX_HEARTBEATS + 1):
        second.stack.layers.read_index.beat()
    group.step(second, TimeAdvanced())
    assert denials(second) == [("behind", True)]


def test_a_laggard_accepts_a_commit_once_it_has_caught_up() -> None:
    group, second = lagging()
    group.step(second, OffsetsAsked(1, 9, "r", 25))
    group.settle()
    assert second.stack.decided.readers == {"r": 25}
    assert answers(second, Done) == [Done(9)]


def test_a_laggard_accepts_a_commit_below_a_withdrawn_one_when_asked_again() -> None:
    """The first time it could be the word of a reader that has ended: the log got another commit after it came."""
    group = introduced(three_with_records())
    first, second, _ = group.members.values()
    group.step(second, OffsetsAsked(1, 9, "r", 20))
    group.settle()
    group.step(first, OffsetsAsked(1, 10, "r", 5, back=True))
    while first.stack.decided.readers != {"r": 5}:
        held = [letter for letter in group.network if letter[1] is second and isinstance(decode_message(letter[2]), Confirm)]
        for letter in held:
            group.network.remove(letter)
        if group.network:
            group.deliver()
        else:
            for member in group.members.values():
                group.persisted(member)
    group.network.clear()
    assert second.stack.decided.readers == {"r": 20}
    group.step(second, OffsetsAsked(1, 11, "r", 8, back=False))
    group.advance(limits.HEARTBEAT_US)  # what is lost is said again
    group.settle()
    assert second.stack.decided.readers == {"r": 5}
    assert denials(second) == [("offset", True)]
    group.step(second, OffsetsAsked(1, 11, "r", 8, back=False))
    group.settle()
    assert second.stack.decided.readers == {"r": 8}
    assert answers(second, Done) == [Done(9), Done(11)]


def waiting_commit(offset: int, back: bool, then: int = 25) -> tuple[Group, Member]:
    """A commit waits for the read index at the second member, while the reader commits 23 and another offset at the first."""
    group, second = lagging()
    first = group.members["g1"]
    group.step(second, OffsetsAsked(5, 9, "r", offset, back=back))
    group.network.clear()
    for number, committed in ((10, 23), (11, then)):
        group.step(first, OffsetsAsked(1, number, "r", committed, back=True))
        while group.network or any(member.persists for member in group.members.values()):
            carry(group, lambda to, message: to is second and isinstance(message, Confirm | Heartbeat))
            for member in group.members.values():
                group.persisted(member)
    assert (first.stack.decided.readers, second.stack.decided.readers) == ({"r": then}, {})
    return group, second


def caught_up(group: Group, member: Member) -> None:
    """The member hears that a majority is there, and what was decided."""
    heartbeat(group, member, "g3")
    for _ in range(2 * limits.RESEND_HEARTBEATS):
        group.advance(limits.HEARTBEAT_US)
        group.settle()


@pytest.mark.parametrize(("offset", "back"), [(23, True), (24, False), (25, False)])
def test_a_commit_that_waits_ends_with_its_session(offset: int, back: bool) -> None:
    group, second = waiting_commit(offset, back)
    second.replies.clear()
    group.step(second, SessionClosed(5))
    assert second.stack.layers.order.quiet
    caught_up(group, second)
    assert {name: member.stack.decided.readers for name, member in group.members.items()} == {
        name: {"r": 25} for name in group.members
    }
    assert second.replies == []


@pytest.mark.parametrize("offset", [21, 22, 23, 24, 25])
def test_a_waiting_commit_undoes_no_commit_that_came_later(offset: int) -> None:
    group, second = waiting_commit(offset, back=True)
    caught_up(group, second)
    assert second.stack.decided.readers == group.members["g1"].stack.decided.readers == {"r": 25}
    assert denials(second) == [("offset", offset == 25)]


def test_a_commit_that_waits_skips_nothing_that_its_reader_went_back_to() -> None:
    group, second = waiting_commit(24, back=False, then=21)
    caught_up(group, second)
    assert second.stack.decided.readers == {"r": 21}
    assert denials(second) == [("offset", True)]


def test_a_request_that_is_asked_again_while_it_waits_has_one_answer() -> None:
    group, second = lagging()
    for _ in range(3):
        group.step(second, OffsetsAsked(1, 9, "r", 25))
        group.step(second, ForgetAsked(1, 10, ("nobody",)))
    assert second.stack.layers.order.requests.count == 2
    group.settle()
    assert answers(second, Done) == [Done(9)]
    assert denials(second) == [("unknown", False)]
    assert second.stack.layers.order.requests.count == 0


def test_requests_that_wait_for_the_read_index_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS_MAX", 3)
    group, second = lagging()
    for number in range(5):
        group.step(second, OffsetsAsked(1, number, "r", 30))
    assert denials(second) == [("limit", True)] * 2
    group.settle()
    assert denials(second) == [("limit", True)] * 2 + [("offset", False)] * 3


def test_a_commit_that_no_log_can_accept_is_refused_permanently() -> None:
    group = introduced(three())
    second = group.members["g2"]
    group.step(second, OffsetsAsked(1, 9, "r", 25))
    group.settle()
    assert denials(second) == [("offset", False)]


@pytest.mark.parametrize(
    ("heartbeat_ms", "one_way_ms"),
    [(10, 100), pytest.param(50, 300, marks=pytest.mark.slow), pytest.param(200, 900, marks=pytest.mark.slow)],
)
def test_a_round_trip_of_many_heartbeats_is_waited_for(heartbeat_ms: int, one_way_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = WholeScript(Pace(message_ms=one_way_ms))
    world = script.world
    world.config = msgspec.structs.replace(world.config, heartbeat_us=heartbeat_ms * 1000)
    script.run("quiet\ngateways g1 g2 g3\nbeats 400\nbeats 400\n----\n")
    answered: list[Any] = []
    monkeypatch.setattr(world, "tell", lambda _who, action: answered.append(action))
    world.step(world.members["g2"], ReadIndexAsked(1))
    world.run(world.mono_us + 10_000_000)
    assert confirmed(answered) == [(1, True)]
