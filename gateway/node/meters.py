"""Counters and histograms of a gateway, cheap enough for the hot path; the reads process turns them into metrics at scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

#: Upper bounds of latency buckets, microseconds.
LATENCY_BOUNDS_US = (
    50,
    100,
    150,
    200,
    300,
    400,
    500,
    700,
    1000,
    1500,
    2000,
    3000,
    5000,
    10_000,
    20_000,
    50_000,
    100_000,
    500_000,
    2_000_000,
)
#: Upper bounds of how many frames one sync made durable.
FRAMES_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384)


class Histogram:
    """Counts of values in fixed buckets (each holds what is at most its bound; the last one all the rest)."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def to_dict(self) -> dict[str, object]:
        """As `{"bounds": [...], "counts": [...], "sum": n}`; one count more than bounds."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum}


class Meters:
    """What the socket thread counts. Only that thread writes; others may read a value that is a moment old."""

    def __init__(self) -> None:
        self.frames = 0
        self.records = 0
        self.bytes = 0
        self.frames_committed = 0
        self.records_committed = 0
        self.frames_unordered = 0  # that committed, in the lanes of all gateways
        self.records_unordered = 0
        self.duplicates = 0
        self.requests = 0
        self.messages_malformed = 0
        self.sends_dropped = 0
        self.connections_refused = 0  # at the client port
        self.refused: Counter[str] = Counter()
        self.commit_us = Histogram(LATENCY_BOUNDS_US)
        self.commit_unordered_us = Histogram(LATENCY_BOUNDS_US)  # of what clients of this gateway sent
        self.steps = 0

    def to_dict(self) -> dict[str, object]:
        """The counters by name."""
        return {
            "ingest": {"frames": self.frames, "records": self.records, "bytes": self.bytes},
            "committed": {"frames": self.frames_committed, "records": self.records_committed},
            "unordered": {
                "frames": self.frames_unordered,
                "records": self.records_unordered,
                "commit_us": self.commit_unordered_us.to_dict(),
            },
            "duplicates": self.duplicates,
            "requests": self.requests,
            "messages_malformed": self.messages_malformed,
            "sends_dropped": self.sends_dropped,
            "connections_refused": self.connections_refused,
            "refused": dict(self.refused),
            "commit_us": self.commit_us.to_dict(),
            "steps": self.steps,
        }


class DiskMeters:
    """What a thread that writes to the disk counts. Only that thread writes."""

    def __init__(self) -> None:
        self.syncs = 0
        self.bytes = 0
        self.sync_us = Histogram(LATENCY_BOUNDS_US)
        self.frames_per_sync = Histogram(FRAMES_BOUNDS)

    def to_dict(self) -> dict[str, object]:
        """The counters by name."""
        return {
            "syncs": self.syncs,
            "bytes": self.bytes,
            "sync_us": self.sync_us.to_dict(),
            "frames_per_sync": self.frames_per_sync.to_dict(),
        }

    def count(self, took_us: int, frames: int, size: int) -> None:
        """So many frames, of `size` bytes, were made durable by one sync."""
        self.sync_us.add(took_us)
        self.frames_per_sync.add(frames)
        self.syncs += 1
        self.bytes += size
