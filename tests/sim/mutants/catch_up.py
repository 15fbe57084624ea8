"""Mutants of who gives frames to whom, and of what promises and refusals say (design, 4.2, 5.2 and 5.3)."""

from __future__ import annotations

from tests.sim.mutants.mutant import MUCH, Mutant
from tests.sim.mutants.patch import Edit
from tutti_gateway.core.flush.candidate import Candidate
from tutti_gateway.core.flush.layer import Flush
from tutti_gateway.core.flush.learner_catch_up import Learner
from tutti_gateway.core.flush.log_adoption import LogAdoption
from tutti_gateway.core.flush.log_serving import LogServer
from tutti_gateway.core.view.peers import Peers

_SERVING = "tests/unit/core/flush/test_log_serving.py::"
_CANDIDATES = "tests/unit/core/flush/test_candidate.py::"

CATCH_UP = (
    Mutant(
        "learner-asks-an-old-view",
        "4.2",
        "a learner asks a member of a view above its accepted one",
        [Edit(Learner, "_choose_source", "and peer.beat.view > view_state.accepted", "and peer.beat.view > 0")],
        proof=f"{_SERVING}test_a_learner_asks_only_a_member_of_a_view_above_its_accepted_one",
    ),
    Mutant(
        "learner-takes-of-an-old-view",
        "4.2",
        "a learner takes frames of a view above its accepted one",
        [Edit(Learner, "on_fetched", " or message.source <= self._view_state.accepted", "")],
        proof=f"{_SERVING}test_a_learner_ignores_views_not_above_its_accepted_one",
    ),
    Mutant(
        "learner-takes-a-state-of-an-old-view",
        "4.2",
        "a learner takes the state of a view above its accepted one",
        [Edit(Learner, "on_snapshot", " or message.source <= self._view_state.accepted", "")],
        proof=f"{_SERVING}test_a_learner_accepts_no_state_of_a_view_not_above_its_accepted_one",
    ),
    Mutant(
        "learner-of-an-old-view",
        "4.2",
        "a learner has all that its accepted view holds, and takes only what a view above it decided",
        [
            Edit(Learner, "_choose_source", "and peer.beat.view > view_state.accepted", "and peer.beat.view > 0"),
            Edit(Learner, "on_fetched", " or message.source <= self._view_state.accepted", ""),
            Edit(Learner, "on_snapshot", " or message.source <= self._view_state.accepted", ""),
        ],
        proof="tests/transcripts/test_transcripts.py::test_the_transcript_holds[group_damaged_part]",
    ),
    Mutant(
        "serves-without-its-promise",
        "5.3",
        "a source serves a view change while it promises that view",
        [Edit(LogServer, "_serves", "view == view_state.promised if view", "True if view")],
        proof=f"{_SERVING}test_a_view_change_is_refused_once_a_higher_view_is_promised",
    ),
    Mutant(
        "serves-learners-in-no-view",
        "4.2",
        "a source serves learners while its view stands",
        [Edit(LogServer, "_serves", "else view_state.current(view_state.view)", "else True")],
        proof=f"{_SERVING}test_a_learner_is_not_served_by_a_gateway_in_no_view",
    ),
    Mutant(
        "adopted-without-the-announced-chain",
        "5.3",
        "a log is adopted when it has the chain value that was announced",
        [
            Edit(
                LogAdoption, "done", "window.end == wanted.end and wanted.chain in (None, window.chain)", "window.end == wanted.end"
            )
        ],
        proof="tests/unit/core/flush/test_log_adoption.py::test_a_log_is_the_adopted_one_when_its_chain_value_is_the_announced_one",
    ),
    Mutant(
        "promised-again-below",
        "5.2",
        "a member promises no view below the one that it promised",
        [
            Edit(
                Flush,
                "on_propose",
                "message.view < self.hard_state.promised:",
                "message.view < self.hard_state.promised - (1 << 40):",
            )
        ],
        MUCH,
        quick=True,
    ),
    Mutant(
        "refusal-names-no-view",
        "5.2",
        "a candidate goes above the view that a refusal names",
        [Edit(Candidate, "on_reject", "self.rejected = max(self.rejected, message.promised)", "pass")],
        proof=f"{_CANDIDATES}test_the_next_view_is_above_the_one_in_a_refusal",
    ),
    Mutant(
        "heartbeat-names-no-view",
        "5.1",
        "a candidate goes above the views that heartbeats name",
        [Edit(Peers, "seen_view", "max(peer.beat.promised, peer.beat.view, peer.beat.claim)", "0")],
        proof=f"{_CANDIDATES}test_the_next_view_is_above_the_one_in_a_heartbeat",
    ),
)
