"""Makes lanes for tests: frames as an origin would place them, and the actions that a stack would want."""

from __future__ import annotations

import time
from pathlib import Path

from tests.unit.node.fakes import batch_frame
from tutti.data.frames.bodies import LaneViewBody, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.lane_name import LaneName
from tutti.log.files.data_directory import DataDirectory, Identity
from tutti.log.files.layout import FORMAT_VERSION, FRAMES_AT, segment_path
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane
from tutti_gateway.core.protocol.events import LaneLog
from tutti_gateway.log.lanes.lane_logs import LaneLogs

SHORT = LogOptions(retention_bytes=96 << 10)
OWN = LaneName(1, bytes(range(16)))
OTHER = LaneName(2, bytes(range(16, 32)))


class Owner(DataDirectory):
    """A gateway's directory without its lock and its file; `refreshed` counts the promises and votes of its lanes."""

    def __init__(self, path: str, incarnation: bytes = OWN.incarnation) -> None:
        super().__init__(path, Identity(FORMAT_VERSION, "g1", "test", incarnation.hex()), -1, Storage())
        self.refreshed = 0

    def refresh_identity(self, after_us: int) -> None:
        self.refreshed += 1

    def refresh_if_stale(self, after_us: int) -> None:
        """The tests leave the identity as it is."""


class LaneHistory:
    """The frames of one lane in order. `frames[i]` has position i + 1."""

    def __init__(self, lane: LaneName = OTHER) -> None:
        self.lane = lane
        self.frames: list[Frame] = []
        self.attempt = 0
        self.sequences: dict[int, int] = {}

    def _add(self, frame: Frame) -> Frame:
        frame.origin = self.lane.origin
        frame.stamp(self.attempt, len(self.frames) + 1, self.frames[-1].header_crc if self.frames else 0)
        self.frames.append(frame)
        return frame

    def view(self, disks: tuple[bytes, ...] = ()) -> Frame:
        """An attempt begins."""
        self.attempt += 1
        return self._add(Frame(Kind.VIEW, encode_body(LaneViewBody((1, 2, 3), disks))))

    def batch(self, *values: bytes, producer: int = 1, topic: int = 1) -> Frame:
        """Records of a producer."""
        sequence = self.sequences.get(producer, 0) + 1
        self.sequences[producer] = sequence + len(values) - 1
        return self._add(batch_frame(values, producer=producer, sequence=sequence, topic=topic))

    def offset(self, position: int) -> int:
        """Of the next record behind a position."""
        return sum(frame.count for frame in self.frames[:position])

    def write(self, first: int, last: int, *, cut: int | None = None, attempt: int | None = None) -> PersistLane:
        """The action that writes positions `first` to `last`."""
        return PersistLane(1, *self.lane, tuple(self.frames[first - 1 : last]), attempt, cut)

    def deliver(self, first: int, last: int) -> DeliverUnordered:
        """The action that hands them out."""
        return DeliverUnordered(*self.lane, self.offset(first - 1), tuple(self.frames[first - 1 : last]))


def opened(
    path: Path, storage: Storage | None = None, incarnation: bytes = OWN.incarnation
) -> tuple[LaneLogs, dict[LaneName, LaneLog]]:
    """The lanes of a directory, and what a start found of each."""
    path.mkdir(exist_ok=True)
    logs = LaneLogs(Owner(str(path), incarnation), storage=storage)
    return logs, {LaneName(log.origin, log.incarnation): log for log in logs.start()}


def written(path: Path, history: LaneHistory, decided: int) -> None:
    """Write a whole lane, decided up to a position, in a run of its own."""
    logs, _ = opened(path)
    last = len(history.frames)
    own = history.lane.incarnation == OWN.incarnation
    logs.persist(history.write(1, last, attempt=history.attempt if own else None))
    logs.sync()
    if decided:
        logs.frontier(history.lane, decided, history.offset(decided))
        logs.decided(history.deliver(1, decided))
    logs.close()


def sample(lane: LaneName = OTHER, batches: int = 10) -> LaneHistory:
    """A lane with an attempt and some batches of two producers."""
    history = LaneHistory(lane)
    history.view()
    for number in range(batches):
        history.batch(b"a%d" % number, b"b%d" % number, producer=1 + number % 2)
    return history


def file_position(history: LaneHistory, position: int) -> int:
    """File position of a frame in the first segment."""
    return FRAMES_AT + sum(frame.size for frame in history.frames[: position - 1])


def rot(path: Path, history: LaneHistory, position: int, at: int = 100) -> None:
    """Change bytes of a frame from its byte `at` on: of the body, or of the header below 96."""
    with open(segment_path(str(path), 1), "r+b") as file:
        file.seek(file_position(history, position) + at)
        file.write(b"\xff\xff\xff")


def long(lane: LaneName) -> LaneHistory:
    """A lane of some segments."""
    history = LaneHistory(lane)
    history.view()
    for number in range(200):
        history.batch(b"%d" % number * 400, producer=1 + number % 2)
    return history


def begun(path: Path, options: LogOptions = SHORT, storage: Storage | None = None) -> LaneLogs:
    """Return the started lanes of a directory."""
    logs = LaneLogs(Owner(str(path)), options, storage)
    logs.start()
    return logs


def kept(
    path: Path, history: LaneHistory, options: LogOptions = SHORT, held: int | None = None, storage: Storage | None = None
) -> LaneLogs:
    """Write and decide a lane that every gateway has up to `held`, and apply retention."""
    logs = begun(path, options, storage)
    last, own = len(history.frames), history.lane == OWN
    for first in range(1, last + 1, 20):
        until = min(last, first + 19)
        logs.persist(history.write(first, until, attempt=1 if own and first == 1 else None))
        logs.sync()
        logs.frontier(history.lane, until, history.offset(until))
        logs.decided(history.deliver(first, until))
    logs.set_replicated(LaneHeld(*history.lane, last if held is None else held))
    idle(logs)
    return logs


def idle(logs: LaneLogs) -> None:
    """Do the idle work of the lanes until none is left."""
    by = time.monotonic() + 60
    while logs.idle():
        assert time.monotonic() < by, "it is never at rest"
