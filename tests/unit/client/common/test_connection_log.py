"""Tests of the connection log: one line for each change, and reminders at growing intervals."""

from __future__ import annotations

import logging

import pytest

from tutti.common.connection_log import LINES, Condition, ConnectionLog, Event

NAME = "tests.connection_log"
START = 1000.0
PREFIX = "producer 'p': "


class Logged:
    """A connection log with the lines that it has written."""

    def __init__(self, caplog: pytest.LogCaptureFixture, subject: str = "producer 'p'") -> None:
        caplog.set_level(logging.DEBUG, NAME)
        self.caplog = caplog
        self.log = ConnectionLog(logging.getLogger(NAME), subject, START)

    def lines(self) -> list[str]:
        """Return the lines since the last call: level and text without the subject."""
        found = [f"{one.levelname} {one.getMessage().removeprefix(PREFIX)}" for one in self.caplog.records]
        self.caplog.clear()
        return found


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    return Logged(caplog)


def test_each_line_names_the_subject(caplog: pytest.LogCaptureFixture) -> None:
    Logged(caplog, "reader 'r'").log.on(Event.CONNECTED, START, where="gateway g1")
    assert [one.getMessage() for one in caplog.records] == ["reader 'r': connected to gateway g1"]


def test_an_outage_in_the_middle(logged: Logged) -> None:
    log = logged.log
    log.on(Event.CONNECTED, START + 1, where="gateway g1 at A:1")
    assert logged.lines() == ["INFO connected to gateway g1 at A:1"]
    log.on(Event.LOST, START + 10, "reset by peer")
    log.on(Event.LOST, START + 11, "connection refused")  # an attempt that fails is not a second loss
    assert logged.lines() == ["WARNING lost the connection to gateway g1 at A:1: reset by peer"]
    for second in (11, 12, 13):
        log.on(Event.NONE_ANSWERS, START + second, "A:1: connection refused; B:2: no route")
    assert logged.lines() == ["WARNING no gateway is reachable: A:1: connection refused; B:2: no route"]
    log.remind(START + 14, 30)
    log.on(Event.CONNECTED, START + 14.5, where="gateway g2 at B:2")
    assert logged.lines() == ["INFO recovered after 4.5 s: connected to gateway g2 at B:2; 30 records waited"]
    assert (log.reconnects, log.failovers) == (1, 1)


def test_an_outage_from_the_start(logged: Logged) -> None:
    log = logged.log
    log.on(Event.NONE_ANSWERS, START + 0.1, "A:1: connection refused")
    log.on(Event.NONE_HAS_QUORUM, START + 2, "A:1: gateway g1 is minority")
    log.on(Event.NONE_HAS_QUORUM, START + 3, "A:1: gateway g1 is minority")
    log.on(Event.NONE_ANSWERS, START + 4, "A:1: connection refused")
    log.on(Event.CONNECTED, START + 12, where="gateway g1 at A:1")
    assert logged.lines() == [
        "WARNING no gateway is reachable: A:1: connection refused",
        "WARNING no gateway has a quorum: A:1: gateway g1 is minority",
        "WARNING no gateway is reachable: A:1: connection refused",
        "INFO recovered after 12 s: connected to gateway g1 at A:1",
    ]
    assert (log.reconnects, log.failovers) == (1, 0)


def test_a_redirect(logged: Logged) -> None:
    log = logged.log
    log.on(Event.CONNECTED, START, where="gateway g1 at A:1")
    log.on(Event.REDIRECTED, START + 1, "gateway g1 is leaving")
    log.on(Event.CONNECTED, START + 1.05, where="gateway g2 at B:2")
    assert logged.lines()[1:] == [
        "WARNING leaving gateway g1 at A:1 for another gateway: gateway g1 is leaving",
        "INFO recovered after 0.05 s: connected to gateway g2 at B:2",
    ]


def test_a_gateway_without_outcomes_is_an_outage_that_began_earlier(logged: Logged) -> None:
    log = logged.log
    log.on(Event.CONNECTED, START, where="gateway g1 at A:1")
    log.on(Event.STALLED, START + 20, "the disk is full", since=START + 15)
    assert log.outage(START + 20) == 5
    log.remind(START + 20, 7)
    log.remind(START + 29.9, 8, "A:1: connected")
    log.on(Event.CONNECTED, START + 31, where="gateway g1 at A:1")
    assert logged.lines()[1:] == [
        "WARNING connected to gateway g1 at A:1, but no record has got an outcome for 5.0 s: the disk is full",
        "INFO recovered after 16 s: connected to gateway g1 at A:1; 8 records waited",
    ]
    assert (log.reconnects, log.failovers) == (0, 0)


def test_reminders_come_after_5_s_and_then_at_doubled_intervals_up_to_a_minute(logged: Logged) -> None:
    log = logged.log
    reminded = []
    for tenth in range(5000):
        log.remind(START + tenth / 10, 1, "A:1: connection refused")
        if logged.lines():
            reminded.append(tenth / 10)
    assert reminded == [5.0, 15.0, 35.0, 75.0, 135.0, 195.0, 255.0, 315.0, 375.0, 435.0, 495.0]


def test_a_reminder_says_how_long_and_how_many(logged: Logged) -> None:
    logged.log.remind(START + 5, 1, "A:1: connection refused")
    logged.log.remind(START + 15, 0, "A:1: connection refused")
    assert logged.lines() == [
        "WARNING still waiting after 5.0 s; 1 record waiting; A:1: connection refused",
        "WARNING still waiting after 15 s; A:1: connection refused",
    ]


def test_a_client_that_did_not_run_for_a_long_time_is_reminded_once(logged: Logged) -> None:
    logged.log.remind(START + 1000)
    logged.log.remind(START + 1001)
    assert len(logged.lines()) == 1


def test_a_second_outage_counts_from_its_own_start(logged: Logged) -> None:
    log = logged.log
    log.remind(START + 5, 100)
    log.on(Event.CONNECTED, START + 6, where="A")
    log.remind(START + 500)
    log.on(Event.LOST, START + 600, "reset")
    log.remind(START + 604)
    log.on(Event.CONNECTED, START + 604.2, where="A")
    lost, recovered = logged.lines()[-2:]  # no reminder at 604, because this outage has lasted for 4 s only
    assert lost.startswith("WARNING lost the connection to A")
    assert recovered == "INFO recovered after 4.2 s: connected to A"


def test_outage_is_the_time_since_its_begin(logged: Logged) -> None:
    log = logged.log
    assert (log.connected, log.outage(START + 3)) == (False, 3)
    log.on(Event.CONNECTED, START + 4, where="A")
    assert (log.connected, log.outage(START + 9)) == (True, 0)
    log.on(Event.LOST, START + 10, "reset")
    assert (log.connected, log.outage(START + 12)) == (False, 2)


def test_every_condition_can_end(logged: Logged) -> None:
    for condition in Condition:
        if condition not in (Condition.CONNECTED, Condition.THROTTLED):
            assert LINES[condition, Event.CONNECTED][0] is Condition.CONNECTED


def test_a_throttled_client_is_connected_and_logs_its_quota_once(logged: Logged) -> None:
    log = logged.log
    log.on(Event.CONNECTED, START, where="A")
    for second in range(1, 4):
        log.on(Event.THROTTLED, START + second, "throttled by the quota of its token (5 records/s)")
    log.remind(START + 1000)
    assert (log.connected, log.outage(START + 1000)) == (True, 0)
    log.on(Event.LOST, START + 1001, "reset")
    assert (log.connected, log.outage(START + 1003)) == (False, 2)
    assert logged.lines()[1:] == [
        "WARNING throttled by the quota of its token (5 records/s): A delays records",
        "WARNING lost the connection to A: reset",
    ]


@pytest.mark.parametrize(
    ("event", "condition", "line"),
    [
        (Event.REDIRECTED, Condition.LOST, "leaving A for another gateway: full"),
        (Event.STALLED, Condition.STALLED, "connected to A, but no record has got an outcome for 0.00 s: full"),
    ],
)
def test_a_throttled_client_reports_an_outage_as_a_connected_one_does(
    logged: Logged, event: Event, condition: Condition, line: str
) -> None:
    logged.log.on(Event.CONNECTED, START, where="A")
    logged.log.on(Event.THROTTLED, START + 1, "throttled")
    logged.log.on(event, START + 2, "full")
    assert (logged.log.condition, logged.log.outage(START + 3)) == (condition, 1)
    assert logged.lines()[-1] == f"WARNING {line}"


def test_the_outage_of_a_client_that_ends_while_connected_begins_with_its_end(logged: Logged) -> None:
    log = logged.log
    log.on(Event.CONNECTED, START + 1, where="A")
    log.end(START + 10)
    log.end(START + 11)
    assert (log.connected, log.outage(START + 12)) == (False, 2)
    assert logged.lines() == ["INFO connected to A"]


def test_a_cause_may_have_braces(logged: Logged) -> None:
    logged.log.on(Event.NONE_ANSWERS, START, "A:1: {http2_error:11}")
    assert logged.lines() == ["WARNING no gateway is reachable: A:1: {http2_error:11}"]


def test_an_empty_subject_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    silent = Logged(caplog, "")
    silent.log.on(Event.CONNECTED, START, where="A")
    silent.log.on(Event.LOST, START, "reset")
    silent.log.remind(START + 100)
    assert silent.lines() == []
    assert silent.log.condition is Condition.LOST
