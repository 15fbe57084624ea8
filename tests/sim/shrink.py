"""A failing run made small: fewer members, a shorter time, fewer kinds of faults and clients, as long as it still fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.sim.options import Options
from tests.sim.run import Result, play


def kind_of(violation: str) -> str:
    """What a violation is about, without names and numbers."""
    return " ".join(word for word in violation.split() if word.isalpha() and word.islower())[:60]


def smaller(options: Options, ended_s: float) -> Iterator[Options]:
    """Runs that are a little less than this one, the boldest first."""
    if ended_s < options.seconds:
        yield replace(options, seconds=ended_s)
    for share in (0.25, 0.5, 0.8):
        yield replace(options, seconds=round(options.seconds * share, 2))
    kinds = sorted(options.faults)
    half = len(kinds) // 2
    if half > 1:
        yield replace(options, faults=frozenset(kinds[:half]))
        yield replace(options, faults=frozenset(kinds[half:]))
    for kind in kinds:
        yield replace(options, faults=options.faults - {kind})
    for members in (1, 2, 3, 4, 5):
        if members < options.members:
            yield replace(options, members=members)
    if options.producers > 1:
        yield replace(options, producers=options.producers - 1)
    if options.committers:
        yield replace(options, committers=options.committers - 1)
    if options.stagers > 1:
        yield replace(options, stagers=options.stagers - 1)
    if options.readers:
        yield replace(options, readers=0)
    if options.unordered:
        yield replace(options, unordered=options.unordered - 1)
    if options.pipeline > 1:
        yield replace(options, pipeline=1)


def shrink(failed: Result, tries: int = 60) -> Result:
    """The smallest run found, in so many tries at most, that fails in the same way."""
    best = failed
    wanted = kind_of(failed.violation)
    while tries > 0:
        for options in smaller(best.options, best.simulated_s):
            tries -= 1
            result = play(options)
            if result.violation and kind_of(result.violation) == wanted:
                best = result
                break
            if tries <= 0:
                return best
        else:
            return best
    return best
