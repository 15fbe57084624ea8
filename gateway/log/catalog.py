"""Where records are: index rows of all segments up to the frontier, whatever state their files are in.

A sealed index is taken as it is, after one look at its CRC. Of an unsealed one the rows that the live page vouches for are taken,
after one look at the CRC of each.
Rows that neither gives are made in memory from the frames themselves (the gateway died before it wrote them, the machine was
restarted, or an index file is damaged). A reader never writes.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from gateway.core import limits
from gateway.data.frame import Frame, Kind, check_payload
from gateway.errors import Damaged, OffsetOutOfRange
from gateway.log.index import ROWS_AT, Rows, Sealed, index_sealed, map_rows, no_rows, read_sealed, rows_good
from gateway.log.layout import FRAMES_AT, index_path, positions_named, read_header, segment_missing, segment_path, snapshot_path
from gateway.log.snapshot import newest_snapshot, read_snapshot, rows_before
from gateway.log.splits import Range, cut_wide
from gateway.log.start import Start, read_start
from gateway.log.storage import read_file
from gateway.log.transactions import batches_of, unfolded
from gateway.log.walk import Abort, SegmentMap, Walk, abort_of, walk

_CHUNK = 65_536  # rows looked at together


class Upto(NamedTuple):
    """How far to look: the frontier's position, and the position up to which the live page vouches for index rows (0: none)."""

    position: int
    indexed: int


class View:
    """One segment as a reader sees it."""

    def __init__(self, directory: str, first: int) -> None:
        """Map the segment; its index when it is asked for."""
        self.directory = directory
        self.first = first
        self.path = segment_path(directory, first)
        self.segment = SegmentMap(self.path, first)
        self._index = index_path(directory, first)
        self._sealed: Rows | None = None
        self._bad = False
        self._mapped = no_rows()
        self._checked = 0
        self._kept: Rows | None = None
        self._walked: Walk | None = None
        self._made: tuple[int, int, Rows] | None = None

    def trusted(self, last: int, upto: Upto) -> Rows:
        """The rows up to position `last` that need not be made."""
        count = last - self.first + 1
        if self._sealed is None and not self._bad:
            self._look_at_seal()
        if self._sealed is not None:
            return self._sealed[:count]
        vouched = 0 if self._bad else min(last, upto.indexed) - self.first + 1
        if vouched > len(self._mapped):
            found = map_rows(self._index)
            self._mapped = found[1] if found is not None else no_rows()
        if 0 < vouched <= len(self._mapped) and self._good(vouched):
            return self._mapped[:vouched]
        if self._kept is None:
            snapshot = newest_snapshot(self.directory, upto.position)
            kept = rows_before(self.directory, snapshot) if snapshot.segment == self.first else None
            self._kept = no_rows() if kept is None else kept
        return self._kept[:count]

    def _good(self, vouched: int) -> bool:
        """Whether the rows that the live page vouches for are as they were written: each is looked at once, while it is new."""
        if vouched > self._checked:
            new = self._mapped[self._checked : vouched]
            self._bad = new["position"][-1] != self.first + vouched - 1 or not rows_good(new)
            self._checked = 0 if self._bad else vouched
        return not self._bad

    def _look_at_seal(self) -> None:
        header = sealed_header(self.directory, self.first)
        if header is None:
            return
        mapped = map_rows(self._index)
        if mapped is not None and index_sealed(self._index, self.first) is not None:
            self._sealed = mapped[1][: header.rows]
        else:
            self._bad = True  # it was sealed and is damaged: nothing in it is believed

    def walk(self, rows: Rows, last: int) -> Walk:
        """The frames behind `rows` (the first of this segment) up to position `last`."""
        position = self.first + len(rows)
        found = self._walked
        if found is not None and found.first == position and found.position == last + 1:
            return found
        if len(rows):
            before = int(rows["place"][-1])
            place, chain = before + int(rows["size"][-1]), self.segment.frame(before).header_crc
        else:
            place, chain = FRAMES_AT, read_header(self.directory, self.first).chain
        self._walked = found = walk(self.segment, place, position, chain, last=last, bodies_from=last + 1)
        return found

    def made(self, walked: Walk, aborts: list[Abort], offset: int, tick: int) -> Rows:
        """Rows of the frames of a walk."""
        if self._made is not None and self._made[:2] == (walked.first, walked.position):
            return self._made[2]
        headers = walked.headers()
        rows = walked.rows(headers, aborts, offset, tick)
        self._made = (walked.first, walked.position, rows)
        return rows

    def frame(self, row: np.void) -> Frame:
        """The frame of a row, its payload checked; its body is a view of the segment.

        Raises:
            Damaged: another frame stands there, or the payload fails its CRC.
        """
        place, position = int(row["place"]), int(row["position"])
        self.segment.will_need(place, place + int(row["size"]))
        self.segment.populate(place, place + int(row["size"]))
        frame = self.segment.frame(place)
        if frame.position != position:
            raise Damaged(f"{self.path} holds position {frame.position} at byte {place} and not {position}")
        check_payload(frame, f"{self.path} at byte {place}")
        return frame


def sealed_header(directory: str, first: int) -> Sealed | None:
    """The header of a segment's index if it is sealed; its rows are another look."""
    try:
        return read_sealed(read_file(index_path(directory, first), ROWS_AT), first)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        return None  # what it says is made from the frames


class Catalog:
    """The rows of a log. Not thread-safe: its user holds a lock.

    A segment is known by its first position, never by its place among others: files come (the log grows, or is mended) and go (it
    is trimmed, or a disk loses one) between any two calls, and within one that looks again.

    Attributes:
        firsts: first positions of the segments that are there, in order; replaced and never changed.
        start: where the log begins, as the directory says.
        shortened: whether it was trimmed since it was opened.
    """

    def __init__(self, directory: str) -> None:
        """Look at the segments of a directory."""
        self.directory = directory
        self.firsts: list[int] = []
        self.start = Start()
        self.shortened = False
        self._views: OrderedDict[int, View] = OrderedDict()
        self._offsets: dict[int, int] = {}
        self._sealed: dict[int, Sealed] = {}  # headers: all of such a segment is decided, and stays as it is
        self.refresh()

    def refresh(self) -> bool:
        """Look for segments again; whether there are others than before."""
        there = positions_named(self.directory, "seg")
        self.start = read_start(self.directory)
        firsts = [first for first in there if first >= self.start.first]
        changed = firsts != self.firsts
        self.shortened |= bool(self.firsts) and self.firsts[0] < self.start.first
        self.firsts = firsts
        for kept in (self._sealed, self._offsets):
            for first in [first for first in kept if first < self.start.first]:
                del kept[first]
        return changed

    def renew(self) -> None:
        """Look for segments again, and map them anew: others may have come under the names of those that were not decided."""
        self._views.clear()
        self.refresh()

    def close(self) -> None:
        """Let mapped files go, as soon as nobody uses what they hold."""
        self._views.clear()

    def view(self, first: int) -> View:
        """The segment that begins with a position.

        Raises:
            Damaged: there is none.
            OffsetOutOfRange: it was trimmed.
        """
        view = self._views.get(first)
        if view is None:
            view = self._views[first] = self._opened(first)
            if len(self._views) > limits.SEGMENTS_MAPPED_MAX:
                self._views.popitem(last=False)
        self._views.move_to_end(first)
        return view

    def _opened(self, first: int) -> View:
        if self._has(first) or (self.refresh() and self._has(first)):
            with suppress(FileNotFoundError):
                return View(self.directory, first)
            self.refresh()
        if first < self.start.first:
            raise trimmed(self.start)
        raise segment_missing(self.directory, first, self.after(first))

    def _has(self, first: int) -> bool:
        return self.holding_position(first) == first

    def holding_position(self, position: int) -> int:
        """The segment that holds a position, if any does: the last that begins there or before; 0 where none does."""
        at = bisect_right(self.firsts, position)
        return self.firsts[at - 1] if at else 0

    def before(self, first: int) -> int:
        """The segment before one; 0 where there is none."""
        return self.holding_position(first - 1)

    def after(self, first: int) -> int:
        """The segment behind one; 0 where there is none."""
        at = bisect_right(self.firsts, first)
        return self.firsts[at] if at < len(self.firsts) else 0

    def check_begin(self) -> None:
        """To be asked by who comes to what stands before the first segment.

        Raises:
            Damaged: the first segment that there is begins later than the log does.
        """
        if self.firsts and self.firsts[0] > self.start.first:
            raise segment_missing(self.directory, self.start.first, self.firsts[0])

    def last_of(self, first: int, upto: Upto) -> int:
        """Last position of a segment that is to be looked at; below its first if there is none."""
        following = self.after(first)
        return min(upto.position, following - 1) if following else upto.position

    def rows(self, first: int, upto: Upto) -> list[Rows]:
        """The rows of a segment in order, in one part or two.

        Raises:
            Damaged: a frame that the log must hold is not good, and the index does not say what stood there.
        """
        found, damage = self.good_rows(first, upto)
        if damage is not None:
            raise damage
        return found

    def good_rows(self, first: int, upto: Upto) -> tuple[list[Rows], Damaged | None]:
        """Like `rows`; but rows before a damage are given with it. A damage in the segment before leaves those that are trusted."""
        view, last = self.view(first), self.last_of(first, upto)
        if last < view.first:
            return [], None
        rows = view.trusted(last, upto)
        if view.first + len(rows) > last:
            return [rows], None
        try:
            walked = view.walk(rows, last)
            if walked.position <= last and self.refresh():
                return self.good_rows(first, upto)
            offset, tick = self._before(first, rows, upto)
            aborts = walked.aborts(walked.headers()) + self._aborts_after(first, last, upto)
        except Damaged as error:
            return [part for part in (rows,) if len(part)], error
        damage = None
        if walked.position <= last:
            damage = Damaged(
                f"{view.path} has {walked.stop.value} at byte {walked.place}, where position {walked.position} must be: "
                f"see `tutti log verify {self.directory}`",
                walked.position,
            )
        made = view.made(walked, aborts, offset, tick)
        return [part for part in (rows, made) if len(part)], damage

    def _before(self, first: int, rows: Rows, upto: Upto) -> tuple[int, int]:
        """Next offset and last tick behind `rows`, the first of a segment."""
        if not len(rows):
            before = self.before(first)
            if not before:
                return self._before_all(first)
            rows = self.rows(before, upto)[-1]
        last = rows[-1]
        return int(last["offset"]) + int(last["count"]), int(last["tick"])

    def _before_all(self, first: int) -> tuple[int, int]:
        """The same where the log begins, as the snapshot there says; no more once it was trimmed further."""
        self.check_begin()
        if first == 1:
            return 0, 0
        snapshot = read_snapshot(self.directory, first)
        if snapshot is None:
            if first < self.start.first or self.refresh():
                raise trimmed(self.start)
            raise Damaged(
                f"the log in {self.directory} begins with position {first}, and its snapshot there is missing or damaged: restore "
                f"{snapshot_path(self.directory, first)}"
            )
        return snapshot.state.next_offset, snapshot.state.tick

    def _aborts_after(self, first: int, last: int, upto: Upto) -> list[Abort]:
        """ABORTs in later segments that may void batches up to position `last`: no more frames than that are ever undecided."""
        found: list[Abort] = []
        later = first
        while 0 < (later := self.after(later)) <= min(upto.position, last + limits.UNDECIDED_FRAMES_MAX):
            view, end = self.view(later), self.last_of(later, upto)
            rows = view.trusted(end, upto)
            found += [abort_of(view.frame(row)) for row in rows[rows["kind"] == Kind.ABORT]]
            if view.first + len(rows) <= end:
                walked = view.walk(rows, end)
                found += walked.aborts(walked.headers())
        return found

    def base(self, first: int, upto: Upto) -> int:
        """Offset of the first record of a segment, or behind it."""
        found = self._offsets.get(first)
        if found is None:
            sealed = sealed_header(self.directory, first)
            if sealed is not None:
                found = sealed.offset
            else:
                rows, _ = self.good_rows(first, upto)
                if not rows:  # nothing to look at yet, or damage before it, which is met first
                    return 1 << 63
                found = int(rows[0]["offset"][0])
            self._offsets[first] = found
        return found

    def holding(self, offset: int, upto: Upto) -> int:
        """The segment that holds an offset, or the last one below it; 0 if the log is empty."""
        firsts = self.firsts
        low, high = 0, len(firsts)
        while low < high:
            middle = (low + high) // 2
            if self.base(firsts[middle], upto) <= offset:
                low = middle + 1
            else:
                high = middle
        return firsts[max(low - 1, 0)] if firsts else 0

    def cut_wide(self, start: int, end: int, split_bytes: int | None, splits: int | None, upto: Upto) -> list[Range] | None:
        """Cut a range over many segments where segments begin; None for one over few, or into parts of few.

        Segments take as many bytes as their files, of which some are looked at: most are of one size. Of the first the share of its
        records counts, and the last, which may be far from full, has as many bytes a record as the others.
        """
        firsts = self.firsts
        first, last = (bisect_left(firsts, self.holding(offset, upto)) for offset in (start, end - 1))
        count = last - first
        if count < limits.PLAN_SEGMENTS_MAX:
            return None
        step = -(-count // limits.PLAN_SEGMENTS_WEIGHED_MAX)
        some = [os.stat(segment_path(self.directory, position)).st_size for position in firsts[first:last:step]]
        sizes = np.append(np.repeat(np.asarray(some, np.int64), step)[:count], 0)
        low, second, high = (self.base(firsts[at], upto) for at in (first, first + 1, last))
        sizes[-1] = int(sizes.sum()) * max(end - high, 0) // max(high - low, 1)
        sizes[0] = int(sizes[0]) * max(second - start, 0) // max(second - low, 1)
        return cut_wide(start, end, sizes, lambda at: self.base(firsts[first + at], upto), split_bytes, splits)

    def batches(self, start: int, end: int, upto: Upto) -> Iterator[tuple[View, Rows]]:
        """Rows of the batches that have records in [start, end), in order, some at a time.

        Raises:
            Damaged: as `rows`, once everything before the damage was given.
            OffsetOutOfRange: records of it are gone, trimmed meanwhile.
        """
        first = self.holding(start, upto)
        if first and not self.before(first):
            if start < self.start.offset:
                raise trimmed(self.start)
            if self.base(first, upto) > start:
                self.check_begin()
        for view, parts in self.onward(first, upto):
            for part in parts:
                offsets = part["offset"]
                low = max(bisect_right(offsets, start) - 1, 0)
                high = bisect_left(offsets, end)
                for chunk in range(low, high, _CHUNK):
                    some = part[chunk : min(chunk + _CHUNK, high)]
                    some = some[(some["count"] > 0) & (some["offset"] + some["count"] > start)]
                    yield from self._visible(view, some, start, end, upto)
                if high < len(part):
                    return

    def onward(self, first: int, upto: Upto) -> Iterator[tuple[View, list[Rows]]]:
        """The segments from one on, each with its rows, of which the first follows the last of the one before, whatever files come
        and go meanwhile.

        Raises:
            Damaged: as `rows`, or a segment is missing, once everything before was given.
            OffsetOutOfRange: it was trimmed meanwhile.
        """
        while 0 < first <= upto.position:
            view = self.view(first)
            parts, damage = self.good_rows(first, upto)
            yield view, parts
            if damage is not None:
                raise damage
            first += sum(map(len, parts))

    def _visible(self, view: View, rows: Rows, start: int, end: int, upto: Upto) -> Iterator[tuple[View, Rows]]:
        """The rows, those of the batches of a TXN in its place; as many together as stand in one segment."""
        if not (txns := np.flatnonzero(rows["kind"] == Kind.TXN).tolist()):
            yield view, rows
            return
        where, held = view, list[Rows]()
        found: dict[int, tuple[list[Rows], Damaged | None]] = {}
        done = 0
        for at in [*txns, len(rows)]:
            some = [(view, rows[done:at])]
            if at < len(rows):
                for segment, part in unfolded(view.frame(rows[at]), rows[at], self.firsts):
                    if segment not in found:
                        found[segment] = self.good_rows(segment, upto)
                    batches = batches_of(found[segment], segment, part)
                    inside = (batches["offset"] < end) & (batches["offset"] + batches["count"] > start)
                    some.append((self.view(segment), batches[inside]))
            for here, piece in some:
                if not len(piece):
                    continue
                if held and here is not where:
                    yield where, np.concatenate(held)
                    held = []
                where = here
                held.append(piece)
            done = at + 1
        if held:
            yield where, np.concatenate(held)

    def sealed(self, first: int) -> Sealed | None:
        """The header of a segment's index if it is sealed, which is read once."""
        found = self._sealed.get(first)
        if found is None:
            found = sealed_header(self.directory, first)
            if found is not None:
                self._sealed[first] = found
        return found

    def at_time(self, view: View, row: np.void, time_us: int, upto: Upto) -> tuple[View, np.void]:
        """Of a row that has a record at or after a time, the batch that has the first one, and its segment."""
        for where, rows in self._visible(view, np.array([row]), 0, 1 << 63, upto):
            hits = np.flatnonzero(rows["max_timestamp"] >= time_us)
            if len(hits):
                return where, rows[hits[0]]
        raise Damaged(f"{view.path}: position {row['position']} has no record as late as the index says")

    def positions(self, start: int, last: int, upto: Upto) -> Iterator[tuple[View, Rows]]:
        """Rows of the positions `start` to `last`, whatever they are, in order, some at a time.

        Raises:
            Damaged: as `rows`, once everything before the damage was given.
            OffsetOutOfRange: positions of it are gone, trimmed meanwhile.
        """
        if 1 <= start < self.start.first <= last:
            raise trimmed(self.start)
        first = self.holding_position(start)
        if not first:
            first = self.after(start)
            if last >= start:
                self.check_begin()
        if first > last:
            return
        for view, parts in self.onward(first, upto):
            for part in parts:
                at = int(part["position"][0])
                for chunk in range(max(start - at, 0), min(last + 1 - at, len(part)), _CHUNK):
                    yield view, part[chunk : min(chunk + _CHUNK, last + 1 - at)]
            if view.first + sum(map(len, parts)) > last:
                return


def trimmed(start: Start) -> OffsetOutOfRange:
    """The error of a reader that comes to what is no longer there."""
    return OffsetOutOfRange(f"the log begins at offset {start.offset}, and what lay below was removed: begin there or later")
