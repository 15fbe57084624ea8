"""Writes the report page of the demo: one HTML file with SVG charts that needs no other files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from tutti_gateway.cli.demo.checks import Check, Speed

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 300, 60, 40, 12
_INK, _BLUE, _RED, _GREY = "#222", "#3b6ea5", "#c0392b", "#999"
_LOCAL = ZoneInfo("America/New_York")
_EDGES_MS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000]

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tutti demo</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:800px;margin:2em auto;padding:0 1em}}
h1{{font-size:1.4em}}h2{{font-size:1.1em;margin-top:2em}}td{{padding:.1em 1em .1em 0;vertical-align:top}}
svg{{width:100%;height:auto}}text{{font-size:12px;fill:#222}}.good{{color:#207020}}.bad{{color:#c0392b;font-weight:bold}}</style>
<h1>{title}</h1>
<table>{checks}</table>
<h2>Delay by hour of the scheduled departure, New York time (minutes, mean)</h2>
{delays}
<h2>Commit latency (p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {longest:.0f} ms)</h2>
{latencies}
<h2>Departures committed a second; red lines mark the kills</h2>
{timeline}
</html>
"""


class Kill(NamedTuple):
    """A process that the demo killed, and the time of the kill on the monotonic clock, in us."""

    what: str
    at_us: int


def write_picture(
    path: Path,
    title: str,
    checks: Sequence[Check],
    rows: Sequence[dict[str, Any]],
    times_us: npt.NDArray[np.int64],
    speed: Speed,
    kills: Sequence[Kill],
) -> None:
    """Write the page with the checks, and with charts of flight delays by hour, of commit latency, and of throughput over time.

    Args:
        path: file to write.
        title: title of the page.
        checks: results of the checks.
        rows: result rows of the job, with the flight delays.
        times_us: times of sending and commit of each record, in us.
        speed: summary of these times.
        kills: kills to mark in the chart of throughput.
    """
    lines = "".join(
        f'<tr><td class="{"good" if check.held else "bad"}">{"held" if check.held else "NOT HELD"}</td>'
        f"<td>{escape(check.promise)}</td><td>{escape(check.counted)}</td></tr>"
        for check in checks
    )
    page = _PAGE.format(
        title=escape(title),
        checks=lines,
        delays=_delays(rows),
        latencies=_latencies(times_us),
        timeline=_timeline(times_us, kills),
        p50=speed.p50_ms,
        p99=speed.p99_ms,
        longest=speed.max_ms,
    )
    path.write_text(page, encoding="utf-8")


def mean_delays(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return the mean delay of departed flights in minutes, by hour of the day in New York."""
    minutes: dict[int, int] = {}
    departed: dict[int, int] = {}
    for row in rows:
        hour = datetime.fromisoformat(row["hour"]).astimezone(_LOCAL).hour
        minutes[hour] = minutes.get(hour, 0) + (row["delay_minutes"] or 0)
        departed[hour] = departed.get(hour, 0) + row["departures"] - row["cancelled"]
    return {hour: minutes[hour] / departed[hour] for hour in sorted(departed) if departed[hour]}


def _delays(rows: Sequence[dict[str, Any]]) -> str:
    means = mean_delays(rows)
    hours = range(24)
    return _bars([(str(hour), means.get(hour, 0.0)) for hour in hours], "")


def _latencies(times_us: npt.NDArray[np.int64]) -> str:
    latencies_ms = (times_us[:, 1] - times_us[:, 0]) / 1000
    counts, _ = np.histogram(np.clip(latencies_ms, _EDGES_MS[0], _EDGES_MS[-1]), _EDGES_MS)
    labels = [f"{edge:g}" if edge < 1000 else f"{edge / 1000:g}s" for edge in _EDGES_MS[1:]]
    bars = [(f"≤{label}", 100.0 * int(count) / len(times_us)) for label, count in zip(labels, counts, strict=True)]
    return _bars(bars, "%")


def _timeline(times_us: npt.NDArray[np.int64], kills: Sequence[Kill]) -> str:
    started_us = int(times_us[:, 0].min())
    seconds = (times_us[:, 1] - started_us) / 1e6
    counts, edges = np.histogram(seconds, bins=max(1, int(np.ceil(seconds.max()))))
    across, up = (_WIDTH - _LEFT) / len(counts), (_HEIGHT - _BOTTOM - _TOP) / max(1, int(counts.max()))
    points = " ".join(f"{_LEFT + number * across:.1f},{_HEIGHT - _BOTTOM - count * up:.1f}" for number, count in enumerate(counts))
    drawn = [_axis([float(counts.max()) * part / 4 for part in range(5)], "")]
    drawn.append(f'<polyline points="{points}" fill="none" stroke="{_BLUE}" stroke-width="1.5"/>')
    for kill in kills:
        x = _LEFT + (kill.at_us - started_us) / 1e6 * across
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="{_RED}"/>')
        drawn.append(f'<text x="{x + 4:.1f}" y="{_TOP + 10}" style="fill:{_RED}">{escape(kill.what)}</text>')
    drawn += [
        f'<text x="{_LEFT + number * across:.1f}" y="{_HEIGHT - _BOTTOM + 16}">{edges[number]:.0f} s</text>'
        for number in range(0, len(counts), max(1, len(counts) // 10))
    ]
    return _svg(drawn)


def _bars(bars: Sequence[tuple[str, float]], unit: str) -> str:
    most = max([value for _, value in bars] + [1e-9])
    across, up = (_WIDTH - _LEFT) / len(bars), (_HEIGHT - _BOTTOM - _TOP) / most
    drawn = [_axis([most * part / 4 for part in range(5)], unit)]
    for number, (label, value) in enumerate(bars):
        x, height = _LEFT + number * across, max(0.0, value) * up
        attributes = f'x="{x + 1:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}" width="{across - 2:.1f}" height="{height:.1f}"'
        drawn.append(f'<rect {attributes} fill="{_BLUE}"><title>{escape(label)}: {value:.2f}</title></rect>')
        drawn.append(f'<text x="{x + across / 2:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>')
    return _svg(drawn)


def _axis(values: Sequence[float], unit: str) -> str:
    most = max(values) or 1.0
    decimals = 0 if most >= len(values) * 2 else 1
    parts = []
    for value in values:
        y = _HEIGHT - _BOTTOM - value / most * (_HEIGHT - _BOTTOM - _TOP)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GREY}" stroke-width=".4"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.{decimals}f}{unit}</text>')
    return "".join(parts)


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" stroke-linecap="round" color="{_INK}">{"".join(parts)}</svg>'
