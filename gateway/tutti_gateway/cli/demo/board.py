"""What the demo's processes tell each other through a small shared file: when to begin, and how far each airport's record is.

An airport that is ahead of another by more than the allowed skew waits. So whoever reads the committed log knows: after a departure
of minute m no other one follows that is older than m less the skew. That is what a watermark needs, and it holds through crashes.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from tutti_gateway.cli.demo.departures import AIRPORTS

#: Later than any minute of the year: nothing more comes from this airport.
FINISHED = 1 << 40
_SLOT = struct.Struct("<q")
_BEGIN = len(AIRPORTS)


class Board:
    """The shared file, mapped. Each number has one writer; 8 aligned bytes are written at once."""

    def __init__(self, path: Path) -> None:
        """Map it; made when it is not there."""
        with path.open("a+b") as file:
            file.truncate((_BEGIN + 1) * _SLOT.size)
            self._map = mmap.mmap(file.fileno(), (_BEGIN + 1) * _SLOT.size)
        self._numbers = memoryview(self._map).cast("q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._numbers.release()
        self._map.close()

    @property
    def begun_us(self) -> int:
        """When the year began, on the monotonic clock of this machine; 0: it has not yet."""
        return self._numbers[_BEGIN]

    def begin(self, now_us: int) -> None:
        """Let the year begin."""
        self._numbers[_BEGIN] = now_us

    def publish(self, airport: str, minute: int) -> None:
        """Everything of `airport` that was due up to `minute` is committed."""
        self._numbers[AIRPORTS.index(airport)] = minute

    def committed(self) -> int:
        """The minute up to which everything of all airports is committed."""
        return min(self._numbers[: len(AIRPORTS)])

    def committed_elsewhere(self, airport: str) -> int:
        """As `committed`, for the other airports."""
        return min(self._numbers[number] for number, name in enumerate(AIRPORTS) if name != airport)
