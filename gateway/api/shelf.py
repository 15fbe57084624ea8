"""What this process reads from: the ordered log, and the lanes of unordered sends beside it (design, section 7)."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gateway.api.faults import Fault
from gateway.api.ranges import Ranges
from gateway.api.watch import FrontierWatch, LaneWatch, Watching
from gateway.core import limits
from gateway.data.frame import Kind
from gateway.data.lanes import LaneName
from gateway.errors import Damaged, TuttiError, WrongDirectory
from gateway.log.lane_reader import LaneReader
from gateway.log.lanes_there import lane_path, lanes_there
from gateway.log.reader import Frontier, LogReader

IDENTITY = "identity.json"


class Served(NamedTuple):
    """One log: the ordered one (`lane` is empty), or a lane."""

    lane: str
    reader: LogReader
    watch: Watching[Frontier]
    ranges: Ranges

    @property
    def about(self) -> dict[str, str]:
        """What answers say of it beside the log's uuid: the lane, if it is one."""
        return {"lane": self.lane} if self.lane else {}


class LaneLine(msgspec.Struct, frozen=True):
    """A lane in the answer of the action `lanes`."""

    lane: str
    gateway: str
    number: int
    incarnation: str
    newest: bool
    start: int
    frontier: int
    position: int
    halted: str


class Shelf:
    """Finds logs by what callers name. Thread-safe. Readers of lanes are kept while they are in use, a number of them."""

    def __init__(
        self,
        reader: LogReader,
        watch: FrontierWatch[Frontier],
        state: Callable[[], str],
        halted: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """Serve the log of `reader` and the lanes beside it; `state` is the gateway's, `halted` says of lanes why they are."""
        self._reader = reader
        self._watch = watch
        self._state = state
        self._halted = halted
        self._ordered = Served("", reader, watch, Ranges(reader, watch, state))
        self._lanes: OrderedDict[LaneName, Served] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, text: str) -> Served:
        """The log that a caller names: the ordered one, the newest lane of a gateway, or just that lane.

        Raises:
            Fault: `unknown_lane`.
        """
        if not text:
            return self._ordered
        lane = LaneName.parse(text)
        there = lanes_there(self._reader.path)
        if lane is None:
            lane = self._newest(there).get(self._number(text))
        if lane is None or lane not in there:
            names = sorted({self._name(one.origin) for one in there})
            known = f"there are lanes of {', '.join(names)}" if names else "it has no lanes yet"
            raise Fault("unknown_lane", f"this gateway has no lane {text!r}: {known}", name=text)
        try:
            return self._opened(lane)
        except WrongDirectory as error:  # it is being made
            raise Fault("unknown_lane", f"this gateway has no lane {text!r} yet", name=text) from error

    def lanes(self) -> list[LaneLine]:
        """All lanes that this gateway has, by number, the oldest first."""
        there = lanes_there(self._reader.path)
        newest = self._newest(there).values()
        halted = self._halted()
        found = []
        for lane in sorted(there, key=lambda one: (one.origin, one in newest, self._begun(one))):
            try:
                frontier = self._opened(lane).reader.frontier()
            except TuttiError:
                continue  # it is being made, or set aside
            found.append(
                LaneLine(
                    lane=lane.text,
                    gateway=self._name(lane.origin),
                    number=lane.origin,
                    incarnation=lane.incarnation.hex(),
                    newest=lane in newest,
                    start=0,
                    frontier=frontier.offset,
                    position=frontier.position,
                    halted=halted.get(lane.text, ""),
                )
            )
        return found

    def _opened(self, lane: LaneName) -> Served:
        with self._lock:
            served = self._lanes.get(lane)
            if served is None:
                reader = LaneReader(self._reader, lane)
                watch = LaneWatch(reader.frontier, self._watch)
                served = self._lanes[lane] = Served(lane.text, reader, watch, Ranges(reader, watch, self._state))
                if len(self._lanes) > limits.LANES_READ_MAX:
                    self._lanes.popitem(last=False)  # who reads it goes on
            self._lanes.move_to_end(lane)
            return served

    def _newest(self, there: list[LaneName]) -> dict[int, LaneName]:
        """Of each gateway (number) the lane of the disk that the roster names; while that has none, the one that began last."""
        newest: dict[int, LaneName] = {}
        for lane in sorted(there, key=self._begun):
            newest[lane.origin] = lane
        for number, voter in self._reader.state().roster.items():
            if LaneName(number, voter.incarnation) in there:
                newest[number] = LaneName(number, voter.incarnation)
        return newest

    def _begun(self, lane: LaneName) -> int:
        """When a lane began here, about."""
        try:
            return os.stat(os.path.join(lane_path(self._reader.path, lane), IDENTITY)).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _number(self, name: str) -> int:
        """The number of a gateway that the roster names, 0 if it does not."""
        return next((number for number, voter in self._reader.state().roster.items() if voter.name == name), 0)

    def _name(self, number: int) -> str:
        """The name of a gateway, empty while the log does not say it."""
        try:
            return self._reader.name_of(Kind.ROSTER, number)
        except Damaged:
            return ""
