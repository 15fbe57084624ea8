"""Tests of unordered records with three real gateways: receipts stay true and lanes in order despite kills, stops and removals."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.lanes.lane_files import agree, digests, frontiers
from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tests.unit.client.fake_gateway import deliver_within
from tutti import Producer, Reader, Receipt
from tutti.delivery.session import State
from tutti.errors import Unknown
from tutti_spark.common.options import parse
from tutti_spark.source.batch import BatchReader

WAIT_S = 60.0


class Place(NamedTuple):
    """Where a record is."""

    lane: str
    offset: int


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path) as three:
        yield three


class Sender(threading.Thread):
    """Sends `name-0`, `name-1`, ... unordered until it is stopped."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.receipts: list[Receipt] = []
        self.stopping = threading.Event()
        self.trouble: BaseException | None = None
        self._url = url
        self.start()

    def run(self) -> None:
        try:
            with Producer(self._url, producer=self.name, delivery_timeout=2 * WAIT_S) as producer:
                while not self.stopping.wait(0.002):
                    for _ in range(10):
                        self.receipts.append(producer.send("t", self.value(len(self.receipts)), ordering="unordered"))
                assert producer.flush(WAIT_S) == 0
        except BaseException as error:  # noqa: BLE001 - told to who waits
            self.trouble = error

    def value(self, number: int) -> bytes:
        return b"%s-%d" % (self.name.encode(), number)

    def some(self) -> None:
        """Wait until records that are sent from now on have their outcome."""
        first = len(self.receipts)
        wait_until(lambda: len(self.receipts) > first + 200)
        wait_until(lambda: any(receipt.done() for receipt in self.receipts[first:]))

    def stop(self) -> None:
        self.stopping.set()
        self.join(2 * WAIT_S)
        assert self.trouble is None, self.trouble
        assert not self.is_alive()


def settled(group: RunningGroup) -> None:
    """All gateways have all lanes."""
    wait_until(lambda: all(group.status(name)["state"] == "primary" for name in NAMES))
    wait_until(lambda: agree(group, {}))


def noticed(producer: Producer) -> bool:
    """Return whether the producer has noticed that a gateway it sent to is down."""
    there = producer._io.lanes if producer._io else None
    return there is not None and any(lane.session.state is State.OFFLINE for lane in there.senders)


def lanes(url: str) -> dict[bytes, list[Place]]:
    """Where each value is."""
    found: dict[bytes, list[Place]] = {}
    with Reader(url, ordering="unordered") as reader:
        names = list(reader.position)
    for lane in names:
        with Reader(url, ordering="unordered", origin=lane, columns=["offset", "value"]) as reader:
            for batch in reader:
                for offset, value in zip(*(batch.column(at).to_pylist() for at in (0, 1)), strict=True):
                    found.setdefault(value or b"", []).append(Place(lane, offset))
    return found


def in_order(found: dict[bytes, list[Place]], name: str) -> dict[str, list[int]]:
    """Return a producer's records in each lane, after a check that they are in the order sent."""
    mine = [value for value in found if value.startswith(name.encode() + b"-")]
    places = sorted((place, int(value.rpartition(b"-")[2])) for value in mine for place in found[value])
    result: dict[str, list[int]] = {}
    for place, number in places:
        result.setdefault(place.lane, []).append(number)
    for lane, numbers in result.items():
        assert numbers == sorted(set(numbers)), f"{name} in {lane}"
    return result


@pytest.mark.soak
def test_every_record_is_exactly_at_its_receipts_offset_after_any_kill(group: RunningGroup) -> None:
    senders = [Sender(f"p{number}", group[name].url) for number, name in enumerate((*NAMES, "g1"))]
    for name in NAMES:
        for sender in senders:
            sender.some()
        group[name].kill()
        last = [sender.receipts[-1] for sender in senders]
        for sender in senders:
            sender.some()
        group[name].start()
        for receipt in last:
            receipt.result(WAIT_S)
    for sender in senders:
        sender.stop()
    settled(group)
    found = lanes(group.url)
    for sender in senders:
        for number, receipt in enumerate(sender.receipts):
            assert found[sender.value(number)] == [Place(receipt.lane, receipt.result(0))]
        assert len(in_order(found, sender.name)) >= 2, "it went elsewhere while its gateway was away"
    assert sum(len(places) for places in found.values()) == sum(len(sender.receipts) for sender in senders)
    for gateway in group.all.values():
        assert gateway.stop() == 0
    first, *others = [digests(Path(gateway.data)) for gateway in group.all.values()]
    assert all(other == first for other in others)


@pytest.mark.soak
def test_records_sent_to_an_absent_gateway_are_unknown_and_at_most_once(group: RunningGroup) -> None:
    with Producer(group["g1"].url, producer="p", delivery_timeout=WAIT_S) as producer:
        first = [producer.send("t", b"p-%d" % number, ordering="unordered") for number in range(100)]
        for receipt in first:
            receipt.result(WAIT_S)
        group["g1"].signal(signal.SIGSTOP)
        deliver_within(producer, 4)
        lost = [producer.send("t", b"p-%d" % number, ordering="unordered") for number in range(100, 200)]
        deliver_within(producer, WAIT_S)
        wait_until(lambda: all(receipt.lane for receipt in lost[:1]))
        group["g1"].kill()
        wait_until(lambda: noticed(producer))
        later = [producer.send("t", b"p-%d" % number, ordering="unordered") for number in range(200, 300)]
        for receipt in later:
            receipt.result(WAIT_S)
            assert receipt.lane != first[0].lane
        producer.flush(WAIT_S)
        errors = [receipt.error for receipt in lost]
        for receipt in lost:
            with contextlib.suppress(Unknown):
                receipt.result(0)  # it was seen: the end of the block need not say it
        assert errors[0] is not None
        for error in errors:
            assert error is None or (isinstance(error, Unknown) and "may or may not be in the lane of gateway g1" in str(error))
        group["g1"].start()
        settled(group)
        group["g2"].kill()
        group["g3"].kill()
        wait_until(lambda: group.status("g1")["state"] == "minority")
        again = producer.send("t", b"p-300", ordering="unordered")
        for name in ("g2", "g3"):
            group[name].start(wait=False)
        again.result(WAIT_S)
    settled(group)
    found = lanes(group.url)
    in_order(found, "p")
    for number, receipt in [*enumerate(first), *enumerate(later, 200), (300, again)]:
        assert found[b"p-%d" % number] == [Place(receipt.lane, receipt.result(0))]
    for number in range(100, 200):
        places = found.get(b"p-%d" % number, [])
        assert len(places) <= 1
        assert all(place.lane == first[0].lane or errors[number - 100] is None for place in places)


def test_a_gateway_that_stops_in_order_costs_nothing(group: RunningGroup) -> None:
    senders = [Sender("p0", group["g1"].url), Sender("p1", group["g2"].url)]
    wait_until(lambda: all(len(sender.receipts) > 500 for sender in senders))
    assert group["g1"].stop() == 0
    for sender in senders:
        sender.stop()
        assert all(receipt.result(0) >= 0 for receipt in sender.receipts), "also what was under way to it"
    group["g1"].start()
    settled(group)
    found = lanes(group["g1"].url)
    for sender in senders:
        in_order(found, sender.name)
        for number, receipt in enumerate(sender.receipts):
            assert found[sender.value(number)] == [Place(receipt.lane, receipt.result(0))]


def test_unordered_sends_continue_without_a_majority_and_replicate_later(group: RunningGroup) -> None:
    with Producer(group.url, producer="p", delivery_timeout=2 * WAIT_S) as producer:
        first = producer.send("t", b"p-0", ordering="unordered")
        first.result(WAIT_S)
        ordered = [producer.send("t", b"first")]
        ordered[0].result(WAIT_S)
        for name in ("g2", "g3"):
            group[name].kill()
        wait_until(lambda: group.status("g1")["state"] == "minority")
        ordered.append(producer.send("t", b"second"))
        alone = [producer.send("t", b"p-%d" % number, ordering="unordered") for number in range(1, 101)]
        for receipt in alone:
            receipt.result(WAIT_S)
        assert not ordered[1].done()
        for name in ("g2", "g3"):
            group[name].start(wait=False)
        assert [receipt.result(2 * WAIT_S) for receipt in ordered] == [0, 1]
    settled(group)
    assert sum(frontiers(group, "g3").values()) == 101
    wanted = {alone[0].lane: list(range(1, 101))}
    wanted[first.lane] = [0, *wanted.get(first.lane, ())]  # g1 may have been the last to take something
    assert in_order(lanes(group["g3"].url), "p") == wanted


def test_a_reader_of_all_lanes_gets_each_record_once_in_order_under_kills(group: RunningGroup) -> None:
    senders = [Sender(f"p{number}", group[name].url) for number, name in enumerate(NAMES)]
    seen: dict[str, list[bytes]] = {}
    count = 0
    with Reader(group["g2"].url, ordering="unordered", follow=True, columns=["gateway", "offset", "value"]) as reader:
        deadline = time.monotonic() + 2 * WAIT_S
        killed = False
        while not all(sender.stopping.is_set() for sender in senders) or count < sum(len(sender.receipts) for sender in senders):
            assert time.monotonic() < deadline, (count, reader.position)
            batch = reader.poll(0.5)
            if batch is not None:
                (name,) = set(batch.column("gateway").to_pylist())
                values = seen.setdefault(str(name), [])
                assert batch.column("offset").to_pylist() == list(range(len(values), len(values) + batch.num_rows))
                values.extend(value or b"" for value in batch.column("value").to_pylist())
                count += batch.num_rows
            if count > 1000 and not killed:
                killed = True
                group["g2"].kill()
                group["g2"].start(wait=False)
            if count > 4000:
                for sender in senders:
                    sender.stopping.set()
        for sender in senders:
            sender.stop()
        assert count == sum(reader.position.values())
    every = [value for values in seen.values() for value in values]
    assert len(every) == len(set(every)) == sum(len(sender.receipts) for sender in senders)


def test_spark_reads_no_aborted_records(group: RunningGroup) -> None:
    with Producer(group.url, producer="p") as producer:
        for number in range(50):
            producer.send("t", b"lane-%d" % number, ordering="unordered")
            producer.send("t", b"log-%d" % number)
        producer.send("only-lanes", b"lane", ordering="unordered")
    settled(group)
    for options in ({"gateways": group.url}, {"gateways": group.url, "topics": "t"}, {"path": str(group["g2"].data)}):
        reader = BatchReader(parse(options, "batch"))
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["value"] for row in rows] == [b"log-%d" % number for number in range(50)]
        assert [row["offset"] for row in rows] == list(range(50))
    empty = BatchReader(parse({"gateways": group.url, "topics": "only-lanes"}, "batch"))
    assert [batch.num_rows for part in empty.partitions() for batch in empty.read(part)] in ([], [0])
    with Reader(group.url) as ordered:
        assert sum(batch.num_rows for batch in ordered) == 50
