"""Indexes decided frames: appends index rows, seals the indexes of full segments, and writes snapshots."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import numpy as np

from tutti.data.frames.bodies import TickBody, decode_body
from tutti.data.frames.frame import HEADER_DTYPE, HEADER_SIZE, SEQUENCED, STAGED, Frame, Kind
from tutti.data.log_state import LogState
from tutti.errors import InvariantViolated
from tutti.log.files.disk_space import DiskSpace
from tutti.log.files.layout import FRAMES_AT, index_path, list_positions
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.index import LONG_AGO, IndexWriter, build_rows, encode_row, index_sealed
from tutti.log.format.snapshot import Snapshot, read_snapshot, remove_snapshot, write_snapshot
from tutti_gateway.log.write.recovery import RecoveredLog
from tutti_gateway.log.write.segment import Segment
from tutti_gateway.log.write.vote_mark_tracker import End

_MANY = 24  # smallest number of frames for which one vectorised call is faster than a loop
_TICK = int(Kind.TICK)


class Indexer:
    """Applies the decided frames to the log's state, and writes index rows and snapshots.

    Attributes:
        state: state of the log after the last decided frame.
    """

    def __init__(
        self,
        directory: str,
        options: LogOptions,
        storage: Storage,
        disk_space: DiskSpace,
        found: RecoveredLog,
        segments: list[Segment],
    ) -> None:
        """Create an indexer that continues from the decided end that recovery found.

        The indexer and the writer share the list `segments`. The indexer removes the first segment from this list when all frames
        of the segment are decided.
        """
        self._directory = directory
        self._options = options
        self._storage = storage
        self._disk_space = disk_space
        self._segments = segments
        self.state = found.state
        self._view = found.view
        self._snapshot_at = found.base.position
        # position of the newest snapshot within a segment; 0 if there is none
        self._within = found.base.position if found.base.position != found.base.segment else 0
        # index rows that wait for free disk space; `state` already includes their frames
        self._unwritten: tuple[bytes, int, int, int] | None = None

    @property
    def end(self) -> End:
        """Return the end of the decided log."""
        return self.state.position, self._view, self.state.chain

    @property
    def indexed(self) -> int:
        """Return the last position that has an index row."""
        return self.state.position if self._unwritten is None else self._segments[0].next_undecided - 1

    def complete(self, found: RecoveredLog) -> None:
        """Finish the work of an interrupted run: seal indexes, write snapshots of segment starts, and remove unused snapshots."""
        for first, rows in found.finished:
            path = index_path(self._directory, first)
            if index_sealed(path, first) is None:
                index = IndexWriter(path, first, rows, self._storage)
                index.seal()
                index.close()
        for snapshot in found.boundaries:
            if read_snapshot(self._directory, snapshot.position) is None:
                write_snapshot(self._directory, snapshot, self._storage, durable=True)
        firsts = list_positions(self._directory, "seg")
        for position in list_positions(self._directory, "snap"):
            if position not in {*firsts, self._within}:
                remove_snapshot(self._directory, position, self._storage)

    def log_replaced(self, state: LogState) -> None:
        """Record that a snapshot with `state` replaced the log, and continue from that state."""
        self.state = state
        self._view = state.view
        self._snapshot_at, self._within = state.position + 1, 0
        self._unwritten = None

    def index(self, frames: Sequence[Frame], offsets: Sequence[int], aborted: Collection[int]) -> None:
        """Index a run of decided frames. Frames that are already indexed are skipped, so the call can be repeated after `DiskFull`.

        Raises:
            InvariantViolated: an offset in `offsets` differs from the offset that the log computes.
            DiskFull, OSError: the disk is full, or it failed.
        """
        at = min(max(self.state.position + 1 - frames[0].position, 0), len(frames)) if frames else 0
        # Rows must be appended in order, so rows that an earlier call could not write are written first.
        self._write_rows()
        if self._segments:
            self.pass_boundaries()
        while at < len(frames):
            segment = self._segments[0]
            capacity = len(frames) if segment.last is None else segment.last - frames[at].position + 1
            until = min(at + capacity, len(frames))
            self._index(segment, frames[at:until], offsets[at:until], aborted)
            at = until
            self.pass_boundaries()
        self._snapshot_if_due()

    def _index(self, segment: Segment, frames: Sequence[Frame], offsets: Sequence[int], aborted: Collection[int]) -> None:
        state, before = self.state, self.state.tick
        file_positions = segment.pop_file_positions(len(frames))
        many = len(frames) >= _MANY
        rows: list[bytes] = []
        ticks: list[tuple[int, TickBody]] = []
        if many:
            found = state.apply_run(frames, aborted)
            ticks = [(at, decode_body(TickBody, frame.body)) for at, frame in enumerate(frames) if frame.kind == _TICK]
        else:
            computed = []
            for frame, offset, file_position in zip(frames, offsets, file_positions, strict=True):
                void = frame.position in aborted
                computed.append(state.apply(frame, void))
                rows.append(encode_row(frame, file_position, offset, (state.tick, state.tick_time), void))
            found = tuple(computed)
        # The protocol core and the log count records independently, so different offsets reveal a bug in one of the two.
        if found != tuple(offsets):
            frame, offset, wrong = next(one for one in zip(frames, offsets, found, strict=True) if one[1] != one[2])
            raise InvariantViolated(f"{frame!r} was decided at offset {offset}, but the log computes offset {wrong} for it")
        newest = max(
            [
                frame.max_timestamp
                for frame in frames
                if frame.kind in SEQUENCED and not frame.flags & STAGED and frame.position not in aborted
            ],
            default=LONG_AGO,
        )
        self._view = frames[-1].view
        data = _rows_of(frames, file_positions, ticks, aborted, offsets[0], before) if many else b"".join(rows)
        # Keep the rows for a retry after `DiskFull`: `state` has passed these frames, so their rows cannot be computed again.
        self._unwritten = (data, offsets[0], state.next_offset, newest)
        self._write_rows()

    def _write_rows(self) -> None:
        rows = self._unwritten
        if rows is not None:
            index = self._segments[0].index
            self._disk_space.with_reserve(lambda: index.append(*rows), "the index")
            self._unwritten = None

    def pass_boundaries(self) -> None:
        """Seal the index of each segment whose frames are all decided, and write the snapshot of the next segment."""
        if self._unwritten is not None:
            return  # an index is sealed only with all its rows, and the last rows wait for free disk space
        while self._segments[0].last == self.state.position:
            done, following = self._segments[:2]
            # The seal comes before the snapshot: recovery starts at the newest snapshot and would never seal an earlier index.
            self._disk_space.with_reserve(done.index.seal, "the index")
            self._write_snapshot(Snapshot(self.state, following.first, FRAMES_AT, 0))
            done.index.close()
            self._storage.close(done.fd)
            del self._segments[0]

    def _snapshot_if_due(self) -> None:
        """Replace the snapshot within the segment by a newer one, if enough frames were decided after the old one."""
        # The cost of a snapshot grows with the number of producers, so the interval grows with this number, too.
        interval = max(self._options.snapshot_frames, 4 * len(self.state.producers))
        if self.state.position + 1 - self._snapshot_at >= interval:
            segment = self._segments[0]
            self._write_snapshot(Snapshot(self.state, segment.first, segment.undecided_file_position, segment.index.rows_crc))

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        # A snapshot within a segment needs no sync: if its CRCs are wrong, a start uses the snapshot of the segment's start.
        start = snapshot.position == snapshot.segment
        self._disk_space.with_reserve(lambda: write_snapshot(self._directory, snapshot, self._storage, durable=start), "a snapshot")
        self._snapshot_at = snapshot.position
        if self._within:
            remove_snapshot(self._directory, self._within, self._storage)
        self._within = 0 if start else snapshot.position


def _rows_of(
    frames: Sequence[Frame],
    file_positions: array[int],
    ticks: Sequence[tuple[int, TickBody]],
    aborted: Collection[int],
    offset: int,
    tick: int,
) -> bytes:
    """Return the encoded index rows of many frames, with vectorised code.

    `offset` is the offset of the first record in these frames. `tick` is the number of the last tick before these frames.
    """
    headers = np.frombuffer(b"".join([frame.header for frame in frames]), HEADER_DTYPE)
    progress, body = headers["progress_length"].astype(np.uint32), headers["body_length"]
    sizes = HEADER_SIZE + ((progress + 7) & ~np.uint32(7)) + ((body + 7) & ~np.uint32(7))
    rows = build_rows(headers, np.array(file_positions, np.uint64), sizes, ticks, aborted=aborted, offset=offset, tick=tick)
    return rows.tobytes()
