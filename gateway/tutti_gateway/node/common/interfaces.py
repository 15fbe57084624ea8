"""What the driver and the disk thread need of what is around them, narrow enough that a test stands in for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tutti.data.client_protocol import Duplicate
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import Scalars
from tutti.log.files.options import Space
from tutti.zmtp.server import Sent
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    LaneHeld,
    Mend,
    MendLane,
    Persist,
    PersistLane,
    ReadLane,
    ReadLog,
    ReadSnapshot,
)
from tutti_gateway.core.protocol.events import Event, LaneLog, Now, TrimProposed
from tutti_gateway.log.upkeep.retention import Held


class Lost(Protocol):
    """What cannot be read."""

    @property
    def first(self) -> int:
        """Its first position."""

    @property
    def last(self) -> int:
        """Its last position."""


class Snapshots(Protocol):
    """What is needed of `tutti_gateway.log.upkeep.snapshot_scrubber.Snapshots`."""

    def news(self) -> list[str]:
        """What became known since it was asked for, a sentence each."""


class Mender(Protocol):
    """What is needed of `tutti_gateway.log.upkeep.scrubber.Mender`."""

    told: str
    found: int
    mended: int
    rounds: int

    @property
    def snapshots(self) -> Snapshots:
        """Looks at the snapshots on the way."""

    @property
    def lost(self) -> Lost | None:
        """What is lost and wanted from another gateway, None if nothing is."""

    @property
    def hurried(self) -> bool:
        """Whether something is to be looked at soon."""

    def look(self) -> bool:
        """Look at the next piece; whether it became known that something is lost, or that nothing is any more."""

    def mend(self, frames: Sequence[Frame]) -> int:
        """Write what was lost; how many of the frames."""

    def suspect(self, position: int) -> None:
        """Look there soon."""


class Stack(Protocol):
    """What the driver needs of `tutti_gateway.core.stack.Stack`."""

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        """Take an event, say what is to be done."""


class DiskQueue(Protocol):
    """What the driver needs of the disk thread."""

    def persist(self, action: Persist) -> None:
        """Queue what is to become durable."""

    def read(self, action: ReadLog | ReadSnapshot) -> None:
        """Queue what is to be read from the log."""

    def mend(self, action: Mend) -> None:
        """Queue what was lost and is to be written again."""

    def deliver(self, action: Deliver) -> None:
        """Queue what is to be indexed."""


class LaneQueue(Protocol):
    """What the driver needs of the lanes' thread."""

    def found(self, lanes: tuple[LaneLog, ...]) -> None:
        """What the stack starts from."""

    def persist(self, action: PersistLane) -> None:
        """Queue what is to become durable."""

    def read(self, action: ReadLane) -> None:
        """Queue what is to be read."""

    def held(self, action: LaneHeld) -> None:
        """Queue word of how far everybody has a lane."""

    def mend(self, action: MendLane) -> None:
        """Queue what was lost and is to be written again."""

    def show(self, run: DeliverUnordered) -> None:
        """Show readers how far the lane is decided."""

    def deliver(self, run: DeliverUnordered) -> None:
        """Queue what is to be indexed."""

    def forget(self, producers: tuple[int, ...]) -> None:
        """Queue word of producers that the log forgot."""


class Ticking(Protocol):
    """A clock."""

    def now(self) -> Now:
        """The time of this moment."""

    def mono_us(self) -> int:
        """The monotonic part of it alone."""


class Clients(Protocol):
    """The sending side of the client port."""

    def send(self, routing: bytes, data: bytes) -> Sent:
        """Send one message, or drop it; never waits."""


class LookUp(Protocol):
    """Takes duplicates whose offsets are wanted."""

    @property
    def waiting(self) -> int:
        """How many wait."""

    def put(self, session: int, duplicates: list[Duplicate]) -> None:
        """Queue some of a session."""


class Trimming(Protocol):
    """What is needed of `tutti_gateway.log.upkeep.retention.Trimming`."""

    def propose(self, now_us: int) -> TrimProposed | None:
        """What retention lets go at this time (us, UTC), None if nothing."""

    @property
    def held(self) -> Held | None:
        """What a named reader holds back."""

    def piece(self, position: int, at: int) -> tuple[int, int, bytes]:
        """Bytes of the state with which the log begins, from one on: up to which position it goes, its size, and the bytes."""


class Log(Protocol):
    """What the disk thread needs of `tutti_gateway.log.writer.LogWriter`."""

    @property
    def mender(self) -> Mender:
        """Looks at what is decided, for damage."""

    def append(self, frames: Sequence[Frame], *, must: bool = False) -> None:
        """Write, not synced; after a lack of room the same frames come again. With `must` all of them take what is reserved."""

    def sync(self) -> None:
        """Make everything appended durable; after a lack of room it comes again."""

    def write_scalars(self, scalars: Scalars) -> None:
        """Make scalars durable; after a lack of room the same come again."""

    def cut(self, position: int) -> None:
        """Take every frame behind the position off the log, durably; after a lack of room the same cut comes again."""

    def read(self, first: int, last: int) -> tuple[tuple[Frame, ...], int]:
        """Durable frames from the first on, as many as are good and go into one answer, and up to where no later ABORT reaches."""

    def decided(self, frames: Sequence[Frame], offsets: Sequence[int], aborted: frozenset[int]) -> None:
        """Index a decided run; after a lack of room the same run comes again."""

    def idle(self) -> bool:
        """Do what is to be done while nothing is queued; True to be called again soon."""

    def space(self) -> Space:
        """How much room there is."""

    @property
    def trimming(self) -> Trimming:
        """Looks at what may go."""

    def replace(self, snapshot: bytes) -> None:
        """Put what a snapshot says in the log's place, durably; after a lack of room the same comes again."""
