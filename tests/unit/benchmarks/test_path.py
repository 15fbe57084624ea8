"""Tests of the path benchmark: the cost of a record is given by process and by kind of thread, and two checkouts are compared round
by round, so a machine that becomes slower changes no ratio.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from benchmarks.path.__main__ import BARE, CPU, Found, by_role, ratio, report, thread_lines
from benchmarks.path.served import spent, spent_since
from benchmarks.peers.ours import _in_flight
from tutti import Producer

OURS, THEIRS = "this tree", "theirs"


def test_the_cost_of_a_process_is_reported_by_kind_of_thread() -> None:
    before = spent({os.getpid(): "client"})
    until = time.thread_time_ns() + 5_000_000
    while time.thread_time_ns() < until:
        pass
    cpu_us, sleeps = spent_since(before, {os.getpid(): "client"}, 2)["client, main thread"]
    assert cpu_us >= 2_500
    assert sleeps >= 0


def test_a_process_that_ended_spends_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(10)
        assert spent({process.pid: "client"}) == {}


def test_the_cost_of_a_role_is_that_of_all_its_threads() -> None:
    assert by_role({"client, ZeroMQ": (3.0, 1.0), "client, main thread": (4.0, 0.0), "coordinator, main thread": (5.0, 2.0)}) == {
        "client": 7.0,
        "coordinator": 5.0,
    }


def test_two_checkouts_are_compared_turn_by_turn() -> None:
    slow = (1.0, 9.0, 2.0)
    assert ratio([one * 0.5 for one in slow], list(slow)) == 0.5


def test_a_report_has_the_medians_and_the_ratios() -> None:
    found: Found = {
        ("many-load", "k/s"): {OURS: [10.0, 30.0, 20.0], THEIRS: [5.0, 15.0, 10.0], BARE: [100.0, 100.0, 100.0]},
        ("many-load", CPU): {OURS: [80.0], THEIRS: [160.0]},
    }
    legend, title, rate, cpu = report(found, [OURS, THEIRS]).splitlines()
    assert legend == "ratio: this tree to theirs, median of single turns"
    assert title == "200 connections, C load"
    assert rate.split("; ") == [
        "  k/s                   this tree 20 (10 to 30)",
        "theirs 10 (5 to 15)",
        "ratio 2",
        "the machine 100 (100 to 100), beside it 0.2, 0.1",
    ]
    assert cpu.split("; ") == ["  CPU of a record, us   this tree 80", "theirs 160", "ratio 0.5"]


def test_threads_are_reported_with_the_medians_of_the_rounds() -> None:
    rounds = [{"client, ZeroMQ": (cpu, 2.0)} for cpu in (10.0, 80.0, 20.0)]
    first, second = thread_lines({("one", OURS): rounds}).splitlines()
    assert first == "one at a time, Tutti's client, this tree"
    assert second.split() == ["client,", "ZeroMQ", "20", "us", "of", "CPU,", "slept", "2.00", "times"]


class Failing:
    """A producer whose records all fail, and which only logs what a callback raises, as the client does."""

    def send(self, topic: str, value: bytes, on_delivery: Callable[[object, object], Any]) -> None:
        try:
            on_delivery("the disk is full", None)
        except BaseException as error:  # noqa: BLE001 - the client swallows even SystemExit
            print(error)


@pytest.mark.timeout(30)
def test_a_record_that_fails_ends_the_work() -> None:
    with pytest.raises(SystemExit, match="a record failed: the disk is full"):
        _in_flight([cast(Producer, Failing())], 1, 10)
