"""All mutants."""

from __future__ import annotations

from tests.sim.mutants.atomic import ATOMIC
from tests.sim.mutants.catch_up import CATCH_UP
from tests.sim.mutants.fast_paths import FAST_PATHS
from tests.sim.mutants.force import FORCE
from tests.sim.mutants.indexes import INDEXES
from tests.sim.mutants.lanes import LANES
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.order import ORDER
from tests.sim.mutants.recovery import RECOVERY
from tests.sim.mutants.rosters import ROSTERS
from tests.sim.mutants.transactions import TRANSACTIONS
from tests.sim.mutants.trims import TRIMS
from tests.sim.mutants.views import VIEWS

MUTANTS: tuple[Mutant, ...] = (
    *ORDER,
    *ATOMIC,
    *VIEWS,
    *CATCH_UP,
    *ROSTERS,
    *FORCE,
    *RECOVERY,
    *LANES,
    *TRIMS,
    *TRANSACTIONS,
    *INDEXES,
    *FAST_PATHS,
)


def by_name(name: str) -> Mutant:
    """The mutant of that name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
