"""Tests of stale gateways: a client acts on the state of the group, whichever gateway it contacts first."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from tests.support.running_group import RunningGroup
from tutti.errors import Behind, OffsetOutOfRange, Unavailable
from tutti.producer import Producer
from tutti.reader import Reader
from tutti.sources.flight import FlightSource
from tutti.sources.query_progress import QueryProgress
from tutti.sources.source import wait_for_log

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path_factory.mktemp("three")) as three:
        yield three


def send(three: RunningGroup, names: str, count: int) -> int:
    """Send records by the gateways of these names, and return the offset after the last."""
    url = "tutti://" + ",".join(f"127.0.0.1:{three[name].port}" for name in names.split())
    with Producer(url, delivery_timeout=PATIENCE_S) as producer:
        return [producer.send("t", b"v") for _ in range(count)][-1].result(timeout=PATIENCE_S) + 1


def test_a_gateway_that_lags_decides_nothing_for_a_client(three: RunningGroup) -> None:
    """The process of one gateway is suspended, and its reads process continues with the commits up to then."""
    coordinator = next(name for name, gateway in three.all.items() if gateway is three.coordinator())
    lagging, other = [name for name in three.all if name != coordinator]
    first = send(three, coordinator, 10)
    with Reader(three[coordinator].url, name="loader", start=0) as reader:
        next(reader)
        reader.save()
    url = f"{three[lagging].url},127.0.0.1:{three[coordinator].port}"
    with FlightSource(three[lagging].url) as reads:  # where its reads are served is known by now
        assert reads.frontier().offset >= first
    three[lagging].signal(signal.SIGSTOP)
    try:
        end = send(three, f"{coordinator} {other}", 10)
        with Reader(three[coordinator].url, name="loader") as reader:
            assert reader.position == first
            list(reader)
            reader.save()
        with FlightSource(url) as reads:
            assert wait_for_log(reads).offset == end
        with QueryProgress(url) as progress:
            assert progress.readers()["loader"] == end
        with Reader(url, name="loader", connect_timeout=PATIENCE_S) as reader:
            assert (reader.position, reader.end) == (end, end)
            end = send(three, f"{coordinator} {other}", 1)
        with Reader(url, name="loader", connect_timeout=PATIENCE_S) as reader:
            assert sum(batch.num_rows for batch in reader) == 1
            reader.save()  # of a position that another gateway gave
        with FlightSource(url) as reads:
            reads.save_offset("bookkeeper", end)  # nothing was seen yet: only the offset tells that there is so much
            with pytest.raises(OffsetOutOfRange):
                reads.save_offset("bookkeeper", end + 1)
    finally:
        three[lagging].signal(signal.SIGCONT)


def test_a_minority_is_read_and_decides_nothing(three: RunningGroup, caplog: pytest.LogCaptureFixture) -> None:
    left = next(iter(three.all))
    end = send(three, left, 5)
    with Reader(three[left].url, name="loader", start=0) as reader:
        list(reader)
        reader.save()
    for name, gateway in three.all.items():
        if name != left:
            gateway.signal(signal.SIGSTOP)
    try:
        with caplog.at_level(logging.WARNING, "tutti"), Reader(three[left].url, start="earliest") as reader:
            assert sum(batch.num_rows for batch in reader) == end
        assert "no gateway can confirm its frontier with a majority" in caplog.text
        with pytest.raises(Unavailable, match="give `start` to read without confirmation"):
            Reader(three[left].url, name="loader", connect_timeout=3)
        with FlightSource(three[left].url) as reads:
            assert reads.frontier().stale
            assert reads.readers(linearizable=False)["loader"] == end
        with pytest.raises(Behind, match=f"start={end + 1} is above offset {end}"):
            Reader(three[left].url, start=end + 1, connect_timeout=3)
    finally:
        for gateway in three.all.values():
            gateway.signal(signal.SIGCONT)
    with Reader(three.url, name="loader", connect_timeout=PATIENCE_S) as reader:
        assert reader.position == end
