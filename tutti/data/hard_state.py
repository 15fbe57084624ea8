"""Hard state of a member: the view ids that must survive a restart."""

from __future__ import annotations

import msgspec


class HardState(msgspec.Struct, frozen=True):
    """Hard state of a member (design, section 3). Each field is a view id (u64), or 0 before the first view.

    Attributes:
        promised: view that the member has promised to follow; the member rejects all lower views.
        accepted: the view whose log this member has.
        coordinated: highest view that this member proposed; after a restart, the member never coordinates this view or a lower one.
    """

    promised: int = 0
    accepted: int = 0
    coordinated: int = 0
