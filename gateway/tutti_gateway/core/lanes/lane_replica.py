"""The member's role in attempts of other origins: store frames, vote for durable frames, copy decided frames (protocol/lanes)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame, Kind, chained
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Distances
from tutti_gateway.core.frame_runs import payload_intact, split_runs
from tutti_gateway.core.lanes.disk_repair import LaneRepair
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.lanes.lost_end import LostEndRecovery
from tutti_gateway.core.lanes.outbox import LaneOutbox
from tutti_gateway.core.protocol.events import LaneLog, LaneRead
from tutti_gateway.core.protocol.messages import LaneAsk, LaneEnd, LaneEnds, LaneFetch, LaneFetched, LaneTail, Post, Posted, Settled

Key = tuple[int, bytes]  # origin's number, incarnation of its disk


class Member:
    """All lanes on this disk, including this gateway's own lane.

    The origin (`origin.py`) writes this gateway's own lane, and this class only serves reads of that lane. If the disk lost the end
    of that lane, this class also copies the lane from other gateways, like any other lane.

    Attributes:
        low: reason why this member's disk accepts no batches; empty if the disk accepts them.
        connected: the gateways that exchange heartbeats with each other, this gateway included.
        repair: repair of lane frames that the disk lost.
        recovery: recovery of the lost end of this gateway's lane; None if nothing is lost.
    """

    def __init__(self, context: Context, outbox: LaneOutbox, distances: Distances) -> None:
        self._me = context.view_state.me, context.identity.incarnation
        self._window = context.window
        self._outbox = outbox
        self._lanes: dict[Key, Lane] = {}
        self._writing: deque[tuple[int, Lane]] = deque()
        self._reads: dict[int, tuple[int, Key]] = {}  # token -> (requesting gateway, lane)
        self._begins: dict[Key, int] = {}  # lane that the disk is replacing -> token of that write
        self._reports: dict[int, dict[Key, int]] = {}  # gateway -> decided end of each lane, from the gateway's last report
        self._disks: dict[int, bytes] = {}  # gateway -> its disk in the roster when the gateway's last report arrived
        self.low = ""
        self.connected: tuple[int, ...] = ()
        self.repair = LaneRepair(outbox, distances, self._sources)
        self.recovery: LostEndRecovery | None = None

    def restore(self, logs: Iterable[LaneLog]) -> Lane:
        """Restore the lanes that the disk held at the start.

        Deliver the decided frames of other origins' lanes, and return this gateway's own lane.
        """
        for log in logs:
            self._lanes[log.origin, log.incarnation] = Lane(log)
        own = self._lanes.setdefault(self._me, Lane(LaneLog(origin=self._me[0], incarnation=self._me[1])))
        for lane in self._others():
            if lane.incarnation == self._me[1]:
                # This gateway wrote the lane as its origin before it was removed and got a new number, so all frames are decided.
                lane.confirm(lane.end)
            self._deliver_decided(lane)
        return own

    def _others(self) -> Iterator[Lane]:
        return (lane for key, lane in self._lanes.items() if key != self._me or self._copies_own)

    @property
    def _copies_own(self) -> bool:
        """True while this gateway copies its own lane from other gateways, because its disk lost the lane's end."""
        return self.recovery is not None and self.recovery.copying

    def _lane(self, origin: int, incarnation: bytes) -> Lane | None:
        """Return the lane of this origin's disk, and create it if needed.

        Return None if the limit on lanes is reached, or if the lane is this gateway's own, which only the origin writes.
        """
        key = origin, incarnation
        lane = self._lanes.get(key)
        if lane is None and len(self._lanes) < limits.LANES_MAX:
            lane = self._lanes[key] = Lane(LaneLog(origin=origin, incarnation=incarnation))
        return None if key == self._me and not self._copies_own else lane

    # Attempts of other origins

    def on_post(self, sender: int, message: Post) -> None:
        """Handle frames that an origin posts: write new frames, and repeat the vote for frames that are already durable."""
        lane = self._lane(sender, message.incarnation)
        if lane is None:
            self._outbox.drop(message, sender, "this gateway does not take the lane")
            return
        if lane.begin is not None:
            return  # the disk is replacing the lane; the origin repeats the frames
        truncate_after: int | None = None
        before = lane.end
        again = known = False
        for frame in message.frames:
            if frame.kind not in (Kind.BATCH, Kind.VIEW) or frame.staged or frame.origin != sender or not payload_intact(frame):
                self._outbox.drop(message, sender, f"{frame!r} is corrupt, or is not a frame of the lane")
                break
            if frame.view < lane.attempt:
                continue
            if frame.view > lane.attempt:
                # A new VIEW truncates undecided frames, so all frames before it must first be known as decided (lanes, U15).
                if frame.kind == Kind.VIEW and frame.position - 1 > lane.confirmed:
                    self._fetch(lane, sender, frame.position - 1)
                    break
                if frame.kind != Kind.VIEW:
                    again = True
                    break
                if frame.position - 1 < lane.confirmed:
                    self._outbox.drop(message, sender, f"{frame!r} begins an attempt below the decided position {lane.confirmed}")
                    break
                truncate_after = lane.truncate()
                before = lane.end
            elif frame.position <= lane.end:
                known = True
                continue
            if frame.position > lane.end + 1 or not chained(frame, lane.chain):
                again = True
                break
            # A low disk still accepts VIEW frames, so that the member can vote and report the reason, which is a NO (lanes, U17).
            if frame.kind == Kind.BATCH and (self.low or lane.bytes > limits.LANE_BYTES_MAX):
                known = bool(self.low)
                break
            lane.append(frame)
        if lane.end > before or truncate_after is not None:
            self._persist(lane, truncate_after)
            lane.gap = False
        if known or (again and not lane.gap):
            lane.gap = again
            self._vote(lane, again)

    def on_settled(self, sender: int, message: Settled) -> None:
        """Handle the origin's decision, and request the decided frames that this member lacks."""
        lane = self._lane(sender, message.incarnation)
        if lane is None or lane.begin is not None or message.attempt < lane.attempt or message.up_to <= lane.confirmed:
            return
        # A copy without the VIEW of that attempt may end in frames that were never decided, so it fetches the decided frames.
        if message.attempt > lane.attempt:
            self._fetch(lane, sender, message.up_to)
            return
        lane.live = True
        lane.confirm(min(message.up_to, lane.end))
        self._deliver_decided(lane)
        # After a vote with `again`, the origin posts the missing frames again, so no other source is needed.
        if message.up_to > lane.end and not lane.gap:
            lane.gap = True
            self._vote(lane, again=True)

    def on_ask(self, sender: int, message: LaneAsk) -> None:
        """Report the end of this copy to an origin that lost the end of its lane.

        The message contains the position of the last frame that was durable at the origin. That frame is decided.
        """
        lane = self._lane(sender, message.incarnation)
        if lane is None:
            self._outbox.send(sender, LaneTail(message.incarnation, message.token, 0, 0))
        elif lane.begin is None:
            if message.attempt == lane.attempt:
                # An origin writes only decided frames, so the last durable frame is decided (lanes, U29).
                lane.confirm(min(message.up_to, lane.end))
                self._deliver_decided(lane)
            # The origin counts the frames in the answer as this member's vote, so the answer contains only durable frames.
            wanted = lane.after(message.behind) if message.behind and message.behind >= lane.decided else ()
            run = next(split_runs([frame for frame in wanted if frame.position <= lane.durable]), ())
            self._outbox.send(sender, LaneTail(message.incarnation, message.token, lane.attempt, lane.durable, run))

    def _persist(self, lane: Lane, truncate_after: int | None) -> None:
        self._writing.append((self._outbox.persist(lane, up_to=lane.end, truncate_after=truncate_after), lane))

    def persisted(self, token: int) -> None:
        """Handle the completion of all lane writes up to the token, and vote for the frames that are now durable."""
        # Tokens increase, so the writes complete in the order of this queue.
        while self._writing and self._writing[0][0] <= token:
            own_token, lane = self._writing.popleft()
            if lane.begin is not None and own_token == self._begins[lane.origin, lane.incarnation]:
                del self._begins[lane.origin, lane.incarnation]
                lane.replace(lane.begin)
            lane.persisted(own_token)
            self._deliver_decided(lane)
            if lane.durable > lane.confirmed:
                self._vote(lane)
            self._fetch_next(lane)

    def _vote(self, lane: Lane, again: bool = False) -> None:
        self._outbox.send(lane.origin, Posted(lane.incarnation, lane.attempt, lane.durable, self.low, again))

    def _deliver_decided(self, lane: Lane) -> None:
        if self.recovery is not None and (lane.origin, lane.incarnation) == self._me:
            self.recovery.deliver_decided()
            return
        offset, frames = lane.pop_decided()
        if frames:
            self._outbox.deliver(lane, offset, frames)

    # Reports of other gateways

    @property
    def ends(self) -> tuple[LaneEnd, ...]:
        """Report about all lanes: the position up to which each lane is decided at this member."""
        return tuple(LaneEnd(lane.origin, lane.incarnation, lane.decided) for lane in self._lanes.values())

    def on_ends(self, sender: int, message: LaneEnds) -> int:
        """Store a gateway's report of the decided end of each lane. Return the reported end of this gateway's own lane.

        This member requests the frames that it lacks, unless their origin is connected and is already sending decisions.
        """
        reported = self._reports[sender] = {(end.origin, end.incarnation): end.decided for end in message.ends}
        self._disks[sender] = self._window.state.disk_of(sender)
        for (origin, incarnation), decided in reported.items():
            lane = self._lane(origin, incarnation)
            if lane is not None and decided > lane.confirmed and not (lane.live and lane.origin in self.connected):
                self._fetch(lane, sender, decided)
        return reported.get(self._me, 0)

    def _sources(self, key: Key) -> dict[int, int]:
        """Return, for one lane, the decided end that each connected gateway has reported, by gateway number."""
        return {peer: reported[key] for peer, reported in self._reports.items() if peer in self.connected and key in reported}

    def _fetch(self, lane: Lane, source: int, up_to: int) -> None:
        """Add a gateway to the sources of decided frames, after all other sources unless it is already one."""
        lane.sources[source] = max(lane.sources.get(source, 0), up_to)
        self._request_next(lane)

    def _request_next(self, lane: Lane) -> None:
        """Request missing frames of a lane from its first source, if no request for this lane is open."""
        # A low disk reserves its free space for frames that it must accept, so this member requests no others.
        if lane.asked or self.low:
            return
        source = next((one for one, up_to in lane.sources.items() if up_to > lane.confirmed), 0)
        if source:
            lane.asked, lane.source = limits.RESEND_HEARTBEATS, source
            self._outbox.send(source, LaneFetch(lane.origin, lane.incarnation, lane.confirmed + 1))

    def on_fetch(self, sender: int, message: LaneFetch) -> None:
        """Read decided frames for a gateway that lacks them.

        If too many reads are in progress, this member ignores the request, because the gateway repeats it.
        """
        key = message.origin, message.incarnation
        lane = self._lanes.get(key)
        if lane is None or not 0 < message.first <= lane.decided or len(self._reads) >= limits.LANE_READS_MAX:
            return
        # A repeated request starts no second read, because the result of the first read answers it too.
        if (sender, key) not in self._reads.values():
            last = min(lane.decided, message.first + common_limits.FRAMES_A_MESSAGE_MAX - 1)
            self._reads[self._outbox.read(lane, message.first, last)] = sender, key

    def on_read(self, event: LaneRead) -> None:
        """Send the frames that the disk read to the requesting gateway.

        If the frames are unreadable, this member sends no answer, so that the requesting gateway asks another source.
        """
        sender, (origin, incarnation) = self._reads.pop(event.token)
        if event.frames or event.begin is not None:
            self._outbox.send(sender, LaneFetched(origin, incarnation, event.frames, event.begin))

    def on_fetched(self, sender: int, message: LaneFetched) -> None:
        """Handle decided frames of another gateway, which confirm or replace undecided frames, or repair lost ones."""
        if self.repair.on_fetched(sender, message):
            return
        lane = self._lane(message.origin, message.incarnation)
        if lane is None or lane.begin is not None or lane.bytes > limits.LANE_BYTES_MAX:
            return
        if message.begin is not None and (lane.origin, lane.incarnation) == self._me:
            self._outbox.drop(
                message, sender, "the origin of the lane needs all of it, because the trimmed part names the producers"
            )
            if self.recovery is not None:
                self.recovery.on_trimmed(sender, message.begin.position)
            return
        if message.begin is not None:
            self._begin(lane, sender, message)
            return
        truncate_after: int | None = None
        end = lane.end
        good = bool(message.frames)
        for frame in message.frames:
            # After a repeated request, a second answer may contain frames that this member already has.
            if frame.position <= lane.confirmed:
                continue
            own = lane.at(frame.position)
            if frame.position == lane.confirmed + 1 and own is not None:
                # Attempt and checksum identify a frame. If both are equal, this member already holds the decided frame (lanes, U5).
                if own.view == frame.view and own.header_crc == frame.header_crc:
                    lane.confirm(frame.position)
                    continue
                truncate_after = lane.truncate()
                end = lane.end
            if not self._follows(lane, frame):
                self._outbox.drop(message, sender, f"{frame!r} is corrupt, or does not follow position {lane.end}")
                good = False
                break
            lane.append(frame)
            lane.confirm(frame.position)
        if good:  # after an invalid answer, this member asks the next source only when the wait for the answer is over
            lane.asked = 0
        if lane.end > end or truncate_after is not None:
            self._persist(lane, truncate_after)
        self._deliver_decided(lane)
        if lane.decided == lane.confirmed:
            self._fetch_next(lane)

    def _begin(self, lane: Lane, sender: int, message: LaneFetched) -> None:
        """Continue the lane at the start of the source's copy, because the source has trimmed the missing frames (lanes, U27).

        A gateway trims a frame only after every gateway of the roster held it. If this copy contains the last trimmed frame, all
        frames up to that frame are decided. Otherwise the undecided frames in this copy can never be decided, so a new start
        replaces this copy.
        """
        begin = message.begin
        if begin is None or begin.position <= lane.confirmed:
            return
        own = lane.at(begin.position)
        if own is not None and own.view == begin.attempt and own.header_crc == begin.chain:
            lane.asked = 0
            lane.confirm(begin.position)
            self._deliver_decided(lane)
            self._fetch_next(lane)
        # All frames before the VIEW in this copy are decided, so a start in an earlier attempt contradicts this copy.
        elif begin.attempt < lane.attempt:
            self._outbox.drop(
                message, sender, f"it begins after attempt {lane.attempt}, whose VIEW was decided after all earlier frames"
            )
        else:
            lane.asked = 0
            lane.begin = begin
            token = self._begins[lane.origin, lane.incarnation] = self._outbox.begin(lane, begin)
            self._writing.append((token, lane))

    def report_replicated(self) -> None:
        """Report to the disk the position up to which every gateway of the roster holds each lane, so that retention may trim it.

        The last report of an absent gateway still counts, because the frames in that report are durable on its disk.
        """
        roster = self._window.state.roster
        if self._me[0] not in roster:
            return
        others = [number for number in roster if number != self._me[0]]
        # Reports of removed gateways do not count, and must not stay in memory.
        self._reports = {
            number: reported for number, reported in self._reports.items() if number in others or number in self.connected
        }
        self._disks = {number: disk for number, disk in self._disks.items() if number in self._reports}
        disk_of = self._window.state.disk_of
        ends = [self._reports.get(one, {}) if self._disks.get(one) == disk_of(one) else {} for one in others]
        for key, lane in self._lanes.items():
            # A gateway without a report counts with position 0, so retention waits for that gateway (lanes, U26).
            replicated = min((lane.decided, *(reported.get(key, 0) for reported in ends)))
            if replicated > lane.replicated:
                lane.replicated = replicated
                self._outbox.report_replicated(lane)

    def disk_replaced(self, number: int) -> None:
        """Drop the reports about a gateway's old disk, because the roster contains the gateway's new disk."""
        self._reports.pop(number, None)
        self._disks.pop(number, None)
        for lane in self._lanes.values():
            lane.sources.pop(number, None)

    def _fetch_next(self, lane: Lane) -> None:
        """Request the next frames of a lane. Callers wait until fetched frames are durable, so only one answer is in memory."""
        if any(up_to > lane.confirmed for up_to in lane.sources.values()):
            self._request_next(lane)
        elif lane.sources:
            if lane.origin in lane.sources:
                # The vote with `again` requests posted frames that this copy could not accept while earlier frames were missing.
                self._vote(lane, again=True)
            lane.sources.clear()

    def _follows(self, lane: Lane, frame: Frame) -> bool:
        follows = frame.position == lane.end + 1 and frame.view >= lane.attempt and chained(frame, lane.chain)
        return follows and frame.origin == lane.origin and frame.kind in (Kind.BATCH, Kind.VIEW) and payload_intact(frame)

    # Time

    def beat(self) -> None:
        """Run one heartbeat: ask another source if the current one does not answer, and repeat the report of a low disk."""
        self.repair.beat()
        for lane in self._others():
            if lane.asked:
                lane.asked -= 1
                if not lane.asked:
                    self._requeue_source(lane)
            lane.gap = False
            if self.low and lane.origin in self.connected and lane.origin != self._me[0]:
                self._vote(lane)

    def _requeue_source(self, lane: Lane) -> None:
        """Move a source that did not answer to the end of the order, because it may be unable to read the frames."""
        up_to = lane.sources.pop(lane.source, 0)
        if self.recovery is not None and (lane.origin, lane.incarnation) == self._me:
            self.recovery.on_no_answer(lane.source)
        # A disconnected source is dropped, because it reports its end again when it reconnects.
        if up_to > lane.confirmed and lane.source in self.connected:
            lane.sources[lane.source] = up_to
        self._request_next(lane)

    def ends_sent(self) -> None:
        """Record that each origin should send a decision before this member's next report of its ends.

        If an origin sends none, this member requests the frames that other gateways report as decided.
        """
        for lane in self._others():
            lane.live = False
