"""Actions of a stack.

The actions of one step are one batch, and the driver must execute them in order (protocol/lifecycle, L2): persist, read (the log
with its repair, then lanes), send, deliver (the log, then lanes), reply, read index, view installed, suspect, peers, dropped, set
timer, halt or stopped. Delivery precedes the reply, so a reader that asks after a client got its receipt finds the record.

Persist is asynchronous: the driver executes the next action at once. The event `Persisted`, or `LanePersisted` for lanes, reports
that the write is durable. Only after that event, the stack sends votes, promises and receipts that depend on the write.
"""

from __future__ import annotations

import msgspec

from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti_gateway.core.protocol.messages import LaneBegin, Message


class Persist(msgspec.Struct, frozen=True, tag="Persist"):
    """Truncate the log after position `cut` if given, append the frames, and write the hard state if given.

    The disk reports the completion with `Persisted(token)`. If there is a `snapshot` (a decided LogState as bytes), it first
    replaces the log, which then begins after the snapshot's position. After a crash, the disk has either the old or the new log.

    A truncation first lowers the vote mark, and is durable before any later write begins. Hard state is durable before the disk
    writes frames of the same or a later Persist, and after the frames of earlier ones. The disk writes the hard state together with
    the frontier that earlier steps delivered. One fsync may complete many Persist actions.
    """

    token: int
    frames: tuple[Frame, ...] = ()
    scalars: HardState | None = None
    cut: int | None = None
    snapshot: bytes = b""


class ReadLog(msgspec.Struct, frozen=True, tag="ReadLog"):
    """Read the durable frames `first` to `last` from the log, and report them with `LogRead(token)`.

    The result contains at least one frame, and may end early so that it has at most `limits.FETCH_BYTES` bytes.
    """

    token: int
    first: int
    last: int


class ReadSnapshot(msgspec.Struct, frozen=True, tag="ReadSnapshot"):
    """Read a chunk of the snapshot with which the local log begins, and report it with `SnapshotRead(token)`.

    `position` identifies the snapshot; 0 means the current one. The snapshot never ends between a batch and its ABORT. The chunk
    starts at byte `at` and has at most `limits.FETCH_BYTES` bytes.
    """

    token: int
    position: int
    at: int


class RepairLog(msgspec.Struct, frozen=True, tag="Mend"):
    """Write decided frames at positions where this disk lost them, in order from the first position of `LogCorrupt`.

    The frames come from another gateway's log, and the disk writes them only if they continue its chain. A new `LogCorrupt` then
    reports the positions that are still lost.
    """

    frames: tuple[Frame, ...]


class PersistLane(msgspec.Struct, frozen=True, tag="PersistLane"):
    """Truncate a lane after position `cut` if given, append the frames, and write the promised `attempt` of the own lane if given.

    The disk reports the completion with `LanePersisted(token)`. A truncation is durable before any later write begins, and the
    writes of a lane are executed in order. If there is a `begin`, the disk first replaces the lane by an empty lane that begins
    after that position, because other gateways have trimmed the earlier part.
    """

    token: int
    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...] = ()
    attempt: int | None = None
    cut: int | None = None
    begin: LaneBegin | None = None


class LaneHeld(msgspec.Struct, frozen=True, tag="LaneHeld"):
    """Allow retention to trim a lane up to the position, up to which every gateway of the roster holds the frames as decided."""

    origin: int
    incarnation: bytes
    position: int


class RepairLane(msgspec.Struct, frozen=True, tag="MendLane"):
    """Write decided frames of a lane where this disk lost them, in order from the first position of `LaneCorrupt` (see
    `RepairLog`).
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]


class ReadLane(msgspec.Struct, frozen=True, tag="ReadLane"):
    """Read the durable frames `first` to `last` of a lane, and report them with `LaneRead(token)`.

    The result contains at least one frame, and may end early so that it has at most `limits.FETCH_BYTES` bytes.
    """

    token: int
    origin: int
    incarnation: bytes
    first: int
    last: int


class Send(msgspec.Struct, frozen=True, tag="Send"):
    """Send a message to another gateway. `to` is its number."""

    to: int
    message: Message


class Deliver(msgspec.Struct, frozen=True, tag="Deliver"):
    """Deliver a decided run of frames to the readers, in order, and move the frontier to its end.

    `offsets[i]` is the offset of the first record in `frames[i]`, or of the next record if that frame contains none. `aborted`
    holds the positions of the batches in the run that an ABORT voids, whose records are not delivered.
    """

    frames: tuple[Frame, ...]
    offsets: tuple[int, ...]
    aborted: frozenset[int]
    next_offset: int


class LogReplaced(msgspec.Struct, frozen=True, tag="Relearned"):
    """Report that a snapshot durably replaced the log: the frontier moves to `position`, and the next record has `next_offset`.

    This gateway does not deliver the frames that the snapshot covers, because it never received them.
    """

    position: int
    next_offset: int


class DeliverUnordered(msgspec.Struct, frozen=True, tag="DeliverUnordered"):
    """Deliver a decided run of a lane to the readers, in order. `first_offset` is the lane's offset of the first record in the
    run.
    """

    origin: int
    incarnation: bytes
    first_offset: int
    frames: tuple[Frame, ...]


class Reply(msgspec.Struct, frozen=True, tag="Reply"):
    """Send answers to a client's session, in order."""

    session: int
    answers: tuple[Answer, ...]


class ReadIndex(msgspec.Struct, frozen=True, tag="ReadIndex"):
    """Answer the event `ReadIndexAsked` with this number.

    `confirmed` is True if this gateway has delivered every frame that was decided when the request arrived. Otherwise this gateway
    does not know whether a frame is missing.
    """

    number: int
    confirmed: bool


class ViewInstalled(msgspec.Struct, frozen=True, tag="ViewInstalled"):
    """Report the installed view: its id, its members (gateway numbers, oldest first), and its coordinator.

    `primary` is True after the view's VIEW frame is decided, so that the view accepts new messages. `view` 0 means no view.
    """

    view: int
    members: tuple[int, ...]
    coordinator: int
    primary: bool


class Peers(msgspec.Struct, frozen=True, tag="Peers"):
    """Report the other gateways of the group: (number, name, address) of each. The report replaces the previous one."""

    peers: tuple[tuple[int, str, str], ...]


class Dropped(msgspec.Struct, frozen=True, tag="Dropped"):
    """Report messages of `kind` from `sender` that were dropped since the last report, with their number and the last reason."""

    kind: str
    sender: int
    reason: str
    count: int


class Suspect(msgspec.Struct, frozen=True, tag="Suspect"):
    """Report a member that blocks the group, for the operator and the status.

    The member's votes make no progress for the atomic period, or it rejects a frame that it must accept. In a group of one, the
    report means that the disk does not respond.
    """

    member: int
    reason: str


class SetTimer(msgspec.Struct, frozen=True, tag="SetTimer"):
    """Raise the event TimeAdvanced at this time (`Now.mono_us`) or soon after. The timer replaces the previous one."""

    at_us: int


class Halt(msgspec.Struct, frozen=True, tag="Halt"):
    """Stop taking part in the group, but continue to serve reads. `reason` is for the operator.

    `out` is True if a forced roster excludes this gateway, whose log may then differ from the group's log. The gateway must not
    serve its log as the group's log, and must never start with this disk again.
    """

    reason: str
    out: bool = False


class Stopped(msgspec.Struct, frozen=True, tag="Stopped"):
    """Report that the orderly stop is complete: no frame, request or write is in progress."""


Action = (
    Persist
    | ReadLog
    | ReadSnapshot
    | RepairLog
    | PersistLane
    | ReadLane
    | RepairLane
    | LaneHeld
    | Send
    | Deliver
    | LogReplaced
    | DeliverUnordered
    | Reply
    | ReadIndex
    | ViewInstalled
    | Suspect
    | Peers
    | Dropped
    | SetTimer
    | Halt
    | Stopped
)
