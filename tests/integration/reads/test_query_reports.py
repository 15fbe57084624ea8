"""Tests of query positions: a wait for a named reader's position ends, reporting queries are listed, and invalid reports are
refused.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyarrow import flight

from tests.support.reads_process import FakeGateway, LogMaker, ReadsProcess, ask, refusal
from tests.support.waiting import wait_until
from tutti_gateway.core import limits

RUN = "a" * 16


def report(client: flight.FlightClient, offset: int, **fields: Any) -> Any:
    return ask(client, "report", run=fields.pop("run", RUN), offset=offset, **fields)


def test_a_position_is_waited_for(log: LogMaker, client: flight.FlightClient, process: ReadsProcess) -> None:
    """Proves that a waiter returns when an offset commit of its reader is decided, and not for another reader's."""
    log.add("flights", 10)
    log.save("late", 3)
    assert ask(client, "passed", reader="late", offset=3) == {"reader": "late", "offset": 3}
    assert ask(client, "passed", reader="late", offset=4) == {"reader": "late", "offset": 3}
    assert ask(client, "passed", reader="nobody", offset=0) == {"reader": "nobody", "offset": None}
    told: list[Any] = []
    with flight.connect(process.url) as other:
        waits = threading.Thread(target=lambda: told.append(ask(other, "passed", reader="late", offset=7, timeout_ms=30_000)))
        waits.start()
        wait_until(lambda: process.page("/v1/status")[1]["reads_served"]["calls"]["action"] == 1)
        log.save("early", 9)
        log.save("late", 6)
        log.save("late", 8)
        waits.join(30)
    assert told == [{"reader": "late", "offset": 8}]


def test_a_position_is_known_over_many_frames(log: LogMaker, client: flight.FlightClient) -> None:
    """Proves that positions are found if they were committed before the first request or after it, or moved back."""
    log.add("flights", 10)
    log.save("a", 1)
    assert ask(client, "passed", reader="a", offset=0)["offset"] == 1
    for number in range(10):
        log.add("flights", 10, frames=20)
        log.save("b", number)
    log.save("a", 0)
    assert ask(client, "passed", reader="b", offset=0)["offset"] == 9
    assert ask(client, "passed", reader="a", offset=0)["offset"] == 0


def test_a_query_is_listed_and_its_position_kept(log: LogMaker, gateway: FakeGateway, client: flight.FlightClient) -> None:
    """Proves that a named query's position goes to the log once, and that its latest report is listed with its lag."""
    log.add("flights", 10)
    assert report(client, 4, name="delays", label="job.py@host", topics=["flights"], lag_ms=7) == {"trouble": ""}
    log.save("delays", 4)  # what the gateway does about it
    report(client, 4, name="delays", label="job.py@host", topics=["flights"], lag_ms=9)
    report(client, 10, run="b" * 16)
    assert gateway.saved == [("delays", 4)]
    nameless, named = ask(client, "queries")
    assert (nameless["name"], nameless["offset"], nameless["lag_records"], nameless["topics"]) == ("", 10, 0, None)
    assert (named["name"], named["offset"], named["lag_records"], named["lag_ms"]) == ("delays", 4, 6, 9)
    assert (named["run"], named["label"], named["topics"], named["state"]) == (RUN, "job.py@host", ["flights"], "running")
    assert named["since_us"] < named["seen_us"]


def test_a_refused_offset_commit_of_a_query_is_reported(log: LogMaker, gateway: FakeGateway, client: flight.FlightClient) -> None:
    """Proves that a refusal is not an error of the query, that every caller sees it, and that it disappears."""
    log.add("flights", 10)
    gateway.denies = "offset"
    assert "not now" in report(client, 4, name="delays")["trouble"]
    assert "not now" in ask(client, "queries")[0]["trouble"]
    gateway.denies = ""
    assert report(client, 5, name="delays") == {"trouble": ""}
    assert ask(client, "queries")[0]["trouble"] == ""


def test_reports_that_are_wrong_are_refused(log: LogMaker, client: flight.FlightClient) -> None:
    """Proves that a name that is none, and an offset that no record has yet, are refused."""
    log.add("flights", 10)
    assert refusal(lambda: report(client, 1, name="a b"))[1]["code"] == "malformed"
    assert refusal(lambda: ask(client, "report", run="", offset=1))[1]["code"] == "malformed"
    assert refusal(lambda: ask(client, "passed", reader="", offset=1))[1]["code"] == "malformed"
    assert refusal(lambda: report(client, 11))[1]["code"] == "beyond_frontier"
    assert ask(client, "queries") == []


@pytest.mark.parametrize("state", ["minority", "halted"])
def test_a_wait_at_a_disconnected_gateway_is_redirected(
    log: LogMaker, gateway: FakeGateway, process: ReadsProcess, client: flight.FlightClient, state: str
) -> None:
    """Proves that a waiter at a gateway in a minority is sent to another one, and still gets the known state."""
    log.add("flights", 10)
    log.save("late", 3)
    gateway.state = state
    gateway.gateways["lga"] = "tutti://127.0.0.1:7410"
    wait_until(lambda: ask(client, "frontier")["state"] == state)
    assert refusal(lambda: ask(client, "passed", reader="late", offset=4, timeout_ms=30_000))[1]["code"] == "unavailable"
    assert ask(client, "passed", reader="late", offset=3, timeout_ms=30_000)["offset"] == 3


def test_state_of_queries_is_bounded() -> None:
    """Proves that the latest reporters are kept, and that a silent one is listed as silent and deleted after a day."""
    from tutti_gateway.reads.logs.query_reports import QueryReports
    from tutti_gateway.reads.protocol.tickets import ReportRequest

    queries = QueryReports()
    for number in range(limits.QUERIES_MAX + 5):
        queries.record(ReportRequest(run=str(number), offset=0, label=f"{number:05}"), number)
    queries.record(ReportRequest(run="5", offset=1), 10_000)
    lines = queries.lines(10, 10_000)
    assert len(lines) == limits.QUERIES_MAX
    assert {line.run for line in lines} == {str(number) for number in range(5, limits.QUERIES_MAX + 5)}
    assert next(line for line in lines if line.run == "5").since_us == 5
    assert {line.state for line in queries.lines(10, 60_000_000)} == {"silent"}
    assert [line.run for line in queries.lines(10, limits.QUERY_KEPT_US + 10_000)] == ["5"]
    assert queries.lines(10, limits.QUERY_KEPT_US + 20_000) == []


def test_the_lag_of_a_query_that_died_grows() -> None:
    """Proves it while records wait for it and it is silent. The lag of a query that reports, or has processed everything, is the
    reported one.
    """
    from tutti_gateway.reads.logs.query_reports import QueryReports
    from tutti_gateway.reads.protocol.tickets import ReportRequest

    queries = QueryReports()
    queries.record(ReportRequest(run="1", offset=14, name="totals", lag_ms=7), 1_000_000)
    looks = (14, 2_000_000), (27, 5_000_000), (14, 601_000_000), (27, 601_000_000), (27, 0)
    found = [(line.lag_ms, line.state) for look in looks for line in queries.lines(*look)]
    assert found == [(7, "running"), (7, "running"), (7, "silent"), (600_007, "silent"), (7, "running")]
    queries.record(ReportRequest(run="1", offset=27, name="totals"), 602_000_000)
    assert queries.lines(27, 602_000_000)[0].lag_ms == 0


def test_a_run_replaces_an_ended_one_of_its_name() -> None:
    """Proves that a query that was started again is listed once, and two that run at a time are listed both."""
    from tutti_gateway.reads.logs.query_reports import QueryReports
    from tutti_gateway.reads.protocol.tickets import ReportRequest

    queries = QueryReports()
    for run, name, now_us in (("1", "a", 0), ("2", "b", 0), ("3", "", 0), ("4", "a", 60_000_000), ("5", "a", 61_000_000)):
        queries.record(ReportRequest(run=run, offset=0, name=name), now_us)
    assert [(line.run, line.state) for line in queries.lines(0, 61_000_000)] == [
        ("3", "silent"),
        ("4", "running"),
        ("5", "running"),
        ("2", "silent"),
    ]
