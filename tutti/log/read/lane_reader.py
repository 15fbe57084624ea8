"""Reader of a lane: reads the unordered records of one lane, whose offsets count only records of that lane.

The names of topics, producers and gateways come from the gateway's ordered log.
"""

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
    """Decided end of a lane: the last decided position, and the offset after the last decided record."""

    position: int
    offset: int


def last_known_end(path: str) -> LaneEnd | None:
    """Return a lower bound of the decided end of the lane in directory `path`, or None if its files do not give one."""
    try:
        # `damaged` makes the reader use all marks that are still valid, even if the end of the log is lost.
        with closing(LogReader(path, damaged=True)) as reader:
            frontier = reader.frontier()
    except TuttiError:
        return None
    return LaneEnd(frontier.position, frontier.offset) if frontier.position else None


class LaneReader(LogReader):
    """Reads one lane of a gateway. Thread-safe.

    Raises (all methods):
        DirectoryRefused, OffsetOutOfRange: see `LogReader`.
        Behind: this gateway's ordered log does not yet have the name for a number in the lane.
    """

    def __init__(self, ordered: LogReader, lane: LaneName) -> None:
        """Open a lane in the gateway's directory that `ordered` reads.

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
        """Return the state of the ordered log at its frontier, because only the ordered log registers topics and producers."""
        return self._ordered.state()

    def name_of(self, kind: Kind, number: int) -> str:
        """Return the name of a topic, producer or gateway. If the ordered log no longer has the name, return `#NUMBER`."""
        try:
            return self._ordered.name_of(kind, number)
        except NameForgotten:
            # The lane may keep records for a longer time than the ordered log keeps the names of the producers.
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
        """Return a function that selects the index rows of `topics` (None: all rows).

        The ordered log of this gateway can lag the lane. If the ordered log lacks one of the topics, the returned function looks up
        the name of each topic number that occurs in the rows.
        """
        if topics is None:
            return super().picking(None)
        wanted, names = frozenset(topics), dict[int, str]()
        # If the ordered log has all topics, the rows are selected by topic number, and no name must be looked up.
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
    """Open a reader for a gateway's directory, or for the directory of a lane in it.

    Raises:
        DirectoryRefused: the directory is not readable.
        WrongDirectory: the path is not such a directory, or the directory has a different format.
    """
    found = lane_of_path(os.fspath(path))
    return LogReader(path) if found is None else LaneReader(LogReader(found[0]), found[1])
