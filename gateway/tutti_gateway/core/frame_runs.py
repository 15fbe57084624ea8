"""Runs of frames between members: how many go into one message, and whether a frame came whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tutti import limits
from tutti.data.frames.frame import Frame, check_payload
from tutti.errors import Damaged
from tutti_gateway.core.window import weight


def parts(frames: Sequence[Frame], bytes_max: int = limits.MESSAGE_BYTES_MAX) -> Iterator[tuple[Frame, ...]]:
    """The frames as runs that each fit into one message: `bytes_max` of them, one frame at least."""
    first = size = 0
    for place, frame in enumerate(frames):
        size += weight(frame)
        if place > first and (size > bytes_max or place - first >= limits.FRAMES_A_MESSAGE_MAX):
            yield tuple(frames[first:place])
            first, size = place, weight(frame)
    if first < len(frames):
        yield tuple(frames[first:])


def whole(frame: Frame) -> bool:
    """Whether progress and body are those that the header names; what another member sent counts as missing if they are not."""
    try:
        check_payload(frame)
    except Damaged:
        return False
    return True
