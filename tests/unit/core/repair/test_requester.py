"""Tests of the requester: when a member requests missing frames, from which member, which ranges, and when it leaves the request to
another.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.sim.storm import VIEW
from tests.unit.core.repair.repair_harness import LARGE, MS, Bench, D, chain
from tutti.data.frames.frame import decode_frame
from tutti_gateway.core import limits
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.messages import Message, Missing, Order, Repair, Repairing

FOREVER = 10_000 * MS
FIRST = 3 * D  # C1 + C2 log2(3), and some: the longest that a member of four waits before it asks


def gap(bench: Bench, *missing: int, count: int = 9) -> None:
    """The stream comes without these positions."""
    bench.order(*[frame for frame in chain(count) if frame.position not in missing])


def test_nothing_is_asked_for_while_nothing_is_missing() -> None:
    bench = Bench(2)
    gap(bench)
    assert bench.node.repair.deadline_us is None
    bench.wait(FOREVER)
    assert bench.sent == []


def test_a_gap_is_asked_for_after_a_distance_of_all_and_the_nearest_is_named() -> None:
    bench = Bench(2, distances={3: D, 4: D - MS})
    gap(bench, 4, 5)
    start_us = bench.now_us
    bench.wait(D - MS)
    assert bench.sent == []
    bench.wait(FIRST)
    assert bench.of(Missing) == [(to, Missing(VIEW, ((4, 5),), 4)) for to in (1, 3, 4)]
    assert start_us + D <= bench.now_us


def test_then_the_coordinator_is_named_then_no_member_and_waits_grow_up_to_a_bound() -> None:
    bench = Bench(2, distances={3: D - MS})
    gap(bench, 4)
    bench.wait(FOREVER)
    asked = [(at, message) for at, to, message in bench.sent if to == 1 and isinstance(message, Missing)]
    assert [message.of for _, message in asked[:5]] == [3, 1, 0, 0, 0]
    waits = [later - earlier for (earlier, _), (later, _) in pairwise(asked)]
    longest = limits.REPAIR_ROUND_DISTANCES * D + (FIRST << limits.REPAIR_BACKOFF_MAX)
    assert min(waits) > limits.REPAIR_ROUND_DISTANCES * (D - MS)
    assert max(waits) <= longest
    assert waits[3] >= limits.REPAIR_ROUND_DISTANCES * D + (D << limits.REPAIR_BACKOFF_MAX)
    assert len(asked) >= FOREVER // longest


def test_the_near_member_that_is_named_is_not_waited_for_as_a_typical_one() -> None:
    bench = Bench(2, distances={3: 2 * MS})
    gap(bench, 4)
    bench.wait(FOREVER)
    first, second = [at for at, to, _ in bench.sent if to == 1][:2]
    assert second - first < limits.REPAIR_ROUND_DISTANCES * D + D


def test_of_two_members_one_waits_for_no_other() -> None:
    bench = Bench(2, members=2)
    gap(bench, 4)
    assert bench.node.repair.deadline_us == bench.now_us + limits.REPAIR_ASK_AFTER * D


@pytest.mark.parametrize(
    ("distance_us", "counts_us"),
    [(0, limits.DISTANCE_US_MIN), (3_600_000_000, limits.REPAIR_DISTANCE_US_MAX)],
)
def test_a_distance_that_cannot_be_is_not_believed(distance_us: int, counts_us: int) -> None:
    bench = Bench(2, members=2, distances={1: distance_us})
    gap(bench, 4)
    assert bench.node.repair.deadline_us == bench.now_us + limits.REPAIR_ASK_AFTER * counts_us


def test_a_request_carries_all_gaps_as_ranges_and_neighbours_as_one() -> None:
    bench = Bench(2)
    frames = chain(12)
    bench.order(*frames[:2], frames[4])
    bench.wait(MS)
    bench.order(frames[5], *frames[8:10])
    bench.beat(1, 11)
    bench.wait(MS)
    bench.beat(1, 12)
    bench.wait(FIRST)
    requests = bench.of(Missing)
    assert len(requests) == 3, "a multicast to three others"
    assert requests[0][1].ranges == ((3, 4), (7, 8), (11, 12))


def test_a_request_has_so_many_ranges_and_the_lowest_ones() -> None:
    bench = Bench(2)
    count = 3 * limits.REPAIR_RANGES_MAX
    bench.order(*[frame for frame in chain(count) if frame.position % 2 == 0])
    bench.wait(FIRST)
    assert [message.ranges for _, message in bench.of(Missing)][:1] == [
        tuple((2 * place + 1, 2 * place + 1) for place in range(limits.REPAIR_RANGES_MAX))
    ]


def test_a_range_that_others_requested_in_part_makes_no_longer_request() -> None:
    bench = Bench(2)
    bench.beat(1, 4 * limits.REPAIR_RANGES_MAX)
    bench.receive(3, Missing(VIEW, tuple((2 * place, 2 * place) for place in range(1, limits.REPAIR_RANGES_MAX + 1)), 1))
    bench.wait(2 * D - MS)
    bench.wait(FIRST)
    assert {len(message.ranges) for _, message in bench.of(Missing)} <= set(range(1, limits.REPAIR_RANGES_MAX + 1))


@pytest.mark.parametrize("seed", range(12))
def test_a_member_that_receives_a_request_waits_for_two_distances_at_least(seed: int) -> None:
    bench = Bench(2, seed=str(seed))
    gap(bench, 4)
    bench.receive(3, Missing(VIEW, ((4, 4),), 1))
    bench.wait(2 * D - MS)
    assert bench.of(Missing) == []


def test_a_member_that_receives_an_equal_request_sends_its_own_later_if_nothing_came() -> None:
    bench, alone = Bench(2), Bench(2)
    for one in (bench, alone):
        gap(one, 4, 5)
    bench.wait(D // 2)
    alone.wait(D // 2)
    bench.receive(3, Missing(VIEW, ((1, 9),), 1))
    bench.wait(2 * D - MS)
    assert bench.of(Missing) == []
    alone.wait(FIRST)
    assert alone.of(Missing)
    assert bench.node.repair.requester.suppressed == 1
    bench.wait(2 * FIRST)
    assert bench.of(Missing)[0] == (1, Missing(VIEW, ((4, 5),), 1)), "the nearest had its chance"


def test_only_ranges_that_others_requested_are_left_to_them() -> None:
    bench = Bench(2)
    gap(bench, 4, 5, 7)
    bench.receive(3, Missing(VIEW, ((5, 5),), 1))
    bench.wait(2 * D - MS)
    assert {message.ranges for _, message in bench.of(Missing)} <= {((4, 4), (7, 7))}
    bench.wait(FIRST)
    bench.sent.clear()
    bench.wait(FOREVER)
    assert any(message.ranges == ((4, 5), (7, 7)) or (5, 5) in message.ranges for _, message in bench.of(Missing))


def test_requests_that_cross_double_the_wait_once() -> None:
    bench = Bench(2, members=8)
    gap(bench, 4)
    for sender in range(3, 9):
        bench.receive(sender, Missing(VIEW, ((4, 4),), 1))
    assert bench.node.repair.requester.suppressed == 1
    due_us = bench.node.repair.deadline_us
    assert due_us is not None
    assert due_us - bench.now_us <= 2 * (D + 3 * D)


def test_a_request_for_positions_under_repair_goes_to_the_repairing_member_alone() -> None:
    bench = Bench(2)
    gap(bench, 4, 5)
    bench.receive(3, Repairing(VIEW, ((2, 4),)))
    assert bench.of(Missing) == [(3, Missing(VIEW, ((4, 4),), 3))]
    bench.receive(4, Repairing(VIEW, ((4, 4),)))
    assert bench.of(Missing) == [], "it was told to one already"
    bench.wait(FIRST - MS)
    assert {message.ranges for _, message in bench.of(Missing)} == {((5, 5),)}, "the repair of the other is on its way"
    bench.wait(FOREVER)
    assert any((4, 5) in message.ranges for _, message in bench.of(Missing))


def test_positions_in_flight_are_not_requested_from_the_repairing_member() -> None:
    bench = Bench(2)
    bench.order(*chain(3))
    bench.beat(3, 5)
    bench.receive(4, Repairing(VIEW, ((4, 5),)))
    assert bench.sent == []


@pytest.mark.parametrize("seed", range(12))
def test_positions_in_flight_are_not_requested_with_lost_ones(seed: int) -> None:
    bench = Bench(2, distances={1: D - MS}, seed=str(seed))
    gap(bench, 4)
    bench.beat(3, 12)
    bench.wait(2 * D - 2 * MS)
    assert {message.ranges for _, message in bench.of(Missing)} <= {((4, 4),)}


def test_only_members_are_believed() -> None:
    bench = Bench(2)
    bench.order(*chain(3))
    bench.beat(9, 5)
    assert bench.node.receiver.missing() == []


def test_a_lost_last_message_shows_by_a_heartbeat() -> None:
    bench = Bench(2)
    bench.order(*chain(3))
    bench.beat(1, 3)
    assert bench.node.repair.deadline_us is None
    bench.beat(1, 5)
    bench.wait(FIRST)
    assert bench.of(Missing)[0][1].ranges == ((4, 5),)


def test_positions_announced_only_by_others_are_not_lost_while_the_stream_continues() -> None:
    bench = Bench(2, distances={1: 50 * MS})
    frames = chain(60)
    bench.beat(3, 40)
    for frame in frames[:40]:
        bench.wait(5 * MS)
        bench.order(frame)
    assert bench.sent == []
    bench.beat(3, 60)
    bench.wait(50 * MS + D - MS)
    assert bench.sent == []
    bench.wait(FIRST)
    assert bench.of(Missing)[0][1].ranges == ((41, 60),), "the stream has stopped"


def test_positions_that_the_stream_passed_are_lost_whatever_member_announced_them_first() -> None:
    bench = Bench(2, distances={1: 1000 * MS})
    frames = chain(9)
    bench.beat(3, 9)
    bench.order(frames[5])
    bench.wait(FIRST + D)
    assert {message.ranges for _, message in bench.of(Missing)} == {((1, 5),)}


def test_received_positions_are_not_requested_whatever_member_sent_them() -> None:
    bench = Bench(2)
    frames = chain(9)
    gap(bench, 4, 5, 7)
    bench.receive(3, Repair(VIEW, (frames[3], frames[4])))
    bench.order(frames[6])
    assert bench.node.repair.deadline_us is None
    assert bench.node.window.end == 9


def test_a_damaged_body_is_asked_for() -> None:
    bench = Bench(2)
    frames = chain(2, LARGE)
    damaged = decode_frame(frames[0].to_bytes())
    damaged.body = b"?" * len(LARGE)
    bench.order(damaged)
    bench.wait(FIRST)
    assert bench.of(Missing)[0][1].ranges == ((1, 1),)


def test_a_repair_acknowledges_nothing() -> None:
    bench = Bench(2)
    bench.order(chain(2)[1])
    bench.receive(3, Repair(VIEW, (chain(1)[0],)))
    window = bench.node.window
    assert (window.mark(CommitStage.APPENDED), window.mark(CommitStage.WRITING), window.mark(CommitStage.VOTED)) == (2, 0, 0)
    assert bench.sent == []


def test_requests_are_bounded_whatever_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPAIR_ASKS_BURST", 2)
    monkeypatch.setattr(limits, "REPAIR_ASKS_A_SECOND", 1)
    bench = Bench(2)
    gap(bench, 4)
    bench.wait(5_000 * MS)
    assert len(bench.of(Missing)) <= 3 * (2 + 5)
    assert bench.node.repair.requester.bucket.refused > 0
    bench.wait(FOREVER)
    assert bench.of(Missing), "it goes on asking"


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (3, Missing(VIEW + 1, ((4, 4),))),
        (2, Missing(VIEW, ((4, 4),))),
        (9, Missing(VIEW, ((4, 4),))),
        (9, Repairing(VIEW, ((4, 4),))),
        (3, Repairing(VIEW - 1, ((4, 4),))),
        (3, Missing(VIEW, ((0, 4),))),
        (3, Missing(VIEW, ((4, 3),))),
        (3, Repairing(VIEW, ((-9, 2**70),))),
        (3, Missing(VIEW, ((4, 4),) * (limits.REPAIR_RANGES_MAX + 1))),
        (3, Repair(VIEW, ())),
        (9, Repair(VIEW, tuple(chain(4)[3:]))),
        (3, Repair(VIEW + 1, tuple(chain(4)[3:]))),
    ],
)
def test_messages_of_another_view_of_no_member_or_without_sense_change_nothing(sender: int, message: Message) -> None:
    bench = Bench(2)
    gap(bench, 4)
    due_us = bench.node.repair.deadline_us
    bench.receive(sender, message)
    assert (bench.node.repair.deadline_us, bench.sent, bench.node.receiver.missing()) == (due_us, [], [(4, 4)])


def test_another_view_forgets_the_missing_positions_of_the_last() -> None:
    bench = Bench(2)
    gap(bench, 4)
    bench.node.view_state.promised = VIEW + 2
    bench.wait(FOREVER)
    assert bench.sent == []
    assert bench.node.repair.deadline_us is None
    bench.node.repair.installed()
    bench.receive(1, Order(VIEW, tuple(chain(9))))
    assert bench.sent == []
