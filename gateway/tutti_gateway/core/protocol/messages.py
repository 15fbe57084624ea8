"""Messages between gateways. A message of a view contains the view id, and members of other views ignore the message. Messages of
lanes contain an attempt instead.

Messages hold frames by reference. The transport encodes them; for tests and recorded runs, `codec` does.
"""

from __future__ import annotations

import msgspec

from tutti.data.frames.frame import Frame


class Forward(msgspec.Struct, frozen=True, tag="Forward"):
    """Origin to coordinator: batches to order, without positions, in the order of their producers."""

    view: int
    frames: tuple[Frame, ...]


class AskEpoch(msgspec.Struct, frozen=True, tag="AskEpoch"):
    """Begin `epoch` of the producer `name` for `instance`."""

    name: str
    instance: bytes
    epoch: int


class AskTopic(msgspec.Struct, frozen=True, tag="AskTopic"):
    """Register a topic."""

    name: str


class AskOffsets(msgspec.Struct, frozen=True, tag="AskOffsets"):
    """Log the offset commit of a named reader, unless the log holds a commit of that reader after position `frontier`.

    `frontier` is an earlier frontier of the origin. The origin knows that the log does not hold this commit up to there.
    """

    reader: str
    offset: int
    frontier: int


class AskForget(msgspec.Struct, frozen=True, tag="AskForget"):
    """Remove producers from the received-table. Their numbers are never used again."""

    producers: tuple[int, ...]


class AskRoster(msgspec.Struct, frozen=True, tag="AskRoster"):
    """Change one gateway of the roster.

    `change` is "add", "remove" or "replace". "add" adds `name` at `address`, as a learner that votes once it has caught up.
    "replace" is for a lost disk: the gateway's new incarnation votes instead of `incarnation`, which is the disk in the roster.
    `frontier` is the origin's frontier. The coordinator ignores a request with a frontier below the last ROSTER, because the
    requested change may have been undone since.
    """

    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""
    frontier: int = 0


Ask = AskEpoch | AskTopic | AskOffsets | AskForget | AskRoster


class Asking(msgspec.Struct, frozen=True, tag="Asking"):
    """Origin to coordinator: order the frame that answers this request, unless the log already holds it."""

    view: int
    ask: Ask


class Order(msgspec.Struct, frozen=True, tag="Order"):
    """Coordinator to members: ordered frames with consecutive positions."""

    view: int
    frames: tuple[Frame, ...]


class Echo(msgspec.Struct, frozen=True, tag="Echo"):
    """Coordinator to the origin of a run: packed headers (96 bytes each) of its own frames, which are in its forward-table."""

    view: int
    headers: bytes


class Resend(msgspec.Struct, frozen=True, tag="Resend"):
    """Coordinator to origin: batches of the producer were not ordered.

    Send them again from `sequence`, the next sequence that the coordinator accepts.
    """

    view: int
    producer: int
    epoch: int
    sequence: int


class Refuse(msgspec.Struct, frozen=True, tag="Refuse"):
    """Coordinator to origin: a batch was rejected, and why."""

    view: int
    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class Deny(msgspec.Struct, frozen=True, tag="Deny"):
    """Coordinator to origin: a request cannot be fulfilled, and why."""

    view: int
    ask: Ask
    code: str
    reason: str
    retry: bool


class Vote(msgspec.Struct, frozen=True, tag="Vote"):
    """Member to coordinator, YES: all frames up to the position are durable here. The vote is cumulative.

    `low` is the reason why the disk accepts no new batches; empty if it accepts them.
    """

    view: int
    up_to: int
    low: str = ""


class No(msgspec.Struct, frozen=True, tag="No"):
    """Member to coordinator, NO: this member rejects the batch at the position."""

    view: int
    position: int
    reason: str


class Confirm(msgspec.Struct, frozen=True, tag="Confirm"):
    """Coordinator to members: all members have voted YES up to the position, so it is decided. CONFIRM is cumulative and repeated,
    never cached.

    A member whose clients do not wait for the run may get it slightly later, with the next ORDER (protocol/atomic, A5).
    """

    view: int
    up_to: int


class Heartbeat(msgspec.Struct, frozen=True, tag="Heartbeat", kw_only=True):
    """Soft state of a gateway, sent to every peer in each heartbeat. A lost, late or duplicated heartbeat does no harm.

    Attributes:
        sent_us: the sender's clock. The receiver returns it in `echo_us`.
        echo_us: the last `sent_us` that the sender got from the receiver; 0 if there is none.
        held_us: time since that `sent_us` arrived.
        log: uuid of the log, empty on a blank disk.
        config: CRC of the names and addresses of the configured members. All gateways must have the same value for a genesis.
        view, members: the installed view and its members; 0 and () if there is none.
        promised, accepted: as in `HardState`; durable.
        claim: the view that the sender coordinates or is about to install, confirmed by echoes of a majority; 0 if there is none.
        end: last position of the sender's log. For a coordinator, the last ordered position, so that the loss of the last message
            is detected.
        frontier: last position that is decided at the sender.
        watermark: last position that is durably known as decided.
        misses: True if the sender hears no coordinator.
        hears: the gateways that the sender hears.
        ready: True for a learner that holds all decided frames except those in progress.
        low: True if the sender's disk accepts no batches. A view includes the sender only if the others are not a majority.
        leaving: True if the sender stops in order. A coordinator reports this when all its frames are decided and it no longer
            coordinates.
        forced, forced_at: view and position of the last forced ROSTER that is decided at the sender; 0 if there is none.
        out: True if that roster or a later one does not name the receiver.
        wall_us: the sender's wall clock (us, UTC); 0 from a release that does not send it.
    """

    sent_us: int
    echo_us: int = 0
    held_us: int = 0
    log: bytes = b""
    config: int = 0
    view: int = 0
    members: tuple[int, ...] = ()
    promised: int = 0
    accepted: int = 0
    claim: int = 0
    end: int = 0
    frontier: int = 0
    watermark: int = 0
    misses: bool = True
    hears: tuple[int, ...] = ()
    ready: bool = False
    leaving: bool = False
    low: bool = False
    forced: int = 0
    forced_at: int = 0
    out: bool = False
    wall_us: int = 0


class Probe(msgspec.Struct, frozen=True, tag="Probe"):
    """Request for an immediate heartbeat.

    It is sent to a suspect before it is booted, and to voters in order to confirm a frontier.
    """


class Propose(msgspec.Struct, frozen=True, tag="Propose"):
    """Candidate to the proposed members of `view`: promise the view, and report your log (protocol/flush, F1).

    `forced` is True if an operator declares that only these gateways remain.
    """

    view: int
    members: tuple[int, ...]
    forced: bool = False


class Damage(msgspec.Struct, frozen=True):
    """Positions `first` to `last` that were durable here but cannot be read.

    `view` and `chain` are those of the frame at `last`.
    """

    first: int
    last: int
    view: int
    chain: int


class State(msgspec.Struct, frozen=True, tag="State", kw_only=True):
    """Answer to Propose: the view is durably promised, and no message of an older view will be sent (protocol/flush, F4).

    Attributes:
        accepted: the accepted view.
        end, chain: last position of the durable log and its chain value. For a corrupt log, both are as in the vote mark.
        frontier: last position that is known as decided here.
        base, table: (view, first position) of each run of frames of one view after position `base`, in order.
        damage: the unreadable end of the log; None if there is none.
    """

    view: int
    accepted: int
    end: int
    chain: int
    frontier: int
    base: int
    table: tuple[tuple[int, int], ...]
    damage: Damage | None = None


class Reject(msgspec.Struct, frozen=True, tag="Reject"):
    """Refusal, in answer to Propose, Install or Fetch. A new view must be above `promised`."""

    view: int
    promised: int
    reason: str


class Install(msgspec.Struct, frozen=True, tag="Install", kw_only=True):
    """Candidate to the members of `view`: make your log equal to the described log, and accept the view (protocol/flush, F9).

    `table` describes the adopted log after position `base`, which is decided. Two logs differ where the views of their frames
    differ.
    """

    view: int
    members: tuple[int, ...]
    end: int
    chain: int
    base: int
    table: tuple[tuple[int, int], ...]


class Installed(msgspec.Struct, frozen=True, tag="Installed"):
    """Answer to Install: the log is durably equal, and the view is accepted."""

    view: int


class Fetch(msgspec.Struct, frozen=True, tag="Fetch"):
    """Request for frames `first` to `last`, for the promised view. With view 0, a learner requests decided frames only."""

    view: int
    first: int
    last: int


class Fetched(msgspec.Struct, frozen=True, tag="Fetched", kw_only=True):
    """Answer to Fetch: frames starting at `first`, as many as fit; none if the source does not hold them.

    In an answer to a learner, all frames are decided in the sender's installed view `source`. `stop` is the last of their positions
    at which a decision may stop. An answer without frames and with `stop` 0 means that the source cannot read them.
    """

    view: int
    first: int
    frames: tuple[Frame, ...]
    source: int = 0
    stop: int = 0


class FetchSnapshot(msgspec.Struct, frozen=True, tag="FetchSnapshot"):
    """Request for the next chunk of a snapshot, which starts at byte `at`. The snapshot is the state up to `position`.

    The source offered the snapshot in answer to a Fetch of frames that it has trimmed. `view` is the view of that Fetch.
    """

    view: int
    position: int
    at: int


class FetchedSnapshot(msgspec.Struct, frozen=True, tag="FetchedSnapshot", kw_only=True):
    """A chunk of the state (LogState) of the decided log up to `position`, with which the sender's own log begins.

    `data` starts at byte `at` of `size` bytes. The answer to Fetch is the first chunk. `size` 0 means that the sender no longer has
    the snapshot.
    """

    view: int
    position: int
    size: int
    at: int
    data: bytes
    source: int = 0


class Missing(msgspec.Struct, frozen=True, tag="Missing"):
    """Repair request: ranges (first, last) of positions of `view` that were announced but are missing here (protocol/repair, R1).

    All members receive it. The member `of` must repair; if `of` is 0, any holder repairs.
    """

    view: int
    ranges: tuple[tuple[int, int], ...]
    of: int = 0


class Repairing(msgspec.Struct, frozen=True, tag="Repairing"):
    """A holder announces that it repairs these ranges, so that other holders do not."""

    view: int
    ranges: tuple[tuple[int, int], ...]


class Repair(msgspec.Struct, frozen=True, tag="Repair"):
    """Ordered frames with consecutive positions, from any member that holds them."""

    view: int
    frames: tuple[Frame, ...]


# Messages of lanes contain an attempt instead of a view. A lane is the stream of one origin's disk, identified by gateway number
# and incarnation. In a lane frame, `position` is the position in the lane, `view` is the attempt, and the chain is that of the
# lane.


class Post(msgspec.Struct, frozen=True, tag="Post"):
    """Origin to the members of its attempt: the next frames of its lane.

    The first frame of an attempt is a VIEW that names these members.
    """

    incarnation: bytes
    frames: tuple[Frame, ...]


class Posted(msgspec.Struct, frozen=True, tag="Posted"):
    """Member to origin, YES: the lane is durable here up to the position, and its last frame there belongs to this attempt. The
    vote is cumulative.

    `low` is the reason why the disk accepts no later batch, which is a NO; empty if it accepts them. `again` is True if later
    frames arrived after a gap.
    """

    incarnation: bytes
    attempt: int
    up_to: int
    low: str = ""
    again: bool = False


class Settled(msgspec.Struct, frozen=True, tag="Settled"):
    """Origin to members, CONFIRM: the frame of this attempt at the position is decided, and so are all earlier frames.

    Cumulative.
    """

    incarnation: bytes
    attempt: int
    up_to: int


class LaneEnd(msgspec.Struct, frozen=True, array_like=True):
    """The last position of a lane that is decided at the sender."""

    origin: int
    incarnation: bytes
    decided: int


class LaneEnds(msgspec.Struct, frozen=True, tag="LaneEnds"):
    """Each gateway to the connected gateways, at intervals of heartbeats: the decided end of each known lane. A gateway that lags
    fetches the rest.
    """

    ends: tuple[LaneEnd, ...]


class LaneFetch(msgspec.Struct, frozen=True, tag="LaneFetch"):
    """Request for decided frames of a lane, starting at this position."""

    origin: int
    incarnation: bytes
    first: int


class LaneBegin(msgspec.Struct, frozen=True, array_like=True):
    """State of a lane at a decided position. The sender has trimmed the lane up to that position.

    Attributes:
        position, attempt, chain: position, attempt and chain value of the frame at that position.
        offset: offset of the next record.
        members: members of the attempt, oldest first.
    """

    position: int
    attempt: int
    chain: int
    offset: int
    members: tuple[int, ...]


class LaneFetched(msgspec.Struct, frozen=True, tag="LaneFetched"):
    """Answer to LaneFetch: decided frames, as many as one read returns. There are none if the sender's lane begins later; `begin`
    then describes its start.
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneAsk(msgspec.Struct, frozen=True, tag="LaneAsk"):
    """Origin to all gateways, after its disk lost the end of its lane: report the end of your copy (protocol/lanes, U31).

    Attributes:
        incarnation: disk of the lane.
        token: identifies the origin's current run.
        attempt, up_to: attempt and position of the last frame that was durable at the origin. That frame and all earlier ones are
            decided.
        behind: the undecided frames after this position are requested; 0 if none are.
    """

    incarnation: bytes
    token: int
    attempt: int
    up_to: int
    behind: int = 0


class LaneTail(msgspec.Struct, frozen=True, tag="LaneTail"):
    """Answer to LaneAsk, with its token: the lane is durable here up to the position, and its last frame there belongs to this
    attempt.

    `frames` holds the requested frames, as many as fit into one message.
    """

    incarnation: bytes
    token: int
    attempt: int
    up_to: int
    frames: tuple[Frame, ...] = ()


Views = Heartbeat | Probe | Propose | State | Reject | Install | Installed | Fetch | Fetched | FetchSnapshot | FetchedSnapshot
Repairs = Missing | Repairing | Repair
LaneMessage = Post | Posted | Settled | LaneEnds | LaneFetch | LaneFetched | LaneAsk | LaneTail
Message = Forward | Asking | Order | Echo | Resend | Refuse | Deny | Vote | No | Confirm | Views | Repairs | LaneMessage
