"""Settings of a log, and the report of its free disk space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tutti import limits

VoteMarkMode = Literal["timely", "strict"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Settings of a log.

    Attributes:
        segment_bytes: maximum size of a segment file.
        first_segment_bytes: size of the first segment; each later segment is twice as large as the previous one, up to
            `segment_bytes`. 0: all segments have `segment_bytes`.
        prepared_segments: number of zero-filled segments to keep ready. With 0, no thread prepares segments.
        reserved_bytes: size of the reserve file. On a full disk, its space is used for frames other than BATCH.
        disk_low_bytes: free space below which new messages must be refused.
        vote_mark: with "strict", the mark becomes durable before a sync is reported as done, which needs a second small sync. With
            "timely", the mark becomes durable with the next sync, or 10 ms later (C5).
        retention_bytes, retention_us: total bytes and age of records above which the oldest segments are removed (0: no limit).
        keep_for: named readers whose unread records stay regardless of the limits. This option does not apply to lanes.
        lane: incarnation of the disk that owns the lane (16 bytes), which is also the log's uuid; empty for the ordered log.
        peers_can_repair: True for this gateway's own lane, because other gateways may have the frames of a corrupt end. The option
            is False for the ordered log, whose roster answers this question, and for lanes of other gateways, which are fetched
            again if they are corrupt.
        snapshot_frames: number of decided frames between two snapshots within a segment. A lower number makes starts faster.
    """

    segment_bytes: int = limits.SEGMENT_BYTES
    first_segment_bytes: int = 0
    prepared_segments: int = limits.PREPARED_SEGMENTS
    reserved_bytes: int = limits.RESERVED_BYTES
    disk_low_bytes: int = limits.DISK_LOW_BYTES
    vote_mark: VoteMarkMode = "timely"
    retention_bytes: int = 0
    retention_us: int = 0
    keep_for: tuple[str, ...] = ()
    lane: bytes = b""
    peers_can_repair: bool = False
    snapshot_frames: int = limits.SNAPSHOT_FRAMES


class FreeSpace(NamedTuple):
    """Free space of the log's file system.

    Attributes:
        free_bytes: number of free bytes in the file system.
        low: True if new records must be refused because the free space is too small.
        reason: text that says why the space is low and what to do; empty if the space is not low.
    """

    free_bytes: int
    low: bool
    reason: str
