"""Recovers the log at a start (design, section 6): finds its valid part, and classifies its end as clean, torn or corrupt.

The newest valid mark names the end that earlier syncs made durable. A log that ends at or above the mark is complete. Any bytes
after the end of a complete log were written but not synced: they are *torn*, and recovery truncates them. A log that ends below the
mark has lost durable data: it is *corrupt*, and recovery changes none of its frames, marks or hard state. The mark alone separates
torn from corrupt logs.

When other gateways vote on the log, they may hold the lost frames, so recovery reports the corruption to the group
(`Recovered.damage`). If frames below the frontier are corrupt, recovery goes back to an earlier watermark, and the gateway fetches
the later decisions again. Only positions up to the mark count as durable. In a lane or a group of voters, recovery rebuilds a bad
segment header from other data. The start halts for an operator if the gateway is alone, or if frames after the mark were already
published as decided.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tutti.data.frames.bodies import RosterBody, Voter, decode_body
from tutti.data.frames.frame import HEADER_SIZE, POSITION_AT, TERMINATOR, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti.errors import Damaged, InvariantViolated, WrongDirectory
from tutti.log.files.data_directory import LogDirectory
from tutti.log.files.layout import (
    FRAMES_AT,
    LOG,
    MARK_SLOTS,
    SegmentHeader,
    check_begin,
    list_positions,
    read_header,
    remove_before,
    segment_path,
    snapshot_path,
)
from tutti.log.files.log_start import read_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import FrameScan, SegmentMap, scan_frames, void_positions
from tutti.log.format.hard_state import HardStateSlot, check_hard_state, read_hard_state
from tutti.log.format.header_repair import repair_headers
from tutti.log.format.index import Rows, no_rows
from tutti.log.format.snapshot import Snapshot, empty_snapshot, newest_snapshot, rows_before
from tutti.log.format.vote_mark import VoteMark, check_end, newest_mark, repair_advice, segment_marks
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Damage

_SEARCH_BYTES = 1 << 20  # bytes of a segment to search at a time


@dataclass(slots=True)
class FoundSegment:
    """A segment that the writer must keep open, because it holds undecided frames or is the last one.

    Attributes:
        first: its first position.
        rows: index rows of its decided frames.
        undecided: file positions of its undecided frames.
        file_position: file position of the next frame.
    """

    first: int
    rows: Rows
    undecided: array[int]
    file_position: int


@dataclass(slots=True)
class RecoveredLog:
    """The complete state from which the writer starts.

    Attributes:
        recovered: the state from which the protocol stack starts.
        stored: the hard state, or None on a new disk.
        mark: the newest mark.
        state: state of the log at the frontier; the writer owns this copy.
        base: the snapshot from which `state` was computed.
        end: position, view and chain value of the last frame.
        view: view of the last decided frame.
        segments: the segments that hold undecided frames, and the last one.
        finished: first position and index rows of each scanned segment whose frames are all decided.
        boundaries: snapshots at the starts of the segments that the decided log has reached.
        later: first positions of the segments after a corrupt range, which do not continue from the end.
        published: decided position that the previous run published, if the end of a lane below that position is lost; else 0.
    """

    recovered: Recovered
    stored: HardStateSlot | None
    mark: VoteMark
    state: LogState
    base: Snapshot
    end: tuple[int, int, int]
    view: int = 0
    segments: list[FoundSegment] = field(default_factory=list)
    finished: list[tuple[int, Rows]] = field(default_factory=list)
    boundaries: list[Snapshot] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    published: int = 0


@dataclass(slots=True)
class _ScanResult:
    """The result of a scan of all segments.

    `position` and `chain` describe the last valid frame. The segments in `later` do not continue from that frame.
    """

    scans: list[FrameScan]
    position: int
    chain: int
    later: list[int]


def recover(
    directory: str, storage: Storage, options: LogOptions, *, log: bytes, live: tuple[int, int], failed: bool
) -> RecoveredLog:
    """Find the end of the log, truncate a torn tail, and make the rest durable. Leave a corrupt end unchanged if the group may
    repair it.

    Args:
        directory: data directory of the gateway; the caller holds its lock.
        log: uuid of the log that the directory is known to hold; empty if none is known.
        live: frontier (position, offset) that the previous run published under the same boot; else zeros.
        failed: True if the previous run may have ended with a failed sync; frames above the mark are then written again.

    Raises:
        Damaged: durable data is corrupt or missing; no frame, mark or hard state was changed.
        WrongDirectory: the segments belong to another log, or a newer release wrote the directory.
    """
    remove_before(directory, storage, read_start(directory).first)  # files that remain after an interrupted trim
    stored = read_hard_state(directory)
    firsts = list_positions(directory, "seg")
    check_hard_state(directory, stored, firsts, log.hex())
    # `check_hard_state` raises if a log had begun and lost these files, so here the log is really new.
    if stored is None or not firsts:
        return _empty_log(stored)
    check_begin(directory, firsts)
    mark = newest_mark(directory, stored.mark, firsts)
    # The live page may be newer than the marks if the gateway was killed and the host has not rebooted.
    frontier = max(mark.frontier_position, live[0])
    # The scan begins at the newest usable snapshot, so that the time of a start does not grow with the log.
    base = _base_snapshot(directory, firsts[-1], frontier)
    # Headers are rebuilt only in a lane or in a group of voters. A single gateway halts, and its operator runs `tutti log repair`.
    if options.lane or _has_several_voters(base.state.roster.values()):
        repair_headers(
            directory, storage, [first for first in firsts if first >= base.segment], base, options.lane or base.state.log
        )
    # The error is not raised yet, because peers may have the lost end.
    short_file = check_end(directory, firsts, stored.segment, peers_can_repair=True)
    if base.segment < firsts[0]:
        raise Damaged(f"{snapshot_path(directory, firsts[0])}, with which the log begins, is missing or corrupt: restore the file")
    header = _check_segments(directory, firsts, base, log)
    ending = _scan_segments(directory, firsts, base, frontier)
    published = 0
    if options.peers_can_repair and 0 < ending.position < frontier:
        published, frontier = frontier, ending.position  # a lane has no ABORT frames, so all remaining decisions are final
    elif ending.position < frontier <= mark.position and _others_vote(base, ending, frontier):
        frontier, base, ending = _step_back(directory, firsts, stored.mark, (frontier, base, ending))
    # Decided frames are durable, so the log must reach the frontier. The uuid is stored after a decision, so it implies frame 1.
    damage = _check_durable(directory, base, ending, mark, max(frontier, 1 if log else 0), options.peers_can_repair, short_file)
    if damage is not None:
        # This member may have voted for the whole frames after the mark, so the group must decide about them, too.
        mark = _extended_mark(directory, firsts[-1], mark)
        damage = Damage(damage.first, mark.position, mark.view, mark.chain)
    elif short_file is None:
        _check_later(directory, ending, mark)
    elif not options.peers_can_repair or ending.later:
        raise short_file
    # Only frames above the mark can be missing on the disk, because a mark covers only frames of successful syncs.
    if failed:
        _rewrite_tail(storage, ending, mark.position)
    if ending.scans:
        _rewrite_marks(storage, ending.scans[-1].segment)
    # The frames of a corrupt end stay until the group has decided which frames belong at their positions.
    if damage is None and short_file is None:
        _truncate_torn(directory, storage, ending)
    _make_durable(directory, storage, ending)
    if not ending.position:  # the first segment was created, but power failed before any frame in it was durable
        _remove(directory, storage, 0)
        return _empty_log(stored)
    found = _result(directory, stored, mark, base, ending, frontier, header.log)
    found.published = published
    if short_file is not None and damage is None:
        # the log is valid up to the mark, but the short file may have lost frames after the mark
        damage = Damage(ending.position + 1, *found.end)
    if damage is not None:
        found.recovered = msgspec.structs.replace(found.recovered, damage=damage)
        found.later = ending.later
    return found


def _empty_log(stored: HardStateSlot | None) -> RecoveredLog:
    hard_state, mark = (stored.hard_state, stored.mark) if stored is not None else (HardState(), VoteMark())
    return RecoveredLog(Recovered(b"", hard_state, LogState(), ()), stored, mark, LogState(), empty_snapshot(), (0, 0, 0))


def _base_snapshot(directory: str, last: int, frontier: int) -> Snapshot:
    """Return the snapshot from which the scan starts.

    A snapshot within a segment is valid only if the index rows before it are unchanged and the file still holds its frames.
    """
    found = newest_snapshot(directory, frontier)
    # A snapshot beyond the end of a shortened file would hide the loss of the frames before it.
    within_file = found.segment != last or found.file_position <= os.path.getsize(segment_path(directory, last))
    if within_file and rows_before(directory, found) is not None:
        return found
    return newest_snapshot(directory, frontier, starts_only=True)


def _check_segments(directory: str, firsts: list[int], base: Snapshot, log: bytes) -> SegmentHeader:
    if base.segment not in firsts:
        path = segment_path(directory, base.segment)
        raise Damaged(f"segment {path} is missing: restore the file, {repair_advice(directory)}")
    header = read_header(directory, firsts[-1])
    if log and header.log != log:
        raise WrongDirectory(
            f"data directory {directory} belongs to log {log.hex()}, but its segments belong to log {header.log.hex()}: "
            "restore the segments of that log, or use another data directory"
        )
    return header


_ScanStart = tuple[int, Snapshot, _ScanResult]  # a frontier, the snapshot at which the scan starts, and the result of the scan


def _step_back(directory: str, firsts: list[int], stored: VoteMark, begin: _ScanStart) -> _ScanStart:
    """Choose an earlier watermark before the corrupt range, and return the scan that uses this watermark as the frontier.

    Other positions cannot be the frontier, because a later ABORT may void a batch before them. Without such a watermark, return the
    input unchanged.
    """
    frontier, base, ending = begin
    marks = [stored, *(mark for first in reversed(firsts) for mark in segment_marks(directory, first) if mark is not None)]
    # An untrimmed log may also start again from position 0, at which nothing is decided.
    stops = sorted({mark.frontier_position for mark in marks} | ({0} if firsts[0] == 1 else set()), reverse=True)
    for stop in stops:
        # The log is intact only up to the corrupt range, so a later watermark cannot be the frontier.
        if stop >= frontier or stop > ending.position:
            continue
        base = _base_snapshot(directory, firsts[-1], stop)
        if base.segment < firsts[0]:
            break
        frontier, ending = stop, _scan_segments(directory, firsts, base, stop, stop + limits.REQUEST_UNDECIDED_FRAMES_MAX)
        if ending.position >= frontier:
            return frontier, base, ending
    return begin


def _scan_segments(directory: str, firsts: list[int], base: Snapshot, frontier: int, last: int | None = None) -> _ScanResult:
    scans: list[FrameScan] = []
    position, chain, file_position = base.position, base.state.chain, base.file_position
    firsts = [first for first in firsts if first >= base.segment]
    for at, first in enumerate(firsts):
        header = read_header(directory, first)
        # Each segment must continue the one before it; the first one is exempt if the scan begins inside it.
        if (at or position == first) and (first != position or header.chain != chain):
            return _ScanResult(scans, position - 1, chain, firsts[at:])
        segment = SegmentMap(segment_path(directory, first), first)
        # Each read of records checks their body, so a start checks only the bodies of batches that are still undecided.
        found = scan_frames(segment, file_position, position, chain, last=last, bodies_from=frontier + 1)
        scans.append(found)
        position, chain, file_position = found.position, found.chain, FRAMES_AT
    return _ScanResult(scans, position - 1, chain, [])


def _check_durable(
    directory: str,
    base: Snapshot,
    ending: _ScanResult,
    mark: VoteMark,
    decided: int,
    peers_can_repair: bool,
    short_file: Damaged | None,
) -> Damage | None:
    """Check that the log reaches `decided` and the mark, and that its frame at the mark is the one that the mark names.

    If the log ends below the mark, and other gateways may hold the missing frames, return the corrupt range instead of an error.

    Args:
        short_file: the error to raise if the file of the last segment is too short, or None if it has its full size.
    """
    if ending.position < decided:
        raise short_file or _corruption_error(directory, base, ending, max(decided, mark.position))
    if ending.position < mark.position:
        if not ending.scans or not ((peers_can_repair and ending.position) or _others_vote(base, ending, decided)):
            raise short_file or _corruption_error(directory, base, ending, mark.position)
        return Damage(ending.position + 1, mark.position, mark.view, mark.chain)
    # A different frame at the mark means that files of different logs or times were mixed.
    chain = base.state.chain if mark.position == base.state.position else None
    for found in ending.scans:
        if found.first <= mark.position < found.position:
            chain = found.frame(mark.position).header_crc
    if chain is not None and chain != mark.chain:
        raise Damaged(
            f"the log in {directory} has chain value {chain:#010x} at position {mark.position}, but the durable frame there has "
            f"chain value {mark.chain:#010x}: files of different logs or times were mixed; restore one consistent copy"
        )
    return None


def _extended_mark(directory: str, first: int, mark: VoteMark) -> VoteMark:
    """Return the mark, moved to the last whole frame that follows it in the last segment.

    This member may have synced such a frame and voted for it before a mark named it. Corruption of earlier frames does not change
    that.
    """
    segment = SegmentMap(segment_path(directory, first), first)
    file_position = FRAMES_AT if mark.position + 1 == first else _file_position_after(segment, mark)
    found = scan_frames(segment, file_position, mark.position + 1, mark.chain)
    if not found.file_positions:
        return mark
    return mark._replace(position=found.position - 1, view=int(found.headers()["view"][-1]), chain=found.chain)


def _file_position_after(segment: SegmentMap, mark: VoteMark) -> int:
    """Return the file position of the frame after the mark, or the segment size if none is found.

    Corrupt headers before the frame do not show where the frame begins, so the search compares positions and chain values.
    """
    wanted = (mark.position + 1).to_bytes(8, "little")
    for start in range(FRAMES_AT, segment.size, _SEARCH_BYTES):
        # Neighbouring search windows overlap by a header, so that a header on their boundary is found.
        end = min(start + _SEARCH_BYTES + HEADER_SIZE, segment.size)
        if not segment.readable(start, end, end):
            continue  # a bad sector
        data = bytes(segment.view[start:end])
        at = data.find(wanted, POSITION_AT)
        while at >= 0:
            file_position = start + at - POSITION_AT
            if scan_frames(
                segment, file_position, mark.position + 1, mark.chain, last=mark.position + 1, bodies_from=None
            ).file_positions:
                return file_position
            at = data.find(wanted, at + 1)
        segment.release(start, end)
    return segment.size


def _others_vote(base: Snapshot, ending: _ScanResult, decided: int) -> bool:
    """True if the last decided roster, or a later one, names more than one voter."""
    rosters: list[Iterable[Voter]] = [base.state.roster.values()]
    for found in ending.scans:
        headers = found.headers()
        for position in headers["position"][headers["kind"] == Kind.ROSTER].tolist():
            # A decided ROSTER replaces the earlier ones. An undecided ROSTER may be dropped, so both rosters stay possible.
            if position <= decided:
                rosters.clear()
            rosters.append(decode_body(RosterBody, found.frame(position).body).voters)
    return any(map(_has_several_voters, rosters))


def lost_promises(recovered: Recovered, directory: LogDirectory) -> bool:
    """True if other gateways may rely on promises that are no longer in this directory.

    Promises are missing if the directory is a copy, or if its hard state is older than a view in its log that includes this disk.
    """
    state, mine = recovered.state, directory.incarnation
    older = state.gateway_number(mine) in state.members and state.view > recovered.scalars.accepted
    return (directory.copied or older) and _others_vote_in(recovered, mine)


def _others_vote_in(recovered: Recovered, mine: bytes) -> bool:
    """True if other gateways may vote on the recovered log.

    The result is True if the log names more than one voter. It is also True if the log has removed this disk, because the voters
    may still need the answers of this disk. Without a log, the roster is unknown, and the result is True, too.
    """
    if any(voter.incarnation == mine for voter in recovered.state.removed.values()):
        return True
    rosters: list[Iterable[Voter]] = [recovered.state.roster.values()] if recovered.state.roster else []
    rosters += [decode_body(RosterBody, frame.body).voters for frame in recovered.tail if frame.kind == Kind.ROSTER]
    return not rosters or any(map(_has_several_voters, rosters))


def _has_several_voters(roster: Iterable[Voter]) -> bool:
    return sum(voter.voting for voter in roster) > 1


def _corruption_error(directory: str, base: Snapshot, ending: _ScanResult, durable: int) -> Damaged:
    position = ending.position + 1
    offset = base.state.next_offset
    aborts = []
    for found in ending.scans:
        aborts += found.aborts(found.headers())
    for found in ending.scans:
        offset += int(found.rows(found.headers(), aborts, 0, 0)["count"].sum())
    if ending.scans:
        path, file_position, why = ending.scans[-1].segment.path, ending.scans[-1].file_position, ending.scans[-1].stop.value
    else:
        path, file_position, why = segment_path(directory, base.segment), 0, "a wrong chain value in its header"
    return Damaged(
        f"the log is corrupt at position {position} (offset {offset}): {path} has {why} at byte {file_position}, but everything "
        f"up to position {durable} was durable. Recovery changed no frame, mark or hard state. Restore the file, "
        f"{repair_advice(directory)}"
    )


def _check_later(directory: str, ending: _ScanResult, mark: VoteMark) -> None:
    """Check that each segment after the end of the log is a leftover of an interrupted repair or truncation.

    All marks of a leftover are older than the lowered mark. Any other segment proves a loss before it, because a segment begins
    only when all earlier frames are durable.

    Raises:
        Damaged: frames before such a segment are lost.
    """
    for first in ending.later:
        newest = max((found.sequence for found in segment_marks(directory, first) if found is not None), default=None)
        if newest is None or newest >= mark.sequence:
            raise Damaged(
                f"the log ends at position {ending.position}, but segment {segment_path(directory, first)} "
                f"does not continue there: restore the missing segments, {repair_advice(directory)}"
            )


def _rewrite_tail(storage: Storage, ending: _ScanResult, durable: int) -> None:
    """Write the tail again, because after a failed sync the page cache may have data that the disk does not have."""
    for found in ending.scans:
        if found.position - 1 <= durable:
            continue
        start = found.file_positions[max(0, durable + 1 - found.first)]
        fd = storage.open(found.segment.path)
        try:
            storage.write(fd, [bytes(found.segment.view[start : found.file_position])], start)
        finally:
            storage.close(fd)


def _rewrite_marks(storage: Storage, segment: SegmentMap) -> None:
    """Write the mark slots again, because the newest mark may be only in the page cache.

    The next mark overwrites the older slot, so the disk must already hold the newest one.
    """
    fd = storage.open(segment.path)
    try:
        storage.write(fd, [bytes(segment.view[MARK_SLOTS[0] : FRAMES_AT])], MARK_SLOTS[0])
    finally:
        storage.close(fd)


def _truncate_torn(directory: str, storage: Storage, ending: _ScanResult) -> None:
    """Truncate the torn tail: remove later segments, and write an invalid header at the end."""
    _remove(directory, storage, ending.position + 1, ending.later)
    for found in ending.scans[-1:]:
        fd = storage.open(found.segment.path)
        try:
            fits = found.file_position + HEADER_SIZE <= read_header(directory, found.segment.first).size
            # Without this terminator, frames of the torn write could continue the chain when the frame before them is written
            # again.
            if fits and storage.read(fd, HEADER_SIZE, found.file_position) != TERMINATOR:
                storage.write(fd, [TERMINATOR], found.file_position)
        finally:
            storage.close(fd)


def _make_durable(directory: str, storage: Storage, ending: _ScanResult) -> None:
    """Sync the scanned files and the folder, because a killed run may not have synced them."""
    for found in ending.scans:
        fd = storage.open(found.segment.path)
        try:
            storage.make_durable(fd)
        finally:
            storage.close(fd)
    storage.make_names_durable(os.path.join(directory, LOG))


def _remove(directory: str, storage: Storage, above: int, also: Sequence[int] = ()) -> None:
    """Remove the segments, indexes and snapshots whose first position is above `above` or in `also`."""
    removed = False
    for kind in ("snap", "idx", "seg"):
        for position in reversed(list_positions(directory, kind)):
            if position > above or position in also:
                storage.remove(os.path.join(directory, LOG, f"{position:020d}.{kind}"))
                removed = True
    if removed:
        storage.make_names_durable(os.path.join(directory, LOG))


def _result(
    directory: str, stored: HardStateSlot, mark: VoteMark, base: Snapshot, ending: _ScanResult, frontier: int, log: bytes
) -> RecoveredLog:
    state = base.state.copy()
    # The scan may begin inside a segment, and then the index has the rows of the frames before it.
    rows = rows_before(directory, base)
    if rows is None:
        raise InvariantViolated(f"the index rows before position {base.position} changed during the start")
    headers = [found.headers() for found in ending.scans]
    aborts = [
        abort
        for found, some in zip(ending.scans, headers, strict=True)
        for abort in found.aborts(some[: _decided(found, frontier)])
    ]
    segments, finished, boundaries, tail = [], [], [], []
    # Without a frame after the snapshot, the view comes from the mark if the mark is at the snapshot, else from the snapshot.
    view = decided_view = mark.view if mark.position == base.state.position else base.state.view
    for found, some in zip(ending.scans, headers, strict=True):
        decided = _decided(found, frontier)
        # The whole log before this segment is decided, so the snapshot at the segment's start can be written.
        if found.first == found.segment.first == state.position + 1 != base.position:
            boundaries.append(Snapshot(state.copy(), found.first, FRAMES_AT, 0))
        rows = np.append(rows, found.rows(some[:decided], aborts, state.next_offset, state.tick))
        void = void_positions(some[:decided], aborts)
        for position in range(found.first, found.first + decided):
            state.apply(found.frame(position), position in void)
        # The group decides the frames of the tail or drops them, so the protocol stack receives them.
        tail += [found.frame(position) for position in range(found.first + decided, found.position)]
        # The last segment is never finished, because the writer continues to fill it.
        if found is not ending.scans[-1] and decided == len(found.file_positions):
            finished.append((found.segment.first, rows))
        else:
            segments.append(FoundSegment(found.segment.first, rows, found.file_positions[decided:], found.file_position))
        rows = no_rows()
        if len(some):
            view = int(some["view"][-1])
        if decided:
            decided_view = int(some["view"][decided - 1])
    recovered = Recovered(log, stored.hard_state, state, tuple(tail))
    end = (ending.position, view, ending.chain)
    return RecoveredLog(recovered, stored, mark, state.copy(), base, end, decided_view, segments, finished, boundaries)


def _decided(found: FrameScan, frontier: int) -> int:
    return min(max(frontier - found.first + 1, 0), len(found.file_positions))
