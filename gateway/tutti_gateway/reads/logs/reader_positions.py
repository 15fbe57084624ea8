"""Follows the committed offsets of named readers. The index finds their OFFSETS frames, so no other frame is read."""

from __future__ import annotations

import threading
from typing import NamedTuple

from tutti.data.frames.bodies import OffsetsBody, decode_body
from tutti.data.frames.frame import Kind
from tutti.errors import Damaged, OffsetOutOfRange
from tutti.log.read.reader import LogReader

_SKIP_FRAMES = 100_000  # above this number of new frames, loading the log's state from a snapshot is faster than reading them


class CommittedOffset(NamedTuple):
    """The committed offset of a named reader, below which all records are processed; -1 if the reader has committed none."""

    offset: int


class ReaderPositions:
    """The committed offsets of named readers at the frontier.

    Thread-safe. Each call reads only frames that the previous call has not read.
    """

    def __init__(self, reader: LogReader) -> None:
        """Follow the log of `reader`, beginning with the first call of `committed`."""
        self._reader = reader
        self._lock = threading.Lock()
        self._saved: dict[str, int] = {}
        self._upto = 0

    def committed(self, name: str) -> CommittedOffset:
        """Return the committed offset of one reader.

        Raises:
            Damaged: a required frame cannot be read.
        """
        with self._lock:
            self._follow(self._reader.frontier().position)
            return CommittedOffset(self._saved.get(name, -1))

    def _follow(self, last: int) -> None:
        if last <= self._upto:
            return
        if not self._upto or last - self._upto > _SKIP_FRAMES:
            self._load_state()
            return
        found: dict[str, int] = {}
        try:
            for view, rows in self._reader.positions(self._upto + 1, last):
                for row in rows[rows["kind"] == Kind.OFFSETS]:
                    found |= decode_body(OffsetsBody, view.frame(row).body).readers
        except OffsetOutOfRange:  # retention has removed the new frames already, so load the whole state
            self._load_state()
            return
        except Damaged as error:  # a later snapshot may contain the commit
            self._reader.on_corruption(error.position)
            self._load_state()
            return
        # Offsets are merged only after all frames have been read, so an error leaves the table at the position `_upto`.
        self._saved |= found
        self._upto = last

    def _load_state(self) -> None:
        state = self._reader.state()
        self._saved, self._upto = dict(state.readers), state.position
