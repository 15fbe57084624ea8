"""Messages between gateways. A message of a view names it, and members of another view ignore it. Messages of lanes name an attempt
instead.

Messages hold frames by reference; the transport encodes them (`codec` does it for tests and recorded runs).
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

    `frontier` is the origin's own frontier at a time when it knew that the log up to there does not hold this commit.
    """

    reader: str
    offset: int
    frontier: int


class AskForget(msgspec.Struct, frozen=True, tag="AskForget"):
    """Remove producers from the received-table. Their numbers are never used again."""

    producers: tuple[int, ...]


class AskRoster(msgspec.Struct, frozen=True, tag="AskRoster"):
    """Change one gateway of the roster.

    `change` is "add" (`name` at `address`, as a learner that votes once it has caught up), "remove", or "replace". The last one is
    for a lost disk: the gateway's new incarnation votes instead of `incarnation`, the one that the roster names. `frontier` is the
    origin's. The coordinator ignores a copy that is older than a later ROSTER, because it may ask for a change that was undone
    meanwhile.
    """

    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""
    frontier: int = 0


Ask = AskEpoch | AskTopic | AskOffsets | AskForget | AskRoster


class Asking(msgspec.Struct, frozen=True, tag="Asking"):
    """Origin to coordinator: order the frame that answers this request, unless the log holds it already."""

    view: int
    ask: Ask


class Order(msgspec.Struct, frozen=True, tag="Order"):
    """Coordinator to members: ordered frames, positions dense and increasing."""

    view: int
    frames: tuple[Frame, ...]


class Echo(msgspec.Struct, frozen=True, tag="Echo"):
    """Coordinator to the origin of a run: packed headers (96 bytes each) of its own frames, which are in its forward-table."""

    view: int
    headers: bytes


class Resend(msgspec.Struct, frozen=True, tag="Resend"):
    """Coordinator to origin: batches of the producer were not ordered; send again from `sequence`, the next one that it accepts."""

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
    """Member to coordinator, YES: everything up to the position is durable here. Cumulative.

    `low` is the reason why the disk accepts nothing new, empty if it does.
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
    """Coordinator to members: all of them voted YES up to the position, so it is decided. Cumulative and repeated, never cached.

    A member that waits for nothing in the run may get it a little later, with the next ORDER (protocol/atomic, A5).
    """

    view: int
    up_to: int


class Heartbeat(msgspec.Struct, frozen=True, tag="Heartbeat", kw_only=True):
    """Soft state of a gateway, sent to every peer in each heartbeat. A lost, late or duplicated one does no harm.

    Attributes:
        sent_us: the sender's clock; it comes back in `echo_us`.
        echo_us, held_us: the last `sent_us` that came from the receiver of this message, and its age; 0 before any.
        log: uuid of the log, empty on a blank disk.
        config: CRC of names and addresses of the configured members; all must agree for a genesis.
        view, members: the installed view; 0 and () without one.
        promised, accepted: as in `HardState`, durable.
        claim: the view that the sender coordinates or brings about, confirmed by echoes of a majority; 0 otherwise.
        end: last position of its log; of a coordinator, the last ordered position, so a lost last message shows.
        frontier, watermark: last position that is decided here, and the last one that is durably known as decided.
        misses: True if it hears no coordinator.
        hears: the gateways that it hears.
        ready: True for a learner that holds everything decided except frames in progress.
        low: True if its disk accepts no batches: it joins a view only where there is no majority without it.
        leaving: True if it stops in order; a coordinator that reports this has decided everything and coordinates no more.
        forced, forced_at: view and position of the last forced roster that is decided here, 0 if there is none.
        out: True if that roster, or a later one, does not name the receiver.
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
    """Answer with a heartbeat at once: sent to a suspect before it is booted, and to voters that confirm a frontier."""


class Propose(msgspec.Struct, frozen=True, tag="Propose"):
    """Candidate to the members that it wants in `view`: promise it, and report your log (protocol/flush, F1).

    `forced` is True if an operator declares that only these gateways remain.
    """

    view: int
    members: tuple[int, ...]
    forced: bool = False


class Damage(msgspec.Struct, frozen=True):
    """Positions `first` to `last` that were durable here and cannot be read; `view` and `chain` are those of `last`."""

    first: int
    last: int
    view: int
    chain: int


class State(msgspec.Struct, frozen=True, tag="State", kw_only=True):
    """Answer to Propose: the view is durably promised, and no older message will leave (protocol/flush, F4).

    Attributes:
        accepted: the accepted view.
        end, chain: last position of the durable log and its chain value; of a corrupt log as in its vote mark.
        frontier: last position known as decided here.
        base, table: (view, first position) of each run of frames of one view after position `base`, in order.
        damage: the end of the log that cannot be read, or None.
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
    """Answer to Propose, Install or Fetch: refused. A higher view must be above `promised`."""

    view: int
    promised: int
    reason: str


class Install(msgspec.Struct, frozen=True, tag="Install", kw_only=True):
    """Candidate to the members of `view`: make your log equal to this one, and accept the view (protocol/flush, F9).

    `table` describes the adopted log after position `base`, which is decided. Where a frame has another view there, the logs
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
    """Request for frames `first` to `last`: for the promised view, or with view 0 by a learner, which wants only decided frames."""

    view: int
    first: int
    last: int


class Fetched(msgspec.Struct, frozen=True, tag="Fetched", kw_only=True):
    """Answer to Fetch: frames from `first` on, as many as fit; none if the source does not hold them.

    For a learner all frames are decided in the sender's installed view `source`, and `stop` is their last position where a decision
    may stop. No frames with `stop` 0 mean that the source cannot read them.
    """

    view: int
    first: int
    frames: tuple[Frame, ...]
    source: int = 0
    stop: int = 0


class FetchSnapshot(msgspec.Struct, frozen=True, tag="FetchSnapshot"):
    """Request for the next chunk, from byte `at` on, of the state up to `position`.

    The source offered that state in answer to a Fetch of frames that it has trimmed. `view` is that of the Fetch.
    """

    view: int
    position: int
    at: int


class FetchedSnapshot(msgspec.Struct, frozen=True, tag="FetchedSnapshot", kw_only=True):
    """A chunk of the state (LogState) of the decided log up to `position`, with which the sender's own log begins.

    `data` begins at byte `at` of `size` bytes. The answer to Fetch is the first chunk. `size` 0 means that the sender no longer has
    the state.
    """

    view: int
    position: int
    size: int
    at: int
    data: bytes
    source: int = 0


class Missing(msgspec.Struct, frozen=True, tag="Missing"):
    """Repair request: ranges (first, last) of positions of `view` that were announced and are not here (protocol/repair, R1).

    All members receive it. The member `of` repairs, or any holder if it is 0.
    """

    view: int
    ranges: tuple[tuple[int, int], ...]
    of: int = 0


class Repairing(msgspec.Struct, frozen=True, tag="Repairing"):
    """A holder announces that it repairs these ranges, so that other holders do not."""

    view: int
    ranges: tuple[tuple[int, int], ...]


class Repair(msgspec.Struct, frozen=True, tag="Repair"):
    """Ordered frames from any member that holds them, positions dense and increasing."""

    view: int
    frames: tuple[Frame, ...]


# Messages of lanes name an attempt instead of a view. A lane is the stream of one origin's disk (gateway number, incarnation).
# In frames of a lane `position` counts in the lane, `view` is the attempt, and the chain is the lane's own.


class Post(msgspec.Struct, frozen=True, tag="Post"):
    """Origin to the members of its attempt: the next frames of its lane. An attempt begins with a VIEW that names these members."""

    incarnation: bytes
    frames: tuple[Frame, ...]


class Posted(msgspec.Struct, frozen=True, tag="Posted"):
    """Member to origin, YES: the lane is durable here up to the position, its end in this attempt. Cumulative.

    `low` is the reason why the disk accepts no batch after it (NO), empty if it does. `again` is True if later frames arrived with
    a gap.
    """

    incarnation: bytes
    attempt: int
    up_to: int
    low: str = ""
    again: bool = False


class Settled(msgspec.Struct, frozen=True, tag="Settled"):
    """Origin to members, CONFIRM: the frame of this attempt at the position is decided, and all before it. Cumulative."""

    incarnation: bytes
    attempt: int
    up_to: int


class LaneEnd(msgspec.Struct, frozen=True, array_like=True):
    """The last position of a lane that is decided at the sender."""

    origin: int
    incarnation: bytes
    decided: int


class LaneEnds(msgspec.Struct, frozen=True, tag="LaneEnds"):
    """Every gateway to its part, in heartbeat time: how far each known lane is decided here. A gateway that
    lags fetches the rest.
    """

    ends: tuple[LaneEnd, ...]


class LaneFetch(msgspec.Struct, frozen=True, tag="LaneFetch"):
    """Request for decided frames of a lane, from this position on."""

    origin: int
    incarnation: bytes
    first: int


class LaneBegin(msgspec.Struct, frozen=True, array_like=True):
    """State of a lane at a decided position before which the sender has trimmed it.

    Attributes:
        position, attempt, chain: of that frame.
        offset: of the next record after it.
        members: of the attempt, oldest first.
    """

    position: int
    attempt: int
    chain: int
    offset: int
    members: tuple[int, ...]


class LaneFetched(msgspec.Struct, frozen=True, tag="LaneFetched"):
    """Answer to LaneFetch: decided frames, as many as one read returns; none if the lane begins later at the
    sender, as in `begin`.
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneAsk(msgspec.Struct, frozen=True, tag="LaneAsk"):
    """Origin to all gateways after its disk lost the end of its lane: report how far you have the lane (protocol/lanes, U31).

    Attributes:
        incarnation: of the lane.
        token: of the origin's run that asks.
        attempt, up_to: of the last frame that was durable at the origin: it is decided, with all before it.
        behind: the undecided frames after this position are wanted; 0 for none.
    """

    incarnation: bytes
    token: int
    attempt: int
    up_to: int
    behind: int = 0


class LaneTail(msgspec.Struct, frozen=True, tag="LaneTail"):
    """Answer to LaneAsk, with its token: the lane is durable here up to the position, its end in this attempt.

    `frames` are the wanted frames, as many as one message holds.
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
