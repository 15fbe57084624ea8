"""What all pages of figures are made of: bars as SVG, a figure with its smallest and largest round, tables of measures by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Literal, NamedTuple

from benchmarks.figures import number

Rounds = dict[str, list[float]]  # of each place (a system, a size), its rounds
Found = dict[str, Rounds]  # of each measure
_ROW, _BAR, _LABEL, _WIDTH = 22, 14, 210, 720


class Measure(NamedTuple):
    """What is measured: its unit, and whether more is better."""

    unit: str
    better: Literal["more", "less"]


def spread(rounds: Sequence[float]) -> str:
    """The median, and the smallest and the largest where there are several."""
    middle = number(median(rounds))
    return middle if len(rounds) == 1 else f"{middle} ({number(min(rounds))} to {number(max(rounds))})"


def row(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, Markdown."""
    return "\n".join([row(head), "|" + "---|" * len(head), *(row(one) for one in rows)])


def by_place(along: str, found: Found, measures: Mapping[str, Measure]) -> str:
    """A line a place, a column a measure; what was not measured at a place is empty there."""
    there = [name for name in measures if found.get(name)]
    places = dict.fromkeys(place for name in there for place in found[name])
    head = [along, *(f"{name}, {measures[name].unit}" for name in there)]
    return table(
        head, [[place, *(spread(found[name][place]) if place in found[name] else "" for name in there)] for place in places]
    )


def plot(values: Mapping[str, float], unit: str, strong: str | None = None) -> str:
    """Bars of one measure as SVG, in the colours of the page.

    Args:
        values: of each place.
        unit: of all of them.
        strong: the place that stands out; all of them when left out.
    """
    most = max(values.values()) or 1.0
    room = _WIDTH - _LABEL - 110
    bars = []
    for place, (name, value) in enumerate(values.items()):
        top, length = place * _ROW, max(1.0, value / most * room)
        opacity = "1" if strong in (None, name) else "0.45"
        bars.append(
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="{_BAR}" opacity="{opacity}"/>'
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 15}">{number(value)} {escape(unit)}</text>'
        )
    height = _ROW * len(values) + 4
    told = escape("; ".join(f"{name} {number(value)} {unit}" for name, value in values.items()))
    style = "fill:currentColor;font-size:12px;max-width:100%"
    return f'<svg role="img" aria-label="{told}" viewBox="0 0 {_WIDTH} {height}" style="{style}">{"".join(bars)}</svg>'


def medians(rounds: Rounds) -> dict[str, float]:
    """Of each place."""
    return {place: median(values) for place, values in rounds.items()}
