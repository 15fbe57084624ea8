"""A group of gateways with only the lane layer, with a network, disks and a membership that a test or a seed controls, and the
invariants that always hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import cast

import msgspec

from tests.unit.core.lanes.lane_disk import Key, LaneDisk
from tutti.data.client_protocol import Answer, Committed, Duplicate, RefusedAnswer
from tutti.data.frames.bodies import ViewBody, Voter, decode_body
from tutti.data.frames.frame import Frame, Kind, decode_frame
from tutti.data.log_state import LogState, Producer, Topic
from tutti_gateway.core.context import Context
from tutti_gateway.core.lanes.layer import Unordered
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.actions import (
    DeliverUnordered,
    Dropped,
    LaneHeld,
    PersistLane,
    ReadLane,
    RepairLane,
    Reply,
    Send,
    Suspect,
)
from tutti_gateway.core.protocol.events import Identity, LaneRead, StackConfig
from tutti_gateway.core.protocol.messages import LaneBegin, LaneMessage, Post, Posted
from tutti_gateway.core.view.view_state import ViewState

PRODUCERS = 3


def incarnation(number: int, disk: int = 0) -> bytes:
    """The disk of a gateway; another one after it was wiped."""
    return bytes([number, disk]).ljust(16, b"-")


def _to_plain(value: object) -> bytes:
    assert isinstance(value, Frame)
    return value.to_bytes()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_DECODER: msgspec.msgpack.Decoder[LaneMessage] = msgspec.msgpack.Decoder(LaneMessage, dec_hook=lambda _, data: decode_frame(data))


def travelled(message: LaneMessage) -> LaneMessage:
    """The message as another process gets it: nothing is shared."""
    return _DECODER.decode(_ENCODER.encode(message))


class Near:
    """Gateways on one wire."""

    def distance_us(self, number: int) -> int:
        return 100

    def round_beats(self) -> int:
        return 0


@dataclass
class Gateway:
    """One gateway: its disk survives, the rest does not. `layer` is None while it is down."""

    number: int
    disks: dict[Key, LaneDisk] = field(default_factory=dict)
    disk: int = 0
    layer: Unordered | None = None
    outbox: Outbox | None = None
    queue: list[PersistLane] = field(default_factory=list)
    reads: list[ReadLane] = field(default_factory=list)
    mends: list[RepairLane] = field(default_factory=list)  # all that there were
    held: list[LaneHeld] = field(default_factory=list)  # likewise
    part: tuple[int, ...] = ()
    seen: dict[Key, int] = field(default_factory=dict)  # last position delivered in this run
    answers: list[tuple[int, Answer]] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """Its own lane."""
        return self.number, incarnation(self.number, self.disk)


class Group:
    """All of them, and the checks: each step of each gateway is looked at as it happens."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.random, self.tokens = Random(seed), Random(seed)
        self.gateways = {number: Gateway(number) for number in range(1, count + 1)}
        self.network: list[tuple[int, int, LaneMessage]] = []
        self.cuts: set[tuple[int, int]] = set()  # (from, to) that do not reach each other
        self.state = LogState(
            producers={number: Producer(f"p{number}", b"", 1, 0, b"") for number in range(1, 10)}, topics={1: Topic("t")}
        )
        self.standings: dict[int, ViewState] = {}
        self.decided: dict[tuple[Key, int], Frame] = {}
        self.offsets: dict[tuple[Key, int], int] = {}
        self.members: dict[tuple[Key, int], tuple[int, ...]] = {}  # (lane, attempt) -> members
        # (lane, producer, first sequence) -> the attempt that was promised when it was refused: nothing sent before is decided any
        # more, but in that attempt, which an earlier run began and did not end
        self.refused: dict[tuple[Key, int, int], int] = {}
        self.begins: dict[Key, LaneBegin] = {}  # lanes that every disk let go up to there
        self.dropped: list[Dropped] = []
        self.suspects: list[Suspect] = []
        for number in self.gateways:
            self.start(number)

    def __getitem__(self, number: int) -> Gateway:
        return self.gateways[number]

    # What happens to gateways

    def start(self, number: int) -> None:
        """Start it from its disk."""
        gateway = self[number]
        standing = self.standings[number] = ViewState()
        standing.me, standing.primary = number, True
        config = StackConfig()
        gateway.outbox = Outbox(standing)
        identity = Identity(f"g{number}", gateway.key[1], "test", {})
        context = Context(config, standing, gateway.outbox, Window(self.state, 1 << 20), identity, Random(self.tokens.random()))
        logs = [disk.log(key) for key, disk in gateway.disks.items()]
        gateway.seen = {key: disk.delivered for key, disk in gateway.disks.items()}
        gateway.layer = Unordered(context, logs, lambda _: None, Near())
        gateway.part = ()
        self.carry_out(number)

    def crash(self, number: int) -> None:
        """It dies; of the writes under way each lane keeps some first part."""
        gateway = self[number]
        gateway.layer = None
        gateway.answers.clear()
        kept: dict[Key, bool] = {}
        for action in gateway.queue:
            key = action.origin, action.incarnation
            if kept.setdefault(key, True):
                whole = self.random.random() < 0.5
                kept[key] = whole
                torn = self.random.randint(0, len(action.frames))
                gateway.disks.setdefault(key, LaneDisk()).apply(action, None if whole else torn)
        gateway.queue.clear()
        gateway.reads.clear()
        for key, disk in gateway.disks.items():
            disk.delivered = self.random.randint(disk.delivered, max(disk.delivered, gateway.seen.get(key, 0)))

    def wipe(self, number: int) -> None:
        """It dies and its disk is lost."""
        self.crash(number)
        self[number].disks.clear()
        self[number].disk += 1

    def vote(self) -> None:
        """Make all gateways voters in the log, with their current disks."""
        self.state.roster = {number: Voter(number, f"g{number}", gateway.key[1], "") for number, gateway in self.gateways.items()}

    def lose_end(self, number: int) -> bool:
        """Stop a gateway whose disk loses the end of its own lane, as marks show; return whether others can restore it."""
        self.crash(number)
        gateway = self[number]
        disk = gateway.disks.get(gateway.key)
        if disk is None or len(disk.frames) < 2 or disk.found_lost() is not None:
            return False
        marked = self.random.randint(max(disk.named, 2), len(disk.frames))
        first = self.random.randint(max(2, marked - 6), marked)
        elsewhere = [other.disks[gateway.key].frames for other in self.gateways.values() if gateway.key in other.disks]
        for frame in disk.frames[first - 1 :]:
            if not any(frame in frames for frames in elsewhere if frames is not disk.frames):
                return False
        disk.lose(first, marked)
        return True

    @property
    def healing(self) -> set[int]:
        """Gateways that lost something of their lanes that is not all here again."""
        return {n for n, one in self.gateways.items() if one.key in one.disks and one.disks[one.key].found_lost() is not None}

    def sync(self, number: int, count: int = 1 << 30) -> None:
        """Carry out the first `count` writes of the disk."""
        gateway = self[number]
        done, gateway.queue = gateway.queue[:count], gateway.queue[count:]
        for disk in gateway.disks.values():
            disk.named = len(disk.frames)
        for action in done:
            key = action.origin, action.incarnation
            if action.begin is not None:  # of what was before it this rig keeps what was decided
                frames = [self.decided[key, position] for position in range(1, action.begin.position + 1)]
                gateway.disks[key] = LaneDisk(frames, 0, len(frames))
                gateway.seen[key] = len(frames)
            gateway.disks.setdefault(key, LaneDisk()).apply(action)
        if done and gateway.layer is not None:
            gateway.layer.persisted(done[-1].token)
            self.carry_out(number)

    def read(self, number: int) -> None:
        """The disk answers a read."""
        gateway = self[number]
        action = gateway.reads.pop(0)
        key = action.origin, action.incarnation
        assert gateway.layer is not None
        if key in self.begins and action.first <= self.begins[key].position:
            gateway.layer.read(LaneRead(action.token, (), self.begins[key]))
            self.carry_out(number)
            return
        frames = gateway.disks[key].frames[action.first - 1 : action.last]
        gateway.layer.read(LaneRead(action.token, tuple(frames[: self.random.randint(1, 4)])))
        self.carry_out(number)

    def beat(self, number: int) -> None:
        """A heartbeat passes."""
        layer = self[number].layer
        if layer is not None:
            layer.beat()
            self.carry_out(number)

    def submit(self, number: int, *batches: tuple[int, int, bytes], session: int = 1, count: int = 1, epoch: int = 1) -> None:
        """Batches (producer, first sequence, body) for its own lane."""
        layer = self[number].layer
        assert layer is not None
        frames = [
            Frame(Kind.BATCH, body, producer=producer, epoch=epoch, first_sequence=sequence, count=count, topic=1)
            for producer, sequence, body in batches
        ]
        for producer, sequence, _ in batches:
            self.refused.pop((self[number].key, producer, sequence), None)
        layer.submit(session, frames)
        self.carry_out(number)

    # Network and membership

    def heard(self, number: int) -> tuple[int, ...]:
        """Return the part of a gateway: those connected to it in both directions."""
        return tuple(
            other
            for other in self.gateways
            if other == number or (self[other].layer and not {(number, other), (other, number)} & self.cuts)
        )

    def tell(self, number: int) -> None:
        """Membership notices how things are."""
        gateway = self[number]
        if gateway.layer is not None and gateway.part != self.heard(number):
            gateway.part = self.heard(number)
            gateway.layer.set_connected(gateway.part)
            self.carry_out(number)

    def split(self, *parts: set[int]) -> None:
        """The network falls apart; one part heals it."""
        self.cuts = {(a, b) for part in parts for a in part for b in set(self.gateways) - part}

    def deliver(self, place: int = 0, *, keep: bool = False) -> None:
        """A message arrives, if it can."""
        sender, to, message = self.network[place] if keep else self.network.pop(place)
        layer = self[to].layer
        if layer is not None and (sender, to) not in self.cuts:
            layer.on_message(sender, message)
            self.carry_out(to)

    def settle(self, beats: int = 1) -> None:
        """Everything that is under way happens, in order, and heartbeats pass."""
        for _ in range(beats):
            for number in self.gateways:
                self.tell(number)
                self.beat(number)
            busy = True
            while busy:
                busy = bool(self.network)
                while self.network:
                    self.deliver()
                for number, gateway in self.gateways.items():
                    busy |= bool(gateway.queue or gateway.reads)
                    self.sync(number)
                    while gateway.reads:
                        self.read(number)

    # What a step wants done, and what must hold

    def carry_out(self, number: int) -> None:
        """Carry out the actions of a step, and check each."""
        gateway = self[number]
        assert gateway.layer is not None
        assert gateway.outbox is not None
        for action in gateway.outbox.drain(None):
            if isinstance(action, PersistLane):
                gateway.queue.append(action)
                for frame in action.frames:
                    if frame.kind == Kind.VIEW:
                        members = decode_body(ViewBody, frame.body).members
                        assert self.members.setdefault(((action.origin, action.incarnation), frame.view), members) == members
            elif isinstance(action, ReadLane):
                gateway.reads.append(action)
            elif isinstance(action, RepairLane):
                gateway.mends.append(action)
            elif isinstance(action, LaneHeld):
                gateway.held.append(action)
            elif isinstance(action, DeliverUnordered):
                self.delivered(gateway, action)
            elif isinstance(action, Send):
                message = travelled(cast(LaneMessage, action.message))
                self.sent(gateway, message)
                self.network.append((number, action.to, message))
            elif isinstance(action, Reply):
                for answer in action.answers:
                    self.answered(gateway, answer)
                    gateway.answers.append((action.session, answer))
            elif isinstance(action, Dropped):
                self.dropped.append(action)
            elif isinstance(action, Suspect):
                self.suspects.append(action)

    def sent(self, gateway: Gateway, message: LaneMessage) -> None:
        """No YES before its copy is durable; no attempt before the NO that ended the last one is."""
        if isinstance(message, Post):
            disk = gateway.disks[gateway.key]
            assert all(frame.view <= disk.attempt for frame in message.frames), "an attempt began before the last one had ended"
        elif isinstance(message, Posted) and message.up_to:
            (disk,) = (disk for key, disk in gateway.disks.items() if key[1] == message.incarnation)
            assert len(disk.frames) >= message.up_to, "a vote before its copy is durable"
            decided = [position for key, position in self.decided if key[1] == message.incarnation]
            of_attempt = disk.frames[message.up_to - 1].view == message.attempt
            assert of_attempt or max(decided, default=0) >= message.up_to, "a vote for a frame of another attempt"

    def delivered(self, gateway: Gateway, action: DeliverUnordered) -> None:
        """Check that one frame is at a position, on all members of its attempt before any of them publishes it, in order, without
        gap or duplicate.
        """
        key = action.origin, action.incarnation
        offset = action.first_offset
        for frame in action.frames:
            place = key, frame.position
            assert frame.position == gateway.seen.get(key, 0) + 1, f"gateway {gateway.number} has {frame!r} out of turn"
            gateway.seen[key] = frame.position
            assert self.holds(gateway, key, frame), "it is handed out before it is durable"
            first = self.decided.setdefault(place, frame)
            assert first == frame, f"two frames at {place}: {first!r}, {frame!r}"
            assert self.offsets.setdefault(place, offset) == offset
            offset += frame.count
            refused = self.refused.get((key, frame.producer, frame.first_sequence), frame.view)
            assert refused == frame.view, f"{frame!r} was refused in attempt {refused} and is decided"
            if first is frame:
                for member in self.members[key, frame.view]:
                    other = self[member]
                    # A disk that was wiped has voted and is lost, and so is what a disk lost of its own lane; all others have it.
                    had = other.key == key and frame.position <= other.disks[key].had
                    assert had or other.disk or self.holds(other, key, frame), f"gateway {member} does not have {frame!r}"

    def holds(self, gateway: Gateway, key: Key, frame: Frame) -> bool:
        """Whether the frame is durable there."""
        frames = gateway.disks.get(key, LaneDisk()).frames
        return len(frames) >= frame.position and frames[frame.position - 1].header == frame.header

    def answered(self, gateway: Gateway, answer: Answer) -> None:
        """Check that a receipt is for a decided batch, and a refusal for an undecided one."""
        if isinstance(answer, Committed):
            frame = self.find(gateway.key, answer.producer, answer.epoch, answer.first_sequence)
            assert frame is not None, f"{answer} before it was decided"
            assert self.offsets[gateway.key, frame.position] == answer.offset
        elif isinstance(answer, Duplicate):
            assert self.find(gateway.key, answer.producer, answer.epoch, answer.first_sequence) is not None, f"{answer} of nothing"
        elif isinstance(answer, RefusedAnswer) and answer.code not in ("busy", "lane"):  # these say nothing of earlier copies
            assert self.find(gateway.key, answer.producer, answer.epoch, answer.first_sequence) is None, (
                f"{answer} of what is decided"
            )
            attempt = gateway.disks[gateway.key].attempt if gateway.key in gateway.disks else 0
            self.refused[gateway.key, answer.producer, answer.first_sequence] = attempt

    def find(self, key: Key, producer: int, epoch: int, sequence: int) -> Frame | None:
        """The decided batch of a lane with that record."""
        for (lane, _), frame in self.decided.items():
            of = lane, frame.producer, frame.epoch
            if of == (key, producer, epoch) and frame.first_sequence <= sequence <= frame.last_sequence:
                return frame
        return None

    def lane(self, number: int, key: Key) -> list[bytes]:
        """The bodies of the batches that a gateway handed out, in order."""
        seen = self[number].seen.get(key, 0)
        frames = [self.decided[key, position] for position in range(1, seen + 1)]
        return [bytes(frame.body) for frame in frames if frame.kind == Kind.BATCH]


def group(count: int = 3, beats: int = 1) -> Group:
    """Return connected gateways, each in an attempt with all."""
    made = Group(count)
    made.settle(beats)
    return made


def answers(made: Group, number: int) -> list[object]:
    """Return the new answers to the clients of a gateway."""
    found = [answer for _, answer in made[number].answers]
    made[number].answers.clear()
    return list(found)


def under_way(made: Group, kind: type[LaneMessage]) -> list[int]:
    """Places in the network of messages of a kind."""
    return [place for place, (_, _, message) in enumerate(made.network) if isinstance(message, kind)]


def arrive(made: Group, wanted: Callable[[int, int, LaneMessage], bool]) -> None:
    """The messages that are wanted arrive, all others are lost, and disks do their work, until nothing is under way."""
    while made.network or any(gateway.queue for gateway in made.gateways.values()):
        while made.network:
            if wanted(*made.network[0]):
                made.deliver()
            else:
                made.network.pop(0)
        for number in made.gateways:
            made.sync(number)


def quiet(made: Group, number: int) -> bool:
    """Whether the gateway has nothing more to do for its lane."""
    layer = made[number].layer
    assert layer is not None
    return layer.quiet


def members(made: Group, number: int) -> tuple[int, ...]:
    """Return the members of the gateway's last attempt."""
    return made.members[max(place for place in made.members if place[0] == made[number].key)]


def incarnation_key(number: int, disk: int = 0) -> tuple[int, bytes]:
    """The lane of a gateway's disk."""
    return number, incarnation(number, disk)


def halted(made: Group) -> str:
    """Return why gateway 1 accepts nothing."""
    layer = made[1].layer
    assert layer is not None
    return layer.halted


def beats(made: Group, count: int, lost: type[LaneMessage] | None, *, to: int = 0, sender: int = 0) -> None:
    """Heartbeats in which messages of a kind to or of a gateway are lost."""
    for _ in range(count):
        for number in made.gateways:
            made.tell(number)
            made.beat(number)
        while made.network:
            one, other, message = made.network[0]
            if lost is not None and isinstance(message, lost) and (other == to or one == sender):
                made.network.pop(0)
            else:
                made.deliver()
        for number in made.gateways:
            made.sync(number)
            while made[number].reads:
                made.read(number)
