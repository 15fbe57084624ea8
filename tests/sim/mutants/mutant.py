"""What a mutant is: one rule of the design broken in the real code, and the runs in which that is likely to show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.sim.mixes import Mix
from tests.sim.mutants.patch import Change, Edit, applied

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
