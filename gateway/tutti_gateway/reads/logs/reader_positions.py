"""What named readers committed, followed as the log grows: only OFFSETS frames are looked at, found by the index."""

from __future__ import annotations

import threading
from typing import NamedTuple

from tutti.data.frames.bodies import OffsetsBody, decode_body
from tutti.data.frames.frame import Kind
from tutti.errors import Damaged, OffsetOutOfRange
from tutti.log.read.reader import LogReader

_SKIP_FRAMES = 100_000  # above it the log's state, which snapshots shorten, is faster


class Position(NamedTuple):
    """How far a named reader is: records below `offset` are processed; -1 when the log has none of that name."""

    offset: int


class Positions:
    """The offset commits of named readers at the frontier. Thread-safe, and cheap to ask again and again."""

    def __init__(self, reader: LogReader) -> None:
        """Follow the log of `reader`; it is read when it is first asked for."""
        self._reader = reader
        self._lock = threading.Lock()
        self._saved: dict[str, int] = {}
        self._upto = 0

    def of(self, name: str) -> Position:
        """The position of one.

        Raises:
            Damaged: a frame that would tell cannot be read.
        """
        with self._lock:
            self._follow(self._reader.frontier().position)
            return Position(self._saved.get(name, -1))

    def _follow(self, last: int) -> None:
        if last <= self._upto:
            return
        if not self._upto or last - self._upto > _SKIP_FRAMES:
            self._take_state()
            return
        found: dict[str, int] = {}
        try:
            for view, rows in self._reader.positions(self._upto + 1, last):
                for row in rows[rows["kind"] == Kind.OFFSETS]:
                    found |= decode_body(OffsetsBody, view.frame(row).body).readers
        except OffsetOutOfRange:  # trimmed meanwhile
            self._take_state()
            return
        except Damaged as error:  # a snapshot behind it may say it
            self._reader.noticed(error.position)
            self._take_state()
            return
        self._saved |= found
        self._upto = last

    def _take_state(self) -> None:
        state = self._reader.state()
        self._saved, self._upto = dict(state.readers), state.position
