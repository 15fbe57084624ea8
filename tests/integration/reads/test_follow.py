"""Tests of followers: one gets new records in order and at once, and ends at its end offset, a cancel, a stop or a disconnect. Long
polls and readers that have seen a higher frontier wait for the frontier and no longer.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight

from tests.support.reads_process import FakeGateway, LogMaker, ReadsProcess, ask, offsets_of, read, refusal
from tests.support.waiting import wait_until


class Follower:
    """A follow stream, read by a thread of its own."""

    def __init__(self, url: str, **ticket: Any) -> None:
        self.client = flight.connect(url)
        asked = {"columns": ["offset"], "follow": True, **ticket}
        self.reader = self.client.do_get(flight.Ticket(json.dumps(asked).encode()))
        self.offsets: list[int] = []
        self.told: list[dict[str, int]] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for chunk in self.reader:
                if chunk.app_metadata is not None:
                    self.told.append(json.loads(chunk.app_metadata.to_pybytes()))
                self.offsets += offsets_of(chunk)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self.ended.set()

    def close(self) -> None:
        self.reader.cancel()
        self.thread.join(10)
        self.client.close()


@pytest.fixture
def follow(process: ReadsProcess) -> Iterator[Any]:
    made: list[Follower] = []

    def begin(**ticket: Any) -> Follower:
        made.append(Follower(process.url, **ticket))
        return made[-1]

    yield begin
    for follower in made:
        follower.close()


def following(process: ReadsProcess) -> int:
    return int(process.page("/v1/status")[1]["reads_served"]["calls"]["follow"])


def test_commits_arrive_in_order(log: LogMaker, follow: Any) -> None:
    log.add("flights", 10)
    early, late = follow(), follow(start="latest")
    wait_until(lambda: len(early.offsets) == 10)
    wait_until(lambda: late.told)
    for _ in range(50):
        log.add("flights", 3)
    wait_until(lambda: len(early.offsets) == 160)
    wait_until(lambda: len(late.offsets) == 150)
    assert early.offsets == list(range(160))
    assert late.offsets == list(range(10, 160))
    wait_until(lambda: early.told[-1] == {"next": 160, "frontier": 160})


NO_POLL = (
    "import os; from tutti_gateway.core import limits; limits.WATCH_POLL_US = 600_000_000; "
    "from tutti_gateway.reads.main import main; os._exit(main())"
)


def test_a_follower_sees_a_commit_at_once_by_the_pipe(log: LogMaker, gateway: FakeGateway) -> None:
    """By the pipe: the slow poll cannot be the cause."""
    process = ReadsProcess(log.path, gateway, log.read_fd, program=("-c", NO_POLL)).ready()
    follower = Follower(process.url)
    wait_until(lambda: follower.told)
    for number in range(20):
        log.add("flights", 1)
        wait_until(lambda expected=number + 1: len(follower.offsets) == expected)  # type: ignore[misc]  # bound at once
    follower.close()
    assert process.end() == 0


def test_a_topic_that_comes_later_is_followed(log: LogMaker, follow: Any) -> None:
    follower = follow(topics=["weather"])
    log.add("flights", 10)
    wait_until(lambda: follower.told and follower.told[-1]["next"] == 10)
    assert follower.offsets == []
    log.add("weather", 2)
    log.add("flights", 1)
    wait_until(lambda: follower.told[-1]["next"] == 13)
    assert follower.offsets == [10, 11]


def test_it_ends_at_its_end(log: LogMaker, follow: Any, process: ReadsProcess) -> None:
    log.add("flights", 5)
    follower = follow(start=2, end=8)
    wait_until(lambda: len(follower.offsets) == 3)
    assert not follower.ended.is_set()
    log.add("flights", 20)
    assert follower.ended.wait(10)
    assert (follower.offsets, follower.error) == (list(range(2, 8)), None)
    assert follow(start=3, end=3).ended.wait(10)
    wait_until(lambda: following(process) == 0)


def test_silence_is_broken_by_beats(follow: Any) -> None:
    follower = follow()
    wait_until(lambda: len(follower.told) >= 2)
    assert follower.told[-1] == {"next": 0, "frontier": 0}


def test_threads_end_with_their_callers(log: LogMaker, process: ReadsProcess, follow: Any) -> None:
    before = process.threads()
    followers = [follow() for _ in range(30)]
    wait_until(lambda: all(follower.told for follower in followers))
    assert following(process) == 30
    assert process.threads() >= before + 30
    for follower in followers:
        follower.reader.cancel()
    wait_until(lambda: following(process) == 0)
    wait_until(lambda: process.threads() < before + 15)
    assert all(follower.ended.wait(10) for follower in followers)


def test_a_killed_caller_is_noticed(log: LogMaker, process: ReadsProcess) -> None:
    code = f"from pyarrow import flight as f; c = f.connect('{process.url}'); list(c.do_get(f.Ticket(b'{{\"follow\": true}}')))"
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        try:
            wait_until(lambda: following(process) == 1)
        finally:
            caller.kill()
    wait_until(lambda: following(process) == 0)


def test_stop_ends_followers_with_an_error(log: LogMaker, process: ReadsProcess, follow: Any) -> None:
    follower = follow()
    wait_until(lambda: follower.told)
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 10
    assert follower.ended.wait(10)
    assert isinstance(follower.error, flight.FlightUnavailableError)
    assert json.loads(follower.error.extra_info)["code"] == "stopping"


def test_the_gateways_end_is_its_end(log: LogMaker, process: ReadsProcess, follow: Any) -> None:
    follower = follow()
    wait_until(lambda: follower.told)
    os.close(log.notify_fd)
    assert process.process.wait(10) == 0
    assert follower.ended.wait(10)


def test_long_polls(log: LogMaker, client: flight.FlightClient) -> None:
    began = time.monotonic()
    assert ask(client, "frontier", beyond=0, timeout_ms=300)["frontier"] == 0
    assert 0.25 < time.monotonic() - began < 10
    waiting = threading.Timer(0.2, lambda: log.add("flights", 7))
    waiting.start()
    assert ask(client, "frontier", beyond=0, timeout_ms=30_000)["frontier"] == 7
    waiting.join()
    assert ask(client, "frontier", beyond=6, timeout_ms=30_000)["frontier"] == 7
    assert ask(client, "frontier", beyond=-1)["frontier"] == 7


WAITS_LONG = (
    "import os; from tutti_gateway.core import limits; limits.BEHIND_WAIT_US_MAX = 20_000_000; "
    "from tutti_gateway.reads.main import main; os._exit(main())"
)


def test_a_reader_that_has_seen_more_waits_briefly(log: LogMaker, gateway: FakeGateway) -> None:
    log.add("flights", 5)
    process = ReadsProcess(log.path, gateway, log.read_fd, program=("-c", WAITS_LONG)).ready()
    waiting = threading.Timer(0.2, lambda: log.add("flights", 5))
    waiting.start()
    with flight.connect(process.url) as client:
        assert read(client, seen=10, columns=["offset"]).num_rows == 10
    waiting.join()
    assert process.end() == 0


def test_a_reader_ahead_of_the_log_gets_an_error_in_the_end(client: flight.FlightClient) -> None:
    kind, info = refusal(lambda: ask(client, "frontier", seen=11))
    assert (kind, info["code"]) == (flight.FlightUnavailableError, "behind")


def test_committed_records_are_readable_at_once(log: LogMaker, client: flight.FlightClient) -> None:
    """Read your writes: no frontier that a receipt could have shown is ever above the served one."""
    for _ in range(30):
        log.add("flights", 2, tell=False)
        assert read(client, start=log.offset - 2, end=log.offset, columns=["offset"]).num_rows == 2


def test_a_silent_gateway_stops_no_reads(
    log: LogMaker, gateway: FakeGateway, process: ReadsProcess, client: flight.FlightClient
) -> None:
    log.add("flights", 5)
    assert process.page("/healthz") == (200, {"status": "ok"})
    assert process.page("/readyz") == (200, {"state": "primary", "reason": ""})
    gateway.state = "halted"
    wait_until(lambda: process.page("/readyz")[0] == 503)
    assert process.page("/healthz")[0] == 200
    wait_until(lambda: ask(client, "frontier")["state"] == "halted")
    gateway.state = None
    wait_until(lambda: process.page("/healthz")[0] == 503)
    status, page = process.page("/v1/status")
    assert (status, page["state"], page["frontier"]) == (503, "unknown", 5)
    wait_until(lambda: ask(client, "frontier")["state"] == "unknown")
    assert read(client).num_rows == 5
    status, text = process.page("/metrics")
    assert status == 200
    assert "tutti_up 0.0" in text
    assert 'tutti_topic_records_total{topic="flights"} 5.0' in text
    gateway.state = "primary"
    wait_until(lambda: process.page("/readyz")[0] == 200)
    assert 'tutti_state{state="primary"} 1.0' in process.page("/metrics")[1]


def test_followers_leave_a_frozen_gateway_until_it_works_again(
    log: LogMaker, process: ReadsProcess, client: flight.FlightClient, follow: Any
) -> None:
    log.put([log.batch("t", 10)])
    follower = follow()
    log.writer.heartbeat(1)  # its last
    assert follower.ended.wait(30)
    assert follower.offsets == list(range(10))
    assert json.loads(follower.error.extra_info)["code"] == "unavailable"
    for call in (
        lambda: read(client, columns=["offset"], follow=True),
        lambda: ask(client, "frontier", beyond=10, timeout_ms=30_000),
        lambda: ask(client, "lanes"),
    ):
        kind, told = refusal(call)
        assert kind is flight.FlightUnavailableError
        assert told["code"] == "unavailable"
    assert ask(client, "frontier", beyond=9, timeout_ms=30_000)["frontier"] == 10  # what is committed is read all the same
    assert read(client, columns=["offset"]).num_rows == 10
    log.writer.heartbeat(2)
    again: Follower = wait_until(lambda: followed(follow))
    wait_until(lambda: again.offsets == list(range(10)))


def followed(follow: Any) -> Follower | None:
    try:
        made: Follower = follow()
    except flight.FlightUnavailableError:
        return None
    return made
