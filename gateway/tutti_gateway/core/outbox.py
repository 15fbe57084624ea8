"""The actions of one step. Layers add them in any order, and the driver gets them in a safe order (protocol/lifecycle, L2)."""

from __future__ import annotations

from collections import deque

from tutti.data.client_protocol import Answer
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    Dropped,
    Halt,
    LaneHeld,
    LogReplaced,
    Peers,
    Persist,
    PersistLane,
    ReadIndex,
    ReadLane,
    ReadLog,
    ReadSnapshot,
    RepairLane,
    RepairLog,
    Reply,
    Send,
    SetTimer,
    Stopped,
    Suspect,
    ViewInstalled,
)
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.core.view.view_state import ViewState


class Outbox:
    """Collects the actions of the current step.

    A message of this member to itself is not sent, but waits in `local` until the stack passes it to a layer. A coordinator
    therefore handles its own requests and votes like those of other members.

    Attributes:
        now: the clocks at the event of this step.
        local: messages of this member to itself, in order.
        drops: number of dropped messages since the start.
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
        "_suspects",
        "_timer_us",
        "_token",
        "_view_state",
        "_views",
        "drops",
        "local",
        "now",
    )

    def __init__(self, view_state: ViewState) -> None:
        self._view_state = view_state
        self._token = 0  # last token; tokens increase, so that the completion of one write also reports all earlier writes
        self._timer_us: int | None = None
        self.local: deque[Message] = deque()
        self.now = Now(0, 0)
        self._persists: list[Persist] = []
        self._sends: list[Send] = []
        self._delivers: list[Deliver | LogReplaced] = []
        self._answers: dict[int, list[Answer]] = {}
        self._indexes: list[ReadIndex] = []
        self._views: list[ViewInstalled] = []
        self._reads: list[ReadLog | ReadSnapshot | RepairLog] = []
        self._lane_writes: list[PersistLane | ReadLane | RepairLane | LaneHeld] = []
        self._lane_delivers: list[DeliverUnordered] = []
        self._peers: Peers | None = None
        self._dropped: list[Dropped] = []
        # (message kind, sender) -> (number of dropped messages since the last report, time of that report)
        self._drops: dict[tuple[str, int], tuple[int, int]] = {}
        self.drops = 0
        self._suspects: list[Suspect] = []
        self._finals: list[Halt | Stopped] = []

    def persist(
        self, frames: tuple[Frame, ...] = (), hard_state: HardState | None = None, truncate_after: int | None = None
    ) -> int:
        """Write frames or hard state, or truncate the log.

        Return the token of the write. An event `Persisted` with this token or a higher one reports that the write is durable.
        """
        self._token += 1
        self._persists.append(Persist(self._token, frames, hard_state, truncate_after))
        return self._token

    def read_log(self, first: int, last: int) -> int:
        """Read frames from the log. Return the token that the event `LogRead` with these frames contains."""
        self._token += 1
        self._reads.append(ReadLog(self._token, first, last))
        return self._token

    def read_snapshot(self, position: int, at: int) -> int:
        """Read a chunk of the snapshot with which the log begins. Return the token that the event `SnapshotRead` contains."""
        self._token += 1
        self._reads.append(ReadSnapshot(self._token, position, at))
        return self._token

    def replace_log(self, snapshot: bytes) -> int:
        """Replace the log by a snapshot.

        Return the token of the write. An event `Persisted` with this token or a higher one reports that the snapshot is durable.
        """
        self._token += 1
        self._persists.append(Persist(self._token, snapshot=snapshot))
        return self._token

    def log_replaced(self, position: int, next_offset: int) -> None:
        """Report the new frontier to the readers after a snapshot replaced the log."""
        self._delivers.append(LogReplaced(position, next_offset))

    def repair_log(self, frames: tuple[Frame, ...]) -> None:
        """Write decided frames at positions where the disk lost them."""
        self._reads.append(RepairLog(frames))

    def send(self, to: int, message: Message) -> None:
        """Send a message to another gateway, or queue it in `local` if `to` is this member."""
        if to == self._view_state.me:
            self.local.append(message)
        else:
            self._sends.append(Send(to, message))

    def answers(self, session: int) -> list[Answer]:
        """Return the list of this step's answers to a session. Callers append answers to this list."""
        found = self._answers.get(session)
        if found is None:
            found = self._answers[session] = []
        return found

    def read_index(self, number: int, confirmed: bool) -> None:
        """Answer a read-index request."""
        self._indexes.append(ReadIndex(number, confirmed))

    def deliver(self, frames: tuple[Frame, ...], offsets: tuple[int, ...], aborted: frozenset[int], next_offset: int) -> None:
        """Deliver a decided run to the readers."""
        self._delivers.append(Deliver(frames, offsets, aborted, next_offset))

    def write_lane(self, action: PersistLane | ReadLane | RepairLane | LaneHeld) -> None:
        """Write, read or repair a lane, or report how far retention may trim it."""
        self._lane_writes.append(action)

    def deliver_lane(self, action: DeliverUnordered) -> None:
        """Deliver a decided run of a lane to the readers."""
        self._lane_delivers.append(action)

    def installed(self) -> None:
        """Report the installed view, or that no view is installed."""
        view_state = self._view_state
        self._views.append(ViewInstalled(view_state.view, view_state.members, view_state.coordinator, view_state.primary))

    def suspect(self, member: int, reason: str) -> None:
        """Report to the operator that a member blocks the group, with the reason."""
        self._suspects.append(Suspect(member, reason))

    def peers(self, peers: tuple[tuple[int, str, str], ...]) -> None:
        """Report number, name and address of each other gateway of the group to the driver."""
        self._peers = Peers(peers)

    def drop(self, message: Message, sender: int, reason: str) -> None:
        """Count a dropped message, and report it at most once in `DROPPED_LOG_INTERVAL_US` for each message kind and sender.

        If there are more than `DROPPED_KINDS_MAX` pairs of kind and sender, further senders share one report for each kind.
        """
        kind = type(message).__name__
        self.drops += 1
        key = (kind, sender)
        # Any process can send messages under unknown numbers, so the table needs a limit.
        if key not in self._drops and len(self._drops) >= limits.DROPPED_KINDS_MAX:
            key = (kind, 0)
        count, reported_us = self._drops.get(key, (0, -limits.DROPPED_LOG_INTERVAL_US))
        count += 1
        if self.now.mono_us - reported_us >= limits.DROPPED_LOG_INTERVAL_US:
            self._dropped.append(Dropped(kind, sender, reason, count))
            count, reported_us = 0, self.now.mono_us
        self._drops[key] = count, reported_us

    def halt(self, reason: str, out: bool = False) -> None:
        """Report that this member has halted. `out` is True if a forced roster excludes this member."""
        self._finals.append(Halt(reason, out))

    def stopped(self) -> None:
        """Report that the orderly stop of this gateway is complete."""
        self._finals.append(Stopped())

    def timer_fired(self) -> None:
        """Record that the timer has fired, so that none is running."""
        self._timer_us = None

    def drain(self, wake_us: int | None) -> list[Action]:
        """Return the actions of the step, in the order in which the driver must execute them.

        `wake_us` is the time at which the layers need the next `TimeAdvanced`; None if they need none. The timer is set again only
        if the layers need an earlier time, or if the timer would soon fire although they need a later time. In all other cases, one
        needless wake-up is cheaper than a new timer in each step.
        """
        actions: list[Action] = []
        # The order of the following blocks is part of the protocol: for example, writes come before messages (lifecycle, L2).
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
