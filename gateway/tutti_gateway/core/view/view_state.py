"""Where this member stands among views: the one source of truth, read by every layer and written by *flush* (design, 4 and 5)."""

from __future__ import annotations

from tutti.data.hard_state import Scalars
from tutti.errors import invariant

#: Why nothing is ordered here now, for who asks for it.
NO_VIEW = "this gateway is in no view that decides (`tutti members` says why)"
#: The same where nothing is in the log, not even who the gateways are: before the group is founded, or with an empty directory.
NO_LOG = (
    "no log has begun at this gateway: a group is founded when all its gateways are there (`tutti members` says who is missing)"
)


class Standing:
    """Views as this member knows them.

    Attributes:
        me: this gateway's number in the roster, 0 before it is known.
        promised, accepted, coordinated: as in `Scalars`; durable before they are set here.
        view: id of the installed view, 0 while there is none.
        members: gateway numbers of the installed view, oldest first.
        others: the members without this one.
        coordinator: number of the view's coordinator (the sequencer), 0 without a view.
        primary: the view's VIEW frame is decided, so that new messages are taken.
        taking_part: False once the member halted or stopped: it says nothing and decides nothing any more.
        pausing: the view ended and another one is on its way: what clients send is kept for it.
        draining: this coordinator leaves: it orders nothing new, for itself or for others.
        closed: (code, reason) why nothing new is taken although the view is primary, or None.
    """

    __slots__ = (
        "accepted",
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
        "taking_part",
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
        self.taking_part = True
        self.closed: tuple[str, str] | None = None

    @property
    def coordinating(self) -> bool:
        """Whether this member is the sequencer of the installed view, and nothing forbids it to be."""
        return self.coordinator == self.me and self.current(self.view)

    def current(self, view: int) -> bool:
        """Whether a message of `view` counts: ORDER, votes and CONFIRM are taken only while view = promised = accepted."""
        return 0 < view == self.promised == self.accepted == self.view

    def durable(self, scalars: Scalars) -> None:
        """Take over scalars that reached the disk; none of them ever goes back."""
        invariant(
            scalars.promised >= self.promised and scalars.accepted >= self.accepted and scalars.coordinated >= self.coordinated,
            f"scalars go back: {scalars} after promised {self.promised}, accepted {self.accepted}",
        )
        invariant(scalars.accepted <= scalars.promised, f"a view was accepted that was not promised: {scalars}")
        self.promised, self.accepted, self.coordinated = scalars.promised, scalars.accepted, scalars.coordinated

    def install(self, view: int, members: tuple[int, ...], coordinator: int) -> None:
        """Begin the view, which is promised and accepted durably. It decides nothing new before its VIEW frame is decided."""
        invariant(view == self.promised == self.accepted, f"view {view} is installed and {self.promised} promised")
        invariant(self.me in members and coordinator in members, f"view {view} of {members} is not this member's")
        self.view, self.members, self.coordinator = view, members, coordinator
        self.others = tuple(member for member in members if member != self.me)
        self.primary = False

    def end_view(self) -> None:
        """The installed view ends here: no YES, CONFIRM or decision of it leaves, or is taken, any more (design, 5.2)."""
        self.pausing = self.pausing or self.primary
        self.view = self.coordinator = 0
        self.members = self.others = ()
        self.primary = self.draining = False
