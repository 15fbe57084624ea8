"""Actions of a stack.

The actions of one step are one batch, and the driver must carry them out in order (protocol/lifecycle, L2): persist, read (the log
with its repair, then lanes), send, deliver (the log, then lanes), reply, read index, view installed, suspect, peers, dropped, set
timer, halt or stopped. Delivery precedes the reply, so a reader that asks after a receipt was sent finds the record.

Persist is asynchronous: the driver continues at once. The completion is reported by the event `Persisted`, or `LanePersisted` for
lanes. No action that promises durability precedes that event.
"""

from __future__ import annotations

import msgspec

from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti_gateway.core.protocol.messages import LaneBegin, Message


class Persist(msgspec.Struct, frozen=True, tag="Persist"):
    """Truncate the log after position `cut` if given, append the frames, and write the hard state if given; then report
    `Persisted(token)`.

    If there is a `snapshot` (a decided LogState as bytes), the log is replaced first, and begins again after the snapshot's
    position. After a crash the disk has either the old or the new log.

    A truncation first lowers the vote mark, and is durable before anything later is written. Hard state is durable before frames of
    the same or a later Persist are written, and after frames of earlier Persists. It is written together with the frontier that
    earlier steps delivered. One sync may serve many Persists.
    """

    token: int
    frames: tuple[Frame, ...] = ()
    scalars: HardState | None = None
    cut: int | None = None
    snapshot: bytes = b""


class ReadLog(msgspec.Struct, frozen=True, tag="ReadLog"):
    """Read the durable frames `first` to `last` from the log; then report `LogRead(token)`.

    The result may end at `limits.FETCH_BYTES` bytes, after at least one frame.
    """

    token: int
    first: int
    last: int


class ReadSnapshot(msgspec.Struct, frozen=True, tag="ReadSnapshot"):
    """Read the snapshot with which the local log begins, at a position where a decision may stop; then report
    `SnapshotRead(token)`.

    `position` identifies the snapshot; 0 means the current one. The result starts at byte `at` and has at most `limits.FETCH_BYTES`
    bytes.
    """

    token: int
    position: int
    at: int


class RepairLog(msgspec.Struct, frozen=True, tag="Mend"):
    """Write decided frames of another gateway's log where this disk lost them, in order from the first position of `LogCorrupt`.

    The disk writes the frames durably if they continue the earlier frames. A new `LogCorrupt` reports the positions that are still
    lost.
    """

    frames: tuple[Frame, ...]


class PersistLane(msgspec.Struct, frozen=True, tag="PersistLane"):
    """Truncate the lane's log after position `cut` if given, append the frames, write the own lane's `attempt` if given; then
    report `LanePersisted(token)`.

    A truncation is durable before anything later is written, and each lane is written in order. If there is a `begin`, the lane is
    first replaced by an empty lane at that position, because the earlier part was trimmed elsewhere.
    """

    token: int
    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...] = ()
    attempt: int | None = None
    cut: int | None = None
    begin: LaneBegin | None = None


class LaneHeld(msgspec.Struct, frozen=True, tag="LaneHeld"):
    """Allow retention to trim a lane up to the position.

    At every gateway of the roster, all frames up to there are decided and durable.
    """

    origin: int
    incarnation: bytes
    position: int


class RepairLane(msgspec.Struct, frozen=True, tag="MendLane"):
    """Write decided frames of a lane where this disk lost them, in order from the first position of `LaneCorrupt`, as in
    `RepairLog`.
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]


class ReadLane(msgspec.Struct, frozen=True, tag="ReadLane"):
    """Read the durable frames `first` to `last` of a lane's log; then report `LaneRead(token)`.

    The result may end at `limits.FETCH_BYTES` bytes, after at least one frame.
    """

    token: int
    origin: int
    incarnation: bytes
    first: int
    last: int


class Send(msgspec.Struct, frozen=True, tag="Send"):
    """Send a message to another member (gateway number)."""

    to: int
    message: Message


class Deliver(msgspec.Struct, frozen=True, tag="Deliver"):
    """Deliver a decided run, in order: the frontier passes it.

    `offsets[i]` is the offset of the first record in `frames[i]`, or of the next record if that frame has none. `aborted` holds the
    positions of void batches in the run, which have no records.
    """

    frames: tuple[Frame, ...]
    offsets: tuple[int, ...]
    aborted: frozenset[int]
    next_offset: int


class LogReplaced(msgspec.Struct, frozen=True, tag="Relearned"):
    """Report that a snapshot durably replaced the log. The frontier moves to `position`, and the next record has `next_offset`.

    Frames up to there that were not delivered before are never delivered here.
    """

    position: int
    next_offset: int


class DeliverUnordered(msgspec.Struct, frozen=True, tag="DeliverUnordered"):
    """Deliver a decided run of a lane, in order. `first_offset` is the offset of the first record in the lane."""

    origin: int
    incarnation: bytes
    first_offset: int
    frames: tuple[Frame, ...]


class Reply(msgspec.Struct, frozen=True, tag="Reply"):
    """Send answers to a client's session, in order."""

    session: int
    answers: tuple[Answer, ...]


class ReadIndex(msgspec.Struct, frozen=True, tag="ReadIndex"):
    """Answer `ReadIndexAsked(number)`.

    If `confirmed` is True, the delivered frontier holds everything that was decided when the request arrived. Otherwise this is
    unknown here.
    """

    number: int
    confirmed: bool


class ViewInstalled(msgspec.Struct, frozen=True, tag="ViewInstalled"):
    """Report a view: its id, its members (gateway numbers, oldest first), its coordinator, and whether it decides (its VIEW is
    decided).
    """

    view: int
    members: tuple[int, ...]
    coordinator: int
    primary: bool


class Peers(msgspec.Struct, frozen=True, tag="Peers"):
    """Report the peers of this gateway: (number, name, address) of each. The report replaces the previous one."""

    peers: tuple[tuple[int, str, str], ...]


class Dropped(msgspec.Struct, frozen=True, tag="Dropped"):
    """Report dropped messages of `kind` from `sender`, for the log. `reason` says why, and the count is since the last report."""

    kind: str
    sender: int
    reason: str
    count: int


class Suspect(msgspec.Struct, frozen=True, tag="Suspect"):
    """Report a member that blocks the group: its votes make no progress for the atomic period, or it cannot accept a frame that it
    must accept.

    The report is for the operator and the status. In a group of one it means that the disk does not answer.
    """

    member: int
    reason: str


class SetTimer(msgspec.Struct, frozen=True, tag="SetTimer"):
    """Send TimeAdvanced at this time (`Now.mono_us`) or soon after. The timer replaces the previous one."""

    at_us: int


class Halt(msgspec.Struct, frozen=True, tag="Halt"):
    """Stop taking part in the group, but continue to serve reads. `reason` is for the operator.

    `out` is True if a forced roster excludes this gateway. Its log may then differ from the group's log. So it must not be served
    as the group's log, and the gateway must never start with this disk again.
    """

    reason: str
    out: bool = False


class Stopped(msgspec.Struct, frozen=True, tag="Stopped"):
    """Report that the orderly stop is complete: nothing is in progress."""


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
