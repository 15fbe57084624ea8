"""Hard state of a member: the view ids that the member must still have after a restart."""

from __future__ import annotations

import msgspec


class HardState(msgspec.Struct, frozen=True):
    """Hard state of a member (design, section 3). Each field is a view id (u64), or 0 before the first view.

    Attributes:
        promised: view that the member has promised to follow. The member rejects all lower views.
        accepted: last view that the member has accepted, whose log it has.
        coordinated: highest view that the member proposed. After a restart, the member never coordinates this view or a lower view.
    """

    promised: int = 0
    accepted: int = 0
    coordinated: int = 0
