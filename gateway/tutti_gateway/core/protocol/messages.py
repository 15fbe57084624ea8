"""Messages between gateways.

A message that belongs to a view contains the view id, and a gateway in another view ignores the message. A message about a lane
contains the lane's attempt instead. The transport encodes messages for the network, and `codec` encodes them for tests and recorded
runs.
"""

from __future__ import annotations

import msgspec

from tutti.data.frames.frame import Frame


class Forward(msgspec.Struct, frozen=True, tag="Forward"):
    """Origin to coordinator: batches that need positions, in the order in which each producer sent them."""

    view: int
    frames: tuple[Frame, ...]


class AskEpoch(msgspec.Struct, frozen=True, tag="AskEpoch"):
    """Request to begin the epoch `epoch` of the producer `name` for the producer instance `instance`."""

    name: str
    instance: bytes
    epoch: int


class AskTopic(msgspec.Struct, frozen=True, tag="AskTopic"):
    """Request to register a topic by its name."""

    name: str


class AskOffsets(msgspec.Struct, frozen=True, tag="AskOffsets"):
    """Request to log the offset commit of a named reader, unless the log holds a commit of that reader after position `frontier`.

    The origin has found no copy of this commit in the log up to `frontier`.
    """

    reader: str
    offset: int
    frontier: int


class AskForget(msgspec.Struct, frozen=True, tag="AskForget"):
    """Request to delete the state of producers from the log. The log never assigns the numbers of these producers again."""

    producers: tuple[int, ...]


class AskRoster(msgspec.Struct, frozen=True, tag="AskRoster"):
    """Request to change one gateway of the roster.

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
    """Origin to coordinator: a client's or operator's request, which the coordinator answers by ordering a frame.

    The coordinator orders no frame if the log already holds the answer.
    """

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
    """Coordinator to origin: a batch is rejected, with the reason. If `retry` is True, the client may send the batch again."""

    view: int
    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class Deny(msgspec.Struct, frozen=True, tag="Deny"):
    """Coordinator to origin: a request is denied, with the reason. If `retry` is True, the client may repeat the request."""

    view: int
    ask: Ask
    code: str
    reason: str
    retry: bool


class Vote(msgspec.Struct, frozen=True, tag="Vote"):
    """Member to coordinator: YES to all frames up to position `up_to`, because they are durable on the member's disk.

    `low` is the reason why the member's disk accepts no new batches; empty if it accepts them.
    """

    view: int
    up_to: int
    low: str = ""


class No(msgspec.Struct, frozen=True, tag="No"):
    """Member to coordinator: NO to the batch at `position`, because the member cannot write it."""

    view: int
    position: int
    reason: str


class Confirm(msgspec.Struct, frozen=True, tag="Confirm"):
    """Coordinator to members: all members have voted YES up to position `up_to`, so all frames up to `up_to` are decided.

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
        held_us: time for which the sender kept the heartbeat that it echoes with `echo_us`.
        log: uuid of the sender's log; empty on a blank disk.
        config: CRC of the names and addresses of the configured members, which must be equal at all founders of a group.
        view, members: the installed view and its members; 0 and () without a view.
        promised, accepted: the views of the sender's durable hard state.
        claim: the view that the sender coordinates or proposes, if a majority has echoed its heartbeats; else 0.
        end: last position of the sender's log, which also reveals the loss of the coordinator's last message.
        frontier: last position that is decided at the sender.
        watermark: last position of which the sender's disk has recorded that it is decided.
        misses: True if the sender receives no heartbeats of a coordinator.
        hears: the gateways whose messages the sender has received within the boot period.
        ready: True if the sender is a learner that holds all decided frames except the newest ones.
        low: True if the sender's disk accepts no batches. A view includes a gateway with a low disk only if the other gateways are
            not a majority.
        leaving: True if the sender is in an orderly stop. A coordinator sets `leaving` only after all its frames are decided.
        forced, forced_at: view and position of the last forced ROSTER that is decided at the sender; 0 if there is none.
        out: True if the ROSTER at `forced_at` excludes the receiver.
        wall_us: the sender's wall clock (us, UTC); 0 if the sender's release does not send its clock.
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

    `forced` is True if an operator has declared that only the gateways in `members` remain.
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
    """Answer to Propose: the sender has durably promised the view, and sends no messages of older views (protocol/flush, F4).

    Attributes:
        accepted: the last view that the sender has accepted.
        end, chain: last position of the sender's durable log, and the chain value there. If the end of the log is corrupt, both
            values come from the vote mark.
        frontier: last position that is decided at the sender.
        base, table: `table` holds (view, first position) of each run of frames of one view after position `base`, in order.
        damage: the unreadable end of the sender's log; None if all frames are readable.
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

    `table` holds (view, first position) of each run of frames after the decided position `base`. Two logs differ from the first
    position at which the views of their frames differ.
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
    """Answer to Fetch: the frames from position `first` on, as many as fit; no frames if the sender does not hold them.

    In an answer to a learner, all frames are decided, and `source` is the sender's installed view. `stop` is the last position in
    `frames` to which the learner's frontier may move. If `frames` is empty, `stop` 0 means that the sender cannot read the
    requested frames.
    """

    view: int
    first: int
    frames: tuple[Frame, ...]
    source: int = 0
    stop: int = 0


class FetchSnapshot(msgspec.Struct, frozen=True, tag="FetchSnapshot"):
    """Request for the chunk of a snapshot that begins at byte `at`. `position` identifies the snapshot by its last position.

    The first chunk was the answer to a Fetch of frames that the receiver had trimmed. `view` is the view in that Fetch.
    """

    view: int
    position: int
    at: int


class FetchedSnapshot(msgspec.Struct, frozen=True, tag="FetchedSnapshot", kw_only=True):
    """A chunk of the snapshot with which the sender's own log begins: the decided state (LogState) up to `position`.

    The whole snapshot has `size` bytes, and `data` starts at byte `at`. The first chunk answers a Fetch, and each later chunk
    answers a FetchSnapshot. `size` 0 means that the sender no longer has the snapshot.
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
    """Claim: the sender announces that it will repair these ranges, so that no other member repairs them."""

    view: int
    ranges: tuple[tuple[int, int], ...]


class Repair(msgspec.Struct, frozen=True, tag="Repair"):
    """Ordered frames with consecutive positions, which any member that holds them may send to members that lack them."""

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
    """Member to origin: YES to all frames of the lane up to position `up_to`, because they are durable on the member's disk.

    `attempt` is the attempt of the frame at `up_to`. `low` is the reason why the member's disk accepts no more batches, and counts
    as a NO to them; empty if the disk accepts them. `again` is True if the origin must post frames again, because the member lacks
    a frame before a later one.
    """

    incarnation: bytes
    attempt: int
    up_to: int
    low: str = ""
    again: bool = False


class Settled(msgspec.Struct, frozen=True, tag="Settled"):
    """Origin to members: in this attempt, the frame at position `up_to` and all earlier frames of the lane are decided."""

    incarnation: bytes
    attempt: int
    up_to: int


class LaneEnd(msgspec.Struct, frozen=True, array_like=True):
    """One entry of LaneEnds: the last position of a lane that is decided at the sender."""

    origin: int
    incarnation: bytes
    decided: int


class LaneEnds(msgspec.Struct, frozen=True, tag="LaneEnds"):
    """Gateway to all connected gateways, every few heartbeats: the last decided position of each lane that the sender stores.

    A receiver that lacks decided frames fetches them.
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
        offset: offset of the first record after the trimmed frames.
        members: members of `attempt`, oldest first.
    """

    position: int
    attempt: int
    chain: int
    offset: int
    members: tuple[int, ...]


class LaneFetched(msgspec.Struct, frozen=True, tag="LaneFetched"):
    """Answer to LaneFetch: the decided frames from the requested position on, as many as one read returns.

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
    """Answer to the LaneAsk with this token: the last durable position of the sender's copy, and the attempt of the frame there.

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
