"""What a mutant is: one rule of the design broken in the real code, and the runs in which that is likely to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from gateway.core import limits
from gateway.core.events import StackConfig
from tests.sim.mutants.patch import Change, Edit, Value, applied
from tests.sim.options import Options
from tests.sim.run import Run

Script = Callable[[Run], None]


@dataclass(frozen=True)
class Mix:
    """The runs that a mutant is looked for in: as `Options`, with a seed each.

    Attributes:
        faults: their names, with spaces between. members: each seed takes the next of them.
        bounds: limits with other values, for the real code as for the mutant.
        script: what happens in a run beside its faults; it may raise `Violation` later on.
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

    def but(self, **changes: object) -> Mix:
        """The same with something else."""
        return replace(self, **changes)  # type: ignore[arg-type] # names and types are those of the fields

    def options(self, seed: int) -> Options:
        """The run of a seed."""
        return Options(
            seed=seed,
            members=self.members[seed % len(self.members)],
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
        )

    def bounded(self) -> AbstractContextManager[None]:
        """The limits as they are to be."""
        return applied([Value(limits, name, value) for name, value in self.bounds.items()])


CRASHES = Mix("kill power snipe blackout loss")
NETWORK = Mix("loss twice disorder cut split flap clog broken kill", members=(3, 3, 5))
LOW = Mix("low loss disorder kill", pace=2.0, rate=15.0, pipeline=16)
RIVALS = Mix("rival restart estranged kill loss", pace=2.0)
MUCH = Mix("loss twice disorder cut split flap clog kill power snipe pause stall slow leave", members=(3, 3, 4, 5), seconds=60)
ROSTER = Mix("roster wipe kill power split loss", members=(3, 4, 2), pace=3.0, seconds=60)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: nobody else's. section: of the design. rule: what it breaks, in one line.
        changes: of the real code, or of the simulator's model of what is outside of the core.
        mix: where it is looked for. shows: words of what it breaks, with | between; any will do if empty.
        quick: so few seeds show it that every test run looks.
        proof: a test of what the simulator does not run (the log's files), which has to fail with it; then there are no seeds.
    """

    name: str
    section: str
    rule: str
    changes: Sequence[Edit | Change]
    mix: Mix = CRASHES
    shows: str = ""
    quick: bool = False
    proof: str = ""

    def applied(self) -> AbstractContextManager[None]:
        """The code with the fault in it."""
        return applied(self.changes)
