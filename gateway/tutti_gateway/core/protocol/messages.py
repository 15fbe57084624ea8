"""What members say to each other. Every message names its view; one of another view is ignored (design, sections 4 and 5). Those of
lanes name an attempt instead (section 7).

Messages carry frames by reference; the transport turns them into bytes (`codec` does, for tests and recorded runs).
"""

from __future__ import annotations

import msgspec

from tutti.data.frames.frame import Frame


class Forward(msgspec.Struct, frozen=True, tag="Forward"):
    """Origin to coordinator: batches to be ordered, unplaced, in the order of their producers."""

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
    """Log the offset commit of a named reader, unless the log holds one of that reader behind position `frontier`: the asker's own
    frontier, where it knew what the reader had committed and that this is not among it.
    """

    reader: str
    offset: int
    frontier: int


class AskForget(msgspec.Struct, frozen=True, tag="AskForget"):
    """Take producers (numbers, which nobody else ever gets) out of the received-table."""

    producers: tuple[int, ...]


class AskRoster(msgspec.Struct, frozen=True, tag="AskRoster"):
    """Change one gateway of the roster: `change` is "add" (`name` at `address`, as a learner that votes once it has caught up),
    "remove", or "replace" (`name` lost its disk: its new incarnation votes instead of `incarnation`, the one that the roster
    names). `frontier` is the asker's: a copy that comes behind a later ROSTER may ask for what was undone meanwhile, and is left.
    """

    change: str
    name: str
    address: str = ""
    incarnation: bytes = b""
    frontier: int = 0


Ask = AskEpoch | AskTopic | AskOffsets | AskForget | AskRoster


class Asking(msgspec.Struct, frozen=True, tag="Asking"):
    """Origin to coordinator: order the frame that answers this, unless the log has it."""

    view: int
    ask: Ask


class Order(msgspec.Struct, frozen=True, tag="Order"):
    """Coordinator to members: placed frames, positions dense and increasing."""

    view: int
    frames: tuple[Frame, ...]


class Echo(msgspec.Struct, frozen=True, tag="Echo"):
    """Coordinator to the origin of a run: packed headers (96 bytes each) of its own frames, which it has in its forward-table."""

    view: int
    headers: bytes


class Resend(msgspec.Struct, frozen=True, tag="Resend"):
    """Coordinator to origin: batches of the producer were not taken; send again from `sequence`, the next one that will be."""

    view: int
    producer: int
    epoch: int
    sequence: int


class Refuse(msgspec.Struct, frozen=True, tag="Refuse"):
    """Coordinator to origin: a batch was not taken, and why."""

    view: int
    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class Deny(msgspec.Struct, frozen=True, tag="Deny"):
    """Coordinator to origin: what was asked cannot be done, and why."""

    view: int
    ask: Ask
    code: str
    reason: str
    retry: bool


class Vote(msgspec.Struct, frozen=True, tag="Vote"):
    """Member to coordinator, YES: everything up to the position is durable here. Cumulative. `low` says why the disk takes nothing
    new, empty if it does.
    """

    view: int
    up_to: int
    low: str = ""


class No(msgspec.Struct, frozen=True, tag="No"):
    """Member to coordinator, NO: the batch at the position is not taken here."""

    view: int
    position: int
    reason: str


class Confirm(msgspec.Struct, frozen=True, tag="Confirm"):
    """Coordinator to members: all of them voted YES up to the position, it is decided. Cumulative and repeated: none is cached. Who
    waits for nothing of it may hear it a little later, with what is ordered next.
    """

    view: int
    up_to: int


class Heartbeat(msgspec.Struct, frozen=True, tag="Heartbeat", kw_only=True):
    """What a gateway says of itself to every peer, in each heartbeat. It is soft state: a lost, late or doubled one does no harm.

    Attributes:
        sent_us: the sender's clock; it comes back in `echo_us`.
        echo_us, held_us: the last `sent_us` that came from the receiver of this message, and how long ago; 0 before any.
        log: uuid of the log, empty on a blank disk.
        config: what the sender is configured with (CRC of names and addresses of the members); all must agree for a genesis.
        view, members: the installed view; 0 and () without one.
        promised, accepted: as in `Scalars`, durable.
        claim: the view that the sender coordinates, or is bringing about, backed by echoes of a majority; 0 otherwise.
        end: last position of its log; of a coordinator, the last that is ordered (a lost last message shows).
        frontier, watermark: last position that is decided here, and that is known durably as decided.
        misses: it hears no coordinator.
        hears: the gateways that it hears.
        ready: a learner that holds everything that is decided, but for what is under way.
        low: its disk takes no batches: it is taken into a view only where there is no majority without it.
        leaving: it stops in order; a coordinator that says so has decided everything and coordinates no more.
        forced, forced_at: view and position of the last roster that was made by force and is decided here, 0 if there is none.
        out: that roster, or a later one, does not name the receiver.
        wall_us: the sender's wall clock (us, UTC); 0: a release that does not say.
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
    """Answer with a heartbeat at once: to a suspect before it is booted, and to voters that are to confirm a frontier."""


class Propose(msgspec.Struct, frozen=True, tag="Propose"):
    """Candidate to those whom it wants in `view`: promise it, and say what your log holds (design, 5.1). `forced`: an operator
    says that they are all that remains.
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
    """Answer to Propose: the view is promised durably, nothing older will leave (design, 5.2).

    Attributes:
        accepted: the accepted view.
        end, chain: last position of the durable log and its chain value; of a damaged one as its vote mark says.
        frontier: last position known as decided here.
        base, table: (view, first position) of the runs of frames of one view behind position `base`, in order.
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
    """Answer to Propose, Install or Fetch: not taken. `promised` is what a higher view has to be above."""

    view: int
    promised: int
    reason: str


class Install(msgspec.Struct, frozen=True, tag="Install", kw_only=True):
    """Candidate to the members of `view`: make your log this one, and accept the view (design, 5.4).

    `table` is that of the adopted log behind position `base`, which is decided; where a frame has another view there, the log
    differs.
    """

    view: int
    members: tuple[int, ...]
    end: int
    chain: int
    base: int
    table: tuple[tuple[int, int], ...]


class Installed(msgspec.Struct, frozen=True, tag="Installed"):
    """Answer to Install: the log is that one, durably, and the view is accepted."""

    view: int


class Fetch(msgspec.Struct, frozen=True, tag="Fetch"):
    """Frames `first` to `last` are wanted: for the view that is promised, or (view 0) by a learner, who takes only decided ones."""

    view: int
    first: int
    last: int


class Fetched(msgspec.Struct, frozen=True, tag="Fetched", kw_only=True):
    """Answer to Fetch: frames from `first` on, as many as fit; none if the source does not hold them. To a learner all of them are
    decided, in the sender's installed view `source`, and `stop` is the last of their positions where a decision may stop. No frames
    with `stop` 0 mean that the source cannot read them.
    """

    view: int
    first: int
    frames: tuple[Frame, ...]
    source: int = 0
    stop: int = 0


class FetchSnapshot(msgspec.Struct, frozen=True, tag="FetchSnapshot"):
    """The next piece, from byte `at` on, of the state up to `position` is wanted, as it was offered in answer to a Fetch of frames
    that were trimmed at the source; `view` as there.
    """

    view: int
    position: int
    at: int


class FetchedSnapshot(msgspec.Struct, frozen=True, tag="FetchedSnapshot", kw_only=True):
    """Bytes of the state (LogState) of the log up to `position`, decided, with which the sender's own log begins: the piece from
    `at` on, of `size` bytes in all. In answer to Fetch it is the first piece. `size` 0: the sender does not have it any more.
    """

    view: int
    position: int
    size: int
    at: int
    data: bytes
    source: int = 0


class Missing(msgspec.Struct, frozen=True, tag="Missing"):
    """Repair is asked for: ranges (first, last) of positions of `view` that were heard of and are not here (design, 4.1). All
    members hear it; the member `of` is to repair, any that has them if it is 0.
    """

    view: int
    ranges: tuple[tuple[int, int], ...]
    of: int = 0


class Repairing(msgspec.Struct, frozen=True, tag="Repairing"):
    """A holder repairs these ranges; others hold back."""

    view: int
    ranges: tuple[tuple[int, int], ...]


class Repair(msgspec.Struct, frozen=True, tag="Repair"):
    """Placed frames from any member that holds them, positions dense and increasing."""

    view: int
    frames: tuple[Frame, ...]


# Of lanes: a lane is the stream of one origin's disk (gateway number, incarnation). Frames of a lane are frames as everywhere:
# `position` counts in the lane, `view` is the attempt, the chain is the lane's own. None of these messages has a view.


class Post(msgspec.Struct, frozen=True, tag="Post"):
    """Origin to the members of its attempt: the next frames of its lane. An attempt begins with a VIEW that names them."""

    incarnation: bytes
    frames: tuple[Frame, ...]


class Posted(msgspec.Struct, frozen=True, tag="Posted"):
    """Member to origin, YES: the lane is durable here up to the position, its end in this attempt. Cumulative.

    `low` says why the disk takes no batch behind it (NO), empty if it does. `again`: what is behind it came with a gap.
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
    """How far a lane is decided at the sender."""

    origin: int
    incarnation: bytes
    decided: int


class LaneEnds(msgspec.Struct, frozen=True, tag="LaneEnds"):
    """Every gateway to its part, in heartbeat time: all lanes that it knows. Who is behind asks for the rest."""

    ends: tuple[LaneEnd, ...]


class LaneFetch(msgspec.Struct, frozen=True, tag="LaneFetch"):
    """Decided frames of a lane are wanted, from this position on."""

    origin: int
    incarnation: bytes
    first: int


class LaneBegin(msgspec.Struct, frozen=True, array_like=True):
    """What a lane was at a decided position before which the sender has let it go.

    Attributes:
        position, attempt, chain: of that frame.
        offset: of the next record behind it.
        members: of the attempt, oldest first.
    """

    position: int
    attempt: int
    chain: int
    offset: int
    members: tuple[int, ...]


class LaneFetched(msgspec.Struct, frozen=True, tag="LaneFetched"):
    """Answer to LaneFetch: decided frames, as many as one read gives; none where the lane begins further on at the sender:
    as `begin` says.
    """

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]
    begin: LaneBegin | None = None


class LaneAsk(msgspec.Struct, frozen=True, tag="LaneAsk"):
    """Origin to everybody, when its disk lost the end of its lane: how far do you have it?

    Attributes:
        incarnation: of the lane.
        token: of the run that asks.
        attempt, up_to: of the last frame that was durable at the origin: it is decided, with all before it.
        behind: the undecided frames behind this position are wanted; 0: none.
    """

    incarnation: bytes
    token: int
    attempt: int
    up_to: int
    behind: int = 0


class LaneTail(msgspec.Struct, frozen=True, tag="LaneTail"):
    """Answer to LaneAsk, with its token: the lane is durable here up to the position, its end in this attempt; and the frames that
    were wanted, as many as one message takes.
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
