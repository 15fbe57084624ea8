"""Mutants of what a disk keeps and of how a start believes it (design, sections 3 and 6)."""

from __future__ import annotations

from tests.sim.disk import Disk
from tests.sim.mixes import Mix
from tests.sim.mutants.mutant import CRASHES, MUCH, Mutant
from tests.sim.mutants.patch import Edit, Value
from tests.sim.mutants.scenes import BUSY, STALE, damage, damage_stale, power_after_a_cut
from tutti_gateway.core.flush.candidate import Candidate
from tutti_gateway.core.flush.layer import Flush
from tutti_gateway.core.flush.log_choice import _Judge
from tutti_gateway.log.write import install_snapshot
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.segment import Segment
from tutti_gateway.log.writer import LogWriter

RECOVERY = (
    Mutant(
        "start-does-not-sync",
        "6",
        "a start syncs what it found before it votes for it",
        [Value(Disk, "SYNC_AT_START", False)],
        Mix("kill power", pace=2.0),
    ),
    Mutant(
        "scalars-overtake-frames",
        "3",
        "a view is accepted on the disk behind the frames of its log",
        [
            Edit(
                Disk,
                "persist",
                "    self._queue.append((action, self.frontier))\n",
                "    if action.scalars and self._busy and action.cut is None:\n"
                "        self._store(action.scalars, self.frontier)\n"
                "        action = Persist(action.token, action.frames)\n"
                "    self._queue.append((action, self.frontier))\n",
            )
        ],
        MUCH.but(faults="power blackout snipe split loss", sync_us=20_000.0),
    ),
    Mutant(
        "mark-not-lowered-by-a-cut",
        "3",
        "the vote mark is lowered durably before a cut touches the log",
        [Edit(Disk, "_mark_lowered", "    self._lower(behind)\n", "")],
        Mix(
            "split flap cut kill", members=(3, 5), latency="wan", sync_us=20_000.0, rate=15.0, pipeline=16, script=power_after_a_cut
        ),
    ),
    Mutant(
        "mark-ahead-of-the-sync",
        "3",
        "the vote mark says what earlier syncs made durable",
        [Edit(Disk, "_write", "rides = self._mark_at(self.durable)", "rides = self.mark = self._mark_at(len(log))")],
        CRASHES,
    ),
    Mutant(
        "damage-told-as-the-end",
        "6",
        "a damaged end counts as present when logs are compared",
        [
            Edit(
                Flush, "state", "    window, damage = self._window, self.adoption.damage", "    window, damage = self._window, None"
            )
        ],
        BUSY.but(script=damage),
    ),
    Mutant(
        "damage-cut-by-anybody",
        "6",
        "a damaged position is cut when enough clean answers show that it was not decided",
        [
            Edit(_Judge, "choice", "if proof is not None:", "if True:"),
        ],
        BUSY.but(script=damage),
    ),
    Mutant(
        "damage-refilled-with-anything",
        "6",
        "a damaged end is refilled up to the chain value of its mark",
        [
            Edit(
                _Judge,
                "_view_of",
                "LACKS if view and position == self._damage.last and view != self._damage.view else view",
                "view",
            ),
            Edit(Candidate, "_collect", "chain = best.chain if best.end == choice.end else None", "chain = None"),
        ],
        STALE.but(script=damage_stale),
        quick=True,
    ),
    Mutant(
        "mark-not-raised-by-an-accepted-view",
        "3",
        "the write that accepts a view sets the vote mark to the installed end",
        [
            Edit(
                LogWriter,
                "write_hard_state",
                "mark = self._marks.next(self._marks.durable if accepts else None)",
                "old = self._marks.newest\n        mark = self._marks.next((old.position, old.view, old.chain))",
            )
        ],
        proof="tests/unit/log/write/test_corrupt_end.py::test_an_accepted_view_makes_the_damage_forgotten",
    ),
    Mutant(
        "no-invalid-header-behind-a-write",
        "3",
        "every write ends with an invalid header at the next place",
        [Edit(Segment, "fitting", "    parts.append(TERMINATOR)\n", "")],
        proof="tests/sim/mutants/test_torn.py::test_a_frame_of_a_torn_write_does_not_come_back_when_the_one_before_it_is_written_again",
    ),
    Mutant(
        "snapshot-with-aborted-batches",
        "3",
        "a snapshot says what the log before it says, aborted batches left out",
        [Edit(Indexer, "_index", "state.apply(frame, void)", "state.apply(frame, False)")],
        proof="tests/unit/log/write/test_writer.py::test_indexes_are_sealed_and_snapshots_written_when_the_frontier_passes",
    ),
    Mutant(
        "damage-cut-by-one",
        "6",
        "a damaged position is cut when so many voters lack it that no majority is without one of them",
        [Edit(_Judge, "_blocking_voters", "return voters if self._rosters.blocks(voters) else None", "return voters")],
        BUSY.but(script=damage),
    ),
    Mutant(
        "mark-not-raised-by-learning",
        "3",
        "the vote mark names what a learner holds, though it is of views above its accepted one",
        [
            Edit(
                LogWriter,
                "_sync",
                "self._marks.synced(end, ",
                "self._marks.synced(end if end[1] <= self._hard_state.hard_state.accepted else self._marks.durable, ",
            )
        ],
        proof="tests/unit/log/write/test_vote_mark.py::test_what_a_learner_holds_is_marked_whatever_view_it_has_accepted",
    ),
    Mutant(
        "mark-of-the-log-that-a-state-replaced",
        "3",
        "where a state replaces the log, the vote mark names the end of that state",
        [
            Edit(
                install_snapshot,
                "_finish",
                "    mark = mark_of(state, sequence)\n",
                "    mark, old = mark_of(state, sequence), read_hard_state(directory)\n"
                "    if old is not None:\n"
                "        mark = mark._replace(position=old.mark.position, view=old.mark.view, chain=old.mark.chain)\n",
            )
        ],
        proof="tests/unit/log/write/test_vote_mark.py::test_a_state_in_place_of_the_log_is_what_the_mark_names",
    ),
)
