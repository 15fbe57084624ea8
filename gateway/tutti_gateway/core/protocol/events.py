"""Events of a stack: frozen values that can be written as bytes, so that a recorded run can be replayed (protocol/lifecycle,
L1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

import msgspec

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Confirm, Damage, Echo, Forward, LaneBegin, Message, Order, Vote


class Now(NamedTuple):
    """Readings of two clocks at an event, in microseconds: the monotonic `mono_us` for timers, and `wall_us` (UTC) for ticks."""

    mono_us: int
    wall_us: int


class StackConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a stack: times in microseconds, periods in heartbeats, and configurable limits.

    `lanes` is True if the disk stores lanes (protocol/lanes). A gateway without lanes refuses unordered batches.
    """

    heartbeat_us: int = limits.HEARTBEAT_US
    tick_interval_us: int = common_limits.TICK_INTERVAL_US
    atomic_period_heartbeats: int = limits.ATOMIC_PERIOD_HEARTBEATS
    idle_producer_us: int = common_limits.IDLE_PRODUCER_US
    producers_max: int = limits.PRODUCERS_MAX
    topics_max: int = common_limits.TOPICS_MAX
    undecided_bytes_max: int = limits.UNDECIDED_BYTES_MAX
    lanes: bool = False


class Identity(msgspec.Struct, frozen=True):
    """Identity of this gateway: its name, its disk's incarnation (16 bytes), its group, and its configured members.

    `members` maps the name of each configured member to its address HOST:PORT.
    """

    gateway: str
    incarnation: bytes
    group: str
    members: dict[str, str]


Lines = dict[int, tuple[int, int]]  # producer -> (epoch, highest sequence in it)


class LostEnd(msgspec.Struct, frozen=True):
    """Description of the frames that this disk lost at the end of this gateway's own lane (protocol/lanes, U29).

    Attributes:
        first: first position in the lane that the disk lost.
        last: last position in the lane that was certainly durable. If `last` is below `first`, the disk has all frames up to
            `last`, and only later frames may be missing.
        attempt, chain: attempt and chain value of the frame at `last`.
        promised: the last attempt that this gateway may have begun.
        members: members of the attempt to which the frame before `first` belongs, oldest first; empty if unknown.
        shown: last position that clients or readers have seen; 0 if that position is not above `last`.
        disks: incarnations of the disks of `members`, in the same order; empty if the VIEW frame does not contain them.
    """

    first: int
    last: int
    attempt: int
    chain: int
    promised: int
    members: tuple[int, ...] = ()
    shown: int = 0
    disks: tuple[bytes, ...] = ()


class LaneLog(msgspec.Struct, frozen=True, kw_only=True):
    """One lane that the disk held at the start. All its frames are durable.

    Attributes:
        origin, incarnation: number of the lane's origin, and incarnation of the origin's disk.
        attempt: highest attempt that the disk has recorded, if the lane is this gateway's own; otherwise the attempt of the last
            frame; 0 if there is none.
        position, chain, offset: the last delivered position, its chain value, and the offset of the next record.
        tail: the frames after `position`.
        lines: last epoch and sequence of each producer up to `position`, if the lane is this gateway's own.
        halted: reason why this gateway's own lane accepts no frames after a loss of decided frames; empty if it accepts them. If
            `halted` is set, all fields except `origin` and `incarnation` are empty.
        lost: the frames after `tail` that the disk lost from this gateway's own lane, and that other gateways may have; None if
            nothing is lost. If `lost` is set, `attempt` is the attempt of the last frame.
    """

    origin: int
    incarnation: bytes
    attempt: int = 0
    position: int = 0
    chain: int = 0
    offset: int = 0
    tail: tuple[Frame, ...] = ()
    lines: Lines = msgspec.field(default_factory=dict)
    halted: str = ""
    lost: LostEnd | None = None


class Recovered(msgspec.Struct, frozen=True):
    """Content of the disk at the start of a gateway (protocol/log).

    Attributes:
        log: uuid of the log (16 bytes); empty on a blank disk.
        scalars: the hard state, which consists of the promised, accepted and coordinated views.
        state: state of the log up to the watermark, which is the last position that is durably known as decided. The stack may
            change this object.
        tail: durable frames after the watermark, in order, which may be undecided.
        damage: positions after `tail`, up to the vote mark, that were durable but cannot be read; None if there are none.
        lanes: all lanes that the disk stores.
    """

    log: bytes
    scalars: HardState
    state: LogState
    tail: tuple[Frame, ...]
    damage: Damage | None = None
    lanes: tuple[LaneLog, ...] = ()


class Started(msgspec.Struct, frozen=True, tag="Started"):
    """The gateway has started; this event is the first of a run.

    `entropy` is 16 random bytes: the seed of all random numbers in the run, and the uuid of a log that this run founds.
    """

    identity: Identity
    entropy: bytes
    recovered: Recovered


class Submitted(msgspec.Struct, frozen=True, tag="SubmittedTogether"):
    """Clients submit batches, each client in the order in which it sent them. The batches are valid and have no positions yet.

    `sessions` contains, for each frame, the session that sent the frame.
    """

    sessions: tuple[int, ...]
    frames: tuple[Frame, ...]


def submitted(session: int, frames: Iterable[Frame]) -> Submitted:
    """Return the event for batches of one session."""
    frames = tuple(frames)
    return Submitted((session,) * len(frames), frames)


class SubmittedAlone(msgspec.Struct, frozen=True, tag="Submitted"):
    """One client submits batches. Only runs that earlier releases recorded contain this event, which acts like `Submitted`."""

    session: int
    frames: tuple[Frame, ...]


class SubmittedUnordered(msgspec.Struct, frozen=True, tag="SubmittedUnordered"):
    """A client submits batches for this gateway's lane, in the order in which the client sent them.

    A session sends either to the ordered log or to a lane, because a lane has its own sequences, which start with 1 in each epoch.
    """

    session: int
    frames: tuple[Frame, ...]


class EpochAsked(msgspec.Struct, frozen=True, tag="EpochAsked"):
    """A client, whose producer instance is `instance`, asks to begin the epoch `epoch` of the producer `name`."""

    session: int
    request: int
    name: str
    instance: bytes
    epoch: int


class TopicAsked(msgspec.Struct, frozen=True, tag="TopicAsked"):
    """A client asks for the number of a topic, which is registered if its name is new."""

    session: int
    request: int
    name: str


class OffsetsAsked(msgspec.Struct, frozen=True, tag="OffsetsAsked"):
    """A named reader commits its offset. If `back` is False, an offset below the reader's last commit is refused."""

    session: int
    request: int
    reader: str
    offset: int
    back: bool = True


class ForgetAsked(msgspec.Struct, frozen=True, tag="ForgetAsked"):
    """An operator asks to delete the state of the producers `names` on all gateways, through a FORGET frame in the log."""

    session: int
    request: int
    names: tuple[str, ...]


class RosterAsked(msgspec.Struct, frozen=True, tag="RosterAsked"):
    """An operator asks to change one gateway of the roster: `change` is "add", "remove" or "replace" (see `AskRoster`).

    `incarnation` identifies the disk to replace, so a request that is repeated after the replacement changes nothing. An empty
    `incarnation` means the disk in the current roster.
    """

    session: int
    request: int
    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""


class RosterForced(msgspec.Struct, frozen=True, tag="RosterForced"):
    """An operator declares that a majority of the roster is permanently lost, and that only the gateways in `names` remain.

    `names` includes this gateway. Records that only the lost gateways held are lost. The operator must never start the lost
    gateways with their disks again.
    """

    session: int
    request: int
    names: tuple[str, ...]


class ReadIndexAsked(msgspec.Struct, frozen=True, tag="ReadIndexAsked"):
    """A reader asks whether this log holds all frames that the group has decided so far.

    The stack answers with the action `ReadIndex`.
    """

    number: int


class SessionClosed(msgspec.Struct, frozen=True, tag="SessionClosed"):
    """A client's session has ended, so the stack sends no more answers to it, but still orders its submitted batches."""

    session: int


class Received(msgspec.Struct, frozen=True, tag="Received"):
    """A message of another gateway arrived.

    `sender` is the number of the sending gateway. `incarnation` identifies the sender's disk, according to the handshake of the
    connection.
    """

    sender: int
    message: Message
    incarnation: bytes = b""


class LinkChanged(msgspec.Struct, frozen=True, tag="LinkChanged"):
    """The connection to the gateway `peer` has broken (`up` is False) or is restored (`up` is True)."""

    peer: int
    up: bool


class LogRead(msgspec.Struct, frozen=True, tag="LogRead"):
    """Result of the `ReadLog` action with this token: the frames from the requested position on; no frames if they are unreadable.

    `stop` is the last position in `frames` to which the frontier may move: no ABORT between `stop` and the requested `last` voids a
    BATCH up to `stop`. If no position qualifies, `stop` is below the position of the first frame.
    """

    token: int
    frames: tuple[Frame, ...]
    stop: int


class SnapshotRead(msgspec.Struct, frozen=True, tag="SnapshotRead"):
    """Result of the `ReadSnapshot` action with this token: a chunk of the snapshot that holds the log's state up to `position`.

    `size` is the size of the whole snapshot in bytes; 0 if the disk does not have this snapshot, or no longer has it.
    """

    token: int
    position: int
    size: int
    data: bytes


class LogCorrupt(msgspec.Struct, frozen=True, tag="Rotted"):
    """The disk cannot read the decided positions `first` to `last` of the log, so this gateway fetches them from another gateway.

    Each report replaces the previous one, and the disk reports again after each `RepairLog`. `first` 0 means that nothing is lost.
    """

    first: int
    last: int


class Persisted(msgspec.Struct, frozen=True, tag="Persisted"):
    """All Persist actions up to the one with this token are durable."""

    token: int


class LanePersisted(msgspec.Struct, frozen=True, tag="LanePersisted"):
    """All PersistLane actions up to the one with this token are durable."""

    token: int


class LaneRead(msgspec.Struct, frozen=True, tag="LaneRead"):
    """Result of the `ReadLane` action with this token: the frames from the requested position on, if the disk can read them.

    If the frames were trimmed, `begin` describes the position at which the lane now begins on this disk.
    """

    token: int
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneCorrupt(msgspec.Struct, frozen=True, tag="LaneRotted"):
    """The disk cannot read the decided positions `first` to `last` of a lane, so this gateway fetches them from another gateway.

    `first` 0 means that no frame of this lane is lost.
    """

    origin: int
    incarnation: bytes
    first: int
    last: int


class TimeAdvanced(msgspec.Struct, frozen=True, tag="TimeAdvanced"):
    """The timer of the last `SetTimer` action may have expired; the stack compares the clock with its deadlines."""


class SpaceChanged(msgspec.Struct, frozen=True, tag="SpaceChanged"):
    """The disk has become low on free space (`low` is True, and `reason` explains it), or has enough again (`low` is False)."""

    low: bool
    reason: str


class TrimProposed(msgspec.Struct, frozen=True, tag="TrimProposed"):
    """Retention proposes to trim the oldest part of the log.

    `places` holds decided positions at which local segments begin, in order, as (position, offset of the first record). Up to
    position `forced`, the log is trimmed even if a voter does not hold all frames yet. A voter that lacks trimmed frames must
    install a snapshot.
    """

    places: tuple[tuple[int, int], ...]
    forced: int = 0


class WriteFailed(msgspec.Struct, frozen=True, tag="WriteFailed"):
    """A write or an fsync failed, so the member must stop voting at once, but continues to serve reads."""

    reason: str


class Several(msgspec.Struct, frozen=True, tag="Several"):
    """Several events that arrived together, which the stack handles in this order as one step.

    The actions of all these events are executed together (protocol/lifecycle, L4). `events` holds at least two events, and
    `groupable` is True for each.
    """

    events: tuple[Submitted | SubmittedAlone | Received, ...]


class LeaveAsked(msgspec.Struct, frozen=True, tag="LeaveAsked"):
    """An operator asks for an orderly stop: this gateway first completes all work in progress, and then reports `Stopped`."""


Event = (
    Started
    | Submitted
    | SubmittedAlone
    | SubmittedUnordered
    | EpochAsked
    | TopicAsked
    | OffsetsAsked
    | ForgetAsked
    | RosterAsked
    | RosterForced
    | ReadIndexAsked
    | SessionClosed
    | Received
    | LinkChanged
    | LogRead
    | SnapshotRead
    | LogCorrupt
    | Persisted
    | LanePersisted
    | LaneRead
    | LaneCorrupt
    | TimeAdvanced
    | SpaceChanged
    | TrimProposed
    | WriteFailed
    | LeaveAsked
    | Several
)


def groupable(event: object) -> TypeGuard[Submitted | SubmittedAlone | Received]:
    """True if the event may be part of `Several`: a client's batches, or a message by which a view orders and decides batches."""
    return type(event) in (Submitted, SubmittedAlone) or (type(event) is Received and type(event.message) in _ORDINARY)


_ORDINARY = frozenset((Forward, Order, Echo, Vote, Confirm))


def group_events(events: Iterable[Event]) -> list[Event]:
    """Combine events that arrived together into steps, and return one event for each step.

    Consecutive groupable events form one step; every other event is a step by itself.
    """
    steps: list[Event] = []
    run: list[Submitted | SubmittedAlone | Received] = []
    for event in events:
        if groupable(event):
            run.append(event)
            continue
        steps += _one_step(run)
        run = []
        steps.append(event)
    return steps + _one_step(run)


def _one_step(run: list[Submitted | SubmittedAlone | Received]) -> list[Event]:
    return [Several(tuple(run))] if len(run) > 1 else [*run]
