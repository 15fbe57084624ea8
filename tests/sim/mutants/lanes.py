"""Mutants of lanes (design, section 7)."""

from __future__ import annotations

from tests.sim.mixes import Mix
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import Edit
from tutti_gateway.core.inbound_messages import Inbound
from tutti_gateway.core.lanes.dedup import DedupTable
from tutti_gateway.core.lanes.lane_replica import Member
from tutti_gateway.core.lanes.layer import Unordered
from tutti_gateway.core.lanes.lost_end import LostEndRecovery
from tutti_gateway.core.lanes.origin import Origin
from tutti_gateway.log.lanes import lane_recovery

_UNIT = "tests/unit/core/lanes/"

#: Many senders into lanes, hardly any into the ordered log; parts that change, and origins that die.
_LANES = Mix("kill power split cut loss", producers=1, readers=0, unordered=6, rate=20.0, pace=8.0, sync_us=3000.0)
#: Gateways that are removed and added again, with the same disks, and so under other numbers.
_AGAIN = _LANES.but(faults="again kill split loss", members=(3, 4), unordered=3, rate=5.0, pace=4.0)
#: Origins whose disks lose the ends of their lanes, with more of them under way than a mark names.
_ENDS = _LANES.but(faults="power kill ends loss stall", members=(3, 4), rate=30.0, pace=3.0)
#: The same, and a member of the last attempt has another disk when it is asked.
_EXCHANGED = _LANES.but(faults="exchange", members=(5,), rate=10.0, pace=6.0, seconds=60.0)

LANES = (
    Mutant(
        "lane-vote-before-fsync",
        "7",
        "a member's YES is released when its copy is durable",
        [
            Edit(
                Member,
                "_persist",
                "lane.end, truncate_after=truncate_after), lane))",
                "lane.end, truncate_after=truncate_after), lane))\n"
                "    self._outbox.send(lane.origin, Posted(lane.incarnation, lane.attempt, lane.end, self.low, False))",
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
        [Edit(Origin, "_order", "    self._advance()", "    self._outbox.persist(lane, up_to=lane.end)\n    self._advance()")],
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
        proof=_UNIT + "test_origin_attempts.py::test_a_member_truncates_nothing_for_a_new_attempt_before_it_knows_the_decisions",
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
        [Edit(Unordered, "set_connected", "connected if self.number in connected else ()", "connected")],
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
        [Edit(Member, "report_replicated", "replicated = min(", "replicated = max(")],
        _LANES,
        shows="lets lane",
        quick=True,
    ),
    Mutant(
        "lane-begun-over-its-frame",
        "7",
        "what a lane begins with elsewhere confirms the same frame here, and replaces any other end",
        [Edit(Member, "_begin", "own.view == begin.attempt and own.header_crc == begin.chain", "True")],
        proof=_UNIT + "test_retention.py::test_an_undecided_end_is_replaced",
    ),
    Mutant(
        "lane-healed-up-to-the-mark",
        "7",
        "what stood behind the mark of a lost end may be decided: the last attempt goes on with it",
        [Edit(LostEndRecovery, "tail", "return self._tail if", "return [] if")],
        _ENDS,
    ),
    Mutant(
        "lane-healed-from-one",
        "7",
        "all of the last attempt are heard before it goes on: the disk of one may have lost its end, too",
        [Edit(LostEndRecovery, "needed", "there[disk] for disk in disks)", "there[disk] for disk in disks[:1])")],
        _ENDS,
    ),
    Mutant(
        "lane-healed-with-another-end",
        "7",
        "what was durable at the origin decides the frame of that attempt, and no other one at its place",
        [Edit(Member, "on_ask", "if message.attempt == lane.attempt:", "if True:")],
        proof=_UNIT + "test_lost_end.py::test_frames_durable_at_the_origin_decide_the_frame_of_that_attempt_alone",
    ),
    Mutant(
        "lane-healed-below-what-was-shown",
        "7",
        "what was shown behind the mark is not given up because nobody who is asked has it",
        [Edit(LostEndRecovery, "tail", "max(self._reach, self.lost.shown)", "self._reach")],
        proof=_UNIT + "test_lost_end.py::test_frames_published_after_the_mark_are_awaited",
    ),
    Mutant(
        "lane-healed-with-another-chain",
        "7",
        "the chain at the mark is that of the frame that was lost",
        [Edit(LostEndRecovery, "on_copied", "if frame.position == lost.last and", "if False and")],
        proof=_UNIT + "test_lost_end.py::test_another_frame_at_the_mark_than_the_disk_had_halts_the_lane",
    ),
    Mutant(
        "lane-healed-without-all-that-there-are",
        "7",
        "where the disk of a member of the last attempt is gone everybody in the roster is heard",
        [
            Edit(LostEndRecovery, "needed", "bool(disks) and all(disk in there for disk in disks)", "bool(disks)"),
            Edit(LostEndRecovery, "needed", "there[disk] for disk in disks)", "there[disk] for disk in disks if disk in there)"),
        ],
        proof=_UNIT + "test_lost_end.py::test_if_a_member_of_the_last_attempt_was_removed_all_members_are_asked",
    ),
    Mutant(
        "lane-healed-alone",
        "7",
        "where the last attempt was this gateway's alone everybody in the roster is heard: they may have learned of it",
        [Edit(LostEndRecovery, "needed", "bool(disks) and", "")],
        proof=_UNIT + "test_lost_end.py::test_an_end_that_was_this_gateway_s_alone_is_asked_of_all_that_there_are",
    ),
    Mutant(
        "lane-healed-without-a-view",
        "7",
        "the roster is believed in a primary view alone",
        [Edit(LostEndRecovery, "tail", " and self._context.view_state.primary", "")],
        proof=_UNIT + "test_lost_end.py::test_the_roster_is_believed_in_a_view_alone",
    ),
    Mutant(
        "lane-end-told-before-fsync",
        "7",
        "what is told of an end is durable",
        [Edit(Member, "on_ask", "lane.attempt, lane.durable, run", "lane.attempt, lane.end, run")],
        proof=_UNIT + "test_lost_end.py::test_an_end_that_is_not_durable_is_neither_reported_nor_sent",
    ),
    Mutant(
        "lane-end-given-before-fsync",
        "7",
        "what is given of an end is durable",
        [Edit(Member, "on_ask", " if frame.position <= lane.durable", "")],
        proof=_UNIT + "test_lost_end.py::test_an_end_that_is_not_durable_is_neither_reported_nor_sent",
    ),
    Mutant(
        "lane-own-one-begun-elsewhere",
        "7",
        "the origin needs all of its lane: what was let go says who sent what",
        [Edit(Member, "on_fetched", "message.begin is not None and (lane.origin, lane.incarnation) == self._me", "False")],
        proof=_UNIT + "test_lost_end_last_attempt.py::test_frames_trimmed_by_others_do_not_return_as_a_beginning",
    ),
    Mutant(
        "lane-recovery-ended-by-a-low-disk",
        "7",
        "nothing ends the last attempt before all of it is decided",
        [
            Edit(
                Origin,
                "on_posted",
                "ends = message.low and current and self._machine.state is Phase.OPEN",
                "ends = message.low and current",
            )
        ],
        proof=_UNIT + "test_lost_end_last_attempt.py::test_a_low_disk_is_no_reason_to_end_frames_that_may_be_decided",
    ),
    Mutant(
        "lane-recovery-without-votes-beyond",
        "7",
        "who has more of an earlier run votes for the end",
        [Edit(Origin, "on_posted", "message.up_to > end and self._machine.state is Phase.OPEN", "message.up_to > end")],
        proof=_UNIT + "test_lost_end_last_attempt.py::test_a_member_that_got_more_of_an_earlier_run_votes_for_the_end",
    ),
    Mutant(
        "lane-recovery-held-by-one-removed",
        "7",
        "the last attempt goes on without the votes of who was removed",
        [Edit(Origin, "beat", "self._drop_removed(self._recovery.removed(self._votes))", "pass")],
        proof=_UNIT + "test_lost_end_last_attempt.py::test_a_removed_member_is_no_longer_awaited",
    ),
    Mutant(
        "lane-recovery-without-one-unknown",
        "7",
        "who the roster lacks was removed only where a primary view knows the roster",
        [Edit(LostEndRecovery, "removed", "if self._context.view_state.primary else ()", "")],
        proof=_UNIT + "test_lost_end_last_attempt.py::test_without_a_view_no_member_counts_as_removed",
    ),
    Mutant(
        "lane-recovery-waits-for-one-removed",
        "7",
        "what one that was removed answered is waited for no longer",
        [Edit(LostEndRecovery, "_current_answers", " if one in roster", "")],
        proof=_UNIT + "test_lost_end_last_attempt.py::test_a_member_removed_before_it_sent_its_frames_is_not_awaited",
    ),
    Mutant(
        "lane-healed-by-number",
        "7",
        "the disks of the last attempt are heard, and not those that have their numbers now",
        [Edit(LostEndRecovery, "needed", "[disk for member, disk", "[self._context.window.state.disk_of(member) for member, disk")],
        _EXCHANGED,
        quick=True,
    ),
    Mutant(
        "lane-healed-by-an-earlier-disk",
        "7",
        "an answer counts for the disk that gave it",
        [Edit(Unordered, "_check_disk", "self._recovery.drop_reports(number)", "pass")],
        proof=_UNIT + "test_replaced_disk.py::test_an_answer_counts_for_the_disk_that_gave_it",
    ),
    Mutant(
        "lane-vote-of-an-earlier-disk",
        "7",
        "a vote counts for the disk that gave it",
        [Edit(Origin, "disk_replaced", "self._votes[member] = 0", "pass")],
        proof=_UNIT + "test_replaced_disk.py::test_a_vote_counts_for_the_disk_that_gave_it",
    ),
    Mutant(
        "lane-attempt-with-another-disk",
        "7",
        "an attempt ends when another disk takes the place of a member's",
        [Edit(Unordered, "_check_disk", "self._origin.disk_replaced(number)", "pass")],
        proof=_UNIT + "test_replaced_disk.py::test_an_attempt_ends_when_another_disk_replaces_a_members_one",
    ),
    Mutant(
        "lane-source-of-an-earlier-disk",
        "7",
        "what a disk had is not asked of the one that took its place",
        [Edit(Unordered, "_check_disk", "self._member.disk_replaced(number)", "pass")],
        proof=_UNIT + "test_replaced_disk.py::test_a_disk_that_was_replaced_is_a_source_no_more",
    ),
    Mutant(
        "lane-message-of-another-disk",
        "7",
        "what a disk holds and votes for counts where the roster names that disk",
        [Edit(Inbound, "on_received", "type(message) in OF_A_DISK", "False")],
        proof="tests/property/core/test_messages.py::test_a_disk_outside_the_roster_contributes_nothing_about_lanes",
    ),
    Mutant(
        "lane-healed-over-what-another-has-decided",
        "7",
        "what any gateway of the roster has decided comes before the last attempt goes on",
        [Edit(LostEndRecovery, "_certain", "*(self._decided.get(one, 0) for one in self._others), ", "")],
        proof=_UNIT + "test_lost_end_report.py::test_frames_decided_at_any_gateway_come_before_the_last_attempt_continues",
    ),
    Mutant(
        "lane-end-in-doubt-taken-for-given",
        "7",
        "a copy that ends in an earlier attempt than the mark gives what is decided there, and nothing behind it",
        [Edit(LostEndRecovery, "_holders", "attempt >= least and up_to", "up_to")],
        proof=_UNIT + "test_lost_end_report.py::test_an_end_that_only_the_lost_disk_could_decide_is_reported_with_its_holders",
    ),
    Mutant(
        "lane-healed-note-of-an-earlier-attempt",
        "7",
        "a lost end is healed as soon as a later attempt began",
        [Edit(lane_recovery, "lost_end", "0 < scalars.coordinated == attempt", "0 < scalars.coordinated")],
        proof="tests/unit/log/lanes/test_lost_lane_end.py::test_a_frame_of_a_later_attempt_says_that_all_is_back",
    ),
    Mutant(
        "lane-gap-taken",
        "7",
        "first in, first out: a batch is taken when all before it are",
        [Edit(DedupTable, "judge", "    if frame.first_sequence == end + 1:", "    if frame.first_sequence > end:")],
        proof=_UNIT + "test_origin_batches.py::test_a_batch_sent_twice_is_answered_to_its_last_sender_when_decided",
    ),
    Mutant(
        "lane-sent-twice",
        "7",
        "a producer's lines are rebuilt from the lane at a start: what was sent again is known",
        [Edit(DedupTable, "__init__", "self._decided = dict(lines)", "self._decided = dict.fromkeys(lines, (0, 0))")],
        proof=_UNIT + "test_origin_batches.py::test_frames_decided_before_a_start_are_not_announced_after_it",
    ),
)
