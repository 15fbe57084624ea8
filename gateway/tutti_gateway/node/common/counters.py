"""Counters and histograms of a gateway, cheap enough for the hot path.

The reads process turns the counters into metrics at each Prometheus scrape.
"""

from __future__ import annotations

from collections import Counter

from tutti.data.histograms import LATENCY_BOUNDS_US, Histogram

#: Upper bounds of the histogram of frames that one sync makes durable.
FRAMES_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384)


class GatewayCounters:
    """Counters of the socket thread. Only that thread writes them. Other threads may read slightly older values."""

    def __init__(self) -> None:
        self.frames = 0
        self.frames_alone = 0  # those of `frames` that were one plain batch in a message
        self.records = 0
        self.bytes = 0
        self.frames_committed = 0
        self.records_committed = 0
        self.frames_unordered = 0  # frames committed in the lanes of all gateways
        self.records_unordered = 0
        self.duplicates = 0
        self.requests = 0
        self.messages_malformed = 0
        self.sends_dropped = 0
        self.connections_refused = 0  # connections refused at the client port
        self.refused: Counter[str] = Counter()
        self.commit_us = Histogram(LATENCY_BOUNDS_US)
        self.vote_us = Histogram(LATENCY_BOUNDS_US)
        self.decide_us = Histogram(LATENCY_BOUNDS_US)
        self.commit_unordered_us = Histogram(LATENCY_BOUNDS_US)  # commit latency of unordered batches from clients of this gateway
        self.views = 0  # views installed since the start
        self.steps = 0

    def to_dict(self) -> dict[str, object]:
        """Return the counters by name."""
        return {
            "ingest": {
                "frames": self.frames,
                "frames_alone": self.frames_alone,
                "records": self.records,
                "bytes": self.bytes,
            },
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
            "vote_us": self.vote_us.to_dict(),
            "decide_us": self.decide_us.to_dict(),
            "views": self.views,
            "steps": self.steps,
        }


class DiskCounters:
    """Counters of a thread that writes to the disk. Only that thread writes them."""

    def __init__(self) -> None:
        self.syncs = 0
        self.bytes = 0
        self.sync_us = Histogram(LATENCY_BOUNDS_US)
        self.frames_per_sync = Histogram(FRAMES_BOUNDS)

    def to_dict(self) -> dict[str, object]:
        """Return the counters by name."""
        return {
            "syncs": self.syncs,
            "bytes": self.bytes,
            "sync_us": self.sync_us.to_dict(),
            "frames_per_sync": self.frames_per_sync.to_dict(),
        }

    def count(self, took_us: int, frames: int, size: int) -> None:
        """Count one sync, which took `took_us` and made `frames` frames durable, `size` bytes in total."""
        self.sync_us.add(took_us)
        self.frames_per_sync.add(frames)
        self.syncs += 1
        self.bytes += size
