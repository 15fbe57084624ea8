"""Mutants of lanes (design, section 7)."""

from __future__ import annotations

from gateway.core.unordered.healing import Healing
from gateway.core.unordered.layer import Unordered
from gateway.core.unordered.lines import LineTable
from gateway.core.unordered.member import Member
from gateway.core.unordered.origin import Origin
from tests.sim.mutants.mutant import Mix, Mutant
from tests.sim.mutants.patch import Edit

_UNIT = "tests/unit/core/unordered/"

#: Many senders into lanes, hardly any into the ordered log; parts that change, and origins that die.
_LANES = Mix("kill power split cut loss", producers=1, readers=0, unordered=6, rate=20.0, pace=8.0, sync_us=3000.0)
#: Gateways that are removed and added again, with the same disks, and so under other numbers.
_AGAIN = _LANES.but(faults="again kill split loss", members=(3, 4), unordered=3, rate=5.0, pace=4.0)
#: Origins whose disks lose the ends of their lanes, with more of them under way than a mark names.
_ENDS = _LANES.but(faults="power kill ends loss stall", members=(3, 4), rate=30.0, pace=3.0)

LANES = (
    Mutant(
        "lane-vote-before-fsync",
        "7",
        "a member's YES is released when its copy is durable",
        [
            Edit(
                Member,
                "_persist",
                "lane.end, cut=cut), lane))",
                "lane.end, cut=cut), lane))\n"
                "    self._box.send(lane.origin, Posted(lane.incarnation, lane.attempt, lane.end, self.low, False))",
            )
        ],
        _LANES,
        quick=True,
    ),
    Mutant(
        "lane-decided-without-all",
        "7",
        "all members of the attempt have it before the origin says YES",
        [Edit(Origin, "_advance", "min(self._votes.values()", "max(self._votes.values()")],
        _LANES,
        quick=True,
    ),
    Mutant(
        "lane-origin-votes-first",
        "7",
        "the origin votes last: its own log holds nothing undecided",
        [Edit(Origin, "_place", "    self._advance()", "    self._box.persist(lane, up_to=lane.end)\n    self._advance()")],
        _LANES,
    ),
    Mutant(
        "lane-aborted-after-own-yes",
        "7",
        "after the origin's own YES nothing of it is aborted",
        [Edit(Unordered, "__init__", "    lane.confirm(lane.end)", "    lane.confirm(lane.decided)")],
        _LANES,
    ),
    Mutant(
        "lane-attempt-before-its-no",
        "7",
        "the NO that ends an attempt is durable before anything of the next one is said",
        [
            Edit(
                Origin,
                "_end",
                "attempt=self._attempt)",
                "attempt=self._attempt)\n    self._machine.on(Input.DURABLE)\n    self._open()",
            )
        ],
        _LANES,
    ),
    Mutant(
        "lane-view-taken-blindly",
        "7",
        "a member takes the VIEW of a higher attempt only when it knows everything before it as decided",
        [Edit(Member, "on_post", "frame.position - 1 > lane.confirmed", "False")],
        proof=_UNIT + "test_attempts.py::test_a_member_cuts_nothing_for_a_new_attempt_before_it_knows_what_was_decided",
    ),
    Mutant(
        "lane-decision-of-another-attempt",
        "7",
        "a decision counts for the attempt that it names",
        [
            Edit(Member, "on_settled", "message.attempt < lane.attempt or ", ""),
            Edit(Member, "on_settled", "    if message.attempt > lane.attempt:", "    if False:"),
        ],
        _LANES,
    ),
    Mutant(
        "lane-fetched-beyond-decided",
        "7",
        "what others are given of a lane is decided",
        [
            Edit(Member, "on_fetch", "not 0 < message.first <= lane.decided", "not 0 < message.first <= lane.end"),
            Edit(Member, "on_fetch", "last = min(lane.decided, ", "last = min(lane.end, "),
        ],
        _LANES,
    ),
    Mutant(
        "lane-of-an-old-number",
        "7",
        "who was removed and added again while it runs begins no attempt in the lane of its old number",
        [Edit(Unordered, "members", "part if self.number in part else ()", "part")],
        _AGAIN,
        shows="is not that of gateway",
        quick=True,
    ),
    Mutant(
        "lane-of-an-old-number-in-doubt",
        "7",
        "what a gateway said YES to in a lane under an old number of its own is decided",
        [Edit(Member, "restore", "lane.confirm(lane.end)", "pass")],
        _AGAIN,
        shows="was decided up to",
    ),
    Mutant(
        "lane-let-go-too-far",
        "7",
        "a lane is let go only as far as every gateway of the roster has it",
        [Edit(Member, "tell_held", "held = min(", "held = max(")],
        _LANES,
        shows="lets lane",
        quick=True,
    ),
    Mutant(
        "lane-begun-over-its-frame",
        "7",
        "what a lane begins with elsewhere confirms the same frame here, and replaces any other end",
        [Edit(Member, "_begin", "own.view == begin.attempt and own.header_crc == begin.chain", "True")],
        proof=_UNIT + "test_retention.py::test_an_end_that_was_never_decided_gives_way",
    ),
    Mutant(
        "lane-healed-up-to-the-mark",
        "7",
        "what stood behind the mark of a lost end may be decided: the last attempt goes on with it",
        [Edit(Healing, "tail", "return self._tail if", "return [] if")],
        _ENDS,
    ),
    Mutant(
        "lane-healed-from-one",
        "7",
        "all of the last attempt are heard before it goes on: the disk of one may have lost its end, too",
        [Edit(Healing, "needed", "if one != self._me)", "if one != self._me)[:1]")],
        _ENDS,
    ),
    Mutant(
        "lane-healed-with-another-end",
        "7",
        "what was durable at the origin decides the frame of that attempt, and no other one at its place",
        [Edit(Member, "on_ask", "if message.attempt == lane.attempt:", "if True:")],
        proof=_UNIT + "test_healing.py::test_what_was_durable_at_the_origin_decides_the_frame_of_that_attempt_alone",
    ),
    Mutant(
        "lane-gap-taken",
        "7",
        "first in, first out: a batch is taken when all before it are",
        [Edit(LineTable, "judge", "    if frame.first_sequence == end + 1:", "    if frame.first_sequence > end:")],
        proof=_UNIT + "test_batches.py::test_a_batch_sent_twice_is_answered_when_decided_to_who_sent_it_last",
    ),
    Mutant(
        "lane-sent-twice",
        "7",
        "a producer's lines are rebuilt from the lane at a start: what was sent again is known",
        [Edit(LineTable, "__init__", "self._decided = dict(lines)", "self._decided = dict.fromkeys(lines, (0, 0))")],
        proof=_UNIT + "test_batches.py::test_what_was_decided_before_a_start_is_no_news_after_it",
    ),
)
