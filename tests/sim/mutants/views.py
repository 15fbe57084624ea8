"""Mutants of view changes and of who may decide (design, section 5)."""

from __future__ import annotations

from tests.sim.mixes import Mix
from tests.sim.mutants.mutant import CRASHES, LOW, MUCH, NETWORK, ROSTER, Mutant
from tests.sim.mutants.patch import Edit
from tests.sim.mutants.scenes import (
    QUIET,
    STALE,
    deaf_coordinator,
    deaf_member,
    genesis_twice,
    late_comer,
    longer_tail,
    roster_outgrown,
    stalled_coordinator,
)
from tests.sim.mutants.scripts import LATE
from tutti_gateway.core.flush import log_choice
from tutti_gateway.core.flush.candidate import Candidate
from tutti_gateway.core.flush.layer import Flush
from tutti_gateway.core.flush.learner_catch_up import Learner
from tutti_gateway.core.flush.log_adoption import LogAdoption
from tutti_gateway.core.flush.log_serving import LogServer
from tutti_gateway.core.membership.layer import Membership
from tutti_gateway.core.membership.roster_change import RosterChanges
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.view.quorum import Rosters
from tutti_gateway.core.view.view_state import ViewState

_MOST = "2 * len(attempt.states) > len(peers.configured)"

VIEWS = (
    Mutant(
        "accepted-by-configured-number",
        "5.4",
        "a member accepts a view if the adopted log gives it the number of a member",
        [Edit(Flush, "_adopted", "elif done and not self._is_member():", "elif False:")],
        proof="tests/transcripts/test_returning.py::"
        "test_a_blank_disk_accepts_no_view_of_which_another_gateway_is_a_member_by_its_configured_number",
    ),
    Mutant(
        "proposed-before-own-promise",
        "5.1",
        "a candidate promises its view durably before it asks others",
        [
            Edit(
                Candidate,
                "campaign",
                "    flush.persist(msgspec",
                "    for member in members:\n"
                "        if member != view_state.me:\n"
                "            self._outbox.send(member, Propose(view, members))\n"
                "    flush.persist(msgspec",
            )
        ],
        quick=True,
    ),
    Mutant(
        "view-id-used-twice",
        "5.1",
        "a view id is above all that were seen, and used for one attempt and one list of members",
        [
            Edit(
                Candidate,
                "_next_view",
                "        hard_state.promised,\n        hard_state.accepted,\n        hard_state.coordinated,\n",
                "        hard_state.accepted,\n",
            ),
            Edit(Candidate, "_next_view", "        self._peers.seen_view(),\n        self.rejected,\n", ""),
        ],
        NETWORK,
    ),
    Mutant(
        "state-before-promise",
        "5.2",
        "a member promises durably before it tells of its log",
        [
            Edit(
                Flush,
                "on_propose",
                "        self.persist(msgspec",
                "        self._outbox.send(sender, msgspec.structs.replace(self.state(), view=message.view))\n"
                "        self.persist(msgspec",
            )
        ],
        quick=True,
    ),
    Mutant(
        "vote-after-propose",
        "5.2",
        "no YES of an old view leaves once a higher one is promised",
        [
            Edit(ViewState, "current", "0 < view == self.promised == self.accepted == self.view", "0 < view == self.view"),
            Edit(Flush, "end_view", "        self._view_state.end_view()\n", "        pass\n"),
        ],
        CRASHES,
    ),
    Mutant(
        "resumed-coordinator",
        "6",
        "a gateway that restarts never coordinates a view that it coordinated before",
        [
            Edit(
                Flush,
                "on_started",
                "        self.machine.on(Step.STARTED)",
                "        self.machine.on(Step.STARTED)\n"
                "        view_state, members = self._view_state, self._window.state.members\n"
                "        accepted = view_state.accepted\n"
                "        mine = 0 < accepted == view_state.promised and coordinator_of(accepted) == view_state.me\n"
                "        if mine and view_state.me in members and self._window.state.view == accepted:\n"
                "            self.install(members)\n"
                "            self.machine.state, view_state.primary = Phase.PRIMARY, True\n"
                "            self._layers.opened(self._window.frontier)\n"
                "            self._layers.primary()",
            )
        ],
        CRASHES,
    ),
    Mutant(
        "majority-of-the-living",
        "5.3",
        "a majority is one of the roster, not of those who are there",
        [
            Edit(
                Candidate,
                "_majority",
                "return peers.rosters.majority(attempt.incarnations)",
                "return 2 * len(attempt.states) > 1 + len(peers.hears())",
            ),
            Edit(Candidate, "_suffices", "return rosters.majority(attempt", "return True or rosters.majority(attempt"),
            Edit(
                Membership,
                "_enough",
                "return self.peers.rosters.majority(self.peers.incarnations(gateways))",
                "return 2 * len(gateways) > 1 + len(self.peers.hears())",
            ),
        ],
        NETWORK,
    ),
    Mutant(
        "half-is-a-majority",
        "5.3",
        "a majority is more than half",
        [
            Edit(
                Rosters,
                "majority",
                "roster.items()) > len(roster)",
                "roster.items()) >= len(roster)",
            )
        ],
        NETWORK.but(members=(4, 2)),
    ),
    Mutant(
        "installed-without-a-majority",
        "5.4",
        "the members of a view are a majority of the roster, all of whom told of their logs",
        [
            Edit(Candidate, "_majority", "return peers.rosters.majority(attempt.incarnations)", "return bool(attempt.states)"),
            Edit(Candidate, "_suffices", "return rosters.majority(attempt", "return True or rosters.majority(attempt"),
        ],
        NETWORK,
    ),
    Mutant(
        "longest-log",
        "5.3",
        "the log with the greatest (accepted view, end) is adopted, not the longest",
        [Edit(log_choice, "greatest", "-states[member].accepted, ", "")],
        STALE.but(script=longer_tail),
    ),
    Mutant(
        "log-of-the-candidate",
        "5.6",
        "RESOLVE chooses a coordinator and never a log: the answers do",
        [
            Edit(Candidate, "_collect", "if choice.end < decided:", "if False:"),
            Edit(
                Candidate,
                "_collect",
                "    attempt.unresolved = not choice.source\n",
                "    own = self._view_state.me\n"
                "    choice = choice._replace(best=own, source=own, end=attempt.states[own].end)\n"
                "    attempt.unresolved = not choice.source\n",
            ),
        ],
        QUIET.but(script=late_comer, latency="wan", rate=0.4),
    ),
    Mutant(
        "older-tail-kept",
        "5.4",
        "what an older view left behind is cut where it differs from the log to install",
        [
            Edit(
                LogAdoption,
                "begin",
                "common(self.extent(), theirs, window.frontier)",
                "Common(max(min(window.end, theirs.end), window.frontier), True)",
            ),
            Edit(LogAdoption, "begin", "self._log.truncate(equal.position)", "pass"),
            Edit(LogAdoption, "done", "        self.end_overwritten(wanted.end)\n", "        pass\n"),
            Edit(LogAdoption, "done", "window.end == wanted.end and wanted.chain in (None, window.chain)", "True"),
        ],
        MUCH,
    ),
    Mutant(
        "cut-at-the-frontier",
        "5.4",
        "a member cuts at the first position that differs: what is behind it may be decided",
        [Edit(LogAdoption, "begin", "common(self.extent(), theirs, window.frontier)", "Common(window.frontier, True)")],
        MUCH,
        quick=True,
    ),
    Mutant(
        "compared-by-length",
        "5.4",
        "logs are compared by views and chain, not by their length",
        [
            Edit(
                LogAdoption,
                "begin",
                "common(self.extent(), theirs, window.frontier)",
                "Common(max(min(window.end, theirs.end), window.frontier), True)",
            ),
            Edit(
                LogAdoption, "done", "window.end == wanted.end and wanted.chain in (None, window.chain)", "window.end == wanted.end"
            ),
        ],
        MUCH,
    ),
    Mutant(
        "install-not-fenced",
        "5.4",
        "an INSTALL is not taken once a higher view is promised",
        [
            Edit(
                Flush,
                "on_install",
                "message.view != view_state.promised\n"
                "        or message.view != self.hard_state.promised\n"
                "        or coordinator_of(message.view) != sender",
                "coordinator_of(message.view) != sender",
            ),
            Edit(Flush, "_accepted", "install is None or install.view != self._view_state.accepted", "install is None"),
        ],
        LATE.but(faults="kill snipe broken leave split cut loss"),
    ),
    Mutant(
        "installed-before-accepted",
        "5.4",
        "a member answers an INSTALL when it has accepted the view durably",
        [
            Edit(
                Flush,
                "_adopted",
                "        self.accept()",
                "        self.accept()\n"
                "        self._outbox.send(coordinator_of(self._view_state.promised), Installed(self._view_state.promised))",
            )
        ],
        quick=True,
    ),
    Mutant(
        "accepted-before-held",
        "4.2",
        "a joiner counts when it holds the log: nobody accepts a view before",
        [
            Edit(
                Flush,
                "_adopted",
                "    elif done:",
                "    else:\n        self.adoption.stop()",
            )
        ],
        MUCH,
    ),
    Mutant(
        "learner-takes-the-undecided",
        "4.2",
        "a learner takes decided frames only",
        [
            Edit(LogServer, "on_fetch", "window.end if message.view else window.frontier", "window.end"),
            Edit(
                LogServer,
                "on_fetch",
                "frames=tuple(frames)))",
                "frames=tuple(frames), source=0 if message.view else view_state.view, stop=frames[-1].position))",
            ),
        ],
        MUCH.but(rate=15.0, sync_us=20_000.0),
    ),
    Mutant(
        "learner-stops-in-a-run",
        "4.2",
        "a learner takes whole decided runs: no stop between a batch and its ABORT",
        [
            Edit(Learner, "on_fetched", "min(message.stop, self._next - 1)", "self._next - 1"),
            Edit(Learner, "durable", " and window.reach(stop) == stop", ""),
            Edit(
                Learner,
                "durable",
                "        self._decide(stop)",
                "        self._window.barriers, kept = [], self._window.barriers\n"
                "        self._decide(stop)\n"
                "        self._window.barriers = kept",
            ),
        ],
        LOW.but(faults="low kill leave cut", latency="wan", pace=1.5, bounds={"FETCH_BYTES": 600}),
    ),
    Mutant(
        "incarnation-ignored",
        "5.7",
        "answers, votes and members count by incarnation: a wiped disk is nobody's voter",
        [
            Edit(Rosters, "majority", "gateways.get(number) == incarnation for", "number in gateways for"),
            Edit(Rosters, "votes", "roster.get(number) == incarnation", "number in roster"),
            Edit(
                Peers, "voter", "return self.rosters.voter(number, self.incarnation(number))", "return number in self.rosters.named"
            ),
        ],
        ROSTER.but(faults="wipe kill power pause", pace=1.5),
    ),
    Mutant(
        "roster-without-a-majority-of-the-new",
        "5.7",
        "a roster changes in a view that holds a majority of the new one",
        [
            Edit(
                RosterChanges, "_objection", "if not new.majority(self._peers.incarnations(self._view_state.members)):", "if False:"
            )
        ],
        ROSTER,
    ),
    Mutant(
        "rosters-not-counted-again",
        "5.7",
        "a candidate counts again with the rosters of the log that it adopted",
        [
            Edit(
                Candidate,
                "_suffices",
                "return rosters.majority(attempt.incarnations) and rosters",
                "return True or rosters.majority(attempt.incarnations) and rosters",
            )
        ],
        Mix(seconds=80, script=roster_outgrown),
    ),
    Mutant(
        "genesis-of-a-majority",
        "5.7",
        "a log begins with all configured members, all of them blank, once",
        [
            Edit(Candidate, "_majority", "set(attempt.states) == {number for number, _, _ in peers.configured}", _MOST),
            Edit(
                Membership,
                "_enough",
                "set(gateways) >= {number for number, _, _ in self.peers.configured}",
                "2 * len(gateways) > len(self.peers.configured)",
            ),
        ],
        Mix(seconds=60, script=genesis_twice),
    ),
    Mutant(
        "claim-without-echoes",
        "5.0",
        "a coordinator says that it coordinates while a majority echoes it",
        [Edit(Membership, "_claim", "return view if self._enough([view_state.me, *hearing]) else 0", "return view")],
        QUIET.but(script=deaf_coordinator),
    ),
    Mutant(
        "claim-without-a-disk",
        "5.0",
        "a coordinator says that it coordinates while its decisions move, its own disk included",
        [Edit(Membership, "suspect", "self._resigned = 2 * self._config.atomic_period_heartbeats", "pass")],
        QUIET.but(script=stalled_coordinator),
    ),
    Mutant(
        "no-pre-vote",
        "5.0",
        "a candidate proposes when a majority misses the coordinator, and who hears it refuses",
        [
            Edit(Membership, "_maybe_campaign", "if self._may_answer(peer)]", "]"),
            Edit(
                Membership,
                "_maybe_campaign",
                "for peer in there if peer.beat is not None and peer.beat.misses]",
                "for peer in there]",
            ),
            Edit(Membership, "leads", "return self.misses or", "return True or"),
        ],
        QUIET.but(script=deaf_member),
    ),
)
