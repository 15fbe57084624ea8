"""Mutants of transactions: batches that are staged, and the TXN that makes them visible (design, section 3)."""

from __future__ import annotations

from tests.sim.mixes import Mix
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import Edit
from tutti.data.log_state import LogState
from tutti_gateway.core.order.layer import Ordering
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.order.sequencer import Sequencer

STAGED = Mix("kill loss restart rival", stagers=2, committers=3, producers=1, rate=8.0, pace=3.0)
STAGED_LOW = STAGED.but(faults="low loss disorder restart", pace=1.0, rate=15.0, pipeline=16)
_PROOF = "tests/unit/core/order/test_transactions.py::"

TRANSACTIONS = (
    Mutant(
        "spent-twice",
        "3",
        "what an undecided TXN makes visible is not staged any more",
        [
            Edit(
                ReceivedTable,
                "stage",
                "self._visible.update(dict.fromkeys(decode_body(TxnBody, frame.body).staged, frame))",
                "pass",
            )
        ],
        STAGED.but(latency="wan"),
        quick=True,
    ),
    Mutant(
        "staged-over-an-epoch",
        "3",
        "a new epoch lets go what its producer staged",
        [Edit(LogState, "_epoch", "    self._unstage(lambda part: part.producer == frame.producer)\n", "")],
        STAGED,
        quick=True,
    ),
    Mutant(
        "staged-over-a-forget",
        "3",
        "a producer that is forgotten has nothing staged",
        [Edit(LogState, "_forget", "    self._unstage(lambda part: part.producer not in self.producers)\n", "")],
        STAGED.but(faults="forget", pace=1.0),
    ),
    Mutant(
        "staged-though-void",
        "3",
        "a staged batch that an ABORT voids is not staged",
        [Edit(LogState, "apply", "if not aborted:", "if not aborted or frame.staged:")],
        STAGED_LOW,
    ),
    Mutant(
        "staged-with-offsets",
        "3",
        "staged records have no offsets",
        [
            Edit(
                LogState,
                "_batch",
                "        self.staged[frame.position] = staged_of(frame)\n",
                "        self.staged[frame.position] = staged_of(frame)\n        self.next_offset = offset + frame.count\n",
            )
        ],
        STAGED,
        quick=True,
    ),
    Mutant(
        "staged-answered-by-offset",
        "3",
        "a stager is told the position of its batch",
        [Edit(Ordering, "decided", "frame.position if frame.flags & STAGED else offset", "offset")],
        STAGED,
        quick=True,
    ),
    Mutant(
        "txn-behind-undecided",
        "3",
        "a TXN is ordered when all of its producer is decided, so that no ABORT reaches over it",
        [Edit(Sequencer, "_may_stage", "elif line.undecided:", "elif False:")],
        proof=_PROOF + "test_a_transaction_waits_for_its_producers_undecided_batches",
    ),
    Mutant(
        "txn-over-undecided",
        "3",
        "a TXN names what is decided, so that no ABORT voids a part of it",
        [Edit(Sequencer, "_may_stage", "decided=True", "decided=False")],
        proof=_PROOF + "test_a_position_that_is_not_decided_yet_may_not_be_named_since_it_may_be_aborted",
    ),
    Mutant(
        "spent-though-cut",
        "3",
        "what a TXN spent is staged again when that is cut",
        [Edit(ReceivedTable, "rebuild", "self._visible: dict[int, Frame] = {}", "self._visible = getattr(self, '_visible', {})")],
        proof=_PROOF + "test_a_truncation_returns_the_batches_spent_by_an_undecided_transaction",
    ),
    Mutant(
        "abort-over-a-txn-taken",
        "3",
        "a member takes no ABORT that reaches over a TXN, or over what one makes visible",
        [Edit(ReceivedTable, "_abort", "not any(at in self._visible for at in void)\n", "True\n")],
        proof=_PROOF + "test_a_member_refuses_an_abort_that_reaches_over_a_transaction",
    ),
)
