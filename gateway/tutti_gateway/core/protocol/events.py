"""What can happen to a stack. Events are frozen values that serialise, so that a recorded run replays (design, section 4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

import msgspec

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import Scalars
from tutti.data.log_state import LogState
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Confirm, Damage, Echo, Forward, LaneBegin, Message, Order, Vote


class Now(NamedTuple):
    """The two clocks at an event, microseconds: `mono_us` never goes back and drives timers; `wall_us` (UTC) dates ticks."""

    mono_us: int
    wall_us: int


class StackConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a stack can be told: times in microseconds, periods in heartbeats, and the bounds that a configuration may move.

    `lanes` is whether the disk keeps lanes (design, section 7); a gateway whose disk does not takes no part in them.
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
    """Who this gateway is: its name, its disk's incarnation (16 bytes), its group, and the configured members (name -> HOST:P)."""

    gateway: str
    incarnation: bytes
    group: str
    members: dict[str, str]


Lines = dict[int, tuple[int, int]]  # producer -> (epoch, highest sequence in it)


class LostEnd(msgspec.Struct, frozen=True):
    """What a disk lost of the end of the lane that is its own.

    Attributes:
        first: the first position that is gone; last: the last one that was durable for certain (below `first` where all of it is
            here again, and only what stood behind may be missing).
        attempt, chain: of the frame at `last`.
        promised: the last attempt that this gateway may have begun.
        members: of the attempt of the frame before `first`, oldest first; empty if that is not known.
        shown: up to where clients or readers were shown it; 0 if that is not more than `last`.
        disks: of `members`, in their order; empty where the VIEW does not name them.
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
    """What a start found of one lane; all of it is durable.

    Attributes:
        origin, incarnation: whose lane it is.
        attempt: of the own lane the highest attempt ever written; of another the attempt of the last frame. 0 before any.
        position, chain, offset: last position that was delivered, its chain value, and the offset of the next record behind it.
        tail: the frames behind it.
        lines: of the own lane, the producers up to `position`.
        halted: of the own lane, why nothing can follow in it: something that was decided is gone, and all else here is empty.
        lost: of the own lane, what is gone behind the tail, and is to be had from the others; None if nothing is. `attempt` is that
            of the last frame then.
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
    """What a start found on the disk (design, section 6).

    Attributes:
        log: uuid of the log (16 bytes), empty on a blank disk.
        scalars: promised and accepted views.
        state: the log up to the frontier watermark; this state is the stack's to change.
        tail: frames above the watermark, in order, durable; their outcome is to be learned.
        damage: positions behind `tail` that were durable and cannot be read, up to the vote mark; None if there are none.
        lanes: the lanes that the disk holds (design, section 7).
    """

    log: bytes
    scalars: Scalars
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
    """Batches of a client, validated and unplaced, in the order in which the client sent them."""

    session: int
    frames: tuple[Frame, ...]


class SubmittedUnordered(msgspec.Struct, frozen=True, tag="SubmittedUnordered"):
    """Batches of a client for this gateway's lane, in the order in which the client sent them. Sequences of a lane are its own,
    from 1 in each epoch, so that a session sends either into the ordered log or into a lane.
    """

    session: int
    frames: tuple[Frame, ...]


class EpochAsked(msgspec.Struct, frozen=True, tag="EpochAsked"):
    """A client wants to begin `epoch` of the producer `name` for `instance`."""

    session: int
    request: int
    name: str
    instance: bytes
    epoch: int


class TopicAsked(msgspec.Struct, frozen=True, tag="TopicAsked"):
    """A client wants a topic's number."""

    session: int
    request: int
    name: str


class OffsetsAsked(msgspec.Struct, frozen=True, tag="OffsetsAsked"):
    """A named reader commits its offset; one below what it committed before only if it wants to go `back`."""

    session: int
    request: int
    reader: str
    offset: int
    back: bool = True


class ForgetAsked(msgspec.Struct, frozen=True, tag="ForgetAsked"):
    """An operator wants producers out of the received-table."""

    session: int
    request: int
    names: tuple[str, ...]


class RosterAsked(msgspec.Struct, frozen=True, tag="RosterAsked"):
    """An operator wants one gateway of the roster changed: `change` is "add", "remove" or "replace" (`AskRoster`).
    `incarnation` is the one to be replaced, so that asking twice is asking once; empty: the one that the roster names now.
    """

    session: int
    request: int
    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""


class RosterForced(msgspec.Struct, frozen=True, tag="RosterForced"):
    """An operator says that a majority of the roster is gone for good, and that the gateways `names`, this one among them, are all
    that remains. What only the others had is lost; they are never to come back with their disks.
    """

    session: int
    request: int
    names: tuple[str, ...]


class ReadIndexAsked(msgspec.Struct, frozen=True, tag="ReadIndexAsked"):
    """A reader wants to act on what the log here says: does it hold all that was decided by now? `ReadIndex(number)` answers."""

    number: int


class SessionClosed(msgspec.Struct, frozen=True, tag="SessionClosed"):
    """A client's session is over: nothing more is answered to it. What it submitted goes on."""

    session: int


class Received(msgspec.Struct, frozen=True, tag="Received"):
    """A message of another gateway (its number, and the incarnation of its disk as the transport was told at the handshake)."""

    sender: int
    message: Message
    incarnation: bytes = b""


class LinkChanged(msgspec.Struct, frozen=True, tag="LinkChanged"):
    """The connection to a gateway broke (`up` False), or is there again."""

    peer: int
    up: bool


class LogRead(msgspec.Struct, frozen=True, tag="LogRead"):
    """What `ReadLog(token)` found: frames from its `first` on; none if they cannot be read.

    `stop` is the last position of `frames` that no ABORT up to the asked `last` reaches over: no BATCH up to `stop` is voided by an
    ABORT behind it. It is below the first frame's position if there is none.
    """

    token: int
    frames: tuple[Frame, ...]
    stop: int


class SnapshotRead(msgspec.Struct, frozen=True, tag="SnapshotRead"):
    """What `ReadSnapshot(token)` found: a piece of the state of the log up to `position`, and how many bytes that has in all;
    `size` 0 if there is none, or none any more.
    """

    token: int
    position: int
    size: int
    data: bytes


class Rotted(msgspec.Struct, frozen=True, tag="Rotted"):
    """The log holds the decided positions `first` to `last` no more: they cannot be read, and are wanted from another gateway. It
    replaces what was told before, and is told again after each `Mend`; `first` 0 says that nothing is wanted.
    """

    first: int
    last: int


class Persisted(msgspec.Struct, frozen=True, tag="Persisted"):
    """Everything up to the Persist with this token is durable."""

    token: int


class LanePersisted(msgspec.Struct, frozen=True, tag="LanePersisted"):
    """Everything up to the PersistLane with this token is durable."""

    token: int


class LaneRead(msgspec.Struct, frozen=True, tag="LaneRead"):
    """What `ReadLane(token)` found: frames from its `first` on; none if they cannot be read, or were let go: `begin` then says how
    the lane begins here.
    """

    token: int
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneRotted(msgspec.Struct, frozen=True, tag="LaneRotted"):
    """As `Rotted`, of a lane: its decided positions `first` to `last` cannot be read here, and are wanted from another gateway.
    `first` 0 says that nothing of this lane is wanted.
    """

    origin: int
    incarnation: bytes
    first: int
    last: int


class TimeAdvanced(msgspec.Struct, frozen=True, tag="TimeAdvanced"):
    """A timer asked for by SetTimer may have come due."""


class SpaceChanged(msgspec.Struct, frozen=True, tag="SpaceChanged"):
    """The disk runs low (`low`), or has room again."""

    low: bool
    reason: str


class TrimProposed(msgspec.Struct, frozen=True, tag="TrimProposed"):
    """Retention lets the oldest part of the log go. `places` are the starts of segments here that it may begin with, in order:
    (position, offset of its first record), all decided. Up to position `forced` it is to go though a voter does not hold it yet,
    which will then have to learn anew.
    """

    places: tuple[tuple[int, int], ...]
    forced: int = 0


class WriteFailed(msgspec.Struct, frozen=True, tag="WriteFailed"):
    """A write or an fsync failed: stop voting at once, stay up for reads."""

    reason: str


class Several(msgspec.Struct, frozen=True, tag="Several"):
    """Events that came at once, in this order, as one step: what follows from them leaves, and is written, together.

    Of the ordinary course alone (`ordinary`): at least two of them.
    """

    events: tuple[Submitted | Received, ...]


class LeaveAsked(msgspec.Struct, frozen=True, tag="LeaveAsked"):
    """Stop in order: take nothing new, decide what is under way, then Stopped."""


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
    | Rotted
    | Persisted
    | LanePersisted
    | LaneRead
    | LaneRotted
    | TimeAdvanced
    | SpaceChanged
    | TrimProposed
    | WriteFailed
    | LeaveAsked
    | Several
)


def ordinary(event: object) -> TypeGuard[Submitted | Received]:
    """Whether an event may be one of `Several`: nothing but a batch on its way through a view, at whichever end of it."""
    return type(event) is Submitted or (type(event) is Received and type(event.message) in _ORDINARY)


_ORDINARY = frozenset((Forward, Order, Echo, Vote, Confirm))


def at_once(events: Iterable[Event]) -> list[Event]:
    """Events that came at once as the steps that they are: those of the ordinary course that follow on one another are one."""
    steps: list[Event] = []
    run: list[Submitted | Received] = []
    for event in events:
        if ordinary(event):
            run.append(event)
            continue
        steps += _one_step(run)
        run = []
        steps.append(event)
    return steps + _one_step(run)


def _one_step(run: list[Submitted | Received]) -> list[Event]:
    return [Several(tuple(run))] if len(run) > 1 else [*run]
