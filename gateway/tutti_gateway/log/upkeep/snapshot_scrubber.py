"""Snapshots at the starts of segments are looked at while the log is, and a damaged one is made again (design, section 6).

One that stands between two segments follows from the one before it and the frames between, which the round reads anyway. Nothing in
the directory says again what the first one of a trimmed log does, so its bytes are kept in memory once they were seen to be whole.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState
from tutti.errors import Damaged, DiskFull
from tutti.log.files.layout import FRAMES_AT, snapshot_path
from tutti.log.files.log_start import read_start
from tutti.log.files.storage import Storage, read_file
from tutti.log.format.index import ABORTED
from tutti.log.format.snapshot import Snapshot, beginning, read_snapshot, write_snapshot
from tutti.log.read.segment_view import Upto, View
from tutti_gateway.log.write.segment import Segment

_LATER = "it is made again from the one before it and the records between, when those can be read"
_FIRST = (
    "the log begins with it, and nothing here says it again; starts and reads go on from a later one as long as there is one, and "
    "retention goes on. Put the file back from a copy of this directory, or from a gateway that has one of this name"
)


class Snapshots:
    """Follows a round of the mender, in its thread.

    Attributes:
        damaged: by position, what is known of snapshots that are damaged or missing.
    """

    def __init__(self, directory: str, storage: Storage, watching: Callable[[str], AbstractContextManager[None]]) -> None:
        """Prepare; `watching` gives errors of the system their meaning."""
        self._directory = directory
        self._storage = storage
        self._watching = watching
        self._first: tuple[int, bytes] = (0, b"")  # the snapshot with which the log begins, as it was when it was whole
        self._state: LogState | None = None  # what the log says up to where the round is, while a snapshot is to be made of it
        self._following = 0
        self._void: set[int] = set()
        self._news: list[str] = []
        self.damaged: dict[int, str] = {}

    def news(self) -> list[str]:
        """What became known since it was asked for, a sentence each, for the operator."""
        news, self._news = self._news, []
        return news

    def enter(self, first: int, firsts: Sequence[int], filling: Sequence[Segment]) -> None:
        """The round begins with a segment.

        Args:
            first: its first position.
            firsts: those of all segments.
            filling: segments that hold undecided frames, or are the last.
        """
        self._state = None
        begin = read_start(self._directory).first
        self.damaged = {position: told for position, told in self.damaged.items() if position >= begin}
        if first == begin > 1:
            self._look_at_first(first)
        index = bisect_right(firsts, first)
        if index == len(firsts) or any(segment.first == first for segment in filling):
            return  # what follows has no snapshot yet
        following = firsts[index]
        if read_snapshot(self._directory, following) is not None:
            self.damaged.pop(following, None)  # somebody put it back
            return
        self._tell(following, _LATER)
        base = beginning() if first == 1 else read_snapshot(self._directory, first)
        void = self._void_in(first, following)
        if base is not None and void is not None:
            self._state, self._following, self._void = base.state, following, void

    def _void_in(self, first: int, following: int) -> set[int] | None:
        """Positions of a segment whose batches an ABORT voids; None while its index is not whole, which the round makes again."""
        try:
            rows = View(self._directory, first).trusted(following - 1, Upto(following - 1, following - 1))
        except (Damaged, OSError):
            return None
        if len(rows) != following - first:
            return None
        return set(rows["position"][np.bitwise_and(rows["flags"], ABORTED) > 0].tolist())

    def passed(self, frames: Sequence[Frame]) -> None:
        """The round read these, which are whole."""
        state = self._state
        if state is None or frames[0].position != state.position + 1:
            self._state = None
            return
        for frame in frames:
            state.apply(frame, frame.position in self._void)

    def left(self) -> None:
        """The round is behind the last position of the segment.

        Raises:
            DiskFailed: the snapshot could not be written.
        """
        state, self._state = self._state, None
        if state is None or state.position + 1 != self._following:
            return
        snapshot = Snapshot(state, self._following, FRAMES_AT, 0)
        with contextlib.suppress(DiskFull):  # the next round tries it again
            with self._watching("making a snapshot again"):
                write_snapshot(self._directory, snapshot, self._storage, durable=True)
            self._made(self._following)

    def _look_at_first(self, first: int) -> None:
        if read_snapshot(self._directory, first) is not None:
            self.damaged.pop(first, None)
            with contextlib.suppress(OSError):
                self._first = (first, read_file(snapshot_path(self._directory, first)))
        elif self._first[0] != first:
            self._tell(first, _FIRST)
        else:
            with contextlib.suppress(DiskFull):
                with self._watching("making a snapshot again"):
                    self._storage.replace_file(snapshot_path(self._directory, first), self._first[1])
                self._tell(first, "")
                self._made(first)

    def _tell(self, position: int, what: str) -> None:
        if position not in self.damaged:
            path = snapshot_path(self._directory, position)
            state = "damaged" if os.path.exists(path) else "missing"
            self.damaged[position] = f"{path} is {state}: {what}" if what else f"{path} was {state}"
            self._news.append(self.damaged[position])

    def _made(self, position: int) -> None:
        self.damaged.pop(position, None)
        self._news.append(f"{snapshot_path(self._directory, position)} was made again")
