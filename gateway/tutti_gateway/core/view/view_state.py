"""The view state of this member. *flush* writes it, and all layers read it (protocol/lifecycle, L16)."""

from __future__ import annotations

from tutti.data.hard_state import HardState
from tutti.errors import invariant

#: Reason of a refusal while this gateway is in no view that decides.
NO_VIEW = "this gateway is not in a view that decides (`tutti members` shows the reason)"
#: Reason of a refusal while the log is empty: before the group is founded, or with an empty directory.
NO_LOG = "this gateway has no log yet: the group is founded once all its gateways run; `tutti members` lists the missing ones"


class ViewState:
    """The views that this member has promised, accepted and installed.

    Attributes:
        me: this gateway's number in the roster, 0 before it is known.
        promised, accepted, coordinated: as in `HardState`. They are durable before they are set here.
        view: id of the installed view; 0 if there is none.
        members: gateway numbers of the installed view, oldest first.
        others: the members except this one.
        coordinator: number of the view's coordinator (the sequencer); 0 if there is no view.
        primary: True when the view's VIEW frame is decided, so that new messages are accepted.
        active: False when the member has halted or stopped. It then sends and decides nothing.
        pausing: True when the view has ended and a new view is expected. Client messages are kept for the new view.
        draining: True when this coordinator leaves. It then orders no new messages, neither its own nor those of others.
        closed: (code, reason) if no new messages are accepted although the view is primary; else None.
    """

    __slots__ = (
        "accepted",
        "active",
        "closed",
        "coordinated",
        "coordinator",
        "draining",
        "me",
        "members",
        "others",
        "pausing",
        "primary",
        "promised",
        "view",
    )

    def __init__(self) -> None:
        self.me = 0
        self.promised = self.accepted = self.coordinated = 0
        self.view = 0
        self.members: tuple[int, ...] = ()
        self.others: tuple[int, ...] = ()
        self.coordinator = 0
        self.primary = False
        self.pausing = False
        self.draining = False
        self.active = True
        self.closed: tuple[str, str] | None = None

    @property
    def coordinating(self) -> bool:
        """True if this member is the sequencer of the installed view and has promised no other view."""
        return self.coordinator == self.me and self.current(self.view)

    def current(self, view: int) -> bool:
        """True if a message of `view` counts: ORDER, votes and CONFIRM count only while view = promised = accepted (flush,
        F11).
        """
        return 0 < view == self.promised == self.accepted == self.view

    def durable(self, scalars: HardState) -> None:
        """Adopt hard state that has reached the disk. None of its views ever goes back."""
        # If a promise went back, two views could decide the same position.
        invariant(
            scalars.promised >= self.promised and scalars.accepted >= self.accepted and scalars.coordinated >= self.coordinated,
            f"scalars go back: {scalars} after promised {self.promised}, accepted {self.accepted}",
        )
        invariant(scalars.accepted <= scalars.promised, f"a view was accepted that was not promised: {scalars}")
        self.promised, self.accepted, self.coordinated = scalars.promised, scalars.accepted, scalars.coordinated

    def install(self, view: int, members: tuple[int, ...], coordinator: int) -> None:
        """Begin a view that is durably promised and accepted. No new message is decided before the view's VIEW frame."""
        invariant(view == self.promised == self.accepted, f"view {view} is installed and {self.promised} promised")
        invariant(self.me in members and coordinator in members, f"view {view} of {members} is not this member's")
        self.view, self.members, self.coordinator = view, members, coordinator
        self.others = tuple(member for member in members if member != self.me)
        self.primary = False

    def end_view(self) -> None:
        """End the installed view. From now on its YES, CONFIRM and decisions are neither sent nor accepted (protocol/flush, F3)."""
        self.pausing = self.pausing or self.primary  # client messages wait for the next view
        self.view = self.coordinator = 0
        self.members = self.others = ()
        self.primary = self.draining = False
