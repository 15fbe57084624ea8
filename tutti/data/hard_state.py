"""The hard state of a member: the numbers that it keeps over a restart."""

from __future__ import annotations

import msgspec


class Scalars(msgspec.Struct, frozen=True):
    """The durable numbers of a member (design, section 3): views as u64 ids, 0 before any.

    Attributes:
        promised: no lower view is ever taken again.
        accepted: the view whose log this member has.
        coordinated: the highest view that this member proposed; it never coordinates that one, or a lower one, after a restart.
    """

    promised: int = 0
    accepted: int = 0
    coordinated: int = 0
