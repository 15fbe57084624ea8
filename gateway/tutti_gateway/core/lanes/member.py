"""A member of other origins' attempts: it stores, votes after persisted, and learns what is decided, from whoever knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame, Kind, chained
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Far
from tutti_gateway.core.frame_runs import parts, whole
from tutti_gateway.core.lanes.disk_repair import LaneMending
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.lanes.lost_end import Healing
from tutti_gateway.core.lanes.outbox import Box
from tutti_gateway.core.protocol.events import LaneLog, LaneRead
from tutti_gateway.core.protocol.messages import LaneAsk, LaneEnd, LaneEnds, LaneFetch, LaneFetched, LaneTail, Post, Posted, Settled

Key = tuple[int, bytes]  # origin's number, incarnation of its disk


class Member:
    """The lanes here. The own one is among them to be read; all else about it is the origin's, unless its end is lost: then it is
    learned like any other.

    Attributes:
        low: why this member's disk takes no batches; empty if it does.
        part: the gateways that hear each other, this one among them.
        mending: what the disk lost of lanes.
        healing: what the disk lost of the own lane's end, None if it lost nothing.
    """

    def __init__(self, context: Context, box: Box, far: Far) -> None:
        self._me = context.standing.me, context.identity.incarnation
        self._window = context.window
        self._box = box
        self._lanes: dict[Key, Lane] = {}
        self._writing: deque[tuple[int, Lane]] = deque()
        self._reads: dict[int, tuple[int, Key]] = {}  # token -> (who asked, lane)
        self._begins: dict[Key, int] = {}  # lanes that are being replaced -> token
        self._told: dict[int, dict[Key, int]] = {}  # up to where the others have lanes decided, as each said last
        self._disks: dict[int, bytes] = {}  # and the disk that the roster named then
        self.low = ""
        self.part: tuple[int, ...] = ()
        self.mending = LaneMending(box, far, self._sources)
        self.healing: Healing | None = None

    def restore(self, logs: Iterable[LaneLog]) -> Lane:
        """Take over what a start found. What is known as decided of other lanes is handed out; the own lane is returned."""
        for log in logs:
            self._lanes[log.origin, log.incarnation] = Lane(log)
        own = self._lanes.setdefault(self._me, Lane(LaneLog(origin=self._me[0], incarnation=self._me[1])))
        for lane in self._others():
            if lane.incarnation == self._me[1]:
                # Of the number that this gateway had before it was removed and added again: here stands only what it said YES to.
                lane.confirm(lane.end)
            self._settle(lane)
        return own

    def _others(self) -> Iterator[Lane]:
        return (lane for key, lane in self._lanes.items() if key != self._me or self._learns)

    @property
    def _learns(self) -> bool:
        """Whether the own lane is learned."""
        return self.healing is not None and self.healing.learns

    def _lane(self, origin: int, incarnation: bytes) -> Lane | None:
        """The lane, a new one if there is room; None for the own unless that is learned, and for one too many."""
        key = origin, incarnation
        lane = self._lanes.get(key)
        if lane is None and len(self._lanes) < limits.LANES_MAX:
            lane = self._lanes[key] = Lane(LaneLog(origin=origin, incarnation=incarnation))
        return None if key == self._me and not self._learns else lane

    # The origin's attempt

    def on_post(self, sender: int, message: Post) -> None:
        """Frames of an attempt: those that are next are stored and then voted for, which also answers what came before."""
        lane = self._lane(sender, message.incarnation)
        if lane is None:
            self._box.drop(message, sender, "it is of a lane that is not taken here")
            return
        if lane.begin is not None:
            return  # it is said again
        cut: int | None = None
        before = lane.end
        again = known = False
        for frame in message.frames:
            if frame.kind not in (Kind.BATCH, Kind.VIEW) or frame.staged or frame.origin != sender or not whole(frame):
                self._box.drop(message, sender, f"{frame!r} did not come whole, or is no frame of the lane")
                break
            if frame.view < lane.attempt:
                continue
            if frame.view > lane.attempt:
                if frame.kind == Kind.VIEW and frame.position - 1 > lane.confirmed:
                    self._fetch(lane, sender, frame.position - 1)
                    break
                if frame.kind != Kind.VIEW:
                    again = True
                    break
                if frame.position - 1 < lane.confirmed:
                    self._box.drop(
                        message, sender, f"{frame!r} begins an attempt below position {lane.confirmed}, which is decided"
                    )
                    break
                cut = lane.cut()
                before = lane.end
            elif frame.position <= lane.end:
                known = True
                continue
            if frame.position > lane.end + 1 or not chained(frame, lane.chain):
                again = True
                break
            if frame.kind == Kind.BATCH and (self.low or lane.bytes > limits.LANE_BYTES_MAX):
                known = bool(self.low)
                break
            lane.append(frame)
        if lane.end > before or cut is not None:
            self._persist(lane, cut)
            lane.gap = False
        if known or (again and not lane.gap):
            lane.gap = again
            self._vote(lane, again)

    def on_settled(self, sender: int, message: Settled) -> None:
        """The origin's decision. What it covers and is not here is asked for."""
        lane = self._lane(sender, message.incarnation)
        if lane is None or lane.begin is not None or message.attempt < lane.attempt or message.up_to <= lane.confirmed:
            return
        if message.attempt > lane.attempt:
            self._fetch(lane, sender, message.up_to)
            return
        lane.live = True
        lane.confirm(min(message.up_to, lane.end))
        self._settle(lane)
        if message.up_to > lane.end and not lane.gap:
            lane.gap = True
            self._vote(lane, again=True)

    def on_ask(self, sender: int, message: LaneAsk) -> None:
        """The origin lost the end of its lane. It says what was durable there and so is decided, and hears what is durable here."""
        lane = self._lane(sender, message.incarnation)
        if lane is None:
            self._box.send(sender, LaneTail(message.incarnation, message.token, 0, 0))
        elif lane.begin is None:
            if message.attempt == lane.attempt:
                lane.confirm(min(message.up_to, lane.end))
                self._settle(lane)
            wanted = lane.behind(message.behind) if message.behind and message.behind >= lane.decided else ()
            run = next(parts([frame for frame in wanted if frame.position <= lane.durable]), ())
            self._box.send(sender, LaneTail(message.incarnation, message.token, lane.attempt, lane.durable, run))

    def _persist(self, lane: Lane, cut: int | None) -> None:
        self._writing.append((self._box.persist(lane, up_to=lane.end, cut=cut), lane))

    def persisted(self, token: int) -> None:
        """What was written up to the token is durable, and voted for."""
        while self._writing and self._writing[0][0] <= token:
            own_token, lane = self._writing.popleft()
            if lane.begin is not None and own_token == self._begins[lane.origin, lane.incarnation]:
                del self._begins[lane.origin, lane.incarnation]
                lane.replace(lane.begin)
            lane.persisted(own_token)
            self._settle(lane)
            if lane.durable > lane.confirmed:
                self._vote(lane)
            self._go_on(lane)

    def _vote(self, lane: Lane, again: bool = False) -> None:
        self._box.send(lane.origin, Posted(lane.incarnation, lane.attempt, lane.durable, self.low, again))

    def _settle(self, lane: Lane) -> None:
        if self.healing is not None and (lane.origin, lane.incarnation) == self._me:
            self.healing.settle()
            return
        offset, frames = lane.settle()
        if frames:
            self._box.deliver(lane, offset, frames)

    # What others know

    @property
    def ends(self) -> tuple[LaneEnd, ...]:
        """How far each lane is decided here."""
        return tuple(LaneEnd(lane.origin, lane.incarnation, lane.decided) for lane in self._lanes.values())

    def on_ends(self, sender: int, message: LaneEnds) -> int:
        """Somebody has lanes decided up to there. Only what their origins will not say by themselves is asked for. Returns how far
        it has the own lane.
        """
        told = self._told[sender] = {(end.origin, end.incarnation): end.decided for end in message.ends}
        self._disks[sender] = self._window.state.disk_of(sender)
        for (origin, incarnation), decided in told.items():
            lane = self._lane(origin, incarnation)
            if lane is not None and decided > lane.confirmed and not (lane.live and lane.origin in self.part):
                self._fetch(lane, sender, decided)
        return told.get(self._me, 0)

    def _sources(self, key: Key) -> dict[int, int]:
        """Up to where the others of the part have a lane decided."""
        return {peer: told[key] for peer, told in self._told.items() if peer in self.part and key in told}

    def _fetch(self, lane: Lane, source: int, up_to: int) -> None:
        """Who says that it has more is a source, and keeps its place among them when it says so again."""
        lane.sources[source] = max(lane.sources.get(source, 0), up_to)
        self._ask(lane)

    def _ask(self, lane: Lane) -> None:
        """Ask the first source of what is missing, one at a time."""
        if lane.asked or self.low:
            return
        source = next((one for one, up_to in lane.sources.items() if up_to > lane.confirmed), 0)
        if source:
            lane.asked, lane.source = limits.RESEND_HEARTBEATS, source
            self._box.send(source, LaneFetch(lane.origin, lane.incarnation, lane.confirmed + 1))

    def on_fetch(self, sender: int, message: LaneFetch) -> None:
        """Somebody lacks decided frames: they are read from the log. Whom there is no time for asks again."""
        key = message.origin, message.incarnation
        lane = self._lanes.get(key)
        if lane is None or not 0 < message.first <= lane.decided or len(self._reads) >= limits.LANE_READS_MAX:
            return
        if (sender, key) not in self._reads.values():
            last = min(lane.decided, message.first + common_limits.FRAMES_A_MESSAGE_MAX - 1)
            self._reads[self._box.read(lane, message.first, last)] = sender, key

    def on_read(self, event: LaneRead) -> None:
        """The log's answer goes to who asked. What cannot be read is answered by nothing: another source is asked then."""
        sender, (origin, incarnation) = self._reads.pop(event.token)
        if event.frames or event.begin is not None:
            self._box.send(sender, LaneFetched(origin, incarnation, event.frames, event.begin))

    def on_fetched(self, sender: int, message: LaneFetched) -> None:
        """Decided frames: they confirm what is here, or take the place of what was never decided; or of what the disk lost."""
        if self.mending.on_fetched(sender, message):
            return
        lane = self._lane(message.origin, message.incarnation)
        if lane is None or lane.begin is not None or lane.bytes > limits.LANE_BYTES_MAX:
            return
        if message.begin is not None and (lane.origin, lane.incarnation) == self._me:
            self._box.drop(message, sender, "the origin of the lane needs all of it: what was let go says who sent what")
            if self.healing is not None:
                self.healing.let_go(sender, message.begin.position)
            return
        if message.begin is not None:
            self._begin(lane, sender, message)
            return
        cut: int | None = None
        end = lane.end
        good = bool(message.frames)
        for frame in message.frames:
            if frame.position <= lane.confirmed:
                continue
            own = lane.at(frame.position)
            if frame.position == lane.confirmed + 1 and own is not None:
                if own.view == frame.view and own.header_crc == frame.header_crc:
                    lane.confirm(frame.position)
                    continue
                cut = lane.cut()
                end = lane.end
            if not self._follows(lane, frame):
                self._box.drop(message, sender, f"{frame!r} did not come whole, or does not follow position {lane.end}")
                good = False
                break
            lane.append(frame)
            lane.confirm(frame.position)
        if good:  # otherwise another source is asked when the time of this one is over
            lane.asked = 0
        if lane.end > end or cut is not None:
            self._persist(lane, cut)
        self._settle(lane)
        if lane.decided == lane.confirmed:
            self._go_on(lane)

    def _begin(self, lane: Lane, sender: int, message: LaneFetched) -> None:
        """What is missing was let go at the source, when every gateway that there was had it: the lane goes on from where it begins
        there. If this end has that very frame, all before it is decided, too; any other end was not, and cannot be any more.
        """
        begin = message.begin
        if begin is None or begin.position <= lane.confirmed:
            return
        own = lane.at(begin.position)
        if own is not None and own.view == begin.attempt and own.header_crc == begin.chain:
            lane.asked = 0
            lane.confirm(begin.position)
            self._settle(lane)
            self._go_on(lane)
        elif begin.attempt < lane.attempt:
            self._box.drop(message, sender, f"it begins behind attempt {lane.attempt}, whose VIEW was decided after all before it")
        else:
            lane.asked = 0
            lane.begin = begin
            token = self._begins[lane.origin, lane.incarnation] = self._box.begin(lane, begin)
            self._writing.append((token, lane))

    def tell_held(self) -> None:
        """Tell the disk how far every gateway of the roster has each lane, where that is more than before. What a gateway said last
        holds for as long as it is away: what is decided is durable with it.
        """
        roster = self._window.state.roster
        if self._me[0] not in roster:
            return
        others = [number for number in roster if number != self._me[0]]
        self._told = {number: told for number, told in self._told.items() if number in others or number in self.part}
        self._disks = {number: disk for number, disk in self._disks.items() if number in self._told}
        disk_of = self._window.state.disk_of
        ends = [self._told.get(one, {}) if self._disks.get(one) == disk_of(one) else {} for one in others]
        for key, lane in self._lanes.items():
            held = min((lane.decided, *(told.get(key, 0) for told in ends)))
            if held > lane.held:
                lane.held = held
                self._box.held(lane)

    def replaced(self, number: int) -> None:
        """The roster names another disk for a gateway: what the disk before it had counts no more."""
        self._told.pop(number, None)
        self._disks.pop(number, None)
        for lane in self._lanes.values():
            lane.sources.pop(number, None)

    def _go_on(self, lane: Lane) -> None:
        """What was fetched is durable: the next part is asked for, so that no more than one waits for the disk."""
        if any(up_to > lane.confirmed for up_to in lane.sources.values()):
            self._ask(lane)
        elif lane.sources:
            if lane.origin in lane.sources:
                self._vote(lane, again=True)  # it may have posted what could not be taken before
            lane.sources.clear()

    def _follows(self, lane: Lane, frame: Frame) -> bool:
        follows = frame.position == lane.end + 1 and frame.view >= lane.attempt and chained(frame, lane.chain)
        return follows and frame.origin == lane.origin and frame.kind in (Kind.BATCH, Kind.VIEW) and whole(frame)

    # Time

    def beat(self) -> None:
        """One heartbeat: an answer that did not come is waited for no longer, another source is asked; a low disk is told again."""
        self.mending.beat()
        for lane in self._others():
            if lane.asked:
                lane.asked -= 1
                if not lane.asked:
                    self._pass_over(lane)
            lane.gap = False
            if self.low and lane.origin in self.part and lane.origin != self._me[0]:
                self._vote(lane)

    def _pass_over(self, lane: Lane) -> None:
        """Who was asked gave nothing: it may be unable to read what is missing. Its next turn is behind all others."""
        up_to = lane.sources.pop(lane.source, 0)
        if self.healing is not None and (lane.origin, lane.incarnation) == self._me:
            self.healing.passed_over(lane.source)
        if up_to > lane.confirmed and lane.source in self.part:
            lane.sources[lane.source] = up_to
        self._ask(lane)

    def told(self) -> None:
        """The ends were told: what is not settled by the next time is asked for."""
        for lane in self._others():
            lane.live = False
