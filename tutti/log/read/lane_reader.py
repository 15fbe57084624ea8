"""Reader of a lane: offsets count the records of the lane, and names come from the ordered log."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import numpy as np

from tutti.data.frames.frame import Kind
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState
from tutti.data.names import forgotten_name
from tutti.errors import Behind, Damaged, OffsetOutOfRange, TuttiError
from tutti.log.files.lane_paths import lane_of_path, lane_path
from tutti.log.format.index import Rows
from tutti.log.read.name_registry import NameForgotten
from tutti.log.read.reader import LogReader, topic_number_filter


class LaneEnd(NamedTuple):
    """Decided end of a lane: its last position, and the offset after its last record."""

    position: int
    offset: int


def last_known_end(path: str) -> LaneEnd | None:
    """Return a lower bound of a lane's decided end, from the readable files of its directory, or None if unknown."""
    try:
        # With `damaged`, the marks that are still valid give the bound, even if the end of the log is lost.
        with closing(LogReader(path, damaged=True)) as reader:
            frontier = reader.frontier()
    except TuttiError:
        return None
    return LaneEnd(frontier.position, frontier.offset) if frontier.position else None


class LaneReader(LogReader):
    """Reads one lane of a gateway. Thread-safe.

    Raises (all methods):
        As `LogReader`; and `Behind` if this gateway's ordered log does not yet have the name for a number in the lane.
    """

    def __init__(self, ordered: LogReader, lane: LaneName) -> None:
        """Open the lane in the gateway's directory, which `ordered` reads.

        Raises:
            DirectoryRefused: the lane is not readable.
            WrongDirectory: the lane does not exist.
        """
        super().__init__(lane_path(ordered.path, lane))
        self._ordered = ordered
        self.lane = lane

    @property
    def log(self) -> str:
        """Uuid of the group's ordered log, hex."""
        return self._ordered.log

    def state(self) -> LogState:
        """Return the state of the ordered log at its frontier, because topics and producers are registered only there."""
        return self._ordered.state()

    def name_of(self, kind: Kind, number: int) -> str:
        """Return the name of a topic, producer or gateway from the ordered log; `#NUMBER` if that log no longer has the name."""
        try:
            return self._ordered.name_of(kind, number)
        except NameForgotten:
            # The lane may keep records longer than the ordered log keeps the names of their producers.
            return forgotten_name(number)
        except (Damaged, OffsetOutOfRange) as error:
            raise Behind(
                f"the log of this gateway does not hold the name of number {number} in lane {self.lane.text} yet: read the lane at "
                "another gateway, or retry later"
            ) from error

    def topic_numbers(self, names: Sequence[str]) -> frozenset[int]:
        """Return the numbers of those topics among `names` that are registered in the ordered log."""
        return self._ordered.topic_numbers(names)

    def picking(self, topics: Sequence[str] | None) -> Callable[[Rows], Rows]:
        """As `LogReader.picking`.

        This gateway's ordered log can lag its lanes. While that log lacks one of the topics, the filter looks up the name of each
        topic number that occurs in the lane.
        """
        if topics is None:
            return super().picking(None)
        wanted, names = frozenset(topics), dict[int, str]()
        # If the ordered log has all topics, their numbers select the rows, and no name must be looked up.
        with suppress(Damaged):
            if len(known := self.topic_numbers(topics)) == len(wanted):
                return topic_number_filter(known)

        def picked(rows: Rows) -> Rows:
            for number in np.unique(rows["topic"]).tolist():
                if number not in names:
                    names[number] = self.name_of(Kind.TOPIC, number)
            return topic_number_filter([number for number, name in names.items() if name in wanted])(rows)

        return picked


def open_reader(path: str | os.PathLike[str]) -> LogReader:
    """Open a reader for a path: a gateway's directory, or the directory of a lane in it.

    Raises:
        DirectoryRefused, WrongDirectory: as `LogReader`.
    """
    found = lane_of_path(os.fspath(path))
    return LogReader(path) if found is None else LaneReader(LogReader(found[0]), found[1])
