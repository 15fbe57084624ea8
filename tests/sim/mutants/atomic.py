"""Mutants of two-phase commit and ABORT (design, section 4, layer 4)."""

from __future__ import annotations

from tests.sim.mixes import Mix
from tests.sim.mutants.mutant import LOW, MUCH, Mutant
from tests.sim.mutants.patch import Edit, Entry
from tests.sim.mutants.scenes import BUSY, low_after_decision
from tests.sim.mutants.scripts import LATE, lossy
from tutti_gateway.core import pending_window
from tutti_gateway.core.atomic.ballot import Ballot
from tutti_gateway.core.atomic.layer import Atomic
from tutti_gateway.core.layers import Layers
from tutti_gateway.core.membership.layer import Membership
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.received_table import LINE, LineInput, LineState, ReceivedTable
from tutti_gateway.core.pending_window import Window

_OUTCOMES = "tests/unit/core/order/test_outcomes.py::"

ATOMIC = (
    Mutant(
        "vote-before-fsync",
        "4.4",
        "a member votes YES for what is durable, not for what was handed to the disk",
        [
            Edit(
                Atomic,
                "write",
                "self._writing.append((self._outbox.persist(tuple(self._unwritten)), last))",
                "self._writing.append((self._outbox.persist(tuple(self._unwritten)), last))\n"
                "        self.persisted(self._writing[-1][0])",
            )
        ],
        quick=True,
    ),
    Mutant(
        "yes-of-a-majority",
        "4.4",
        "all members of the view vote, not most of them",
        [Edit(Ballot, "all_yes", "min(self.votes.values())", "sorted(self.votes.values())[(len(self.votes) - 1) // 2]")],
        quick=True,
    ),
    Mutant(
        "yes-of-an-old-view",
        "4.4",
        "a YES of another view is not counted",
        [Edit(Atomic, "on_vote", "not self._view_state.current(message.view) or ", "")],
        LATE,
    ),
    Mutant(
        "confirm-of-an-old-view",
        "4.4",
        "a CONFIRM of another view is not taken",
        [
            Edit(
                Atomic,
                "on_confirm",
                "not view_state.current(message.view) or sender != view_state.coordinator or up_to <= window.frontier",
                "up_to <= window.frontier",
            )
        ],
        LATE,
    ),
    Mutant(
        "shown-when-durable",
        "4.4",
        "the frontier is what all have, not what one's own disk has",
        [
            Edit(
                Atomic,
                "persisted",
                "        self._vote()",
                "        self._vote()\n"
                "        if self._window.frontier < last <= self._window.mark(CommitStage.VOTED):\n"
                "            self._decide(last)",
            )
        ],
        quick=True,
    ),
    Mutant(
        "confirm-not-repeated",
        "4.4",
        "a CONFIRM is repeated in heartbeats, as nobody caches or asks for one",
        [
            Edit(Atomic, "beat", "self._outbox.send(member, Confirm(view_state.view, window.frontier))", "pass"),
            Edit(Atomic, "on_vote", "elif again and sender", "elif False and sender"),
        ],
        Mix(seconds=15, producers=1, rate=0.5, readers=0, script=lossy),
    ),
    Mutant(
        "a-heartbeat-tells-first",
        "4.4",
        "who reads a frontier in a heartbeat was told of the decision before",
        [Edit(Membership, "_announce", "self._others.send_decisions()", "pass")],
        Mix("leave", seconds=30, pace=1.0, rate=40.0, pipeline=1, readers=0),
    ),
    Mutant(
        "abort-barrier",
        "4.4",
        "once an ABORT is ordered no decision stops between the batch and it",
        [Edit(Window, "reach", "moved = True\n", "moved = False\n")],
        LOW,
    ),
    Mutant(
        "abort-of-a-carried-position",
        "4.4",
        "only what the coordinator ordered in its view, behind its decided VIEW, may be aborted",
        [
            Edit(
                Atomic,
                "installed",
                "    self._vote(again=True)",
                "    for frame in window.frames if self._low else ():\n"
                "        if frame.kind == Kind.BATCH:\n"
                "            self._declined[frame.position] = frame\n"
                "    self._vote(again=True)",
            ),
            Edit(Atomic, "on_no", " or not 0 < self._view_position <= window.frontier", ""),
            Edit(Atomic, "on_no", "if position <= ballot.votes[sender]:", "if False:"),
            Edit(Atomic, "on_no", "if frame.view != self._view_state.view:", "if False:"),
        ],
        BUSY.but(latency="wan", script=low_after_decision),
    ),
    Mutant(
        "abort-leaves-the-epoch-open",
        "4.4",
        "an ABORT closes its producer's epoch: nothing more of it is ordered",
        [Entry(LINE, (LineState.OPEN, LineInput.ABORT), LineState.OPEN)],
        LOW.but(latency="wan"),  # an ABORT is undecided for longer
    ),
    Mutant(
        "abort-takes-nothing-back",
        "4.4",
        "an ABORT puts the producer's entry back to what it was before the batch",
        [Edit(Atomic, "_entry_before", "        if other is frame:\n            break\n", "")],
        LOW,
    ),
    Mutant(
        "abort-voids-one-batch",
        "4.4",
        "an ABORT voids every batch of its producer's epoch between the batch and it",
        [Edit(pending_window, "_is_batch_of", "return frame.kind", "return frame.position == barrier.first and frame.kind")],
        LOW,
    ),
    Mutant(
        "abort-told-when-ordered",
        "4.4",
        "a producer is told of an ABORT when it is decided",
        [
            Edit(
                Layers,
                "abort",
                "    self.order.sequencer.abort(frame, body)",
                "    self.order.sequencer.abort(frame, body)\n"
                "    self.order.forward.aborted(frame.producer, frame.epoch, body.entry.sequence, body.reason)",
            )
        ],
        LOW,
    ),
    Mutant(
        "declined-without-its-abort",
        "4.4",
        "what was declined is written only together with the ABORT that voids it (STUB)",
        [Edit(Atomic, "decline", "self._deferred.append(frame)", "self._unwritten.append(frame)")],
        LOW,
    ),
    Mutant(
        "cut-told-as-abort",
        "4.4",
        "a batch that a view change cut is sent again: only a decided ABORT is told as Aborted",
        [
            Edit(
                ForwardTable,
                "installed",
                "        unordered = self._unordered(queue)",
                "        unordered = self._unordered(queue)\n"
                "        self._outbox.answers(queue.session).extend([_aborted(frame, 'it was cut') for frame in unordered])",
            )
        ],
        MUCH,
    ),
    Mutant(
        "cut-not-durable",
        "5.4",
        "a cut is made on the disk before anything is written there",
        [Edit(Atomic, "truncate", "self._outbox.persist(truncate_after=to)", "pass")],
        MUCH,
    ),
    Mutant(
        "unwritten-survives-its-view",
        "5.2",
        "a log is told of as the disk has it: what was not handed to the disk is given up with its view",
        [Edit(Atomic, "ended", "    self._window.truncate(self._window.mark(CommitStage.WRITING))\n", "")],
        LOW,
    ),
    Mutant(
        "abort-keeps-progress",
        "4.4",
        "an ABORT puts back the producer's progress too",
        # The same edit of `LogState._abort` changes nothing: a void batch is never applied there, so its line has that progress.
        [
            Edit(
                ReceivedTable,
                "_abort",
                "line.sequence, line.progress = entry.sequence, entry.progress",
                "line.sequence = entry.sequence",
            )
        ],
        proof=f"{_OUTCOMES}test_after_an_abort_an_epoch_continues_with_the_progress_before_the_aborted_batch",
    ),
    Mutant(
        "abort-without-progress",
        "4.4",
        "an ABORT carries the producer's progress from before the batch",
        [Edit(Atomic, "_entry_before", "producer.sequence, producer.progress, ", "producer.sequence, b'', ")],
        proof=f"{_OUTCOMES}test_after_an_abort_an_epoch_continues_with_the_progress_before_the_aborted_batch",
    ),
    Mutant(
        "no-of-another-view",
        "5",
        "a NO of another view is not counted",
        [Edit(Atomic, "on_no", "not self._view_state.current(message.view) or ", "")],
        proof=f"{_OUTCOMES}test_a_no_of_another_view_aborts_nothing",
    ),
    Mutant(
        "no-after-its-yes",
        "4.4",
        "after its YES a member cannot say NO",
        [Edit(Atomic, "on_no", "if position <= ballot.votes[sender]:", "if False:")],
        proof=f"{_OUTCOMES}test_a_no_to_a_decided_or_approved_frame_aborts_nothing",
    ),
    Mutant(
        "no-to-what-is-no-batch",
        "4.4",
        "only a BATCH is aborted: a member that cannot take another kind is booted",
        [Edit(Atomic, "on_no", "frame.kind != Kind.BATCH or ", "")],
        proof="tests/unit/core/test_stack.py::test_a_member_that_cannot_accept_unabortable_frames_is_suspected",
    ),
)
