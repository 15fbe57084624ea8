"""Tests of the answers to producers: when they come for fences, gaps, aborts and epochs, and what a leaving coordinator still
orders.
"""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.transcripts.whole import Gateway
from tests.transcripts.whole_script import WholeScript
from tests.unit.core.stacks import VIEW, answers, batches, three
from tutti.data.client_protocol import Committed, EpochOpened, Expected, FencedAnswer
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.events import EpochAsked, ForgetAsked, Received, TopicAsked, TrimProposed, submitted
from tutti_gateway.core.protocol.messages import Asking, AskRoster, AskTopic, Forward, No, Vote

P, OTHER = incarnation("p"), incarnation("other")


def producing() -> tuple[Group, Member]:
    """Three gateways; producer 1 is open at g1 at epoch 1, with two decided batches and progress."""
    group = three()
    member = group.members["g1"]
    group.step(member, EpochAsked(1, 1, "p", P, 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    group.step(member, submitted(1, (*batches(1, 1), batch(2, progress=b"two"))))
    group.settle()
    return group, member


def batch(first: int, epoch: int = 1, progress: bytes = b"") -> Frame:
    return Frame(Kind.BATCH, b"body", progress=progress, producer=1, epoch=epoch, first_sequence=first, count=1, topic=1)


def fences(member: Member) -> list[int]:
    return [one.epoch for one in answers(member, FencedAnswer) if isinstance(one, FencedAnswer)]


def expected(member: Member) -> list[int]:
    return [one.sequence for one in answers(member, Expected) if isinstance(one, Expected)]


def opened(member: Member) -> list[tuple[int, int, int, bytes]]:
    """(request, epoch, sequence, progress) of each epoch that clients of the gateway were told of as theirs."""
    found = [one for one in answers(member, EpochOpened) if isinstance(one, EpochOpened)]
    return [(one.request, one.epoch, one.sequence, one.progress) for one in found]


# What rests on something undecided waits for it


def test_a_producer_is_fenced_when_the_epoch_above_its_own_is_decided() -> None:
    """A view change may cut an EPOCH that is only ordered. Nobody has taken the place of the producer then: it must not end."""
    group, member = producing()
    group.step(member, EpochAsked(2, 1, "p", OTHER, 2))
    assert member.log[-1].kind == Kind.EPOCH
    group.step(member, submitted(1, (batch(3),)))
    assert fences(member) == []
    group.settle()
    assert fences(member) == [2]
    assert opened(member)[-1] == (1, 2, 2, b"two")
    assert [frame.first_sequence for frame in member.log if frame.kind == Kind.BATCH] == [1, 2]


def test_a_producer_is_fenced_when_the_forget_of_it_is_decided() -> None:
    """A view change may cut a FORGET as it may cut an EPOCH."""
    group, member = producing()
    group.step(member, ForgetAsked(2, 1, ("p",)))
    assert member.log[-1].kind == Kind.FORGET
    group.step(member, submitted(1, (batch(3),)))
    assert fences(member) == []
    group.settle()
    assert fences(member) == [2]


def test_a_gap_is_refused_when_everything_before_it_is_decided() -> None:
    """An ABORT or a cut may take back what stands before it: the sequence that is expected is not known before that."""
    group, member = producing()
    group.step(member, submitted(1, (batch(3), batch(5))))
    while group.network:
        group.deliver()
    assert expected(member) == []
    group.settle()
    assert expected(member) == [4]


def test_a_no_of_another_view_aborts_nothing() -> None:
    """What stands at its position by now may be another batch, which every member has."""
    group, member = producing()
    group.step(member, submitted(1, (batch(3),)))
    position = member.log[-1].position
    for view in (VIEW - (1 << 16), VIEW + (1 << 16)):
        group.step(member, Received(2, No(view, position, "no space")))
    assert member.log[-1].position == position
    group.step(member, Received(2, No(VIEW, position, "no space")))
    assert [Kind(frame.kind) for frame in member.log[position - 1 :]] == [Kind.BATCH, Kind.ABORT]


def test_a_no_to_a_decided_or_approved_frame_aborts_nothing() -> None:
    group, member = producing()
    decided = member.log[-1].position
    group.step(member, Received(2, No(VIEW, decided, "no space")))
    group.step(member, submitted(1, (batch(3),)))
    position = member.log[-1].position
    group.step(member, Received(2, Vote(VIEW, position)))
    group.step(member, Received(2, No(VIEW, position, "no space")))
    assert member.log[-1].position == position


def test_after_an_abort_an_epoch_continues_with_the_progress_before_the_aborted_batch() -> None:
    """Progress of what was aborted would make a source leave out what is in no log."""
    group, member = producing()
    group.step(member, submitted(1, (batch(3, progress=b"three"),)))
    group.step(member, Received(2, No(VIEW, member.log[-1].position, "no space")))
    while group.network:
        group.deliver()
    for one in group.members.values():  # each member says of its log's end what the coordinator says, decided or not
        line = one.stack.layers.order.received.line(1)
        assert line is not None
        assert (line.sequence, line.progress) == (2, b"two")
    group.step(member, EpochAsked(1, 5, "p", P, 2))
    group.settle()
    assert opened(member)[-1] == (5, 2, 2, b"two")
    for one in group.members.values():
        assert (one.stack.decided.producers[1].sequence, one.stack.decided.producers[1].progress) == (2, b"two")


# After what an epoch continues


def test_a_duplicate_of_an_epoch_gets_its_decision() -> None:
    """A producer takes the answer for what is durable everywhere: what is undecided may still be aborted or cut."""
    group, member = producing()
    group.step(member, submitted(1, (batch(3, progress=b"three"),)))
    group.step(member, EpochAsked(1, 7, "p", P, 1))
    assert opened(member)[-1] == (7, 1, 2, b"two")
    group.settle()
    group.step(member, EpochAsked(1, 8, "p", P, 1))
    assert opened(member)[-1] == (8, 1, 3, b"three")


@pytest.mark.parametrize("name", ["g1", "g2"])
def test_an_epoch_continues_after_the_last_decided_sequence_with_its_progress(name: str) -> None:
    group, _ = producing()
    member = group.members[name]
    group.step(member, EpochAsked(2, 1, "p", OTHER, 2))
    group.settle()
    assert opened(member)[-1] == (1, 2, 2, b"two")


# A coordinator that leaves


def leaving() -> tuple[WholeScript, Gateway]:
    """The coordinator g1 leaves while a batch of g2 is undecided."""
    script = WholeScript()
    output = script.run(
        "quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g2 s2 ewr\nbeats 2\n"
        "hold YES g3>g1\nsubmit g2 s2 p1/1 1+1\nsettle\n"
        "leave g1\nsettle\n----\n"
    )
    assert "WRONG" not in output, output
    return script, script.world.members["g1"]


def ordered(script: WholeScript) -> list[str]:
    """What is undecided at g1, by kind."""
    return [Kind(frame.kind).name for frame in script.world.members["g1"].running.layers.context.window.frames]


def test_a_coordinator_that_leaves_orders_nothing_new() -> None:
    """It stops when everything that it ordered is decided. With more and more to order it would never stop."""
    script, member = leaving()
    standing = member.running.layers.context.view_state
    assert standing.draining
    assert ordered(script) == ["BATCH"]
    view, disk = standing.view, script.world.members["g2"].disk.incarnation
    script.world.step(member, Received(2, Forward(view, (batch(2),)), disk))
    script.world.step(member, Received(2, Asking(view, AskTopic("another")), disk))
    remove = AskRoster("remove", "g3", frontier=member.running.layers.context.window.frontier)
    script.world.step(member, Received(2, Asking(view, remove), disk))
    script.world.step(member, TrimProposed(((2, 0),)))
    assert ordered(script) == ["BATCH"]
    script.run("heal\nsubmit g2 s2 p1/1 2+1\nlet YES g3>g1\nuntil primary g2 g3\nuntil committed p1/1 2+1 g2 g3\n----\n")
    found = [answer for _, answer in script.world.members["g2"].replies if isinstance(answer, Committed)]
    assert [answer.first_sequence for answer in found] == [1, 2]
    assert script.problems == []


# Another disk


def test_a_vote_of_another_disk_than_the_view_began_with_does_not_count() -> None:
    """Votes of a blank disk would decide what no member but the coordinator holds."""
    script = WholeScript()
    script.run(
        "quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g1 s1 ewr\nbeats 2\n"
        "hold YES g3>g1\nsubmit g1 s1 p1/1 1+1\nsettle\n----\n"
    )
    member = script.world.members["g1"]
    context = member.running.layers.context
    end, frontier = context.window.end, context.window.frontier
    assert frontier < end
    drops = context.outbox.drops
    vote = Vote(context.view_state.view, end)
    script.world.step(member, Received(3, vote, b"g3/2".ljust(16, b"-")))
    assert (context.window.frontier, context.outbox.drops) == (frontier, drops + 1)
    script.world.step(member, Received(3, vote, script.world.members["g3"].disk.incarnation))
    assert context.window.frontier == end
