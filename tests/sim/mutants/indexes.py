"""Mutants of confirmed frontiers (`core/read_index.py`). Unit tests hold the rules that networks hardly ever show."""

from __future__ import annotations

from tests.sim.index_readers import IndexReaders
from tests.sim.mutants.mutant import NETWORK, Mutant
from tests.sim.mutants.patch import Edit
from tests.sim.run import Run
from tutti_gateway.core.read_index import ReadIndex


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
        [Edit(ReadIndex, "_confirmed", "inquiry.begun_us <= peer.beat.echo_us <= now_us", "True")],
        _ASKED,
        shows="confirms frontier",
    ),
    Mutant(
        "confirmed-below-the-end",
        "10",
        "a frontier is confirmed once it reaches what the log held when the question came",
        [Edit(ReadIndex, "_confirmed", "self._window.frontier < inquiry.end", "False")],
        _ASKED,
        shows="confirms frontier",
    ),
    Mutant(
        "confirmed-by-a-minority",
        "10",
        "a majority of the roster confirms a frontier",
        [Edit(ReadIndex, "_confirmed", "return self._peers.rosters.majority(", "return bool(")],
        _ASKED,
        shows="confirms frontier",
    ),
)
