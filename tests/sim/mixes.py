"""Mixes of faults: runs that aim at one part of the protocol. The mutants have their own; those here are drawn by campaigns.

A swarm draws each kind of fault by itself, so that two faults which are dangerous together seldom meet at the right pace and load.
A named mix fixes kinds, pace and load; the seed draws the times. The pace leaves a group time to decide: with a `snipe` or a `kill`
each second there is hardly ever a majority, and a run of a hundred frames and four views shows little of what it aims at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from tests.sim.options import Options
from tutti_gateway.core.protocol.events import StackConfig

if TYPE_CHECKING:
    from tests.sim.run import Run

    Script = Callable[[Run], None]

SHARE = 0.3  # of the seeds of a campaign


@dataclass(frozen=True)
class Mix:
    """Runs that differ by their seeds alone: as `Options`.

    Attributes:
        faults: their names, with spaces between. members: each seed takes the next of them.
        bounds: limits with other values, for the real code as for a mutant.
        script: what happens in a run beside its faults; it may raise `Violation` later on.
        name: by which the command line knows it; empty for the mixes of mutants. what: what it aims at.
    """

    faults: str = ""
    members: tuple[int, ...] = (3,)
    seconds: float = 40.0
    pace: float = 4.0
    latency: str = "lan"
    producers: int = 3
    rate: float = 5.0
    pipeline: int = 4
    readers: int = 1
    unordered: int = 0
    stagers: int = 0
    committers: int = 0
    sync_us: float = 800.0
    bounds: Mapping[str, int] = field(default_factory=dict)
    config: StackConfig = field(default_factory=StackConfig)
    script: Script | None = None
    name: str = ""
    what: str = ""

    def but(self, **changes: object) -> Mix:
        """The same with something else."""
        return replace(self, **changes)  # type: ignore[arg-type] # names and types are those of the fields

    def options(self, seed: int, members: int = 0) -> Options:
        """The run of a seed; `members` other than 0 is given."""
        return Options(
            seed=seed,
            members=members or self.members[seed % len(self.members)],
            seconds=self.seconds,
            faults=frozenset(self.faults.split()),
            pace=self.pace,
            latency=self.latency,
            producers=self.producers,
            rate=self.rate,
            pipeline=self.pipeline,
            readers=self.readers,
            unordered=self.unordered,
            stagers=self.stagers,
            committers=self.committers,
            sync_us=self.sync_us,
            config=self.config,
            mix=self.name,
        )


_NAMED = (
    Mix(
        "snipe kill power ends roster split loss",
        members=(3, 4),
        seconds=60,
        pace=4.0,
        rate=20.0,
        unordered=4,
        sync_us=3000.0,
        name="lost-ends",
        what="coordinators die and the roster changes while own lanes lose their ends",
    ),
    Mix(
        "again ends power split kill",
        members=(3, 4),
        pace=2.5,
        rate=15.0,
        unordered=3,
        sync_us=5000.0,
        name="lost-ends-again",
        what="gateways are removed and added again while own lanes lose their ends",
    ),
    Mix(
        "roster wipe power blackout split pause",
        members=(3, 4, 5),
        seconds=70,
        pace=4.0,
        latency="wan",
        name="stale-roster",
        what="members that missed changes of the roster come back, and blank disks beside them",
    ),
    Mix(
        "rot snipe kill split stall",
        members=(3, 4, 5),
        seconds=50,
        pace=4.0,
        rate=15.0,
        pipeline=8,
        sync_us=20_000.0,
        name="rot-in-flush",
        what="frames become unreadable while views change, on slow disks",
    ),
    Mix(
        "rot roster trim kill power wipe",
        members=(3, 4),
        seconds=70,
        pace=2.0,
        rate=15.0,
        pipeline=16,
        name="rot-and-trim",
        what="frames become unreadable while the log is trimmed and the roster changes",
    ),
    Mix(
        "trim wipe kill power roster twice disorder",
        members=(3, 4),
        seconds=70,
        pace=1.5,
        rate=20.0,
        pipeline=16,
        name="learn-and-trim",
        what="gateways that catch up find that what they lack was trimmed",
    ),
    Mix(
        "snipe kill split low rival forget twice disorder",
        members=(3, 5),
        pace=6.0,
        latency="wan",
        producers=2,
        rate=12.0,
        pipeline=8,
        stagers=3,
        committers=3,
        name="transactions",
        what="transactions over changes of views, aborts and rival instances",
    ),
    Mix(
        "trim rot kill power forget restart",
        members=(3, 4),
        seconds=60,
        pace=1.5,
        producers=1,
        rate=12.0,
        pipeline=8,
        stagers=3,
        committers=3,
        name="transactions-and-trim",
        what="transactions whose staged batches are trimmed, unreadable or forgotten",
    ),
    Mix(
        "rival restart estranged snipe split low forget loss",
        members=(3, 5),
        pace=6.0,
        latency="wan",
        producers=4,
        rate=15.0,
        pipeline=16,
        name="epochs",
        what="epochs over failover: rival and restarted instances, aborts, clients that lose their gateway",
    ),
    Mix(
        "clocks pause leave kill roster slow",
        members=(3, 5),
        seconds=60,
        pace=1.5,
        name="clocks",
        what="clocks at different rates while gateways leave, stop and are removed",
    ),
    Mix(
        "power blackout snipe slow",
        members=(2, 3),
        pace=1.0,
        rate=30.0,
        pipeline=16,
        sync_us=9000.0,
        name="torn-at-the-mark",
        what="power fails between a sync and the vote mark that names it",
    ),
    Mix(
        "cut triangle flap roster kill clog",
        members=(3, 4, 5),
        seconds=60,
        pace=1.5,
        name="one-way",
        what="gateways hear in one direction only while the roster changes",
    ),
    Mix(
        "back estranged kill snipe split disorder twice",
        members=(3, 3, 5),
        pace=6.0,
        latency="wan",
        readers=4,
        name="readers-back",
        what="named readers go back while their gateways change and their commits come late",
    ),
    Mix(
        "two kill power split loss slow",
        members=(2, 2, 3),
        seconds=60,
        pace=4.0,
        name="down-to-one",
        what="a small group becomes one of a single gateway, and is what it was again",
    ),
    Mix(
        "hasty split cut slow kill loss",
        members=(2, 3, 4),
        seconds=60,
        pace=3.0,
        name="hasty",
        what="removed gateways are added again before they know that they were removed",
    ),
)
MIXES = {mix.name: mix for mix in _NAMED}


def mix_of(seed: int) -> str:
    """The name of the mix that a campaign plays with the seed; empty if it draws from the swarm."""
    chance = Random(f"{seed}/mix")
    return chance.choice(_NAMED).name if chance.random() < SHARE else ""
