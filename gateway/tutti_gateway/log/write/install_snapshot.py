"""Replacing a whole log by a snapshot of another member's (design, 5.4): a crash at any instant leaves the old log or the new one.

Each step is durable before the next:

1. The snapshot gets its file. Nothing looks at it yet: it lies above what is decided here.
2. The directory says that the log begins behind it, and is being replaced (`start.py`). From here on it is the new log: a start
   that finds this does all that follows once more.
3. The first segment of the new log comes under its name, and with it a mark that says what is decided.
4. Both slots of the scalars say the same mark, which is newer than every one of the old log.
5. What is left of the old log behind the snapshot goes.
6. The directory says that nothing is being replaced any more; what is left before the snapshot goes, whenever that may be.
"""

from __future__ import annotations

import contextlib
import os

from tutti.data.log_state import LogState
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, LOG, SegmentHeader, index_path, positions_named, remove_before, snapshot_path
from tutti.log.files.log_start import Start, read_start, write_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.hard_state import ScalarsFile, read_scalars
from tutti.log.format.snapshot import Snapshot, read_snapshot, write_snapshot
from tutti.log.format.vote_mark import Mark, segment_marks
from tutti_gateway.log.write.mark_tracker import now_us
from tutti_gateway.log.write.segment import Segment, begin_segment, new_segment, size_of_next
from tutti_gateway.log.write.truncate import state_mark


def mark_of(state: LogState, sequence: int) -> Mark:
    """The mark of a log that ends with what a state covers, all of it decided."""
    return Mark(sequence, state.position, state.view, state.chain, state.position, state.next_offset, now_us())


def replace_log(
    directory: str, storage: Storage, options: LogOptions, scalars: ScalarsFile, state: LogState, sequence: int
) -> tuple[Segment, Mark]:
    """Carry it out; done again, it does no harm.

    Args:
        state: the new log, decided; it is further than what is decided here.
        sequence: of the mark, above all that there are.

    Returns the new log's first segment, and the mark.
    """
    first = state.position + 1
    write_snapshot(directory, Snapshot(state, first, FRAMES_AT, 0), storage, durable=True)
    write_start(directory, Start(first, state.next_offset, replacing=True), storage)
    fd, mark = _finish(directory, storage, options, scalars, state, sequence)
    return new_segment(directory, storage, first, fd, size_of_next(options, 0, None)), mark


def finish_replacing(directory: str, storage: Storage, options: LogOptions) -> None:
    """Before anything else a start looks at: end what the run before did not come to.

    Raises:
        Damaged: the snapshot is not good.
    """
    start = read_start(directory)
    if not start.replacing:
        return
    snapshot = read_snapshot(directory, start.first)
    if snapshot is None:
        path = snapshot_path(directory, start.first)
        raise Damaged(f"{path}, which was taking the log's place, is missing or damaged: start the gateway with a new directory")
    stored = read_scalars(directory)
    marks = [stored.mark] if stored is not None else []
    for first in positions_named(directory, "seg", all_there=True):
        marks += [mark for mark in segment_marks(directory, first) if mark is not None]
    sequence = max((mark.sequence for mark in marks), default=0) + 1
    with contextlib.closing(ScalarsFile(directory, storage, stored)) as scalars:
        fd, _ = _finish(directory, storage, options, scalars, snapshot.state, sequence)
        storage.close(fd)


def _finish(
    directory: str, storage: Storage, options: LogOptions, scalars: ScalarsFile, state: LogState, sequence: int
) -> tuple[int, Mark]:
    first = state.position + 1
    mark = mark_of(state, sequence)
    with contextlib.suppress(FileNotFoundError):
        storage.remove(index_path(directory, first))  # of a segment of the old log that began there too
    header = SegmentHeader(options.lane or state.log, first, state.chain, size_of_next(options, 0, None))
    fd = begin_segment(directory, storage, header, mark, None)
    try:
        state_mark(scalars, mark, first)
        for kind in ("seg", "idx", "snap"):
            for position in reversed(positions_named(directory, kind)):
                if position > first:
                    storage.remove(os.path.join(directory, LOG, f"{position:020d}.{kind}"))
        storage.make_names_durable(os.path.join(directory, LOG))
        write_start(directory, Start(first, state.next_offset), storage)
        remove_before(directory, storage, first)
    except BaseException:
        storage.close(fd)
        raise
    return fd, mark
