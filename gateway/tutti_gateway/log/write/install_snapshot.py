"""Replaces the log with a snapshot of another member (design, 5.4). A crash at any instant leaves the old log or the new one.

Each step is durable before the next one:

1. The snapshot file is written. No reader uses the file yet, because the snapshot's position is above the frontier.
2. The file `start` records that the log begins after the snapshot and is being replaced. This step makes the snapshot the log: if a
   crash interrupts a later step, the next start of the gateway repeats all later steps.
3. The first segment of the new log is created, with a mark that records the end of the snapshot as durable and decided.
4. The same mark, which is newer than every mark of the old log, is written to both slots of the hard state.
5. Files of the old log with positions after the snapshot are removed.
6. The file `start` records that the replacement is complete. The files before the snapshot are now ignored and then removed.
"""

from __future__ import annotations

import contextlib
import os

from tutti.data.log_state import LogState
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, LOG, SegmentHeader, index_path, list_positions, remove_before, snapshot_path
from tutti.log.files.log_start import LogStart, read_start, write_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.hard_state import HardStateFile, read_hard_state
from tutti.log.format.snapshot import Snapshot, read_snapshot, write_snapshot
from tutti.log.format.vote_mark import VoteMark, segment_marks
from tutti_gateway.log.write.segment import Segment, begin_segment, new_segment, size_of_next
from tutti_gateway.log.write.truncate import write_mark_to_hard_state
from tutti_gateway.log.write.vote_mark_tracker import now_us


def mark_of(state: LogState, sequence: int) -> VoteMark:
    """Return the mark of a log that ends with the last frame of `state` and is completely decided."""
    return VoteMark(sequence, state.position, state.view, state.chain, state.position, state.next_offset, now_us())


def replace_log(
    directory: str, storage: Storage, options: LogOptions, hard_state_file: HardStateFile, state: LogState, sequence: int
) -> tuple[Segment, VoteMark]:
    """Replace the log on disk, and return the first segment and the mark of the new log. The call can be repeated safely.

    Args:
        state: decided state of the new log. Its position must be after the decided position of the old log.
        sequence: sequence number of the new mark, above the sequence numbers of all existing marks.
    """
    first = state.position + 1
    # After a failure before `write_start`, the old log remains. After a later failure, the next start completes the replacement.
    write_snapshot(directory, Snapshot(state, first, FRAMES_AT, 0), storage, durable=True)
    write_start(directory, LogStart(first, state.next_offset, replacing=True), storage)
    fd, mark = _finish(directory, storage, options, hard_state_file, state, sequence)
    return new_segment(directory, storage, first, fd, size_of_next(options, 0, None)), mark


def finish_replacement(directory: str, storage: Storage, options: LogOptions) -> None:
    """Finish a replacement that an earlier run left incomplete. A start calls this function before it reads anything else.

    Raises:
        Damaged: the snapshot is missing or corrupt.
    """
    # The snapshot was durable before the flag `replacing` was set, so a missing or corrupt snapshot means lost data.
    start = read_start(directory)
    if not start.replacing:
        return
    snapshot = read_snapshot(directory, start.first)
    if snapshot is None:
        path = snapshot_path(directory, start.first)
        raise Damaged(f"{path}, which replaces the log, is missing or corrupt: start the gateway with a new data directory")
    stored = read_hard_state(directory)
    marks = [stored.mark] if stored is not None else []
    for first in list_positions(directory, "seg", include_trimmed=True):
        marks += [mark for mark in segment_marks(directory, first) if mark is not None]
    # Segments of the old log may still exist, so the new mark needs a higher sequence number than all marks in them.
    sequence = max((mark.sequence for mark in marks), default=0) + 1
    with contextlib.closing(HardStateFile(directory, storage, stored)) as hard_state_file:
        fd, _ = _finish(directory, storage, options, hard_state_file, snapshot.state, sequence)
        storage.close(fd)


def _finish(
    directory: str, storage: Storage, options: LogOptions, hard_state_file: HardStateFile, state: LogState, sequence: int
) -> tuple[int, VoteMark]:
    first = state.position + 1
    mark = mark_of(state, sequence)
    with contextlib.suppress(FileNotFoundError):
        storage.remove(index_path(directory, first))  # a segment of the old log may have begun at the same position
    header = SegmentHeader(options.lane or state.log, first, state.chain, size_of_next(options, 0, None))
    # A start uses the mark with the highest sequence number, which is now the mark in the new segment.
    fd = begin_segment(directory, storage, header, mark, None)
    try:
        # Both slots receive the new mark. With an old mark in one slot, corruption of the other slot would restore the old end.
        write_mark_to_hard_state(hard_state_file, mark, first)
        for kind in ("seg", "idx", "snap"):
            for position in reversed(list_positions(directory, kind)):
                if position > first:
                    storage.remove(os.path.join(directory, LOG, f"{position:020d}.{kind}"))
        storage.make_names_durable(os.path.join(directory, LOG))
        # The flag `replacing` is cleared only when the new log is complete, because without the flag, a start repeats no step.
        write_start(directory, LogStart(first, state.next_offset), storage)
        remove_before(directory, storage, first)
    except BaseException:
        storage.close(fd)
        raise
    return fd, mark
