"""Recovers the log when a gateway starts (design, section 6): finds the valid part of the log, and classifies the end as clean,
torn or corrupt.

The newest valid mark records the end that earlier syncs made durable. A log that ends at or above the mark is complete. Any bytes
after the end of a complete log were written but not synced: they are *torn*, and recovery truncates them. A log that ends below the
mark has lost durable data: it is *corrupt*, and recovery changes none of its frames, marks or hard state. The mark alone separates
torn from corrupt logs.

When other gateways vote on the log, they may hold the lost frames, so recovery reports the corruption to the group
(`Recovered.damage`). If frames below the frontier are corrupt, recovery chooses an earlier watermark as the frontier, and the
gateway fetches the later decisions again. Only positions up to the mark count as durable. In a lane or a group of voters, recovery
rebuilds a bad segment header from other data. The start halts and waits for an operator if the gateway is alone, or if frames after
the mark were already published as decided.
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

_SEARCH_BYTES = 1 << 20  # number of bytes of a segment that are searched at a time


@dataclass(slots=True)
class FoundSegment:
    """A segment that the writer must keep open, because it holds undecided frames or is the last one.

    Attributes:
        first: first position of the segment.
        rows: index rows of the decided frames in the segment.
        undecided: file positions of the undecided frames in the segment.
        file_position: file position at which the next frame is written.
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
        mark: the newest vote mark of the log.
        state: state of the log at the frontier; the writer owns this copy.
        base: the snapshot from which `state` was computed.
        end: position, view and chain value of the last frame.
        view: view of the last decided frame.
        segments: the segments that hold undecided frames, and the last one.
        finished: first position and index rows of each scanned segment whose frames are all decided.
        boundaries: snapshots at the starts of the segments that the decided log has reached.
        later: first positions of the segments after a corrupt range; these segments do not continue from the last valid frame.
        published: last decided position that the previous run published, if this lane has lost its end before that position; else
            0.
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

    `position` and `chain` are those of the last valid frame. `later` lists the segments that do not continue from that frame.
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
    remove_before(directory, storage, read_start(directory).first)  # an interrupted trim may have left these files
    stored = read_hard_state(directory)
    firsts = list_positions(directory, "seg")
    check_hard_state(directory, stored, firsts, log.hex())
    # `check_hard_state` raises an error if an existing log has lost these files, so missing files mean a new log here.
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
    # The error for a short last file is kept for later, because peers may have the lost end.
    short_file = check_end(directory, firsts, stored.segment, peers_can_repair=True)
    if base.segment < firsts[0]:
        raise Damaged(f"{snapshot_path(directory, firsts[0])}, with which the log begins, is missing or corrupt: restore the file")
    header = _check_segments(directory, firsts, base, log)
    ending = _scan_segments(directory, firsts, base, frontier)
    published = 0
    if options.peers_can_repair and 0 < ending.position < frontier:
        published, frontier = frontier, ending.position  # without ABORT frames in a lane, all remaining decisions are final
    elif ending.position < frontier <= mark.position and _others_vote(base, ending, frontier):
        frontier, base, ending = _step_back(directory, firsts, stored.mark, (frontier, base, ending))
    # Decided frames are durable, so the log must reach the frontier, and position 1 if the directory holds a log uuid.
    # The gateway stores the log uuid in the directory only after the first decision.
    damage = _check_durable(directory, base, ending, mark, max(frontier, 1 if log else 0), options.peers_can_repair, short_file)
    if damage is not None:
        # This member may have voted for complete frames after the mark, so the group must decide about these frames, too.
        mark = _extended_mark(directory, firsts[-1], mark)
        damage = Damage(damage.first, mark.position, mark.view, mark.chain)
    elif short_file is None:
        _check_later(directory, ending, mark)
    elif not options.peers_can_repair or ending.later:
        raise short_file
    # Only frames above the mark can be missing on the disk, because a mark covers only frames that were synced without an error.
    if failed:
        _rewrite_tail(storage, ending, mark.position)
    if ending.scans:
        _rewrite_marks(storage, ending.scans[-1].segment)
    # A corrupt end is not truncated here, because the group first decides which frames belong at the lost positions.
    if damage is None and short_file is None:
        _truncate_torn(directory, storage, ending)
    _make_durable(directory, storage, ending)
    if not ending.position:  # the power failed after the first segment was created, before any frame was durable
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

    A snapshot within a segment is usable only if the index rows before it are unchanged and the segment file reaches its position.
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


_ScanStart = tuple[int, Snapshot, _ScanResult]  # a frontier, the snapshot from which a scan starts, and the result of this scan


def _step_back(directory: str, firsts: list[int], stored: VoteMark, begin: _ScanStart) -> _ScanStart:
    """Choose an earlier watermark before the corrupt range, and return the scan that uses this watermark as the frontier.

    A position that is not a watermark cannot be the frontier, because a later ABORT may void a batch before the position. If there
    is no earlier watermark, return the input unchanged.
    """
    frontier, base, ending = begin
    marks = [stored, *(mark for first in reversed(firsts) for mark in segment_marks(directory, first) if mark is not None)]
    # In an untrimmed log, position 0 is also a possible frontier: nothing is decided there.
    stops = sorted({mark.frontier_position for mark in marks} | ({0} if firsts[0] == 1 else set()), reverse=True)
    for stop in stops:
        # The frontier must lie in the intact part of the log, so a watermark after the corrupt range is not usable.
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
        # Each segment must continue the previous segment. The check skips a segment inside which the scan begins.
        if (at or position == first) and (first != position or header.chain != chain):
            return _ScanResult(scans, position - 1, chain, firsts[at:])
        segment = SegmentMap(segment_path(directory, first), first)
        # Readers check the body of every batch that they read, so a start checks only the bodies of undecided batches.
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
    """Check that the log reaches `decided` and the mark, and that the frame at the mark's position has the mark's chain value.

    If the log ends below the mark, and other gateways may hold the missing frames, return the corrupt range instead of raising an
    error.

    Args:
        short_file: the error to raise if the file of the last segment is too short, or None if it has its full size.
    """
    if ending.position < decided:
        raise short_file or _corruption_error(directory, base, ending, max(decided, mark.position))
    if ending.position < mark.position:
        if not ending.scans or not ((peers_can_repair and ending.position) or _others_vote(base, ending, decided)):
            raise short_file or _corruption_error(directory, base, ending, mark.position)
        return Damage(ending.position + 1, mark.position, mark.view, mark.chain)
    # A wrong chain value at the mark means that files of different logs or times were mixed.
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
    """Return the mark, extended to the last complete frame after the mark in the last segment.

    This member may have synced and voted for frames after the position of the newest mark. These votes stay valid even if earlier
    frames are corrupt.
    """
    segment = SegmentMap(segment_path(directory, first), first)
    file_position = FRAMES_AT if mark.position + 1 == first else _file_position_after(segment, mark)
    found = scan_frames(segment, file_position, mark.position + 1, mark.chain)
    if not found.file_positions:
        return mark
    return mark._replace(position=found.position - 1, view=int(found.headers()["view"][-1]), chain=found.chain)


def _file_position_after(segment: SegmentMap, mark: VoteMark) -> int:
    """Return the file position of the frame after the mark, or the segment size if none is found.

    The headers before the frame are corrupt and do not show where the frame begins, so the function searches the bytes of the
    segment for a header with the right position and chain value.
    """
    wanted = (mark.position + 1).to_bytes(8, "little")
    for start in range(FRAMES_AT, segment.size, _SEARCH_BYTES):
        # Neighbouring search windows overlap by the size of a header, so that the search also finds a header on their boundary.
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
    """True if the last decided roster or a later roster contains more than one voter."""
    rosters: list[Iterable[Voter]] = [base.state.roster.values()]
    for found in ending.scans:
        headers = found.headers()
        for position in headers["position"][headers["kind"] == Kind.ROSTER].tolist():
            # A decided ROSTER replaces all earlier rosters, but the group may still drop an undecided ROSTER.
            if position <= decided:
                rosters.clear()
            rosters.append(decode_body(RosterBody, found.frame(position).body).voters)
    return any(map(_has_several_voters, rosters))


def lost_promises(recovered: Recovered, directory: LogDirectory) -> bool:
    """True if other gateways may rely on promises that are no longer in this directory.

    Promises are missing if the directory is a copy, or if the hard state is older than a view in the log that includes this disk.
    """
    state, mine = recovered.state, directory.incarnation
    older = state.gateway_number(mine) in state.members and state.view > recovered.scalars.accepted
    return (directory.copied or older) and _others_vote_in(recovered, mine)


def _others_vote_in(recovered: Recovered, mine: bytes) -> bool:
    """True if other gateways may vote on the recovered log.

    The result is True if a roster in the log contains more than one voter. The result is also True if a roster change removed this
    disk, because the remaining voters may still need answers from it. A log without a roster gives True, because its voters are
    unknown.
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

    A leftover segment contains only marks that are older than the lowered mark. Every other segment after the end proves that
    earlier frames are lost, because the writer begins a segment only when all earlier frames are durable.

    Raises:
        Damaged: a segment after the end is not a leftover.
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
            # Without this terminator, leftover frames after a torn frame would join the log again once the torn frame is rewritten.
            if fits and storage.read(fd, HEADER_SIZE, found.file_position) != TERMINATOR:
                storage.write(fd, [TERMINATOR], found.file_position)
        finally:
            storage.close(fd)


def _make_durable(directory: str, storage: Storage, ending: _ScanResult) -> None:
    """Sync the scanned files and their folder, because a killed run may have left writes without a sync."""
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
    # If the scan began inside a segment, the rows of the segment's earlier frames come from its index.
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
    # If no frame follows the snapshot, the view comes from the mark, or from the snapshot if the mark has another position.
    view = decided_view = mark.view if mark.position == base.state.position else base.state.view
    for found, some in zip(ending.scans, headers, strict=True):
        decided = _decided(found, frontier)
        # The whole log before this segment is decided, so a snapshot of the segment's start can be written.
        if found.first == found.segment.first == state.position + 1 != base.position:
            boundaries.append(Snapshot(state.copy(), found.first, FRAMES_AT, 0))
        rows = np.append(rows, found.rows(some[:decided], aborts, state.next_offset, state.tick))
        void = void_positions(some[:decided], aborts)
        for position in range(found.first, found.first + decided):
            state.apply(found.frame(position), position in void)
        # The protocol stack receives the undecided frames (the tail), because the group either decides or drops each of them.
        tail += [found.frame(position) for position in range(found.first + decided, found.position)]
        # The last segment is never in `finished`, because the writer continues to fill it.
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
