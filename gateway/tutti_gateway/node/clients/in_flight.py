"""What was handed to the disk and is not decided, and what came for the lane: how much, and since when clients wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tutti.data.client_protocol import Answer, Committed, Duplicate
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits

Landed = list[tuple[int, int]]  # (since us, frames) of what is durable or decided now


class _Flight:
    """Batches that came in at a time."""

    __slots__ = ("arrived_us", "frames", "last", "token", "voted_us")

    def __init__(self, last: int, token: int, arrived_us: int, frames: int) -> None:
        self.last = last  # position
        self.token = token  # with which it is durable
        self.arrived_us = arrived_us
        self.frames = frames
        self.voted_us = 0  # 0: not yet


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
        self._flights: deque[_Flight] = deque()
        self._unvoted: deque[_Flight] = deque()  # those of them that are not durable here

    def __len__(self) -> int:
        """How many frames."""
        return len(self._sizes)

    def wrote(self, frames: Sequence[Frame]) -> None:
        """Frames that follow are written, or were found written."""
        sizes = [frame.size for frame in frames]
        self._sizes.extend(sizes)
        self.bytes += sum(sizes)

    def arrived(self, frames: Sequence[Frame], token: int, now_us: int) -> None:
        """Some of these frames that are written, durable with `token`, hold batches that came in at a time."""
        if any(frame.kind == Kind.BATCH for frame in frames):
            flight = _Flight(frames[-1].position, token, now_us, len(frames))
            self._flights.append(flight)
            self._unvoted.append(flight)

    def voted(self, token: int, now_us: int) -> Landed:
        """What is written with a token up to this one is durable, and voted for; returns since when that was under way."""
        voted, unvoted = [], self._unvoted
        while unvoted and unvoted[0].token <= token:
            flight = unvoted.popleft()
            flight.voted_us = now_us
            voted.append((flight.arrived_us, flight.frames))
        return voted

    def cut(self, position: int) -> None:
        """What stands behind a position is gone."""
        while self._sizes and self.decided + len(self._sizes) > position:
            self.bytes -= self._sizes.pop()
        for flights in (self._flights, self._unvoted):
            while flights and flights[-1].last > position:
                flights.pop()

    def replaced(self, position: int) -> None:
        """The log is decided up to a position, and holds nothing else."""
        self._sizes.clear()
        self._flights.clear()
        self._unvoted.clear()
        self.bytes, self.decided = 0, position

    def landed(self, frames: Sequence[Frame]) -> tuple[Landed, Landed]:
        """These are decided, which come next; returns since when they were waited for, and since when they were voted for here."""
        for _ in frames:
            self.bytes -= self._sizes.popleft()
        self.decided = last = frames[-1].position
        landed, voted = [], []
        while self._flights and self._flights[0].last <= last:
            flight = self._flights.popleft()
            landed.append((flight.arrived_us, flight.frames))
            if flight.voted_us:  # where it is decided without this gateway's vote there is nothing to measure
                voted.append((flight.voted_us, flight.frames))
        return landed, voted


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
