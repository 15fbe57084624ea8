"""Runs of frames between members: splits runs into messages, and checks the payloads of received frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tutti import limits
from tutti.data.frames.frame import Frame, payload_crc
from tutti_gateway.core.pending_window import FRAME_OVERHEAD_BYTES, weight


def split_runs(frames: Sequence[Frame], bytes_max: int = limits.MESSAGE_BYTES_MAX) -> Iterator[tuple[Frame, ...]]:
    """Split the frames into runs that fit into messages of `bytes_max` bytes. Each run has at least one frame."""
    if len(frames) <= limits.FRAMES_A_MESSAGE_MAX:
        size = sum([frame.body_length for frame in frames]) + FRAME_OVERHEAD_BYTES * len(frames)
        if frames and size <= bytes_max:
            yield tuple(frames)
            return
    first = size = 0
    for index, frame in enumerate(frames):
        size += weight(frame)
        # A frame that is larger than `bytes_max` must be sent too, so it forms a separate run.
        if index > first and (size > bytes_max or index - first >= limits.FRAMES_A_MESSAGE_MAX):
            yield tuple(frames[first:index])
            first, size = index, weight(frame)
    if first < len(frames):
        yield tuple(frames[first:])


def payload_intact(frame: Frame) -> bool:
    """True if the progress and the body of the frame match its header."""
    return len(frame.body) == frame.body_length and payload_crc(frame.progress, frame.body) == frame.body_crc
