"""Checks the snapshots at segment starts during a scrub round, and rebuilds corrupt snapshots (design, section 6).

The scrubber rebuilds a snapshot from the previous snapshot and the frames between the two, which the round reads anyway. The first
snapshot of a trimmed log cannot be rebuilt from frames, so the scrubber keeps a copy of its valid bytes in memory.
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
from tutti.log.format.snapshot import Snapshot, empty_snapshot, read_snapshot, write_snapshot
from tutti.log.read.segment_view import ReadLimit, SegmentView
from tutti_gateway.log.write.segment import Segment

_REBUILT_LATER = "the scrubber rebuilds it from the snapshot before it and the frames between, when those can be read"
_NOT_REBUILDABLE = (
    "the log begins with this snapshot, so it cannot be rebuilt here. Starts and reads use a later snapshot while one exists, and "
    "retention continues. Restore the file from a backup, or copy the file of the same name from another gateway"
)


class SnapshotScrubber:
    """Checks and rebuilds snapshots from the frames that the log scrubber reads. Both run in the same thread.

    Attributes:
        damaged: message for the operator about each corrupt or missing snapshot, by the position of the snapshot.
    """

    def __init__(self, directory: str, storage: Storage, translating: Callable[[str], AbstractContextManager[None]]) -> None:
        """Create a snapshot scrubber.

        Args:
            translating: context manager that converts system errors to errors of the log.
        """
        self._directory = directory
        self._storage = storage
        self._translating = translating
        self._first: tuple[int, bytes] = (0, b"")  # position and valid bytes of the snapshot with which the log begins
        self._state: LogState | None = None  # state after the last scrubbed frame if a snapshot is being rebuilt, else None
        self._following = 0
        self._void: set[int] = set()
        self._messages: list[str] = []
        self.damaged: dict[int, str] = {}

    def pop_messages(self) -> list[str]:
        """Return and clear the collected messages for the operator."""
        messages, self._messages = self._messages, []
        return messages

    def begin_segment(self, first: int, firsts: Sequence[int], filling: Sequence[Segment]) -> None:
        """Check the snapshot at the end of a segment, and prepare to rebuild the snapshot if it is corrupt or missing.

        Args:
            first: first position of the segment.
            firsts: first positions of all segments.
            filling: the last segment, and all segments that hold undecided frames.
        """
        self._state = None
        begin = read_start(self._directory).first
        self.damaged = {position: message for position, message in self.damaged.items() if position >= begin}
        if first == begin > 1:
            self._check_first(first)
        index = bisect_right(firsts, first)
        if index == len(firsts) or any(segment.first == first for segment in filling):
            return  # the next segment has no snapshot yet
        following = firsts[index]
        if read_snapshot(self._directory, following) is not None:
            self.damaged.pop(following, None)  # an operator has restored the file
            return
        self._report(following, _REBUILT_LATER)
        base = empty_snapshot() if first == 1 else read_snapshot(self._directory, first)
        void = self._void_in(first, following)
        if base is not None and void is not None:
            self._state, self._following, self._void = base.state, following, void

    def _void_in(self, first: int, following: int) -> set[int] | None:
        """Return the positions of void batches in a segment, or None if the segment's index is incomplete."""
        # Only index rows show which batches are void. If the index is incomplete, this round rebuilds it for the next round.
        try:
            rows = SegmentView(self._directory, first).trusted_rows(following - 1, ReadLimit(following - 1, following - 1))
        except (Damaged, OSError):
            return None
        if len(rows) != following - first:
            return None
        return set(rows["position"][np.bitwise_and(rows["flags"], ABORTED) > 0].tolist())

    def apply(self, frames: Sequence[Frame]) -> None:
        """Apply valid frames to the state from which a snapshot is rebuilt."""
        state = self._state
        # The rebuild ends at a skipped frame, because a state that lacks a frame would produce a wrong snapshot.
        if state is None or frames[0].position != state.position + 1:
            self._state = None
            return
        for frame in frames:
            state.apply(frame, frame.position in self._void)

    def finish_segment(self) -> None:
        """At the end of a segment, write the snapshot if this round has rebuilt it.

        Raises:
            DiskFailed: the snapshot could not be written.
        """
        state, self._state = self._state, None
        if state is None or state.position + 1 != self._following:
            return
        snapshot = Snapshot(state, self._following, FRAMES_AT, 0)
        with contextlib.suppress(DiskFull):  # the next round tries again
            with self._translating("rebuilding a snapshot of"):
                write_snapshot(self._directory, snapshot, self._storage, durable=True)
            self._report_rebuilt(self._following)

    def _check_first(self, first: int) -> None:
        if read_snapshot(self._directory, first) is not None:
            self.damaged.pop(first, None)
            with contextlib.suppress(OSError):
                self._first = (first, read_file(snapshot_path(self._directory, first)))
        elif self._first[0] != first:
            self._report(first, _NOT_REBUILDABLE)
        else:
            with contextlib.suppress(DiskFull):
                with self._translating("rebuilding a snapshot of"):
                    self._storage.replace_file(snapshot_path(self._directory, first), self._first[1])
                self._report(first, "")
                self._report_rebuilt(first)

    def _report(self, position: int, what: str) -> None:
        if position not in self.damaged:
            path = snapshot_path(self._directory, position)
            state = "corrupt" if os.path.exists(path) else "missing"
            self.damaged[position] = f"{path} is {state}: {what}" if what else f"{path} was {state}"
            self._messages.append(self.damaged[position])

    def _report_rebuilt(self, position: int) -> None:
        self.damaged.pop(position, None)
        self._messages.append(f"{snapshot_path(self._directory, position)} was rebuilt")
