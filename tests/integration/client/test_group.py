"""Tests of producers and readers with three real gateways: order, identity and positions survive kills,
disconnects and removals.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer, Reader
from tutti.data.scan_request import ScanRequest
from tutti.errors import Unavailable
from tutti.io.admin import AdminClient
from tutti.sources.flight import FlightSource

WAIT_S = 60.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path) as three:
        yield three


def values(batches: Any) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def reaches(group: RunningGroup, name: str, frontier: int) -> Callable[[], bool]:
    return lambda: bool(group.status(name)["frontier"] == frontier)


def has_saved(reads: FlightSource, offset: int) -> Callable[[], bool]:
    return lambda: reads.readers() == {"loader": offset}


class Follower(threading.Thread):
    """Reads on in a thread of its own, up to a number of records."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(daemon=True)
        self.found: list[bytes] = []
        self.offsets: list[int] = []
        self.trouble: BaseException | None = None
        self._url, self._count = url, count
        self.start()

    def run(self) -> None:
        try:
            with Reader(self._url, follow=True, columns=["value", "offset"]) as reader:
                while len(self.found) < self._count:
                    for batch in filter(None, [reader.poll(0.5)]):
                        self.found += values([batch])
                        self.offsets += batch.column("offset").to_numpy().tolist()
        except BaseException as error:  # noqa: BLE001 - told to who waits
            self.trouble = error

    def wait(self) -> list[bytes]:
        self.join(WAIT_S)
        assert self.trouble is None, self.trouble
        assert not self.is_alive(), f"{len(self.found)} of {self._count} records came"
        return self.found


def test_the_coordinator_is_killed_while_producers_send_and_readers_follow(group: RunningGroup) -> None:
    count, kill_at = 6000, 2000
    first = group.coordinator()
    others = [name for name in NAMES if name != first.name]
    followers = [Follower(first.url, count), Follower(group[others[0]].url, count)]
    with Producer(first.url, producer="p", delivery_timeout=WAIT_S) as producer:
        receipts = []
        for number, value in enumerate(numbers(count)):
            receipts.append(producer.send("t", value))
            if number == kill_at:
                receipts[-500].result(WAIT_S)  # some are on their way
                first.kill()
        assert producer.flush(WAIT_S) == 0
        assert producer.epoch == 1
        assert [receipt.result(0) for receipt in receipts] == list(range(count)), "each has its place, also what was asked again"
    for follower in followers:
        assert follower.wait() == numbers(count)
        assert follower.offsets == list(range(count))
    assert group.coordinator().name in others, "the next in rank, or the one behind it where that is slow"
    first.start()
    wait_until(lambda: group.status(first.name)["state"] == "primary")
    with Reader(first.url) as reader:
        assert values(reader) == numbers(count)


def test_a_producer_that_knows_one_address_finds_its_way_whichever_gateways_are_left(group: RunningGroup) -> None:
    sent = 0
    with Producer(group["g1"].url, producer="p", delivery_timeout=WAIT_S) as producer:
        for name in ("g1", "g2", "g3"):
            for value in numbers(50, sent):
                producer.send("t", value)
            sent += 50
            assert producer.flush(WAIT_S) == 0
            group[name].kill()
            assert producer.send("t", b"%d" % sent).result(WAIT_S) == sent
            sent += 1
            group[name].start()
        assert producer.epoch == 1
        assert producer.resume().sequence == sent
    with Reader(group["g3"].url) as reader:
        assert values(reader) == numbers(sent)
    with Producer(group["g2"].url, producer="p") as again:
        assert (again.epoch, again.resume().sequence) == (2, sent)


def test_an_isolated_gateway_serves_its_prefix_and_reports_it(group: RunningGroup) -> None:
    with Producer(group.url, producer="p") as producer:
        for value in numbers(100):
            producer.send("t", value)
    wait_until(lambda: all(group.status(name)["frontier"] == 100 for name in NAMES))
    last = group.coordinator()
    for name in NAMES:
        if name != last.name:
            group[name].kill()
    wait_until(lambda: group.status(last.name)["state"] == "minority")
    with FlightSource(last.url) as reads:
        wait_until(lambda: (found := reads.frontier()).offset == 100 and found.state == "minority")
        assert values(found.batch for found in reads.scan(ScanRequest(0, 100))) == numbers(100)
    with pytest.raises(Unavailable, match="not_primary"):
        Producer(last.url, producer="p", connect_timeout=5)
    with Reader(last.url, follow=True, start=90, columns=["value"]) as reader:
        assert values([reader.poll(WAIT_S)]) == numbers(10, 90)
        assert reader.poll(0.3) is None
        for name in NAMES:
            if name != last.name:
                group[name].start(wait=False)
        with Producer(last.url, producer="p", connect_timeout=WAIT_S) as producer:
            assert producer.resume().sequence == 100
            producer.send("t", b"100")
        assert values([reader.poll(WAIT_S)]) == [b"100"]


def test_a_named_reader_commits_at_any_gateway_and_resumes_at_another(group: RunningGroup) -> None:
    with Producer(group.url) as producer:
        for value in numbers(30):
            producer.send("t", value)
    for turn, name in enumerate(NAMES):
        wait_until(reaches(group, name, 30))
        with Reader(group[name].url, name="loader", columns=["value"]) as reader:
            assert reader.position == 10 * turn
            records = reader.records()
            assert [next(records).value for _ in range(10)] == numbers(10, 10 * turn)
            reader.save()
        for other in NAMES:
            with FlightSource(group[other].url) as reads:
                wait_until(has_saved(reads, 10 * (turn + 1)))


def test_a_range_has_the_same_bytes_at_each_of_its_locations(group: RunningGroup) -> None:
    with Producer(group.url) as producer:
        for value in numbers(2000):
            producer.send("t", value)
    wait_until(reaches(group, "g2", 2000))  # a receipt says that g2 has them, not yet that it was told that all have
    with flight.connect(group.status("g2")["reads"]) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({"splits": 2}).encode()))
    tables = []
    for endpoint in info.endpoints:
        assert {location.uri.decode() for location in endpoint.locations} == {group.status(name)["reads"] for name in NAMES}
        for location in endpoint.locations:
            with flight.connect(location) as client:
                tables.append((endpoint.ticket.ticket, client.do_get(endpoint.ticket).read_all()))
    for ticket, table in tables:
        assert all(table.equals(other) for same, other in tables if same == ticket)
    assert sum(table.num_rows for _, table in tables) == 3 * 2000


@pytest.mark.parametrize("ordering", ["total", pytest.param("unordered", marks=pytest.mark.soak)])
def test_a_following_reader_leaves_a_frozen_gateway_whose_reads_process_still_answers(group: RunningGroup, ordering: str) -> None:
    frozen = group["g1"]
    with Producer(group["g2"].url, producer="p", delivery_timeout=WAIT_S) as producer:
        for value in numbers(100):
            producer.send("t", value, ordering=ordering)
        producer.flush(WAIT_S)
        with Reader(frozen.url, follow=True, columns=["value"], ordering=ordering) as reader:
            found: list[bytes] = []

            def came(count: int) -> bool:
                found.extend(values(filter(None, [reader.poll(0.5)])))
                return len(found) == count

            wait_until(lambda: came(100))
            frozen.signal(signal.SIGSTOP)  # that process alone
            try:
                for value in numbers(100, 100):
                    producer.send("t", value, ordering=ordering)
                producer.flush(WAIT_S)
                wait_until(lambda: came(200))
            finally:
                frozen.signal(signal.SIGCONT)
    assert found == numbers(200)


def test_clients_learn_all_members_and_their_frontiers(group: RunningGroup) -> None:
    with Producer(group.url) as producer:
        producer.send("t", b"x").result(WAIT_S)
    with AdminClient(group["g1"].url) as control:
        welcome = control.welcome()
        assert welcome.gateways == {name: group[name].url for name in NAMES}
        assert welcome.silent == ()
        wait_until(lambda: {member["lag"] for member in control.members()} == {0})
        assert [(member["name"], member["state"], member["voter"]) for member in control.members()] == [
            (name, "primary", True) for name in NAMES
        ]
        group["g3"].kill()
        wait_until(lambda: control.welcome().silent == ("g3",))
        wait_until(lambda: control.status()["view"]["members"] == ["g1", "g2"])
        assert control.members()[2]["state"] == "silent"
