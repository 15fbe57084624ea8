"""An eye on every action of a whole group: what may never happen (design, section 9) becomes a PROBLEM in the transcript."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tutti.data.client_protocol import AbortedAnswer, Committed, Duplicate
from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import Frame, Kind, chained
from tutti.data.view_id import view_text
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.actions import Action, Deliver, Persist, Reply, Send, ViewInstalled
from tutti_gateway.core.protocol.events import StackConfig
from tutti_gateway.core.protocol.messages import Confirm, Installed, Propose, State, Vote
from tutti_gateway.core.stack import Stack

if TYPE_CHECKING:
    from tests.transcripts.whole import Gateway


class Place(NamedTuple):
    """A decided position: what everybody has to show there."""

    frame: Frame
    offset: int
    void: bool


class Watch:
    """Looks at actions and disks, and at nothing inside of a stack.

    Attributes:
        log: decided positions, as whoever was first showed them; position 1 first.
        void: positions of batches in it that an ABORT voids. voters: numbers and disks, as the last decided ROSTER says.
        problems: what was found.
    """

    def __init__(self, members: dict[str, Gateway]) -> None:
        self._members = members
        self.log: list[Place] = []
        self.void: frozenset[int] = frozenset()
        self.problems: list[str] = []
        self._placed: dict[tuple[int, int], bytes] = {}
        self._views: dict[int, tuple[int, ...]] = {}
        self._proposed: dict[int, tuple[str, int, tuple[int, ...]]] = {}
        self._sequences: dict[tuple[int, int], int] = {}  # (producer, sequence) -> position
        self._aborted: set[tuple[int, int, int]] = set()  # (producer, epoch, sequence) that was told as aborted
        self.voters: dict[int, bytes] = {}

    def wrong(self, text: str) -> None:
        """Something that may never happen did."""
        self.problems.append(text)

    # Disks

    def writes(self, gateway: Gateway, action: Persist) -> None:
        """A Persist is about to be done."""
        disk, name = gateway.disk, gateway.name
        for frame in action.frames:
            if self._placed.setdefault((frame.view, frame.position), frame.header) != frame.header:
                self.wrong(f"{name} writes {frame!r}, and that place was another frame's")
        if action.cut is not None:
            same = [place for place, frame in zip(self.log, disk.frames, strict=False) if place.frame.header == frame.header]
            if action.cut < max(gateway.shown, min(len(same), len(self.log))):
                self.wrong(f"{name} cuts behind {action.cut}, and what it holds up to {len(same)} is decided")
        old, new = disk.scalars, action.scalars
        if new is not None:
            if new.promised < old.promised or new.accepted < old.accepted or new.coordinated < old.coordinated:
                self.wrong(f"{name} writes {new} over {old}")
            if new.accepted > new.promised:
                self.wrong(f"{name} accepts what it did not promise: {new}")

    # Actions

    def sees(self, gateway: Gateway, action: Action) -> None:
        """An action, before it is carried out."""
        if isinstance(action, Send):
            self._sends(gateway, action.message)
        elif isinstance(action, Deliver):
            self._delivers(gateway, action)
        elif isinstance(action, Reply):
            self._replies(gateway, action)
        elif isinstance(action, ViewInstalled) and action.view:
            self._holds(gateway, action.view, "has a view")
            if self._views.setdefault(action.view, action.members) != action.members:
                self.wrong(f"{gateway.name} is in view {view_text(action.view)} of {action.members}, and others know it otherwise")

    def _holds(self, gateway: Gateway, view: int, what: str) -> None:
        scalars = gateway.disk.scalars
        if not view == scalars.promised == scalars.accepted:
            self.wrong(f"{gateway.name} {what} in {view_text(view)}, and its disk has {scalars}")

    def _sends(self, gateway: Gateway, message: Any) -> None:
        disk, name = gateway.disk, gateway.name
        match message:
            case Vote(view, up_to):
                self._holds(gateway, view, "votes")
                if up_to > disk.durable:
                    self.wrong(f"{name} votes up to {up_to}, and {disk.durable} is durable")
            case Confirm(view, up_to):
                self._holds(gateway, view, "decides")
                self._decides(gateway, view, up_to)
            case Propose(view, members):
                if self._proposed.setdefault(view, (name, gateway.starts, members)) != (name, gateway.starts, members):
                    self.wrong(f"{name} uses the view {view_text(view)} twice")
                if min(disk.scalars.promised, disk.scalars.coordinated) < view:
                    self.wrong(f"{name} proposes {view_text(view)}, and its disk has {disk.scalars}")
            case State() as state:
                if disk.scalars.promised < state.view or state.end > max(disk.durable, disk.mark.last):
                    self.wrong(f"{name} says {state}, and its disk has {disk.scalars} and {disk.durable}")
            case Installed(view):
                self._holds(gateway, view, "has installed")

    def _decides(self, gateway: Gateway, view: int, up_to: int) -> None:
        """All members have it durable, and are a majority of the voters, disk by disk."""
        if up_to <= len(self.log):
            return
        members = self._views[view]
        frame = gateway.disk.frames[up_to - 1]
        names = {**gateway.names, gateway.me: gateway.name}
        for other in (self._members[names[number]] for number in members):
            log = other.disk.frames
            if len(log) < up_to or log[up_to - 1].header != frame.header:
                self.wrong(f"{gateway.name} decides {frame!r}, and {other.name} does not have it durable")
        voters = self.voters
        for later in gateway.disk.frames[len(self.log) : up_to]:
            body = decode_body(RosterBody, later.body) if later.kind == Kind.ROSTER else None
            voters = _counted(body) if body is not None and body.forced else voters
        mine = [n for n, disk in voters.items() if n in members and self._members[names[n]].disk.incarnation == disk]
        if voters and 2 * len(mine) <= len(voters):
            self.wrong(f"{gateway.name} decides {frame!r} with {members}, and the voters are {sorted(voters)}")

    def _delivers(self, gateway: Gateway, run: Deliver) -> None:
        position = gateway.frontier
        if gateway.view is not None and gateway.view.coordinator == gateway.me:
            self._decides(gateway, gateway.view.view, run.frames[-1].position)
        for frame, offset in zip(run.frames, run.offsets, strict=True):
            position += 1
            place = Place(frame, offset, frame.position in run.aborted)
            if frame.position != position or position > gateway.disk.durable:
                self.wrong(f"{gateway.name} delivers {frame!r} at {position}, and {gateway.disk.durable} is durable")
            if position <= len(self.log) and self._is_forced(frame) and self.log[position - 1].frame.header != frame.header:
                self._lose(position)
            if position > len(self.log):
                self._new(gateway, place)
                continue
            first = self.log[position - 1]
            same = first.frame.to_bytes() == frame.to_bytes()
            if not same or (first.offset, first.void) != (offset, place.void):
                self.wrong(f"{gateway.name} delivers {place}, and others had {first}")

    @staticmethod
    def _is_forced(frame: Frame) -> bool:
        return frame.kind == Kind.ROSTER and decode_body(RosterBody, frame.body).forced

    def _lose(self, position: int) -> None:
        """An operator gave up what only those had who are gone."""
        del self.log[position - 1 :]
        self._sequences = {key: place for key, place in self._sequences.items() if place < position}

    def _new(self, gateway: Gateway, place: Place) -> None:
        frame = place.frame
        last = self.log[-1] if self.log else None
        view = gateway.view
        if view is None or view.coordinator != gateway.me:
            self.wrong(f"{gateway.name} delivers {frame!r}, and no coordinator has")
        if not chained(frame, last.frame.header_crc if last else 0):
            self.wrong(f"{gateway.name} delivers {frame!r}, which does not continue the log")
        if frame.kind == Kind.ROSTER:
            self.voters = _counted(decode_body(RosterBody, frame.body))
        if place.void:
            self.void |= {frame.position}
        elif frame.kind == Kind.BATCH:
            for sequence in range(frame.first_sequence, frame.last_sequence + 1):
                if (frame.producer, frame.epoch, sequence) in self._aborted:
                    self.wrong(f"{gateway.name} delivers {frame!r}, which was told as aborted")
                if sequence > 1 and (frame.producer, sequence - 1) not in self._sequences:
                    self.wrong(f"{gateway.name} delivers {frame!r}, and nothing before it")
                if self._sequences.setdefault((frame.producer, sequence), frame.position) != frame.position:
                    self.wrong(f"{gateway.name} delivers {frame!r}, which was there before")
        self.log.append(place)

    def _replies(self, gateway: Gateway, reply: Reply) -> None:
        if reply.session in gateway.closed:
            self.wrong(f"{gateway.name} answers session {reply.session}, which is over")
        for answer in reply.answers:
            if isinstance(answer, Committed | Duplicate):
                for sequence in range(answer.first_sequence, answer.first_sequence + answer.count):
                    position = self._sequences.get((answer.producer, sequence), 0)
                    if not 0 < position <= gateway.frontier:
                        self.wrong(f"{gateway.name} says {answer}, and {sequence} is not decided there")
            elif isinstance(answer, AbortedAnswer):
                for sequence in range(answer.first_sequence, answer.first_sequence + answer.count):
                    self._aborted.add((answer.producer, answer.epoch, sequence))
                    if (answer.producer, sequence) in self._sequences:
                        self.wrong(f"{gateway.name} says {answer}, and {sequence} is in the log")

    # Ends

    def ended(self, gateway: Gateway, config: StackConfig) -> None:
        """A run is over: a new stack that gets its events must do the same again, byte for byte."""
        stack = Stack(Random, config)
        for number, (data, now, actions) in enumerate(gateway.history):
            if [codec.encode([action]) for action in stack.step(codec.decode_event(data), now)] != actions:
                self.wrong(f"event {number} of {gateway.name} is answered differently when the run is replayed")
                return


def _counted(body: RosterBody) -> dict[int, bytes]:
    return {voter.number: voter.incarnation for voter in body.voters if voter.voting}
