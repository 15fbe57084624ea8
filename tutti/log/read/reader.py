"""The read side of a log: any number of processes read a directory, while its gateway writes it, or long after.

Under the boot that the gateway runs (or last ran) in, the live page tells the frontier; otherwise the watermark on disk does. The
frontier that one reader shows never moves back.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tutti.data.frames.frame import Kind
from tutti.data.frames.schema import decode_batch
from tutti.data.log_state import LogState, Topic
from tutti.errors import Damaged, DirectoryRefused, OffsetOutOfRange, UsageError
from tutti.log.files import live_page as page
from tutti.log.files.data_directory import no_identity, read_identity
from tutti.log.files.layout import read_header
from tutti.log.files.live_page import LiveView, open_live
from tutti.log.format.hard_state import check_kept, read_scalars
from tutti.log.format.index import Rows
from tutti.log.format.snapshot import newest_snapshot
from tutti.log.format.vote_mark import check_end, newest_mark
from tutti.log.read.catalog import Catalog
from tutti.log.read.name_registry import Names
from tutti.log.read.reader_lock import Looking
from tutti.log.read.segment_view import Upto, View
from tutti.log.read.sequence_lookup import Run, offsets_of
from tutti.log.read.splits import Range, check_parts, cut
from tutti.log.read.state_replay import applied

Item = TypeVar("Item")
_SAME_S = 1.0  # so often is looked whether the path still leads to the directory that was opened
_NO_RECORD = -1, 0  # offset and time
_SKIP_FRAMES = 32_768  # a state further behind than this begins again from a snapshot


class Frontier(NamedTuple):
    """How far a log is decided, as far as this reader knows.

    Attributes:
        position: last decided position.
        offset: offset after its last record: readable is what lies below.
        time_us, tick: time (us, UTC) and number of the last TICK, 0 before any.
        live: whether a running gateway says so; else it is the last that one said, or the watermark on disk.
    """

    position: int
    offset: int
    time_us: int
    tick: int
    live: bool


class LogReader:
    """Reads one data directory. Thread-safe; nothing in the directory is changed, nothing is locked.

    Attributes:
        noticed: is told of a position whose frame says something of the log, and is damaged.

    Raises (all methods):
        DirectoryRefused: the system does not let it be read (any more), or another directory stands in its place.
        OffsetOutOfRange: what was asked for is gone, trimmed meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str], *, damaged: bool = False) -> None:
        """Open a directory, which may still be empty of records.

        Args:
            path: of the directory.
            damaged: for tools that look at damage: the frontier is what the good marks say, whatever happened to the log's end.

        Raises:
            DirectoryRefused: it cannot be read.
            WrongDirectory: it is no data directory, or has another format.
        """
        self.path = os.path.abspath(path)
        identity = read_identity(self.path)
        if identity is None:
            raise no_identity(self.path)
        self.name = identity.gateway
        self._damaged = damaged
        self.noticed: Callable[[int], object] = lambda _: None
        self._lock = Looking(self.path)
        with self._lock:
            self._catalog = Catalog(self.path)
        self._naming = Looking(self.path)
        self._names = Names(self._catalog, self._lock)
        self._live: LiveView | None = None
        self._same_at = time.monotonic() + _SAME_S
        self._segment = self._generation = self._begin = 0
        self._seen = Frontier(0, 0, 0, 0, False)
        self._advancing = Looking(self.path)
        self._state = LogState()
        self._firsts: dict[int, tuple[int, int]] = {}  # topic -> offset and time of its first record behind a trim, once looked
        self._log = identity.log
        self._incarnation = identity.incarnation

    @property
    def log(self) -> str:
        """Uuid of the log as hex, empty until it has begun."""
        if not self._log:
            with self._lock:
                self._catalog.refresh()
                if self._catalog.firsts:
                    self._log = read_header(self.path, self._catalog.firsts[-1]).log.hex()
        return self._log

    @property
    def start(self) -> int:
        """The first offset that the log holds; it only moves on, as the log is trimmed."""
        self._look()
        return self._catalog.start.offset

    @property
    def first(self) -> int:
        """The first position that the directory holds."""
        self._look()
        return self._catalog.start.first

    def close(self) -> None:
        """Let files go. Batches that were handed out stay good."""
        with self._lock:
            self._catalog.close()
            self._live = None

    # Frontier

    def frontier(self) -> Frontier:
        """How far the log is decided; never less than this reader said before.

        Raises:
            Damaged: the gateway does not run, and what it left behind does not say.
            DirectoryRefused: the directory cannot be read any more.
        """
        return self._look()[0]

    def beat_us(self) -> int:
        """When the gateway that runs said last that it is at work (us, UTC), as far as was looked; 0 where none says so."""
        live = self._live
        return live.words[page.HEARTBEAT_US] if live is not None and live.good else 0

    def _look(self) -> tuple[Frontier, Upto]:
        with self._lock:
            live = self._live
            if live is None or not live.good or time.monotonic() >= self._same_at:
                self._check_same(live)
                live = self._live = open_live(self.path)
            found, indexed = self._watermark() if live is None or not live.good else self._from_page(live)
            if found.position < self._seen.position or found.offset < self._seen.offset:
                found = self._seen._replace(live=found.live)
            self._seen = found
            return found, Upto(found.position, indexed)

    def _check_same(self, live: LiveView | None) -> None:
        """Refuse what took the place of the directory that was opened: else its mapped page would stand still for ever."""
        self._same_at = time.monotonic() + _SAME_S
        if live is not None and live.inode == page.inode_of(self.path):
            return
        identity = read_identity(self.path)
        if identity is None:
            raise DirectoryRefused(f"{self.path} is no data directory any more: it was removed; open the one that has the log")
        if identity.incarnation != self._incarnation or (self._log and identity.log and identity.log != self._log):
            log, held = identity.log or "none yet", self._log or "none yet"
            raise DirectoryRefused(
                f"{self.path} was replaced by another data directory: it holds log {log} and held log {held}; open it anew, "
                "and begin where that log begins"
            )

    def _from_page(self, live: LiveView) -> tuple[Frontier, int]:
        # Each word is read before those that the gateway stores before it: what is seen of one has what belongs to it in the next.
        words = live.words
        indexed = words[page.INDEXED_POSITION]
        tick_time = words[page.TICK_TIME]
        tick = words[page.TICK]
        offset = words[page.FRONTIER_OFFSET]
        position = words[page.FRONTIER_POSITION]
        generation, segment = words[page.GENERATION], words[page.SEGMENT]
        begin = words[page.START_OFFSET]
        if generation != self._generation:
            self._catalog.renew()
        elif segment != self._segment or begin != self._begin:
            self._catalog.refresh()
        self._generation, self._segment, self._begin = generation, segment, begin
        return Frontier(position, offset, tick_time, tick, live.alive), indexed

    def _watermark(self) -> tuple[Frontier, int]:
        stored = read_scalars(self.path)
        self._catalog.refresh()
        firsts = self._catalog.firsts
        if stored is None and firsts:
            stored = read_scalars(self.path)  # both were made since
        check_kept(self.path, stored, firsts, self._log)
        if stored is None or not firsts:
            return Frontier(0, 0, 0, 0, False), 0
        if not self._damaged:
            check_end(self.path, firsts, stored.segment)
        mark = newest_mark(self.path, stored.mark, firsts)
        if mark.frontier_position <= self._seen.position:
            return self._seen, 0
        upto = Upto(mark.frontier_position, 0)
        number, time_us = self._last_tick(upto)
        return Frontier(mark.frontier_position, mark.frontier_offset, time_us, number, False), 0

    def _last_tick(self, upto: Upto) -> tuple[int, int]:
        for first in reversed(self._catalog.firsts):
            for rows in reversed(self._catalog.good_rows(first, upto)[0]):
                found = np.flatnonzero(rows["kind"] == Kind.TICK)
                if len(found):
                    return int(rows["tick"][found[-1]]), int(rows["max_timestamp"][found[-1]])
        return 0, 0

    # What the log says

    def state(self) -> LogState:
        """The LogState at the frontier. It is not to be changed; later calls give other objects."""
        with self._advancing, self._noticing():
            _, upto = self._look()
            if self._state.position < upto.position:
                first = self._catalog.start.first
                try:
                    self._state = self._advanced(upto, first)
                except OffsetOutOfRange:
                    if self.first == first:
                        raise
                    return self.state()  # trimmed meanwhile
            return self._state

    def _advanced(self, upto: Upto, first: int) -> LogState:
        state = self._state
        if state.position and state.position >= first - 1 and upto.position - state.position <= _SKIP_FRAMES:
            try:
                return applied(state.copy(), self.positions(state.position + 1, upto.position))
            except Damaged:
                if newest_snapshot(self.path, upto.position).position <= state.position + 1:
                    raise  # else it may stand behind what is damaged
        state = max(state, newest_snapshot(self.path, upto.position).state, key=lambda one: one.position)
        return applied(state.copy(), self.positions(state.position + 1, upto.position))

    def name_of(self, kind: Kind, number: int) -> str:
        """Name of what a frame of `kind` registered under a number (a topic, a producer, also one that was forgotten, a gateway).

        Empty for 0.
        """
        with self._naming, self._noticing():
            return self._names.of(kind, number, self._look()[1])

    def topic_numbers(self, names: Sequence[str]) -> frozenset[int]:
        """Numbers of those of the topics that the log knows.

        Raises:
            Damaged: one is not known, and what may register it cannot be read.
        """
        with self._naming, self._noticing():
            return self._names.topics(names, self._look()[1])

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            self.noticed(error.position)
            raise

    def topics(self) -> list[Topic]:
        """The topics at the frontier: records and bytes of all that was ever committed, and of the first record that the log still
        holds its place and time; -1 and 0 where it holds none (any more).
        """
        known = self.state()
        begin = self.start
        old = {number for number, topic in known.topics.items() if 0 <= topic.first_offset < begin}
        lost = {number for number in old if known.topics[number].last_offset < begin}
        wanted = {number for number in old - lost if self._firsts.get(number, _NO_RECORD)[0] < begin}
        if wanted:
            try:
                self._find_firsts(begin, known.next_offset, wanted)
            except OffsetOutOfRange:
                if self.start == begin:
                    raise
                return self.topics()  # trimmed meanwhile
        return [
            topic if number not in old else replace(topic, first_offset=first, first_time=time_us)
            for number, topic in known.topics.items()
            for first, time_us in [_NO_RECORD if number in lost else self._firsts.get(number, (begin, topic.first_time))]
        ]

    def _find_firsts(self, begin: int, end: int, wanted: set[int]) -> None:
        with contextlib.suppress(Damaged):  # what it hides stands behind it: no earlier than where the log begins
            for _, rows in self.batches(begin, end):
                numbers, at = np.unique(rows["topic"], return_index=True)
                for number, row in zip(numbers.tolist(), rows[at], strict=True):
                    if number in wanted:
                        wanted.remove(number)
                        self._firsts[number] = max(begin, int(row["offset"])), int(row["min_timestamp"])
                if not wanted:
                    return

    # Finding

    def check_range(self, start: int, end: int) -> None:
        """Refuse a range that the log does not hold.

        Raises:
            UsageError: it ends before it begins, or an offset is no integer.
            OffsetOutOfRange: it starts below what the log holds, or goes beyond the frontier.
        """
        for what, offset in (("start", start), ("end", end)):
            if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
                raise UsageError(f"the {what} of a range is an offset, an integer, and not {offset!r}")
        frontier = self.frontier().offset
        begin = self._catalog.start.offset
        if start < begin:
            raise OffsetOutOfRange(f"the range starts at offset {start} and this log begins at {begin}: begin there or later")
        for what, offset in (("starts", start), ("ends", end)):
            if offset > frontier:
                raise OffsetOutOfRange(
                    f"the range {what} at offset {offset} and the log is committed up to {frontier}: use at most {frontier}"
                )
        if end < start:
            raise UsageError(f"the range [{start}, {end}) ends before it begins")

    def batches(self, start: int, end: int) -> Iterator[tuple[View, Rows]]:
        """Index rows of the batches that have records in [start, end), in order, some at a time, with their segment."""
        self.check_range(start, end)
        return self._locked(self._catalog.batches(start, end, self._look()[1]))

    def positions(self, start: int, last: int) -> Iterator[tuple[View, Rows]]:
        """Index rows of the decided positions `start` to `last`, whatever they are, in order, some at a time."""
        return self._locked(self._catalog.positions(start, last, self._look()[1]))

    def _locked(self, found: Iterator[Item]) -> Iterator[Item]:
        while True:
            with self._lock:
                item = next(found, None)
            if item is None:
                return
            yield item

    def find(self, producer: int, first_sequence: int, count: int = 1) -> int | None:
        """Offset of the committed record of a producer (number) with this sequence, with the `count` records from it on behind each
        other; None if the log does not hold them, or other records stand between them.
        """
        return self.find_all([Run(producer, first_sequence, count)])[0]

    def find_all(self, runs: Sequence[Run]) -> list[int | None]:
        """As `find`, for many in one pass."""
        _, upto = self._look()
        return offsets_of(runs, self._newest_first(upto), self._catalog.start.offset)

    def _newest_first(self, upto: Upto) -> Iterator[Rows]:
        with self._lock:
            first = self._catalog.holding_position(upto.position)
        while first:
            with self._lock:
                rows = self._catalog.rows(first, upto)
            yield from reversed(rows)
            with self._lock:
                first = self._catalog.before(first)
        with self._lock:
            self._catalog.check_begin()  # else what was not found may stand in what is missing

    def offset_for_time(self, time_us: int) -> int:
        """Offset of the first record whose timestamp (us, UTC) is at or after a time; the frontier's if there is none.

        Raises:
            Damaged: the batch that holds it is.
        """
        frontier, upto = self._look()
        with self._lock:
            self._catalog.check_begin()
            begin, first = self._catalog.start.offset, self._catalog.after(0)
        while 0 < first <= upto.position:
            with self._lock:
                sealed = self._catalog.sealed(first)
                if sealed is not None and sealed.max_timestamp < time_us:
                    first += sealed.rows  # where the next one begins, or it is missing
                    continue
                view, (parts, damage) = self._catalog.view(first), self._catalog.certain_rows(first, upto)
            for rows in parts:
                hits = np.flatnonzero((rows["count"] > 0) & (rows["max_timestamp"] >= time_us) & (rows["offset"] >= begin))
                if len(hits):
                    with self._lock:
                        view, row = self._catalog.at_time(view, rows[hits[0]], time_us, upto)
                    times = decode_batch(view.frame(row).body).column(2).cast(pa.int64())
                    return int(row["offset"]) + int(np.argmax(times.to_numpy() >= time_us))
            if damage is not None:
                raise damage
            first += sum(map(len, parts))
        return frontier.offset

    def ticks(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The ticks at offsets from `start` to `end`, both included: (number, time us, offset); records below it came before."""
        self.check_range(start, end)
        found: list[tuple[int, int, int]] = []
        _, upto = self._look()
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
        """Cut [start, end) into ranges that are read side by side, at the borders of batches: about `splits` of them, or of about
        `split_bytes` each, or one. Rows and bytes are as `Range` says. Raises as `check_range`, or when a number is not above 0.
        """
        check_parts(split_bytes, splits)
        self.check_range(start, end)
        known = topics is None or self.topic_numbers(topics)
        with self._lock:
            found = self._catalog.cut_wide(start, end, split_bytes, splits, self._look()[1]) if known else None
        return found or cut(start, end, list(self.rows(start, end, topics)), split_bytes, splits)

    def rows(self, start: int, end: int, topics: Sequence[str] | None = None) -> Iterator[Rows]:
        """Index rows of the batches of `topics` that have records in [start, end), in order, some at a time."""
        pick = self.picking(topics)
        for _, rows in self.batches(start, end):
            yield pick(rows)

    def picking(self, topics: Sequence[str] | None) -> Callable[[Rows], Rows]:
        """What leaves of rows those of batches of these topics (None: all)."""
        return (lambda rows: rows) if topics is None else of_topics(self.topic_numbers(topics))


def of_topics(numbers: Collection[int]) -> Callable[[Rows], Rows]:
    """What leaves of rows those of batches of these topics."""
    wanted = np.array(sorted(numbers), dtype=np.uint32)
    return lambda rows: rows[np.isin(rows["topic"], wanted)]
