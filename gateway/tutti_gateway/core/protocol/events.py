"""Events of a stack. Events are frozen values that serialise, so a recorded run replays (protocol/lifecycle, L1)."""

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
    """The two clocks at an event, microseconds: `mono_us` never goes back and drives timers; `wall_us` (UTC) dates ticks."""

    mono_us: int
    wall_us: int


class StackConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a stack: times in microseconds, periods in heartbeats, and configurable limits.

    `lanes` is True if the disk stores lanes (protocol/lanes). A gateway without lanes ignores unordered sends.
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
    """Identity of this gateway: its name, its disk's incarnation (16 bytes), its group, and the configured members (name ->
    HOST:P).
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
        last: the last position that was certainly durable. If it is below `first`, all frames up to it are here, and only later
            frames may be missing.
        attempt, chain: attempt and chain value of the frame at `last`.
        promised: the last attempt that this gateway may have begun.
        members: members of the attempt of the frame before `first`, oldest first; empty if unknown.
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
    """One lane that was found at the start. All of it is durable.

    Attributes:
        origin, incarnation: the origin of the lane and its disk.
        attempt: for this gateway's lane, the highest attempt ever written. For another lane, the attempt of the last frame. 0 if
            there is none.
        position, chain, offset: the last delivered position, its chain value, and the offset of the next record.
        tail: the frames after that position.
        lines: for this gateway's lane, the producers up to `position`.
        halted: for this gateway's lane, the reason why it accepts no frames: decided frames are lost. All other fields are then
            empty.
        lost: for this gateway's lane, the lost range after the tail, which other gateways may have; None if nothing is lost. If a
            range is lost, `attempt` is the attempt of the last frame.
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
    """The disk's content at a start (protocol/log).

    Attributes:
        log: uuid of the log (16 bytes), empty on a blank disk.
        scalars: promised and accepted views.
        state: the log up to the frontier watermark; the stack may change this object.
        tail: durable frames above the watermark, in order. Their outcome is not known yet.
        damage: positions after `tail` that were durable but cannot be read, up to the vote mark; None if there are none.
        lanes: the lanes on the disk.
    """

    log: bytes
    scalars: HardState
    state: LogState
    tail: tuple[Frame, ...]
    damage: Damage | None = None
    lanes: tuple[LaneLog, ...] = ()


class Started(msgspec.Struct, frozen=True, tag="Started"):
    """The first event of a run. `entropy` is 16 random bytes (the uuid of a log that begins)."""

    identity: Identity
    entropy: bytes
    recovered: Recovered


class Submitted(msgspec.Struct, frozen=True, tag="Submitted"):
    """Batches of a client, validated, without positions, in the order in which the client sent them."""

    session: int
    frames: tuple[Frame, ...]


class SubmittedUnordered(msgspec.Struct, frozen=True, tag="SubmittedUnordered"):
    """Batches of a client for this gateway's lane, in the order in which the client sent them.

    A lane has its own sequences, which start with 1 in each epoch. So a session sends either to the ordered log or to a lane.
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
    """A client asks for a topic's number."""

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
    """An operator asks to remove producers from the received-table."""

    session: int
    request: int
    names: tuple[str, ...]


class RosterAsked(msgspec.Struct, frozen=True, tag="RosterAsked"):
    """An operator asks to change one gateway of the roster: `change` is "add", "remove" or "replace" (`AskRoster`).

    `incarnation` names the disk to replace. A repeated request then changes nothing, because the roster no longer has that disk.
    Empty means the disk in the current roster.
    """

    session: int
    request: int
    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""


class RosterForced(msgspec.Struct, frozen=True, tag="RosterForced"):
    """An operator declares a majority of the roster permanently lost. Only the gateways in `names` remain, this one included.

    Records that only the lost gateways held are lost. The lost gateways must never come back with their disks.
    """

    session: int
    request: int
    names: tuple[str, ...]


class ReadIndexAsked(msgspec.Struct, frozen=True, tag="ReadIndexAsked"):
    """A reader asks whether this log holds all frames that are decided by now. The answer is the action `ReadIndex(number)`."""

    number: int


class SessionClosed(msgspec.Struct, frozen=True, tag="SessionClosed"):
    """A client's session has ended. It gets no more answers, but its submitted batches continue."""

    session: int


class Received(msgspec.Struct, frozen=True, tag="Received"):
    """A message of another gateway: its number, and the incarnation of its disk from the transport's handshake."""

    sender: int
    message: Message
    incarnation: bytes = b""


class LinkChanged(msgspec.Struct, frozen=True, tag="LinkChanged"):
    """The connection to a gateway broke (`up` is False) or is restored."""

    peer: int
    up: bool


class LogRead(msgspec.Struct, frozen=True, tag="LogRead"):
    """Result of `ReadLog(token)`: frames starting at its `first`; none if they cannot be read.

    `stop` is the last position in `frames` at which a decision may stop: no ABORT between `stop` and the requested `last` voids a
    BATCH up to `stop`. If there is no such position, `stop` is below the position of the first frame.
    """

    token: int
    frames: tuple[Frame, ...]
    stop: int


class SnapshotRead(msgspec.Struct, frozen=True, tag="SnapshotRead"):
    """Result of `ReadSnapshot(token)`: a chunk of the state of the log up to `position`, and the size of the entire state in bytes.

    `size` is 0 if there is no such state, or if it no longer exists.
    """

    token: int
    position: int
    size: int
    data: bytes


class LogCorrupt(msgspec.Struct, frozen=True, tag="Rotted"):
    """The log lost the decided positions `first` to `last`: they cannot be read and must be fetched from another gateway.

    This report replaces the previous one, and each `RepairLog` is followed by a new report. `first` 0 means that nothing is lost.
    """

    first: int
    last: int


class Persisted(msgspec.Struct, frozen=True, tag="Persisted"):
    """All Persists up to the one with this token are durable."""

    token: int


class LanePersisted(msgspec.Struct, frozen=True, tag="LanePersisted"):
    """All PersistLanes up to the one with this token are durable."""

    token: int


class LaneRead(msgspec.Struct, frozen=True, tag="LaneRead"):
    """Result of `ReadLane(token)`: frames starting at its `first`; none if they cannot be read or were trimmed.

    If the frames were trimmed, `begin` describes the start of the lane on this disk.
    """

    token: int
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneCorrupt(msgspec.Struct, frozen=True, tag="LaneRotted"):
    """A lane lost its decided positions `first` to `last`, as in `LogCorrupt`.

    `first` 0 means that nothing of this lane is lost.
    """

    origin: int
    incarnation: bytes
    first: int
    last: int


class TimeAdvanced(msgspec.Struct, frozen=True, tag="TimeAdvanced"):
    """A timer of SetTimer may be due."""


class SpaceChanged(msgspec.Struct, frozen=True, tag="SpaceChanged"):
    """The disk is low (`low` is True, and `reason` says why), or it has free space again."""

    low: bool
    reason: str


class TrimProposed(msgspec.Struct, frozen=True, tag="TrimProposed"):
    """Retention proposes to trim the oldest part of the log.

    `places` holds the starts of local segments at which the log may begin, in order: (position, offset of the first record). All
    are decided. Up to position `forced`, the log is trimmed even if a voter does not hold all frames yet. That voter must then
    install a snapshot.
    """

    places: tuple[tuple[int, int], ...]
    forced: int = 0


class WriteFailed(msgspec.Struct, frozen=True, tag="WriteFailed"):
    """A write or an fsync failed: stop voting at once, but continue to serve reads."""

    reason: str


class Several(msgspec.Struct, frozen=True, tag="Several"):
    """Events that arrived together and form one step, in this order. Their results are sent and written together
    (protocol/lifecycle, L4).

    `events` holds at least two events, and only those for which `groupable` is True.
    """

    events: tuple[Submitted | Received, ...]


class LeaveAsked(msgspec.Struct, frozen=True, tag="LeaveAsked"):
    """Stop in order: accept no new messages, decide all frames in progress, then send Stopped."""


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
    """True if an event may be part of `Several`. Only the messages by which a view orders and decides batches may be."""
    return type(event) is Submitted or (type(event) is Received and type(event.message) in _ORDINARY)


_ORDINARY = frozenset((Forward, Order, Echo, Vote, Confirm))


def group_events(events: Iterable[Event]) -> list[Event]:
    """Return the steps for events that arrived together. Consecutive groupable events form one step."""
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
