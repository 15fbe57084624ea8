"""Roster changes: one gateway at a time, through the log (protocol/membership, M22 to M24).

An added gateway first enters the roster without a vote, and gets its vote when it has caught up. If a gateway has lost its disk,
the new disk (its incarnation) replaces the old one in the roster when the new disk has caught up. The operator gets the answer
*done* when a majority of the new roster has stored durably that the change is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tutti import limits as common_limits
from tutti.data.client_protocol import Denied, Done
from tutti.data.frames.bodies import RosterBody, Voter, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.member_address import HOST_REMEDY, MemberAddress, parse_member, unreachable_reason
from tutti.errors import UsageError
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import RosterAsked
from tutti_gateway.core.protocol.messages import Asking, AskRoster, Deny
from tutti_gateway.core.view.peers import Peers, has, listed
from tutti_gateway.core.view.quorum import Rosters, rosters_of
from tutti_gateway.core.view.view_state import NO_LOG, NO_VIEW


class Known(Protocol):
    """The part of *flush* that stores on disk up to which position the log is decided."""

    watermark: int

    def persist_frontier(self) -> None:
        """Write the frontier to the disk."""


class Waiting(msgspec.Struct):
    """A roster change that an operator waits for.

    Attributes:
        asked_us: time of the request, by this gateway's monotonic clock.
        fits: True if a ROSTER that was decided after the request contains the change, and no later ROSTER has undone it.
        made: True if the latest decided roster provably contains the change.
        position: position at or after the ROSTER. The operator gets the answer when a majority has stored durably that this
            position is decided.
    """

    session: int
    request: int
    ask: AskRoster
    asked_us: int
    fits: bool = False
    made: bool = False
    position: int = 0
    beats: int = 0


class RosterChanges:
    """Both roles in a roster change: that of the gateway that the operator asks, and that of the coordinator."""

    def __init__(self, context: Context, peers: Peers, known: Known, order_roster: Callable[[RosterBody, int], None]) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._name = context.identity.gateway
        self._peers = peers
        self._known = known
        self._order_roster = order_roster
        self._waiting: list[Waiting] = []
        self._noted = 0  # position of the last ROSTER or a later VIEW; every member must store durably that it is decided
        self._last_roster_changes = 0  # value of `window.roster_changes` at the last check

    # At the gateway that the operator asks

    def on_request(self, event: RosterAsked) -> None:
        """Check an operator's request, and send it to the coordinator or deny it."""
        named = self._named()
        if not named:  # the log has no roster against which to check a request
            self._deny(
                event.session, event.request, "not_primary", f"{NO_LOG}; ask again at this gateway or at another one", retry=True
            )
            return
        incarnation = event.incarnation
        # The incarnation names the old disk, so a repeated request has no effect after the replacement (membership, M23).
        if event.change == "replace" and not incarnation and event.name in named:
            incarnation = named[event.name].incarnation
        ask = AskRoster(event.change, event.name, event.address, incarnation)
        try:
            self._wanted(ask, named)
        except UsageError as error:
            self._deny(event.session, event.request, "roster", str(error), retry=False)
            return
        if not self._view_state.primary:
            reason = f"{NO_VIEW}; ask again at this gateway or at another one"
            if not self._peers.may_decide():
                reason = f"this gateway cannot reach a majority: {self._peers.lacking()}"
            self._deny(event.session, event.request, "not_primary", reason, retry=True)
        elif len(self._waiting) >= limits.ROSTER_CHANGES_MAX:
            self._deny(event.session, event.request, "limit", "too many changes of the roster wait at this gateway", retry=True)
        elif not any((one.session, one.request) == (event.session, event.request) for one in self._waiting):
            waiting = Waiting(event.session, event.request, ask, self._outbox.now.mono_us)
            self._waiting.append(waiting)
            self._send(waiting)

    def _send(self, waiting: Waiting) -> None:
        if self._view_state.primary:
            # From the current frontier, the coordinator sees that the request is not a late copy from before the last ROSTER.
            ask = msgspec.structs.replace(waiting.ask, frontier=self._window.frontier)
            self._outbox.send(self._view_state.coordinator, Asking(self._view_state.view, ask))

    def _deny(self, session: int, request: int, code: str, reason: str, retry: bool) -> None:
        self._outbox.answers(session).append(Denied(request, code, reason, retry))

    def on_deny(self, message: Deny) -> None:
        """Answer the operators whose request the coordinator denies."""
        # Copies of one request contain different frontiers, so requests are compared without the frontier.
        ask = msgspec.structs.replace(message.ask, frontier=0)
        for waiting in [one for one in self._waiting if one.ask == ask and not one.made]:
            self._waiting.remove(waiting)
            self._deny(waiting.session, waiting.request, message.code, message.reason, message.retry)

    def session_closed(self, session: int) -> None:
        """Withdraw the requests of an ended session. A change that the coordinator has already ordered may still be decided."""
        self._waiting = [one for one in self._waiting if one.session != session]

    def decided(self, run: tuple[Frame, ...]) -> None:
        """Compare the ROSTER frames of a decided run with the waiting requests."""
        # Only few runs contain a ROSTER, so the counter saves the scan of all others.
        if self._last_roster_changes != self._window.roster_changes:
            self._last_roster_changes = self._window.roster_changes
            for frame in run:
                if frame.kind == Kind.ROSTER:
                    self._noted = max(self._noted, frame.position)
                    body = decode_body(RosterBody, frame.body)
                    if body.forced:
                        self._withdraw_all()
                    self._follow({voter.name: voter for voter in body.voters})

    def _withdraw_all(self) -> None:
        """Deny all requests, because an operator has forced a roster since. Each request assumed the gateways of the old roster."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            reason = f"an operator forced the roster meanwhile, without the change {one.ask.change} {one.ask.name!r}"
            self._deny(one.session, one.request, "roster", f"{reason}; check `tutti members`, and ask again if needed", retry=False)

    def _follow(self, named: dict[str, Voter]) -> None:
        """Deny each request whose change a ROSTER has made and a later ROSTER has undone.

        Without the denial, this gateway would repeat the request, and the coordinator would make the change a second time.
        """
        for waiting in [one for one in self._waiting if not one.made]:
            fits, name = _fits(waiting.ask, named.get(waiting.ask.name)), waiting.ask.name
            if waiting.fits and not fits:
                self._waiting.remove(waiting)
                turns = "removed and added again" if waiting.ask.change == "remove" else "added and removed again"
                reason = f"gateway {name!r} was {turns} meanwhile; check `tutti members`, and ask again if needed"
                self._deny(waiting.session, waiting.request, "roster", reason, retry=False)
            waiting.fits = fits

    def primary(self) -> None:
        """Require that every member stores durably that the VIEW frame is decided.

        The VIEW frame comes after every earlier ROSTER, even after a ROSTER from before a restart. A member that knows the VIEW as
        decided therefore knows all these rosters as decided.
        """
        # In a group of one, no other gateway depends on the roster.
        if not self._peers.alone:
            self._noted = self._window.frontier

    def _is_made(self, ask: AskRoster, asked_us: int) -> bool:
        """True if the latest decided roster contains the change, even if the change was decided before the request."""
        # While a ROSTER is undecided, a view change may truncate it, so the latest roster is not known.
        if self._window.rosters:
            return False
        # A removed gateway is in no later view and cannot prove that its roster is the latest. Its own removal needs no proof.
        goes = ask.change == "remove" and ask.name == self._name and self._peers.removed
        if not goes and not self._is_latest(asked_us):
            return False
        return _fits(ask, self._named().get(ask.name))

    @property
    def beating(self) -> bool:
        """True if an operator waits for a change, so that heartbeats are needed."""
        return bool(self._waiting)

    def beat(self) -> None:
        """Run one heartbeat: repeat requests, report completed changes, and give a vote to learners that have caught up."""
        if self._known.watermark < self._noted and (self._waiting or not self._peers.alone):
            self._known.persist_frontier()
        for waiting in list(self._waiting):
            waiting.beats += 1
            if not waiting.made and self._is_made(waiting.ask, waiting.asked_us):
                waiting.made, waiting.position = True, self._noted
            # Unless a majority knows the change, a later candidate with an old roster could undo it after the operator's answer.
            if waiting.made and self._is_known(waiting.position):
                self._waiting.remove(waiting)
                self._outbox.answers(waiting.session).append(Done(waiting.request))
            elif waiting.beats > limits.ROSTER_WAIT_HEARTBEATS:
                self._waiting.remove(waiting)
                reason = f"the roster did not change in time: {self._obstacle(waiting)}; ask again"
                self._deny(waiting.session, waiting.request, "busy", reason, retry=True)
            elif not waiting.made and waiting.beats % limits.RESEND_HEARTBEATS == 0:
                self._send(waiting)
        if self._may_order():
            self._promote()

    def _obstacle(self, waiting: Waiting) -> str:
        """Return what a roster change still waits for, for the operator."""
        state, voters = self._window.state, [voter for voter in self._rosters().named.values() if voter.voting]
        if waiting.made:
            beats = {peer.number: peer.beat for peer in self._peers}
            late = [
                voter.name
                for voter in voters
                if voter.number != self._view_state.me
                and ((beat := beats.get(voter.number)) is None or beat.watermark < waiting.position)
            ] or [self._name]
            return f"the change is decided, but {listed(late)} {has(late)} not stored this yet"
        if self._window.rosters:
            silent = [voter.name for voter in voters if not self._peers.fresh(voter.number)]
            return f"the change is ordered, but not decided{f'; not heard of {listed(silent)}' if silent else ''}"
        if not self._view_state.primary:
            return "a view change is in progress" if self._peers.may_decide() else self._peers.lacking()
        return f"the coordinator, {state.gateway_text(self._view_state.coordinator)}, has not ordered the change"

    def _is_latest(self, asked_us: int) -> bool:
        """True if this log provably holds every ROSTER that was decided before `asked_us`.

        Every member of a view holds all frames that the view decides. If a majority answers after `asked_us` and has promised no
        later view, no later view had decided a frame before `asked_us`. Without this proof, a gateway that was just cut off would
        report an old roster.
        """
        view_state = self._view_state
        if not view_state.primary or not view_state.current(view_state.view):
            return False
        beats = [(peer.number, peer.beat) for peer in self._peers if peer.beat is not None]
        stays = [number for number, beat in beats if beat.echo_us > asked_us and beat.promised <= view_state.view]
        return self._peers.rosters.majority(self._peers.incarnations([view_state.me, *stays]))

    def _is_known(self, position: int) -> bool:
        """True if a majority of the roster has stored durably that the position is decided."""
        knows = [peer.number for peer in self._peers if peer.beat is not None and peer.beat.watermark >= position]
        if self._known.watermark >= position:
            knows.append(self._view_state.me)
        return self._rosters().majority(self._peers.incarnations(knows))

    # At the coordinator

    def _may_order(self) -> bool:
        """True if this member coordinates and may order a ROSTER: the VIEW frame and the previous ROSTER are decided."""
        view_state = self._view_state
        return view_state.coordinating and view_state.primary and not view_state.draining and not self._window.rosters

    def _rosters(self) -> Rosters:
        """Return the rosters that count at the current end of the log.

        The rosters in `Peers` may be older until the next heartbeat, and a ROSTER that is based on an older roster would undo the
        last change.
        """
        return rosters_of(self._window.state, self._window.rosters)

    def _named(self) -> dict[str, Voter]:
        """Return the gateways of the last roster, by name."""
        return {voter.name: voter for voter in self._rosters().named.values()}

    def order(self, origin: int, ask: AskRoster) -> None:
        """Order the ROSTER that makes a requested change, or deny the request."""
        if not self._may_order() or ask.frontier < self._noted:
            return  # a late copy may request a change that was undone meanwhile; a gateway that still waits repeats its request
        named = self._named()
        try:
            voters = self._wanted(ask, named)
        except UsageError as error:
            self._outbox.send(origin, Deny(self._view_state.view, ask, "roster", str(error), False))
            return
        if voters is None:
            return  # the log already contains the change, and so the origin gets its answer from the log
        if ask.change == "add" and self._is_counted(ask.name):
            return  # the origin repeats the request until a majority durably knows the gateway's removal
        reason = self._objection(ask, voters)
        if reason:
            self._outbox.send(origin, Deny(self._view_state.view, ask, "roster", reason, True))
        else:
            self._order_voters(voters, origin)

    def _is_counted(self, name: str) -> bool:
        """True if a removed gateway may still count as a voter in the logs of a majority.

        As long as the gateway counts, it must answer under its old number, so no ROSTER may give it a new number.
        """
        return name in self._window.state.removed and not self._is_known(self._noted)

    def _wanted(self, ask: AskRoster, named: dict[str, Voter]) -> list[Voter] | None:
        """Return the roster after the change; None if the change is already made.

        Raises:
            UsageError: the change is invalid.
        """
        voters = list(named.values())
        if ask.change == "add":
            if ask.name in named:
                if named[ask.name].address != ask.address:
                    raise UsageError(
                        f"gateway {ask.name!r} is already in the roster, with address {named[ask.name].address}. If that address "
                        "is wrong, remove the gateway first"
                    )
                return None
            _check_address(ask, voters)
            if len(voters) >= common_limits.ROSTER_MAX:
                raise UsageError(f"the roster already has {len(voters)} gateways, which is the limit: remove a gateway first")
            # A voter that lags would block the group, so an added gateway gets its vote in a later ROSTER (membership, M23).
            return [*voters, Voter(self._window.state.next_gateway, ask.name, b"", ask.address, False)]
        if ask.change not in ("remove", "replace"):
            raise UsageError(f"{ask.change!r} is not a roster change: use add, remove or replace")
        if ask.name not in named:
            if ask.change == "remove":
                return None
            raise UsageError(f"gateway {ask.name!r} is not in the roster, which consists of {', '.join(sorted(named))}")
        if ask.change == "remove":
            if len(voters) == 1:
                raise UsageError(
                    f"gateway {ask.name!r} is the only one in its group: add another gateway first (`tutti members add`), "
                    "or stop this one to end the group"
                )
            return [voter for voter in voters if voter.name != ask.name]
        # If the roster has another incarnation than the request, the disk is already replaced (membership, M23).
        if named[ask.name].incarnation != ask.incarnation:
            return None
        peer = self._peers.get(named[ask.name].number)
        # Until the first message from the new disk, its incarnation is unknown, so `_objection` will deny the request.
        if peer is None or not peer.incarnation:
            return voters
        changed = msgspec.structs.replace(named[ask.name], incarnation=peer.incarnation, voting=True)
        return [changed if voter.name == ask.name else voter for voter in voters]

    def _objection(self, ask: AskRoster, voters: list[Voter]) -> str:
        """Return the reason why the change cannot be made now; empty if it can."""
        new = Rosters([{voter.number: voter for voter in voters}])
        # A roster without a voter could never decide anything again.
        if new.blank:
            return f"gateway {ask.name!r} is the last voter: remove it after another gateway has caught up"
        # The current view must be able to decide the ROSTER and every frame after it (membership, M22).
        if not new.majority(self._peers.incarnations(self._view_state.members)):
            return "the view would not hold a majority of the new roster"
        if ask.change == "replace":
            peer = next((peer for peer in self._peers if peer.name == ask.name), None)
            if peer is None or peer.incarnation == ask.incarnation:
                return f"gateway {ask.name!r} is not heard with a new disk; start it, and ask again"
            if not self._caught_up(peer.number):
                return f"gateway {ask.name!r} has not caught up yet; ask again"
        return ""

    def _caught_up(self, number: int) -> bool:
        peer = self._peers.get(number)
        return peer is not None and peer.beat is not None and self._peers.fresh(number) and peer.beat.ready

    def _promote(self) -> None:
        """Order a ROSTER that gives a vote to an added gateway in the view. A gateway in the view has caught up."""
        named = {voter.number: voter for voter in self._named().values()}
        for number, voter in named.items():
            if not voter.voting and number in self._view_state.members:
                incarnation = self._peers.incarnation(number)
                changed = msgspec.structs.replace(voter, incarnation=incarnation, voting=True)
                voters = [changed if other.number == number else other for other in named.values()]
                if not self._objection(AskRoster("add", voter.name), voters):
                    self._order_voters(voters, 0)
                return

    def _order_voters(self, voters: list[Voter], origin: int) -> None:
        state = self._window.state
        voters = sorted(voters, key=lambda voter: voter.number)
        self._order_roster(RosterBody(state.group, state.log, tuple(voters)), origin)


def _fits(ask: AskRoster, voter: Voter | None) -> bool:
    """True if a roster contains the requested change. `voter` is the roster's entry for the requested name, None if absent."""
    if ask.change == "remove":
        return voter is None
    if ask.change == "add":
        return voter is not None
    return voter is not None and voter.incarnation != ask.incarnation


def _check_address(ask: AskRoster, voters: Sequence[Voter]) -> None:
    """Check that other gateways can reach the new gateway's address, and that no other gateway uses its ports.

    Raises:
        UsageError: the address is malformed, unreachable or in use, or the name is empty.
    """
    try:
        wanted = parse_member(ask.address)
    except UsageError as error:
        raise UsageError(f"cannot add gateway {ask.name!r} with this address: {error}. Give an address HOST:P") from None
    if not ask.name:
        raise UsageError("cannot add a gateway with an empty name: give a name and an address HOST:P")
    if unreachable := unreachable_reason(wanted.clients.host):
        raise UsageError(f"{unreachable}: {HOST_REMEDY}")
    for voter in voters:
        other = _member(voter.address)
        if other is not None and {wanted.clients, wanted.group} & {other.clients, other.group}:
            raise UsageError(f"gateway {voter.name!r} already uses ports of {voter.address}: give {ask.name!r} other ports")


def _member(address: str) -> MemberAddress | None:
    try:
        return parse_member(address)
    except UsageError:
        return None
