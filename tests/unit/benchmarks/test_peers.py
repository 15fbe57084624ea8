"""Tests of the benchmark beside peers: medians, the direction of ratios, missed targets, and the page."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from benchmarks.pages import Found, plot
from benchmarks.peers import page, side, work
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import JetStream
from benchmarks.peers.side import MACHINE, MEASURES, TARGETS, WORK, Target, lines, table, verdicts
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
        **{
            "1 KB": {"Tutti": [300.0, 400.0, 500.0], KAFKA: [50.0]},
            "one at a time, p50": {"Tutti": [0.5], MACHINE: [0.4], KAFKA: [1.0]},
        }
    )
    factor, latency = lines(verdicts(found)).splitlines()
    assert "8 times Kafka, 3 brokers, target >= 3; 8 x as good as the best of the others (Kafka, 3 brokers: 50)" in factor
    assert "1.25 times the machine, target <= 1  MISSED; 2 x as good" in latency


@pytest.mark.parametrize(
    ("measure", "ours", "asked", "missed"),
    [
        ("100 B", 6.0, ">= 3", False),
        ("100 B", 5.9, ">= 3", True),
        ("one at a time, p99", 6.0, "<= 3", False),
        ("one at a time, p99", 6.1, "<= 3", True),
    ],
)
def test_a_multiple_is_a_minimum_for_a_rate_and_a_maximum_for_a_time(
    monkeypatch: pytest.MonkeyPatch, measure: str, ours: float, asked: str, missed: bool
) -> None:
    monkeypatch.setattr(side, "TARGETS", (Target(measure, 3, KAFKA),))
    (verdict,) = verdicts(_found(**{measure: {"Tutti": [9.0, ours, 1.0], KAFKA: [2.0]}}))
    assert (verdict.asked, verdict.missed) == (asked, missed)


@pytest.mark.parametrize(("other", "missed"), [(1.4, False), (1.5, True)])
def test_a_time_is_also_compared_with_another_time_of_tutti(other: float, missed: bool) -> None:
    found = _found(**{"elsewhere, p50": {"Tutti": [other]}, "one at a time, p50": {"Tutti": [1.0], KAFKA: [9.0]}})
    (verdict,) = verdicts(found)
    assert (verdict.reached, verdict.missed) == (f"{other} times one at a time, p50", missed)


@pytest.mark.parametrize(("reached", "missed"), [([100.0, 120.0, 130.0], False), ([100.0, 121.0, 130.0], True)])
def test_an_absolute_target_is_compared_with_the_median(reached: list[float], missed: bool) -> None:
    (verdict,) = verdicts(_found(**{"idle member": {"Tutti": reached, KAFKA: [350.0]}}))
    assert (verdict.asked, verdict.missed) == ("<= 120", missed)


def test_a_target_without_its_yardstick_has_no_verdict() -> None:
    assert verdicts(_found(**{"1,000/s, p99": {"Tutti": [2.5], KAFKA: [9.0]}, "elsewhere, p50": {"Tutti": [2.5]}})) == []


def test_targets_are_ratios_except_for_memory_and_gaps() -> None:
    assert [one.measure for one in TARGETS if one.times is None] == ["idle member", "killed, longest gap"]
    assert [one.value for one in TARGETS if one.times is not None and one.value is not None] == []


def test_each_target_names_a_measure_and_a_system_of_the_comparison() -> None:
    peers = (Kafka(3, synced=False), Kafka(3, synced=True), JetStream(synced=False), JetStream(synced=True))
    yardsticks = {MACHINE, *(one.name for one in peers), *MEASURES}
    assert {one.measure for one in TARGETS} <= set(MEASURES)
    assert {one.beside for one in TARGETS if one.times is not None} <= yardsticks


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
    (share,) = verdicts(_found(**{"send_batch of 64 KiB": {"Tutti": [450.0], MACHINE: [900.0]}}))
    assert (share.missed, share.reached, share.asked, share.best) == (True, "0.5 times the machine", ">= 0.8", "")


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
