"""What a start finds on the disk (design, section 6): the log as far as it is good, and what kind of end it has.

The newest good mark says how far earlier syncs reached. A log that ends at or above it ends there, whatever stands behind: that was
written and not synced in time, it is *torn*, and is cut. A log that ends below it has lost what was durable: that is *damage*, and
nothing is changed. The two are told apart by the mark alone.

Damage in a log that other gateways vote on is not the end: they may hold what is lost, and the group learns of it
(`Recovered.damage`). Where it was decided already, the start goes back to an earlier watermark, before it, and learns again what is
decided; only what the mark names counts as having been there. A bad header of a segment is made again, in a lane
too, which has no roster. In a log of one gateway, and where the mark does not reach what was decided, it is for a person to look
at.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tutti.data.frames.bodies import RosterBody, Voter, decode_body
from tutti.data.frames.frame import HEADER_SIZE, TERMINATOR, Kind
from tutti.data.hard_state import Scalars
from tutti.data.log_state import LogState
from tutti.errors import Damaged, InvariantViolated, WrongDirectory
from tutti.log.files.layout import (
    FRAMES_AT,
    LOG,
    MARK_SLOTS,
    SegmentHeader,
    check_begin,
    positions_named,
    read_header,
    remove_before,
    segment_path,
    snapshot_path,
)
from tutti.log.files.log_directory import Home
from tutti.log.files.log_start import read_start
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import SegmentMap, Walk, voided, walk
from tutti.log.format.hard_state import Stored, check_kept, read_scalars
from tutti.log.format.header_repair import mend_headers
from tutti.log.format.index import Rows, no_rows
from tutti.log.format.snapshot import Snapshot, beginning, newest_snapshot, rows_before
from tutti.log.format.vote_mark import Mark, check_end, newest_mark, or_repair, segment_marks
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.log.write.durable_tail import moved_on


@dataclass(slots=True)
class FoundSegment:
    """A segment that holds undecided frames, or is the last.

    Attributes:
        first: its first position.
        rows: index rows of its decided frames.
        undecided: places of the others.
        place: where the next frame goes, or where the frames end.
    """

    first: int
    rows: Rows
    undecided: array[int]
    place: int


@dataclass(slots=True)
class Found:
    """All that the writer starts from.

    Attributes:
        recovered: what the stack starts from.
        stored: the scalars; None on a new disk.
        mark: the newest mark.
        state: the decided log, the writer's own copy.
        base: the snapshot that it was made from.
        end: position, view and chain of the last frame.
        view: view of the last decided frame.
        segments: those that hold undecided frames, and the last.
        finished: segments that were walked and whose every position is decided: first position and rows.
        boundaries: the snapshots of the starts of segments that the decided log passed on the way.
        later: first positions of the segments behind a damage, which do not go on from the end.
        shown: up to where the run before showed it as decided, where that is behind the end of a log that heals; else 0.
    """

    recovered: Recovered
    stored: Stored | None
    mark: Mark
    state: LogState
    base: Snapshot
    end: tuple[int, int, int]
    view: int = 0
    segments: list[FoundSegment] = field(default_factory=list)
    finished: list[tuple[int, Rows]] = field(default_factory=list)
    boundaries: list[Snapshot] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    shown: int = 0


@dataclass(slots=True)
class _Ending:
    """Where the walk over all segments ended: its last good position, the chain there, and segments that do not go on from it."""

    walks: list[Walk]
    position: int
    chain: int
    later: list[int]


def recover(directory: str, storage: Storage, options: LogOptions, *, log: bytes, live: tuple[int, int], failed: bool) -> Found:
    """Find the log's end, cut what is torn, and make the tail durable. Behind a damage that the group may heal nothing is changed.

    Args:
        directory: of the gateway, locked by the caller.
        log: uuid that the directory is known to hold, empty if none is known.
        live: frontier (position, offset) that the run before showed, if that was under this boot; else zeros.
        failed: whether that run may have ended with a failed sync: what is not surely durable is then written again.

    Raises:
        Damaged: something durable is damaged or gone; nothing was changed.
        WrongDirectory: the segments belong to another log, or something was written by a newer release.
    """
    remove_before(directory, storage, read_start(directory).first)  # what a trim did not come to
    stored = read_scalars(directory)
    firsts = positions_named(directory, "seg")
    check_kept(directory, stored, firsts, log.hex())
    if stored is None or not firsts:
        return _blank(stored)
    check_begin(directory, firsts)
    mark = newest_mark(directory, stored.mark, firsts)
    frontier = max(mark.frontier_position, live[0])
    base = _base(directory, firsts[-1], frontier)
    if options.lane or _several(base.state.roster.values()):
        mend_headers(directory, storage, [first for first in firsts if first >= base.segment], base, options.lane or base.state.log)
    short = check_end(directory, firsts, stored.segment, heals=True)
    if base.segment < firsts[0]:
        raise Damaged(f"{snapshot_path(directory, firsts[0])}, with which the log begins, is missing or damaged: restore it")
    header = _check_segments(directory, firsts, base, log)
    ending = _go_along(directory, firsts, base, frontier)
    shown = 0
    if options.heals and 0 < ending.position < frontier:
        shown, frontier = frontier, ending.position  # no ABORT in a lane reaches back
    elif ending.position < frontier <= mark.position and _others_vote(base, ending, frontier):
        frontier, base, ending = _step_back(directory, firsts, stored.mark, (frontier, base, ending))
    # Whatever was decided was durable before, and so was the first frame when the log's uuid was written down.
    damage = _check_durable(directory, base, ending, mark, max(frontier, 1 if log else 0), options.heals, short)
    if damage is not None:
        mark = moved_on(directory, firsts[-1], mark)
        damage = Damage(damage.first, mark.position, mark.view, mark.chain)
    elif short is None:
        _check_later(directory, ending, mark)
    elif not options.heals or ending.later:
        raise short
    if failed:
        _write_again(storage, ending, mark.position)
    if ending.walks:
        _write_marks_again(storage, ending.walks[-1].segment)
    if damage is None and short is None:
        _cut(directory, storage, ending)
    _make_durable(directory, storage, ending)
    if not ending.position:  # the first segment was begun, and the power went before anything was durable in it
        _remove(directory, storage, 0)
        return _blank(stored)
    found = _result(directory, stored, mark, base, ending, frontier, header.log)
    found.shown = shown
    if short is not None and damage is None:
        damage = Damage(ending.position + 1, *found.end)  # all that a mark names is here; what stood behind it is not known
    if damage is not None:
        found.recovered = msgspec.structs.replace(found.recovered, damage=damage)
        found.later = ending.later
    return found


def _blank(stored: Stored | None) -> Found:
    scalars, mark = (stored.scalars, stored.mark) if stored is not None else (Scalars(), Mark())
    return Found(Recovered(b"", scalars, LogState(), ()), stored, mark, LogState(), beginning(), (0, 0, 0))


def _base(directory: str, last: int, frontier: int) -> Snapshot:
    """The snapshot to start from: one within a segment only if the index rows before it are as they were, and in the last segment
    (its first position) only if the file was not cut short before it.
    """
    found = newest_snapshot(directory, frontier)
    there = found.segment != last or found.place <= os.path.getsize(segment_path(directory, last))
    if there and rows_before(directory, found) is not None:
        return found
    return newest_snapshot(directory, frontier, starts_only=True)


def _check_segments(directory: str, firsts: list[int], base: Snapshot, log: bytes) -> SegmentHeader:
    if base.segment not in firsts:
        path = segment_path(directory, base.segment)
        raise Damaged(f"segment {path} is missing: restore it, {or_repair(directory)}")
    header = read_header(directory, firsts[-1])
    if log and header.log != log:
        raise WrongDirectory(
            f"data directory {directory} is that of log {log.hex()} and its segments are of log {header.log.hex()}: "
            "put the files of one log together"
        )
    return header


_Begin = tuple[int, Snapshot, _Ending]  # a frontier, the snapshot to start from, and where the log behind that ends


def _step_back(directory: str, firsts: list[int], stored: Mark, begin: _Begin) -> _Begin:
    """Begin at an earlier watermark than the one that cannot be reached: one before the damage. Any other place will not do, as a
    batch before it might be void by an ABORT behind it. Where there is none, all stays as it was.
    """
    frontier, base, ending = begin
    marks = [stored, *(mark for first in reversed(firsts) for mark in segment_marks(directory, first) if mark is not None)]
    stops = sorted({mark.frontier_position for mark in marks} | ({0} if firsts[0] == 1 else set()), reverse=True)
    for stop in stops:
        if stop >= frontier or stop > ending.position:
            continue
        base = _base(directory, firsts[-1], stop)
        if base.segment < firsts[0]:
            break
        frontier, ending = stop, _go_along(directory, firsts, base, stop, stop + limits.REQUEST_ROOM_FRAMES)
        if ending.position >= frontier:
            return frontier, base, ending
    return begin


def _go_along(directory: str, firsts: list[int], base: Snapshot, frontier: int, last: int | None = None) -> _Ending:
    walks: list[Walk] = []
    position, chain, place = base.position, base.state.chain, base.place
    firsts = [first for first in firsts if first >= base.segment]
    for at, first in enumerate(firsts):
        header = read_header(directory, first)
        if (at or position == first) and (first != position or header.chain != chain):
            return _Ending(walks, position - 1, chain, firsts[at:])
        segment = SegmentMap(segment_path(directory, first), first)
        found = walk(segment, place, position, chain, last=last, bodies_from=frontier + 1)
        walks.append(found)
        position, chain, place = found.position, found.chain, FRAMES_AT
    return _Ending(walks, position - 1, chain, [])


def _check_durable(
    directory: str, base: Snapshot, ending: _Ending, mark: Mark, decided: int, heals: bool, short: Damaged | None
) -> Damage | None:
    """The log must reach to position `decided`, and to the mark unless others may hold what is missing; and hold the frame that the
    mark names. `short`: the error to raise where the last segment's file was cut short.
    """
    if ending.position < decided:
        raise short or _damage(directory, base, ending, max(decided, mark.position))
    if ending.position < mark.position:
        if not ending.walks or not ((heals and ending.position) or _others_vote(base, ending, decided)):
            raise short or _damage(directory, base, ending, mark.position)
        return Damage(ending.position + 1, mark.position, mark.view, mark.chain)
    chain = base.state.chain if mark.position == base.state.position else None
    for found in ending.walks:
        if found.first <= mark.position < found.position:
            chain = found.frame(mark.position).header_crc
    if chain is not None and chain != mark.chain:
        raise Damaged(
            f"the log in {directory} holds another frame at position {mark.position} (chain {chain:#010x}) than the one that was "
            f"made durable (chain {mark.chain:#010x}): files of different logs or times were mixed; restore them"
        )
    return None


def _others_vote(base: Snapshot, ending: _Ending, decided: int) -> bool:
    """Whether the last decided roster, or any behind it, names more than one gateway that votes."""
    rosters: list[Iterable[Voter]] = [base.state.roster.values()]
    for found in ending.walks:
        headers = found.headers()
        for position in headers["position"][headers["kind"] == Kind.ROSTER].tolist():
            if position <= decided:
                rosters.clear()
            rosters.append(decode_body(RosterBody, found.frame(position).body).voters)
    return any(map(_several, rosters))


def forgot(recovered: Recovered, directory: Home) -> bool:
    """Whether others may rely on what this directory does not know: it is a copy, or its log has a view that this disk accepted and
    its scalars, of an earlier time, say nothing of it. A gateway alone has nobody who does.
    """
    state, mine = recovered.state, directory.incarnation
    older = state.gateway_number(mine) in state.members and state.view > recovered.scalars.accepted
    return (directory.copied or older) and _others_vote_in(recovered, mine)


def _others_vote_in(recovered: Recovered, mine: bytes) -> bool:
    """True if the log that a start found names more than one gateway that votes, or removed this disk, whose answers the voters may
    still need. Without a log it is not known, and may be so.
    """
    if any(voter.incarnation == mine for voter in recovered.state.removed.values()):
        return True
    rosters: list[Iterable[Voter]] = [recovered.state.roster.values()] if recovered.state.roster else []
    rosters += [decode_body(RosterBody, frame.body).voters for frame in recovered.tail if frame.kind == Kind.ROSTER]
    return not rosters or any(map(_several, rosters))


def _several(roster: Iterable[Voter]) -> bool:
    return sum(voter.voting for voter in roster) > 1


def _damage(directory: str, base: Snapshot, ending: _Ending, durable: int) -> Damaged:
    position = ending.position + 1
    offset = base.state.next_offset
    aborts = []
    for found in ending.walks:
        aborts += found.aborts(found.headers())
    for found in ending.walks:
        offset += int(found.rows(found.headers(), aborts, 0, 0)["count"].sum())
    if ending.walks:
        path, place, why = ending.walks[-1].segment.path, ending.walks[-1].place, ending.walks[-1].stop.value
    else:
        path, place, why = segment_path(directory, base.segment), 0, "another chain in the header"
    return Damaged(
        f"the log is damaged at position {position} (offset {offset}): {path} has {why} at byte {place}, and everything up to "
        f"position {durable} was durable. Nothing was changed. Restore the file, {or_repair(directory)}"
    )


def _check_later(directory: str, ending: _Ending, mark: Mark) -> None:
    """A segment is begun only when everything before it is durable. One that does not go on from the end is left over from a repair
    that lowered the mark after the segment was begun and did not come to remove it; or else the log is damaged before it.
    """
    for first in ending.later:
        newest = max((found.sequence for found in segment_marks(directory, first) if found is not None), default=None)
        if newest is None or newest >= mark.sequence:
            raise Damaged(
                f"the log ends at position {ending.position} and segment {segment_path(directory, first)} goes on elsewhere: "
                f"restore what is missing between, {or_repair(directory)}"
            )


def _write_again(storage: Storage, ending: _Ending, durable: int) -> None:
    """After a failed sync the page cache may show what the disk does not hold, and call it clean."""
    for found in ending.walks:
        if found.position - 1 <= durable:
            continue
        start = found.places[max(0, durable + 1 - found.first)]
        fd = storage.open(found.segment.path)
        try:
            storage.write(fd, [bytes(found.segment.view[start : found.place])], start)
        finally:
            storage.close(fd)


def _write_marks_again(storage: Storage, segment: SegmentMap) -> None:
    """The slot written next is the one without the newest mark, which must then be on the disk and not in the page cache alone."""
    fd = storage.open(segment.path)
    try:
        storage.write(fd, [bytes(segment.view[MARK_SLOTS[0] : FRAMES_AT])], MARK_SLOTS[0])
    finally:
        storage.close(fd)


def _cut(directory: str, storage: Storage, ending: _Ending) -> None:
    """Make the end an end: later segments away, an invalid header at the next place."""
    _remove(directory, storage, ending.position + 1, ending.later)
    for found in ending.walks[-1:]:
        fd = storage.open(found.segment.path)
        try:
            fits = found.place + HEADER_SIZE <= read_header(directory, found.segment.first).size
            if fits and storage.read(fd, HEADER_SIZE, found.place) != TERMINATOR:
                storage.write(fd, [TERMINATOR], found.place)
        finally:
            storage.close(fd)


def _make_durable(directory: str, storage: Storage, ending: _Ending) -> None:
    """All that was found, with the segments' names: a run that was killed may not have come to it."""
    for found in ending.walks:
        fd = storage.open(found.segment.path)
        try:
            storage.make_durable(fd)
        finally:
            storage.close(fd)
    storage.make_names_durable(os.path.join(directory, LOG))


def _remove(directory: str, storage: Storage, above: int, also: Sequence[int] = ()) -> None:
    """Remove segments, indexes and snapshots that begin above a position, and those of the segments `also`."""
    removed = False
    for kind in ("snap", "idx", "seg"):
        for position in reversed(positions_named(directory, kind)):
            if position > above or position in also:
                storage.remove(os.path.join(directory, LOG, f"{position:020d}.{kind}"))
                removed = True
    if removed:
        storage.make_names_durable(os.path.join(directory, LOG))


def _result(directory: str, stored: Stored, mark: Mark, base: Snapshot, ending: _Ending, frontier: int, log: bytes) -> Found:
    state = base.state.copy()
    rows = rows_before(directory, base)
    if rows is None:
        raise InvariantViolated(f"the index rows before position {base.position} changed during the start")
    headers = [found.headers() for found in ending.walks]
    aborts = [
        abort
        for found, some in zip(ending.walks, headers, strict=True)
        for abort in found.aborts(some[: _decided(found, frontier)])
    ]
    segments, finished, boundaries, tail = [], [], [], []
    view = decided_view = mark.view if mark.position == base.state.position else base.state.view
    for found, some in zip(ending.walks, headers, strict=True):
        decided = _decided(found, frontier)
        if found.first == found.segment.first == state.position + 1 != base.position:
            boundaries.append(Snapshot(state.copy(), found.first, FRAMES_AT, 0))
        rows = np.append(rows, found.rows(some[:decided], aborts, state.next_offset, state.tick))
        void = voided(some[:decided], aborts)
        for position in range(found.first, found.first + decided):
            state.apply(found.frame(position), position in void)
        tail += [found.frame(position) for position in range(found.first + decided, found.position)]
        if found is not ending.walks[-1] and decided == len(found.places):
            finished.append((found.segment.first, rows))
        else:
            segments.append(FoundSegment(found.segment.first, rows, found.places[decided:], found.place))
        rows = no_rows()
        if len(some):
            view = int(some["view"][-1])
        if decided:
            decided_view = int(some["view"][decided - 1])
    recovered = Recovered(log, stored.scalars, state, tuple(tail))
    end = (ending.position, view, ending.chain)
    return Found(recovered, stored, mark, state.copy(), base, end, decided_view, segments, finished, boundaries)


def _decided(found: Walk, frontier: int) -> int:
    return min(max(frontier - found.first + 1, 0), len(found.places))
