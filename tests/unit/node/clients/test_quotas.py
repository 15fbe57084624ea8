"""Tests of quotas with a hand-driven clock: no interval has more than its quota, the order stays, no batch waits without limit, and
memory is bounded.
"""

from __future__ import annotations

from itertools import repeat

import msgspec

from tests.unit.node.driver_harness import A, B, Bench, control, submit
from tests.unit.node.fakes import batch_frame, token
from tutti import limits as common_limits
from tutti.data.client_protocol import SUBMIT_UNORDERED, Bye, RefusedAnswer, Status, StatusAnswer, Welcome
from tutti.data.frames.frame import Frame
from tutti.security.tokens import Access
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Event, SessionClosed, Several, Submitted, SubmittedUnordered
from tutti_gateway.node.clients.quotas import Quotas
from tutti_gateway.node.clients.sessions import Session, Sessions

SECOND_US = 1_000_000
RECORDS_PER_S = 1000
LIMITED = Access("feed", "feed", ("*",), records_per_s=RECORDS_PER_S)


def batch(first: int, count: int) -> Frame:
    return batch_frame([b"x"] * count, sequence=first)


class Line:
    """Quotas with sessions whose access a test sets, and the clock."""

    def __init__(self) -> None:
        self.sessions = Sessions(100)
        self.quotas = Quotas(self.sessions)
        self.now_us = 5 * SECOND_US

    def session(self, access: Access = LIMITED) -> Session:
        made, _ = self.sessions.hello(token(), token(), "client", self.now_us)
        assert made is not None
        made.access = access
        return made

    def put(self, session: Session, *frames: Frame) -> None:
        self.quotas.put(session, frames, self.now_us)

    def due(self, bytes_max: int = 1 << 30) -> list[tuple[int, int]]:
        """The sessions and first sequences of the batches that are due now."""
        due = self.quotas.pop_due(self.now_us, bytes_max)
        return [(session.number, frame.first_sequence) for session, frames in due for frame in frames]

    def run(self, until_us: int) -> list[tuple[int, int, int]]:
        """Move the clock from one due time to the next; return the time, session and first sequence of each batch."""
        accepted = []
        while (at_us := self.quotas.next_us()) is not None and at_us <= until_us:
            self.now_us = max(self.now_us, at_us)
            due = self.due()
            assert due, "a time at which nothing is due would make the loop spin"
            accepted += [(self.now_us, number, first) for number, first in due]
        self.now_us = until_us
        return accepted


def test_every_interval_has_at_most_its_quota_and_the_burst() -> None:
    line, sizes = Line(), [1, 10, 400, 90, 3000, 1, 1, 250, 700, 100, 100, 100] * 3
    session, first, batches = line.session(), 1, []
    for size in sizes:
        batches.append(batch(first, size))
        first += size
    line.put(session, *batches)
    start = line.now_us
    accepted = line.run(start + 100 * SECOND_US)
    assert [at[2] for at in accepted] == [one.first_sequence for one in batches], "in the order of their arrival"
    for index in range(len(accepted)):
        for last in range(index, len(accepted)):
            length_us = accepted[last][0] - accepted[index][0]
            # The first batch of an interval was paid for before the interval began.
            records = sum(sizes[index + 1 : last + 1])
            assert records <= RECORDS_PER_S * (length_us + limits.QUOTA_BURST_US) / SECOND_US
    taken_s = (accepted[-1][0] - start) / SECOND_US
    assert sum(sizes) / RECORDS_PER_S - 0.1 <= taken_s <= sum(sizes) / RECORDS_PER_S, "and no time is lost"


def test_a_large_batch_waits_for_the_time_that_it_costs_and_an_idle_time_saves_only_the_burst() -> None:
    line = Line()
    session = line.session()
    line.now_us += 3600 * SECOND_US
    start = line.now_us
    line.put(session, batch(1, 5000), batch(5001, 100))
    assert line.due() == []
    first, second = line.run(start + 60 * SECOND_US)
    assert first[0] - start == 5 * SECOND_US - limits.QUOTA_BURST_US
    assert second[0] - first[0] == SECOND_US // 10, "it used up the burst too"


def test_a_batch_of_any_size_passes_a_small_quota() -> None:
    line = Line()
    session = line.session(Access("feed", "feed", ("*",), records_per_s=1))
    start = line.now_us
    line.put(session, batch(1, 5000), batch(5001, 5000))
    waits = [at - start for at, _, _ in line.run(start + 3600 * SECOND_US)]
    assert waits == [limits.QUOTA_BATCH_US_MAX - limits.QUOTA_BURST_US, 2 * limits.QUOTA_BATCH_US_MAX - limits.QUOTA_BURST_US]


def test_bytes_are_limited_and_the_longer_time_of_both_quotas_counts() -> None:
    frame = batch(1, 2000)
    for records_per_s, bytes_per_s, expected_us in (
        (0, frame.size, SECOND_US),
        (1000, frame.size, 2 * SECOND_US),
        (4000, frame.size, SECOND_US),
    ):
        line = Line()
        start = line.now_us
        line.put(line.session(Access("feed", "feed", ("*",), records_per_s=records_per_s, bytes_per_s=bytes_per_s)), frame)
        ((at_us, _, _),) = line.run(start + 60 * SECOND_US)
        assert at_us - start == expected_us - limits.QUOTA_BURST_US


def test_the_sessions_of_a_token_share_its_quota_and_another_token_has_its_own() -> None:
    line = Line()
    one, two, other = line.session(), line.session(), line.session(LIMITED._replace(name="other"))
    line.put(one, batch(1, 1000))
    line.put(two, batch(1, 1000))
    line.put(other, batch(1, 1000))
    start = line.now_us
    accepted = [(at - start + limits.QUOTA_BURST_US, number) for at, number, _ in line.run(start + 10 * SECOND_US)]
    assert accepted == [(SECOND_US, one.number), (SECOND_US, other.number), (2 * SECOND_US, two.number)]


def test_a_copy_of_a_waiting_batch_is_ignored_and_costs_nothing() -> None:
    line = Line()
    session = line.session()
    line.put(session, batch(1, 1000), batch(1, 1000))
    line.put(session, batch(1, 1000), batch(1001, 10))
    assert [first for _, _, first in line.run(line.now_us + 10 * SECOND_US)] == [1, 1001]
    line.put(session, batch(1, 10))  # a copy of an accepted batch is a duplicate, which the stack answers
    assert [first for _, _, first in line.run(line.now_us + 10 * SECOND_US)] == [1]


def test_batches_of_an_ended_session_are_dropped_without_cost() -> None:
    line = Line()
    gone, stays = line.session(), line.session()
    line.put(gone, batch(1, 20_000))
    line.put(stays, batch(1, 100))
    line.sessions.remove(gone)
    assert line.due() == [(stays.number, 1)]
    assert line.quotas.next_us() is None
    assert line.quotas.to_dict(line.now_us)["waiting_bytes"] == 0


def test_a_batch_behind_one_of_an_ended_session_is_due_at_once() -> None:
    line = Line()
    gone, stays = line.session(), line.session()
    line.put(gone, batch(1, 20_000))
    line.put(stays, batch(1, 100))
    until_us = line.quotas.next_us()
    line.sessions.remove(gone)
    now_us = line.quotas.next_us()
    assert until_us is not None
    assert now_us is not None
    assert now_us <= line.now_us < until_us


def test_a_changed_quota_applies_to_waiting_batches() -> None:
    line = Line()
    session = line.session()
    line.put(session, batch(1, 10_000), batch(10_001, 10))
    assert line.due() == []
    session.access = LIMITED._replace(records_per_s=0)
    assert line.quotas.applies_to(session.access), "a new batch must not overtake the waiting ones"
    assert line.due() == [(session.number, 1), (session.number, 10_001)]
    assert not line.quotas.applies_to(session.access)


def test_one_call_returns_a_limited_size_and_the_rest_later() -> None:
    line = Line()
    session = line.session()
    line.put(session, *(batch(first, 1) for first in range(1, 6)))
    size = batch(1, 1).size
    assert [len(line.due(bytes_max=2 * size)) for _ in range(4)] == [2, 2, 1, 0]


def test_above_a_memory_limit_clients_with_quotas_are_not_read() -> None:
    line = Line()
    access = LIMITED._replace(records_per_s=1)
    session, others = line.session(access), LIMITED._replace(name="other")
    body = batch(1, 4000)
    each = body.size + limits.QUOTA_FRAME_BYTES
    count = 0
    while line.quotas.may_read(access):
        count += 1
        line.put(session, batch_frame([b"x"] * 4000, sequence=4000 * count))
    assert limits.QUOTA_TOKEN_BYTES_MAX <= count * each < limits.QUOTA_TOKEN_BYTES_MAX + each
    assert line.quotas.may_read(others)
    assert line.quotas.may_read(Access("free"))
    line.quotas._bytes = limits.QUOTA_BYTES_MAX
    assert not line.quotas.may_read(others)
    assert line.quotas.may_read(Access("free")), "only quotas wait"
    line.quotas._bytes = count * each
    line.sessions.remove(session)
    line.due()
    assert line.quotas.may_read(access)


def test_the_throttled_time_of_each_token_is_counted_and_the_number_of_tokens_is_bounded() -> None:
    line = Line()
    line.put(line.session(), batch(1, 1100))
    line.now_us += SECOND_US // 2
    assert line.quotas.to_dict(line.now_us)["throttled_us"] == {"feed": SECOND_US // 2}
    line.run(line.now_us + 10 * SECOND_US)
    assert line.quotas.to_dict(line.now_us)["throttled_us"] == {"feed": SECOND_US}
    for number in range(common_limits.TOKENS_MAX + 10):
        line.put(line.session(LIMITED._replace(name=f"t{number}")) if number < 90 else _moved(line, number), batch(1, 1))
        line.now_us += SECOND_US
        line.due()
    found = line.quotas.to_dict(line.now_us)["throttled_us"]
    assert isinstance(found, dict)
    assert len(found) == common_limits.TOKENS_MAX
    assert "feed" not in found


def _moved(line: Line, number: int) -> Session:
    session = line.sessions.all()[0]
    session.access = LIMITED._replace(name=f"t{number}")
    return session


# In the driver


def limited(bench: Bench, routing: bytes = A, access: Access = LIMITED) -> Session:
    bench.hello(routing)
    session = bench.driver.sessions.at(routing)
    assert session is not None
    session.access = access
    return session


def submitted(events: list[Event]) -> list[tuple[int, int]]:
    flat = [one for event in events for one in (event.events if isinstance(event, Several) else [event])]
    return [
        (session, frame.first_sequence)
        for event in flat
        if isinstance(event, Submitted | SubmittedUnordered)
        for session, frame in zip(
            event.sessions if isinstance(event, Submitted) else repeat(event.session), event.frames, strict=False
        )
    ]


def test_the_driver_wakes_for_a_waiting_batch_and_others_do_not_wait() -> None:
    bench = Bench()
    mine = limited(bench)
    bench.hello(B)
    other = bench.driver.sessions.at(B)
    assert other is not None
    assert submitted(bench.say(submit(A, batch(1, 1000)), submit(B, batch(1, 1000)))) == [(other.number, 1)]
    wait_us = SECOND_US - limits.QUOTA_BURST_US
    assert bench.driver.wait_us() == min(wait_us, common_limits.POLL_US_MAX)
    bench.clock.time_us += wait_us - 1
    assert bench.driver.wait_us() == 1
    assert submitted(bench.say()) == []
    bench.clock.time_us += 1
    assert bench.driver.wait_us() == 0
    assert submitted(bench.say()) == [(mine.number, 1)]
    assert bench.driver.wait_us() == common_limits.POLL_US_MAX
    assert not any(isinstance(answer, RefusedAnswer) for answer in bench.clients.told(A))


def test_a_waiting_batch_stays_while_too_much_is_undecided_and_the_loop_does_not_spin() -> None:
    bench = Bench()
    limited(bench)
    bench.say(submit(A, batch(1, 1000)))
    bench.clock.time_us += 10 * SECOND_US
    assert bench.driver.wait_us() == 0
    bench.driver._undecided_bytes_max = 0
    assert bench.driver.wait_us() == common_limits.POLL_US_MAX
    assert submitted(bench.say()) == []
    bench.driver._undecided_bytes_max = 1 << 20
    assert len(submitted(bench.say())) == 1


def test_a_request_is_answered_while_batches_wait_and_follows_batches_within_the_quota() -> None:
    bench = Bench()
    mine = limited(bench)
    bench.say(submit(A, batch(1, 5000)), control(A, Status(7)))
    assert [type(answer) for answer in bench.clients.told(A)] == [StatusAnswer]
    events = bench.say(control(A, Bye()))
    assert events == [SessionClosed(mine.number)]
    bench.clock.time_us += 60 * SECOND_US
    assert submitted(bench.say()) == []
    mine = limited(bench)
    events = bench.say(submit(A, batch(1, 10)), control(A, Bye()))
    assert (submitted(events), events[-1]) == ([(mine.number, 1)], SessionClosed(mine.number))


def test_unordered_batches_wait_too() -> None:
    bench = Bench()
    mine = limited(bench)
    mine.form = SUBMIT_UNORDERED
    message = submit(A, batch(1, 1000))
    message.parts[0] = SUBMIT_UNORDERED + bytes(message.parts[0])[1:]
    assert submitted(bench.say(message)) == []
    bench.clock.time_us += SECOND_US
    assert [type(event) for event in bench.say()] == [SubmittedUnordered]


def test_a_client_with_a_quota_gets_a_small_window() -> None:
    sessions = Sessions(2)
    session, _ = sessions.hello(A, token(), "client", 0)
    assert session is not None
    welcome = Welcome(1, "g", "group", "", "primary", "1", "", "", {}, common_limits.WINDOW_BYTES, 1, 1)
    assert session.welcome(welcome) is welcome
    session.access = LIMITED
    assert session.welcome(welcome).window_bytes == limits.QUOTA_WINDOW_BYTES
    assert welcome.window_bytes == common_limits.WINDOW_BYTES


def test_the_welcome_of_a_client_with_a_quota_names_the_quota_and_the_oldest_waiting_batch() -> None:
    line = Line()
    session, other = line.session(), line.session()
    welcome = Welcome(1, "g", "group", "", "primary", "1", "", "", {}, common_limits.WINDOW_BYTES, 1, 1)

    def quota() -> tuple[int, int, int]:
        own = session.welcome(welcome)
        return own.records_per_s, own.bytes_per_s, own.held_from

    assert quota() == (RECORDS_PER_S, 0, 0)
    line.put(session, batch(1, 100), batch(101, 1000), batch(1101, 1000))
    line.put(session, batch(101, 1000))  # a copy of a waiting batch
    assert list(session.held) == [1, 101, 1101]
    assert line.due() == [(session.number, 1)]
    assert quota() == (RECORDS_PER_S, 0, 101)
    assert other.welcome(welcome).held_from == 0
    minority = msgspec.structs.replace(welcome, state="minority")
    assert session.welcome(minority).held_from == 0, "the missing majority is the cause"
    session.form = SUBMIT_UNORDERED
    assert session.welcome(minority).held_from == 101
    line.now_us += SECOND_US
    assert line.due() == [(session.number, 101)]
    assert quota() == (RECORDS_PER_S, 0, 1101)
    line.now_us += SECOND_US
    assert line.due() == [(session.number, 1101)]
    assert quota() == (RECORDS_PER_S, 0, 0)


def test_batches_that_went_with_the_clients_do_not_count_against_the_limit_of_their_token() -> None:
    line = Line()
    line.put(line.session(), batch_frame([bytes(limits.QUOTA_TOKEN_BYTES_MAX)]))
    assert not line.quotas.may_read(LIMITED)
    line.quotas.clear(line.now_us)
    line.put(line.session(), batch(1, 5000))
    assert line.quotas.may_read(LIMITED)


def test_waiting_batches_go_with_the_clients_when_memory_is_above_its_limit() -> None:
    bench = Bench()
    limited(bench)
    bench.say(submit(A, batch(1, 5000)))
    assert bench.driver._quotas.next_us() is not None
    bench.clock.time_us += 7000
    throttled = bench.driver._quotas.to_dict(bench.clock.mono_us())["throttled_us"]
    bench.driver.drop_clients()
    assert bench.driver._quotas.next_us() is None
    assert bench.driver._quotas.to_dict(bench.clock.mono_us()) == {"waiting_bytes": 0, "throttled_us": throttled}


def test_the_port_reads_a_connection_with_a_quota_only_within_the_memory_limit() -> None:
    bench = Bench()
    limited(bench)
    bench.hello(B)
    bench.say(submit(A, batch(1, 5000)))
    assert [bench.driver.may_read(routing) for routing in (A, B, b"unknown")] == [True] * 3
    bench.driver._quotas._bytes = limits.QUOTA_BYTES_MAX
    assert [bench.driver.may_read(routing) for routing in (A, B, b"unknown")] == [False, True, True]
