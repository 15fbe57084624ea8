"""A member of the attempts of other origins. It stores frames, votes for durable frames, and copies decided frames
(protocol/lanes).
"""

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
    """All lanes on this disk.

    They include this gateway's own lane, for reads only. Usually the origin handles that lane. While the end of that lane is lost,
    the lane is copied like any other.

    Attributes:
        low: why this member's disk accepts no batches; empty if it does.
        connected: the gateways that hear each other, this gateway included.
        repair: repairs lane frames that the disk lost.
        recovery: recovers the lost end of this gateway's lane; None if nothing is lost.
    """

    def __init__(self, context: Context, outbox: LaneOutbox, distances: Distances) -> None:
        self._me = context.view_state.me, context.identity.incarnation
        self._window = context.window
        self._outbox = outbox
        self._lanes: dict[Key, Lane] = {}
        self._writing: deque[tuple[int, Lane]] = deque()
        self._reads: dict[int, tuple[int, Key]] = {}  # token -> (asking gateway, lane)
        self._begins: dict[Key, int] = {}  # lane that is being replaced -> token
        self._reports: dict[int, dict[Key, int]] = {}  # last report of each gateway: the decided end of each lane there
        self._disks: dict[int, bytes] = {}  # the gateway's disk in the roster when that report arrived
        self.low = ""
        self.connected: tuple[int, ...] = ()
        self.repair = LaneRepair(outbox, distances, self._sources)
        self.recovery: LostEndRecovery | None = None

    def restore(self, logs: Iterable[LaneLog]) -> Lane:
        """Restore the lanes that were found at the start.

        Deliver the decided part of other lanes, and return this gateway's lane.
        """
        for log in logs:
            self._lanes[log.origin, log.incarnation] = Lane(log)
        own = self._lanes.setdefault(self._me, Lane(LaneLog(origin=self._me[0], incarnation=self._me[1])))
        for lane in self._others():
            if lane.incarnation == self._me[1]:
                # The lane has the number that this gateway had before it was removed. Each frame on this disk has this gateway's
                # YES, so it is decided.
                lane.confirm(lane.end)
            self._deliver_decided(lane)
        return own

    def _others(self) -> Iterator[Lane]:
        return (lane for key, lane in self._lanes.items() if key != self._me or self._copies_own)

    @property
    def _copies_own(self) -> bool:
        """True while this gateway's lane is copied from other gateways."""
        return self.recovery is not None and self.recovery.copying

    def _lane(self, origin: int, incarnation: bytes) -> Lane | None:
        """Return the lane, and create it if needed.

        Return None above the limit on lanes, and for this gateway's lane unless it is copied.
        """
        key = origin, incarnation
        lane = self._lanes.get(key)
        if lane is None and len(self._lanes) < limits.LANES_MAX:
            lane = self._lanes[key] = Lane(LaneLog(origin=origin, incarnation=incarnation))
        return None if key == self._me and not self._copies_own else lane

    # Attempts of other origins

    def on_post(self, sender: int, message: Post) -> None:
        """Handle frames of an attempt. Write and vote for new frames, and repeat the vote for known frames."""
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
                # A higher attempt is accepted only when all earlier frames are decided here (lanes, U15).
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
            # A disk that is low still accepts VIEW frames. A vote that reports the reason is a NO to later batches (lanes,
            # U17).
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
        """Handle the origin's decision, and request the decided frames that are missing here."""
        lane = self._lane(sender, message.incarnation)
        if lane is None or lane.begin is not None or message.attempt < lane.attempt or message.up_to <= lane.confirmed:
            return
        # The copy lacks the VIEW of that attempt, so the last frames of the copy may differ from the decided frames.
        if message.attempt > lane.attempt:
            self._fetch(lane, sender, message.up_to)
            return
        lane.live = True
        lane.confirm(min(message.up_to, lane.end))
        self._deliver_decided(lane)
        if message.up_to > lane.end and not lane.gap:
            lane.gap = True
            self._vote(lane, again=True)

    def on_ask(self, sender: int, message: LaneAsk) -> None:
        """Answer an origin that lost the end of its lane.

        The origin's message names the lane's last durable frame there, which is decided.
        """
        lane = self._lane(sender, message.incarnation)
        if lane is None:
            self._outbox.send(sender, LaneTail(message.incarnation, message.token, 0, 0))
        elif lane.begin is None:
            if message.attempt == lane.attempt:
                # An origin writes only decided frames, so the last durable frame is decided (lanes, U29).
                lane.confirm(min(message.up_to, lane.end))
                self._deliver_decided(lane)
            wanted = lane.after(message.behind) if message.behind and message.behind >= lane.decided else ()
            run = next(split_runs([frame for frame in wanted if frame.position <= lane.durable]), ())
            self._outbox.send(sender, LaneTail(message.incarnation, message.token, lane.attempt, lane.durable, run))

    def _persist(self, lane: Lane, truncate_after: int | None) -> None:
        self._writing.append((self._outbox.persist(lane, up_to=lane.end, truncate_after=truncate_after), lane))

    def persisted(self, token: int) -> None:
        """Handle the completion of writes up to the token, and vote."""
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
        """Position up to which each lane is decided here."""
        return tuple(LaneEnd(lane.origin, lane.incarnation, lane.decided) for lane in self._lanes.values())

    def on_ends(self, sender: int, message: LaneEnds) -> int:
        """Handle a gateway's report of the decided end of each lane there. Return the decided end of this gateway's lane.

        Frames are requested only if their origin will not send them unasked.
        """
        reported = self._reports[sender] = {(end.origin, end.incarnation): end.decided for end in message.ends}
        self._disks[sender] = self._window.state.disk_of(sender)
        for (origin, incarnation), decided in reported.items():
            lane = self._lane(origin, incarnation)
            if lane is not None and decided > lane.confirmed and not (lane.live and lane.origin in self.connected):
                self._fetch(lane, sender, decided)
        return reported.get(self._me, 0)

    def _sources(self, key: Key) -> dict[int, int]:
        """Return the decided end of a lane at each other connected gateway."""
        return {peer: reported[key] for peer, reported in self._reports.items() if peer in self.connected and key in reported}

    def _fetch(self, lane: Lane, source: int, up_to: int) -> None:
        """Add a gateway as a source of decided frames. A gateway that is a source already keeps its rank."""
        lane.sources[source] = max(lane.sources.get(source, 0), up_to)
        self._request_next(lane)

    def _request_next(self, lane: Lane) -> None:
        """Request missing frames from the first source; one request at a time."""
        if lane.asked or self.low:
            return
        source = next((one for one, up_to in lane.sources.items() if up_to > lane.confirmed), 0)
        if source:
            lane.asked, lane.source = limits.RESEND_HEARTBEATS, source
            self._outbox.send(source, LaneFetch(lane.origin, lane.incarnation, lane.confirmed + 1))

    def on_fetch(self, sender: int, message: LaneFetch) -> None:
        """Read decided frames for a gateway that lacks them.

        Ignore the request above the limit on reads; the gateway then repeats it.
        """
        key = message.origin, message.incarnation
        lane = self._lanes.get(key)
        if lane is None or not 0 < message.first <= lane.decided or len(self._reads) >= limits.LANE_READS_MAX:
            return
        # A repeated request uses the read that is already in progress.
        if (sender, key) not in self._reads.values():
            last = min(lane.decided, message.first + common_limits.FRAMES_A_MESSAGE_MAX - 1)
            self._reads[self._outbox.read(lane, message.first, last)] = sender, key

    def on_read(self, event: LaneRead) -> None:
        """Send the frames that the disk read to the requesting gateway. If they are unreadable, send no answer, so that the gateway
        asks another source.
        """
        sender, (origin, incarnation) = self._reads.pop(event.token)
        if event.frames or event.begin is not None:
            self._outbox.send(sender, LaneFetched(origin, incarnation, event.frames, event.begin))

    def on_fetched(self, sender: int, message: LaneFetched) -> None:
        """Handle decided frames. They confirm the frames here, replace undecided frames, or repair lost frames."""
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
            if frame.position <= lane.confirmed:
                continue
            own = lane.at(frame.position)
            if frame.position == lane.confirmed + 1 and own is not None:
                # Two frames of the same attempt at the same position are equal (lanes, U5).
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
        if good:  # otherwise the wait ends and another source is asked
            lane.asked = 0
        if lane.end > end or truncate_after is not None:
            self._persist(lane, truncate_after)
        self._deliver_decided(lane)
        if lane.decided == lane.confirmed:
            self._fetch_next(lane)

    def _begin(self, lane: Lane, sender: int, message: LaneFetched) -> None:
        """Continue the lane at its start in the source's copy, because the source has trimmed the missing frames (protocol/lanes,
        U27).

        Frames are trimmed only when every gateway has had them. If this copy contains the last trimmed frame, all frames up to it
        are decided. Any other undecided frames here can never be decided.
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
        """Report to the disk up to which position all gateways of the roster have each lane, if that position has grown.

        The last report of an absent gateway still counts, because the decided frames are durable on its disk.
        """
        roster = self._window.state.roster
        if self._me[0] not in roster:
            return
        others = [number for number in roster if number != self._me[0]]
        self._reports = {
            number: reported for number, reported in self._reports.items() if number in others or number in self.connected
        }
        self._disks = {number: disk for number, disk in self._disks.items() if number in self._reports}
        disk_of = self._window.state.disk_of
        ends = [self._reports.get(one, {}) if self._disks.get(one) == disk_of(one) else {} for one in others]
        for key, lane in self._lanes.items():
            # Retention waits for a gateway of the roster that has not reported (lanes, U26).
            replicated = min((lane.decided, *(reported.get(key, 0) for reported in ends)))
            if replicated > lane.replicated:
                lane.replicated = replicated
                self._outbox.report_replicated(lane)

    def disk_replaced(self, number: int) -> None:
        """Drop the reports of a gateway's old disk, because the roster names another one."""
        self._reports.pop(number, None)
        self._disks.pop(number, None)
        for lane in self._lanes.values():
            lane.sources.pop(number, None)

    def _fetch_next(self, lane: Lane) -> None:
        """Request the next frames when the fetched frames are durable. So at most one answer waits for the disk."""
        if any(up_to > lane.confirmed for up_to in lane.sources.values()):
            self._request_next(lane)
        elif lane.sources:
            if lane.origin in lane.sources:
                self._vote(lane, again=True)  # the origin may have posted frames that could not be accepted earlier
            lane.sources.clear()

    def _follows(self, lane: Lane, frame: Frame) -> bool:
        follows = frame.position == lane.end + 1 and frame.view >= lane.attempt and chained(frame, lane.chain)
        return follows and frame.origin == lane.origin and frame.kind in (Kind.BATCH, Kind.VIEW) and payload_intact(frame)

    # Time

    def beat(self) -> None:
        """Run one heartbeat. Ask another source after a silence, and report again that the disk is low."""
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
        """Move a source that sent nothing to the end of the order, because it may be unable to read the missing frames."""
        up_to = lane.sources.pop(lane.source, 0)
        if self.recovery is not None and (lane.origin, lane.incarnation) == self._me:
            self.recovery.on_no_answer(lane.source)
        if up_to > lane.confirmed and lane.source in self.connected:
            lane.sources[lane.source] = up_to
        self._request_next(lane)

    def ends_sent(self) -> None:
        """Note that the reports were sent.

        If no decision of a lane arrives before the next report, the lane is requested from other gateways.
        """
        for lane in self._others():
            lane.live = False
