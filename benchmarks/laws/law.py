"""What a law is: a cost along something that grows, measured round by round, with a sentence that says why it is so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import Found, Measure


class Asked(NamedTuple):
    """How much is measured.

    Attributes:
        quick: small sizes, to see that it works.
        log_gb: how large a log grows.
        hours: of the load that goes on.
        sustained_gb: written in one go.
    """

    quick: bool = False
    log_gb: float = 10.0
    hours: float = 0.05
    sustained_gb: float = 10.0


class Bench:
    """What a law measures with: a directory, how much, and where its figures go."""

    def __init__(self, directory: Path, asked: Asked, measures: Mapping[str, Measure]) -> None:
        """Nothing is found yet."""
        self.directory = directory
        self.asked = asked
        self.found: Found = {name: {} for name in measures}

    def add(self, measure: str, place: str, value: float) -> None:
        """A round more of a measure at a place."""
        self.found[measure].setdefault(place, []).append(value)


FIRST, LAST = "the first", "the last"  # places of a law that are not known by name


class Held(NamedTuple):
    """What a measure is held to at a place: at least, or at most, as the measure is better.

    Attributes:
        than: where this is set, of what the measure is at `place` as a multiple of what it is there.
    """

    measure: str
    place: str
    asked: float
    than: str = ""


class Law(NamedTuple):
    """One of them.

    Attributes:
        title: of its section.
        along: what grows.
        measures: what is measured.
        says: why it grows so, or does not.
        round: measures every place once.
        once: whether one round is all that there is, however many are asked for: it takes long, or is one long round.
        bytes_wanted: of the disk, at most, at one time.
        held: what it is held to.
    """

    title: str
    along: str
    measures: Mapping[str, Measure]
    says: str
    round: Callable[[Bench], None]
    once: bool
    bytes_wanted: Callable[[Asked], float]
    held: tuple[Held, ...] = ()
