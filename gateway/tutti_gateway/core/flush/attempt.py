"""State of one attempt at a view: what its candidate knows (protocol/flush, F1)."""

from __future__ import annotations

from tutti_gateway.core.flush.log_choice import Choice
from tutti_gateway.core.protocol.messages import Install, Installed, State


class Attempt:
    """One attempt. A view id is used for one attempt and one list of members.

    Attributes:
        view, proposed: the proposed view, and the gateways that are asked, this one included.
        forced: True if an operator declares that only these gateways remain: they alone count.
        states: the answers, by gateway number, and `incarnations`, the disks that gave them.
        refused: members that refused, with their reasons. `retryable` are those among them that promised nothing higher.
        choice: the log to adopt, once chosen.
        unresolved: True if the answers of a majority do not show which log to adopt, because it is corrupt.
        chosen_us: time of that choice.
        install: the message to the members, once the candidate holds the log.
        installed: members that have accepted.
        beats: heartbeats since the attempt began. `waited` counts them since a majority answered, and `needed` until the last
            answer.
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
        """Note that a member refuses the view. With `permanent` it has promised a higher one."""
        self.refused[member] = reason
        if permanent:
            self.retryable.discard(member)
        else:
            self.retryable.add(member)

    def may_retry(self, beats: int) -> bool:
        """True if a member refused within the last `beats` heartbeats and may have accepted a repeated proposal since."""
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
        """Return members that owe an answer and were silent for `beats` heartbeats."""
        pending = self.install.members if self.install is not None else self.proposed
        done = self.installed if self.install is not None else self.states.keys() | self.refused.keys()
        return [member for member in pending if member not in done and self.beats - self.last_received[member] >= beats]
