"""What a start finds lost of the end of the gateway's own lane: others have it, and until it is back that stays written down.

The note is `coordinated` in the scalars of the lane: the attempt that is resumed. It holds as long as no later one is promised, as
what stood behind the mark may be missing still when the log reaches that again.
"""

from __future__ import annotations

from tutti.data.frames.bodies import AttemptBody, decode_body
from tutti.data.frames.frame import Kind
from tutti.data.hard_state import Scalars
from tutti.data.lane_name import LaneName
from tutti_gateway.core.protocol.events import LostEnd, Recovered


def lost_end(recovered: Recovered, attempt: int, shown: int) -> LostEnd | None:
    """What is lost; None if nothing is, or all of it came back.

    Args:
        attempt: the highest one that is known of here.
        shown: up to where it was shown as decided, 0 if that is here.
    """
    state, tail, damage, scalars = recovered.state, recovered.tail, recovered.damage, recovered.scalars
    view = AttemptBody(state.members, state.disks)
    for frame in tail:
        if frame.kind == Kind.VIEW:
            view = decode_body(AttemptBody, frame.body)
    if damage is not None:
        promised = max(attempt, damage.view)
        behind = shown if shown > damage.last else 0
        return LostEnd(damage.first, damage.last, damage.view, damage.chain, promised, view.members, behind, view.disks)
    if not shown and not 0 < scalars.coordinated == attempt:
        return None
    end = (tail[-1].position, tail[-1].view, tail[-1].header_crc) if tail else (state.position, state.view, state.chain)
    return LostEnd(end[0] + 1, *end, attempt, view.members, shown, view.disks)


def note_of(lost: LostEnd) -> Scalars:
    """What the scalars say until all of it is back."""
    return Scalars(promised=lost.promised, coordinated=lost.promised)


def told_of(lane: LaneName, lost: LostEnd) -> str:
    """For the operator."""
    last = max(lost.last, lost.shown)
    what = f"positions {lost.first} to {last}" if lost.first <= last else f"what stood behind position {lost.last}"
    return (
        f"of this gateway's own lane {lane.text} {what} cannot be read here: the other gateways are asked for it, and the lane "
        "takes nothing before it is here again (`halted` in `lanes` of the status says what it waits for)"
    )
