"""The view state of this member, which *flush* writes and all layers read (protocol/lifecycle, L16)."""

from __future__ import annotations

from tutti.data.hard_state import HardState
from tutti.errors import invariant

#: Reason of a refusal while this gateway is not in a view that decides.
NO_VIEW = "this gateway is not in a view that decides (`tutti members` shows the reason)"
#: Reason of a refusal while the log is empty: the group is not founded yet, or the gateway's directory is new.
NO_LOG = "this gateway has no log yet: the group is founded once all its gateways run; `tutti members` lists the missing ones"


class ViewState:
    """The views that this member has promised, accepted and installed.

    Attributes:
        me: this gateway's number in the roster; 0 before it is known.
        promised, accepted, coordinated: the views in `HardState`. Each value is durable before this object contains it.
        view: id of the installed view; 0 if no view is installed.
        members: numbers of the gateways in the installed view, oldest first.
        others: all members of the installed view except this one.
        coordinator: number of the view's coordinator (the sequencer); 0 if no view is installed.
        primary: True after the view's VIEW frame is decided, so that the view accepts new messages.
        active: True until this member has halted or stopped. An inactive member sends and decides nothing.
        pausing: True if this member keeps client messages for the next view, which should follow the ended view soon.
        draining: True if this member coordinates but is about to leave, so that it orders no new messages.
        closed: (code, reason) if this gateway refuses client messages because it leaves or has halted; else None.
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
        """True if this member accepts messages of `view`: it has installed that view and promised no other one (flush, F11)."""
        return 0 < view == self.promised == self.accepted == self.view

    def durable(self, scalars: HardState) -> None:
        """Update the promised, accepted and coordinated views from hard state that has become durable."""
        # If a promise went back, a lower and a higher view could both decide a frame at the same position.
        invariant(
            scalars.promised >= self.promised and scalars.accepted >= self.accepted and scalars.coordinated >= self.coordinated,
            f"scalars go back: {scalars} after promised {self.promised}, accepted {self.accepted}",
        )
        invariant(scalars.accepted <= scalars.promised, f"a view was accepted that was not promised: {scalars}")
        self.promised, self.accepted, self.coordinated = scalars.promised, scalars.accepted, scalars.coordinated

    def install(self, view: int, members: tuple[int, ...], coordinator: int) -> None:
        """Install a view that is durably promised and accepted.

        The view accepts new messages only after its VIEW frame is decided.
        """
        invariant(view == self.promised == self.accepted, f"view {view} is installed and {self.promised} promised")
        invariant(self.me in members and coordinator in members, f"view {view} of {members} is not this member's")
        self.view, self.members, self.coordinator = view, members, coordinator
        self.others = tuple(member for member in members if member != self.me)
        self.primary = False

    def end_view(self) -> None:
        """End the installed view. This member then neither sends nor accepts votes and decisions of that view (flush, F3)."""
        self.pausing = self.pausing or self.primary  # client messages wait for the next view
        self.view = self.coordinator = 0
        self.members = self.others = ()
        self.primary = self.draining = False
