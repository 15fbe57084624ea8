"""Rounds of all work on all systems, what came out side by side, and what Tutti is held to beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.figures import descendants, number, seconds_of
from benchmarks.kept import header
from benchmarks.machine import KIB
from benchmarks.pages import Found, Measure, spread
from benchmarks.peers.work import Client, Latency, Running, System

OURS, MACHINE = "Tutti", "the machine"
_SAMPLE = 20  # a twentieth of the volume tells how much of it fits into the time
_LOAD_S = 15.0
KINDS = COMPILED, PYTHON = "compiled client", "Python client"
_EACH = 50_000  # records of many connections
_OF_CLIENTS = {
    "200 connections": Measure("k/s", "more"),
    "CPU of a record, servers": Measure("us", "less"),
    "CPU of a record, client": Measure("us", "less"),
    "one at a time, p50": Measure("ms", "less"),
    "one at a time, p99": Measure("ms", "less"),
    "1,000/s, p50": Measure("ms", "less"),
    "1,000/s, p99": Measure("ms", "less"),
}
MEASURES = {
    "1 KB": Measure("MB/s", "more"),
    "100 B": Measure("k/s", "more"),
    "send_batch of 64 KiB": Measure("MB/s", "more"),
    "send_batch of 256 KiB": Measure("MB/s", "more"),
    "200 under way, one connection": Measure("k/s", "more"),
    "200 producers, 200 connections": Measure("k/s", "more"),
    "one at a time, p50": Measure("ms", "less"),
    "one at a time, p99": Measure("ms", "less"),
    "elsewhere, p50": Measure("ms", "less"),
    "elsewhere, p99": Measure("ms", "less"),
    "1,000/s, p50": Measure("ms", "less"),
    "1,000/s, p99": Measure("ms", "less"),
    **{f"{what}, {kind}": measure for kind in KINDS for what, measure in _OF_CLIENTS.items()},
    "idle member": Measure("MB", "less"),
    "killed, longest gap": Measure("s", "less"),
    **machine.MEASURES,
}


def _of(name: str, latency: Latency | None) -> dict[str, float]:
    return {} if latency is None else {f"{name}, p50": latency.p50, f"{name}, p99": latency.p99}


def _one(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}


def _rate(running: Running, size: int, volume: int) -> float | None:
    """Records a second of as much of the volume as fits into the time, by what a sample of it took."""
    sample = running.rate(size, max(1000, volume // size // _SAMPLE))
    return None if sample is None else running.rate(size, int(min(volume / size, sample * _LOAD_S)))


def _large(running: Running, volume: int) -> dict[str, float]:
    rate = _rate(running, 1000, volume)
    return _one("1 KB", rate and rate / 1000)


def _small(running: Running, volume: int) -> dict[str, float]:
    rate = _rate(running, 100, volume // 4)
    return _one("100 B", rate and rate / 1000)


def _many(running: Running, _: int) -> dict[str, float]:
    one, each = running.small(100_000), running.small_each(50_000)
    return _one("200 under way, one connection", one and one / 1000) | _one("200 producers, 200 connections", each and each / 1000)


def _latencies(running: Running, _: int) -> dict[str, float]:
    found = _of("one at a time", running.one_at_a_time(3000)) | _of("elsewhere", running.elsewhere(3000))
    return found | _of("1,000/s", running.paced(5))


def _batches(running: Running, volume: int) -> dict[str, float]:
    found = _one("send_batch of 64 KiB", running.batches(64 * KIB, volume))
    return found | _one("send_batch of 256 KiB", running.batches(256 * KIB, volume))


def _idle(running: Running, _: int) -> dict[str, float]:
    return _one("idle member", running.memory_mb())


def _limits(running: Running, _: int) -> dict[str, float]:
    return running.limits()


def _compiled(running: Running, _: int) -> dict[str, float]:
    return _by_client(running, running.compiled(), COMPILED)


def _python(running: Running, _: int) -> dict[str, float]:
    return _by_client(running, running.python(), PYTHON)


def _by_client(running: Running, client: Client | None, kind: str) -> dict[str, float]:
    """Return the figures of one kind of client, and the CPU time of a record over 200 connections."""
    if client is None:
        return {}
    client.each(_EACH // 10)
    servers, own = _servers_s(running), _client_s()
    found = {"200 connections": client.each(_EACH) / 1e3}
    if running.members():
        found["CPU of a record, servers"] = (_servers_s(running) - servers) / _EACH * 1e6
        found["CPU of a record, client"] = (_client_s() - own) / _EACH * 1e6
    found |= _of("one at a time", client.one(3000)) | _of("1,000/s", client.paced(5) if client.paced is not None else None)
    return {f"{what}, {kind}": value for what, value in found.items()}


def _servers_s(running: Running) -> float:
    return sum(seconds_of(pid) for member in running.members() for pid in (member, *descendants(member)))


def _client_s() -> float:
    """Return the CPU time of this process and of its children that ended: a client runs in this process or in a child."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _gap(running: Running, _: int) -> dict[str, float]:
    return _one("killed, longest gap", running.gap())


#: In this order in each round: memory before any load, the kill at the end.
WORK: dict[str, Callable[[Running, int], dict[str, float]]] = {
    "machine": _limits,
    "idle": _idle,
    "latency": _latencies,
    "1KB": _large,
    "100B": _small,
    "batches": _batches,
    "many": _many,
    "compiled": _compiled,
    "python": _python,
    "gap": _gap,
}


class Sides:
    """What was found so far."""

    def __init__(self, volume: int, work: Sequence[str]) -> None:
        """`volume`: bytes of a load; `work`: which, of WORK."""
        self._volume = volume
        self._work = [one for one in WORK if one in work]
        self.found: Found = {measure: {} for measure in MEASURES}
        self.foreign: list[float] = []

    def measure(self, system: System, scratch: Path) -> None:
        """One round of one system, freshly started."""
        with system.running(scratch) as running:
            for work in self._work:
                for measure, value in WORK[work](running, self._volume).items():
                    self.found[measure].setdefault(system.name, []).append(value)

    def last(self, system: System) -> str:
        """What its last round gave."""
        said = [
            f"{measure} {number(found[system.name][-1])} {MEASURES[measure].unit}"
            for measure, found in self.found.items()
            if system.name in found
        ]
        return "; ".join(said)

    def quiet(self) -> str:
        """What others used meanwhile."""
        return f"foreign CPU {median(self.foreign):.2f} (at most {max(self.foreign):.2f})"

    def as_json(self, systems: Sequence[System]) -> dict[str, Any]:
        """All rounds, for other programs and the page."""
        return {
            "kind": "peers",
            **header("benchmarks.peers", self.foreign),
            "volume_bytes": self._volume,
            "systems": {one.name: one.promise for one in systems},
            "units": {name: measure.unit for name, measure in MEASURES.items()},
            "rounds": self.found,
        }


def table(found: Found, names: Sequence[str]) -> str:
    """Medians of all systems beside one another; the best of the others is marked."""
    wide = [max(12, len(name)) + 2 for name in names]
    lines = [f"{'':<42}{'':<6}" + "".join(f"{name:>{width}}" for name, width in zip(names, wide, strict=True))]
    for measure, (unit, _) in MEASURES.items():
        if not found[measure]:
            continue
        values = (number(median(found[measure][name])) if name in found[measure] else "-" for name in names)
        lines.append(f"{measure:<42}{unit:<6}" + "".join(f"{value:>{width}}" for value, width in zip(values, wide, strict=True)))
    return "\n".join(lines)


class Target(NamedTuple):
    """A target of Tutti. A minimum if more is better, otherwise a maximum.

    Attributes:
        measure: measure of Tutti.
        times: target as a multiple of the figure of `beside` in the same run; None for an absolute target.
        beside: another system, or another measure of Tutti.
        value: absolute target, in the unit of the measure. Only for a limit that protects users on any machine.
    """

    measure: str
    times: float | None = None
    beside: str = ""
    value: float | None = None


_KAFKA, _KAFKA_SYNCED = "Kafka, 3 brokers", "Kafka, 3 brokers, synced"
_JETSTREAM, _JETSTREAM_SYNCED = "JetStream R3", "JetStream R3, synced"
TARGETS = (
    Target("1 KB", 3, _KAFKA),
    Target("1 KB", 0.9, MACHINE),
    Target("100 B", 3, _KAFKA),
    Target("100 B", 3, _KAFKA_SYNCED),
    Target("send_batch of 64 KiB", 0.8, MACHINE),
    Target("send_batch of 256 KiB", 0.8, MACHINE),
    Target("200 under way, one connection", 2, _JETSTREAM),
    Target("200 producers, 200 connections", 0.22, MACHINE),
    Target("200 producers, 200 connections", 1, _JETSTREAM),
    Target("200 producers, 200 connections", 1.2, _JETSTREAM_SYNCED),
    Target("200 connections, compiled client", 0.33, MACHINE),
    Target("one at a time, p50", 1, MACHINE),
    Target("one at a time, p99", 0.9, _JETSTREAM_SYNCED),
    Target("elsewhere, p50", 1.4, "one at a time, p50"),
    Target("elsewhere, p99", 1.4, "one at a time, p99"),
    Target("1,000/s, p99", 1.3, _JETSTREAM_SYNCED),
    Target("idle member", value=120),
    Target("killed, longest gap", value=1),
)


class Verdict(NamedTuple):
    """A target and what was reached.

    Attributes:
        measure: what was measured.
        reached: "334 (300 to 368) MB/s", or "6.48 times Kafka, 3 brokers".
        asked: ">= 400".
        missed: whether that falls short.
        best: how many times as good as the best of the others, and which; empty without any.
    """

    measure: str
    reached: str
    asked: str
    missed: bool
    best: str


def verdicts(found: Found) -> list[Verdict]:
    """Each target, what was reached, and the ratio to the best of the others in the same run (1 and more: at least as good)."""
    told = []
    for target in TARGETS:
        of, (unit, better) = found.get(target.measure, {}), MEASURES[target.measure]
        if OURS not in of:
            continue
        value = median(of[OURS])
        if target.times is not None:
            beside = found.get(target.beside, {}).get(OURS) if target.beside in MEASURES else of.get(target.beside)
            if not beside:
                continue
            value /= median(beside)
            asked, said = target.times, f"{number(value)} times {target.beside}"
        else:
            assert target.value is not None  # the one or the other
            asked, said = target.value, f"{spread(of[OURS])} {unit}"
        missed = value < asked if better == "more" else value > asked
        sign = ">=" if better == "more" else "<="
        told.append(Verdict(target.measure, said, f"{sign} {number(asked)}", missed, _best(of, better)))
    return told


def lines(told: Sequence[Verdict]) -> str:
    """Verdicts to read, a line each."""
    return "\n".join(
        f"{one.measure:<42}{one.reached}, target {one.asked}{'  MISSED' if one.missed else ''}{'; ' if one.best else ''}{one.best}"
        for one in told
    )


def _best(of: dict[str, list[float]], better: str) -> str:
    others = {name: median(rounds) for name, rounds in of.items() if name not in (OURS, MACHINE)}
    if not others:
        return ""
    best = max(others, key=lambda name: others[name] if better == "more" else -others[name])
    ratio = median(of[OURS]) / others[best] if better == "more" else others[best] / median(of[OURS])
    return f"{number(ratio)} x as good as the best of the others ({best}: {number(others[best])})"
