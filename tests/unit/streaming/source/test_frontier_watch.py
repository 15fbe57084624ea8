"""Tests of the frontier watch: it answers without a request, waits if it must, raises the error that ended it, and
reports the lag.
"""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.streaming.fake_log import FakeLog, wait_until
from tutti import limits
from tutti.errors import Refused, Unavailable
from tutti_spark.source import frontier_watch
from tutti_spark.source.frontier_watch import FrontierWatch, Lag


def test_it_learns_of_records_without_requests() -> None:
    log = FakeLog(5)
    watching = FrontierWatch(log, "here", poll_seconds=5.0)
    assert watching.frontier().offset == 5
    log.set(9)
    wait_until(lambda: watching.frontier().offset == 9)
    asked = len(log.asked)
    assert {watching.frontier().offset for _ in range(1000)} == {9}
    assert len(log.asked) <= asked + 1
    watching.stop()
    log.set(10)


def test_the_first_answer_has_the_time_of_a_question_and_later_ones_that_of_a_restart() -> None:
    log = FakeLog(5)
    watching = FrontierWatch(log, "here", poll_seconds=5.0)
    wait_until(lambda: len(log.asked) == 2)
    assert log.asked == [("frontier", None, 5.0, None), ("frontier", 5, 5.0, limits.READ_RETRY_US / 1e6)]
    watching.stop()
    log.set(6)


def test_it_waits_for_the_log_to_begin_and_for_the_frontier_seen_before() -> None:
    log = FakeLog(0, log="")
    watching = FrontierWatch(log, "here", poll_seconds=0.01)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(watching.frontier(at_least=3).offset))
    waiting.start()
    log.set(2, log="log-1")
    wait_until(lambda: watching.frontier().offset == 2)
    assert not found
    log.set(4)
    waiting.join(10)
    assert found == [4]
    watching.stop()


@pytest.mark.parametrize(("log", "at_least", "words"), [("", 0, "has not begun"), ("log-1", 9, "committed only 4")])
def test_it_does_not_wait_without_limit(monkeypatch: pytest.MonkeyPatch, log: str, at_least: int, words: str) -> None:
    monkeypatch.setattr(frontier_watch, "_RETRY_SECONDS", 0.05)
    watching = FrontierWatch(FakeLog(4, log), "here", poll_seconds=0.01)
    with pytest.raises(Unavailable, match=words):
        watching.frontier(at_least)
    watching.stop()


@pytest.mark.parametrize(
    "failure",
    [Unavailable("no gateway of here answered"), Refused("another log", "log"), PermissionError("denied"), ValueError("no answer")],
)
def test_it_raises_the_error_that_ended_it(failure: Exception) -> None:
    log = FakeLog(4)
    watching = FrontierWatch(log, "here", poll_seconds=5.0)
    assert watching.frontier().offset == 4
    log.set(failure=failure)
    with pytest.raises(type(failure)) as error:
        watching.frontier(at_least=5)
    assert error.value is failure
    with pytest.raises(type(failure)):  # also where the last frontier that was heard of would do
        watching.frontier()


def test_lag_counts_records_and_the_age_of_the_first() -> None:
    lag = Lag()
    lag.record_move(10, now=1.0)
    lag.record_move(20, now=2.0)
    lag.record_move(20, now=2.5)
    assert lag.at(0, now=3.0) == (20, 2000)
    assert lag.at(9, now=3.0) == (11, 2000)
    assert lag.at(10, now=3.0) == (10, 1000)
    assert lag.at(20, now=3.0) == (0, 0)
    lag.record_move(21, now=4.0)
    assert lag.at(20, now=4.25) == (1, 250)


@given(moves=st.lists(st.integers(1, 3), min_size=1, max_size=50), kept=st.integers(1, 8), processed=st.integers(0, 120))
def test_lag_is_bounded_and_never_reported_too_short(moves: list[int], kept: int, processed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SPARK_FRONTIER_SAMPLES_MAX", kept)
        lag, offset, times = Lag(), 0, []
        for second, step in enumerate(moves):
            offset += step
            times.append((second, offset))
            lag.record_move(offset, float(second))
            assert len(lag._moves) <= kept
    now = float(len(moves))
    records, milliseconds = lag.at(processed, now)
    true = next(((now - second) * 1000 for second, reached in times if reached > processed), 0)
    assert records == max(0, offset - processed)
    assert milliseconds >= true
