"""What was handed to the disk and is not decided, and what came for the lane: how much, and since when clients wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gateway.core import limits
from gateway.data.frame import Frame, Kind
from gateway.data.wire import Answer, Committed, Duplicate

Landed = list[tuple[int, int]]  # (arrived us, frames) of what is decided now


class UnderWay:
    """The undecided frames, in order.

    Attributes:
        decided: last decided position.
        bytes: of the frames behind it.
    """

    def __init__(self) -> None:
        """Nothing is under way."""
        self.decided = 0
        self.bytes = 0
        self._sizes: deque[int] = deque()  # of each frame from the position behind `decided` on
        self._flights: deque[tuple[int, int, int]] = deque()  # (last position, arrived us, frames)

    def __len__(self) -> int:
        """How many frames."""
        return len(self._sizes)

    def wrote(self, frames: Sequence[Frame]) -> None:
        """Frames that follow are written, or were found written."""
        sizes = [frame.size for frame in frames]
        self._sizes.extend(sizes)
        self.bytes += sum(sizes)

    def arrived(self, frames: Sequence[Frame], now_us: int) -> None:
        """Some of these frames that are written hold batches that came in at a time."""
        if any(frame.kind == Kind.BATCH for frame in frames):
            self._flights.append((frames[-1].position, now_us, len(frames)))

    def cut(self, position: int) -> None:
        """What stands behind a position is gone."""
        while self._sizes and self.decided + len(self._sizes) > position:
            self.bytes -= self._sizes.pop()
        while self._flights and self._flights[-1][0] > position:
            self._flights.pop()

    def replaced(self, position: int) -> None:
        """The log is decided up to a position, and holds nothing else."""
        self._sizes.clear()
        self._flights.clear()
        self.bytes, self.decided = 0, position

    def landed(self, frames: Sequence[Frame]) -> Landed:
        """These are decided, which come next; returns since when they were waited for."""
        for _ in frames:
            self.bytes -= self._sizes.popleft()
        self.decided = last = frames[-1].position
        landed = []
        while self._flights and self._flights[0][0] <= last:
            _, arrived_us, count = self._flights.popleft()
            landed.append((arrived_us, count))
        return landed


class Awaited:
    """Since when clients wait for the unordered batches that they sent here, from the first copy of each on."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._since: dict[tuple[int, int, int], int] = {}  # producer, epoch, first sequence -> us

    def __len__(self) -> int:
        """How many batches."""
        return len(self._since)

    def arrived(self, frames: Iterable[Frame], now_us: int) -> None:
        """These were sent to the lane at a time. What was refused stays noted until too many are, since it may come again."""
        since = self._since
        for frame in frames:
            since.setdefault((frame.producer, frame.epoch, frame.first_sequence), now_us)
        while len(since) > limits.LANE_FRAMES_MAX:
            del since[next(iter(since))]

    def answered(self, answers: Iterable[Answer]) -> Landed:
        """Answers to clients that send into the lane; returns since when those waited whose batches are decided."""
        landed = []
        for answer in answers:
            if isinstance(answer, Committed | Duplicate):
                arrived_us = self._since.pop((answer.producer, answer.epoch, answer.first_sequence), None)
                if arrived_us is not None and isinstance(answer, Committed):
                    landed.append((arrived_us, 1))
        return landed
