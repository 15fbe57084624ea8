"""Describes the lost end of the gateway's own lane, which other gateways still have, and records it until the end is restored.

The record is `coordinated` in the hard state of the lane: the attempt that is resumed. It is valid until a later attempt is
promised, because frames after the mark may still be missing when the log reaches the mark.
"""

from __future__ import annotations

from tutti.data.frames.bodies import LaneViewBody, decode_body
from tutti.data.frames.frame import Kind
from tutti.data.hard_state import HardState
from tutti.data.lane_name import LaneName
from tutti_gateway.core.protocol.events import LostEnd, Recovered


def lost_end(recovered: Recovered, attempt: int, shown: int) -> LostEnd | None:
    """Return the lost end, or None if nothing is lost or all of it was restored.

    Args:
        attempt: the highest attempt that is known here.
        shown: position that was published as decided; 0 if the log reaches it.
    """
    state, tail, damage, scalars = recovered.state, recovered.tail, recovered.damage, recovered.scalars
    view = LaneViewBody(state.members, state.disks)
    for frame in tail:
        if frame.kind == Kind.VIEW:
            view = decode_body(LaneViewBody, frame.body)
    if damage is not None:
        promised = max(attempt, damage.view)
        behind = shown if shown > damage.last else 0
        return LostEnd(damage.first, damage.last, damage.view, damage.chain, promised, view.members, behind, view.disks)
    if not shown and not 0 < scalars.coordinated == attempt:
        return None
    end = (tail[-1].position, tail[-1].view, tail[-1].header_crc) if tail else (state.position, state.view, state.chain)
    return LostEnd(end[0] + 1, *end, attempt, view.members, shown, view.disks)


def lost_end_hard_state(lost: LostEnd) -> HardState:
    """Return the hard state that records the lost end."""
    return HardState(promised=lost.promised, coordinated=lost.promised)


def lost_end_message(lane: LaneName, lost: LostEnd) -> str:
    """Return the message for the operator."""
    last = max(lost.last, lost.shown)
    what = f"positions {lost.first} to {last}" if lost.first <= last else f"frames after position {lost.last}"
    return (
        f"{what} of this gateway's own lane {lane.text} cannot be read here: the gateway fetches them from other gateways, and "
        "the lane accepts no records until then (`halted` in `lanes` of the status names the reason)"
    )
