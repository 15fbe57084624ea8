"""One attempt to bring about one view: what a candidate knows of it (design, 5.1, 5.3, 5.5)."""

from __future__ import annotations

from tutti_gateway.core.flush.log_choice import Choice
from tutti_gateway.core.protocol.messages import Install, Installed, State


class Attempt:
    """A view id is used for one attempt and one list of members.

    Attributes:
        view, proposed: what was proposed, and to whom (this member included).
        forced: whether an operator says that these are all that remains: they alone count.
        states: the answers, by gateway number, and `incarnations`, the disks that gave them.
        refused: who does not take it, and why. wavering: those of them who promised nothing higher.
        choice: the log to adopt, once chosen.
        unmended: whether the answers of a majority did not tell which log to adopt: it is damaged.
        chosen_us: when that was.
        install: what the members are told, once the candidate holds the log.
        installed: who has accepted.
        beats: heartbeats since it began, and `waited`, since a majority had answered. needed: what of that the last answer needed.
        heard: beat at which each member last did something for it.
    """

    __slots__ = (
        "beats",
        "choice",
        "chosen_us",
        "forced",
        "heard",
        "incarnations",
        "install",
        "installed",
        "needed",
        "proposed",
        "refused",
        "states",
        "unmended",
        "view",
        "waited",
        "wavering",
    )

    def __init__(self, view: int, proposed: tuple[int, ...], forced: bool = False) -> None:
        self.view = view
        self.proposed = proposed
        self.forced = forced
        self.states: dict[int, State] = {}
        self.incarnations: dict[int, bytes] = {}
        self.refused: dict[int, str] = {}
        self.wavering: set[int] = set()
        self.choice: Choice | None = None
        self.chosen_us = 0
        self.unmended = False
        self.install: Install | None = None
        self.installed: set[int] = set()
        self.beats = 0
        self.waited = 0
        self.needed = 0
        self.heard = dict.fromkeys(proposed, 0)

    def did(self, member: int) -> None:
        """The member did something for it."""
        if member in self.heard:
            self.heard[member] = self.beats

    def answer(self, member: int, incarnation: bytes, state: State) -> None:
        """A member's log is known; only its first answer counts, from a disk that stays the same."""
        if member in self.proposed and member not in self.states:
            self.states[member] = state
            self.incarnations[member] = incarnation
            self.needed = self.waited + 1
            self.refused.pop(member, None)
            self.wavering.discard(member)

    def refuse(self, member: int, reason: str, for_good: bool) -> None:
        """A member does not take the view; it never will if that is `for_good`."""
        self.refused[member] = reason
        if for_good:
            self.wavering.discard(member)
        else:
            self.wavering.add(member)

    def may_waver(self, beats: int) -> bool:
        """Whether somebody who refused so many heartbeats ago, or less, may have taken it since: it was asked more than once."""
        return any(self.beats - self.heard[member] < beats for member in self.wavering)

    @property
    def owing(self) -> set[int]:
        """Who has said nothing yet."""
        return set(self.proposed) - self.states.keys() - self.refused.keys()

    @property
    def answered(self) -> bool:
        """Whether everybody has said something."""
        return not self.owing

    def accepted(self, member: int, incarnation: bytes, message: Installed) -> None:
        """A member accepted, with the disk that answered."""
        if self.install is None or message.view != self.view or self.incarnations.get(member) != incarnation:
            return
        if member in self.install.members:
            self.installed.add(member)

    @property
    def complete(self) -> bool:
        """Whether all members have accepted."""
        return self.install is not None and self.installed == set(self.install.members)

    def silent(self, beats: int) -> list[int]:
        """Members that owe something and did nothing for so many heartbeats."""
        owing = self.install.members if self.install is not None else self.proposed
        done = self.installed if self.install is not None else self.states.keys() | self.refused.keys()
        return [member for member in owing if member not in done and self.beats - self.heard[member] >= beats]
