"""Ids of views: a counter, and the number of the gateway that proposed the view and coordinates it, in one number."""

from __future__ import annotations

_COORDINATOR_BITS = 16  # numbers of gateways are u16 in frames
_COORDINATOR_MAX = (1 << _COORDINATOR_BITS) - 1


def view_of(counter: int, coordinator: int) -> int:
    """The id of the view that the gateway proposes with this counter, both from 1."""
    return counter << _COORDINATOR_BITS | coordinator


def counter_of(view: int) -> int:
    """The counter of the view; 0 is none of a view."""
    return view >> _COORDINATOR_BITS


def coordinator_of(view: int) -> int:
    """The number of the gateway that proposed the view; 0 is no gateway."""
    return view & _COORDINATOR_MAX


def view_text(view: int) -> str:
    """A view id as people read it: counter.coordinator."""
    return f"{counter_of(view)}.{coordinator_of(view)}"
