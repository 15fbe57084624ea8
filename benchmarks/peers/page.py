"""docs/peers.md from what `python -m benchmarks.peers --json FILE` kept: `python -m benchmarks.peers.page FILE`; tables, plots."""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import number
from benchmarks.peers.side import MEASURES, Found, verdicts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "peers.md"
_HEAD = """# Beside Kafka, JetStream and JGroups, measured

<!-- Made by `python -m benchmarks.peers.page FILE`; do not edit. -->

The same work on one machine in one run, the systems in turns ({rounds} rounds, each system freshly started in each;
medians, in brackets the smallest and the largest). `make bench-peers ARGS="--json FILE"` measures it again, `python -m
benchmarks.peers.page FILE` makes this page. {machine}; servers, clients and everything else share its processors and its
one disk. {foreign}

- **Tutti** {tutti}: three gateways, `send()` of its Python client. A receipt says: {promise}.
- **Kafka** 4.1.0 (KRaft), one partition, because that is what has one order; confluent-kafka with `acks=all`, idempotent,
  `linger.ms` 5 for rates and 0 for latencies. *synced* is `flush.messages=1`.
- **JetStream**: NATS server 2.15.2, three servers, three replicas on file, its own `nats bench` as the client, written in
  Go. *synced* is `sync_interval: always`.
- **JGroups** 5.5.6: SEQUENCER, its own MPerf with all three members sending; what each member delivers. It keeps nothing,
  and a sender has no receipt: a limit of what ordering alone costs, not the same promise. That it
  is slower in records of 100 B than of 1 KB was seen with 8 and 100 threads a member, and is not explained.

What a receipt promises is not the same, and matters more than a factor: a record that only memory has is gone when the
power fails everywhere.
"""
_ROW, _BAR, _LABEL, _WIDTH = 22, 14, 210, 720


def page(kept: dict[str, Any]) -> str:
    """The page, Markdown."""
    found: Found = kept["rounds"]
    systems: dict[str, str] = kept["systems"]
    foreign: list[float] = kept["foreign_cpu"]
    rounds = max((len(values) for of in found.values() for values in of.values()), default=0)
    lines = [
        _HEAD.format(
            rounds=rounds,
            machine=kept["machine"],
            foreign=f"Others used {median(foreign):.2f} of a processor meanwhile (at most {max(foreign):.2f}).",
            tutti=kept["version"],
            promise=systems.get("Tutti", "synced on all three"),
        ),
        "| | a receipt says |\n|---|---|\n" + "\n".join(f"| {name} | {promise} |" for name, promise in systems.items()),
        "## What Tutti is held to\n\n```text\n" + "\n".join(verdicts(found)) + "\n```",
    ]
    lines += [_measure(name, of) for name, of in found.items() if of]
    return "\n\n".join(lines) + "\n"


def _measure(name: str, of: dict[str, list[float]]) -> str:
    unit, better = MEASURES[name]
    medians = {system: median(values) for system, values in of.items()}
    ours = medians.get("Tutti")
    rows = []
    for system, value in medians.items():
        ratio = "" if ours is None or system == "Tutti" else number(ours / value if better == "more" else value / ours)
        rows.append(f"| {system} | {number(value)} ({number(min(of[system]))} to {number(max(of[system]))}) | {ratio} |")
    head = f"| {unit}, {better} is better | | Tutti is better by |\n|---|---|---|\n"
    return f"## {name}\n\n{plot(medians, unit)}\n\n{head}" + "\n".join(rows)


def plot(values: dict[str, float], unit: str) -> str:
    """Bars of one measure as SVG, in the colours of the page."""
    most = max(values.values()) or 1.0
    room = _WIDTH - _LABEL - 110
    bars = []
    for place, (name, value) in enumerate(values.items()):
        top, length = place * _ROW, max(1.0, value / most * room)
        strong = "1" if name == "Tutti" else "0.45"
        bars.append(
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="{_BAR}" opacity="{strong}"/>'
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 15}">{number(value)} {escape(unit)}</text>'
        )
    height = _ROW * len(values) + 4
    told = escape("; ".join(f"{name} {number(value)} {unit}" for name, value in values.items()))
    style = "fill:currentColor;font-size:12px;max-width:100%"
    return f'<svg role="img" aria-label="{told}" viewBox="0 0 {_WIDTH} {height}" style="{style}">{"".join(bars)}</svg>'


def main() -> int:
    """Write the page; 2 for a file that is none."""
    if len(sys.argv) != 2:
        print(
            "usage: python -m benchmarks.peers.page FILE; FILE is what python -m benchmarks.peers --json FILE wrote",
            file=sys.stderr,
        )
        return 2
    try:
        kept = json.loads(Path(sys.argv[1]).read_bytes())
        text = page(kept)
    except (OSError, ValueError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        print(f"page: {sys.argv[1]} has no figures of python -m benchmarks.peers --json: {why}", file=sys.stderr)
        return 2
    PAGE.write_text(text)
    print(f"page: {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
