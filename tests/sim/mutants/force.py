"""Mutants of a roster that is forced (design, section 5, end). What is lost by force is no promise broken, so tests prove them."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import Edit
from tutti_gateway.core.flush.layer import Flush
from tutti_gateway.core.membership.forced_roster import ForcedRoster
from tutti_gateway.core.view import quorum

_UNIT = "tests/unit/core/membership/test_forced_roster.py::"
_TRANSCRIPT = "tests/transcripts/test_transcripts.py::test_the_transcript_holds"

FORCE = (
    Mutant(
        "forced-while-a-majority-is-heard",
        "5",
        "nothing is forced while a majority of the roster is heard",
        [Edit(ForcedRoster, "_forbidden", "    if self._peers.hears_majority():", "    if False:")],
        proof=f"{_UNIT}test_nothing_is_forced_while_a_majority_is_connected_although_no_view_decides",
    ),
    Mutant(
        "forced-view-promised-in-a-majority",
        "5",
        "a member that hears a majority does not promise a forced view",
        [Edit(Flush, "on_propose", "message.forced and peers.hears_majority()", "False")],
        proof=f"{_UNIT}test_a_member_connected_to_a_majority_does_not_promise_a_forced_view",
    ),
    Mutant(
        "forced-by-an-old-log",
        "5",
        "nothing is forced while a gateway is heard that a later roster names",
        [Edit(ForcedRoster, "_forbidden", "    if self._peers.later():", "    if False:")],
        proof=f"{_UNIT}test_nothing_is_forced_by_an_old_log_while_a_gateway_with_a_later_one_is_connected",
    ),
    Mutant(
        "forced-view-promised-beside-a-later-log",
        "5",
        "a member that hears a gateway of a later roster does not promise a forced view without it",
        [Edit(Flush, "on_propose", "message.forced and peers.later().difference(message.members)", "False")],
        proof=f"{_UNIT}test_a_member_connected_to_one_with_a_later_log_does_not_promise_a_forced_view_without_it",
    ),
    Mutant(
        "forced-roster-counts-beside-the-old",
        "5",
        "from a forced roster on none before it counts",
        [Edit(quorum, "rosters_of", "[roster] if body.forced else [*counting, roster]", "[*counting, roster]")],
        proof=f"{_TRANSCRIPT}[group_forced_crash]",
    ),
    Mutant(
        "left-out-goes-on",
        "5",
        "who was left out by force takes no part any more",
        [Edit(ForcedRoster, "is_separated", "    if beat.out and beat.forced > state.forced:", "    if False:")],
        proof=f"{_TRANSCRIPT}[group_forced_apart]",
    ),
)
