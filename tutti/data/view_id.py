"""View ids: a view id combines a counter and the number of the gateway that proposes and coordinates the view in one number."""

from __future__ import annotations

_COORDINATOR_BITS = 16  # size of a gateway number, which is a u16 in frames
_COORDINATOR_MAX = (1 << _COORDINATOR_BITS) - 1


def view_of(counter: int, coordinator: int) -> int:
    """Return the view id for a counter and the number of a coordinator. Both start at 1."""
    return counter << _COORDINATOR_BITS | coordinator


def counter_of(view: int) -> int:
    """Return the counter in a view id; 0 for view 0, which means no view."""
    return view >> _COORDINATOR_BITS


def coordinator_of(view: int) -> int:
    """Return the number of the gateway that proposed the view; 0 for view 0, which means no view."""
    return view & _COORDINATOR_MAX


def view_text(view: int) -> str:
    """Return the text of a view id: counter, dot, number of the coordinator."""
    return f"{counter_of(view)}.{coordinator_of(view)}"
