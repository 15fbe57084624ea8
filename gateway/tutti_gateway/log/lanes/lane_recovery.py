"""Handles corrupt lanes when a gateway starts.

A corrupt lane of another gateway is quarantined, its valid part is copied into a new log, and the gateway fetches the rest. The
newest quarantined lanes, up to a limit, are kept for examination.

If the end of this gateway's lane is corrupt, a `LostEnd` describes the missing frames, which other gateways still have. The lane's
hard state records the loss: its field `coordinated` is the attempt in which the lane continues after the fetch. This record stays
valid until the lane promises a later attempt. A log that reaches its mark again does not end the record, because frames after the
mark may still be missing.
"""

from __future__ import annotations

import os
import shutil

from tutti.data.frames.bodies import LaneViewBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.lane_name import LaneName
from tutti.errors import Damaged, TuttiError
from tutti.log.files.lane_paths import LANES, lane_path
from tutti.log.files.layout import FRAMES_AT, list_positions, read_header, segment_path
from tutti.log.files.log_start import read_start
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import SegmentMap, scan_frames
from tutti.log.format.hard_state import read_hard_state
from tutti.log.format.snapshot import read_snapshot
from tutti.log.format.vote_mark import segment_marks
from tutti.log.read.reader import LogReader
from tutti.runtime.reserved_fds import with_descriptor_wait
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LostEnd, Recovered
from tutti_gateway.log.writer import LogWriter

_SUFFIX = ".damaged-"

# Quarantine


class LaneQuarantine:
    """Quarantines the corrupt lanes that one start finds.

    The limit of quarantined lanes never removes a lane that this start has quarantined, because the lane's other frames are not
    fetched yet.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        """Create the quarantine for the lanes in a gateway's data directory."""
        self._directory = directory
        self._storage = storage
        self._this_start: set[str] = set()

    def add(self, lane: LaneName) -> tuple[str, list[str]]:
        """Rename a lane's directory durably. First remove the oldest quarantined lanes, so that the new one stays within the limit.

        Returns:
            The new path, and messages for the operator about removed lanes and failed removals.

        Raises:
            OSError: the disk is full, or it failed.
        """
        path = lane_path(self._directory, lane)
        names = with_descriptor_wait(lambda: os.listdir(os.path.dirname(path)))
        # The number must be higher than in all existing names, because even a plain file with the new name would block the rename.
        number = 1 + max(map(_number, names))
        existing = quarantined_lanes(self._directory)
        excess = max(0, len(existing) + 1 - limits.LANES_QUARANTINED_MAX)
        messages = [_removed(one) for one in existing[:excess] if one not in self._this_start]
        new_path = f"{path}{_SUFFIX}{number}"
        # One rename moves all files of the lane, so a crash leaves the whole lane under either the old or the new name.
        self._storage.rename(path, new_path)
        self._storage.make_names_durable(os.path.dirname(path))
        self._this_start.add(new_path)
        return new_path, messages


def quarantined_lanes(directory: str) -> list[str]:
    """Return the paths of quarantined lanes in a gateway's directory, oldest first.

    The number at the end of each name gives the order, because all lanes share one sequence of numbers. Earlier releases numbered
    each lane separately, so lanes with equal numbers are ordered by their change times.
    """
    folder = os.path.join(directory, LANES)
    with with_descriptor_wait(lambda: os.scandir(folder)) as entries:
        found = [
            (_number(one.name), one.stat(follow_symlinks=False).st_ctime_ns, one.path)
            for one in entries
            if _number(one.name) and one.is_dir(follow_symlinks=False)
        ]
    return [path for *_, path in sorted(found)]


def _number(name: str) -> int:
    """Return the N in a name of the form `NUMBER-INCARNATION.damaged-N`, or 0 for any other name."""
    lane, _, number = name.partition(_SUFFIX)
    return int(number) if number.isascii() and number.isdecimal() and LaneName.parse(lane) is not None else 0


def _removed(path: str) -> str:
    """Remove a quarantined lane, and return a message about the result.

    If a crash interrupts the removal, the remaining files keep the lane's old number, so the next quarantine removes them first. A
    failed removal does not prevent the start.
    """
    try:
        # A removal needs no sync, because recovery ignores quarantined lanes and the next quarantine removes leftover files.
        shutil.rmtree(path)
    except OSError as error:
        return f"{path}, a corrupt lane that an earlier start quarantined, cannot be removed ({error}); remove it by hand"
    return (
        f"{path}, a corrupt lane that an earlier start quarantined, was removed: the newest {limits.LANES_QUARANTINED_MAX} are kept"
    )


# Salvage


def salvage(damaged: str, writer: LogWriter) -> int:
    """Copy the leading valid frames of a corrupt lane into a new log, and return the last decided position of the new log.

    Frames that the old log recorded as decided are also decided in the new log.

    Args:
        damaged: directory of the corrupt lane.
        writer: writer of the new log.

    Raises:
        DiskFull, DiskFailed: the new log cannot be written.
        Damaged, WrongDirectory, OSError: the old log cannot be read completely; the frames before the error are in the new log.
    """
    decided = _decided(damaged)
    position, chain, offset = 1, 0, 0
    begin = _begin_of(damaged)
    if begin > 1:
        snapshot = read_snapshot(damaged, begin)
        if snapshot is None:
            return 0  # without the state before the first frame, the new log cannot continue the chain
        writer.replace(snapshot.state.to_bytes())
        position, chain, offset = begin, snapshot.state.chain, snapshot.state.next_offset
    for first in list_positions(damaged, "seg", include_trimmed=True):
        if first < begin:
            continue
        # After a gap the chain value is unknown, so later frames cannot be checked.
        if first != position:
            break
        segment = SegmentMap(segment_path(damaged, first), first)
        file_position = FRAMES_AT
        while True:
            # The segment is copied in pieces, because one scan would hold all frames of the segment in memory.
            found = scan_frames(
                segment, file_position, position, chain, last=position + limits.SCRUB_FRAMES - 1, bodies_from=position
            )
            if not found.file_positions:
                break
            frames = [found.frame(one) for one in range(position, found.position)]
            offset = _copy(frames, writer, offset, decided)
            segment.release(file_position, found.file_position)
            position, chain, file_position = found.position, found.chain, found.file_position
    return min(decided, position - 1)


def _begin_of(damaged: str) -> int:
    """Return the first position of the lane.

    If the file `start` is corrupt, return the first position of the oldest segment from which the log has no gap up to the newest
    segment. Segments before a gap may belong to a log that a snapshot has replaced.
    """
    try:
        return read_start(damaged).first
    except Damaged:
        firsts = list_positions(damaged, "seg", include_trimmed=True)
    begin = firsts[-1] if firsts else 1
    for first in reversed(firsts[:-1]):
        if not _continues_at(damaged, first, begin):
            break
        begin = first
    return begin


def _continues_at(damaged: str, first: int, following: int) -> bool:
    """True if the frames of segment `first` end directly before segment `following`, with the chain value in its header."""
    try:
        chain, wanted = (read_header(damaged, one).chain for one in (first, following))
    except (Damaged, OSError):
        return False
    segment = SegmentMap(segment_path(damaged, first), first)
    found = scan_frames(segment, FRAMES_AT, first, chain, last=following - 1, bodies_from=None)
    return (found.position, found.chain) == (following, wanted)


def _copy(frames: list[Frame], writer: LogWriter, offset: int, decided: int) -> int:
    """Append frames to the new log and index those that are decided. Return the offset after the decided frames."""
    writer.append(frames)
    # Frames must be durable before the frontier passes them.
    writer.sync()
    known = [frame for frame in frames if frame.position <= decided]
    offsets = []
    for frame in known:
        offsets.append(offset)
        offset += frame.count
    if known:
        writer.frontier(known[-1].position, offset)
        writer.decided(known, offsets)
    return offset


def _decided(damaged: str) -> int:
    """Return the last position that the lane recorded as decided; 0 if unknown."""
    try:
        reader = LogReader(damaged, damaged=True)
        try:
            return reader.frontier().position
        finally:
            reader.close()
    except TuttiError:
        # A reader cannot be opened if the identity or the file `start` is corrupt, but the marks may still be valid.
        return _decided_by_marks(damaged)


def _decided_by_marks(damaged: str) -> int:
    """Return the highest decided position in the marks of the lane; 0 if unknown."""
    try:
        stored = read_hard_state(damaged)
        firsts = list_positions(damaged, "seg", include_trimmed=True)
        marks = [stored.mark if stored is not None else None, *(mark for first in firsts for mark in segment_marks(damaged, first))]
    except (TuttiError, OSError):
        return 0
    return max((mark.frontier_position for mark in marks if mark is not None), default=0)


# Lost end of the own lane


def lost_end(recovered: Recovered, attempt: int, last_published: int) -> LostEnd | None:
    """Return the lost end of this gateway's lane, or None if no frame is missing.

    Args:
        attempt: the highest attempt that the files of the lane contain.
        last_published: last position that the previous run published as decided; 0 if the log reaches that position.
    """
    state, tail, damage, scalars = recovered.state, recovered.tail, recovered.damage, recovered.scalars
    view = LaneViewBody(state.members, state.disks)
    for frame in tail:
        if frame.kind == Kind.VIEW:
            view = decode_body(LaneViewBody, frame.body)
    if damage is not None:
        promised = max(attempt, damage.view)
        published = last_published if last_published > damage.last else 0
        return LostEnd(damage.first, damage.last, damage.view, damage.chain, promised, view.members, published, view.disks)
    # `coordinated` names the last attempt until an earlier loss is recovered and the next attempt is promised (lanes, U34).
    if not last_published and not 0 < scalars.coordinated == attempt:
        return None
    end = (tail[-1].position, tail[-1].view, tail[-1].header_crc) if tail else (state.position, state.view, state.chain)
    return LostEnd(end[0] + 1, *end, attempt, view.members, last_published, view.disks)


def lost_end_hard_state(lost: LostEnd) -> HardState:
    """Return the hard state of a lane that records the loss of the lane's end."""
    return HardState(promised=lost.promised, coordinated=lost.promised)


def lost_end_message(lane: LaneName, lost: LostEnd) -> str:
    """Return the message for the operator about the lost end of this gateway's lane."""
    last = max(lost.last, lost.shown)
    what = f"positions {lost.first} to {last}" if lost.first <= last else f"frames after position {lost.last}"
    return (
        f"{what} of this gateway's own lane {lane.text} cannot be read here: the gateway fetches them from other gateways, and "
        "the lane accepts no records until then (`halted` in `lanes` of the status names the reason)"
    )
