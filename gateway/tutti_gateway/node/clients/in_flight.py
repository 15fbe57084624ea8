"""Undecided frames of the ordered log, and unordered batches in flight: their sizes and their arrival times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tutti.data.client_protocol import Answer, Committed, Duplicate
from tutti.data.frames.frame import Frame, Kind, sizes_of
from tutti_gateway.core import limits

ArrivalTimes = list[tuple[int, int]]  # pairs (start time of a latency measurement in us, number of frames that started then)


class _Flight:
    """Batches that arrived at the same time."""

    __slots__ = ("arrived_us", "frames", "last", "token", "voted_us")

    def __init__(self, last: int, token: int, arrived_us: int, frames: int) -> None:
        self.last = last  # position of the last frame
        self.token = token  # token of the Persist that makes the batches durable
        self.arrived_us = arrived_us
        self.frames = frames
        self.voted_us = 0  # 0 until the frames are durable here


class OrderedInFlight:
    """The undecided frames of the ordered log, in order.

    Attributes:
        decided: last decided position.
        frames: number of the frames after `decided`.
        bytes: total size of the frames after `decided`.
    """

    def __init__(self) -> None:
        """Begin with no undecided frames."""
        self.decided = 0
        self.frames = self.bytes = 0
        self._sizes: deque[int] = deque()  # the size of each frame after `decided`
        self._flights: deque[_Flight] = deque()
        self._unvoted: deque[_Flight] = deque()  # flights that are not durable here yet

    @property
    def groups(self) -> int:
        """The number of undecided Persists with batches."""
        return len(self._flights)

    def add(self, frames: Sequence[Frame]) -> None:
        """Add the next frames of the log, which this gateway writes now or found at the start."""
        sizes = sizes_of(frames)
        self._sizes.extend(sizes)
        self.frames += len(sizes)
        self.bytes += sum(sizes)

    def track(self, frames: Sequence[Frame], token: int, now_us: int) -> None:
        """Start the latency measurement of batches that arrived at `now_us` and become durable with `token`."""
        # A Persist without a batch is not measured, because no client waits for its frames.
        if any(frame.kind == Kind.BATCH for frame in frames):
            flight = _Flight(frames[-1].position, token, now_us, len(frames))
            self._flights.append(flight)
            self._unvoted.append(flight)

    def pop_voted(self, token: int, now_us: int) -> ArrivalTimes:
        """Mark all frames up to a token as durable and voted for. Return their arrival times."""
        voted, unvoted = [], self._unvoted
        while unvoted and unvoted[0].token <= token:
            flight = unvoted.popleft()
            flight.voted_us = now_us
            voted.append((flight.arrived_us, flight.frames))
        return voted

    def truncate(self, position: int) -> None:
        """Remove the frames after a position, because the log truncates them."""
        # Undecided bytes shrink too, because the loop does not drain the client port above their limit.
        while self._sizes and self.decided + len(self._sizes) > position:
            self.bytes -= self._sizes.pop()
            self.frames -= 1
        for flights in (self._flights, self._unvoted):
            while flights and flights[-1].last > position:
                flights.pop()

    def reset(self, position: int) -> None:
        """Remove all frames, because a snapshot has replaced the log; the new log is decided up to `position`."""
        self._sizes.clear()
        self._flights.clear()
        self._unvoted.clear()
        self.frames = self.bytes = 0
        self.decided = position

    def pop_decided(self, frames: Sequence[Frame]) -> tuple[ArrivalTimes, ArrivalTimes]:
        """Remove the next frames, because they are decided. Return their arrival times and the times of this gateway's votes."""
        popleft = self._sizes.popleft
        self.bytes -= sum([popleft() for _ in frames])
        self.frames -= len(frames)
        self.decided = last = frames[-1].position
        committed, voted = [], []
        while self._flights and self._flights[0].last <= last:
            flight = self._flights.popleft()
            committed.append((flight.arrived_us, flight.frames))
            if flight.voted_us:  # a frame that the group decides before it is durable here has no vote time
                voted.append((flight.voted_us, flight.frames))
        return committed, voted


class UnorderedInFlight:
    """The arrival time of the first copy of each unordered batch whose client waits for an answer.

    Attributes:
        arrived_us: the time (us), by producer, epoch and first sequence.
    """

    def __init__(self) -> None:
        """Begin without batches."""
        self.arrived_us: dict[tuple[int, int, int], int] = {}

    def track(self, frames: Iterable[Frame], now_us: int) -> None:
        """Store the arrival time of batches for the lane.

        A refused batch keeps its entry, because its client may send it again. Above the limit the oldest entries are dropped.
        """
        since = self.arrived_us
        for frame in frames:
            since.setdefault((frame.producer, frame.epoch, frame.first_sequence), now_us)
        while len(since) > limits.LANE_FRAMES_MAX:
            del since[next(iter(since))]

    def pop_answered(self, answers: Iterable[Answer]) -> ArrivalTimes:
        """Remove the answered batches. Return the arrival times of the batches that were committed."""
        committed = []
        for answer in answers:
            if isinstance(answer, Committed | Duplicate):
                arrived_us = self.arrived_us.pop((answer.producer, answer.epoch, answer.first_sequence), None)
                if arrived_us is not None and isinstance(answer, Committed):
                    committed.append((arrived_us, 1))
        return committed
