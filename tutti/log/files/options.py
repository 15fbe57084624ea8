"""What can be set about a log, and what is said about the room it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tutti import limits

VoteMark = Literal["timely", "strict"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Settings of a log.

    Attributes:
        segment_bytes: size of a segment's file, at most.
        first_segment_bytes: size of the first one; each later one is twice the one before (0: all of them are of `segment_bytes`).
        prepared_segments: how many segments of written zeros are kept ready (0: none, and no helper thread).
        reserved_bytes: size of the file that is given up when the disk is full, so that what is not a BATCH can still be written.
        disk_low_bytes: below so much free space new messages are to be refused.
        vote_mark: "strict" makes the mark durable before a sync is reported done (one more small sync a group), "timely" with the
            next sync or 10 ms later (C5).
        retention_bytes, retention_us: the oldest segments may go when all of them take more than so many bytes, or once what they
            hold was committed so long ago (0: they stay).
        keep_for: named readers; what one of them has not read yet stays, whatever the limits say. Not of lanes, which have none.
        lane: incarnation of the disk whose lane it is (16 bytes), which stands for the log's uuid; empty for the ordered log.
        heals: a lane whose end, where it is damaged, is to be had from others: that of this gateway. (Lanes of others are learned
            again; whether an ordered log heals, its roster tells.)
        snapshot_frames: after so many decided frames a further snapshot is written, which bounds the time that a start takes.
    """

    segment_bytes: int = limits.SEGMENT_BYTES
    first_segment_bytes: int = 0
    prepared_segments: int = limits.PREPARED_SEGMENTS
    reserved_bytes: int = limits.RESERVED_BYTES
    disk_low_bytes: int = limits.DISK_LOW_BYTES
    vote_mark: VoteMark = "timely"
    retention_bytes: int = 0
    retention_us: int = 0
    keep_for: tuple[str, ...] = ()
    lane: bytes = b""
    heals: bool = False
    snapshot_frames: int = limits.SNAPSHOT_FRAMES


class Space(NamedTuple):
    """Room on the log's file system: bytes free, whether that is low, and if so why and what to do."""

    free_bytes: int
    low: bool
    reason: str
