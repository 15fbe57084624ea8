"""Where records are: index rows of all segments up to the frontier, whatever state their files are in.

Rows that no index gives (view.py) are made in memory from the frames themselves (the gateway died before it wrote them, the machine
was restarted, or an index file is damaged). A reader never writes.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from tutti import limits
from tutti.data.frames.frame import Kind
from tutti.errors import Damaged, OffsetOutOfRange, invariant
from tutti.log.files.layout import positions_named, segment_missing, segment_path, snapshot_path
from tutti.log.files.log_start import Start, read_start
from tutti.log.format.frame_iterator import Abort, abort_of
from tutti.log.format.index import Rows, Sealed, no_rows
from tutti.log.format.snapshot import read_snapshot
from tutti.log.format.staged_batches import batches_of, unfolded
from tutti.log.read.segment_view import Upto, View, ends_early, sealed_header
from tutti.log.read.splits import Range, cut_wide

_CHUNK = 65_536  # rows looked at together


class _Looked(NamedTuple):
    """Rows of a segment: those that its index gives and those that were made; where it is damaged; where what is behind it is, and
    the last VIEW before that (0: none).
    """

    trusted: Rows
    made: Rows
    damage: Damaged | None = None
    behind: Damaged | None = None
    view: int = 0


class _Behind(NamedTuple):
    """What stands behind a segment: ABORTs, the first damage, and the last VIEW before that (0: none)."""

    aborts: list[Abort]
    damage: Damaged | None = None
    view: int = 0


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
        self._offsets: dict[int, int] = {}  # of those whose index was not sealed when it was asked
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
        """Like `rows`; but rows before a damage are given with it. A damage in the segment before leaves those that are trusted.

        Behind a row that is made from its frame an ABORT may stand in what is damaged: whether it is void nobody knows.
        """
        looked = self._look(first, upto)
        return [part for part in (looked.trusted, looked.made) if len(part)], looked.damage

    def certain_rows(self, first: int, upto: Upto) -> tuple[list[Rows], Damaged | None]:
        """As `good_rows`, but for those of which nobody knows whether they are void: the damage that hides it is told instead.

        An ABORT voids nothing before the VIEW that it stands behind, and stands no further behind what it voids than frames can be
        undecided (design, 4.4).
        """
        looked = self._look(first, upto)
        made, damage = looked.made, looked.damage
        hides = damage or looked.behind
        if hides is not None and len(made):
            views = made["position"][(made["kind"] == Kind.VIEW) & (made["position"] < hides.position)]
            settled = max([looked.view, hides.position - limits.UNDECIDED_FRAMES_MAX - 1, *views[-1:].tolist()])
            known = made[made["position"] <= settled]
            if len(known) < len(made):
                made, damage = known, hides
        return [part for part in (looked.trusted, made) if len(part)], damage

    def _look(self, first: int, upto: Upto) -> _Looked:
        view, last = self.view(first), self.last_of(first, upto)
        if last < view.first:
            return _Looked(no_rows(), no_rows())
        rows = view.trusted(last, upto)
        if view.first + len(rows) > last:
            return _Looked(rows, no_rows())
        try:
            walked = view.walk(rows, last)
            if walked.position <= last and self.refresh():
                return self._look(first, upto)
            offset, tick = self._before(first, rows, upto)
            behind = self._behind(first, last, upto)
        except Damaged as error:
            return _Looked(rows, no_rows(), error)
        damage = None if walked.position > last else ends_early(view, walked)
        made = view.made(walked, walked.aborts(walked.headers()) + behind.aborts, offset, tick)
        return _Looked(rows, made, damage, behind.damage, 0 if damage else behind.view)

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

    def _behind(self, first: int, last: int, upto: Upto) -> _Behind:
        """What later segments say of batches up to position `last`: no more frames than that are ever undecided."""
        found = _Behind([])
        later = first
        while 0 < (later := self.after(later)) <= min(upto.position, last + limits.UNDECIDED_FRAMES_MAX):
            view, end = self.view(later), self.last_of(later, upto)
            rows = view.trusted(end, upto)
            aborts = [abort_of(view.frame(row)) for row in rows[rows["kind"] == Kind.ABORT]]
            views, damage = rows["position"][rows["kind"] == Kind.VIEW].tolist(), None
            if view.first + len(rows) <= end:
                walked = view.walk(rows, end)
                headers = walked.headers()
                aborts += walked.aborts(headers)
                views += headers["position"][headers["kind"] == Kind.VIEW].tolist()
                damage = None if walked.position > end else ends_early(view, walked)
            found = _Behind(
                found.aborts + aborts, found.damage or damage, found.view if found.damage else max([found.view, *views])
            )
        return found

    def base(self, first: int, upto: Upto) -> int:
        """Offset of the first record of a segment, or behind it."""
        found = self._offsets.get(first)
        if found is None:
            if (sealed := self.sealed(first)) is not None:
                return sealed.offset
            rows, _ = self.good_rows(first, upto)
            if not rows:  # nothing to look at yet, or damage before it, which is met first
                return 1 << 63
            found = self._offsets[first] = int(rows[0]["offset"][0])
        return found

    def holding(self, offset: int, upto: Upto) -> int:
        """The segment that holds an offset, or the last one below it; 0 if the log is empty."""
        firsts = self.firsts
        low, high = 0, bisect_right(firsts, upto.position)  # what begins behind it may go at any time
        while low < high:
            middle = (low + high) // 2
            if self.base(firsts[middle], upto) <= offset:
                low = middle + 1
            else:
                high = middle
        return firsts[max(low - 1, 0)] if firsts else 0

    def entry(self, offset: int, upto: Upto) -> int:
        """The segment in which who reads from an offset on begins; 0 if the log is empty.

        Raises:
            Damaged: what holds it is missing at the beginning of the log.
        """
        while True:
            first = self.holding(offset, upto)
            if not first or self.base(first, upto) <= offset:
                return first
            if not self.before(first):
                self.check_begin()
                return first
            # One that is before it came while the others were looked at.

    def cut_wide(self, start: int, end: int, split_bytes: int | None, splits: int | None, upto: Upto) -> list[Range] | None:
        """Cut a range over many segments where segments begin; None for one over few, or into parts of few.

        Segments take as many bytes as their files, of which some are looked at: most are of one size. Of the first the share of its
        records counts, and the last, which may be far from full, has as many bytes a record as the others.
        """
        borders = [self.holding(offset, upto) for offset in (start, end - 1)]
        firsts = self.firsts  # as they are now, for all that follows
        first, last = (bisect_left(firsts, border) for border in borders)
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
        first = self.entry(start, upto)
        if start < self.start.offset:
            raise trimmed(self.start)
        for view, parts in self.onward(first, upto, self.certain_rows):
            for part in parts:
                offsets = part["offset"]
                low = max(bisect_right(offsets, start) - 1, 0)
                high = bisect_left(offsets, end)
                for chunk in range(low, high, _CHUNK):
                    some = part[chunk : min(chunk + _CHUNK, high)]
                    some = some[(some["count"] > 0) & (some["offset"] + some["count"] > start)]
                    yield from self._visible(view, some, start, end, upto)
                if high < len(part) or int(offsets[-1]) + int(part["count"][-1]) >= end:
                    return

    def onward(
        self, first: int, upto: Upto, rows: Callable[[int, Upto], tuple[list[Rows], Damaged | None]] | None = None
    ) -> Iterator[tuple[View, list[Rows]]]:
        """The segments from one on, each with its rows (`good_rows`, or as `rows` gives them), of which the first follows the last
        of the one before, whatever files come and go meanwhile.

        Raises:
            Damaged: as `rows`, or a segment is missing, once everything before was given.
            OffsetOutOfRange: it was trimmed meanwhile.
        """
        while 0 < first <= upto.position:
            view = self.view(first)
            parts, damage = (rows or self.good_rows)(first, upto)
            yield view, parts
            if damage is not None:
                raise damage
            invariant(parts, f"a segment that begins with position {first} has none up to {upto.position}, and is not damaged")
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
                    if not segment:
                        self.check_begin()
                        raise trimmed(self.start)
                    if segment not in found:
                        found[segment] = self.certain_rows(segment, upto)
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
