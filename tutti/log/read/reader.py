"""Log reader: reads a data directory, whether its gateway is running or not. Any number of processes can read at the same time.

The frontier comes from the live page if the page is from the current boot, else from the watermark on disk. The frontier of a
reader never moves back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tutti.data.frames.frame import Kind
from tutti.data.frames.schema import decode_batch
from tutti.data.log_state import LogState, Topic
from tutti.errors import Damaged, DirectoryRefused, OffsetOutOfRange, UsageError, remedy
from tutti.log.files import live_page as page
from tutti.log.files.data_directory import no_identity, read_identity
from tutti.log.files.layout import read_header
from tutti.log.files.live_page import LiveView, open_live
from tutti.log.files.log_start import read_start
from tutti.log.format.hard_state import check_hard_state, read_hard_state
from tutti.log.format.index import Rows
from tutti.log.format.snapshot import newest_snapshot
from tutti.log.format.vote_mark import check_end, newest_mark
from tutti.log.read.name_registry import NameRegistry
from tutti.log.read.segment_catalog import Catalog, trimmed_error
from tutti.log.read.segment_view import ReadLimit, SegmentView
from tutti.log.read.sequence_lookup import SequenceRun, offsets_of
from tutti.log.read.splits import Range, check_parts, split_range
from tutti.log.read.state_replay import replay

Item = TypeVar("Item")
_CHECK_SAME_S = 1.0  # interval of the check that the path still refers to the opened directory
_NO_RECORD = -1, 0  # offset and time that stand for a missing record
_SKIP_FRAMES = 32_768  # maximum number of frames to replay; beyond it, loading a snapshot is faster


class DecidedEnd(NamedTuple):
    """The decided end of a log, as far as a reader knows.

    Attributes:
        position: last decided position.
        offset: offset after the last decided record. All lower offsets that are not trimmed can be read.
        time_us, tick: time (us, UTC) and number of the last TICK; 0 before the first TICK.
        live: True if a running gateway publishes this end in the live page. False if the gateway has stopped, or if the end comes
            from the watermark on disk.
    """

    position: int
    offset: int
    time_us: int
    tick: int
    live: bool


class _ReaderLock:
    """A lock for access to the files, which also converts OS errors of the block to `DirectoryRefused`.

    A reader has one such lock for its catalog and other locks for longer work. The catalog's lock is held only for short lookups,
    so that a scan does not block the frontier calls of other threads. To avoid a deadlock, a thread that needs several locks
    acquires the catalog's lock last.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()
        if isinstance(error, FileNotFoundError) and (start := read_start(self._path)).first > 1:
            raise trimmed_error(start) from error  # the log was trimmed before, so a trim has most likely removed the file
        if isinstance(error, OSError):
            file = f" ({error.filename})" if error.filename else ""
            raise DirectoryRefused(f"{self._path} cannot be read: {error.strerror or error}{file}; {remedy(error)}") from error


class LogReader:
    """Reads one data directory without changing or locking it. Thread-safe.

    Attributes:
        on_corruption: function to call with the position of a corrupt frame that the reader needs for a state or a name.

    Raises (all methods):
        DirectoryRefused: the directory is not readable, or another directory has replaced it.
        OffsetOutOfRange: a trim removed the requested data.
    """

    def __init__(self, path: str | os.PathLike[str], *, damaged: bool = False) -> None:
        """Open a data directory, which may have no records yet.

        Args:
            path: path of the data directory.
            damaged: True to read a corrupt log, as repair tools do: the frontier comes from the valid marks, and the end of the log
                is not checked.

        Raises:
            DirectoryRefused: the directory is not readable.
            WrongDirectory: the path is not a data directory, or it has a different format.
        """
        self.path = os.path.abspath(path)
        identity = read_identity(self.path)
        if identity is None:
            raise no_identity(self.path)
        self.name = identity.gateway
        self._damaged = damaged
        self.on_corruption: Callable[[int], object] = lambda _: None
        self._lock = _ReaderLock(self.path)
        with self._lock:
            self._catalog = Catalog(self.path)
        self._names_lock = _ReaderLock(self.path)
        self._names = NameRegistry(self._catalog, self._lock)
        self._live: LiveView | None = None
        self._same_at = time.monotonic() + _CHECK_SAME_S
        self._segment = self._generation = self._begin = 0
        self._seen = DecidedEnd(0, 0, 0, 0, False)
        self._state_lock = _ReaderLock(self.path)
        self._state = LogState()
        # Maps a topic number to the offset and the time of the topic's first record that is not trimmed.
        self._firsts: dict[int, tuple[int, int]] = {}
        self._log = identity.log
        self._incarnation = identity.incarnation

    @property
    def log(self) -> str:
        """Uuid of the log, hex; empty until the log exists."""
        if not self._log:
            with self._lock:
                self._catalog.refresh()
                if self._catalog.firsts:
                    self._log = read_header(self.path, self._catalog.firsts[-1]).log.hex()
        return self._log

    @property
    def start(self) -> int:
        """The first offset in the log. A trim increases this offset, and nothing decreases it."""
        self._refresh()
        return self._catalog.start.offset

    @property
    def first(self) -> int:
        """The first position of the log, which moves when the log is trimmed."""
        self._refresh()
        return self._catalog.start.first

    def close(self) -> None:
        """Close the files. Batches that were already returned stay valid."""
        with self._lock:
            self._catalog.close()
            self._live = None

    # Frontier

    def frontier(self) -> DecidedEnd:
        """Return the frontier, which is never lower than the result of an earlier call.

        Raises:
            Damaged: the gateway is down, and corrupt files make the frontier unknown.
            DirectoryRefused: the directory is no longer readable.
        """
        return self._refresh()[0]

    def heartbeat_us(self) -> int:
        """Return the time of the running gateway's last heartbeat in the live page (us, UTC); 0 if unknown."""
        live = self._live
        return live.fields[page.HEARTBEAT_US] if live is not None and live.valid else 0

    def _refresh(self) -> tuple[DecidedEnd, ReadLimit]:
        with self._lock:
            live = self._live
            # If the live page is valid, the check runs only once in `_CHECK_SAME_S` seconds, because it needs system calls.
            if live is None or not live.valid or time.monotonic() >= self._same_at:
                self._check_same(live)
                live = self._live = open_live(self.path)
            found, indexed = self._watermark() if live is None or not live.valid else self._from_page(live)
            # The frontier must not move back (C7), even if the live page becomes invalid and the older watermark is used.
            if found.position < self._seen.position or found.offset < self._seen.offset:
                found = self._seen._replace(live=found.live)
            self._seen = found
            return found, ReadLimit(found.position, indexed)

    def _check_same(self, live: LiveView | None) -> None:
        """Check that no other directory has replaced the opened directory at its path.

        Without this check, a reader could wait without limit, because the mapped live page of a replaced directory never changes.
        """
        self._same_at = time.monotonic() + _CHECK_SAME_S
        if live is not None and live.inode == page.inode_of(self.path):
            return
        identity = read_identity(self.path)
        if identity is None:
            raise DirectoryRefused(f"data directory {self.path} was removed: open the directory that holds the log now")
        if identity.incarnation != self._incarnation or (self._log and identity.log and identity.log != self._log):
            log, old_log = identity.log or "none yet", self._log or "none yet"
            raise DirectoryRefused(
                f"another data directory has replaced {self.path}: it holds log {log}, and the old one held log {old_log}; open a "
                "new reader at the start of that log"
            )

    def _from_page(self, live: LiveView) -> tuple[DecidedEnd, int]:
        # The gateway stores the words in the reverse order, so each word is at least as new as the words that are read earlier.
        words = live.fields
        indexed = words[page.INDEXED_POSITION]
        tick_time = words[page.TICK_TIME]
        tick = words[page.TICK]
        offset = words[page.FRONTIER_OFFSET]
        position = words[page.FRONTIER_POSITION]
        generation, segment = words[page.GENERATION], words[page.SEGMENT]
        begin = words[page.START_OFFSET]
        # If the generation has changed, mapped files may be obsolete. A new segment or start changes only the list of files.
        if generation != self._generation:
            self._catalog.remap()
        elif segment != self._segment or begin != self._begin:
            self._catalog.refresh()
        self._generation, self._segment, self._begin = generation, segment, begin
        return DecidedEnd(position, offset, tick_time, tick, live.alive), indexed

    def _watermark(self) -> tuple[DecidedEnd, int]:
        stored = read_hard_state(self.path)
        self._catalog.refresh()
        firsts = self._catalog.firsts
        if stored is None and firsts:
            stored = read_hard_state(self.path)  # a new gateway may have created the hard state after the first read
        check_hard_state(self.path, stored, firsts, self._log)
        if stored is None or not firsts:
            return DecidedEnd(0, 0, 0, 0, False), 0
        # A log without its last segment would look like a shorter valid log, so the end is checked.
        if not self._damaged:
            check_end(self.path, firsts, stored.segment)
        mark = newest_mark(self.path, stored.mark, firsts)
        # The watermark in the mark can be older than the frontier that this reader has already seen in the live page.
        if mark.frontier_position <= self._seen.position:
            return self._seen, 0
        upto = ReadLimit(mark.frontier_position, 0)
        number, time_us = self._last_tick(upto)
        return DecidedEnd(mark.frontier_position, mark.frontier_offset, time_us, number, False), 0

    def _last_tick(self, upto: ReadLimit) -> tuple[int, int]:
        for first in reversed(self._catalog.firsts):
            for rows in reversed(self._catalog.readable_rows(first, upto)[0]):
                found = np.flatnonzero(rows["kind"] == Kind.TICK)
                if len(found):
                    return int(rows["tick"][found[-1]]), int(rows["max_timestamp"][found[-1]])
        return 0, 0

    # State and names

    def state(self) -> LogState:
        """Return the LogState at the frontier. The object never changes later, and callers must not change it."""
        with self._state_lock, self._reporting_corruption():
            _, upto = self._refresh()
            if self._state.position < upto.position:
                first = self._catalog.start.first
                try:
                    self._state = self._advanced(upto, first)
                except OffsetOutOfRange:
                    if self.first == first:
                        raise
                    return self.state()  # a trim has moved the start: retry
            return self._state

    def _advanced(self, upto: ReadLimit, first: int) -> LogState:
        state = self._state
        if state.position and state.position >= first - 1 and upto.position - state.position <= _SKIP_FRAMES:
            try:
                return replay(state.copy(), self.positions(state.position + 1, upto.position))
            except Damaged:
                if newest_snapshot(self.path, upto.position).position <= state.position + 1:
                    raise  # the state cannot be computed, because no later snapshot includes the corrupt frames
        # The newest snapshot is used instead of many frames, or instead of corrupt frames.
        state = max(state, newest_snapshot(self.path, upto.position).state, key=lambda one: one.position)
        return replay(state.copy(), self.positions(state.position + 1, upto.position))

    def name_of(self, kind: Kind, number: int) -> str:
        """Return the name that a frame of `kind` registered for `number`, even for a deleted producer; empty for number 0."""
        with self._names_lock, self._reporting_corruption():
            return self._names.of(kind, number, self._refresh()[1])

    def topic_numbers(self, names: Sequence[str]) -> frozenset[int]:
        """Return the numbers of those topics among `names` that are registered in the log.

        Raises:
            Damaged: a topic was not found, and frames that may register it are unreadable.
        """
        with self._names_lock, self._reporting_corruption():
            return self._names.topics(names, self._refresh()[1])

    @contextlib.contextmanager
    def _reporting_corruption(self) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            self.on_corruption(error.position)
            raise

    def topics(self) -> list[Topic]:
        """Return the topics at the frontier.

        The numbers of records and bytes include trimmed records. The offset and the time of the first record do not: they are those
        of the first record that is left, or -1 and 0 if no record is left.
        """
        known = self.state()
        begin = self.start
        # If the first record of a topic, which the state contains, was trimmed, the first remaining record must be searched.
        old = {number for number, topic in known.topics.items() if 0 <= topic.first_offset < begin}
        lost = {number for number in old if known.topics[number].last_offset < begin}
        wanted = {number for number in old - lost if self._firsts.get(number, _NO_RECORD)[0] < begin}
        if wanted:
            try:
                self._find_firsts(begin, known.next_offset, wanted)
            except OffsetOutOfRange:
                if self.start == begin:
                    raise
                return self.topics()  # a trim has moved the start: retry
        return [
            topic if number not in old else replace(topic, first_offset=first, first_time=time_us)
            for number, topic in known.topics.items()
            for first, time_us in [_NO_RECORD if number in lost else self._firsts.get(number, (begin, topic.first_time))]
        ]

    def _find_firsts(self, begin: int, end: int, wanted: set[int]) -> None:
        with contextlib.suppress(Damaged):  # without the first record of a topic, `topics` returns the start of the log
            for _, rows in self.batches(begin, end):
                numbers, at = np.unique(rows["topic"], return_index=True)
                for number, row in zip(numbers.tolist(), rows[at], strict=True):
                    if number in wanted:
                        wanted.remove(number)
                        self._firsts[number] = max(begin, int(row["offset"])), int(row["min_timestamp"])
                if not wanted:
                    return

    # Ranges and lookups

    def check_range(self, start: int, end: int) -> None:
        """Check that the log has all records of the range [start, end).

        Raises:
            UsageError: the range ends before it begins, or an offset is not an integer.
            OffsetOutOfRange: the range starts below the start of the log, or ends above the frontier.
        """
        for what, offset in (("start", start), ("end", end)):
            if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
                raise UsageError(f"the {what} of a range must be an integer offset, not {offset!r}")
        frontier = self.frontier().offset
        begin = self._catalog.start.offset
        if start < begin:
            raise OffsetOutOfRange(f"the range starts at offset {start}, but this log begins at {begin}: start there or later")
        for what, offset in (("starts", start), ("ends", end)):
            if offset > frontier:
                raise OffsetOutOfRange(
                    f"the range {what} at offset {offset}, but the log is committed up to {frontier}: use at most {frontier}"
                )
        if end < start:
            raise UsageError(f"the range [{start}, {end}) ends before it begins")

    def batches(self, start: int, end: int) -> Iterator[tuple[SegmentView, Rows]]:
        """Yield the index rows of all batches with records at offsets [start, end), in order, as pairs of a segment and a chunk."""
        self.check_range(start, end)
        return self._locked(self._catalog.batches(start, end, self._refresh()[1]))

    def positions(self, start: int, last: int) -> Iterator[tuple[SegmentView, Rows]]:
        """Yield the index rows of all decided positions from `start` to `last`, in order, as pairs of a segment and a chunk."""
        return self._locked(self._catalog.positions(start, last, self._refresh()[1]))

    def _locked(self, found: Iterator[Item]) -> Iterator[Item]:
        while True:
            # The lock is released before each `yield`, so that a slow caller does not block other threads.
            with self._lock:
                item = next(found, None)
            if item is None:
                return
            yield item

    def find(self, producer: int, first_sequence: int, count: int = 1) -> int | None:
        """Return the offset of the record that producer number `producer` sent with the sequence `first_sequence`.

        Return None if the log does not have `count` records from that sequence on, at consecutive offsets.
        """
        return self.find_all([SequenceRun(producer, first_sequence, count)])[0]

    def find_all(self, runs: Sequence[SequenceRun]) -> list[int | None]:
        """Return the result of `find` for each run, in one pass over the index."""
        _, upto = self._refresh()
        return offsets_of(runs, self._newest_first(upto), self._catalog.start.offset)

    def _newest_first(self, upto: ReadLimit) -> Iterator[Rows]:
        with self._lock:
            first = self._catalog.holding_position(upto.position)
        while first:
            with self._lock:
                rows = self._catalog.rows(first, upto)
            yield from reversed(rows)
            with self._lock:
                first = self._catalog.before(first)
        with self._lock:
            self._catalog.check_begin()  # raises an error if the first segment, which may have the record, is missing

    def offset_for_time(self, time_us: int) -> int:
        """Return the offset of the first record whose timestamp is at or after `time_us` (UTC); the frontier if all are older.

        Raises:
            Damaged: the batch with this record is corrupt.
        """
        frontier, upto = self._refresh()
        with self._lock:
            self._catalog.check_begin()
            begin, first = self._catalog.start.offset, self._catalog.after(0)
        while 0 < first <= upto.position:
            with self._lock:
                sealed = self._catalog.sealed(first)
                # An older segment needs no read of rows, because the header of a sealed index has the segment's largest timestamp.
                if sealed is not None and sealed.max_timestamp < time_us:
                    first += sealed.rows  # first position of the next segment
                    continue
                view, (parts, damage) = self._catalog.view(first), self._catalog.certain_rows(first, upto)
            for rows in parts:
                hits = np.flatnonzero((rows["count"] > 0) & (rows["max_timestamp"] >= time_us) & (rows["offset"] >= begin))
                if len(hits):
                    with self._lock:
                        view, row = self._catalog.at_time(view, rows[hits[0]], time_us, upto)
                    # The record is found in the body, because the row has only the largest timestamp of the batch.
                    times = decode_batch(view.frame(row).body).column(2).cast(pa.int64())
                    return int(row["offset"]) + int(np.argmax(times.to_numpy() >= time_us))
            if damage is not None:
                raise damage
            first += sum(map(len, parts))
        return frontier.offset

    def ticks(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return the ticks at offsets `start` to `end`, inclusive, as (number, time us, offset).

        A tick has the offset of the first record after it, so the tick follows all records with lower offsets.
        """
        self.check_range(start, end)
        found: list[tuple[int, int, int]] = []
        _, upto = self._refresh()
        with self._lock:
            first = self._catalog.entry(start - 1, upto)
        for _, parts in self._locked(self._catalog.onward(first, upto)):
            for rows in parts:
                some = rows[(rows["kind"] == Kind.TICK) & (rows["offset"] >= start) & (rows["offset"] <= end)]
                found += zip(some["tick"].tolist(), some["max_timestamp"].tolist(), some["offset"].tolist(), strict=True)
                if len(rows) and int(rows["offset"][-1]) > end:
                    return found
        return found

    def plan(
        self, start: int, end: int, topics: Sequence[str] | None = None, split_bytes: int | None = None, splits: int | None = None
    ) -> list[Range]:
        """Split [start, end) at batch boundaries for parallel reads, into about `splits` ranges or ranges of about `split_bytes`.

        Raises:
            UsageError: `split_bytes` or `splits` is not above 0, or the range is invalid.
            OffsetOutOfRange: the range starts below the start of the log, or ends above the frontier.
        """
        check_parts(split_bytes, splits)
        self.check_range(start, end)
        known = topics is None or self.topic_numbers(topics)
        with self._lock:
            # A range over many segments is split by file sizes, because a read of all its index rows would take too long.
            found = self._catalog.split_at_segments(start, end, split_bytes, splits, self._refresh()[1]) if known else None
        return found or split_range(start, end, list(self.rows(start, end, topics)), split_bytes, splits)

    def rows(self, start: int, end: int, topics: Sequence[str] | None = None) -> Iterator[Rows]:
        """Yield chunks of the index rows of the batches of `topics` (None: all) with records at offsets [start, end), in order."""
        pick = self.picking(topics)
        for _, rows in self.batches(start, end):
            yield pick(rows)

    def picking(self, topics: Sequence[str] | None) -> Callable[[Rows], Rows]:
        """Return a function that selects the index rows of `topics` (None: all rows)."""
        return (lambda rows: rows) if topics is None else topic_number_filter(self.topic_numbers(topics))


def topic_number_filter(numbers: Collection[int]) -> Callable[[Rows], Rows]:
    """Return a function that selects the index rows whose topic number is in `numbers`."""
    wanted = np.array(sorted(numbers), dtype=np.uint32)
    return lambda rows: rows[np.isin(rows["topic"], wanted)]
