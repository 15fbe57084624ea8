"""Producers, readers, hours: clients in processes of their own at a group of three."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.figures import proportional_memory_bytes
from benchmarks.fleet import Measured
from benchmarks.ingest import _send
from benchmarks.laws.child import child
from benchmarks.laws.law import FIRST, LAST, Asked, Bench, Held, Law
from benchmarks.laws.sizes import group
from benchmarks.load.generator import lacking, run
from benchmarks.load.sessions import VALUE_BYTES, message_of, sessions
from benchmarks.machine import SEGMENT, round_trip_us, sync_us
from benchmarks.pace import Paced
from benchmarks.pages import Measure
from tutti import Producer

PRODUCERS = (1, 10, 50, 200, 1000)
READERS = (0, 1, 2, 4, 8, 16)
SCAN = "a full scan"
_GROUP = 3
_CROWD = 50  # producers of a process; more of them find its one Python busy
_CROWDS_MAX = 4  # processes: the machine has no more processors than these keep busy
_STEADY_RATE = 1000
_STEADY_BYTES = 220  # that one of its records takes in a log, with its index
_SAMPLES = 10
_LOAD_MIN, _LOAD_MAX, _LOAD_EACH = 2000, 50_000, 250  # records of the load generator: at least, at most, for each producer


def crowds(producers: int) -> list[int]:
    """How many producers each process has."""
    processes = min(_CROWDS_MAX, -(-producers // _CROWD))
    return [producers // processes + (number < producers % processes) for number in range(processes)]


def _producers(bench: Bench) -> None:
    seconds = 2.0 if bench.asked.quick else 5.0
    with group(bench, _GROUP, 0) as (coordinator, running):
        for producers in PRODUCERS[:3] if bench.asked.quick else PRODUCERS:
            with ExitStack() as opened:
                children = [opened.enter_context(child("crowd", coordinator.url, each)) for each in crowds(producers)]
                for one in children:
                    one.tell(seconds)
                rate = sum(one.hear()[0] for one in children)
                bench.add("records", f"{producers:,}", rate / 1e3)
                bench.add("what one waits", f"{producers:,}", 1e3 * producers / rate)
                bench.add("largest member", f"{producers:,}", max(measured.memory_mb() for measured in running))
            if not lacking():
                _compiled_producers(bench, producers, coordinator, running)


def _compiled_producers(bench: Bench, producers: int, coordinator: Measured, running: list[Measured]) -> None:
    """Measure the same with the load generator, which leaves more CPU time to the gateways."""
    count = max(_LOAD_MIN, min(_LOAD_MAX, _LOAD_EACH * producers)) // (10 if bench.asked.quick else 1)
    with sessions(coordinator.base, producers) as opened:
        before_s = sum(measured.cpu_s() for measured in running)
        load = run(opened, message_of(opened[0].topic, VALUE_BYTES), count)
    cpu_s = sum(measured.cpu_s() for measured in running) - before_s
    bench.add("records, C load", f"{producers:,}", load.rate / 1e3)
    bench.add("gateways' CPU of a record, C load", f"{producers:,}", cpu_s / count * 1e6)


def _readers(bench: Bench) -> None:
    quick = bench.asked.quick
    seconds = 3.0 if quick else 10.0
    with group(bench, _GROUP, 0) as (coordinator, _):
        with Producer(coordinator.url) as producer:
            _send(producer, bytes(100), 200_000 if quick else 5_000_000)
        with Paced(coordinator.url) as paced:
            paced.span(1.0)
            alone = 0.0
            for place in [*(str(number) for number in (READERS[:3] if quick else READERS)), SCAN]:
                with ExitStack() as opened:
                    if place != "0":
                        role, number = ("scan", 1) if place == SCAN else ("follow", int(place))
                        opened.enter_context(child(role, coordinator.url, number))
                    span = paced.span(seconds)
                    half, most = paced.at_ms(span, 0.5), paced.at_ms(span, 0.99)
                alone = alone or most
                bench.add("commit, p50", place, half)
                bench.add("commit, p99", place, most)
                bench.add("p99, times that of none", place, most / alone)


def _hours(bench: Bench) -> None:
    with group(bench, _GROUP, 0) as (coordinator, running), child("steady", coordinator.url, _STEADY_RATE) as load:
        time.sleep(1.0)
        load.tell(0)
        load.hear()  # the first second is of what starts
        pause_s = bench.asked.hours * 3600 / _SAMPLES
        begin = time.monotonic()
        for number in range(1, _SAMPLES + 1):
            time.sleep(max(0.0, begin + number * pause_s - time.monotonic()))
            load.tell(0)
            half, most, count = load.hear()
            place = f"{number * pause_s / 60:.3g} min"
            bench.add("commit, p50", place, half)
            bench.add("commit, p99", place, most)
            bench.add("committed", place, count / pause_s / 1e3)
            bare_us = sync_us(bench.directory, 200, 200) + 2 * round_trip_us(200)
            bench.add("a sync and two round trips, bare", place, bare_us / 1e3)
            for measured in running:
                bench.add("coordinator" if measured is coordinator else "another", place, measured.memory_mb())
            bench.add("client", place, proportional_memory_bytes([load.process.pid]) / 1e6)


def _hours_bytes(asked: Asked) -> float:
    return _GROUP * (asked.hours * 3600 * _STEADY_RATE * _STEADY_BYTES + 3 * SEGMENT)


LAWS = {
    "producers": Law(
        "Producers with one record under way",
        "producers",
        {
            "records": Measure("k/s", "more"),
            "what one waits": Measure("ms", "less"),
            "largest member": Measure("MB", "less"),
            "records, C load": Measure("k/s", "more"),
            "gateways' CPU of a record, C load": Measure("us", "less"),
        },
        "Each producer has its own connection, and waits for its receipt before it sends again. Records that arrive"
        " meanwhile from other producers are ordered, synced and voted on together. So the rate grows until the"
        " processors are busy with single messages. From there on more producers only wait longer. The columns *C load*"
        " have a client in C in place of Tutti's client, so they show the gateways alone.",
        _producers,
        False,
        lambda _: _GROUP * 10 * SEGMENT,
    ),
    "readers": Law(
        "Readers beside commits",
        "readers",
        {
            "commit, p50": Measure("ms", "less"),
            "commit, p99": Measure("ms", "less"),
            "p99, times that of none": Measure("x", "less"),
        },
        "A separate process serves reads from the pages of the log, so the threads that commit do no work for a"
        " reader. A reader takes processor time and disk bandwidth from them. Meanwhile 500 records of 1 KB a second"
        " are committed.",
        _readers,
        False,
        lambda _: _GROUP * 20 * SEGMENT,
        (Held("p99, times that of none", SCAN, 2.0),),
    ),
    "hours": Law(
        "Hours under load",
        "after",
        {
            "commit, p50": Measure("ms", "less"),
            "commit, p99": Measure("ms", "less"),
            "committed": Measure("k/s", "more"),
            "a sync and two round trips, bare": Measure("ms", "less"),
            "coordinator": Measure("MB", "less"),
            "another": Measure("MB", "less"),
            "client": Measure("MB", "less"),
        },
        "A gateway's memory is bounded and does not depend on the number of committed records. Neither its memory nor"
        " its latency drifts. A client's memory grows by some MB in the first quarter of an hour, and then stays. The"
        " load is 1,000 records of 100 B a second, and memory is PSS. Each row also has the time of a sync and two"
        " round trips on the bare machine. When that time grows, latency grows with it.",
        _hours,
        True,
        _hours_bytes,
        (
            Held("commit, p50", LAST, 1.25, than=FIRST),
            Held("commit, p99", LAST, 1.5, than=FIRST),
            Held("coordinator", LAST, 1.1, than=FIRST),
            Held("another", LAST, 1.1, than=FIRST),
        ),
    ),
}
