"""Checks a whole directory: every frame, its place in the chain, its body; then what was derived from them."""

from __future__ import annotations

import contextlib
import os
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
from tutti.log.files.lane_paths import OWN, is_begun, lane_at, lane_path, lanes_there, noted_lane
from tutti.log.files.layout import FRAMES_AT, index_path, positions_named, read_header, segment_path, snapshot_path
from tutti.log.files.log_start import read_start
from tutti.log.files.storage import read_file
from tutti.log.format.frame_iterator import Abort, SegmentMap, Stop, Walk, padding_clean, voided, walk
from tutti.log.format.hard_state import check_kept, read_scalars
from tutti.log.format.index import ROW_SIZE, ROWS_AT, index_sealed, map_rows
from tutti.log.format.snapshot import beginning, read_snapshot
from tutti.log.format.vote_mark import end_lost, newest_mark
from tutti.log.read.reader import Frontier, LogReader

_LET_GO_BYTES = 4 << 20


class Finding(NamedTuple):
    """Something wrong.

    Attributes:
        position, offset: from where on (offset -1: not known).
        file, byte, what: where and what.
        derived: whether the file can be made again from the frames (indexes, snapshots).
    """

    position: int
    offset: int
    file: str
    byte: int
    what: str
    derived: bool = False


@dataclass(slots=True)
class Verified:
    """What was found.

    Attributes:
        log, gateway: uuid (hex) and the gateway's name; of a lane the uuid of the ordered log, of whose group it is.
        lane: NUMBER-INCARNATIONHEX of the lane that the log is of; empty for the ordered log.
        frontier: how far the log is decided; beyond it frames are pending.
        durable: position up to which the newest mark says that everything was synced.
        newest: first position of the newest segment that there must be, 0 if none is known.
        segments, frames, records, bytes: how much was looked at; `records` are committed ones.
        end: the last position that stands in the log.
        damage: what is lost or changed. Empty in a good log.
        notes: what is worth knowing and loses nothing: indexes and snapshots that are not there, a torn end.
    """

    log: str
    gateway: str
    frontier: Frontier
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
    """Check a directory; with its gateway running, up to the frontier of this moment.

    Args:
        progress: called now and then with bytes done and bytes in all.

    Raises:
        DirectoryRefused: it cannot be read.
        WrongDirectory: it is no data directory, or holds something of another format.
        Damaged: its scalars are gone or neither of their slots is good, or all segments are gone.
    """
    with closing(LogReader(path, damaged=True)) as reader:
        frontier = reader.frontier()
        stored = read_scalars(reader.path)
        firsts = positions_named(reader.path, "seg")
        check_kept(reader.path, stored, firsts, reader.log)
        if frontier.live:  # what lies behind it may be cut meanwhile, segments and all
            firsts = [first for first in firsts if first <= frontier.position + 1]
        durable = newest_mark(reader.path, stored.mark, firsts).position if stored is not None and firsts else 0
        if stored is not None:
            durable = max(durable, stored.mark.position)
        newest = stored.segment if stored is not None and not frontier.live else 0
        report = Verified(reader.log, reader.name, frontier, max(durable, frontier.position), newest)
    _Check(reader.path, firsts, report, progress).run()
    found = lane_at(reader.path)
    if found is not None:
        report.log, report.lane = _log_of(found[0]), found[1].text
    return report


def _log_of(directory: str) -> str:
    """Uuid of a gateway's log, as hex; empty where its directory does not say it."""
    with contextlib.suppress(TuttiError):
        identity = read_identity(directory)
        return identity.log if identity is not None else ""
    return ""


class LaneVerified(NamedTuple):
    """What was found of a lane in a gateway's directory.

    Attributes:
        lane, path: NUMBER-INCARNATIONHEX, and its directory.
        own: whether this gateway is its origin, with this disk.
        report: all that was found; None if there was no coming so far.
        damage: of the report, or what stood in its way.
        refused: why the system does not let it be looked at; empty if it does.
    """

    lane: str
    path: str
    own: bool
    report: Verified | None
    damage: list[Finding]
    refused: str = ""


def verify_lanes(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> list[LaneVerified]:
    """Check the lanes in a gateway's directory, each as `verify` does, and whether its own one is there; by number.

    A lane that is just being made has nothing yet, and is left out.
    """
    directory = os.path.abspath(path)
    identity = read_identity(directory)
    incarnation = bytes.fromhex(identity.incarnation) if identity is not None else b""
    own = noted_lane(directory)  # before the others are listed: it is there before it is noted
    lanes = lanes_there(directory)
    found = [
        _lane(directory, lane, lane.incarnation == incarnation, progress)
        for lane in lanes
        if lane == own or is_begun(directory, lane) or read_identity(lane_path(directory, lane)) is not None
    ]
    if own is not None and own.incarnation == incarnation and own not in lanes:
        place = lane_path(directory, own)
        what = f"the lane of this gateway is gone, and {os.path.join(directory, OWN)} says that it began"
        found.append(LaneVerified(own.text, place, True, None, [Finding(0, -1, place, 0, what)]))
    return found


def _lane(directory: str, lane: LaneName, own: bool, progress: Callable[[int, int], None] | None) -> LaneVerified:
    path = lane_path(directory, lane)
    try:
        report = verify(path, progress)
    except Damaged as error:
        return LaneVerified(lane.text, path, own, None, [Finding(error.position, -1, path, 0, str(error))])
    except WrongDirectory as error:  # there is something in it, and nothing says whose
        return LaneVerified(lane.text, path, own, None, [Finding(0, -1, path, 0, str(error))])
    except DirectoryRefused as error:
        return LaneVerified(lane.text, path, own, None, [], str(error))
    return LaneVerified(lane.text, path, own, report, report.damage)


def lane_of(path: str | os.PathLike[str]) -> tuple[str, bool] | None:
    """The directory of the lane that a path leads to, and whether it is its gateway's own; None if it leads to no lane."""
    found = lane_at(os.fspath(path))
    if found is None:
        return None
    identity = read_identity(found[0])
    return lane_path(*found), identity is not None and bytes.fromhex(identity.incarnation) == found[1].incarnation


class _Check:
    """One run over all segments."""

    def __init__(self, path: str, firsts: list[int], report: Verified, progress: Callable[[int, int], None] | None) -> None:
        self._path = path
        self._firsts = firsts
        self._report = report
        self._progress = progress
        self._last = report.frontier.position if report.frontier.live else None
        begin = read_start(path).first
        start = read_snapshot(path, begin) if begin > 1 else beginning()
        self._begin = begin
        self._state = start.state.copy() if start is not None else None  # None once a damage makes it unknowable
        self._total = sum(os.path.getsize(segment_path(path, first)) for first in firsts)

    def run(self) -> None:
        """Go over the segments, then look at the end."""
        aborts = self._aborts()
        position, chain = self._begin, self._state.chain if self._state is not None else 0
        if self._state is None and self._firsts:
            self._damage(position, snapshot_path(self._path, position), 0, "the snapshot with which the log begins is not good")
        found: Walk | None = None
        for first, following in pairwise([*self._firsts, 0]):
            header_chain = self._header(first, position, chain, found)
            found = self._walk(first, chain if header_chain is None else header_chain)
            self._segment(found, aborts, whole=found.position == following)
            self._report.segments += 1
            position, chain = found.position, found.chain
        self._report.end = position - 1
        self._end(found)

    def _walk(self, first: int, chain: int) -> Walk:
        return walk(SegmentMap(segment_path(self._path, first), first), FRAMES_AT, first, chain, last=self._last, bodies_from=None)

    def _aborts(self) -> list[Abort]:
        found: list[Abort] = []
        chain = self._state.chain if self._state is not None else 0
        for first in self._firsts:
            with contextlib.suppress(Damaged):  # told when the segment itself is looked at; its frames go on from those before
                chain = read_header(self._path, first).chain
            try:
                walked = self._walk(first, chain)
                chain = walked.chain
                found += walked.aborts(walked.headers())
            except FormatError:
                continue  # likewise
        return found

    def _header(self, first: int, position: int, chain: int, before: Walk | None) -> int | None:
        """Look at a segment's header, and at how it goes on from the segment before; the chain that it names, if it can be read."""
        path = segment_path(self._path, first)
        if first != position:
            where = (before.segment.path, before.place) if before is not None else (path, 0)
            why = f"{before.stop.value}, " if before is not None else ""
            self._damage(position, *where, f"{why}the log goes on with position {first} only")
            self._state = None
        try:
            header = read_header(self._path, first)
        except Damaged as error:
            self._damage(first, path, 0, str(error))
            return None
        if first == position and header.chain != chain and (before is not None or self._state is not None):
            self._damage(first, path, 0, f"the header names chain {header.chain:#010x} and the frames before have {chain:#010x}")
            self._state = None
        return header.chain

    def _segment(self, found: Walk, aborts: list[Abort], *, whole: bool) -> None:
        report = self._report
        self._snapshot(found.first)
        offset, tick = (self._state.next_offset, self._state.tick) if self._state is not None else (0, 0)
        headers = found.headers()
        void = voided(headers, aborts)
        kept = 0
        for index, place in enumerate(found.places):
            frame = found.frame(found.first + index)
            found.segment.populate(place, place + frame.size)
            self._frame(frame, found.segment, place)
            self._apply(frame, frame.position in void, found.segment, place)
            if place - kept > _LET_GO_BYTES:
                found.segment.release(kept, place)
                kept = place
                if self._progress is not None:
                    self._progress(report.bytes + place, self._total)
        report.frames += len(found.places)
        report.bytes += found.segment.size
        if self._state is None:
            return
        try:
            rows = found.rows(headers, aborts, offset, tick)
        except FormatError:
            return  # a TICK's body is damaged, and that was told
        if whole and found.position - 1 <= report.frontier.position:
            self._index(found, rows.tobytes())
        else:
            self._growing_index(found, rows[: max(0, report.frontier.position - found.first + 1)].tobytes())

    def _frame(self, frame: Frame, segment: SegmentMap, place: int) -> None:
        try:
            check_payload(frame)
            if frame.kind == Kind.BATCH:
                validate_body(frame, limits.RAW_BYTES_MAX)
        except FormatError as error:
            self._damage(frame.position, segment.path, place, str(error))
        if not padding_clean(segment.view, place, frame):
            self._note(frame.position, segment.path, place, "the padding is not zeros; it carries nothing")

    def _apply(self, frame: Frame, void: bool, segment: SegmentMap, place: int) -> None:
        if frame.visible and not void and frame.position <= self._report.frontier.position:
            self._report.records += frame.count
        if self._state is None:
            return
        try:
            self._state.apply(frame, void)
        except FormatError as error:
            self._damage(frame.position, segment.path, place, str(error))
            self._state = None

    def _snapshot(self, first: int) -> None:
        if self._state is None or first == self._begin or first > self._report.frontier.position:
            return
        path = snapshot_path(self._path, first)
        found = read_snapshot(self._path, first)
        if found is None:
            self._note(first, path, 0, "no good snapshot; starts and reads go back to an earlier one")
        elif not _same(found.state, self._state):
            self._damage(first, path, 0, "the snapshot says something else than the log before it", derived=True)

    def _index(self, found: Walk, rows: bytes) -> None:
        path = index_path(self._path, found.first)
        sealed = index_sealed(path, found.first)
        # Mapped after the seal was seen: the gateway cuts the file to its rows before it seals it, and what a map has behind the
        # end of its file cannot be read.
        mapped = map_rows(path) if sealed is not None else None
        if sealed is None or mapped is None:
            self._note(found.first, path, 0, "no good index; reads make it in memory from the segment")
        elif mapped[1][: sealed.rows].tobytes() != rows:
            self._damage(found.first, path, 0, "the index says something else than the segment", derived=True)

    def _growing_index(self, found: Walk, rows: bytes) -> None:
        """The index of a segment that may still grow: rows may be missing, and those that are there must be right."""
        path = index_path(self._path, found.first)
        if not os.path.exists(path) or index_sealed(path, found.first) is not None:
            return
        stored = read_file(path, ROWS_AT + len(rows))[ROWS_AT:]
        for at in range(0, len(stored) - ROW_SIZE + 1, ROW_SIZE):
            row = stored[at : at + ROW_SIZE]
            if row != rows[at : at + ROW_SIZE] and any(row):
                position = found.first + at // ROW_SIZE
                self._note(position, path, ROWS_AT + at, "the index row is not as it was written; reads make it from the segment")
                return

    def _end(self, found: Walk | None) -> None:
        report = self._report
        path, place = (found.segment.path, found.place) if found is not None else (segment_path(self._path, self._begin), 0)
        if report.end < report.durable and self._last is None:
            why = found.stop.value if found is not None else "no segment"
            self._damage(report.end + 1, path, place, f"{why}, and everything up to position {report.durable} was durable")
        elif report.newest > (self._firsts[-1] if self._firsts else 0):
            self._damage(report.end + 1, segment_path(self._path, report.newest), 0, "the segment is missing")
        elif found is not None and self._last is None and (lost := self._end_lost(found.first)) is not None:
            self._damage(report.end + 1, path, *lost)
        elif found is not None and found.stop is Stop.HEADER:
            self._note(report.end + 1, path, place, "a torn end: written and never synced; the next start cuts it")

    def _end_lost(self, first: int) -> tuple[int, str] | None:
        try:
            return end_lost(self._path, first, read_header(self._path, first).size)
        except Damaged:
            return None  # the header's damage was told

    def _damage(self, position: int, file: str, byte: int, what: str, *, derived: bool = False) -> None:
        if len(self._report.damage) < limits.FINDINGS_MAX:
            self._report.damage.append(Finding(position, self._offset(position), file, byte, what, derived))

    def _note(self, position: int, file: str, byte: int, what: str) -> None:
        if len(self._report.notes) < limits.FINDINGS_MAX:
            self._report.notes.append(Finding(position, self._offset(position), file, byte, what))

    def _offset(self, position: int) -> int:
        state = self._state
        return state.next_offset if state is not None and state.position + 1 == position else -1


def _same(snapshot: LogState, log: LogState) -> bool:
    """Whether a snapshot says what the log before it does. In a lane lines of producers leave when the ordered log forgets them, of
    which the lane says nothing: those that are there must be right.
    """
    if snapshot.removed.items() <= log.removed.items():
        # A release that did not note removed voters left a state without them, to which later ROSTERs add only their own.
        snapshot = msgspec.structs.replace(snapshot, removed=log.removed)
    if log.roster or snapshot == log:
        return snapshot == log
    known = {number: log.producers.get(number) for number in snapshot.producers}
    return known == snapshot.producers and msgspec.structs.replace(snapshot, producers=log.producers) == log
