"""Swarm testing: each seed draws its own group, load, network and mix of faults, so that no fault hides behind another.

Groce et al. 2012, "Swarm Testing": runs that leave out some kinds of events reach states that runs with all of them never do.
"""

from __future__ import annotations

from random import Random

from tests.sim.mixes import MIXES
from tests.sim.options import FAULTS, Options
from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import StackConfig

BETWEEN = frozenset({"loss", "twice", "disorder", "cut", "split", "churn", "triangle", "flap", "clog", "narrow", "broken"})
DESTRUCTIVE = frozenset({"rot", "wipe"})  # a majority must keep what they take
ALONE = frozenset(FAULTS) - BETWEEN - DESTRUCTIVE - {"snipe", "blackout", "roster", "again", "exchange", "two", "hasty"}

LATER = (
    "trim",
    "again",
    "ends",
    "gather",
    "exchange",
    "back",
    "two",
    "hasty",
)  # kinds that came after the others are drawn by themselves: the seeds that there were stay what they were

LEAST = {"again": 2, "exchange": 4, "two": 1, "hasty": 1}  # these need more members


def drawn(seed: int, members: int = 0, mix: str = "") -> Options:
    """The run of a seed of a named mix, or of the swarm."""
    return MIXES[mix].options(seed, members) if mix else draw(seed, members)


def draw(seed: int, members: int = 0) -> Options:
    """The run of a seed; `members` other than 0 is given."""
    chance = Random(f"{seed}/swarm")
    size = chance.choice((1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 7))
    members = members or size
    share = chance.choice((0.0, 0.15, 0.3, 0.5, 0.8))
    faults = {fault for fault in FAULTS if fault not in LATER and chance.random() < share}
    if members == 1:
        faults &= ALONE
    elif members == 2:
        faults -= DESTRUCTIVE
    faults |= {fault for fault in LATER if Random(f"{seed}/{fault}").random() < share and members > LEAST.get(fault, 0)}
    lanes = Random(f"{seed}/lanes")  # of its own: the seeds that there were stay what they were
    stagers, committers = Random(f"{seed}/transactions").choice(((0, 0), (0, 0), (1, 1), (3, 1), (2, 2)))
    return Options(
        seed=seed,
        members=members,
        seconds=chance.choice((30, 60, 120, 300)),
        faults=frozenset(faults),
        pace=chance.choice((2.0, 5.0, 10.0, 30.0)),
        latency=chance.choice(("lan", "lan", "lan", "wan", "edge")),
        producers=chance.randint(1, 5),
        rate=chance.choice((0.3, 2.0, 5.0, 15.0)),
        pipeline=chance.choice((1, 4, 16)),
        readers=chance.randint(0, 2),
        unordered=lanes.choice((0, 0, 1, 3)),
        stagers=stagers,
        committers=committers,
        indexes=seed % 3 == 0,
        sync_us=chance.choice((200.0, 1000.0, 5000.0)),
        config=StackConfig(
            tick_interval_us=chance.choice((common_limits.TICK_INTERVAL_US, 10 * common_limits.TICK_INTERVAL_US)),
            undecided_bytes_max=chance.choice((limits.UNDECIDED_BYTES_MAX, limits.UNDECIDED_BYTES_MAX, 4000)),
        ),
    )
