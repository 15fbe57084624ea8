"""Tests of transactions: staged batches have no offsets until one TXN makes them visible, once, and an invalid TXN
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import VIEW, answers, three
from tutti import limits
from tutti.data.client_protocol import AbortedAnswer, Committed, Duplicate, RefusedAnswer
from tutti.data.frames.bodies import AbortBody, Entry, TxnBody, encode_body
from tutti.data.frames.frame import STAGED, Frame, Kind
from tutti_gateway.core.protocol.events import EpochAsked, ForgetAsked, Received, SpaceChanged, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Forward, Order

STAGER, COMMITTER, OTHER = 1, 2, 3  # producers
NAMES = {STAGER: "stager", COMMITTER: "committer", OTHER: "other"}


def staged(first: int, count: int = 1, producer: int = STAGER, epoch: int = 1, flags: int = STAGED) -> Frame:
    return Frame(
        Kind.BATCH,
        b"body",
        flags=flags,
        producer=producer,
        epoch=epoch,
        first_sequence=first,
        count=count,
        topic=1,
        min_timestamp=10 * first,
        max_timestamp=10 * first + count,
    )


def txn(
    parts: Sequence[Frame], first: int = 1, producer: int = COMMITTER, epoch: int = 1, body: TxnBody | None = None, more: int = 0
) -> Frame:
    """Of batches that have a place; `more` records are said than they have."""
    body = body or TxnBody(tuple([part.position for part in parts]), tuple([part.count for part in parts]))
    return Frame(
        Kind.TXN,
        encode_body(body),
        producer=producer,
        epoch=epoch,
        first_sequence=first,
        count=sum(body.counts) + more or 1,
        topic=1,
        min_timestamp=min([part.min_timestamp for part in parts], default=0),
        max_timestamp=max([part.max_timestamp for part in parts], default=0),
    )


def ready(**config: int) -> Group:
    """Three gateways; each producer is open at the one of its number, in the session of its number."""
    group = three(**config)
    for number, member in enumerate(group.members.values(), 1):
        group.step(member, TopicAsked(number, 1, "t"))
        group.step(member, EpochAsked(number, 2, NAMES[number], incarnation(NAMES[number]), 1))
        group.settle()
    return group


def submit(group: Group, *frames: Frame, at: str = "", settle: bool = True) -> None:
    member = group.members[at or f"g{frames[0].producer}"]
    group.step(member, submitted(frames[0].producer, frames))
    if settle:
        group.settle()


def placed(group: Group) -> list[Frame]:
    """What producers sent, as the log has it now."""
    return [frame for frame in group.members["g1"].log if frame.kind in (Kind.BATCH, Kind.TXN)]


def stage(group: Group, *sizes: int) -> list[Frame]:
    """Decided batches of the stager, of so many records."""
    first = group.members["g1"].stack.decided.producers[STAGER].sequence + 1
    frames = []
    for size in sizes:
        frames.append(staged(first, size))
        first += size
    before = len(placed(group))
    submit(group, *frames)
    return placed(group)[before:]


def refused(member: Member) -> list[tuple[int, str, bool]]:
    return [(one.first_sequence, one.code, one.retry) for one in answers(member, RefusedAnswer) if isinstance(one, RefusedAnswer)]


def committed(member: Member) -> list[tuple[int, int, int]]:
    """(sequence, records, place) of what the gateway's clients were told."""
    return [(one.first_sequence, one.count, one.offset) for one in answers(member, Committed) if isinstance(one, Committed)]


def says(group: Group) -> tuple[int, list[int]]:
    """Offset and staged positions as everybody has them decided; the tables at the log's end hold nothing more."""
    assert group.problems == []
    states = [member.stack.decided for member in group.members.values()]
    assert states[0] == states[1] == states[2]
    for member in group.members.values():
        received = member.stack.layers.order.received
        assert (received._staged, received._visible, received.staged_count) == ({}, {}, len(states[0].staged))
    return states[0].next_offset, list(states[0].staged)


# What becomes visible, and when


def test_a_staged_batch_is_answered_with_its_position_and_has_no_offset() -> None:
    group = ready()
    parts = stage(group, 2, 3)
    assert committed(group.members["g1"]) == [(1, 2, parts[0].position), (3, 3, parts[1].position)]
    assert says(group) == (0, [part.position for part in parts])
    assert not group.members["g1"].stack.decided.dirty, "there is nothing for a tick"
    assert not group.members["g1"].stack.layers.order.received.dirty


def test_a_transaction_assigns_offsets_at_its_own_position_in_the_named_order() -> None:
    group = ready()
    one, two = stage(group, 2, 3)
    submit(group, staged(1, 4, OTHER, flags=0))
    submit(group, txn((two, one)))
    submit(group, staged(5, 1, OTHER, flags=0))
    assert committed(group.members["g2"]) == [(1, 5, 4)]
    assert committed(group.members["g3"]) == [(1, 4, 0), (5, 1, 9)]
    assert says(group) == (10, [])
    assert group.members["g1"].stack.decided.producers[COMMITTER].sequence == 5
    assert group.members["g1"].stack.decided.topics[1].records == 10


def test_a_duplicate_is_a_duplicate_while_it_is_undecided_and_after() -> None:
    group = ready()
    parts = stage(group, 1)
    submit(group, txn(parts), settle=False)
    submit(group, txn(parts), at="g3", settle=False)
    group.settle()
    assert committed(group.members["g2"]) == [(1, 1, 0)]
    assert committed(group.members["g3"]) == [(1, 1, 0)], "the same transaction through another gateway"
    submit(group, txn(parts), at="g1")
    assert [one for one in answers(group.members["g1"], Duplicate) if isinstance(one, Duplicate)] == [Duplicate(COMMITTER, 1, 1, 1)]
    assert [refused(member) for member in group.members.values()] == [[], [], []]
    assert says(group) == (1, [])


def test_of_two_transactions_over_one_batch_one_wins() -> None:
    group = ready()
    one, two = stage(group, 1, 1)
    submit(group, txn((one, two)), settle=False)
    submit(group, txn((two,), producer=OTHER), settle=False)
    group.settle()
    assert committed(group.members["g2"]) == [(1, 2, 0)]
    assert refused(group.members["g3"]) == [(1, "staged", False)]
    submit(group, txn((one,), producer=OTHER))
    assert refused(group.members["g3"])[1:] == [(1, "staged", False)]
    assert says(group) == (2, [])


def test_a_transaction_waits_for_its_producers_undecided_batches() -> None:
    group = ready()
    (part,) = stage(group, 1)
    submit(group, staged(1, 1, COMMITTER, flags=0), txn((part,), first=2), settle=False)
    while group.network:
        group.deliver()
    assert [frame.kind for frame in group.members["g1"].stack.layers.context.window.frames] == [Kind.BATCH]
    group.settle()
    assert committed(group.members["g2"]) == [(1, 1, 0), (2, 1, 1)]
    assert says(group) == (2, [])


def test_later_batches_of_its_producer_do_not_wait_for_a_transaction() -> None:
    group = ready()
    (part,) = stage(group, 1)
    submit(group, txn((part,)), staged(2, 1, COMMITTER), settle=False)
    while group.network:
        group.deliver()
    assert [frame.kind for frame in group.members["g1"].stack.layers.context.window.frames] == [Kind.TXN, Kind.BATCH]
    group.settle()
    offset, waiting = says(group)
    assert (offset, len(waiting)) == (1, 1)


# What is refused


BAD: dict[str, Callable[[list[Frame]], Frame]] = {
    "unknown": lambda parts: txn((), body=TxnBody((999_999,), (1,))),
    "no-batch": lambda parts: txn((), body=TxnBody((1,), (1,))),
    "nothing": lambda parts: txn((), body=TxnBody((), ())),
    "twice": lambda parts: txn((parts[0], parts[0])),
    "counts-missing": lambda parts: txn(parts, body=TxnBody(tuple([part.position for part in parts]), (2,))),
    "other-count": lambda parts: txn(parts[:1], body=TxnBody((parts[0].position,), (1,))),
    "other-sum": lambda parts: txn(parts, more=1),
    "other-times": lambda parts: txn(parts, body=TxnBody((parts[0].position,), (2,))),
}


@pytest.mark.parametrize("name", BAD)
def test_a_transaction_that_cannot_be_is_refused_and_changes_nothing(name: str) -> None:
    group = ready()
    parts = stage(group, 2, 3)
    before = group.members["g1"].stack.decided.copy()
    submit(group, BAD[name](parts))
    assert refused(group.members["g2"]) == [(1, "staged", False)]
    assert group.members["g1"].stack.decided == before
    submit(group, txn(parts))
    assert committed(group.members["g2"]) == [(1, 5, 0)]
    assert says(group) == (5, [])


def test_a_body_that_is_none_is_refused() -> None:
    group = ready()
    frame = Frame(Kind.TXN, b"\xc1", producer=COMMITTER, epoch=1, first_sequence=1, count=1, topic=1)
    submit(group, frame)
    assert refused(group.members["g2"]) == [(1, "staged", False)]
    assert says(group) == (0, [])


def test_a_spent_batch_is_not_staged_any_more_for_any_producer() -> None:
    group = ready()
    parts = stage(group, 1)
    submit(group, txn(parts))
    submit(group, txn(parts, first=2))
    submit(group, txn(parts, producer=OTHER))
    assert refused(group.members["g2"]) == [(2, "staged", False)]
    assert refused(group.members["g3"]) == [(1, "staged", False)]
    assert says(group) == (1, [])


@pytest.mark.parametrize("decided", [True, False])
def test_a_new_epoch_releases_the_batches_of_the_one_before(decided: bool) -> None:
    group = ready()
    parts = stage(group, 1)
    group.step(group.members["g1"], EpochAsked(STAGER, 3, NAMES[STAGER], incarnation("again"), 2))
    if decided:
        group.settle()
    submit(group, txn(parts))
    assert refused(group.members["g2"]) == [(1, "staged", False)]
    assert says(group) == (0, [])
    submit(group, staged(2, epoch=2))
    offset, waiting = says(group)
    assert (offset, len(waiting)) == (0, 1), "the new epoch stages for itself"


@pytest.mark.parametrize("decided", [True, False])
def test_a_producer_that_is_forgotten_has_nothing_staged(decided: bool) -> None:
    group = ready()
    parts = stage(group, 1)
    group.step(group.members["g1"], ForgetAsked(9, 3, (NAMES[STAGER],)))
    if decided:
        group.settle()
    submit(group, txn(parts))
    assert refused(group.members["g2"]) == [(1, "staged", False)]
    assert says(group) == (0, [])


def test_a_transaction_ordered_before_the_stagers_epoch_stays_valid() -> None:
    group = ready()
    parts = stage(group, 1)
    submit(group, txn(parts), settle=False)
    while group.network:
        group.deliver()
    group.step(group.members["g1"], EpochAsked(STAGER, 3, NAMES[STAGER], incarnation("again"), 2))
    group.step(group.members["g1"], ForgetAsked(9, 4, (NAMES[OTHER],)))
    group.settle()
    assert committed(group.members["g2"]) == [(1, 1, 0)]
    assert says(group) == (1, [])


def test_more_than_may_be_staged_is_refused_until_some_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_BATCHES_MAX", 3)
    group = ready()
    submit(group, staged(1), staged(2), staged(3), staged(4), settle=False)
    group.settle()
    first, second, third = placed(group)
    assert refused(group.members["g1"]) == [(4, "limit", False)]
    submit(group, txn((first, second)), settle=False)
    group.settle()
    submit(group, staged(4), staged(5), staged(6))
    assert refused(group.members["g1"])[1:] == [(6, "limit", False)]
    offset, waiting = says(group)
    assert (offset, waiting[0], len(waiting)) == (2, third.position, 3)


# Aborts


def fills_up(group: Group, name: str) -> None:
    """The gateway says NO to the next batch, as if its disk had run low after the last look at it."""
    group.members[name].stack.layers.atomic._low = "it filled up"


def has_room(group: Group, name: str) -> None:
    group.step(group.members[name], SpaceChanged(False, ""))
    group.settle()


def test_a_staged_batch_that_is_aborted_is_not_staged() -> None:
    group = ready()
    (one,) = stage(group, 1)
    fills_up(group, "g2")
    submit(group, staged(2), staged(3))
    has_room(group, "g2")
    assert [
        answer.first_sequence for answer in answers(group.members["g1"], AbortedAnswer) if isinstance(answer, AbortedAnswer)
    ] == [
        2,
        3,
    ]
    assert says(group) == (0, [one.position])
    void = placed(group)[1]
    submit(group, txn((one, void)))
    submit(group, txn((void,)))
    assert refused(group.members["g2"]) == [(1, "staged", False)] * 2
    submit(group, txn((one,)))
    assert says(group) == (1, []), "an epoch that is closed keeps what it staged"


def test_a_position_that_is_not_decided_yet_may_not_be_named_since_it_may_be_aborted() -> None:
    group = ready()
    fills_up(group, "g3")
    submit(group, staged(1), settle=False)
    while group.network and not placed(group):
        group.deliver()
    (part,) = group.members["g1"].stack.layers.context.window.frames
    submit(group, txn((part,)), settle=False)
    group.settle()
    has_room(group, "g3")
    assert refused(group.members["g2"]) == [(1, "staged", False)]
    assert says(group) == (0, [])


def test_a_batch_after_a_transaction_is_aborted_and_the_transaction_stays() -> None:
    group = ready()
    parts = stage(group, 2)
    fills_up(group, "g3")
    submit(group, txn(parts), staged(3, 1, COMMITTER), settle=False)
    group.settle()
    has_room(group, "g3")
    assert committed(group.members["g2"]) == [(1, 2, 0)]
    assert len(answers(group.members["g2"], AbortedAnswer)) == 1
    assert says(group) == (2, [])
    line = group.members["g1"].stack.decided.producers[COMMITTER]
    assert (line.sequence, line.closed) == (2, True)


# A coordinator that is wrong, and views


def order(group: Group, *frames: Frame) -> None:
    """Member g2 gets these as its coordinator's next ones."""
    member = group.members["g2"]
    window = member.stack.layers.context.window
    end, chain = window.end, window.chain
    for frame in frames:
        end += 1
        frame.origin = 1
        frame.stamp(VIEW, end, chain)
        chain = frame.header_crc
        group.step(member, Received(1, Order(VIEW, (frame,))))


@pytest.mark.parametrize("name", list(BAD))
def test_a_member_refuses_an_impossible_transaction(name: str) -> None:
    group = ready()
    parts = stage(group, 2, 3)
    member = group.members["g2"]
    end = member.stack.layers.context.window.end
    order(group, BAD[name](parts))
    received = member.stack.layers.order.received
    assert (member.stack.layers.context.window.end, received.lines, received._visible) == (end, {}, {})
    order(group, txn(parts))
    assert member.stack.layers.context.window.end == end + 1


def test_a_member_refuses_a_transaction_over_batches_of_another_undecided_one() -> None:
    group = ready()
    parts = stage(group, 1)
    member = group.members["g2"]
    order(group, txn(parts), txn(parts, producer=OTHER))
    assert [frame.producer for frame in member.stack.layers.context.window.frames] == [COMMITTER]


@pytest.mark.parametrize("of", [STAGER, COMMITTER])
def test_a_member_refuses_an_abort_that_reaches_over_a_transaction(of: int) -> None:
    group = ready()
    member = group.members["g2"]
    window = member.stack.layers.context.window
    part = staged(1)
    order(group, part)
    order(group, txn((part,)))
    state, first = member.stack.decided.producers[of], window.end - (of == STAGER)
    body = AbortBody(first, "why", Entry(state.instance, 1, 0, b""))
    order(group, Frame(Kind.ABORT, encode_body(body), producer=of, epoch=1))
    assert [frame.kind for frame in window.frames] == [Kind.BATCH, Kind.TXN]


def test_a_transaction_with_flags_is_not_ordered() -> None:
    group = ready()
    parts = stage(group, 1)
    good = txn(parts)
    bad = txn(parts)
    bad.flags = STAGED
    group.step(group.members["g1"], Received(3, Forward(VIEW, (bad,))))
    group.settle()
    assert says(group) == (0, [parts[0].position])
    submit(group, good)
    assert says(group) == (1, [])


def test_undecided_batches_enter_the_next_view_with_its_table() -> None:
    """What was staged, and the transaction, are decided under another coordinator, whose table is made again."""
    group = ready()
    (one,) = stage(group, 2)
    submit(group, staged(3), settle=False)
    submit(group, txn((one,)), settle=False)
    while group.network:
        group.deliver()
    assert {member.stack.layers.context.window.frontier for member in group.members.values()} == {one.position}
    for member in group.members.values():
        received = member.stack.layers.order.received
        before = dict(received._staged), list(received._visible), received.staged_count
        member.stack.layers.order.rebuild()
        assert (received._staged, list(received._visible), received.staged_count) == before
        assert (len(before[0]), before[1], before[2]) == (1, [one.position], 1)
    group.give_view(2 << 16 | 3)
    group.settle()
    assert committed(group.members["g2"]) == [(1, 2, 0)]
    offset, waiting = says(group)
    assert (offset, len(waiting)) == (2, 1)
    submit(group, txn((one,), producer=OTHER))
    assert refused(group.members["g3"]) == [(1, "staged", False)]


def test_a_truncation_returns_the_batches_spent_by_an_undecided_transaction() -> None:
    group = ready()
    (one,) = stage(group, 2)
    submit(group, staged(3), settle=False)
    submit(group, txn((one,)), settle=False)
    while group.network:
        group.deliver()
    member = group.members["g2"]
    received, frames = member.stack.layers.order.received, list(member.stack.layers.context.window.frames)
    assert (list(received._staged), list(received._visible)) == ([frames[0].position], [one.position])
    member.stack.layers.truncate(frames[0].position)
    assert (list(received._staged), received._visible) == ([frames[0].position], {})
    member.stack.layers.truncate(one.position)
    assert (received._staged, received._visible, received.staged_count) == ({}, {}, 1)
