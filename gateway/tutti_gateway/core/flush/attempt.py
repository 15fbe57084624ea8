"""State of one attempt at a view: what its candidate knows (protocol/flush, F1)."""

from __future__ import annotations

from tutti_gateway.core.flush.log_choice import Choice
from tutti_gateway.core.protocol.messages import Install, Installed, State


class Attempt:
    """One attempt. Each view id is used for only one attempt, with one list of members.

    Attributes:
        view: the proposed view.
        proposed: the gateways that are asked, this one included.
        forced: True if an operator declares that only these gateways remain. No other gateway counts then.
        states: the answers, by gateway number.
        incarnations: the disk that gave each answer.
        refused: members that refused, with their reasons.
        retryable: members that refused but have not promised a higher view.
        choice: the log to adopt; None until it is chosen.
        unresolved: True if a majority has answered, but corruption hides which log to adopt.
        chosen_us: time of the choice.
        install: the INSTALL message; None until the candidate holds the chosen log.
        installed: members that have accepted.
        beats: number of heartbeats since the attempt began.
        waited: number of heartbeats since a majority answered.
        needed: value of `waited` at the last answer, plus one. The next attempt waits at least that many heartbeats.
        last_received: heartbeat of the last message of each member.
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
        """Note that the member made progress in the attempt."""
        # Only gateways that were asked count.
        if member in self.last_received:
            self.last_received[member] = self.beats

    def answer(self, member: int, incarnation: bytes, state: State) -> None:
        """Note the state of a member's log. Only its first answer counts."""
        # A later answer could describe another log, which the choice has not seen.
        if member in self.proposed and member not in self.states:
            self.states[member] = state
            self.incarnations[member] = incarnation
            self.needed = self.waited + 1  # the next attempt waits at least as long
            self.refused.pop(member, None)
            self.retryable.discard(member)

    def refuse(self, member: int, reason: str, permanent: bool) -> None:
        """Note that a member refuses the view. `permanent` is True if the member has promised a higher view."""
        self.refused[member] = reason
        if permanent:
            self.retryable.discard(member)
        else:
            self.retryable.add(member)

    def may_retry(self, beats: int) -> bool:
        """True if a member refused within the last `beats` heartbeats and may now accept a repeated proposal."""
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
        """Note that a member accepted, with the disk that gave its answer."""
        # Another disk under the same number has accepted nothing (flush, F18).
        if self.install is None or message.view != self.view or self.incarnations.get(member) != incarnation:
            return
        if member in self.install.members:
            self.installed.add(member)

    @property
    def complete(self) -> bool:
        """True if all members have accepted."""
        return self.install is not None and self.installed == set(self.install.members)

    def silent(self, beats: int) -> list[int]:
        """Return the members that owe an answer and have been silent for `beats` heartbeats."""
        pending = self.install.members if self.install is not None else self.proposed
        done = self.installed if self.install is not None else self.states.keys() | self.refused.keys()
        return [member for member in pending if member not in done and self.beats - self.last_received[member] >= beats]
