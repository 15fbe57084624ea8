"""A measured figure, what it should reach, and how both are shown."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Figure(NamedTuple):
    """One result.

    Attributes:
        name: what was measured.
        value: median over the rounds, in `unit`.
        unit: of `value`, `low`, `high` and `target`.
        low, high: smallest and largest round.
        target: what it should reach, None for a limit of the machine that is only shown.
        better: whether more is better or less.
        beside: what it is compared with, and in which state it was measured.
    """

    name: str
    value: float
    unit: str
    low: float
    high: float
    target: float | None = None
    better: Literal["more", "less"] = "more"
    beside: str = ""

    @property
    def reached(self) -> bool:
        """Whether the median is at least as good as the target."""
        if self.target is None:
            return True
        return self.value >= self.target if self.better == "more" else self.value <= self.target

    def line(self) -> str:
        """The figure in one line."""
        target = ""
        if self.target is not None:
            sign = ">=" if self.better == "more" else "<="
            target = f"{sign} {number(self.target)}" + ("" if self.reached else "  MISSED")
        spread = f"({number(self.low)} to {number(self.high)})"
        return f"{self.name:<46} {number(self.value):>10} {self.unit:<9} {spread:<24} {target:<20} {self.beside}".rstrip()


def figure(
    name: str,
    rounds: Sequence[float],
    unit: str,
    target: float | None = None,
    better: Literal["more", "less"] = "more",
    beside: str = "",
) -> Figure:
    """The figure of several rounds."""
    return Figure(name, statistics.median(rounds), unit, min(rounds), max(rounds), target, better, beside)


def number(value: float) -> str:
    """A number with about three digits that matter."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the sorted values lie."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


@contextmanager
def foreign_load(into: list[float]) -> Iterator[None]:
    """Append the mean number of processors that others than this process and its children used inside of the block; on a virtual
    machine what its host gave to others (steal) is of that.
    """
    start_s, machine, own = time.monotonic(), _machine_ticks(), _own_seconds()
    yield
    elapsed_s = max(time.monotonic() - start_s, 1e-9)
    used_s = (_machine_ticks() - machine) / _TICKS_A_SECOND
    into.append(max(0.0, (used_s - (_own_seconds() - own)) / elapsed_s))


def _machine_ticks() -> int:
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(value) for value in stat.readline().split()[1:]]
    user, nice, system, _idle, _wait, interrupt, soft, stolen, *_ = fields
    return user + nice + system + interrupt + soft + stolen


def _own_seconds() -> float:
    """CPU time of this process and of every live descendant, and of children that ended."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for pid in descendants(os.getpid()):
        total += seconds_of(pid)
    return total


def seconds_of(pid: int) -> float:
    """CPU time of a process and of its children that ended, s; 0 when it ended itself: its time is with its parent then."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) / _TICKS_A_SECOND


def descendants(pid: int) -> list[int]:
    """Process ids of all children of `pid`, theirs included."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                for child in children.read().split():
                    found.append(int(child))
                    found.extend(descendants(int(child)))
    except OSError:
        return found  # it ended while it was looked at
    return found


def proportional_memory_bytes(pids: Sequence[int]) -> int:
    """PSS of processes together: memory that they share is counted once."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
                total += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) * 1024
        except OSError:
            continue  # it ended since it was listed
    return total
