"""Mutants of confirmed frontiers (`gateway/core/read_index.py`), and of what a gateway that lags refuses."""

from __future__ import annotations

from gateway.core.order.requests import Requests
from gateway.core.read_index import ReadIndex
from tests.sim.index_readers import IndexReaders
from tests.sim.mutants.mutant import NETWORK, Mutant
from tests.sim.mutants.patch import Edit
from tests.sim.run import Run


def _asked(run: Run) -> None:
    """Readers have frontiers confirmed all the time."""
    for _ in range(5):
        IndexReaders(run.world)


_ASKED = NETWORK.but(script=_asked, pace=2.0, rate=15.0, readers=0)

INDEXES = (
    Mutant(
        "confirmed-with-old-answers",
        "10",
        "a frontier is confirmed by answers to heartbeats that left after the question",
        [Edit(ReadIndex, "_confirmed", "question.asked_us <= peer.beat.echo_us <= now_us", "True")],
        _ASKED,
        shows="confirms frontier",
        quick=True,
    ),
    Mutant(
        "confirmed-against-a-promise",
        "10",
        "who has promised a higher view confirms no frontier of this one",
        [Edit(ReadIndex, "_confirmed", "peer.beat.promised <= standing.view", "True")],
        _ASKED,
        shows="confirms frontier",
    ),
    Mutant(
        "confirmed-below-the-end",
        "10",
        "a frontier is confirmed once it reaches what the log held when the question came",
        [Edit(ReadIndex, "_confirmed", "self._window.frontier < question.end", "False")],
        _ASKED,
        shows="confirms frontier",
        quick=True,
    ),
    Mutant(
        "confirmed-by-a-minority",
        "10",
        "a majority of the roster confirms a frontier",
        [Edit(ReadIndex, "_confirmed", "return self._peers.rosters.majority(", "return bool(")],
        _ASKED,
        shows="confirms frontier",
        quick=True,
    ),
    Mutant(
        "refused-by-a-laggard",
        "10",
        "a gateway that lags refuses no offset commit for good",
        [Edit(Requests, "_unless", "self._confirm(judge)", "judge(True)")],
        NETWORK.but(readers=2, pace=2.0, rate=15.0),
        shows="was denied its commit",
    ),
)
