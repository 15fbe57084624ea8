"""What may never happen (design, section 9), looked at as it happens: actions, disks, and nothing of the stack's inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.commits import CommitChecks
from tests.sim.disk import Disk
from tests.sim.growth import grown
from tests.sim.trims import TrimChecks
from tests.sim.violation import Violation
from tutti.data.client_protocol import AbortedAnswer, Committed, Denied, Done, Duplicate
from tutti.data.frames.bodies import RosterBody, TrimBody, Voter, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti.data.view_id import coordinator_of, view_text
from tutti_gateway.core.protocol.actions import Deliver, LogReplaced, Persist, Reply, ViewInstalled
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Confirm, Heartbeat, Install, Installed, Message, Order, Propose, State, Vote

if TYPE_CHECKING:
    from tests.sim.gateways import Gateway, Process
    from tests.sim.world import World


class Checks:
    """All checks of one run. Each raises `Violation`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log = world.log
        self._placed: dict[tuple[int, int], bytes] = {}  # (view, position) -> the header that was written there
        self._views: dict[int, tuple[tuple[int, ...], int]] = {}
        self._disks: dict[tuple[int, int], bytes] = {}  # (view, number) -> the incarnation that installed it
        self.trims = TrimChecks()
        self.commits = CommitChecks()
        self._attempts: dict[int, tuple[Process, tuple[int, ...]]] = {}
        self._confirmed: dict[int, int] = {}  # view -> up to where a CONFIRM left
        self._on_send: dict[type, Any] = {
            Vote: self._vote,
            Confirm: self._confirm,
            Order: self._order,
            Propose: self._propose,
            State: self._state,
            Install: self._install,
            Installed: self._is_installed,
            Heartbeat: self._heartbeat,
        }

    # Disks

    def written(self, disk: Disk, frames: tuple[Frame, ...]) -> None:
        """One header at one (view, position), whoever writes it."""
        placed = self._placed
        for frame in frames:
            if placed.setdefault((frame.view, frame.position), frame.header) != frame.header:
                raise Violation(f"{disk.name} writes {frame!r}, but another frame has that view and position")

    def cut(self, disk: Disk, behind: int) -> None:
        """Nothing decided is cut: not what this gateway showed, and not what it holds of what others decided."""
        frontier = self._world.gateways[disk.name].frontier
        self._world.counts["cuts"] += 1
        if behind < frontier:
            raise Violation(f"{disk.name} truncates its log after {behind}, below its frontier {frontier}")
        if behind < min(len(disk.frames), self._log.end) and disk.frames[behind].header == self._log.places[behind].frame.header:
            raise Violation(f"{disk.name} truncates its log after {behind}, but the next frame is decided")

    def replaced(self, disk: Disk, state: LogState) -> list[Frame]:
        """A log is replaced by what is decided, and by nothing that its gateway has shown to be less."""
        frontier = self._world.gateways[disk.name].frontier
        self._world.counts["replaced"] += 1
        if state.position < frontier and not disk.weak:
            raise Violation(f"{disk.name} installs a snapshot up to {state.position}, below its frontier {frontier}")
        if state != self._log.state_at(state.position):
            raise Violation(f"{disk.name} installs a snapshot up to {state.position} that differs from the log of the group")
        places = self._log.places
        held = disk.frames[state.position :]
        if held and state.position < len(places) and held[0].header == places[state.position].frame.header:
            raise Violation(f"{disk.name} installs a snapshot up to {state.position}, but its next frame is decided")
        return [place.frame for place in places[: state.position]]

    def scalars_written(self, disk: Disk, scalars: HardState) -> None:
        """None of the scalars goes back, and nothing is accepted that was not promised."""
        old = disk.scalars
        if scalars.promised < old.promised or scalars.accepted < old.accepted or scalars.coordinated < old.coordinated:
            raise Violation(f"the hard state of {disk.name} goes back from {old} to {scalars}")
        if scalars.accepted > scalars.promised:
            raise Violation(f"{disk.name} accepts a view that it did not promise: {scalars}")

    def persists(self, process: Process, action: Persist) -> None:
        """A Persist is in order of positions."""
        for before, frame in zip(action.frames, action.frames[1:], strict=False):
            if frame.position != before.position + 1:
                raise Violation(f"{process.gateway.name} writes {frame!r} after position {before.position}")

    def started(self, gateway: Gateway, recovered: Recovered) -> None:
        """What a disk tells a start does not contradict what it showed before."""
        self._world.counts["starts"] += 1
        self._world.counts["damaged"] += recovered.damage is not None
        # A log that was replaced by what is decided may be found before its process could show it.
        if recovered.state.position > max(gateway.frontier, gateway.disk.trims.start):
            raise Violation(f"{gateway.name} starts at {recovered.state.position}, above its last frontier {gateway.frontier}")

    # Messages

    def sent(self, process: Process, to: int, message: Message) -> None:
        """What a message claims is so."""
        kind = type(message)
        self._world.counts[kind.__name__] += 1
        check = self._on_send.get(kind)
        if check is not None:
            check(process, message)

    def _holds(self, process: Process, view: int, what: str) -> None:
        """The view is promised and accepted, durably."""
        scalars = process.gateway.disk.scalars
        if not view == scalars.promised == scalars.accepted:
            raise Violation(f"{process.gateway.name} sends {what} in view {view_text(view)}, but its disk has {scalars}")

    def _vote(self, process: Process, message: Vote) -> None:
        disk = process.gateway.disk
        self._holds(process, message.view, "YES")
        if message.up_to > disk.durable:
            raise Violation(f"{disk.name} votes YES up to {message.up_to}, but only {disk.durable} is durable")

    def _order(self, process: Process, message: Order) -> None:
        self._coordinates(process, message.view, "ORDER")

    def _coordinates(self, process: Process, view: int, what: str) -> None:
        self._holds(process, view, what)
        if coordinator_of(view) != process.me:
            raise Violation(f"{process.gateway.name} sends {what} in view {view_text(view)}, which it does not coordinate")

    def _confirm(self, process: Process, message: Confirm) -> None:
        self._coordinates(process, message.view, "CONFIRM")
        if message.up_to > max(self._confirmed.get(message.view, 0), self._log.end):
            self._decides(process, message.view, message.up_to)
        self._confirmed[message.view] = max(self._confirmed.get(message.view, 0), message.up_to)

    def _decides(self, process: Process, view: int, up_to: int) -> None:
        """All members of the view have it on disk, synced, and they are a majority of the roster, disk by disk."""
        members = self._views[view][0]
        disk = process.gateway.disk
        if up_to > disk.durable:
            raise Violation(f"{disk.name} decides {up_to}, but only {disk.durable} is durable there")
        header = disk.frames[up_to - 1].header
        for number in members:
            name = disk.name if number == process.me else self._log.names.get(number) or process.names[number]
            gateway = self._world.gateways[name]
            other = gateway.disk
            if other.weak:
                continue
            if other.durable < up_to or other.frames[up_to - 1].header != header:
                raise Violation(
                    f"{disk.name} decides {up_to}, but {other.name} has only {other.durable} durable, or another frame there"
                )
        roster = self._roster(disk.frames[self._log.end : up_to])
        voters = [voter for voter in roster.values() if voter.voting]
        disks = {number: self._disks.get((view, number)) for number in members}
        there = [voter for voter in voters if disks.get(voter.number) == voter.incarnation]
        if voters and 2 * len(there) <= len(voters):
            raise Violation(
                f"{disk.name} decides {up_to} in a view of {members} with {len(there)} voters of {sorted(roster)}, not a majority"
            )

    def _roster(self, deciding: Sequence[Frame]) -> dict[int, Voter]:
        """Who counts: the last decided roster, or one that was made by force and is about to be."""
        roster = self._log.state.roster
        for frame in deciding:
            body = decode_body(RosterBody, frame.body) if frame.kind == Kind.ROSTER else None
            if body is not None and body.forced:
                roster = {voter.number: voter for voter in body.voters}
        return roster

    def _propose(self, process: Process, message: Propose) -> None:
        """A view id is used once, by one process for one list of members, promised and noted as coordinated before."""
        gateway = process.gateway
        attempt = self._attempts.setdefault(message.view, (process, message.members))
        if attempt[0] is not process or attempt[1] != message.members:
            raise Violation(
                f"{gateway.name} proposes view {view_text(message.view)} of {message.members}, but it was of {attempt[1]}"
            )
        scalars = gateway.disk.scalars
        if min(scalars.promised, scalars.coordinated) < message.view:
            raise Violation(f"{gateway.name} proposes view {view_text(message.view)}, but its disk has {scalars}")

    def _state(self, process: Process, message: State) -> None:
        disk = process.gateway.disk
        if disk.scalars.promised < message.view:
            raise Violation(f"{disk.name} answers the proposal of {view_text(message.view)}, but its disk has {disk.scalars}")
        if message.end > max(disk.durable, disk.mark.position):
            raise Violation(f"{disk.name} reports log end {message.end}, but only {disk.durable} is durable")

    def _install(self, process: Process, message: Install) -> None:
        if coordinator_of(message.view) != process.me:
            raise Violation(f"{process.gateway.name} installs view {view_text(message.view)} of another coordinator")

    def _is_installed(self, process: Process, message: Installed) -> None:
        disk = process.gateway.disk
        if disk.scalars.accepted < message.view:
            raise Violation(f"{disk.name} reports view {view_text(message.view)} as installed, but its disk has {disk.scalars}")

    def _heartbeat(self, process: Process, message: Heartbeat) -> None:
        disk = process.gateway.disk
        scalars = disk.scalars
        if message.promised > scalars.promised or message.accepted > scalars.accepted or message.watermark > disk.watermark:
            raise Violation(f"{disk.name} sends {message}, but its disk has {scalars} and watermark {disk.watermark}")
        if message.frontier > max(self._log.end, *self._confirmed.values(), 0, 0):
            raise Violation(f"{disk.name} reports frontier {message.frontier}, but no gateway decided it")

    # What members show

    def installed(self, process: Process, view: ViewInstalled) -> None:
        """A view is the same for everybody, and durably accepted."""
        if not view.view:
            return
        self._holds(process, view.view, "installed")
        self._world.counts["views"] += view.view not in self._views
        self._disks[view.view, process.me] = process.gateway.incarnation
        if self._views.setdefault(view.view, (view.members, view.coordinator)) != (view.members, view.coordinator):
            raise Violation(f"{process.gateway.name} installs {view}, but other gateways installed {self._views[view.view]}")

    def delivered(self, process: Process, run: Deliver) -> None:
        """The one log: what others showed first is the same here; what is new was decided in this view, by its coordinator."""
        name, disk, log = process.gateway.name, process.gateway.disk, self._log
        frontier = process.frontier
        last = run.frames[-1].position
        if last > disk.durable:
            raise Violation(f"{name} delivers {last}, but only {disk.durable} is durable there")
        if last > log.end:
            self._new(process, last)
        places = log.places
        for frame, offset in zip(run.frames, run.offsets, strict=True):
            frontier += 1
            void = frame.position in run.aborted
            if frame.position != frontier:
                raise Violation(f"{name} delivers {frame!r} after position {frontier - 1}")
            if frontier > len(places):
                self._trim(process, frame)
                log.add(name, frame, offset, void, process.view.view if process.view else 0)
                if frame.kind == Kind.OFFSETS:
                    self._world.counts["reader_backs"] += self.commits.decided(name, frame)
                continue
            place = places[frontier - 1]
            same = frame is place.frame or (frame.header == place.frame.header and bytes(frame.body) == bytes(place.frame.body))
            if not same or offset != place.offset or void != place.void:
                raise Violation(f"{name} delivers {frame!r} at offset {offset}, void: {void}, but other gateways delivered {place}")
        if run.next_offset != (log.state.next_offset if last == log.end else log.places[last].offset):
            raise Violation(f"{name} reports offset {run.next_offset} after position {last}, which is wrong")

    def _trim(self, process: Process, frame: Frame) -> None:
        """A TRIM that is decided takes nothing that a voter lacks, unless it had to go."""
        if frame.kind == Kind.TRIM:
            body = decode_body(TrimBody, frame.body)
            self._world.counts["trims"] += 1
            if not 0 < body.position <= self._log.end or self._log.places[body.position - 1].offset != body.offset:
                raise Violation(f"{process.gateway.name} decides {frame!r}: {body}, which is not a position of the log")
            if lacks := self.trims.lacking(process, body.position):
                raise Violation(f"{process.gateway.name} decides {frame!r}: {body}, but {lacks} lacks some of the trimmed frames")

    def relearned(self, process: Process, action: LogReplaced) -> None:
        """A frontier that jumps is durable, on a disk that says just that."""
        disk, state = process.gateway.disk, self._log.state_at(action.position)
        if action.position > disk.durable or action.position <= process.frontier:
            raise Violation(
                f"{disk.name} continues after {action.position}, from frontier {process.frontier}, but {disk.durable} is durable"
            )
        if process.stack.decided != state or action.next_offset != state.next_offset:
            raise Violation(f"{disk.name} continues after {action.position} with a state that differs from the log of the group")

    def _new(self, process: Process, last: int) -> None:
        view = process.view
        if view is None or not view.view:
            raise Violation(f"{process.gateway.name} delivers {last} without a view, but no gateway decided it")
        if view.coordinator == process.me:
            self._coordinates(process, view.view, "decided")
            self._decides(process, view.view, last)
        elif last > self._confirmed.get(view.view, 0):
            raise Violation(f"{process.gateway.name} delivers {last} without a CONFIRM of view {view_text(view.view)}")

    # What clients are told

    def replied(self, process: Process, reply: Reply) -> None:
        """What is acknowledged is decided at this gateway already, under the offset that is told."""
        for answer in reply.answers:
            if isinstance(answer, Committed | Duplicate):
                for sequence in range(answer.first_sequence, answer.first_sequence + answer.count):
                    found = self._log.find(answer.producer, sequence)
                    if found is None or found[1] > process.frontier:
                        raise Violation(f"{process.gateway.name} answers {answer}, but has not decided sequence {sequence}")
                    if isinstance(answer, Committed) and found[0] != answer.offset + sequence - answer.first_sequence:
                        raise Violation(f"{process.gateway.name} answers {answer}, but sequence {sequence} is at offset {found[0]}")
            elif isinstance(answer, AbortedAnswer):
                line = self._log.state.producers.get(answer.producer)
                if line is not None and line.epoch == answer.epoch and not line.closed:
                    raise Violation(f"{process.gateway.name} answers {answer}, but that epoch is still open")
            elif isinstance(answer, Done | Denied):
                self.commits.answered(process, reply.session, answer)

    # The end

    def whole(self) -> None:
        """Every log is the same, byte for byte, and says the same."""
        log = self._log
        state = log.state
        for gateway in self._world.gateways.values():
            process = gateway.process
            if process is None or gateway.halt or process.frontier != log.end:
                continue
            for place, frame in zip(log.places, gateway.disk.frames, strict=False):
                if frame is not place.frame and frame.to_bytes() != place.frame.to_bytes():
                    raise Violation(f"the log of {gateway.name} has {frame!r} where others have {place.frame!r}")
            if too_many := grown(process.stack.layers):
                raise Violation(f"{gateway.name} is idle, but {too_many}")
            if process.stack.decided != state:
                raise Violation(f"the state of {gateway.name} differs from the log of the group at {log.end}")
        if log.state_at(log.end) != state:
            raise Violation("a replay of the log gives another state")
