"""Catalog: returns the index rows of all segments up to the frontier, even if index files are missing or corrupt.

An index row is missing if the gateway or the host crashed before the row was written, or if the index file is corrupt. The catalog
rebuilds a missing row from its frame, in memory. A reader never writes to a file.
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
from tutti.log.files.layout import list_positions, segment_missing, segment_path, snapshot_path
from tutti.log.files.log_start import LogStart, read_start
from tutti.log.format.frame_iterator import Abort, decode_abort
from tutti.log.format.index import Rows, Sealed, no_rows
from tutti.log.format.snapshot import read_snapshot
from tutti.log.format.transaction_rows import txn_parts, visible_rows
from tutti.log.read.segment_view import ReadLimit, SegmentView, sealed_header, segment_too_short
from tutti.log.read.splits import Range, split_at_segments

_CHUNK = 65_536  # maximum number of rows that an iterator yields at once


class _SegmentRows(NamedTuple):
    """Rows of a segment, and the corruption that affects them.

    Attributes:
        trusted: rows from the index of the segment.
        rebuilt: rows that were rebuilt from frames, whose positions follow the positions of `trusted`.
        damage: first corruption in the segment, or None.
        later_damage: first corruption in later segments, or None.
        view: position of the last VIEW frame in later segments before `later_damage`; 0 without a VIEW frame.
    """

    trusted: Rows
    rebuilt: Rows
    damage: Damaged | None = None
    later_damage: Damaged | None = None
    view: int = 0


class _LaterFrames(NamedTuple):
    """Frames in later segments that decide which batches of a segment are void.

    Attributes:
        aborts: the readable ABORT frames in later segments.
        damage: the first corruption in later segments, or None.
        view: position of the last VIEW frame before the corruption; 0 without a VIEW frame.
    """

    aborts: list[Abort]
    damage: Damaged | None = None
    view: int = 0


class Catalog:
    """Returns the index rows of a log. Not thread-safe: callers must hold a lock.

    Methods identify a segment by its first position and not by an index into the list of segments, because the list can change at
    each refresh: files appear (growth, repair) and disappear (trim, loss).

    Attributes:
        firsts: first positions of the existing segments, in order. A refresh creates a new list and never modifies the old list.
        start: start of the log, as stored in the directory.
        shortened: True if a trim has removed segments after the catalog was opened.
    """

    def __init__(self, directory: str) -> None:
        """List the segments of a directory."""
        self.directory = directory
        self.firsts: list[int] = []
        self.start = LogStart()
        self.shortened = False
        self._views: OrderedDict[int, SegmentView] = OrderedDict()
        self._offsets: dict[int, int] = {}  # maps the first position of a segment without a sealed index to its first offset
        self._sealed: dict[int, Sealed] = {}  # maps the first position of a segment to the header of its sealed index
        self.refresh()

    def refresh(self) -> bool:
        """List the segments again. Return True if the list changed."""
        existing = list_positions(self.directory, "seg")
        # The start is read after the listing, because a trim first moves the start and then removes files.
        self.start = read_start(self.directory)
        firsts = [first for first in existing if first >= self.start.first]
        changed = firsts != self.firsts
        self.shortened |= bool(self.firsts) and self.firsts[0] < self.start.first
        self.firsts = firsts
        for cache in (self._sealed, self._offsets):
            for first in [first for first in cache if first < self.start.first]:
                del cache[first]
        return changed

    def remap(self) -> None:
        """List and map the segments again, because new files can have the names of segments that had no decided frames."""
        self._views.clear()
        self.refresh()

    def close(self) -> None:
        """Release the mapped files. A mapping that a returned batch uses stays alive until the batch is deleted."""
        self._views.clear()

    def view(self, first: int) -> SegmentView:
        """Return the mapped segment with first position `first`.

        Raises:
            Damaged: the segment is missing.
            OffsetOutOfRange: the segment was trimmed.
        """
        view = self._views.get(first)
        if view is None:
            view = self._views[first] = self._opened(first)
            if len(self._views) > limits.SEGMENTS_MAPPED_MAX:
                # The least recently used view is dropped. Its mapping stays alive if a returned batch uses the mapping.
                self._views.popitem(last=False)
        self._views.move_to_end(first)
        return view

    def _opened(self, first: int) -> SegmentView:
        # The list of segments is refreshed if it lacks a new file, or if a trim has removed a listed file.
        if self._has(first) or (self.refresh() and self._has(first)):
            with suppress(FileNotFoundError):
                return SegmentView(self.directory, first)
            self.refresh()
        if first < self.start.first:
            raise trimmed_error(self.start)
        raise segment_missing(self.directory, first, self.after(first))

    def _has(self, first: int) -> bool:
        return self.holding_position(first) == first

    def holding_position(self, position: int) -> int:
        """Return the segment that can hold `position`: the last one that begins at or before it; 0 if no segment does."""
        at = bisect_right(self.firsts, position)
        return self.firsts[at - 1] if at else 0

    def before(self, first: int) -> int:
        """Return the first position of the previous segment; 0 for the first segment."""
        return self.holding_position(first - 1)

    def after(self, first: int) -> int:
        """Return the first position of the next segment; 0 for the last segment."""
        at = bisect_right(self.firsts, first)
        return self.firsts[at] if at < len(self.firsts) else 0

    def check_begin(self) -> None:
        """Check that the first segment of the log exists. Callers use this check when a search has reached the start of the log.

        Raises:
            Damaged: the first existing segment begins after the start of the log.
        """
        if self.firsts and self.firsts[0] > self.start.first:
            raise segment_missing(self.directory, self.start.first, self.firsts[0])

    def last_of(self, first: int, upto: ReadLimit) -> int:
        """Return the last decided position of a segment. If no frame of the segment is decided, the result is below `first`."""
        following = self.after(first)
        return min(upto.position, following - 1) if following else upto.position

    def rows(self, first: int, upto: ReadLimit) -> list[Rows]:
        """Return the rows of all decided frames of a segment, in order, as a list of up to two arrays.

        Raises:
            Damaged: a decided frame is corrupt, and the index does not have the row of the frame.
        """
        found, damage = self.readable_rows(first, upto)
        if damage is not None:
            raise damage
        return found

    def readable_rows(self, first: int, upto: ReadLimit) -> tuple[list[Rows], Damaged | None]:
        """Return the rows of the decided frames before the first corruption in a segment, and this corruption or None.

        Corrupt frames may include an ABORT, so a rebuilt row before the corruption may describe a void batch as visible.
        """
        loaded = self._load(first, upto)
        return [part for part in (loaded.trusted, loaded.rebuilt) if len(part)], loaded.damage

    def certain_rows(self, first: int, upto: ReadLimit) -> tuple[list[Rows], Damaged | None]:
        """Return the rows of `readable_rows`, without rows of batches that an unreadable ABORT may have voided.

        If rows are left out, also return the corruption that may include this ABORT. An ABORT voids only batches after the last
        VIEW frame before the ABORT, within the limit of undecided frames (design, 4.4).
        """
        loaded = self._load(first, upto)
        rebuilt, damage = loaded.rebuilt, loaded.damage
        hiding = damage or loaded.later_damage
        if hiding is not None and len(rebuilt):
            views = rebuilt["position"][(rebuilt["kind"] == Kind.VIEW) & (rebuilt["position"] < hiding.position)]
            # An ABORT in the corrupt part can void only batches after this position, so earlier rows are certain.
            settled = max([loaded.view, hiding.position - limits.UNDECIDED_FRAMES_MAX - 1, *views[-1:].tolist()])
            known = rebuilt[rebuilt["position"] <= settled]
            if len(known) < len(rebuilt):
                rebuilt, damage = known, hiding
        return [part for part in (loaded.trusted, rebuilt) if len(part)], damage

    def _load(self, first: int, upto: ReadLimit) -> _SegmentRows:
        view, last = self.view(first), self.last_of(first, upto)
        if last < view.first:
            return _SegmentRows(no_rows(), no_rows())
        rows = view.trusted_rows(last, upto)
        # If the index has all rows, as usual, no frame must be scanned.
        if view.first + len(rows) > last:
            return _SegmentRows(rows, no_rows())
        try:
            walked = view.scan(rows, last)
            # `last` is too high if the gateway has begun a new segment after the list of segments was read.
            if walked.position <= last and self.refresh():
                return self._load(first, upto)
            offset, tick = self._before(first, rows, upto)
            # The rebuilt rows depend on later segments, because an ABORT in a later segment can void batches of this segment.
            later = self._scan_later(first, last, upto)
        except Damaged as error:
            return _SegmentRows(rows, no_rows(), error)
        damage = None if walked.position > last else segment_too_short(view, walked)
        rebuilt = view.rebuild_rows(walked, walked.aborts(walked.headers()) + later.aborts, offset, tick)
        return _SegmentRows(rows, rebuilt, damage, later.damage, 0 if damage else later.view)

    def _before(self, first: int, rows: Rows, upto: ReadLimit) -> tuple[int, int]:
        """Return the offset after the last record in `rows`, the first rows of a segment, and the number of the last tick there."""
        if not len(rows):
            before = self.before(first)
            if not before:
                return self._before_all(first)
            rows = self.rows(before, upto)[-1]
        last = rows[-1]
        return int(last["offset"]) + int(last["count"]), int(last["tick"])

    def _before_all(self, first: int) -> tuple[int, int]:
        """Return the first offset and the last tick before the first segment of the log, from the snapshot of this segment's start.

        Raises:
            OffsetOutOfRange: a trim has moved the start of the log.
            Damaged: the snapshot is missing or corrupt.
        """
        self.check_begin()
        if first == 1:
            return 0, 0
        snapshot = read_snapshot(self.directory, first)
        if snapshot is None:
            # The snapshot is not corrupt or missing if a trim has removed it after the segments were listed.
            if first < self.start.first or self.refresh():
                raise trimmed_error(self.start)
            raise Damaged(
                f"the log in {self.directory} begins with position {first}, but its snapshot there is missing or corrupt: restore "
                f"{snapshot_path(self.directory, first)}"
            )
        return snapshot.state.next_offset, snapshot.state.tick

    def _scan_later(self, first: int, last: int, upto: ReadLimit) -> _LaterFrames:
        """Return the ABORTs in segments after `first` that can void batches up to position `last`, and their corruption."""
        found = _LaterFrames([])
        later = first
        # An ABORT voids only batches that were undecided, so no ABORT beyond the limit of undecided frames can matter.
        while 0 < (later := self.after(later)) <= min(upto.position, last + limits.UNDECIDED_FRAMES_MAX):
            view, end = self.view(later), self.last_of(later, upto)
            rows = view.trusted_rows(end, upto)
            aborts = [decode_abort(view.frame(row)) for row in rows[rows["kind"] == Kind.ABORT]]
            views, damage = rows["position"][rows["kind"] == Kind.VIEW].tolist(), None
            if view.first + len(rows) <= end:
                walked = view.scan(rows, end)
                headers = walked.headers()
                aborts += walked.aborts(headers)
                views += headers["position"][headers["kind"] == Kind.VIEW].tolist()
                damage = None if walked.position > end else segment_too_short(view, walked)
            found = _LaterFrames(
                found.aborts + aborts, found.damage or damage, found.view if found.damage else max([found.view, *views])
            )
        return found

    def base(self, first: int, upto: ReadLimit) -> int:
        """Return the first offset of a segment: the offset of its first record, or of the next record in the log if it has none."""
        found = self._offsets.get(first)
        if found is None:
            if (sealed := self.sealed(first)) is not None:
                return sealed.offset
            rows, _ = self.readable_rows(first, upto)
            # A segment without readable decided rows counts as a segment after all offsets. A later read reports its corruption.
            if not rows:
                return 1 << 63
            found = self._offsets[first] = int(rows[0]["offset"][0])
        return found

    def holding(self, offset: int, upto: ReadLimit) -> int:
        """Return the last segment whose first offset is at or below `offset`, else the first segment; 0 for an empty log."""
        firsts = self.firsts
        low, high = 0, bisect_right(firsts, upto.position)  # without segments after the frontier, which can be removed any time
        while low < high:
            middle = (low + high) // 2
            if self.base(firsts[middle], upto) <= offset:
                low = middle + 1
            else:
                high = middle
        return firsts[max(low - 1, 0)] if firsts else 0

    def entry(self, offset: int, upto: ReadLimit) -> int:
        """Return the segment in which a read from an offset begins; 0 for an empty log.

        Raises:
            Damaged: the offset is in the first segment, which is missing.
        """
        while True:
            first = self.holding(offset, upto)
            if not first or self.base(first, upto) <= offset:
                return first
            if not self.before(first):
                self.check_begin()
                return first
            # The search is repeated, because an earlier segment has appeared in the list during the search.

    def split_at_segments(
        self, start: int, end: int, split_bytes: int | None, splits: int | None, upto: ReadLimit
    ) -> list[Range] | None:
        """Split a range of offsets at the starts of segments, into parts of about equal estimated size.

        Return None if the range, or a part of it, would cover too few segments. Most segments have the same size, so the function
        reads only the file sizes of a sample of segments. The first segment counts with the share of its records that is inside the
        range. The last segment may be far from full, so its size is estimated from the number of its records in the range and the
        average bytes per record.
        """
        borders = [self.holding(offset, upto) for offset in (start, end - 1)]
        firsts = self.firsts  # constant during this call, because a refresh creates a new list
        first, last = (bisect_left(firsts, border) for border in borders)
        count = last - first
        if count < limits.PLAN_SEGMENTS_MAX:
            return None
        # Only every `step`th file size is read, because a log can have many thousands of segments.
        step = -(-count // limits.PLAN_SEGMENTS_WEIGHED_MAX)
        some = [os.stat(segment_path(self.directory, position)).st_size for position in firsts[first:last:step]]
        sizes = np.append(np.repeat(np.asarray(some, np.int64), step)[:count], 0)
        low, second, high = (self.base(firsts[at], upto) for at in (first, first + 1, last))
        sizes[-1] = int(sizes.sum()) * max(end - high, 0) // max(high - low, 1)
        sizes[0] = int(sizes[0]) * max(second - start, 0) // max(second - low, 1)
        return split_at_segments(start, end, sizes, lambda at: self.base(firsts[first + at], upto), split_bytes, splits)

    def batches(self, start: int, end: int, upto: ReadLimit) -> Iterator[tuple[SegmentView, Rows]]:
        """Yield the rows of all batches with records at offsets [start, end), in order, as pairs of a segment and a chunk of rows.

        Raises:
            Damaged: a batch in the range is unreadable, or may be void; raised after all rows before it.
            OffsetOutOfRange: a trim removed records of the range.
        """
        first = self.entry(start, upto)
        if start < self.start.offset:
            raise trimmed_error(self.start)
        for view, parts in self.onward(first, upto, self.certain_rows):
            for part in parts:
                offsets = part["offset"]
                # The first batch may begin before `start`.
                low = max(bisect_right(offsets, start) - 1, 0)
                high = bisect_left(offsets, end)
                for chunk in range(low, high, _CHUNK):
                    some = part[chunk : min(chunk + _CHUNK, high)]
                    some = some[(some["count"] > 0) & (some["offset"] + some["count"] > start)]
                    yield from self._visible(view, some, start, end, upto)
                # If the range ends in this segment, the next segment, which may be corrupt, is not opened.
                if high < len(part) or int(offsets[-1]) + int(part["count"][-1]) >= end:
                    return

    def onward(
        self, first: int, upto: ReadLimit, rows: Callable[[int, ReadLimit], tuple[list[Rows], Damaged | None]] | None = None
    ) -> Iterator[tuple[SegmentView, list[Rows]]]:
        """Yield all segments from `first` up to the frontier, each with the rows that the function `rows` returns for it.

        Args:
            rows: `readable_rows` or `certain_rows`; by default `readable_rows`.

        Raises:
            Damaged: `rows` has returned a corruption, or a segment is missing; raised after all rows before it.
            OffsetOutOfRange: a trim removed a segment.
        """
        while 0 < first <= upto.position:
            view = self.view(first)
            parts, damage = (rows or self.readable_rows)(first, upto)
            yield view, parts
            if damage is not None:
                raise damage
            invariant(parts, f"the segment at position {first} has no rows up to position {upto.position}, but is not corrupt")
            # The next segment must begin directly after these rows, because positions have no gaps.
            first += sum(map(len, parts))

    def _visible(self, view: SegmentView, rows: Rows, start: int, end: int, upto: ReadLimit) -> Iterator[tuple[SegmentView, Rows]]:
        """Replace each TXN row in `rows` by the rows of its batches, and yield the result as chunks, each from one segment."""
        if not (txns := np.flatnonzero(rows["kind"] == Kind.TXN).tolist()):
            yield view, rows
            return
        where, buffered = view, list[Rows]()
        found: dict[int, tuple[list[Rows], Damaged | None]] = {}
        done = 0
        for at in [*txns, len(rows)]:
            some = [(view, rows[done:at])]
            if at < len(rows):
                # The batches of a TXN can be in earlier segments, because they stay at the positions where they were staged.
                for segment, part in txn_parts(view.frame(rows[at]), rows[at], self.firsts):
                    if not segment:
                        self.check_begin()
                        raise trimmed_error(self.start)
                    if segment not in found:
                        found[segment] = self.certain_rows(segment, upto)
                    batches = visible_rows(found[segment], segment, part)
                    inside = (batches["offset"] < end) & (batches["offset"] + batches["count"] > start)
                    some.append((self.view(segment), batches[inside]))
            # Consecutive rows of one segment are joined, because a reader reads all frames of a chunk together.
            for here, batch in some:
                if not len(batch):
                    continue
                if buffered and here is not where:
                    yield where, np.concatenate(buffered)
                    buffered = []
                where = here
                buffered.append(batch)
            done = at + 1
        if buffered:
            yield where, np.concatenate(buffered)

    def sealed(self, first: int) -> Sealed | None:
        """Return the header of a segment's index if the index is sealed, else None."""
        found = self._sealed.get(first)
        if found is None:
            # Only headers of sealed indexes are cached, because they never change, but an unsealed index may be sealed at any time.
            found = sealed_header(self.directory, first)
            if found is not None:
                self._sealed[first] = found
        return found

    def at_time(self, view: SegmentView, row: np.void, time_us: int, upto: ReadLimit) -> tuple[SegmentView, np.void]:
        """Return the segment and the row of the first batch in `row` with a record at or after `time_us`.

        Args:
            row: index row of a batch, or of a TXN, which makes several batches visible.
        """
        for where, rows in self._visible(view, np.array([row]), 0, 1 << 63, upto):
            hits = np.flatnonzero(rows["max_timestamp"] >= time_us)
            if len(hits):
                return where, rows[hits[0]]
        raise Damaged(
            f"{view.path}: position {row['position']} has no record at or after the time that the index names; "
            f"see `tutti log verify {view.directory}`",
            int(row["position"]),
        )

    def positions(self, start: int, last: int, upto: ReadLimit) -> Iterator[tuple[SegmentView, Rows]]:
        """Yield the rows of all positions from `start` to `last`, in order, as pairs of a segment and a chunk of rows.

        Raises:
            Damaged: a frame in the range is corrupt, and the index does not have its row; raised after all rows before it.
            OffsetOutOfRange: a trim removed positions of the range.
        """
        if 1 <= start < self.start.first <= last:
            raise trimmed_error(self.start)
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


def trimmed_error(start: LogStart) -> OffsetOutOfRange:
    """Return the error for a read below the start of the log. The error text contains the first offset that can be read."""
    return OffsetOutOfRange(f"the log begins at offset {start.offset}, and retention removed older records: start there or later")
