"""What stands in the page where the template names it: tables and plots of what was measured, or how to measure it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from benchmarks.figures import Figure, number
from benchmarks.laws.law import FIRST, LAST, Law
from benchmarks.laws.names import LAWS
from benchmarks.pages import Found, Measure, by_place, medians, plot, spread, table
from benchmarks.peers.page import receipts as receipts_of
from benchmarks.peers.page import the_machine
from benchmarks.peers.side import MACHINE, MEASURES, OURS, verdicts
from benchmarks.performance.kept import Kept

_HEAD = ("measure", "result", "target", "", "beside")
_MISSED = "**missed**"
#: Rows of the comparison: label, words that begin or end the names of their measures, work, and which value is better.
_LEGEND = (
    ("1 KB, 100 B", ("1 KB", "100 B"), "one client sends records of this size as fast as the system accepts them", "more"),
    ("send_batch of 64 KiB, 256 KiB", ("send_batch",), "one client sends Arrow batches of this size", "more"),
    ("200 under way, one connection", ("200 under way",), "one client keeps 200 records of 100 B in flight", "more"),
    (
        "200 producers, 200 connections",
        ("200 producers",),
        "each of 200 producers has its own connection and one record of 100 B in flight",
        "more",
    ),
    (
        "one at a time",
        ("one at a time",),
        "one client sends the next record after the receipt of the previous one; the time from `send()` to the receipt",
        "less",
    ),
    (
        "elsewhere",
        ("elsewhere",),
        "one record at a time, from a client that is connected to a member that does not order the records",
        "less",
    ),
    (
        "1,000/s",
        ("1,000/s",),
        "one client sends 1,000 records a second at a steady rate; the time from `send()` to the receipt",
        "less",
    ),
    (
        "compiled client",
        ("compiled client",),
        "the work of *200 connections*, *one at a time* and *1,000/s*, from a client in C or Go, which leaves"
        " the processors to the servers",
        "as above",
    ),
    ("Python client", ("Python client",), "the same work from the Python client of each system", "as above"),
    (
        "CPU of a record",
        ("CPU of a record",),
        "CPU time of all servers, or of the client, for each record of the 200 connections",
        "less",
    ),
    ("idle member", ("idle member",), "memory of one member without load", "less"),
    (
        "killed, longest gap",
        ("killed",),
        "the member that orders the records is killed under load; the longest time without a receipt",
        "less",
    ),
)


def sources(kept: Kept) -> str:
    """Where the figures come from, a line each."""
    if not kept.sources:
        return "*This page has no result files yet.*"
    rows = []
    for one in kept.sources:
        foreign = one["foreign_cpu"]
        others = f"{median(foreign):.2f} (at most {max(foreign):.2f})" if foreign else ""
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        rows.append([f"`{one['command']}`", one["machine"], versions, others])
    return table(["command", "machine", "versions", "processors used by others"], rows)


def targets(kept: Kept) -> str:
    """What all is held to, and what was reached."""
    rows = [
        [one.measure, one.reached, one.asked, _MISSED if one.missed else "", _beside_machine(kept.peers, one.measure, one.best)]
        for one in verdicts(kept.peers)
    ]
    for name, found in kept.laws.items():
        rows += _held(LAWS[name], found)
    rows += [_of_figure(name, one) for name, one in kept.figures.items() if one.target is not None]
    if not rows:
        return _absent("what it is held to", "make bench-peers` and `make bench-laws")
    return table(_HEAD, rows)


def _beside_machine(peers: Found, measure: str, best: str) -> str:
    of = peers[measure]
    if MACHINE not in of:
        return best
    ours, limit = median(of[OURS]), median(of[MACHINE])
    return f"{number(ours / limit)} x the machine's {number(limit)}" + (f"; {best}" if best else "")


def _held(law: Law, found: Found) -> list[list[str]]:
    rows = []
    for held in law.held:
        places = found.get(held.measure, {})
        known = {FIRST: next(iter(places), ""), LAST: next(reversed(places), "")}
        place, than = known.get(held.place, held.place), known.get(held.than, held.than)
        if place not in places or (than and than not in places):
            continue
        unit, better = law.measures[held.measure]
        value, said = median(places[place]), f"{spread(places[place])} {unit}"
        name = f"{law.title}: {held.measure}, {place}"
        if than:
            value /= median(places[than])
            name, said = f"{name} to {than}", f"{number(value)} x"
        missed = value < held.asked if better == "more" else value > held.asked
        sign = ">=" if better == "more" else "<="
        rows.append([name, said, f"{sign} {number(held.asked)}", _MISSED if missed else "", ""])
    return rows


def _of_figure(name: str, one: Figure) -> list[str]:
    sign = ">=" if one.better == "more" else "<="
    reached = f"{number(one.value)} ({number(one.low)} to {number(one.high)}) {one.unit}"
    return [name, reached, f"{sign} {number(one.target or 0.0)}", "" if one.reached else _MISSED, one.beside]


def machine(kept: Kept) -> str:
    """Its limits."""
    return the_machine(kept.limits) or _absent("the machine", "make bench-laws")


def peers(kept: Kept) -> str:
    """All systems beside one another; their plots are in a page of their own."""
    names = list(kept.promises)
    rows = [
        [name, unit, *(spread(kept.peers[name][system]) if system in kept.peers[name] else "" for system in names)]
        for name, (unit, _) in MEASURES.items()
        if OURS in kept.peers.get(name, {})
    ]
    return table(["", "", *names], rows) if rows else _absent("others", "make bench-peers")


def legend(kept: Kept) -> str:
    """What each row of `peers` means, without the rows that this page does not have."""
    names = [name for name in MEASURES if OURS in kept.peers.get(name, {})]
    rows = [
        [label, work, better]
        for label, words, work, better in _LEGEND
        if any(name.startswith(words) or name.endswith(words) for name in names)
    ]
    return table(["row", "work", "better"], rows) if rows else _absent("rows", "make bench-peers")


def receipts(kept: Kept) -> str:
    """What a receipt of each system means."""
    return receipts_of(kept.promises) if kept.promises else _absent("receipts", "make bench-peers")


def laws(kept: Kept) -> str:
    """A section each: the law, how much grew, its plots and its table."""
    parts = []
    for name, law in LAWS.items():
        body = _law(law, kept.laws[name]) if name in kept.laws else _absent(law.title, f"python -m benchmarks.laws {name}")
        parts.append(f"### {law.title}\n\n{law.says}\n\n{body}")
    return "\n\n".join(parts)


def _law(law: Law, found: Found) -> str:
    plots = [
        f"*{measure}, {law.measures[measure].unit}*\n\n{plot(medians(found[measure]), law.measures[measure].unit)}"
        for measure in law.measures
        if found.get(measure)
    ]
    return "\n\n".join([growth(found, law.measures), *plots, by_place(law.along, found, law.measures)])


def growth(found: Found, measures: Mapping[str, Measure]) -> str:
    """How much each measure has at the last place of what it has at the first, a sentence."""
    there = {name: medians(found[name]) for name in measures if len(found.get(name, {})) > 1}
    if not there:
        return "Measured at one point only."
    first, *_, last = next(iter(there.values()))
    said = ", ".join(f"{name} x {number(values[last] / values[first])}" for name, values in there.items() if values[first])
    return f"From {first} to {last}: {said}."


def spark(kept: Kept) -> str:
    """What Spark read, and what was written beside it."""
    rows = [
        [name, f"{number(one.value)} ({number(one.low)} to {number(one.high)}) {one.unit}", one.beside]
        for name, one in kept.figures.items()
        if "Spark" in name or "foreachBatch" in name
    ]
    return table(["measure", "median (smallest to largest)", "beside"], rows) if rows else _absent("Spark", "make bench-laws")


def _absent(what: str, command: str) -> str:
    return f"*This page has no result of: {what}. `{command}` measures it.*"


SECTIONS: dict[str, Callable[[Kept], str]] = {
    "sources": sources,
    "targets": targets,
    "machine": machine,
    "peers": peers,
    "legend": legend,
    "receipts": receipts,
    "laws": laws,
    "spark": spark,
}
