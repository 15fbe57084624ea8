"""Tests of a reader's choice of gateway: it finds the one with the highest frontier, and uses gateways in a minority only if no
other has more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, read_values, values
from tests.unit.client.relay import Relay
from tutti.common.gateway_url import parse_url
from tutti.reader import Reader
from tutti.sources import flight_pool
from tutti.sources.flight import FlightSource


@pytest.fixture
def two() -> Iterator[tuple[ReadableGateway, ReadableGateway]]:
    with ReadableGateway(10) as near, ReadableGateway(12) as far:
        yield near, far


def url(*gateways: ReadableGateway) -> str:
    return "tutti://" + ",".join(gateway.url.removeprefix("tutti://") for gateway in gateways)


def questions(gateway: ReadableGateway) -> int:
    return sum(what == "frontier" for what, _ in gateway.reads.asked)


@pytest.mark.parametrize("state", ["minority", "halted", "joining"])
def test_a_stalled_frontier_is_requested_from_another_gateway(two: tuple[ReadableGateway, ReadableGateway], state: str) -> None:
    near, far = two
    near.reads.state = state
    with FlightSource(url(near, far)) as reads:
        assert reads.frontier()[2:] == (12, 14, 5, 1, "primary", False)
        assert read_values(reads, 8, 12) == [8, 9, 10, 11]


def test_if_all_are_in_a_minority_the_best_answer_counts_with_a_warning(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    near.reads.state = far.reads.state = "minority"
    with FlightSource(url(near, far)) as reads:
        found = reads.frontier()
        assert (found.offset, found.state) == (12, "minority")
        assert (questions(near), questions(far)) == (1, 1)
    with FlightSource(url(far, near)) as reads:
        assert reads.frontier().offset == 12


def test_the_remaining_gateway_serves_its_prefix_although_it_is_in_a_minority(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    near.reads.state = "minority"
    with FlightSource(url(near, far)) as reads:
        far.gateway.stop()
        found = reads.frontier()
        assert (found.offset, found.state) == (10, "minority")
        assert read_values(reads, 0, 10) == list(range(10))


def test_a_follower_moves_to_a_gateway_that_continues(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    far.reads.records = near.reads.records[:]
    with Reader(url(near, far), start=10, follow=True) as reader:
        assert reader.poll(0.05) is None
        near.reads.state = "minority"
        far.add(2)
        batch = reader.poll(5)
        assert batch is not None
        assert values([batch]) == [10, 11]


def test_a_follower_waits_for_a_gateway_that_catches_up(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    near.reads.state = "joining"
    with FlightSource(url(near, far)) as reads:
        assert reads.frontier(9).offset == 10
        assert reads.frontier(10, 0.05).offset == 10
        assert questions(far) == 0
        near.add(3)
        assert reads.frontier(10, 5).offset == 13


def test_a_poll_in_a_minority_ends_in_time_and_the_next_one_asks_another_gateway(
    two: tuple[ReadableGateway, ReadableGateway],
) -> None:
    near, far = two
    near.reads.state = "minority"
    with FlightSource(url(near, far)) as reads:
        assert reads.frontier(10, 0.05).offset == 10
        assert questions(far) == 0
        assert reads.frontier(10, 0.05).offset == 12


def test_a_follower_in_a_minority_gets_new_records_when_that_is_over(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    far.gateway.stop()
    near.reads.state = "minority"
    with Reader(url(near, far), start=10, follow=True) as reader:
        assert reader.poll(0.3) is None
        near.reads.state = "primary"
        near.add(1)
        batch = reader.poll(5)
        assert batch is not None
        assert values([batch]) == [10]


def test_a_long_running_reader_discovers_new_gateways(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    with FlightSource(near.url) as reads:
        assert reads.frontier().offset == 10
        near.reads.gateways = {"near": near.url, "far": far.url}
        reads.frontier()
        assert reads.addresses == tuple(parse_url(url(near, far)))
        near.reads.stop()
        near.gateway.stop()
        assert reads.frontier().offset == 12


def test_a_silent_stream_continues_at_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = {"grpc.keepalive_time_ms": 300, "grpc.keepalive_timeout_ms": 300, "grpc.http2.ping_timeout_ms": 300}
    monkeypatch.setattr(flight_pool, "_OPTIONS", [(name, hasty.get(name, value)) for name, value in flight_pool._OPTIONS])
    with ReadableGateway() as far, ReadableGateway() as near, Relay(far.reads.port) as relay:
        far.gateway.reads = f"grpc://127.0.0.1:{relay.port}"
        for gateway in (far, near):
            gateway.reads.records = [("t", b"%d" % number + bytes(20_000)) for number in range(1000)]
        offsets: list[int] = []
        with Reader(url(far, near), columns=["offset", "value"], patience=30) as reader:
            for batch in reader:
                offsets += batch.column("offset").to_numpy().tolist()
                relay.fall_silent()
    assert offsets == list(range(1000))
    (ticket,) = [asked for what, asked in near.reads.asked if what == "do_get"]
    assert 0 < ticket["start"] < 1000


def test_a_frontier_never_moves_back_at_any_gateway(two: tuple[ReadableGateway, ReadableGateway]) -> None:
    near, far = two
    with FlightSource(url(far, near), patience=1.5) as reads:
        assert reads.frontier().offset == 12
        far.reads.stop()
        far.gateway.stop()
        near.reads.state = "minority"
        with pytest.raises(Exception, match="12 was seen"):
            reads.frontier()
        near.add(2)
        assert reads.frontier().offset == 12
