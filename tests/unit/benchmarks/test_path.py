"""Tests of the path benchmark: the cost of a record is given by kind of thread, and two checkouts are compared round by round, so a
machine that becomes slower changes no ratio.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.path import Group, Turn, _ratios, _report, _spent


def group(name: str, *turns: Turn) -> Group:
    process: Any = None
    made = Group(Path(name), process)
    made.turns += turns
    return made


def test_the_cost_of_a_process_is_reported_by_kind_of_thread() -> None:
    before = _spent({os.getpid(): "client"})["client, main thread"]
    until = time.thread_time_ns() + 5_000_000
    while time.thread_time_ns() < until:
        pass
    cpu_us, sleeps = _spent({os.getpid(): "client"})["client, main thread"]
    assert cpu_us - before[0] >= 5_000
    assert sleeps >= before[1]


def test_a_process_that_ended_spends_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(10)
        assert _spent({process.pid: "client"}) == {}


def test_two_checkouts_are_compared_turn_by_turn(capsys: pytest.CaptureFixture[str]) -> None:
    ours = group("ours", *((slow * 0.5, slow * 2, {"client, ZeroMQ": (slow * 30, 2.0)}) for slow in (1.0, 9.0, 2.0)))
    theirs = group("theirs", *((slow, slow * 4, {"client, ZeroMQ": (slow * 40, 2.0)}) for slow in (1.0, 9.0, 2.0)))
    _ratios(ours, theirs)
    assert capsys.readouterr().out == "ours to theirs, turn by turn: p50 0.50, p99 0.50, CPU 0.75\n"


def test_a_report_has_the_medians_of_the_turns(capsys: pytest.CaptureFixture[str]) -> None:
    _report(
        group("ours", *((p50, 2 * p50, {"client, ZeroMQ": (cpu, 2.0)}) for p50, cpu in ((1.0, 10.0), (5.0, 80.0), (2.0, 20.0))))
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first == "ours: p50 2.000 ms, p99 4.000 ms, 20 us of CPU"
    assert second.split() == ["client,", "ZeroMQ", "20", "us", "of", "CPU,", "slept", "2.0", "times"]
