"""Repairs a data directory whose gateway halted because of corruption (design, section 6).

The tool reports the corruption, makes the repairs that lose no data, and truncates the log on request. The tool truncates only if
the operator gives the first offset that may be lost. The tool moves everything that it removes to a folder.
"""

from __future__ import annotations

import os
import shutil
import time
from bisect import bisect_right
from contextlib import closing
from dataclasses import dataclass, replace

from tutti import limits
from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import HEADER_SIZE, TERMINATOR, Kind, decode_header
from tutti.errors import Damaged, UsageError
from tutti.log.files.data_directory import lock_directory
from tutti.log.files.layout import FRAMES_AT, LOG, MARK_SLOTS, SegmentHeader, index_path, list_positions, read_header, segment_path
from tutti.log.files.live_page import LivePage
from tutti.log.files.storage import Storage, read_file
from tutti.log.format.frame_iterator import Abort, SegmentMap, decode_abort, scan_frames
from tutti.log.format.hard_state import HardStateFile, read_hard_state
from tutti.log.format.header_repair import rebuilt_headers
from tutti.log.format.index import ABORTED
from tutti.log.format.snapshot import newest_snapshot
from tutti.log.format.vote_mark import VoteMark, find_lost_end, newest_mark
from tutti.log.read.reader import LogReader
from tutti_gateway.log.tools.verify import Finding, verify


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair.

    Attributes:
        damage: findings ordered by position, including repaired ones; empty if the log was valid.
        offset: first lost offset, which the operator must give to accept the loss; -1 if no record is lost.
        lost: number of lost committed records.
        frames_after: number of positions after the corruption. The frames at these positions are also lost, because earlier frames
            are missing.
        truncated: True if the log was truncated.
        kept_in: folder with everything that was removed; empty if nothing was removed.
        others_vote: True if the roster in the remaining log contains several voters, so that the gateway needs others to continue.
        renewed: message about the new identity of a member that discarded data on which others may rely; empty if the member keeps
            its identity.
    """

    damage: tuple[Finding, ...]
    offset: int = -1
    lost: int = 0
    frames_after: int = 0
    truncated: bool = False
    kept_in: str = ""
    others_vote: bool = False
    renewed: str = ""


def repair(path: str | os.PathLike[str], accept_loss_from: int | None = None, *, storage: Storage | None = None) -> Repair:
    """Report the corruption of a directory whose gateway is down, and make the repairs that lose no data.

    Segment headers are rebuilt from the rest of the log. Wrong indexes and snapshots are moved away, because a running gateway
    rebuilds them. If a truncation was interrupted, the same call completes it. Before that call, a start of the gateway behaves as
    before the truncation, or halts.

    Args:
        path: data directory.
        accept_loss_from: offset at which to truncate the log, which must be the first lost offset that an earlier call reported.
            With None, the function only reports the loss.
        storage: file operations, which tests can replace.

    Raises:
        DirectoryRefused: the gateway is running.
        WrongDirectory: the path is not a data directory.
        UsageError: the corruption does not begin at `accept_loss_from`, or loses no record.
        Damaged: the first lost offset or the hard state cannot be determined.
    """
    # The lock proves that the gateway is down.
    directory, storage = lock_directory(path), storage or Storage()
    try:
        report, folder = verify(directory.path), ""
        rebuilt: list[Finding] = []
        headers = rebuilt_headers(directory.path, directory.log) if report.damage else []
        if headers:
            folder = _new_folder(directory.path, storage)
            _write_headers(directory.path, headers, folder, storage)
            rewritten = [segment_path(directory.path, header.first) for header in headers]
            rebuilt = [finding for finding in report.damage if finding.file in rewritten and not finding.byte]
            report = verify(directory.path)
        remaining = sorted(report.damage, key=lambda finding: finding.position)
        damage = tuple(sorted([*rebuilt, *remaining], key=lambda finding: finding.position))
        # A finding in an index or a snapshot loses no record, because these files can be rebuilt (`derived`).
        first = next((finding for finding in remaining if not finding.derived), None)
        if first is None:
            if accept_loss_from is not None:
                raise UsageError(f"no record of the log in {directory.path} is corrupt: there is nothing to truncate")
            if remaining:
                folder = folder or _new_folder(directory.path, storage)
                _move(directory.path, [finding.file for finding in remaining], folder, storage)
            return Repair(damage, kept_in=folder)
        # The operator accepts a loss by giving the first lost offset, so a truncation is impossible if that offset is unknown.
        if first.offset < 0:
            raise Damaged(f"{first.file}, byte {first.byte}: {first.what}; the offset there is unknown: restore the file")
        position, offset = _truncation_point(directory.path, first)
        lost, after = max(report.frontier.offset - offset, 0), max(report.end - first.position, 0)
        found = Repair(damage, offset, lost, after, kept_in=folder, others_vote=_others_vote(directory.path, position))
        if accept_loss_from is None:
            return found
        if accept_loss_from != offset:
            raise UsageError(
                f"the log in {directory.path} is corrupt from offset {offset} on, not from {accept_loss_from}: "
                f"to give up the committed records from there on ({found.lost}), name that offset"
            )
        if found.others_vote:
            # A disk must never vote again after it has lost data for which it voted, so it first becomes a new disk.
            directory.become_new_disk()
        folder = _truncate(directory.path, position, offset, folder, storage)
        return replace(found, truncated=True, kept_in=folder, renewed=directory.renewed)
    finally:
        directory.close()


def _others_vote(path: str, position: int) -> bool:
    """True if a roster in the log before `position` contains more than one voter."""
    state = newest_snapshot(path, position - 1).state
    rosters = [tuple(state.roster.values())]
    with closing(LogReader(path, damaged=True)) as reader:
        for view, rows in reader.positions(state.position + 1, position - 1):
            rosters += [decode_body(RosterBody, view.frame(row).body).voters for row in rows[rows["kind"] == Kind.ROSTER]]
    return any(sum(voter.voting for voter in roster) > 1 for roster in rosters)


def _write_headers(path: str, headers: list[SegmentHeader], folder: str, storage: Storage) -> None:
    """Copy the bad segment headers durably to the folder for removed files, and then write the rebuilt headers."""
    for header in headers:
        file = segment_path(path, header.first)
        storage.replace_file(os.path.join(folder, f"{os.path.basename(file)}.header"), read_file(file, FRAMES_AT))
        fd = storage.open(file)
        try:
            storage.write(fd, [header.to_bytes()], 0)
            storage.sync(fd)
        finally:
            storage.close(fd)


def _truncation_point(path: str, damage: Finding) -> tuple[int, int]:
    """Return the position and offset from which the log must be truncated.

    If the ABORT of a void batch lies after the corruption, the batch must be truncated, too. Without the ABORT, the batch would
    become committed, but the gateway has already reported the abort to the producer (C2).
    """
    low = max(damage.position - limits.UNDECIDED_FRAMES_MAX, 1)
    void: dict[int, int] = {}
    aborts: list[Abort] = []
    owners: dict[int, tuple[int, int]] = {}
    with closing(LogReader(path, damaged=True)) as reader:
        for view, rows in reader.positions(low, damage.position - 1):
            aborts += [decode_abort(view.frame(row)) for row in rows[rows["kind"] == Kind.ABORT]]
            for row in rows[(rows["flags"] & ABORTED) != 0]:
                void[int(row["position"])] = int(row["offset"])
                owners[int(row["position"])] = (int(row["producer"]), int(row["epoch"]))
    for position, offset in sorted(void.items()):
        if not any(one.start <= position < one.end and (one.producer, one.epoch) == owners[position] for one in aborts):
            return position, offset
    return damage.position, damage.offset


def _truncate(path: str, position: int, offset: int, folder: str, storage: Storage) -> str:
    """Truncate the log from `position` on, and return the folder with the removed files.

    Snapshots are moved first. Until the newest snapshot is moved, a start of the gateway behaves as before the repair. After that,
    a start halts, because the log ends below its mark. The mark is lowered last: if it were lowered earlier, a start could commit
    valid frames between the truncation point and the corruption.

    Args:
        folder: folder for removed files; empty to create one.
    """
    firsts = list_positions(path, "seg")
    stored = read_hard_state(path)
    last = bisect_right(firsts, position - 1) - 1  # index of the segment that becomes the last one: it holds `position - 1`
    if stored is None or last < 0:
        raise Damaged(f"no part of the log in {path} can be kept: restore it, or start the gateway with a new data directory")
    segment = firsts[last]
    mark, file_position = _end_before(path, segment, position)
    newest = newest_mark(path, stored.mark, firsts)
    frontier = (newest.frontier_position, newest.frontier_offset)
    # A watermark after the truncation point would name frames that no longer exist.
    if frontier[0] >= position:
        frontier = (position - 1, offset)
    folder = folder or _new_folder(path, storage)
    _move(path, _files_from(path, position, "snap"), folder, storage)
    size = read_header(path, segment).size
    _end_segment_at(segment_path(path, segment), file_position, size, folder, storage)
    # The first removed segment is moved first, because later segments cannot continue the log without that segment.
    _move(path, _files_from(path, position, "seg"), folder, storage)
    indexes = _files_from(path, position, "idx")
    if os.path.exists(index_path(path, segment)):
        indexes.append(index_path(path, segment))
    _move(path, indexes, folder, storage)
    # The live page of the last run is invalidated, because its frontier may lie beyond the end of the truncated log.
    live = LivePage(path)
    live.invalidate()
    live.close()
    hard_state_file = HardStateFile(path, storage, stored)
    try:
        # A start uses the mark with the highest sequence number, so the lowered mark gets a higher number than all other marks.
        lowered = mark._replace(
            sequence=newest.sequence + 1, frontier_position=frontier[0], frontier_offset=frontier[1], time_us=time.time_ns() // 1000
        )
        hard_state_file.write(stored.hard_state, lowered, segment)
    finally:
        hard_state_file.close()
    # A start halts if the last segment has no valid mark, so the lowered mark is written to a segment without one.
    if find_lost_end(path, segment, size) is not None:
        _write_mark(segment_path(path, segment), lowered, storage)
    return folder


def _end_segment_at(file: str, file_position: int, size: int, folder: str, storage: Storage) -> None:
    """Copy a segment to the folder for removed files, then truncate its frames at byte `file_position`, durably.

    A shortened segment file is extended to its full `size`.
    """
    copy = os.path.join(folder, os.path.basename(file))
    # The copy becomes durable first, because the original loses its frames afterwards.
    shutil.copyfile(file, copy)
    fd = storage.open(copy)
    try:
        storage.sync(fd)
    finally:
        storage.close(fd)
    storage.sync_directory(folder)
    fd = storage.open(file)
    try:
        # The file is extended, because a start treats a last segment that is smaller than its full size as corrupt.
        if storage.size(fd) < size:
            storage.allocate(fd, size)
        if file_position + HEADER_SIZE <= size:
            storage.write(fd, [TERMINATOR], file_position)
        storage.sync(fd)
    finally:
        storage.close(fd)


def _write_mark(file: str, mark: VoteMark, storage: Storage) -> None:
    """Write a mark durably into a segment that has no valid mark."""
    fd = storage.open(file)
    try:
        storage.write(fd, [mark.to_bytes()], MARK_SLOTS[0])
        storage.sync(fd)
    finally:
        storage.close(fd)


def _end_before(path: str, first: int, position: int) -> tuple[VoteMark, int]:
    """Return the mark of a log that ends before `position`, and the file position after its last frame in segment `first`."""
    segment = SegmentMap(segment_path(path, first), first)
    found = scan_frames(segment, FRAMES_AT, first, read_header(path, first).chain, last=position - 1, bodies_from=None)
    if found.position != position:
        raise Damaged(f"{segment.path} ends at position {found.position - 1} instead of {position - 1}: restore the file")
    view = decode_header(segment.view, found.file_positions[-1]).view
    return VoteMark(position=position - 1, view=view, chain=found.chain), found.file_position


def _files_from(path: str, position: int, kind: str) -> list[str]:
    """Return the paths of all files of a kind ("seg", "idx" or "snap") whose first position is at or above `position`, in order."""
    return [os.path.join(path, LOG, f"{number:020d}.{kind}") for number in list_positions(path, kind) if number >= position]


def _new_folder(path: str, storage: Storage) -> str:
    """Create a folder for the removed files of one repair. Two repairs need two folders, because equal file names may occur."""
    name = os.path.join(path, f"kept-{time.strftime('%Y%m%dT%H%M%S')}")
    folder, number = name, 1
    while os.path.exists(folder):
        number += 1
        folder = f"{name}-{number}"
    os.mkdir(folder)
    storage.sync_directory(path)
    return folder


def _move(path: str, files: list[str], folder: str, storage: Storage) -> None:
    """Move files into a folder in the given order. Each move is durable before the next one, so a crash cannot change the order."""
    for file in files:
        storage.rename(file, os.path.join(folder, os.path.basename(file)))
        storage.sync_directory(folder)
        storage.sync_directory(os.path.join(path, LOG))
