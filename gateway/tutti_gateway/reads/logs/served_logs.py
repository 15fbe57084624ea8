"""The logs that this process serves: the ordered log, and the lanes of unordered records (design, section 7)."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tutti.data.frames.frame import Kind
from tutti.data.lane_name import LaneName
from tutti.data.log_state import Topic
from tutti.data.names import forgotten_name
from tutti.errors import Damaged, OffsetOutOfRange, TuttiError
from tutti.log.files.lane_paths import lane_has_log, lane_path, list_lanes, recorded_own_lane
from tutti.log.read.lane_reader import LaneReader
from tutti.log.read.name_registry import NameForgotten
from tutti.log.read.reader import DecidedEnd, LogReader
from tutti_gateway.core import limits
from tutti_gateway.reads.logs.frontier_watch import FrontierWaiter, FrontierWatch, LaneWatch
from tutti_gateway.reads.logs.ranges import RangeResolver
from tutti_gateway.reads.protocol.flight_errors import ReadError

IDENTITY = "identity.json"


class ServedLog(NamedTuple):
    """A served log: the ordered log (`lane` is empty) or a lane. `state` returns the gateway's state, or `halted` for a halted
    lane.
    """

    lane: str
    reader: LogReader
    watch: FrontierWaiter[DecidedEnd]
    ranges: RangeResolver
    state: Callable[[], str]

    @property
    def about(self) -> dict[str, str]:
        """Return the fields that identify this log in an answer, next to the log's uuid: the lane's name, or none."""
        return {"lane": self.lane} if self.lane else {}


class LaneLine(msgspec.Struct, frozen=True):
    """A lane in the answer of the action `lanes`.

    `halted` is the reason why the lane accepts no records here, and `lost` the reason why it is unreadable; empty without a reason.
    """

    lane: str
    gateway: str
    number: int
    incarnation: str
    newest: bool
    start: int
    frontier: int
    position: int
    halted: str
    lost: str


class ServedLogs:
    """Finds served logs by name. Thread-safe. Readers of recently used lanes stay open, up to a limit."""

    def __init__(
        self,
        reader: LogReader,
        watch: FrontierWatch[DecidedEnd],
        state: Callable[[], str],
        halted: Callable[[], dict[str, str]] = dict,
        confirm: Callable[[], bool] | None = None,
    ) -> None:
        """Serve the log of `reader` and the lanes in its directory.

        Args:
            reader: reader of the ordered log.
            watch: waits until the frontier of the ordered log moves.
            state: returns the state of the gateway.
            halted: returns the lanes that the gateway knows, each with the reason why the lane is halted, or empty text.
            confirm: confirms the frontier with a majority.
        """
        self._reader = reader
        self._watch = watch
        self._state = state
        self._halted = halted
        self._ordered = ServedLog("", reader, watch, RangeResolver(reader, watch, state, confirm), state)
        self._known_lanes: set[LaneName] = set()  # lanes that have begun here; `lanes` reports such a lane even if it is unreadable
        self._lanes: OrderedDict[LaneName, ServedLog] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, text: str) -> ServedLog:
        """Return the log that a caller requests: the ordered log, the newest lane of a gateway, or exactly one lane.

        Raises:
            ReadError: `unknown_lane`.
        """
        if not text:
            return self._ordered
        lane = LaneName.parse(text)
        known = self._known(self._halted())
        if lane is None:
            lane = self._newest(known).get(self._number(text))
        if lane is None or lane not in known:
            names = sorted({self._name(one.origin) for one in known})
            hint = f"it has lanes of {', '.join(names)}" if names else "it has no lanes yet"
            raise ReadError("unknown_lane", f"this gateway has no lane {text!r}: {hint}", name=text)
        try:
            return self._served_lane(lane)
        except TuttiError as error:
            why = self._lost_reason(lane, error)
            message = f"this gateway cannot read lane {text!r}: {why}" if why else f"this gateway has no lane {text!r} yet"
            raise ReadError("unknown_lane", message, name=text) from error

    def lanes(self) -> list[LaneLine]:
        """Return all lanes that this gateway has or had, by number, oldest first."""
        halted = self._halted()
        known = self._known(halted)
        newest = self._newest(known).values()
        found = []
        for lane in sorted(known, key=lambda one: (one.origin, one in newest, self._begin_time(one))):
            start, offset, position, lost = 0, 0, 0, ""
            try:
                reader = self._served_lane(lane).reader
                frontier, start = reader.frontier(), reader.start
                offset, position = frontier.offset, frontier.position
            except TuttiError as error:
                lost = self._lost_reason(lane, error)
                # A lane without a reason is still being created, and is listed when it becomes readable.
                if not lost:
                    continue
            found.append(
                LaneLine(
                    lane=lane.text,
                    gateway=self._name(lane.origin),
                    number=lane.origin,
                    incarnation=lane.incarnation.hex(),
                    newest=lane in newest,
                    start=start,
                    frontier=offset,
                    position=position,
                    halted=halted.get(lane.text, ""),
                    lost=lost,
                )
            )
        return found

    def _known(self, halted: dict[str, str]) -> list[LaneName]:
        """Return the lanes that exist in the directory, and the lanes that have begun here but are missing now."""
        began = {lane for text in halted if (lane := LaneName.parse(text)) is not None}
        # The file `lane` names the own lane of this gateway even if the directory of the lane is missing.
        own = recorded_own_lane(self._reader.path)
        if own is not None:
            began.add(own)
        with self._lock:
            self._known_lanes |= began
            return sorted({*list_lanes(self._reader.path), *self._known_lanes})

    def _lost_reason(self, lane: LaneName, error: TuttiError) -> str:
        """Return the reason why a lane could not be read; empty while the lane is still being created. `error` is the failure."""
        path = lane_path(self._reader.path, lane)
        if not os.path.isdir(path):
            return f"{path} is missing" if lane in self._known_lanes else ""
        return str(error) if lane in self._known_lanes or lane_has_log(self._reader.path, lane) else ""

    def _served_lane(self, lane: LaneName) -> ServedLog:
        """Return a lane that is readable now. Opens files outside of the lock, so that a slow disk does not delay other lanes."""
        with self._lock:
            kept = self._lanes.get(lane)
        try:
            found = kept or self._open_lane(lane)
            # A cached reader may belong to a lane whose files have disappeared, which only a read of its frontier shows.
            found.reader.frontier()
        except TuttiError:
            with self._lock:
                self._lanes.pop(lane, None)  # a later call opens the lane again
            raise
        with self._lock:
            served = self._lanes.setdefault(lane, found)
            self._known_lanes.add(lane)
            self._lanes.move_to_end(lane)
            if len(self._lanes) > limits.LANES_READ_MAX:
                self._lanes.popitem(last=False)  # its current readers continue
        if kept is None and served is not found:
            found.reader.close()  # another thread opened the lane first
        return served

    def _open_lane(self, lane: LaneName) -> ServedLog:
        def state() -> str:
            return "halted" if self._halted().get(lane.text) else self._state()

        reader = LaneReader(self._reader, lane)
        watch = LaneWatch(reader.frontier, self._watch)
        return ServedLog(lane.text, reader, watch, RangeResolver(reader, watch, state), state)

    def _newest(self, lanes: list[LaneName]) -> dict[int, LaneName]:
        """Return the current lane of each gateway number: the lane of the disk in the roster, or else the lane that began last."""
        newest: dict[int, LaneName] = {}
        for lane in sorted(lanes, key=self._begin_time):
            newest[lane.origin] = lane
        # The roster is decided by the group, whereas a file time can be wrong after a restore, so the roster counts more.
        for number, voter in self._reader.state().roster.items():
            # The roster may name a disk whose lane has not reached this gateway yet.
            if LaneName(number, voter.incarnation) in lanes:
                newest[number] = LaneName(number, voter.incarnation)
        return newest

    def _begin_time(self, lane: LaneName) -> int:
        """Return the approximate time at which a lane began here, ns."""
        try:
            return os.stat(os.path.join(lane_path(self._reader.path, lane), IDENTITY)).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _number(self, name: str) -> int:
        """Return the number of a gateway in the roster, or 0."""
        return next((number for number, voter in self._reader.state().roster.items() if voter.name == name), 0)

    def _name(self, number: int) -> str:
        """Return the name of a gateway; empty if the log does not contain it yet, `#NUMBER` if the name was deleted."""
        try:
            return self._reader.name_of(Kind.ROSTER, number)
        except NameForgotten:
            return forgotten_name(number)
        except (Damaged, OffsetOutOfRange):
            return ""


def topic_line(topic: Topic) -> dict[str, object]:
    """Return a topic as JSON fields: its committed records and bytes, and offset and time of its first and last record."""
    return {
        "name": topic.name,
        "records": topic.records,
        "bytes": topic.bytes,
        "first_offset": topic.first_offset,
        "last_offset": topic.last_offset,
        "first_time_us": topic.first_time,
        "last_time_us": topic.last_time,
    }
