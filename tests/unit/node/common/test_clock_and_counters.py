"""Tests of small parts: a wall clock that only moves forward, histograms, counters, and memory measurement."""

import mmap
import time

import pytest

from tutti.data.histograms import Histogram
from tutti.runtime import malloc
from tutti_gateway.core import limits
from tutti_gateway.node.common import process_memory
from tutti_gateway.node.common.clock import Clock
from tutti_gateway.node.common.counters import GatewayCounters


def test_a_clock_that_goes_back_is_absorbed(monkeypatch: pytest.MonkeyPatch) -> None:
    walls = iter([5_000_000_000, 3_000_000_000, 5_000_001_000, 6_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(walls))
    clock = Clock()
    nows = [clock.now() for _ in range(4)]
    assert [now.wall_us for now in nows] == [5_000_000, 5_000_000, 5_000_001, 6_000_000]
    assert [now.mono_us for now in nows] == sorted(now.mono_us for now in nows)


def test_a_clock_that_was_far_ahead_is_set_right_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    back_us = limits.CLOCK_BACK_US_MAX
    walls = iter([1000 * (back_us + 3), 2000, 1000, 3000])
    monkeypatch.setattr(time, "time_ns", lambda: next(walls))
    clock = Clock()
    assert [clock.now().wall_us for _ in range(4)] == [back_us + 3, 2, 2, 3]


def test_a_histogram_counts_into_the_first_bucket_that_holds_the_value() -> None:
    histogram = Histogram((10, 20))
    for value, times in ((1, 1), (10, 2), (11, 1), (20, 1), (21, 3)):
        histogram.add(value, times)
    assert histogram.to_dict() == {"bounds": [10, 20], "counts": [3, 2, 3], "sum": 1 + 20 + 11 + 20 + 63}
    assert histogram.count == 8


def test_meters_name_the_counted_unit() -> None:
    meters = GatewayCounters()
    meters.refused["malformed"] += 2
    meters.commit_us.add(300, 4)
    told = meters.to_dict()
    assert told["refused"] == {"malformed": 2}
    assert told["commit_us"] == meters.commit_us.to_dict()


def test_memory_is_measured_and_released() -> None:
    before = process_memory.resident_bytes()
    with mmap.mmap(-1, 32 << 20) as block:
        block.write(b"x" * (32 << 20))
        during = process_memory.resident_bytes()
    assert during - before > 24 << 20
    assert process_memory.resident_bytes() < during - (24 << 20)
    assert malloc.release_free_memory() in (True, False)
