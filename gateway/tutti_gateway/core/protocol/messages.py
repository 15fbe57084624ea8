"""Messages between gateways.

A message of a view contains the view id, and members of other views ignore it. Messages of lanes contain an attempt instead.
Messages hold references to frame objects. The transport encodes messages for the network, and `codec` for tests and recorded runs.
"""

from __future__ import annotations

import msgspec

from tutti.data.frames.frame import Frame


class Forward(msgspec.Struct, frozen=True, tag="Forward"):
    """Origin to coordinator: batches that need positions, in the order in which each producer sent them."""

    view: int
    frames: tuple[Frame, ...]


class AskEpoch(msgspec.Struct, frozen=True, tag="AskEpoch"):
    """Begin `epoch` of the producer `name` for `instance`."""

    name: str
    instance: bytes
    epoch: int


class AskTopic(msgspec.Struct, frozen=True, tag="AskTopic"):
    """Register a topic by its name."""

    name: str


class AskOffsets(msgspec.Struct, frozen=True, tag="AskOffsets"):
    """Log the offset commit of a named reader, unless the log holds a commit of that reader after position `frontier`.

    The origin has checked the log up to `frontier`, and knows that this commit is not in that part.
    """

    reader: str
    offset: int
    frontier: int


class AskForget(msgspec.Struct, frozen=True, tag="AskForget"):
    """Forget producers: delete their state in the log. Their numbers are never used again."""

    producers: tuple[int, ...]


class AskRoster(msgspec.Struct, frozen=True, tag="AskRoster"):
    """Change one gateway of the roster.

    `change` is "add", "remove" or "replace". "add" adds the gateway `name` at `address`, which votes only after it has caught up.
    "replace" is for a lost disk: the gateway's new disk votes instead of the disk `incarnation` in the roster. `frontier` is the
    origin's frontier. The coordinator ignores a request whose frontier is below the last ROSTER, because that ROSTER may have
    undone the requested change.
    """

    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""
    frontier: int = 0


Ask = AskEpoch | AskTopic | AskOffsets | AskForget | AskRoster


class Asking(msgspec.Struct, frozen=True, tag="Asking"):
    """Origin to coordinator: a request, for which the coordinator orders a frame unless the log already holds the answer."""

    view: int
    ask: Ask


class Order(msgspec.Struct, frozen=True, tag="Order"):
    """Coordinator to members: ordered frames with consecutive positions."""

    view: int
    frames: tuple[Frame, ...]


class Echo(msgspec.Struct, frozen=True, tag="Echo"):
    """Coordinator to origin: headers (96 bytes each) of ordered batches whose bodies the origin has in its forward-table."""

    view: int
    headers: bytes


class Resend(msgspec.Struct, frozen=True, tag="Resend"):
    """Coordinator to origin: send the producer's batches again, from `sequence` on, because they were not ordered.

    `sequence` is the next sequence that the coordinator accepts.
    """

    view: int
    producer: int
    epoch: int
    sequence: int


class Refuse(msgspec.Struct, frozen=True, tag="Refuse"):
    """Coordinator to origin: a batch is rejected, with the reason. `retry` means that the client may send it again."""

    view: int
    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class Deny(msgspec.Struct, frozen=True, tag="Deny"):
    """Coordinator to origin: a request is denied, with the reason. `retry` means that the client may repeat it."""

    view: int
    ask: Ask
    code: str
    reason: str
    retry: bool


class Vote(msgspec.Struct, frozen=True, tag="Vote"):
    """Member to coordinator: YES to all frames up to the position, which are durable on the member's disk.

    `low` is the reason why that disk accepts no new batches; empty if it accepts them.
    """

    view: int
    up_to: int
    low: str = ""


class No(msgspec.Struct, frozen=True, tag="No"):
    """Member to coordinator: NO to the batch at the position, which this member cannot write."""

    view: int
    position: int
    reason: str


class Confirm(msgspec.Struct, frozen=True, tag="Confirm"):
    """Coordinator to members: all members have voted YES up to the position, so all frames up to it are decided.

    The coordinator repeats CONFIRM in each heartbeat. A member whose clients do not wait for the decision may get it slightly
    later, with the next ORDER (protocol/atomic, A5).
    """

    view: int
    up_to: int


class Heartbeat(msgspec.Struct, frozen=True, tag="Heartbeat", kw_only=True):
    """Soft state of a gateway, sent to its peers at fixed intervals. A lost, late or duplicated heartbeat does no harm.

    Attributes:
        sent_us: the sender's monotonic clock, which the receiver returns in `echo_us`.
        echo_us: the last `sent_us` that the sender got from the receiver; 0 if there is none.
        held_us: time since the heartbeat with that `sent_us` arrived at the sender.
        log: uuid of the log; empty on a blank disk.
        config: CRC of the names and addresses of the configured members, which must be equal at all founders of a group.
        view, members: the installed view and its members; 0 and () without a view.
        promised, accepted: the views of the sender's durable hard state.
        claim: the view that the sender coordinates or proposes, if a majority has echoed its heartbeats; else 0.
        end: last position of the sender's log, which also reveals the loss of the coordinator's last message.
        frontier: last position that is decided at the sender.
        watermark: last position of which the sender's disk has recorded that it is decided.
        misses: True if the sender receives no heartbeats of a coordinator.
        hears: the gateways whose messages the sender has received within the boot period.
        ready: True for a learner that holds all decided frames except the last ones.
        low: True if the sender's disk accepts no batches. A view includes the sender only if the others are not a majority.
        leaving: True if the sender stops in order. A coordinator sets this only after all its frames are decided.
        forced, forced_at: view and position of the last forced ROSTER that is decided at the sender; 0 if there is none.
        out: True if that ROSTER excludes the receiver.
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

    A coordinator probes a suspect before it boots that member, and any gateway probes all voters to confirm a frontier.
    """


class Propose(msgspec.Struct, frozen=True, tag="Propose"):
    """Candidate to the proposed members of `view`: promise the view, and report your log (protocol/flush, F1).

    `forced` is True if an operator has declared that only these gateways remain.
    """

    view: int
    members: tuple[int, ...]
    forced: bool = False


class Damage(msgspec.Struct, frozen=True):
    """The corrupt end of a log: positions `first` to `last` were durable but cannot be read.

    `view` and `chain` are the view and chain value of the frame at `last`, according to the vote mark.
    """

    first: int
    last: int
    view: int
    chain: int


class State(msgspec.Struct, frozen=True, tag="State", kw_only=True):
    """Answer to Propose: the view is durably promised, and the sender sends no messages of older views (protocol/flush, F4).

    Attributes:
        accepted: the last view that the sender has accepted.
        end, chain: last position of the durable log and its chain value. For a corrupt log, both are as in the vote mark.
        frontier: last position that is decided at the sender.
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
    """Answer to Propose, Install or Fetch: the sender refuses, and accepts only views above `promised`."""

    view: int
    promised: int
    reason: str


class Install(msgspec.Struct, frozen=True, tag="Install", kw_only=True):
    """Candidate to the members of `view`: make your log equal to the described log, and accept the view (protocol/flush, F9).

    `table` lists the view of each run of frames after the decided position `base`. Two logs differ at the first position at which
    the views of their frames differ.
    """

    view: int
    members: tuple[int, ...]
    end: int
    chain: int
    base: int
    table: tuple[tuple[int, int], ...]


class Installed(msgspec.Struct, frozen=True, tag="Installed"):
    """Answer to Install: the sender's log is equal to the described log, and the acceptance of the view is durable."""

    view: int


class Fetch(msgspec.Struct, frozen=True, tag="Fetch"):
    """Request for frames `first` to `last` during a change to `view`. A learner sends view 0 and gets only decided frames."""

    view: int
    first: int
    last: int


class Fetched(msgspec.Struct, frozen=True, tag="Fetched", kw_only=True):
    """Answer to Fetch: frames from `first` on, as many as fit; none if the source does not hold them.

    In an answer to a learner, all frames are decided, and `source` is the sender's installed view. `stop` is the last of their
    positions to which the frontier may move. Without frames, `stop` 0 means that the source cannot read the requested frames.
    """

    view: int
    first: int
    frames: tuple[Frame, ...]
    source: int = 0
    stop: int = 0


class FetchSnapshot(msgspec.Struct, frozen=True, tag="FetchSnapshot"):
    """Request for the next chunk of a snapshot, from byte `at` on. `position` identifies the snapshot.

    The source has sent the first chunk in answer to a Fetch of frames that it has trimmed. `view` is the view of that Fetch.
    """

    view: int
    position: int
    at: int


class FetchedSnapshot(msgspec.Struct, frozen=True, tag="FetchedSnapshot", kw_only=True):
    """A chunk of the snapshot with which the sender's own log begins: the decided state (LogState) up to `position`.

    `data` starts at byte `at` of `size` bytes. The first chunk is the answer to a Fetch, and later ones answer FetchSnapshot.
    `size` 0 means that the sender no longer has the snapshot.
    """

    view: int
    position: int
    size: int
    at: int
    data: bytes
    source: int = 0


class Missing(msgspec.Struct, frozen=True, tag="Missing"):
    """Request for repair: the sender lacks these ranges (first, last) of positions of `view` (protocol/repair, R1).

    All members receive the request, but only the member `of` repairs. If `of` is 0, any member that holds the frames may repair.
    """

    view: int
    ranges: tuple[tuple[int, int], ...]
    of: int = 0


class Repairing(msgspec.Struct, frozen=True, tag="Repairing"):
    """Claim: the sender repairs these ranges, so that no other member does."""

    view: int
    ranges: tuple[tuple[int, int], ...]


class Repair(msgspec.Struct, frozen=True, tag="Repair"):
    """Repair: ordered frames with consecutive positions, from any member that holds them."""

    view: int
    frames: tuple[Frame, ...]


# Messages of lanes contain an attempt instead of a view.
# A lane is the stream of one origin's disk, identified by the origin's gateway number and the incarnation of the disk.
# In a frame of a lane, `position` is the position in the lane, `view` is the attempt, and the chain links frames of the lane.


class Post(msgspec.Struct, frozen=True, tag="Post"):
    """Origin to the members of its attempt: the next frames of its lane.

    The first frame of an attempt is a VIEW frame that names the members.
    """

    incarnation: bytes
    frames: tuple[Frame, ...]


class Posted(msgspec.Struct, frozen=True, tag="Posted"):
    """Member to origin: YES to all frames of the lane up to the position, which are durable on the member's disk.

    `attempt` is the attempt of the last of these frames. `low` is the reason why the disk accepts no later batch, which is a NO;
    empty if it accepts them. `again` is True if a gap before later frames must be filled.
    """

    incarnation: bytes
    attempt: int
    up_to: int
    low: str = ""
    again: bool = False


class Settled(msgspec.Struct, frozen=True, tag="Settled"):
    """Origin to members: the frame of this attempt at the position and all earlier frames of the lane are decided."""

    incarnation: bytes
    attempt: int
    up_to: int


class LaneEnd(msgspec.Struct, frozen=True, array_like=True):
    """One entry of LaneEnds: the last position of a lane that is decided at the sender."""

    origin: int
    incarnation: bytes
    decided: int


class LaneEnds(msgspec.Struct, frozen=True, tag="LaneEnds"):
    """Each gateway to the connected gateways, every few heartbeats: the decided end of each lane that the sender stores.

    A receiver that lags then fetches the frames that it lacks.
    """

    ends: tuple[LaneEnd, ...]


class LaneFetch(msgspec.Struct, frozen=True, tag="LaneFetch"):
    """Request for decided frames of a lane, from position `first` on."""

    origin: int
    incarnation: bytes
    first: int


class LaneBegin(msgspec.Struct, frozen=True, array_like=True):
    """Start of a lane from which the sender has trimmed all frames up to `position`.

    Attributes:
        position, attempt, chain: position, attempt and chain value of the last trimmed frame.
        offset: offset of the next record.
        members: members of that attempt, oldest first.
    """

    position: int
    attempt: int
    chain: int
    offset: int
    members: tuple[int, ...]


class LaneFetched(msgspec.Struct, frozen=True, tag="LaneFetched"):
    """Answer to LaneFetch: decided frames, as many as one read returns.

    If the sender has trimmed the requested frames, `frames` is empty, and `begin` describes the start of the sender's copy.
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneAsk(msgspec.Struct, frozen=True, tag="LaneAsk"):
    """Origin to all gateways, after its disk lost the end of its lane: report the end of your copy (protocol/lanes, U31).

    Attributes:
        incarnation: incarnation of the origin's disk, which identifies the lane.
        token: identifies the origin's current run.
        attempt, up_to: attempt and position of the last frame that was certainly durable at the origin, and therefore decided.
        behind: position after which the receiver must send its undecided frames; 0 if it must send none.
    """

    incarnation: bytes
    token: int
    attempt: int
    up_to: int
    behind: int = 0


class LaneTail(msgspec.Struct, frozen=True, tag="LaneTail"):
    """Answer to LaneAsk, with the same token: last durable position of the sender's copy, and the attempt of the frame there.

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
