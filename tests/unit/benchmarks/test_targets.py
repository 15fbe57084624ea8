"""Tests of the benchmarks whose targets are ratios: figures of one round form a ratio, and a ratio can miss its target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import group, ingest, spark
from benchmarks.figures import Figure
from benchmarks.machine import MIB


class FakeGateway:
    """A gateway without a process."""

    url = "tutti://127.0.0.1:1"

    def wait_prepared(self, segments: int) -> None:
        """Return at once."""


@contextmanager
def _gateways(members: int, *_: object) -> Iterator[list[FakeGateway]]:
    yield [FakeGateway() for _ in range(members)]


@pytest.fixture
def fake_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that needs 0.9 times as long as bare messages at its coordinator, and twice as long at another member."""
    rounds = iter([1.0, 2.0, 4.0])
    raw: list[float] = []
    first = FakeGateway()

    def bare(*_: object) -> dict[str, float]:
        raw.append(next(rounds))
        return {"64 KiB": 100 * raw[-1], "256 KiB": 200 * raw[-1], "p50": raw[-1], "p99": 3 * raw[-1]}

    waits = iter([0.9, 1.8, 1.8, 3.6, 3.6, 7.2])
    monkeypatch.setattr(group, "bare", bare)
    monkeypatch.setattr(group, "_loaded", lambda *_: 150 * raw[-1])
    monkeypatch.setattr(group, "gateways", _gateways)
    monkeypatch.setattr(group, "coordinator_of", lambda _: first)
    monkeypatch.setattr(group, "_latency", lambda *_: [next(waits)])
    monkeypatch.setattr(group, "_idle", lambda _: ([1.0], [130.0]))


@pytest.mark.usefixtures("fake_group")
def test_a_group_of_three_is_compared_with_bare_messages_of_the_same_round(tmp_path: Path) -> None:
    found = {one.name: one for one in group.of_size(tmp_path, 3, 3, 128 * MIB)}
    reached = {name: (round(one.value, 3), one.reached) for name, one in found.items() if one.target is not None}
    assert reached == {
        "3 x send() 1 KB, share of the raw": (75.0, False),
        "3 x send_batch() 64 KiB, share of the raw": (150.0, True),
        "3 x send_batch() 256 KiB, share of the raw": (75.0, False),
        "3 x one at a time, p50, times the raw": (0.9, True),
        "3 x the same, times that at the coordinator": (2.0, False),
        "3 x memory of an idle member": (130.0, False),
        "3 x CPU of an idle member": (1.0, True),
    }
    assert found["3 x one at a time, p50, times the raw"].low == found["3 x one at a time, p50, times the raw"].high


@pytest.mark.usefixtures("fake_group")
def test_only_a_group_of_three_has_targets(tmp_path: Path) -> None:
    figures = list(group.of_size(tmp_path, 5, 3, 128 * MIB))
    assert [one.name for one in figures if one.target is not None] == []
    assert "5 x one at a time, p50, times the raw" in [one.name for one in figures]


def test_a_single_gateway_is_compared_with_a_bare_message_and_one_sync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits = iter([500.0, 1000.0, 2000.0])
    monkeypatch.setattr(ingest, "gateway", lambda _: _one_gateway())
    monkeypatch.setattr(ingest, "_producer", lambda _: _one_gateway())
    monkeypatch.setattr(ingest, "_one_at_a_time", lambda *_: [2.0])
    monkeypatch.setattr(ingest, "_paced", lambda *_: [3.0])
    monkeypatch.setattr(ingest, "zeromq_us", lambda: next(limits))
    monkeypatch.setattr(ingest, "sync_us", lambda *_: 0.0)
    (ratio,) = (one for one in ingest.latency(tmp_path, 3, quick=True) if one.target is not None)
    assert (ratio.name, ratio.value, ratio.low, ratio.high, ratio.reached) == ("  times the raw", 2.0, 1.0, 4.0, False)


@contextmanager
def _one_gateway() -> Iterator[FakeGateway]:
    yield FakeGateway()


class FakeBench:
    """Spark with two sources, whose waits are those of `WAITS`, and that need the seconds of `SECONDS` for a stream."""

    WAITS: ClassVar = {"tutti": [1.0] * 94 + [3.0] * 6, "kafka": [2.0] * 94 + [4.0] * 6}
    SECONDS: ClassVar = {"tutti": 1.0, "kafka": 2.0}
    measured, spark, broker = FakeGateway(), None, "127.0.0.1:1"

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> FakeBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fill(self, *_: object) -> None:
        """Send no records."""

    def ways(self, _: int) -> dict[str, dict[str, str]]:
        """Return the sources."""
        return {"short-circuit": {"format": "tutti"}, "Kafka": {"format": "kafka"}}


class FakeProducer:
    """A producer that sends nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def send(self, *_: object) -> None:
        """Send nothing."""

    def flush(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Return at once."""


@pytest.fixture
def fake_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's benchmarks without Spark."""
    monkeypatch.setattr(spark, "_Bench", FakeBench)
    monkeypatch.setattr("benchmarks.kafka.Sender", FakeProducer)
    monkeypatch.setattr("tutti.Producer", FakeProducer)
    monkeypatch.setattr(spark, "_end_to_end", lambda _spark, options, *_: FakeBench.WAITS[options["format"]])
    monkeypatch.setattr(spark, "_drained", lambda _spark, options, _: FakeBench.SECONDS[options["format"]])


def _ratios(figures: list[Figure]) -> list[tuple[str, float, Any, bool]]:
    above, found = "", []
    for one in figures:
        if one.target is not None:
            assert one.name == "  times Spark's Kafka source"
            found.append((above, one.value, one.target, one.reached))
        above = one.name
    return found


@pytest.mark.usefixtures("fake_spark")
def test_waits_for_a_micro_batch_are_compared_with_those_of_kafka(tmp_path: Path) -> None:
    p50, p95 = spark.WAIT_TIMES_KAFKA.values()
    assert _ratios(spark.streaming(tmp_path, 2, quick=True)) == [
        ("send() to foreachBatch, p50", 0.5, p50, True),
        ("send() to foreachBatch, p95", 0.75, p95, False),
    ]


@pytest.mark.usefixtures("fake_spark")
def test_streams_are_compared_with_those_of_kafka(tmp_path: Path) -> None:
    assert _ratios(spark.sustained(tmp_path, 1, quick=True)) == [
        ("Spark stream, short-circuit", 2.0, spark.STREAM_TIMES_KAFKA["short-circuit"], False)
    ]
