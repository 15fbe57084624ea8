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
    """The two clocks at an event, in microseconds: `mono_us`, which never goes back, for timers, and `wall_us` (UTC) for ticks."""

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
    """The lost end of this disk's own lane (protocol/lanes, U29).

    Attributes:
        first: the first lost position.
        last: the last position that was certainly durable. If `last` is below `first`, the disk has all frames up to `last`, and
            only later frames may be missing.
        attempt, chain: attempt and chain value of the frame at `last`.
        promised: the last attempt that this gateway may have begun.
        members: members of the attempt to which the frame before `first` belongs, oldest first; empty if unknown.
        shown: last position that clients or readers have seen; 0 if that position is not above `last`.
        disks: disks of `members`, in the same order; empty if the VIEW does not name them.
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
        attempt: in this gateway's own lane, the highest attempt ever written; in another lane, the attempt of the last frame; 0
            without one.
        position, chain, offset: the last delivered position, its chain value, and the offset of the next record.
        tail: the frames after `position`.
        lines: in this gateway's own lane, the last epoch and sequence of each producer up to `position`.
        halted: in this gateway's own lane, the reason why the lane accepts no frames, because decided frames are lost. All fields
            except `origin` and `incarnation` are then empty.
        lost: in this gateway's own lane, the lost range after the tail, which other gateways may have; None if nothing is lost. If
            a range is lost, `attempt` is the attempt of the last frame.
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
        scalars: hard state: the promised, accepted and coordinated views.
        state: the log up to the watermark, which is the last position that is durably known as decided; the stack may change this
            object.
        tail: durable frames after the watermark, in order, which may be undecided.
        damage: positions after `tail`, up to the vote mark, that were durable but cannot be read; None if there are none.
        lanes: the lanes on the disk.
    """

    log: bytes
    scalars: HardState
    state: LogState
    tail: tuple[Frame, ...]
    damage: Damage | None = None
    lanes: tuple[LaneLog, ...] = ()


class Started(msgspec.Struct, frozen=True, tag="Started"):
    """The first event of a run. `entropy` is 16 random bytes: the seed of the run, and the uuid of a log that begins with it."""

    identity: Identity
    entropy: bytes
    recovered: Recovered


class Submitted(msgspec.Struct, frozen=True, tag="Submitted"):
    """A client submits batches: validated, without positions, and in the order in which the client sent them."""

    session: int
    frames: tuple[Frame, ...]


class SubmittedUnordered(msgspec.Struct, frozen=True, tag="SubmittedUnordered"):
    """A client submits batches for this gateway's lane, in the order in which the client sent them.

    A session sends either to the ordered log or to a lane, because a lane has its own sequences, which start with 1 in each epoch.
    """

    session: int
    frames: tuple[Frame, ...]


class EpochAsked(msgspec.Struct, frozen=True, tag="EpochAsked"):
    """A client asks to begin `epoch` of the producer `name` for `instance`."""

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
    """A named reader commits its offset. The offset may be below the last commit only if `back` is True."""

    session: int
    request: int
    reader: str
    offset: int
    back: bool = True


class ForgetAsked(msgspec.Struct, frozen=True, tag="ForgetAsked"):
    """An operator asks the log to forget producers: their state is deleted on all gateways."""

    session: int
    request: int
    names: tuple[str, ...]


class RosterAsked(msgspec.Struct, frozen=True, tag="RosterAsked"):
    """An operator asks to change one gateway of the roster: `change` is "add", "remove" or "replace" (`AskRoster`).

    `incarnation` names the disk to replace, so that a repeated request changes nothing after the replacement. An empty
    `incarnation` means the disk in the current roster.
    """

    session: int
    request: int
    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""


class RosterForced(msgspec.Struct, frozen=True, tag="RosterForced"):
    """An operator declares a majority of the roster permanently lost. Only the gateways in `names` remain, this one included.

    Records that only the lost gateways held are lost. The operator must never start the lost gateways with their disks again.
    """

    session: int
    request: int
    names: tuple[str, ...]


class ReadIndexAsked(msgspec.Struct, frozen=True, tag="ReadIndexAsked"):
    """A reader asks whether this log holds all frames that the group has decided so far. The answer is the action `ReadIndex`."""

    number: int


class SessionClosed(msgspec.Struct, frozen=True, tag="SessionClosed"):
    """A client's session has ended: it gets no more answers, but the batches that it has submitted continue."""

    session: int


class Received(msgspec.Struct, frozen=True, tag="Received"):
    """A message of another gateway arrived.

    `sender` is the number of that gateway. `incarnation` identifies its disk, according to the handshake of the connection.
    """

    sender: int
    message: Message
    incarnation: bytes = b""


class LinkChanged(msgspec.Struct, frozen=True, tag="LinkChanged"):
    """The connection to a gateway has broken (`up` is False) or is restored (`up` is True)."""

    peer: int
    up: bool


class LogRead(msgspec.Struct, frozen=True, tag="LogRead"):
    """Result of the action `ReadLog` with this token: frames from its `first` on; none if they cannot be read.

    `stop` is the last position in `frames` to which the frontier may move: no ABORT between `stop` and the requested `last` voids a
    BATCH up to `stop`. If there is no such position, `stop` is below the position of the first frame.
    """

    token: int
    frames: tuple[Frame, ...]
    stop: int


class SnapshotRead(msgspec.Struct, frozen=True, tag="SnapshotRead"):
    """Result of the action `ReadSnapshot` with this token: a chunk of a snapshot, which is the state of the log up to `position`.

    `size` is the size of the whole snapshot in bytes; 0 if the disk does not have this snapshot, or no longer has it.
    """

    token: int
    position: int
    size: int
    data: bytes


class LogCorrupt(msgspec.Struct, frozen=True, tag="Rotted"):
    """The disk cannot read the decided positions `first` to `last` of the log, which must be fetched from another gateway.

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
    """Result of the action `ReadLane` with this token: frames from its `first` on; none if they cannot be read or were trimmed.

    If the frames were trimmed, `begin` describes the position at which the lane now begins on this disk.
    """

    token: int
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneCorrupt(msgspec.Struct, frozen=True, tag="LaneRotted"):
    """The disk cannot read the decided positions `first` to `last` of a lane (see `LogCorrupt`).

    `first` 0 means that nothing of this lane is lost.
    """

    origin: int
    incarnation: bytes
    first: int
    last: int


class TimeAdvanced(msgspec.Struct, frozen=True, tag="TimeAdvanced"):
    """The time that the last SetTimer requested may have come."""


class SpaceChanged(msgspec.Struct, frozen=True, tag="SpaceChanged"):
    """The disk is low on free space (`low` is True, with a `reason`), or it has free space again."""

    low: bool
    reason: str


class TrimProposed(msgspec.Struct, frozen=True, tag="TrimProposed"):
    """Retention proposes to trim the oldest part of the log.

    `places` holds decided positions at which local segments begin, in order, as (position, offset of the first record). Up to
    position `forced`, the log is trimmed even if a voter does not hold all frames yet. Such a voter must then install a snapshot.
    """

    places: tuple[tuple[int, int], ...]
    forced: int = 0


class WriteFailed(msgspec.Struct, frozen=True, tag="WriteFailed"):
    """A write or an fsync failed, so the member must stop voting at once, but continues to serve reads."""

    reason: str


class Several(msgspec.Struct, frozen=True, tag="Several"):
    """Several events that arrived together and form one step, in this order.

    Their results are written and sent together (protocol/lifecycle, L4). `events` holds at least two events, all of them
    `groupable`.
    """

    events: tuple[Submitted | Received, ...]


class LeaveAsked(msgspec.Struct, frozen=True, tag="LeaveAsked"):
    """An operator asks this gateway to stop in order: to decide all frames in progress, and then to report Stopped."""


Event = (
    Started
    | Submitted
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


def groupable(event: object) -> TypeGuard[Submitted | Received]:
    """True if the event may be part of `Several`: a client's batches, or a message by which a view orders and decides batches."""
    return type(event) is Submitted or (type(event) is Received and type(event.message) in _ORDINARY)


_ORDINARY = frozenset((Forward, Order, Echo, Vote, Confirm))


def group_events(events: Iterable[Event]) -> list[Event]:
    """Return the events of the steps for events that arrived together. Consecutive groupable events form one step."""
    steps: list[Event] = []
    run: list[Submitted | Received] = []
    for event in events:
        if groupable(event):
            run.append(event)
            continue
        steps += _one_step(run)
        run = []
        steps.append(event)
    return steps + _one_step(run)


def _one_step(run: list[Submitted | Received]) -> list[Event]:
    return [Several(tuple(run))] if len(run) > 1 else [*run]
