"""State of one attempt to form a view, which the candidate of the view keeps (protocol/flush, F1)."""

from __future__ import annotations

from tutti_gateway.core.flush.log_choice import Choice
from tutti_gateway.core.protocol.messages import Install, Installed, State


class Attempt:
    """One attempt to form a view. Each view id is used for only one attempt, with one list of members.

    Attributes:
        view: id of the proposed view.
        proposed: the gateways that get the proposal, this one included.
        forced: True if an operator declares that only the proposed gateways remain, so that no other gateway counts.
        states: the STATE answers to the proposal, by gateway number.
        incarnations: incarnation of the disk from which each STATE came, by gateway number.
        refused: the reason with which a member refused the proposal, by gateway number.
        retryable: members that refused but have not promised a higher view.
        choice: the choice of the log to adopt; None before the choice.
        unresolved: True if a majority has answered, but a corrupt log hides which frames were decided.
        chosen_us: time at which the candidate chose the log.
        install: the INSTALL message; None until the candidate holds the chosen log.
        installed: members that have accepted the view.
        beats: number of heartbeats since the attempt began.
        waited: number of heartbeats since a majority answered.
        needed: number of heartbeats for which the next attempt must at least wait: the value of `waited` at the last answer, plus
            one.
        last_received: value of `beats` at the last message of each member.
    """

    __slots__ = (
        "beats",
        "choice",
        "chosen_us",
        "forced",
        "incarnations",
        "install",
        "installed",
        "last_received",
        "needed",
        "proposed",
        "refused",
        "retryable",
        "states",
        "unresolved",
        "view",
        "waited",
    )

    def __init__(self, view: int, proposed: tuple[int, ...], forced: bool = False) -> None:
        self.view = view
        self.proposed = proposed
        self.forced = forced
        self.states: dict[int, State] = {}
        self.incarnations: dict[int, bytes] = {}
        self.refused: dict[int, str] = {}
        self.retryable: set[int] = set()
        self.choice: Choice | None = None
        self.chosen_us = 0
        self.unresolved = False
        self.install: Install | None = None
        self.installed: set[int] = set()
        self.beats = 0
        self.waited = 0
        self.needed = 0
        self.last_received = dict.fromkeys(proposed, 0)

    def note_progress(self, member: int) -> None:
        """Record that a member has made progress in the attempt, so that it does not count as silent."""
        if member in self.last_received:
            self.last_received[member] = self.beats

    def answer(self, member: int, incarnation: bytes, state: State) -> None:
        """Store the state of a member's log. Only the first answer of a member counts."""
        # A second answer could describe another log than the answer that the choice uses.
        if member in self.proposed and member not in self.states:
            self.states[member] = state
            self.incarnations[member] = incarnation
            self.needed = self.waited + 1
            self.refused.pop(member, None)
            self.retryable.discard(member)

    def refuse(self, member: int, reason: str, permanent: bool) -> None:
        """Store a member's refusal of the view. `permanent` is True if the member has promised a higher view."""
        self.refused[member] = reason
        if permanent:
            self.retryable.discard(member)
        else:
            self.retryable.add(member)

    def may_retry(self, beats: int) -> bool:
        """True if a member refused less than `beats` heartbeats ago, and may still accept a copy of the proposal in transit."""
        return any(self.beats - self.last_received[member] < beats for member in self.retryable)

    @property
    def pending(self) -> set[int]:
        """Members that have neither answered nor refused."""
        return set(self.proposed) - self.states.keys() - self.refused.keys()

    @property
    def answered(self) -> bool:
        """True if all members have answered or refused."""
        return not self.pending

    def accepted(self, member: int, incarnation: bytes, message: Installed) -> None:
        """Count a member's acceptance, if it comes from the disk that answered the proposal."""
        # A gateway with a replaced disk has accepted nothing, although its number is the same (flush, F18).
        if self.install is None or message.view != self.view or self.incarnations.get(member) != incarnation:
            return
        # INSTALL also goes to gateways that are not members of the view. Their acceptances do not count.
        if member in self.install.members:
            self.installed.add(member)

    @property
    def complete(self) -> bool:
        """True if all members have accepted."""
        return self.install is not None and self.installed == set(self.install.members)

    def silent(self, beats: int) -> list[int]:
        """Return the members whose answer is missing and that have been silent for `beats` heartbeats."""
        pending = self.install.members if self.install is not None else self.proposed
        # Before INSTALL, members must answer with the state of their logs, and after INSTALL with their acceptance.
        done = self.installed if self.install is not None else self.states.keys() | self.refused.keys()
        return [member for member in pending if member not in done and self.beats - self.last_received[member] >= beats]
