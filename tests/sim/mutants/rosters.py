"""Mutants of changes of the roster: when one is ordered, when a new disk votes, and whom a candidate counts (design, 5.7)."""

from __future__ import annotations

from tests.sim.mutants.mutant import ROSTER, Mutant
from tests.sim.mutants.patch import Edit
from tutti_gateway.core.flush.candidate import Candidate
from tutti_gateway.core.inbound_messages import Inbound
from tutti_gateway.core.membership.coordinator_duties import CoordinatorDuties
from tutti_gateway.core.membership.roster_change import RosterChanges
from tutti_gateway.core.view import quorum
from tutti_gateway.transport import inbound_peers

_VOTES = "tests/unit/core/membership/test_roster_change_votes.py::"
_OUTCOMES = "tests/unit/core/order/test_outcomes.py::"
_COUNTING = "[roster] if body.forced else [*counting, roster]"

# No mutant turns off the count of members in `Candidate._suffices`: code without it behaves the same. The members hold a majority
# of each ROSTER exactly when the answers do. Both are counted by the same rosters and incarnations, only answers of proposed
# gateways are kept, and each answer that any ROSTER counts is of a member (`Rosters.member` is true wherever `Rosters.votes` is).

ROSTERS = (
    Mutant(
        "roster-behind-an-undecided-one",
        "5.7",
        "a ROSTER is ordered when the ROSTER before it is decided",
        [Edit(RosterChanges, "_may_order", " and not self._window.rosters", "")],
        proof=f"{_VOTES}test_a_roster_is_ordered_when_the_one_before_it_is_decided",
    ),
    Mutant(
        "roster-before-its-view",
        "5.7",
        "a ROSTER is ordered when the VIEW frame of its view is decided",
        [Edit(RosterChanges, "_may_order", " and view_state.primary", "")],
        proof=f"{_VOTES}test_a_roster_is_ordered_when_the_view_is_decided",
    ),
    Mutant(
        "replaced-before-caught-up",
        "5.7",
        "a new disk takes the place of a voter when it has caught up",
        [Edit(RosterChanges, "_objection", "if not self._caught_up(peer.number):", "if False:")],
        proof=f"{_VOTES}test_a_new_disk_is_not_put_in_place_of_the_old_one_before_it_has_caught_up",
    ),
    Mutant(
        "joined-before-caught-up",
        "4.2",
        "a view takes a gateway in when it has caught up",
        [Edit(CoordinatorDuties, "_may_join", "if not beat.ready and beat.frontier < self._window.frontier:", "if False:")],
        proof=f"{_VOTES}test_a_new_gateway_enters_a_view_after_it_caught_up_and_votes_only_there",
    ),
    Mutant(
        "promoted-outside-the-view",
        "5.7",
        "an added gateway votes when the view has taken it in",
        [Edit(RosterChanges, "_promote", " and number in self._view_state.members", "")],
        proof=f"{_VOTES}test_a_caught_up_gateway_votes_after_a_view_included_it",
    ),
    Mutant(
        "undecided-rosters-do-not-count",
        "5.7",
        "every ROSTER after the last decided one counts, decided or not",
        [Edit(quorum, "rosters_of", _COUNTING, "[roster] if body.forced else counting")],
        ROSTER,
    ),
    Mutant(
        "last-roster-alone-counts",
        "5.7",
        "the last decided ROSTER counts until the later one is decided",
        [Edit(quorum, "rosters_of", _COUNTING, "[roster]")],
        proof=f"{_VOTES}test_the_last_decided_roster_counts_and_every_later_one",
    ),
    Mutant(
        "blocking-not-counted-again",
        "6",
        "who proves that a damaged position was not decided does so by every ROSTER of the adopted log",
        [Edit(Candidate, "_suffices", "not all(map(rosters.blocks, attempt.choice.blocking))", "False")],
        proof=f"{_VOTES}test_a_proof_of_a_candidate_has_to_hold_by_every_roster_of_the_log_that_it_adopts",
    ),
    Mutant(
        "another-disk-in-a-view",
        "5.7",
        "messages of a view count from the disks with which it began",
        [Edit(Inbound, "on_received", "if not wrong and type(message) in OF_A_VIEW and", "if False and")],
        proof=f"{_OUTCOMES}test_a_vote_of_another_disk_than_the_view_began_with_does_not_count",
    ),
    Mutant(
        "added-again-while-counted",
        "5.7",
        "a removed voter is added again when a majority knows durably that it was removed",
        [Edit(RosterChanges, "order", " and self._is_counted(ask.name)", " and False")],
        proof="tests/unit/core/membership/test_roster_change_report.py::test_a_removed_voter_is_added_again_when_a_majority_knows_that_it_was_removed",
    ),
    Mutant(
        "own-log-names-all",
        "5.7",
        "a gateway that says a higher number than this log has for it is taken by that number",
        [Edit(inbound_peers, "number_of", "claimed > listed", "claimed and not listed")],
        proof="tests/transcripts/test_transcripts.py::test_the_transcript_holds[group_all_renumbered]",
    ),
    Mutant(
        "number-of-another",
        "5.7",
        "no gateway is taken by a number that this log has for another one",
        [Edit(inbound_peers, "number_of", " and claimed not in numbers.values()", "")],
        proof="tests/unit/transport/test_inbound_peers.py::test_no_peer_gets_the_number_of_another_one_or_of_another_log",
    ),
    Mutant(
        "draining-coordinator-changes-the-roster",
        "5.0",
        "a coordinator that leaves orders no ROSTER",
        [Edit(RosterChanges, "_may_order", " and not view_state.draining", "")],
        proof=f"{_OUTCOMES}test_a_coordinator_that_leaves_orders_nothing_new",
    ),
)
