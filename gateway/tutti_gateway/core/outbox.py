"""What one step wants done, gathered by the layers in any order and handed out in the one order that is safe."""

from __future__ import annotations

from collections import deque

from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import Scalars
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    Dropped,
    Halt,
    LaneHeld,
    Mend,
    MendLane,
    Peers,
    Persist,
    PersistLane,
    ReadIndex,
    ReadLane,
    ReadLog,
    ReadSnapshot,
    Relearned,
    Reply,
    Send,
    SetTimer,
    Stopped,
    Suspect,
    ViewInstalled,
)
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.core.view.view_state import Standing


class Outbox:
    """The actions of the step under way, and its time.

    A message to this member itself never leaves: it waits in `local` until the stack hands it to its layer, so that a coordinator
    treats its own requests and votes as everybody's.

    Attributes:
        now: the clocks at the event.
        local: messages of this member to itself, in order.
        drops: messages that were not taken, ever.
    """

    __slots__ = (
        "_answers",
        "_delivers",
        "_dropped",
        "_drops",
        "_finals",
        "_indexes",
        "_lane_delivers",
        "_lane_writes",
        "_peers",
        "_persists",
        "_reads",
        "_sends",
        "_standing",
        "_suspects",
        "_timer_us",
        "_token",
        "_views",
        "drops",
        "local",
        "now",
    )

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._token = 0
        self._timer_us: int | None = None
        self.local: deque[Message] = deque()
        self.now = Now(0, 0)
        self._persists: list[Persist] = []
        self._sends: list[Send] = []
        self._delivers: list[Deliver | Relearned] = []
        self._answers: dict[int, list[Answer]] = {}
        self._indexes: list[ReadIndex] = []
        self._views: list[ViewInstalled] = []
        self._reads: list[ReadLog | ReadSnapshot | Mend] = []
        self._lane_writes: list[PersistLane | ReadLane | MendLane | LaneHeld] = []
        self._lane_delivers: list[DeliverUnordered] = []
        self._peers: Peers | None = None
        self._dropped: list[Dropped] = []
        self._drops: dict[tuple[str, int], tuple[int, int]] = {}  # (kind, sender) -> (how many since, told when)
        self.drops = 0
        self._suspects: list[Suspect] = []
        self._finals: list[Halt | Stopped] = []

    def persist(self, frames: tuple[Frame, ...] = (), scalars: Scalars | None = None, cut: int | None = None) -> int:
        """Have frames or scalars written, or the log cut; returns the token that `Persisted` will name or exceed."""
        self._token += 1
        self._persists.append(Persist(self._token, frames, scalars, cut))
        return self._token

    def read_log(self, first: int, last: int) -> int:
        """Have frames read from the log; returns the token that `LogRead` will name."""
        self._token += 1
        self._reads.append(ReadLog(self._token, first, last))
        return self._token

    def read_snapshot(self, position: int, at: int) -> int:
        """Have the state read with which the log begins; returns the token that `SnapshotRead` will name."""
        self._token += 1
        self._reads.append(ReadSnapshot(self._token, position, at))
        return self._token

    def replace_log(self, snapshot: bytes) -> int:
        """Have the log replaced by a snapshot; returns the token that `Persisted` will name or exceed."""
        self._token += 1
        self._persists.append(Persist(self._token, snapshot=snapshot))
        return self._token

    def relearned(self, position: int, next_offset: int) -> None:
        """The log was replaced: tell where the frontier is."""
        self._delivers.append(Relearned(position, next_offset))

    def mend(self, frames: tuple[Frame, ...]) -> None:
        """Have frames written where the log lost them."""
        self._reads.append(Mend(frames))

    def send(self, to: int, message: Message) -> None:
        """Send a message to a member, this one included."""
        if to == self._standing.me:
            self.local.append(message)
        else:
            self._sends.append(Send(to, message))

    def answers(self, session: int) -> list[Answer]:
        """The list of answers to a session in this step, to append to."""
        found = self._answers.get(session)
        if found is None:
            found = self._answers[session] = []
        return found

    def read_index(self, number: int, confirmed: bool) -> None:
        """Answer a question of a reader."""
        self._indexes.append(ReadIndex(number, confirmed))

    def deliver(self, frames: tuple[Frame, ...], offsets: tuple[int, ...], aborted: frozenset[int], next_offset: int) -> None:
        """Hand a decided run out."""
        self._delivers.append(Deliver(frames, offsets, aborted, next_offset))

    def write_lane(self, action: PersistLane | ReadLane | MendLane | LaneHeld) -> None:
        """Have a lane written, read or mended, or tell how far it may be let go."""
        self._lane_writes.append(action)

    def deliver_lane(self, action: DeliverUnordered) -> None:
        """Hand a decided run of a lane out."""
        self._lane_delivers.append(action)

    def installed(self) -> None:
        """Tell of the view as it stands now."""
        standing = self._standing
        self._views.append(ViewInstalled(standing.view, standing.members, standing.coordinator, standing.primary))

    def suspect(self, member: int, reason: str) -> None:
        """Tell of a member that holds the group up."""
        self._suspects.append(Suspect(member, reason))

    def peers(self, peers: tuple[tuple[int, str, str], ...]) -> None:
        """Tell whom this gateway talks to: (number, name, address) of each."""
        self._peers = Peers(peers)

    def drop(self, message: Message, sender: int, reason: str) -> None:
        """A message is not taken. It is counted, and told once per kind and sender in `DROPPED_TELL_US`; where so many send what is
        not taken that they are not remembered one by one, once for all the rest of them.
        """
        kind = type(message).__name__
        self.drops += 1
        key = (kind, sender)
        if key not in self._drops and len(self._drops) >= limits.DROPPED_KINDS_MAX:
            key = (kind, 0)
        count, told_us = self._drops.get(key, (0, -limits.DROPPED_TELL_US))
        count += 1
        if self.now.mono_us - told_us >= limits.DROPPED_TELL_US:
            self._dropped.append(Dropped(kind, sender, reason, count))
            count, told_us = 0, self.now.mono_us
        self._drops[key] = count, told_us

    def halt(self, reason: str, out: bool = False) -> None:
        """Stop taking part."""
        self._finals.append(Halt(reason, out))

    def stopped(self) -> None:
        """The orderly stop is done."""
        self._finals.append(Stopped())

    def timer_came(self) -> None:
        """The timer that was set is no longer running."""
        self._timer_us = None

    def take(self, wake_us: int | None) -> list[Action]:
        """The actions of the step, in order; `wake_us` is when the layers want to be woken next, None for never.

        A timer is set only when it comes earlier than the one that runs, or that one would come soon and for nothing: a wake-up too
        many costs less than a timer moved in every step.
        """
        actions: list[Action] = []
        if self._persists:
            actions += self._persists
            self._persists = []
        if self._reads:
            actions += self._reads
            self._reads = []
        if self._lane_writes:
            actions += self._lane_writes
            self._lane_writes = []
        if self._sends:
            actions += self._sends
            self._sends = []
        if self._delivers:
            actions += self._delivers
            self._delivers = []
        if self._lane_delivers:
            actions += self._lane_delivers
            self._lane_delivers = []
        if self._answers:
            actions += [Reply(session, tuple(answers)) for session, answers in self._answers.items() if session and answers]
            self._answers = {}
        if self._indexes:
            actions += self._indexes
            self._indexes = []
        if self._views or self._suspects:
            actions += [*self._views, *self._suspects]
            self._views, self._suspects = [], []
        if self._peers is not None:
            actions.append(self._peers)
            self._peers = None
        if self._dropped:
            actions += self._dropped
            self._dropped = []
        timer_us = self._timer_us
        if wake_us is not None and (
            timer_us is None or wake_us < timer_us or (timer_us < wake_us and timer_us - self.now.mono_us <= limits.TIMER_NEAR_US)
        ):
            self._timer_us = wake_us
            actions.append(SetTimer(wake_us))
        if self._finals:
            actions += self._finals
            self._finals = []
        return actions
