"""Checks a whole data directory: the chain value and the body of every frame, and the indexes and snapshots."""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tutti import limits
from tutti.data.frames.frame import Frame, Kind, check_payload
from tutti.data.frames.schema import validate_body
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState
from tutti.errors import Damaged, DirectoryRefused, FormatError, TuttiError, WrongDirectory
from tutti.log.files.data_directory import read_identity
from tutti.log.files.lane_paths import OWN, lane_has_log, lane_of_path, lane_path, list_lanes, recorded_own_lane
from tutti.log.files.layout import FRAMES_AT, index_path, list_positions, read_header, segment_path, snapshot_path
from tutti.log.files.log_start import read_start
from tutti.log.files.storage import read_file
from tutti.log.format.frame_iterator import Abort, FrameScan, SegmentMap, StopReason, padding_clean, scan_frames, void_positions
from tutti.log.format.hard_state import check_hard_state, read_hard_state
from tutti.log.format.index import ROW_SIZE, ROWS_AT, index_sealed, map_rows
from tutti.log.format.snapshot import empty_snapshot, read_snapshot
from tutti.log.format.vote_mark import find_lost_end, newest_mark
from tutti.log.read.reader import DecidedEnd, LogReader

_RELEASE_BYTES = 4 << 20
_PENDING_TRIES, _PENDING_WAIT_S = 3, 0.1


class Finding(NamedTuple):
    """A problem in a data directory.

    Attributes:
        position, offset: first affected position, and first affected offset (-1 if unknown).
        file, byte, what: path of the file, byte in the file, and description of the problem.
        derived: True if the file is an index or a snapshot, which can be rebuilt from the frames.
    """

    position: int
    offset: int
    file: str
    byte: int
    what: str
    derived: bool = False


@dataclass(slots=True)
class Verified:
    """The result of a check.

    Attributes:
        log: uuid of the log, hex; for a lane, the uuid of the group's ordered log.
        gateway: name of the gateway that owns the directory.
        lane: name of the checked lane (NUMBER-INCARNATIONHEX); empty for the ordered log.
        frontier: the decided end of the log; later frames are pending.
        durable: last position that was durable, according to the newest mark.
        newest: first position of the newest segment that must exist; 0 if unknown.
        segments, frames, records, bytes: numbers of checked segments, frames, committed records and bytes.
        end: last position in the log.
        damage: findings of lost or corrupt data; empty for a valid log.
        notes: findings that lose no data, such as missing indexes and snapshots, or a torn end.
    """

    log: str
    gateway: str
    frontier: DecidedEnd
    durable: int
    newest: int
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    end: int = 0
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    lane: str = ""


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Verified:
    """Check a data directory or the directory of a lane.

    While the gateway is running, the full check ends at the current frontier. Of the frames after it, the check reports the first
    one that was durable and cannot be read.

    Args:
        progress: called repeatedly, with the number of checked bytes and the total number.

    Raises:
        DirectoryRefused: the directory cannot be read.
        WrongDirectory: the path is not a data directory, or holds files of another format.
        Damaged: the hard state is missing or corrupt, or all segments are missing.
    """
    with closing(LogReader(path, damaged=True)) as reader:
        frontier = reader.frontier()
        stored = read_hard_state(reader.path)
        firsts = list_positions(reader.path, "seg")
        check_hard_state(reader.path, stored, firsts, reader.log)
        if frontier.live:  # a running gateway may truncate the frames after the frontier during the check
            firsts = [first for first in firsts if first <= frontier.position + 1]
        durable = newest_mark(reader.path, stored.mark, firsts).position if stored is not None and firsts else 0
        if stored is not None:
            durable = max(durable, stored.mark.position)
        # The check for a missing newest segment is skipped if the gateway runs, because it may begin a segment after the listing.
        newest = stored.segment if stored is not None and not frontier.live else 0
        report = Verified(reader.log, reader.name, frontier, max(durable, frontier.position), newest)
        _Check(reader.path, firsts, report, progress).run()
        if frontier.live and not report.damage and (pending := _pending_damage(reader)) is not None:
            report.damage.append(pending)
    found = lane_of_path(reader.path)
    if found is not None:
        report.log, report.lane = _log_of(found[0]), found[1].text
    return report


def _pending_damage(reader: LogReader) -> Finding | None:
    """Return the first frame after the frontier of a running gateway that was durable and cannot be read; None if all can be.

    The gateway may decide, rewrite or truncate these frames during the check, so only a frame that several scans cannot read is
    corrupt.
    """
    found: Finding | None = None
    for attempt in range(_PENDING_TRIES):
        if attempt:
            time.sleep(_PENDING_WAIT_S)
        before, found = found, None
        # A file that vanishes, or a header that changes, belongs to a truncation, and the next scan sees its result.
        with contextlib.suppress(OSError, TuttiError):
            found = _scan_pending(reader)
        if found is None or (before is not None and found.position != before.position):
            return None
    return found


def _scan_pending(reader: LogReader) -> Finding | None:
    """Scan from the segment of the frontier to the vote mark. Return the frame at which the scan ends early."""
    path, frontier = reader.path, reader.frontier().position
    firsts = list_positions(path, "seg")
    if not firsts:
        return None
    at = max(bisect.bisect_right(firsts, frontier + 1) - 1, 0)
    position, chain = firsts[at], read_header(path, firsts[at]).chain
    for first in firsts[at:]:
        if first != position:
            break
        segment = SegmentMap(segment_path(path, first), first)
        scan = scan_frames(segment, FRAMES_AT, first, chain, bodies_from=frontier + 1)
        position, chain = scan.position, scan.chain
    # The gateway lowers the vote mark before it truncates frames. So the frame was not truncated if a mark that is read after the
    # frame still covers it.
    stored = read_hard_state(path)
    if stored is None or position > newest_mark(path, stored.mark, list_positions(path, "seg")).position:
        return None
    what = f"{scan.stop.value}, but the frame was durable; the group has not decided it yet"
    return Finding(position, -1, segment.path, scan.file_position, what)


def _log_of(directory: str) -> str:
    """Return the uuid of a gateway's log, hex; empty if the directory does not contain it."""
    with contextlib.suppress(TuttiError):
        identity = read_identity(directory)
        return identity.log if identity is not None else ""
    return ""


class LaneVerified(NamedTuple):
    """The result of checking one lane.

    Attributes:
        lane, path: name of the lane (NUMBER-INCARNATIONHEX), and its directory.
        own: True if this disk of this gateway is the origin of the lane.
        report: full result of the check, or None if the check could not start.
        damage: findings in `report`, or the reason why there is no report.
        refused: reason why the system denies access to the lane; empty if the lane is accessible.
    """

    lane: str
    path: str
    own: bool
    report: Verified | None
    damage: list[Finding]
    refused: str = ""


def verify_lanes(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> list[LaneVerified]:
    """Check each lane in a gateway's directory with `verify`, ordered by number, and check that the gateway's own lane exists.

    A lane without files is omitted, because a running gateway may be creating the lane at this moment.
    """
    directory = os.path.abspath(path)
    identity = read_identity(directory)
    incarnation = bytes.fromhex(identity.incarnation) if identity is not None else b""
    # `DIR/lane` is read before the lanes are listed, because a gateway creates the lane's directory before it writes `DIR/lane`.
    own = recorded_own_lane(directory)
    lanes = list_lanes(directory)
    found = [
        _verify_lane(directory, lane, lane.incarnation == incarnation, progress)
        for lane in lanes
        if lane == own or lane_has_log(directory, lane) or read_identity(lane_path(directory, lane)) is not None
    ]
    if own is not None and own.incarnation == incarnation and own not in lanes:
        missing = lane_path(directory, own)
        what = f"the lane of this gateway is missing, but {os.path.join(directory, OWN)} names it"
        found.append(LaneVerified(own.text, missing, True, None, [Finding(0, -1, missing, 0, what)]))
    return found


def _verify_lane(directory: str, lane: LaneName, own: bool, progress: Callable[[int, int], None] | None) -> LaneVerified:
    path = lane_path(directory, lane)
    try:
        report = verify(path, progress)
    except Damaged as error:
        return LaneVerified(lane.text, path, own, None, [Finding(error.position, -1, path, 0, str(error))])
    except WrongDirectory as error:  # the lane is lost, because its directory holds other files
        return LaneVerified(lane.text, path, own, None, [Finding(0, -1, path, 0, str(error))])
    except DirectoryRefused as error:
        return LaneVerified(lane.text, path, own, None, [], str(error))
    return LaneVerified(lane.text, path, own, report, report.damage)


def lane_of(path: str | os.PathLike[str]) -> tuple[str, bool] | None:
    """Return a lane's directory, and True if the lane belongs to the gateway that owns this disk. For another path, return None."""
    found = lane_of_path(os.fspath(path))
    if found is None:
        return None
    identity = read_identity(found[0])
    return lane_path(*found), identity is not None and bytes.fromhex(identity.incarnation) == found[1].incarnation


class _Check:
    """One check of all segments."""

    def __init__(self, path: str, firsts: list[int], report: Verified, progress: Callable[[int, int], None] | None) -> None:
        self._path = path
        self._firsts = firsts
        self._report = report
        self._progress = progress
        # If the gateway runs, the check ends at the frontier, because the gateway may truncate later frames during the check.
        self._last = report.frontier.position if report.frontier.live else None
        begin = read_start(path).first
        start = read_snapshot(path, begin) if begin > 1 else empty_snapshot()
        self._begin = begin
        self._state = start.state.copy() if start is not None else None  # None from a corruption on that makes the state unknown
        self._total = sum(os.path.getsize(segment_path(path, first)) for first in firsts)

    def run(self) -> None:
        """Check the segments in order, then the end of the log."""
        # An ABORT in a later segment can void a batch, so all ABORTs are collected before the first segment is checked.
        aborts = self._aborts()
        position, chain = self._begin, self._state.chain if self._state is not None else 0
        if self._state is None and self._firsts:
            self._damage(
                position, snapshot_path(self._path, position), 0, "the snapshot with which the log begins is missing or corrupt"
            )
        found: FrameScan | None = None
        for first, following in pairwise([*self._firsts, 0]):
            header_chain = self._header(first, position, chain, found)
            # If the header is corrupt, the frames of the segment are checked with the chain value of the previous segment.
            found = self._walk(first, chain if header_chain is None else header_chain)
            self._segment(found, aborts, complete=found.position == following)
            self._report.segments += 1
            position, chain = found.position, found.chain
        self._report.end = position - 1
        self._end(found)

    def _walk(self, first: int, chain: int) -> FrameScan:
        return scan_frames(
            SegmentMap(segment_path(self._path, first), first), FRAMES_AT, first, chain, last=self._last, bodies_from=None
        )

    def _aborts(self) -> list[Abort]:
        found: list[Abort] = []
        chain = self._state.chain if self._state is not None else 0
        for first in self._firsts:
            with contextlib.suppress(Damaged):  # with a bad header, which `_header` reports, the previous chain value is used
                chain = read_header(self._path, first).chain
            try:
                walked = self._walk(first, chain)
                chain = walked.chain
                found += walked.aborts(walked.headers())
            except FormatError:
                continue  # `run` scans this segment again and reports the error
        return found

    def _header(self, first: int, position: int, chain: int, before: FrameScan | None) -> int | None:
        """Check the header of a segment, and check that the segment continues the previous segment.

        Return the chain value in the header, or None if the header is corrupt.
        """
        path = segment_path(self._path, first)
        if first != position:
            where = (before.segment.path, before.file_position) if before is not None else (path, 0)
            why = f"{before.stop.value}, " if before is not None else ""
            self._damage(position, *where, f"{why}the log continues only at position {first}")
            self._state = None
        try:
            header = read_header(self._path, first)
        except Damaged as error:
            self._damage(first, path, 0, str(error))
            return None
        if first == position and header.chain != chain and (before is not None or self._state is not None):
            self._damage(
                first, path, 0, f"the header has chain value {header.chain:#010x}, but the frames before it have {chain:#010x}"
            )
            self._state = None
        return header.chain

    def _segment(self, found: FrameScan, aborts: list[Abort], *, complete: bool) -> None:
        report = self._report
        self._snapshot(found.first)
        offset, tick = (self._state.next_offset, self._state.tick) if self._state is not None else (0, 0)
        headers = found.headers()
        void = void_positions(headers, aborts)
        released = 0
        for index, file_position in enumerate(found.file_positions):
            frame = found.frame(found.first + index)
            # The pages are read explicitly, because at a bad sector, an access to the mapping would raise a signal.
            found.segment.populate(file_position, file_position + frame.size)
            self._frame(frame, found.segment, file_position)
            self._apply(frame, frame.position in void, found.segment, file_position)
            # Checked pages are released, so that a large log does not fill the memory.
            if file_position - released > _RELEASE_BYTES:
                found.segment.release(released, file_position)
                released = file_position
                if self._progress is not None:
                    self._progress(report.bytes + file_position, self._total)
        report.frames += len(found.file_positions)
        report.bytes += found.segment.size
        if self._state is None:
            return
        try:
            rows = found.rows(headers, aborts, offset, tick)
        except FormatError:
            return  # the index rows are unknown, because the body of a TICK is corrupt; `_frame` has reported this
        if complete and found.position - 1 <= report.frontier.position:
            self._index(found, rows.tobytes())
        else:
            self._growing_index(found, rows[: max(0, report.frontier.position - found.first + 1)].tobytes())

    def _frame(self, frame: Frame, segment: SegmentMap, file_position: int) -> None:
        try:
            check_payload(frame)
            if frame.kind == Kind.BATCH:
                validate_body(frame, limits.RAW_BYTES_MAX)
        except FormatError as error:
            self._damage(frame.position, segment.path, file_position, str(error))
        if not padding_clean(segment.view, file_position, frame):
            self._note(frame.position, segment.path, file_position, "the padding is not zero; it holds no data")

    def _apply(self, frame: Frame, void: bool, segment: SegmentMap, file_position: int) -> None:
        if frame.visible and not void and frame.position <= self._report.frontier.position:
            self._report.records += frame.count
        if self._state is None:
            return
        try:
            self._state.apply(frame, void)
        except FormatError as error:
            self._damage(frame.position, segment.path, file_position, str(error))
            self._state = None

    def _snapshot(self, first: int) -> None:
        if self._state is None or first == self._begin or first > self._report.frontier.position:
            return
        path = snapshot_path(self._path, first)
        found = read_snapshot(self._path, first)
        if found is None:
            self._note(first, path, 0, "no valid snapshot; starts and reads use an earlier one")
        elif not _equal_states(found.state, self._state):
            self._damage(first, path, 0, "the snapshot differs from the log before it", derived=True)

    def _index(self, found: FrameScan, rows: bytes) -> None:
        path = index_path(self._path, found.first)
        sealed = index_sealed(path, found.first)
        # The index is mapped only after it is sealed, because the writer shortens the file when it seals the index.
        mapped = map_rows(path) if sealed is not None else None
        if sealed is None or mapped is None:
            self._note(found.first, path, 0, "no valid index; reads rebuild it in memory from the segment")
        elif mapped[1][: sealed.rows].tobytes() != rows:
            self._damage(found.first, path, 0, "the index differs from the segment", derived=True)

    def _growing_index(self, found: FrameScan, rows: bytes) -> None:
        """Check the index of a segment that may still grow. The index may lack rows, but all rows in it must be correct."""
        path = index_path(self._path, found.first)
        if not os.path.exists(path) or index_sealed(path, found.first) is not None:
            return
        stored = read_file(path, ROWS_AT + len(rows))[ROWS_AT:]
        for at in range(0, len(stored) - ROW_SIZE + 1, ROW_SIZE):
            row = stored[at : at + ROW_SIZE]
            # A row of zeros is not corrupt: it is space that was allocated in advance.
            if row != rows[at : at + ROW_SIZE] and any(row):
                position = found.first + at // ROW_SIZE
                self._note(position, path, ROWS_AT + at, "the index row is corrupt; reads rebuild it from the segment")
                return

    def _end(self, found: FrameScan | None) -> None:
        report = self._report
        path, file_position = (
            (found.segment.path, found.file_position) if found is not None else (segment_path(self._path, self._begin), 0)
        )
        if report.end < report.durable and self._last is None:
            why = found.stop.value if found is not None else "no segment"
            self._damage(report.end + 1, path, file_position, f"{why}, but everything up to position {report.durable} was durable")
        elif report.newest > (self._firsts[-1] if self._firsts else 0):
            self._damage(report.end + 1, segment_path(self._path, report.newest), 0, "the segment is missing")
        elif found is not None and self._last is None and (lost := self._end_lost(found.first)) is not None:
            self._damage(report.end + 1, path, *lost)
        elif found is not None and found.stop is StopReason.HEADER:
            self._note(report.end + 1, path, file_position, "a torn end: written but never synced; the next start truncates it")

    def _end_lost(self, first: int) -> tuple[int, str] | None:
        try:
            return find_lost_end(self._path, first, read_header(self._path, first).size)
        except Damaged:
            return None  # `_header` has reported the corrupt header

    def _damage(self, position: int, file: str, byte: int, what: str, *, derived: bool = False) -> None:
        if len(self._report.damage) < limits.FINDINGS_MAX:
            self._report.damage.append(Finding(position, self._offset(position), file, byte, what, derived))

    def _note(self, position: int, file: str, byte: int, what: str) -> None:
        if len(self._report.notes) < limits.FINDINGS_MAX:
            self._report.notes.append(Finding(position, self._offset(position), file, byte, what))

    def _offset(self, position: int) -> int:
        state = self._state
        return state.next_offset if state is not None and state.position + 1 == position else -1


def _equal_states(snapshot: LogState, log: LogState) -> bool:
    """True if a snapshot equals the state that the frames of the log give.

    Producers of a lane are deleted in the ordered log, without a frame in the lane. Therefore the snapshot of a lane may lack some
    producers that the lane's frames give, but all producers in the snapshot must have the same entries.
    """
    if snapshot.removed.items() <= log.removed.items():
        # Earlier releases did not record removed voters, so a snapshot of such a release may lack some of them.
        snapshot = msgspec.structs.replace(snapshot, removed=log.removed)
    if log.roster or snapshot == log:
        return snapshot == log
    known = {number: log.producers.get(number) for number in snapshot.producers}
    return known == snapshot.producers and msgspec.structs.replace(snapshot, producers=log.producers) == log
