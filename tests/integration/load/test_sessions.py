"""Tests of the load generator against a real gateway: each record is in the log once, for all sizes and numbers under way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.fleet import Measured, gateway
from benchmarks.load.generator import Load, run
from benchmarks.load.sessions import TOPIC, Session, message_of, sessions
from tutti import Reader


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with gateway(tmp_path_factory.mktemp("load"), prepared=0) as running:
        yield running


def load(measured: Measured, connections: int, count: int, *, size: int = 100, in_flight: int = 1, rate: float = 0.0) -> Load:
    with sessions(measured.base, connections) as opened:
        return run(opened, message_of(opened[0].topic, size), count, in_flight=in_flight, rate=rate)


@pytest.mark.parametrize(
    ("connections", "count", "size", "in_flight", "rate"),
    [
        (8, 400, 100, 1, 0.0),
        (1, 50, 100, 1, 0.0),
        (2, 400, 100, 50, 0.0),
        (4, 40, 20_000, 3, 0.0),
        (2, 6, 2_000_000, 2, 0.0),
        (3, 200, 100, 10, 1000.0),
        (1, 5, 0, 1, 0.0),
    ],
)
def test_each_record_is_in_the_log_once(
    measured: Measured, connections: int, count: int, size: int, in_flight: int, rate: float
) -> None:
    load(measured, 1, 1)  # the topic exists
    with Reader(measured.url, topics=[TOPIC], start="latest") as reader:
        before = reader.position
    found = load(measured, connections, count, size=size, in_flight=in_flight, rate=rate)
    assert len(found.times_ms) == count
    with Reader(measured.url, topics=[TOPIC], start=before) as reader:
        values = [value for batch in reader for value in batch.column("value").to_pylist()]
    assert values == [bytes(size)] * count


def test_a_later_run_takes_over_the_producers_of_the_first(measured: Measured) -> None:
    with sessions(measured.base, 3) as first, sessions(measured.base, 3) as second:
        assert [one.producer for one in first] == [one.producer for one in second]
        assert [one.epoch + 1 for one in first] == [one.epoch for one in second]
        message = message_of(first[0].topic, 100)
        with pytest.raises(SystemExit, match="Fenced"):
            run(first, message, 3)
        assert run(second, message, 3).records == 3


def test_a_name_that_the_gateway_refuses_is_an_error(measured: Measured) -> None:
    session = Session("127.0.0.1", measured.base, "x" * 10_000)
    with pytest.raises(SystemExit, match=r"the gateway refused a session of the load: .* \(name\)"):
        session.advance()
    session.close()


def test_hundreds_of_sessions_open_at_once(measured: Measured) -> None:
    with sessions(measured.base, 300) as opened:
        assert len({one.producer for one in opened}) == 300
        assert run(opened, message_of(opened[0].topic, 100), 600).records == 600
