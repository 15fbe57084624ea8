"""Runs of frames between members: splitting runs into messages, and checking payloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tutti import limits
from tutti.data.frames.frame import Frame, check_payload
from tutti.errors import Damaged
from tutti_gateway.core.pending_window import weight


def split_runs(frames: Sequence[Frame], bytes_max: int = limits.MESSAGE_BYTES_MAX) -> Iterator[tuple[Frame, ...]]:
    """Yield the frames as runs that each fit into one message of `bytes_max` bytes, at least one frame each."""
    first = size = 0
    for index, frame in enumerate(frames):
        size += weight(frame)
        # A single frame always makes a run, even if it is larger than `bytes_max`.
        if index > first and (size > bytes_max or index - first >= limits.FRAMES_A_MESSAGE_MAX):
            yield tuple(frames[first:index])
            first, size = index, weight(frame)
    if first < len(frames):
        yield tuple(frames[first:])


def payload_intact(frame: Frame) -> bool:
    """True if progress and body match the header. A frame from another member that does not match counts as missing."""
    try:
        check_payload(frame)
    except Damaged:
        return False
    return True
