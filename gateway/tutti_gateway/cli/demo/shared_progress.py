"""Shared memory file of the demo's processes: the start time, and the progress of each airport.

An airport that is ahead of another by more than the allowed skew waits. The committed log therefore has a bound: after a departure
of minute m, every later departure is at or after m minus the skew. Spark's watermark needs this bound, and it also holds after
crashes.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from tutti_gateway.cli.demo.departures import AIRPORTS

#: Later than any minute of the year: the airport has sent all its departures.
FINISHED = 1 << 40
_SLOT = struct.Struct("<q")
_START = len(AIRPORTS)


class SharedProgress:
    """The mapped shared file. Each number has one writer; aligned 8-byte writes are atomic."""

    def __init__(self, path: Path) -> None:
        """Map the file; create it if it does not exist."""
        with path.open("a+b") as file:
            file.truncate((_START + 1) * _SLOT.size)
            self._map = mmap.mmap(file.fileno(), (_START + 1) * _SLOT.size)
        self._numbers = memoryview(self._map).cast("q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._numbers.release()
        self._map.close()

    @property
    def started_us(self) -> int:
        """Return the start of the simulated year on this machine's monotonic clock, in us; 0 before the start."""
        return self._numbers[_START]

    def begin(self, now_us: int) -> None:
        """Set the start of the simulated year."""
        self._numbers[_START] = now_us

    def publish(self, airport: str, minute: int) -> None:
        """Publish that all departures of `airport` up to `minute` are committed."""
        self._numbers[AIRPORTS.index(airport)] = minute

    def committed(self) -> int:
        """Return the minute up to which the departures of all airports are committed."""
        return min(self._numbers[: len(AIRPORTS)])

    def committed_elsewhere(self, airport: str) -> int:
        """Return the minute up to which the departures of all other airports are committed."""
        return min(self._numbers[number] for number, name in enumerate(AIRPORTS) if name != airport)
