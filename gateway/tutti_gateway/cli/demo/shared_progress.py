"""Shared memory of the demo's processes: a mapped file with the start time and the progress of each airport.

An airport waits if it is ahead of another airport by more than the allowed skew. Therefore the log is nearly in the order of
scheduled times: after a departure in the log, no later record is earlier than this departure by more than the skew. Spark's
watermark relies on this limit, which also holds after crashes.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from tutti_gateway.cli.demo.departures import AIRPORTS

#: Progress of an airport that has sent all its departures. The value is higher than the number of minutes in a year.
FINISHED = 1 << 40
_SLOT = struct.Struct("<q")
_START = len(AIRPORTS)


class SharedProgress:
    """The mapped file, which needs no lock, because each number has one writer and aligned 8-byte writes are atomic."""

    def __init__(self, path: Path) -> None:
        """Map the file at `path` into memory. A missing file is created."""
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
        """Return the monotonic time (us) at which the simulated year started; 0 before the start."""
        return self._numbers[_START]

    def begin(self, now_us: int) -> None:
        """Start the simulated year at the monotonic time `now_us`."""
        self._numbers[_START] = now_us

    def publish(self, airport: str, minute: int) -> None:
        """Publish to the other airports that all departures of `airport` up to `minute` are committed."""
        self._numbers[AIRPORTS.index(airport)] = minute

    def committed(self) -> int:
        """Return the minute up to which every airport has committed its departures."""
        return min(self._numbers[: len(AIRPORTS)])

    def committed_elsewhere(self, airport: str) -> int:
        """Return the minute up to which every airport except `airport` has committed its departures."""
        return min(self._numbers[number] for number, name in enumerate(AIRPORTS) if name != airport)
