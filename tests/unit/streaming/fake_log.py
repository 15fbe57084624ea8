"""A log without a gateway, for tests of the code between Spark and the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import OffsetOutOfRange
from tutti.log.read.micro_batch_ends import tick_end
from tutti.sources.source import Frontier, Range, Topic


class FakeLog:
    """Answers as the test sets; a poll of the frontier waits until it moves, fails or reaches its timeout."""

    def __init__(self, offset: int = 0, log: str = "log-1", start: int = 0) -> None:
        self._changed = threading.Condition()
        self.log, self.start, self.offset = log, start, offset
        self.tick = 0
        self.ticks: list[tuple[int, int, int]] = []  # number, time, offset
        self.failure: Exception | None = None
        self.names: list[str] = []
        self.scan_failure: Exception | None = None
        self.asked: list[tuple[object, ...]] = []
        self.record_bytes = 1
        self.addresses: tuple[Address, ...] = ()
        self.responsive: tuple[Address, ...] = ()

    def set(self, offset: int | None = None, failure: Exception | None = None, log: str | None = None) -> None:
        """Move the frontier, or fail from now on."""
        with self._changed:
            self.offset = self.offset if offset is None else offset
            self.failure = failure
            self.log = self.log if log is None else log
            self._changed.notify_all()

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        self.asked.append(("frontier", beyond, timeout, patience))
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or beyond is None or self.offset > beyond, timeout)
            if self.failure is not None:
                raise self.failure
            return Frontier(self.log, self.start, self.offset, self.offset, 0, self.tick, "primary")

    def check_range(self, start: int, end: int) -> None:
        """Refuse ranges outside of the log, as a log does."""
        if not self.start <= start <= end <= self.offset:
            raise OffsetOutOfRange(f"the range is [{start}, {end}) and the log has [{self.start}, {self.offset})")

    def plan(self, request: ScanRequest, splits: int | None = None, split_bytes: int | None = None) -> list[Range]:
        start, end = request.start, request.end
        self.asked.append(("plan", start, end, request.topics, splits))
        self.check_range(start, end)
        size = -(-(end - start) // (splits or 1))
        return [Range(low, min(low + size, end), size, size * self.record_bytes) for low in range(start, end, size)]

    def offset_for_time(self, time: int | datetime) -> int:
        self.asked.append(("offset_for_time", time))
        return 7

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        self.asked.append(("tick_end", start, limit, end, every))
        self.check_range(start, end)
        return tick_end(lambda low, high: [tick for tick in self.ticks if low <= tick[2] <= high], start, limit, end, every)

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        self.asked.append(("bytes_end", start, end, bytes_max, topics))
        self.check_range(start, end)
        return min(end, start + max(1, bytes_max // self.record_bytes))

    def topics(self, upto: int = 0) -> list[Topic]:
        self.asked.append(("topics", upto))
        return [Topic(name, 1, 1, 0, 0, 0, 0) for name in self.names]

    def readers(self) -> dict[str, int]:
        return {}

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        self.asked.append(("scan", request))
        if self.scan_failure is not None:
            raise self.scan_failure
        offsets = pa.array(range(request.start, request.end), pa.int64())
        schema = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
        yield ScanBatch(pa.record_batch([offsets], schema=schema), request.end)

    def close(self) -> None:
        """Nothing is held."""


def wait_until(happened: object, seconds: float = 10.0) -> None:
    """Wait for `happened()`."""
    assert callable(happened)
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)
