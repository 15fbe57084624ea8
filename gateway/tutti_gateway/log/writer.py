"""The log's one writer: frames in, durable by one sync for all that came meanwhile, indexed when decided.

One thread calls it (the node's disk thread), but for `frontier` and `beat`, which only touch the live page and may come from
another. After a failed write or sync it refuses everything (`DiskFailed`): what the page cache then holds is no longer known, and
the same data is never tried again. A lack of room (`DiskFull`) is no such failure, unless a sync told it: the same call is made
again when there is some.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import Scalars
from tutti.data.log_state import LogState
from tutti.errors import DiskFailed, DiskFull, invariant
from tutti.log.files.disk_space import Room, failure_of, failure_of_start, no_room
from tutti.log.files.layout import MARK_SLOTS, SegmentHeader, read_header
from tutti.log.files.live_page import LivePage
from tutti.log.files.log_directory import Home
from tutti.log.files.options import LogOptions, Space
from tutti.log.files.storage import Storage
from tutti.log.format.hard_state import ScalarsFile
from tutti.log.read.segment_view import Upto
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.log.upkeep import quarantine
from tutti_gateway.log.upkeep.retention import Trimming
from tutti_gateway.log.upkeep.scrubber import Mender
from tutti_gateway.log.write import truncate
from tutti_gateway.log.write.frame_fetch import Fetcher
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.install_snapshot import finish_replacing, replace_log
from tutti_gateway.log.write.mark_tracker import End, Marking
from tutti_gateway.log.write.preallocator import Preparer
from tutti_gateway.log.write.recovery import Found, forgot, recover
from tutti_gateway.log.write.segment import (
    Segment,
    begin_segment,
    begun_by,
    new_segment,
    prepared_paths,
    reopen,
    size_of_next,
    unwritten,
)

_US = 1_000_000


class LogWriter:
    """Writes one directory. Made by `open`. `mender` looks for damage, `trimming` for what may go; `shown` is that of `Found`."""

    def __init__(self, directory: Home, options: LogOptions, storage: Storage, found: Found, live: LivePage) -> None:
        """Go on where `found` ends."""
        self._directory = directory
        self._path = directory.path
        self._options = options
        self._storage = storage
        self._live = live
        self._failed = ""
        self._log = found.recovered.log
        self._scalars = ScalarsFile(self._path, storage, found.stored)
        frontier = (found.state.position, found.state.next_offset)
        self._marking = Marking(found.end, frontier, found.mark, found.recovered.damage)
        self._end: End = found.end
        # A lane may stand still while another one keeps the thread from resting: its marks are never late.
        self._late_us = 0 if options.lane else limits.MARK_LATE_US
        self._synced_at = time.monotonic()
        self._spoiled = found.recovered.damage is not None  # what is damaged still stands behind the end
        self._later, self.shown = found.later, found.shown
        self._cutting = False  # from the mark that is lowered on
        sizes = [read_header(self._path, segment.first).size for segment in found.segments[-1:]]
        self._room = Room(self._path, options, storage, given_up=sizes == [options.reserved_bytes])
        self._preparer = Preparer(self._path, options, storage)
        self._segments = [reopen(self._path, segment, storage) for segment in found.segments]
        for segment, later in zip(self._segments, self._segments[1:], strict=False):
            segment.last = later.first - 1
        self._indexer = Indexer(self._path, options, storage, self._room, found, self._segments)
        self._fetcher = Fetcher(self._path, storage, self._segments, found.recovered.tail)
        self.trimming = Trimming(self._path, options, storage, self._room, live, self._segments, self._indexer)
        self.mender = Mender(self._path, storage, options, self._segments, self._indexer, self._watching, live.renew)

    @classmethod
    def open(cls, directory: Home, options: LogOptions | None = None, storage: Storage | None = None) -> tuple[Self, Recovered]:
        """Recover a directory's log and get ready to write behind it.

        Raises:
            Damaged: something durable is damaged or gone.
            WrongDirectory: the directory holds segments of another log, or something was written by a newer release.
            DiskFull, DiskFailed: the disk has no room, or failed.
        """
        options, storage = options or LogOptions(), storage or Storage()
        try:
            live = LivePage(directory.path)
        except OSError as error:
            raise failure_of("making the live page of", directory.path, error) from error
        try:
            finish_replacing(directory.path, storage, options)
            args = directory.path, storage, options
            found = recover(*args, log=directory.log, live=live.inherited(), failed=live.failed_before)
            (directory.renew if forgot(found.recovered, directory) else directory.settle)()
            writer = cls(directory, options, storage, found, live)
            writer._begin(found)
        except OSError as error:
            failure = failure_of_start(directory.path, error)
            if isinstance(failure, DiskFailed):
                live.fail()
            live.close()
            raise failure from error
        except BaseException:
            live.close()
            raise
        return writer, found.recovered

    def _begin(self, found: Found) -> None:
        self._indexer.complete(found)
        if self._log:
            self._directory.remember_log(self._log)
        self._preparer.clear()
        if self._options.prepared_segments:
            if not self._segments and not prepared_paths(self._path):
                self._preparer.prepare_one(patient=False)  # so that the first writes of a new gateway are no slower than later ones
            self._preparer.start()
        self._live.publish(self._indexer.state, self._segments[-1].first if self._segments else 0)

    # Writing

    def append(self, frames: Sequence[Frame], *, must: bool = False) -> None:
        """Write frames behind the log, in order, without a sync and without a copy. Frames that are in it already are passed over,
        so that after `DiskFull` the same call can be made again as it was; with `must` batches too take what is reserved. What a
        damage left there is set aside first; marks go on naming the damaged end until the log reaches it again.

        Raises:
            DiskFull: there is no room for them.
            DiskFailed: the disk failed, now or before.
        """
        self._check_usable()
        left = unwritten(frames, self._end)
        if not left:
            return
        self._preparer.wrote()
        try:
            if not self._segments:
                self._log = self._options.lane or begun_by(left[0])
                self._begin_segment(left[0])
            if self._spoiled:
                self._set_aside()
            if self._marking.contradicted(left):
                self._lower_mark()
            while left:
                left = self._append_some(left, must)
        except (OSError, DiskFull) as error:
            raise self._meaning("writing to", error) from error

    def _append_some(self, frames: Sequence[Frame], must: bool) -> Sequence[Frame]:
        """Write as many as the segment takes; if some are left, a new segment has begun for them."""
        if self._room.in_reserve and not must and any(frame.kind == Kind.BATCH for frame in frames):
            raise DiskFull(f"the disk of {self._path} is full and the reserve is for what must be written: free some space")
        segment = self._segments[-1]
        parts, places, place, end = segment.fitting(frames, self._end)
        left = frames[len(places) :]
        if places:
            self._storage.write(segment.fd, parts, segment.place)
            if self._marking.due(time.monotonic(), self._late_us):
                self._write_slot(segment)
            segment.place = place
            segment.undecided.extend(places)
            self._fetcher.wrote(frames[: len(places)] if left else frames)
            self._end = end
        if left:
            self._roll(left[0])
        return left

    def _lower_mark(self) -> None:
        """Another frame takes the place of the damaged end: the mark that names this one would tell of mixed files."""
        mark = self._marking.next(self._marking.durable)
        self._scalars.write(self._scalars.scalars, mark, self._scalars.segment)
        self._marking.set(mark)
        self._marking.damage = None

    def _roll(self, frame: Frame) -> None:
        """Begin the next segment; everything before it is made durable first, so that only the last segment can ever be torn."""
        self.sync()
        self._begin_segment(frame)

    def _begin_segment(self, frame: Frame) -> None:
        position, _, chain = self._end
        first, size = position + 1, size_of_next(self._options, self._segments[-1].size if self._segments else 0, frame)
        prepared = prepared_paths(self._path)
        mark = self._marking.next()
        try:
            source = prepared[0] if prepared else None
            fd = begin_segment(self._path, self._storage, SegmentHeader(self._log, first, chain, size), mark, source)
        except OSError as error:
            source = self._room.take_reserve() if no_room(error) else None
            if source is None:
                raise
            size = self._options.reserved_bytes
            fd = begin_segment(self._path, self._storage, SegmentHeader(self._log, first, chain, size), mark, source)
        if prepared:
            self._preparer.used()
        self._live.segment(first)
        if self._segments and self._segments[-1].first == first:  # empty, and too small for the frame: a larger one took its place
            self._let_go([self._segments.pop()])
            self._live.renew()
        elif self._segments:
            self._segments[-1].last = position
        self._marking.set(mark)
        self._segments.append(new_segment(self._path, self._storage, first, fd, size))
        if position:  # the first one is missed by the log's uuid in the identity, once it has durably begun
            self._scalars.write(self._scalars.scalars, mark, first)
        if self._indexer.state.position == position:
            self._indexer.pass_boundaries()

    def sync(self) -> None:
        """Make everything appended durable.

        Raises:
            DiskFull: what was appended is durable, and there is no room for the mark that must be too.
            DiskFailed: the disk failed, now or before.
        """
        self._check_usable()
        if not self._segments:
            return
        try:
            self._sync()
            if self._options.vote_mark == "strict" and self._marking.newest.position < self._marking.durable[0]:
                self._write_slot(self._segments[-1])
                self._sync()
        except (OSError, DiskFull) as error:
            raise self._meaning("syncing", error) from error

    def _sync(self) -> None:
        end, segment = self._end, self._segments[-1]
        self._storage.make_durable(segment.fd)
        self._synced_at = time.monotonic()
        if self._marking.synced(end, self._synced_at):
            segment.slot = 1 - segment.slot
        self._directory.freshen(limits.IDENTITY_FRESH_BUSY_US)

    def _write_slot(self, segment: Segment) -> None:
        """Say in the slot, once between two syncs, what the syncs before made durable."""
        if self._marking.written is None and self._marking.behind:
            mark = self._marking.next()
            self._storage.write(segment.fd, [mark.to_bytes()], MARK_SLOTS[segment.slot])
            self._marking.written = mark

    def write_scalars(self, scalars: Scalars) -> None:
        """Make the scalars durable, and with them the mark of what is durable. A view that is accepted ends a damage.

        Raises:
            DiskFull: there is no room for them.
            DiskFailed: the disk failed, now or before.
        """
        self._check_usable()
        with self._watching("writing the scalars of"):
            accepts = scalars.accepted > self._scalars.scalars.accepted
            if accepts and self._spoiled:  # no mark will tell then why the file is short
                quarantine.lengthen(self._storage, self._segments[-1])
            mark = self._marking.next(self._marking.durable if accepts else None)
            self._scalars.write(scalars, mark, self._scalars.segment)
            self._directory.freshen(limits.IDENTITY_FRESH_US)
            self._marking.newest = mark
            if accepts:
                self._marking.damage = None

    # Cutting

    def cut(self, position: int) -> None:
        """Take every frame behind `position` off the log, durably. What a damage left behind the end is kept aside, and forgotten.

        Raises:
            InvariantViolated: something behind `position` is decided, or the log does not reach it.
            Damaged: the frames up to `position` cannot be read any more.
            DiskFull: there is no room, and the reserve is gone; the same call comes again.
            DiskFailed: the disk failed, now or before.
        """
        self._check_usable()
        decided, last = self._marking.frontier[0], self._end[0]
        invariant(decided <= position <= last, f"a cut behind {position}: the log is decided up to {decided} and ends at {last}")
        if position == last and self._marking.damage is None:
            if self._marking.durable != self._end:
                self.sync()
            return
        self._preparer.wrote()
        with self._watching("cutting"):
            self._set_aside()
            self._sync()
            end = truncate.end_at(self._path, self._segments, self._indexer.end, position)
            self._room.with_room(lambda: self._cut(end), "a cut")

    def _cut(self, end: End) -> None:
        """Nothing changes in memory before all of it is done on the disk, so that it can be done again."""
        self._cutting = True
        position = end[0]
        kept = [segment for segment in self._segments if position and segment.first <= position + 1]
        gone = self._segments[len(kept) :]
        places = kept[-1].places_behind(position, self._indexer.state.position) if kept else []
        mark = self._marking.next(end)
        if not kept:
            self._directory.remember_log(b"")  # the log has not begun: another one may
        truncate.take_off(self._path, self._storage, self._scalars, mark, kept[-1] if kept else None, places, gone)
        self._let_go(gone)
        del self._segments[len(kept) :]
        if kept:
            kept[-1].shorten(len(places))
        self._marking.cut(end, mark)
        self._fetcher.cut(position)
        self._end = end
        self._log = self._log if kept else b""
        self._live.cut(kept[-1].first if kept else 0)
        self._cutting = False

    def _set_aside(self) -> None:
        """Before anything is written behind a damaged end: keep what stands there. Interrupted, it is as before."""
        if not self._spoiled:
            return
        segment = self._segments[-1]
        self._sync()
        if self._later or not quarantine.blank_behind(self._storage, segment):
            mark = self._marking.next()
            quarantine.set_aside(self._path, self._storage, self._scalars, mark, segment, self._later)
            self._marking.set(mark)
            self._fetcher.cut(self._end[0])
            self._live.cut(segment.first)
        self._spoiled, self._later = False, []

    def replace(self, snapshot: bytes) -> None:
        """Put what a snapshot (LogState as bytes) says in the log's place, durably: it is decided, and more than is so here.

        Raises:
            DiskFull, DiskFailed: as `cut`.
        """
        self._check_usable()
        state = LogState.from_bytes(snapshot)
        decided, end = self._marking.frontier[0], (state.position, state.view, state.chain)
        invariant(decided < state.position, f"a log decided up to {decided} is replaced by one up to {state.position}")
        self._cutting = True
        args = self._path, self._storage, self._options, self._scalars, state, self._marking.sequence_of_next()
        with self._watching("replacing"):
            segment, mark = self._room.with_room(lambda: replace_log(*args), "a snapshot")
        self._let_go(self._segments)
        self._segments[:] = [segment]
        self._end, self._log, self._spoiled, self._later = end, self._options.lane or state.log, False, []
        self._marking.replaced(end, (state.position, state.next_offset), mark)
        self._indexer.replaced(state)
        self._fetcher.cut(0)
        self._directory.remember_log(self._log)
        self.trimming.replaced()
        self._live.replaced(state)
        self._cutting = False

    def _let_go(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.index.close()
            self._storage.close(segment.fd)

    # Reading back

    def read(self, first: int, last: int) -> tuple[tuple[Frame, ...], int]:
        """The durable frames from `first` on, and up to where no later ABORT reaches over them: see `Fetcher.read`."""
        upto = Upto(self._indexer.state.position, self._indexer.indexed)
        return self._fetcher.read(first, min(last, self._marking.durable[0]), upto)

    # Deciding

    def frontier(self, position: int, offset: int) -> None:
        """The frontier has reached `position`, and `offset` behind its last record. To be called before any receipt leaves; may be
        called from another thread.
        """
        self._marking.frontier = (position, offset)
        self._live.frontier(position, offset)

    def beat(self, time_us: int) -> None:
        """The gateway is at work at wall clock `time_us`; may be called from another thread."""
        self._live.beat(time_us)

    def decided(self, frames: Sequence[Frame], offsets: Sequence[int], aborted: Collection[int] = frozenset()) -> None:
        """Index a decided run: frames in order, the offset of each, and the positions of void batches among them. After `DiskFull`
        the same call is to be made again as it was, before any other run's: what was indexed is passed over.

        Raises:
            DiskFull: there is no room, and the reserve is gone.
            DiskFailed: the index could not be written, or the disk failed before.
        """
        self._check_usable()
        try:
            self._indexer.take(frames, offsets, aborted)
            self._fetcher.decided(self._indexer.state.position)
            if frames and not self._directory.log:
                self._directory.remember_log(self._log)
            self._live.indexed(self._indexer.state)
            self.trimming.carry_out(self._marking.newest.frontier_position)
        except (OSError, DiskFull) as error:
            raise self._meaning("indexing", error) from error

    # Beside the writing

    def idle(self) -> bool:
        """What is to be done when nothing is queued: the mark is brought up to date 10 ms after the last sync, copies are told from
        this directory when it rests, and what was trimmed goes. True while something is left to do: call again within 10 ms.

        Raises:
            DiskFull: there is no room for the mark.
            DiskFailed: the disk failed, now or before.
        """
        self._check_usable()
        if self._cutting or not self._segments:
            return False
        rest_us = (time.monotonic() - self._synced_at) * _US
        with self._watching("marking"):
            if self._marking.behind or self._marking.durable != self._end:
                if rest_us < limits.MARK_IDLE_US - limits.MARK_LATE_US:
                    return True
                self._write_slot(self._segments[-1])
                self._sync()
            elif rest_us >= limits.IDENTITY_REST_US:
                self._directory.rested(limits.IDENTITY_FRESH_US)
        with self._watching("trimming"):
            return self.trimming.carry_out(self._marking.newest.frontier_position) or self._marking.behind

    def space(self) -> Space:
        """How much room there is, and whether new messages are to be refused for the lack of it."""
        return self._room.space()

    def close(self) -> None:
        """Bring the mark up to date and let everything go; the log is not synced (what was to be durable is)."""
        self._preparer.close()
        try:
            if not self._failed and not self._cutting and self._segments and self._marking.behind:
                with self._watching("marking"):
                    self._write_slot(self._segments[-1])
                    self._sync()
        finally:
            self._let_go(self._segments)
            self._scalars.close()
            self._live.close()

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed(self._failed)

    @contextmanager
    def _watching(self, what: str) -> Iterator[None]:
        """Give errors of the system their meaning; what comes with each record does so by itself, as this costs too much there."""
        try:
            yield
        except (OSError, DiskFull) as error:
            raise self._meaning(what, error) from error

    def _meaning(self, what: str, error: OSError | DiskFull) -> DiskFull | DiskFailed:
        """What an error means for the log; any but a lack of room ends the writer."""
        failure = error if isinstance(error, DiskFull) else failure_of(what, self._path, error)
        if isinstance(failure, DiskFailed):
            self._failed = str(failure)
            self._live.fail()
        return failure
