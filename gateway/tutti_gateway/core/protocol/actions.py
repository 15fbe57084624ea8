"""Actions of a stack.

The actions of one step are one batch, and the driver must execute them in order (protocol/lifecycle, L2): persist, read (the log
with its repair, then lanes), send, deliver (the log, then lanes), reply, read index, view installed, suspect, peers, dropped, set
timer, halt or stopped. Readers get a record before its client gets the receipt, so a read that starts after the receipt finds the
record.

The driver does not wait for the write of a Persist, but executes the next action at once. The event `Persisted`, or `LanePersisted`
for lanes, reports that the write is durable. The stack sends votes, promises and receipts that depend on a write only after that
event.
"""

from __future__ import annotations

import msgspec

from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti_gateway.core.protocol.messages import LaneBegin, Message


class Persist(msgspec.Struct, frozen=True, tag="Persist"):
    """Truncate the log after position `cut`, append `frames`, and write the hard state `scalars`, each only if given.

    The disk reports the completion of this action with `Persisted(token)`. If a `snapshot` (a decided LogState as bytes) is given,
    the snapshot first replaces the log, and the new log begins after the snapshot's position. A crash during the replacement leaves
    either the complete old log or the complete new log on the disk.

    Before a truncation, the disk lowers the vote mark. The truncation is durable before any later write begins. The hard state
    becomes durable after the frames of all earlier Persist actions, and before the disk writes frames of this action or a later
    one. With the hard state, the disk also writes the frontier that earlier steps delivered. One fsync may complete many Persist
    actions.
    """

    token: int
    frames: tuple[Frame, ...] = ()
    scalars: HardState | None = None
    cut: int | None = None
    snapshot: bytes = b""


class ReadLog(msgspec.Struct, frozen=True, tag="ReadLog"):
    """Read the durable frames `first` to `last` from the log, and report them with `LogRead(token)`.

    The result contains at least one frame, and may end before `last` so that it has at most `limits.FETCH_BYTES` bytes.
    """

    token: int
    first: int
    last: int


class ReadSnapshot(msgspec.Struct, frozen=True, tag="ReadSnapshot"):
    """Read a chunk of the snapshot with which the local log begins, and report it with `SnapshotRead(token)`.

    `position` identifies the snapshot by the last position that it covers; 0 means the current snapshot. A snapshot never ends
    between a batch and the ABORT that voids the batch. The chunk starts at byte `at` and has at most `limits.FETCH_BYTES` bytes.
    """

    token: int
    position: int
    at: int


class RepairLog(msgspec.Struct, frozen=True, tag="Mend"):
    """Restore decided frames that this disk lost, in order from the first position that the last `LogCorrupt` reported.

    The frames come from another gateway's log, and the disk writes them only if they continue the chain of this log. Then the
    disk reports the positions that are still lost in a new `LogCorrupt`.
    """

    frames: tuple[Frame, ...]


class PersistLane(msgspec.Struct, frozen=True, tag="PersistLane"):
    """Truncate a lane after position `cut`, append `frames`, and write the promised `attempt`, each only if given.

    Only this gateway's own lane has a promised attempt. The disk reports the completion of this action with `LanePersisted(token)`.
    The disk executes the writes of a lane in order, and makes a truncation durable before any later write begins. If a `begin` is
    given, the disk first replaces the lane by an empty lane that begins after `begin.position`, because other gateways have trimmed
    the earlier part.
    """

    token: int
    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...] = ()
    attempt: int | None = None
    cut: int | None = None
    begin: LaneBegin | None = None


class LaneHeld(msgspec.Struct, frozen=True, tag="LaneHeld"):
    """Allow retention to trim a lane up to `position`, because every gateway of the roster holds these frames as decided."""

    origin: int
    incarnation: bytes
    position: int


class RepairLane(msgspec.Struct, frozen=True, tag="MendLane"):
    """Restore decided frames of a lane that this disk lost, in order from the first position that `LaneCorrupt` reported.

    The disk checks the frames as for `RepairLog`.
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]


class ReadLane(msgspec.Struct, frozen=True, tag="ReadLane"):
    """Read the durable frames `first` to `last` of a lane, and report them with `LaneRead(token)`.

    The result contains at least one frame, and may end before `last` so that it has at most `limits.FETCH_BYTES` bytes.
    """

    token: int
    origin: int
    incarnation: bytes
    first: int
    last: int


class Send(msgspec.Struct, frozen=True, tag="Send"):
    """Send a message to the gateway with the number `to`."""

    to: int
    message: Message


class Deliver(msgspec.Struct, frozen=True, tag="Deliver"):
    """Deliver a decided run of frames to the readers, in order, and move the frontier to its end.

    `offsets[i]` is the offset of the first record in `frames[i]`, or of the next record if that frame contains none. `aborted`
    holds the positions of batches in the run that an ABORT voids. Readers do not get the records of void batches.
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
    """Deliver a decided run of a lane to the readers, in order.

    `first_offset` is the offset in the lane of the first record in the run.
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

    `confirmed` is True if this gateway has delivered every frame that was decided when the request arrived. If `confirmed` is
    False, this gateway does not know whether its log lacks such a frame.
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
    """Report number, name and address of each other gateway of the group. Each report replaces the previous one."""

    peers: tuple[tuple[int, str, str], ...]


class Dropped(msgspec.Struct, frozen=True, tag="Dropped"):
    """Report that `count` messages of `kind` from `sender` were dropped since the last report, and why the last one was dropped."""

    kind: str
    sender: int
    reason: str
    count: int


class Suspect(msgspec.Struct, frozen=True, tag="Suspect"):
    """Report a member that blocks the group, for the log line and the status that the operator sees.

    The member's votes make no progress for the atomic period, or the member rejects a frame that it must accept. In a group of one,
    the report means that the disk does not respond.
    """

    member: int
    reason: str


class SetTimer(msgspec.Struct, frozen=True, tag="SetTimer"):
    """Raise the event `TimeAdvanced` when the monotonic clock reaches `at_us`, or soon after. A new timer replaces the old one."""

    at_us: int


class Halt(msgspec.Struct, frozen=True, tag="Halt"):
    """Stop taking part in the group, but continue to serve reads. `reason` explains the halt to the operator.

    `out` is True if a forced roster excludes this gateway. The log of an excluded gateway may differ from the group's log, so the
    gateway must not serve its log as the group's log, and must never start with this disk again.
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
