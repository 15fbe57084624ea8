"""What a stack wants done.

The actions of one step are one batch in the order in which they must be carried out (design, section 4): persist, read (the log,
with what mends it, then lanes), send, deliver (likewise), reply (a reader asked after a receipt finds the record), read index, view
installed, suspect, peers, dropped, set timer, halt or stopped. Persist is asynchronous: the driver goes on at once, and its
completion comes back as `Persisted`, that of lanes as `LanePersisted`. Nothing that promises durability is in a batch before that
event.
"""

from __future__ import annotations

import msgspec

from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import Scalars
from tutti_gateway.core.protocol.messages import LaneBegin, Message


class Persist(msgspec.Struct, frozen=True, tag="Persist"):
    """Cut the log behind position `cut` if given, write the frames (placed, in order) behind it, and the scalars if given; then
    report `Persisted(token)`. With a `snapshot` (a LogState as bytes, which is decided) the log is replaced first: nothing of
    it stays, it begins anew behind the snapshot's position, and a crash leaves the old log or the new one.

    A cut is durable (the vote mark lowered first) before anything later is written. Scalars are durable before frames of the
    same or a later Persist are written, and not before frames of an earlier one are. They are written with the frontier that
    the actions of earlier steps delivered. One sync may serve many Persists.
    """

    token: int
    frames: tuple[Frame, ...] = ()
    scalars: Scalars | None = None
    cut: int | None = None
    snapshot: bytes = b""


class ReadLog(msgspec.Struct, frozen=True, tag="ReadLog"):
    """Read the frames `first` to `last` from the log, which holds them durably; then report `LogRead(token)`. As many as
    `limits.FETCH_BYTES` allows will do, one at least.
    """

    token: int
    first: int
    last: int


class ReadSnapshot(msgspec.Struct, frozen=True, tag="ReadSnapshot"):
    """Read the state with which the log here begins, at a place where a decision may stop: the one up to `position`, or whichever
    it is if that is 0. As many bytes as `limits.FETCH_BYTES` allows, from byte `at` on; then report `SnapshotRead(token)`.
    """

    token: int
    position: int
    at: int


class Mend(msgspec.Struct, frozen=True, tag="Mend"):
    """Frames of another gateway's log, decided there and here, in order from the first position on that `Rotted` told: write them
    where they must stand if they continue what stands before, durably, and tell by another `Rotted` what is still to be mended.
    """

    frames: tuple[Frame, ...]


class PersistLane(msgspec.Struct, frozen=True, tag="PersistLane"):
    """Cut the lane's log behind position `cut` if given, write the frames behind it, and the own lane's `attempt` if given; then
    report `LanePersisted(token)`. A cut is durable before anything later is written; one lane is written in order. With `begin` the
    lane is first replaced by what that says: it was let go elsewhere up to there.
    """

    token: int
    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...] = ()
    attempt: int | None = None
    cut: int | None = None
    begin: LaneBegin | None = None


class LaneHeld(msgspec.Struct, frozen=True, tag="LaneHeld"):
    """Every gateway of the roster has the lane decided, durably, up to the position: retention may let it go up to there."""

    origin: int
    incarnation: bytes
    position: int


class MendLane(msgspec.Struct, frozen=True, tag="MendLane"):
    """Frames of a lane, decided elsewhere and here, in order from the first position on that `LaneRotted` told: as `Mend`."""

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]


class ReadLane(msgspec.Struct, frozen=True, tag="ReadLane"):
    """Read frames `first` to `last` of a lane's log, which holds them durably; then report `LaneRead(token)`. As many as
    `limits.FETCH_BYTES` allows will do, one at least.
    """

    token: int
    origin: int
    incarnation: bytes
    first: int
    last: int


class Send(msgspec.Struct, frozen=True, tag="Send"):
    """A message to another member (gateway number)."""

    to: int
    message: Message


class Deliver(msgspec.Struct, frozen=True, tag="Deliver"):
    """A decided run, in order: the frontier passes it. `offsets[i]` is the offset of `frames[i]`'s first record (of the next record
    for a frame without any); `aborted` are the positions of void batches in it, which have no records.
    """

    frames: tuple[Frame, ...]
    offsets: tuple[int, ...]
    aborted: frozenset[int]
    next_offset: int


class Relearned(msgspec.Struct, frozen=True, tag="Relearned"):
    """The log was replaced by a snapshot, durably: the frontier goes to `position`, and `next_offset` follows. What was decided up
    to there and not delivered is not delivered here.
    """

    position: int
    next_offset: int


class DeliverUnordered(msgspec.Struct, frozen=True, tag="DeliverUnordered"):
    """A decided run of a lane, in order: its frontier passes it. `first_offset` is the offset of the first record in the lane."""

    origin: int
    incarnation: bytes
    first_offset: int
    frames: tuple[Frame, ...]


class Reply(msgspec.Struct, frozen=True, tag="Reply"):
    """Answers to a client's session, in order."""

    session: int
    answers: tuple[Answer, ...]


class ReadIndex(msgspec.Struct, frozen=True, tag="ReadIndex"):
    """Answer to `ReadIndexAsked(number)`. `confirmed`: the frontier that was delivered holds all that was decided when the question
    came. Otherwise that is not known here.
    """

    number: int
    confirmed: bool


class ViewInstalled(msgspec.Struct, frozen=True, tag="ViewInstalled"):
    """A view: its id, members (gateway numbers, oldest first), coordinator, and whether it decides (its VIEW is decided)."""

    view: int
    members: tuple[int, ...]
    coordinator: int
    primary: bool


class Peers(msgspec.Struct, frozen=True, tag="Peers"):
    """Whom this gateway talks to: (number, name, address) of each, this one left out. It replaces what was told before."""

    peers: tuple[tuple[int, str, str], ...]


class Dropped(msgspec.Struct, frozen=True, tag="Dropped"):
    """Messages of `kind` from `sender` were not taken: the reason, and how many since this was told last (for the log; rare)."""

    kind: str
    sender: int
    reason: str
    count: int


class Suspect(msgspec.Struct, frozen=True, tag="Suspect"):
    """A member holds the group up: no vote progress for the atomic period, or it cannot take what it must. For the operator and the
    status; in a group of one it means that the disk does not answer.
    """

    member: int
    reason: str


class SetTimer(msgspec.Struct, frozen=True, tag="SetTimer"):
    """Send TimeAdvanced at this time (`Now.mono_us`), or soon after; it replaces the timer set before."""

    at_us: int


class Halt(msgspec.Struct, frozen=True, tag="Halt"):
    """Stop taking part; stay up for reads. `reason` is for the operator. `out`: the group went on without this gateway, by force:
    its log may differ from the group's, so that nobody is to read it as that any more, nor is it to start on this disk again.
    """

    reason: str
    out: bool = False


class Stopped(msgspec.Struct, frozen=True, tag="Stopped"):
    """The orderly stop is done: nothing is under way."""


Action = (
    Persist
    | ReadLog
    | ReadSnapshot
    | Mend
    | PersistLane
    | ReadLane
    | MendLane
    | LaneHeld
    | Send
    | Deliver
    | Relearned
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
