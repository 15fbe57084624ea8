"""Tests of the responder: which member sends a repair, when, and to which members; and when no member does."""

from __future__ import annotations

import pytest

from tests.sim.storm import VIEW
from tests.unit.core.repair.repair_harness import LARGE, MS, Bench, D, chain
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LogRead
from tutti_gateway.core.protocol.messages import Missing, Repair, Repairing
from tutti_gateway.core.repair.token_bucket import Bucket

HOLD = limits.REPAIR_ROUND_DISTANCES * D
ANSWER = 3 * D  # and some: the longest that a member of four waits before it repairs what anybody may
LATE = limits.REPAIR_LATE_HEARTBEATS * limits.HEARTBEAT_US


def holding(number: int = 3, body: bytes = LARGE, count: int = 9, members: int = 4, **distances: int) -> tuple[Bench, list[Frame]]:
    """A member that has the log, and the log."""
    bench = Bench(number, members, {int(name.lstrip("to")): us for name, us in distances.items()})
    frames = chain(count, body)
    bench.order(*frames)
    return bench, frames


def repaired(bench: Bench) -> list[tuple[int, list[int]]]:
    return [(to, [frame.position for frame in message.frames]) for to, message in bench.of(Repair)]


def test_the_named_member_repairs_at_once_and_notifies_the_others() -> None:
    bench, frames = holding()
    bench.receive(2, Missing(VIEW, ((4, 5), (7, 7)), 3))
    assert bench.of(Repairing) == [(to, Repairing(VIEW, ((4, 5), (7, 7)))) for to in (1, 2, 4)]
    sent = bench.of(Repair)
    assert sent == [(2, Repair(VIEW, tuple(frames[3:5]))), (2, Repair(VIEW, (frames[6],)))]
    assert all(one is other for one, other in zip(sent[0][1].frames, frames[3:5], strict=True)), "bodies are not copied"


def test_a_member_that_is_not_named_defers() -> None:
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((4, 5),), 4))
    bench.wait(LATE + HOLD + ANSWER)
    assert bench.sent == []


def test_of_all_possible_responders_the_nearest_is_first() -> None:
    near, _ = holding(3, to2=D // 4)
    far, _ = holding(4, to2=3 * D)
    for bench in (near, far):
        bench.receive(2, Missing(VIEW, ((4, 5),)))
        bench.wait(2 * D)
    assert repaired(near) == [(2, [4, 5])]
    assert repaired(far) == []
    far.receive(3, Repairing(VIEW, ((4, 5),)))
    far.wait(10 * ANSWER)
    assert repaired(far) == []
    assert far.node.repair.responder.suppressed == 1


@pytest.mark.parametrize("seed", range(12))
def test_a_distant_member_waits_for_its_longer_path(seed: int) -> None:
    bench = Bench(3, 4, {2: 3 * D}, str(seed))
    bench.order(*chain(9, LARGE))
    bench.receive(2, Missing(VIEW, ((4, 5),)))
    bench.wait(3 * D - limits.DISTANCE_US_MIN - MS)
    assert bench.sent == []


def test_a_small_repair_goes_to_all_and_needs_no_claim() -> None:
    bench, _ = holding(body=b"small")
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    assert repaired(bench) == [(1, [4, 5]), (2, [4, 5]), (4, [4, 5])]
    assert bench.of(Repairing) == []


def test_a_small_repair_is_not_sent_to_a_member_with_a_longer_log() -> None:
    bench, _ = holding(body=b"small")
    bench.beat(1, 9)
    bench.beat(4, 4)
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    assert [to for to, _ in repaired(bench)] == [2, 4]


def test_a_member_that_sees_a_repair_does_not_send_the_same() -> None:
    bench, frames = holding()
    bench.receive(2, Missing(VIEW, ((4, 5),)))
    bench.receive(4, Repair(VIEW, (frames[3],)))
    bench.wait(ANSWER)
    assert repaired(bench) == [(2, [5])]


def test_just_repaired_positions_are_suppressed_and_then_repaired_again() -> None:
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    assert repaired(bench) == [(2, [4, 5])]
    bench.wait(HOLD - MS)
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    assert repaired(bench) == []
    assert bench.node.repair.responder.hold_down_hits == 1
    bench.wait(MS)
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    assert repaired(bench) == [(2, [4, 5])]


def test_positions_that_another_member_repairs_are_suppressed() -> None:
    bench, _ = holding()
    bench.receive(4, Repairing(VIEW, ((4, 5),)))
    bench.receive(2, Missing(VIEW, ((4, 6),)))
    bench.wait(ANSWER)
    assert repaired(bench) == [(2, [6])]


def test_a_claimant_repairs_for_all_requesters_and_claims_no_more() -> None:
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    bench.sent.clear()
    bench.receive(4, Missing(VIEW, ((5, 5),), 3))
    bench.receive(4, Missing(VIEW, ((5, 5),), 3))
    assert (repaired(bench), bench.of(Repairing)) == ([(4, [5])], [])
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    assert repaired(bench) == [], "it was sent to this one before the other wanted it"


def test_of_two_claimants_each_repairs_for_the_requesters_that_chose_it() -> None:
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((4, 5),), 3))
    bench.sent.clear()
    bench.receive(4, Repairing(VIEW, ((4, 5),)))
    bench.receive(1, Missing(VIEW, ((4, 5),), 3))
    assert repaired(bench) == [(1, [4, 5])]


def test_a_small_part_of_a_large_repair_goes_to_its_requester() -> None:
    bench, _ = holding(body=bytes(limits.REPAIR_TO_ALL_BYTES // 2))
    bench.receive(2, Missing(VIEW, ((4, 7),), 3))
    assert repaired(bench) == [(2, [4, 5, 6, 7])]
    bench.receive(4, Missing(VIEW, ((5, 5),), 3))
    assert repaired(bench) == [(4, [5])]


def test_several_requesters_before_the_repair_all_get_it() -> None:
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((4, 4),)))
    bench.receive(4, Missing(VIEW, ((4, 4),)))
    bench.receive(2, Missing(VIEW, ((4, 4),)))
    bench.wait(ANSWER)
    assert repaired(bench) == [(2, [4]), (4, [4])]


def test_positions_that_a_member_lacks_are_not_repaired_by_it() -> None:
    bench, _ = holding(count=5)
    bench.order(chain(9, LARGE)[7])
    bench.receive(2, Missing(VIEW, ((5, 9), (2**63, 2**64)), 3))
    assert repaired(bench) == [(2, [5])], "what is held back has nothing before it that proves it"


def test_positions_that_the_requester_reports_to_have_are_not_sent() -> None:
    bench, _ = holding()
    bench.beat(2, 4)
    bench.receive(2, Missing(VIEW, ((3, 5),), 3))
    assert repaired(bench) == [(2, [5])]


def test_two_members_need_no_claim() -> None:
    bench, _ = holding(2, members=2)
    bench.receive(1, Missing(VIEW, ((4, 4),), 2))
    assert (repaired(bench), bench.of(Repairing)) == ([(1, [4])], [])


def test_repairs_fit_into_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPAIR_MESSAGE_BYTES", 3 * (len(LARGE) + 192))
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((1, 8),), 3))
    assert repaired(bench) == [(2, [1, 2, 3]), (2, [4, 5, 6]), (2, [7, 8])]


def test_repairs_are_bounded_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(LARGE) + 192
    for name, value in (("MESSAGE_BYTES", size), ("BYTES_BURST", 3 * size), ("BYTES_A_SECOND", size)):
        monkeypatch.setattr(limits, f"REPAIR_{name}", value)
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((1, 8),), 3))
    assert repaired(bench) == [(2, [1]), (2, [2]), (2, [3])]
    assert bench.of(Repairing)[0][1].ranges == ((1, 3),), "what it has no tokens for another one may repair"
    assert bench.node.repair.responder.refused == 1
    bench.wait(1_000 * MS)
    bench.receive(2, Missing(VIEW, ((4, 8),), 3))
    assert repaired(bench) == [(2, [4])]


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPAIR_RANGES_KEPT_MAX", 2)
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((1, 1), (3, 3), (5, 5))))
    assert bench.node.repair.responder.refused == 1
    bench.wait(ANSWER)
    assert repaired(bench) == [(2, [1]), (2, [3])]
    bench.receive(2, Missing(VIEW, ((5, 5),), 3))
    bench.wait(HOLD)
    bench.receive(2, Missing(VIEW, ((7, 7),), 3))
    assert repaired(bench) == [(2, [5]), (2, [7])], "what is no longer held down makes room"


def test_a_decided_position_is_read_from_the_log_unless_the_asker_turns_out_to_have_it() -> None:
    bench, frames = holding()
    bench.decide(6)
    bench.receive(2, Missing(VIEW, ((5, 7),), 3))
    bench.receive(4, Missing(VIEW, ((2, 2),), 3))
    assert repaired(bench) == [(2, [7])]
    bench.wait(LATE // 2)
    bench.beat(4, 6)
    bench.wait(LATE)
    assert [(read.first, read.last) for read in bench.reads] == [(5, 6)]
    bench.receive(1, Missing(VIEW, ((9, 9),), 3))
    bench.sent.clear()
    assert not bench.node.repair.on_log_read(LogRead(bench.reads[0].token + 1, (), 0)), "another layer's"
    assert bench.node.repair.on_log_read(LogRead(bench.reads[0].token, tuple(frames[4:6]), 6))
    bench.wait(0)
    bench.beat(1, 9)
    assert repaired(bench) == [(2, [5, 6])]


def test_concurrent_reads_of_the_log_are_bounded() -> None:
    bench, _ = holding(count=2 * limits.REPAIR_READS_MAX + 1)
    bench.decide(2 * limits.REPAIR_READS_MAX + 1)
    bench.receive(2, Missing(VIEW, tuple((2 * place + 1, 2 * place + 1) for place in range(limits.REPAIR_READS_MAX + 1)), 3))
    bench.wait(LATE)
    assert len(bench.reads) == limits.REPAIR_READS_MAX
    assert bench.node.repair.responder.refused == 1


def test_the_layer_wakes_for_the_earliest_event() -> None:
    bench, _ = holding()
    bench.order(chain(11, LARGE)[10])
    asking_us = bench.node.repair.deadline_us
    bench.receive(2, Missing(VIEW, ((1, 2),)))
    answering_us = bench.node.repair.responder.deadline_us
    assert asking_us is not None
    assert answering_us is not None
    assert asking_us != answering_us
    assert bench.node.repair.deadline_us == min(asking_us, answering_us)


def test_positions_decided_while_requested_are_read_from_the_log() -> None:
    bench, _ = holding()
    bench.receive(2, Missing(VIEW, ((4, 5),)))
    bench.decide(4)
    bench.wait(ANSWER)
    assert repaired(bench) == [(2, [5])]
    bench.wait(LATE)
    assert [(read.first, read.last) for read in bench.reads] == [(4, 4)]


def test_a_bucket_admits_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(a_second=10, burst=5)
    assert [bucket.consume(2, 0) for _ in range(3)] == [True, True, False]
    assert not bucket.consume(2, 99_999)
    assert bucket.consume(2, 100_000)
    assert not bucket.consume(1, 100_000)
    assert bucket.consume(5, 10_000_000)
    assert not bucket.consume(6, 99_000_000), "more than the burst is never there"
    assert not bucket.consume(1, 0) or bucket.consume(4, 0), "a clock that goes back fills nothing"
    assert bucket.refused == 4
