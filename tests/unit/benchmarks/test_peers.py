"""Tests of the benchmark beside peers: medians, the direction of ratios, missed targets, and the page."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from benchmarks.pages import Found, plot
from benchmarks.peers import page, work
from benchmarks.peers.side import MACHINE, MEASURES, WORK, Target, lines, table, verdicts
from benchmarks.peers.work import Client, Latency, Running

KAFKA = "Kafka, 3 brokers"


class FakeRunning(Running):
    """A system whose only client is a compiled one; it has a pace if there are processes."""

    def __init__(self, members: tuple[int, ...] = (os.getpid(),)) -> None:
        self._members = members

    def compiled(self) -> Client:
        paced = (lambda seconds: Latency(seconds, 3.0)) if self._members else None
        return Client(lambda _: 20_000.0, lambda count: Latency(float(count), 2.0), paced)

    def members(self) -> tuple[int, ...]:
        return self._members


def _found(**of: dict[str, list[float]]) -> Found:
    return {measure: of.get(measure, {}) for measure in MEASURES}


def test_a_ratio_above_one_is_better_for_rates_and_for_times() -> None:
    found = _found(
        **{"1 KB": {"Tutti": [300.0, 400.0, 500.0], KAFKA: [50.0]}, "one at a time, p50": {"Tutti": [0.5], KAFKA: [1.0]}}
    )
    rate, factor, latency = lines(verdicts(found)).splitlines()
    assert "400 (300 to 500) MB/s, target >= 400; 8 x as good as the best of the others (Kafka, 3 brokers: 50)" in rate
    assert "8 times Kafka, 3 brokers, target >= 7;" in factor
    assert "0.5 ms, target <= 0.65; 2 x as good" in latency


def test_missed_targets_are_reported() -> None:
    found = _found(**{"100 B": {"Tutti": [1000.0], KAFKA: [500.0]}, "1,000/s, p99": {"Tutti": [2.5]}})
    assert [one.missed for one in verdicts(found)] == [True, True, True]


def test_a_time_that_is_a_multiple_of_another_is_at_most_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.side.TARGETS", (Target("1,000/s, p99", times=1.3, beside=KAFKA),))
    for ours, missed in ((2.5, False), (2.7, True)):
        (verdict,) = verdicts(_found(**{"1,000/s, p99": {"Tutti": [ours], KAFKA: [2.0]}}))
        assert (verdict.missed, verdict.asked) == (missed, "<= 1.3")


def test_a_client_has_figures_and_what_its_records_cost_the_servers() -> None:
    running = FakeRunning()
    found = WORK["compiled"](running, 0)
    assert found.pop("CPU of a record, client, compiled client") >= 0
    assert found.pop("CPU of a record, servers, compiled client") >= 0
    assert found == {
        "200 connections, compiled client": 20.0,
        "one at a time, p50, compiled client": 3000.0,
        "one at a time, p99, compiled client": 2.0,
        "1,000/s, p50, compiled client": 5,
        "1,000/s, p99, compiled client": 3.0,
    }
    assert set(found) < set(MEASURES)
    assert WORK["python"](running, 0) == {}  # the system has no such client


def test_a_client_without_a_pace_and_a_system_without_processes_leave_columns_empty() -> None:
    running = FakeRunning(members=())
    assert WORK["compiled"](running, 0).keys() == {
        "200 connections, compiled client",
        "one at a time, p50, compiled client",
        "one at a time, p99, compiled client",
    }


def test_the_machine_is_a_limit_and_no_peer() -> None:
    found = _found(**{"send_batch of 64 KiB": {"Tutti": [450.0], MACHINE: [900.0]}})
    rate, share = verdicts(found)
    assert (rate.missed, rate.best) == (False, "")
    assert (share.missed, share.reached, share.asked) == (True, "0.5 times the machine", ">= 0.65")


def test_a_system_without_a_way_for_it_has_a_dash() -> None:
    found = _found(**{"1 KB": {"Tutti": [1.0]}, "idle member": {"Tutti": [100.0], KAFKA: [900.0]}})
    lines = [line.split() for line in table(found, ["Tutti", KAFKA]).splitlines()]
    assert lines[1][-2:] == ["1", "-"]
    assert lines[2][-2:] == ["100", "900"]


def test_the_page_shows_promises_and_draws_each_measure() -> None:
    found = _found(**{"1 KB": {"Tutti": [400.0, 380.0], KAFKA: [50.0, 60.0]}, "CRC32C": {MACHINE: [31.0]}})
    kept = {
        "machine": "a machine",
        "versions": {"tutti-ingest": "1"},
        "foreign_cpu": [0.25],
        "systems": {"Tutti": "synced on all three", KAFKA: "in memory of all in sync"},
        "rounds": found,
    }
    text = page.page(kept)
    assert f"| {KAFKA} | in memory of all in sync |" in text
    assert f"| {KAFKA} | 55 (50 to 60) | 7.09 |" in text
    assert text.count("<svg") == 1
    assert "(2 rounds" in text
    assert "| CRC32C | GB/s | 31 |" in text


def test_the_longest_bar_is_of_the_largest_value() -> None:
    drawn = plot({"<a>": 10.0, "b": 5.0}, "s")
    first, second = (float(part.split('"')[0]) for part in drawn.split(' width="')[1:])
    assert first == 2 * second
    assert "&lt;a&gt;" in drawn


def test_a_gap_lasts_from_the_last_receipt_to_the_first_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "GAP_BEFORE_S", 0.1)
    monkeypatch.setattr(work, "GAP_SEEN_S", 0.5)
    held, lock = threading.Event(), threading.Lock()
    waiting: list[Callable[[], None]] = []

    def send(told: Callable[[], None]) -> None:
        with lock:
            if held.is_set():
                waiting.append(told)
                return
        told()

    def free() -> None:
        with lock:
            held.clear()
            for told in waiting:
                told()

    def kill() -> None:
        held.set()
        threading.Timer(0.3, free).start()

    longest = work.gap_s(send, threading.Event().wait, kill)
    assert 0.3 <= longest < 2
