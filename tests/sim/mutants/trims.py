"""Mutants of retention: what goes, and how a log goes on that missed it (design, sections 5.4 and 6)."""

from __future__ import annotations

from tests.sim.mixes import Mix
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import Edit
from tutti_gateway.core.flush.install_snapshot import SnapshotInstall
from tutti_gateway.core.flush.log_adoption import LogAdoption
from tutti_gateway.core.flush.log_serving import LogServer
from tutti_gateway.core.order.housekeeping import Housekeeping
from tutti_gateway.core.view.peers import Peers

RETENTION = Mix("trim kill power pause split", members=(3, 4), seconds=60, rate=15.0, pipeline=16)

TRIMS = (
    Mutant(
        "trim-what-a-voter-lacks",
        "6",
        "what a voter does not hold yet stays, unless a limit forces it out",
        [Edit(Peers, "replicated_position", "    return min(", "    return limits.POSITION_MAX or min(")],
        RETENTION,
        "lacks some of the trimmed frames",
        quick=True,
    ),
    Mutant(
        "relearned-before-it-is-durable",
        "5.4",
        "a frontier goes to the end of a snapshot when the disk has it, and not before",
        [
            Edit(
                SnapshotInstall,
                "_install",
                "        self._token = self._outbox.replace_log(data)",
                "        self._token = self._outbox.replace_log(data)\n        self.persisted(self._token)",
            )
        ],
        RETENTION,
        "durable",
        quick=True,
    ),
    Mutant(
        "any-frames-for-the-begin",
        "5.4",
        "who is below the trim gets the state there, and not the frames behind it",
        [Edit(LogServer, "on_log_read", "message.first < self._window.state.start", "False")],
        RETENTION,
    ),
    Mutant(
        "snapshot-over-a-damaged-end",
        "6",
        "in a view change no state replaces a damaged end that reaches further",
        [Edit(LogAdoption, "on_snapshot", "if reaches or not", "if not")],
        proof="tests/unit/core/flush/test_log_adoption.py::test_a_damaged_end_that_reaches_beyond_the_state_stays",
    ),
    Mutant(
        "draining-coordinator-trims",
        "5.0",
        "a coordinator that leaves orders no TRIM",
        [Edit(Housekeeping, "trim", " or self._view_state.draining", "")],
        proof="tests/unit/core/order/test_outcomes.py::test_a_coordinator_that_leaves_orders_nothing_new",
    ),
)
