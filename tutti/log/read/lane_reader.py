"""The read side of a lane: its own offsets, and the names that the ordered log gave."""

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
from tutti.log.files.lane_paths import lane_at, lane_path
from tutti.log.format.index import Rows
from tutti.log.read.name_registry import Forgotten
from tutti.log.read.reader import LogReader, of_topics


class End(NamedTuple):
    """How far a lane is decided: its last position, and the offset behind its last record."""

    position: int
    offset: int


def end_told(path: str) -> End | None:
    """How far a lane was decided at least, as what is left in its directory says; None if nothing says it."""
    try:
        with closing(LogReader(path, damaged=True)) as reader:
            frontier = reader.frontier()
    except TuttiError:
        return None
    return End(frontier.position, frontier.offset) if frontier.position else None


class LaneReader(LogReader):
    """Reads one lane of the directory that `ordered` reads. Thread-safe, as that is.

    Raises (all methods):
        As `LogReader`; and `Behind` where the ordered log here does not say yet what a number in the lane stands for.
    """

    def __init__(self, ordered: LogReader, lane: LaneName) -> None:
        """Open the lane.

        Raises:
            DirectoryRefused: it cannot be read.
            WrongDirectory: it is not there.
        """
        super().__init__(lane_path(ordered.path, lane))
        self._ordered = ordered
        self.lane = lane

    @property
    def log(self) -> str:
        """Uuid of the ordered log, as hex: of which group the lane is."""
        return self._ordered.log

    def state(self) -> LogState:
        """What the ordered log says at its frontier: the topics and producers that records in the lane may have."""
        return self._ordered.state()

    def name_of(self, kind: Kind, number: int) -> str:
        """Name of a topic, a producer or a gateway, as the ordered log gave it; `#NUMBER` where that has let it go."""
        try:
            return self._ordered.name_of(kind, number)
        except Forgotten:
            return forgotten_name(number)
        except (Damaged, OffsetOutOfRange) as error:
            raise Behind(
                f"the log of this gateway does not say yet what number {number} in lane {self.lane.text} stands for: read it at "
                "another gateway, or again later"
            ) from error

    def topic_numbers(self, names: Sequence[str]) -> frozenset[int]:
        """Numbers of those of the topics that the ordered log knows."""
        return self._ordered.topic_numbers(names)

    def picking(self, topics: Sequence[str] | None) -> Callable[[Rows], Rows]:
        """As `LogReader.picking`. A lane may be ahead of the ordered log here: while a name is not known there, or what may
        register it cannot be read, each number in the lane is asked for its name.
        """
        if topics is None:
            return super().picking(None)
        wanted, names = frozenset(topics), dict[int, str]()
        with suppress(Damaged):
            if len(known := self.topic_numbers(topics)) == len(wanted):
                return of_topics(known)

        def picked(rows: Rows) -> Rows:
            for number in np.unique(rows["topic"]).tolist():
                if number not in names:
                    names[number] = self.name_of(Kind.TOPIC, number)
            return of_topics([number for number, name in names.items() if name in wanted])(rows)

        return picked


def reader_of(path: str | os.PathLike[str]) -> LogReader:
    """A reader of what a path leads to: a gateway's directory, or that of a lane in it.

    Raises:
        DirectoryRefused, WrongDirectory: as `LogReader`.
    """
    found = lane_at(os.fspath(path))
    return LogReader(path) if found is None else LaneReader(LogReader(found[0]), found[1])
