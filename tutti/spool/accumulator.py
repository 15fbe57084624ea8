"""The feed of a producer with a spool: what is closed goes to the disk first, and from there to the I/O thread.

Rules
- Nothing is handed to the delivery that is not durable here, and nothing while the log has not said what it holds of the spool.
- `queue` has what follows the window, without a gap: batches as they were written while the delivery keeps up, else what was read
  back. What is not in it has no body in memory, and what nobody holds a receipt of is not in memory at all.
- Whatever ends an epoch, the spool is read again from behind the log's word (`began`); `turn` counts that, so that what was read
  for the time before is dropped.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tutti import limits
from tutti.batching.accumulator import Feed, nobody
from tutti.batching.encoder import Conformed
from tutti.batching.options import FeedOptions
from tutti.batching.receipt import Batch, Failure, OnDelivery, Place, Receipt, Record, Resume, Spooled, outside
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.data.frames.schema import compression_flags, compression_of
from tutti.errors import DiskFull, TuttiError, Unavailable, Unknown, UsageError
from tutti.spool.block_format import Block
from tutti.spool.commit_mark import PROGRESS_ROOM, State, Word, judge, reach, unwrap
from tutti.spool.store import Store

LOG = logging.getLogger("tutti.client")


class SpooledFeed(Feed):
    """Records on their way to the spool, and from there to the I/O thread. As `Feed`; `work` wakes the spool's thread."""

    remedy = "enlarge spool_bytes, or buffer_bytes"

    def __init__(self, options: FeedOptions, store: Store, spool_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with what the spool holds."""
        super().__init__(options, clock)
        self.work = threading.Condition(self.lock)
        self.closed: collections.deque[Batch] = collections.deque()
        self.path = store.path
        self.done, self.known = store.state.done, store.state.known
        self.turn = 0
        self.seek: Place | None = None  # where reading is to go on, until the spool's thread has seen it
        self.ready_bytes = 0  # of bodies in the queue and in the window
        self.broken: TuttiError | None = None  # why the spool cannot be used any more
        self.no_room = ""  # what the disk says
        self.word = Word()
        self.log = store.state.log
        self.refusals: dict[Place, Failure] = {}
        self._store = store
        self._spool_bytes = spool_bytes
        self._flags = compression_flags(options.compression)
        self._live: weakref.WeakValueDictionary[Place, Batch] = weakref.WeakValueDictionary()
        self._watched: dict[Place, Batch] = {}  # those with callbacks, which nobody else may hold
        self._counts = store.counts()
        self._late: list[Batch] = []  # written after the end
        self.release: Callable[[], None] = nobody  # lets go of the directory
        self._earlier = max(self._counts, default=0)  # the last segment of earlier runs
        self._used = store.used
        self._progress = store.progress
        self._refused = 0
        self._aside: dict[Place, Place] = {}  # refused batches that something before is not done with: from where to where
        self.pending_records = self._left()

    @property
    def state(self) -> State:
        """What the spool says of itself."""
        return self._store.state

    # -- the application's threads

    def add(self, topic: str, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """As `Feed.add`."""
        _check_room(progress)
        return super().add(topic, record, progress, on_delivery)

    def add_whole(self, topic: str, records: Conformed, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """As `Feed.add_whole`."""
        _check_room(progress)
        return super().add_whole(topic, records, progress, on_delivery)

    def lack(self, need: int) -> str:
        """As `Feed.lack`, of the spool too."""
        waiting = self.buffered + need
        if self.no_room and waiting > self.options.batch_bytes:
            return self.no_room
        if self.buffered and waiting > self.options.buffer_bytes:
            return f"{self.buffered} bytes wait for the disk, {need} more exceed buffer_bytes={self.options.buffer_bytes}"
        if self.pending_records and self._used + waiting > self._spool_bytes:
            limit = f"spool_bytes={self._spool_bytes}"
            return f"spool {self.path} has {self._used} bytes that are not committed, {need} more exceed {limit}"
        if len(self._watched) >= limits.SPOOL_WATCHED_MAX:
            return f"{len(self._watched)} batches with on_delivery wait for their outcome, which is the limit"
        return ""

    def new_batch(self, topic: str, room: int) -> Batch:
        """As `Feed.new_batch`; its outcome is waited for as long as it takes."""
        batch = Batch(topic, room, float("inf"), self.passing)
        batch.spool = self
        return batch

    def cork(self) -> None:
        """Nothing is kept back: it is another thread that takes it, and writes it meanwhile."""

    def offered(self) -> None:
        """A batch was closed: have it written."""
        with self.lock:
            self.work.notify()

    def await_spooled(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is durable here.

        Raises:
            TimeoutError: it is not after `timeout` seconds.
            TuttiError: it never will be.
        """
        outside("spooled() cannot be waited for")
        self.apart()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            while batch.place is None:
                if batch.done:
                    if batch.failure is not None:
                        batch.failure.throw()
                    return
                self.close_open()
                left = limits.POLL_US_MAX / 1e6 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    why = f": {self.no_room}" if self.no_room else ""
                    raise TimeoutError(f"not on the spool's disk after {timeout:g} s{why}")
                self.changed.wait(min(left, limits.POLL_US_MAX / 1e6))

    def spooled(self) -> Spooled:
        """What the spool holds at this moment."""
        with self.lock:
            return Spooled(self._left(), self._left(self._earlier), self._used, self._refused, self._progress)

    def resume(self, deadline: float) -> Resume:
        """Where the application goes on: behind the last record that is committed or in the spool. Called with an epoch open.

        Raises:
            Unavailable: the disk did not take what was sent until `deadline` (monotonic).
        """
        with self.lock:
            self.close_open()
            while self.closed and not self.ended:
                if time.monotonic() >= deadline:
                    raise Unavailable(f"spool {self.path} does not take what was sent: {self.no_room or 'its disk is slow'}")
                self.changed.wait(limits.POLL_US_MAX / 1e6)
            if self.ended:
                self.check()
            left = self._left()
            return Resume(self.committed.sequence + left, (self._progress if left else b"") or unwrap(self.committed.progress)[1])

    def _left(self, upto: int | None = None) -> int:
        """Records on the disk that have no outcome, in segments up to number `upto`. Called with the lock."""
        done, aside = self.done, self._aside.items()
        return sum(
            count - (done.records if number == done.segment else 0)
            for number, count in self._counts.items()
            if number >= done.segment and (upto is None or number <= upto)
        ) - sum(after.records - before.records for before, after in aside if upto is None or after.segment <= upto)

    # -- the spool's thread

    def group(self) -> list[Batch]:
        """The closed batches that are written next. Called with the lock."""
        group: list[Batch] = []
        size = 0
        for batch in self.closed:
            if size >= limits.SPOOL_GROUP_BYTES or len(group) >= limits.SPOOL_GROUP_BATCHES:
                break
            self._seal(batch)
            group.append(batch)
            size += batch.size
        return group

    def wrote(self, store: Store, batches: Sequence[Batch], places: Sequence[tuple[Place, int]]) -> None:
        """Batches are durable: their memory is free, unless the delivery takes them at once."""
        with self.lock:
            self.no_room = ""
            for batch, (place, end) in zip(batches, places, strict=True):
                self.closed.popleft()
                self.pending -= 1
                self.buffered -= batch.charge
                batch.place = place
                if self.ended:
                    self._late.append(batch)
                elif batch.callbacks is not None:
                    self._watched[place] = batch
                else:
                    self._live[place] = batch
                before = Place(place.segment, place.records - batch.count)
                if self._takes(place.segment) and self.has_space(batch.size) and store.passed(before, place, end):
                    self._hand_over(batch)
                else:
                    batch.body = b""
            self._note(store)
            self.roomy.notify_all()
            self.close_idle()
            self.changed.notify_all()
        self.wake()

    def _takes(self, segment: int) -> bool:
        return self.opened is not None and self.seek is None and segment <= self.state.sent and not self.ended

    def has_space(self, size: int) -> bool:
        """Whether a body of that size may be read for the delivery; one alone always may."""
        return not self.ready_bytes or self.ready_bytes + size <= self.options.buffer_bytes // 2

    def read(self, block: Block, turn: int) -> None:
        """A block was read back for that turn."""
        with self.lock:
            if turn != self.turn or self.opened is None or self.ended:
                return
            batch = self._holder(block)
            batch.body, batch.progress, batch.crc = block.body, block.progress, block.crc
            batch.raw_length, batch.size = block.raw_length, len(block.body)
            batch.min_timestamp, batch.max_timestamp = block.min_timestamp, block.max_timestamp
            if block.flags != self._flags:
                batch.codec = compression_of(block.flags)  # of another run; with less it may be too large for a frame
            self._hand_over(batch)
        self.wake()

    def _hand_over(self, batch: Batch) -> None:
        batch.charge = batch.size
        self.ready_bytes += batch.charge
        self.queue.append(batch)

    def refused(self, store: Store, block: Block, failure: Failure) -> None:
        """A batch that the log will not have was put aside, with the reason."""
        with self.lock:
            self.refusals.pop(block.place, None)
            batch = self._holder(block)
            self._refused += block.count
            batch.first_sequence = 0
            batch.settle(OFFSET_UNKNOWN, failure)
            self._note(store)
        LOG.error(
            "%d records of producer %s to topic %s are put aside in %s/refused: %s",
            block.count, self.state.producer, block.topic, self.path, failure.error,
        )  # fmt: skip
        self.finished([batch])
        batch.announce()

    def without(self, block: Block) -> tuple[Place, tuple[Place, ...]]:
        """How far all is done with if this batch does not go to the log, and what is aside beyond that. Nothing has changed."""
        with self.lock:
            aside = {**self._aside, block.before: block.place}
            done = reach(self.done, aside, self._counts)
            return done, tuple(sorted(before for before, after in aside.items() if after > done))

    def put_aside(self, block: Block) -> None:
        """This batch does not go to the log, which is written down."""
        with self.lock:
            self._aside[block.before] = block.place
            self._move_done(self.done)
            self._recount()

    def _recount(self) -> None:
        self.pending_records = self._left() + sum(batch.count for batch in self.closed)

    def _holder(self, block: Block) -> Batch:
        """The batch that somebody holds a receipt of, or one that stands for it. Called with the lock."""
        batch = self._watched.get(block.place) or self._live.get(block.place)
        if batch is None:
            batch = Batch(block.topic, 0, float("inf"), self.passing)
            batch.place, batch.whole, batch.count = block.place, block.whole, block.count
        return batch

    def pruned(self, store: Store) -> None:
        """Segments are gone."""
        with self.lock:
            self._note(store)
            self.roomy.notify_all()

    def lacks_room(self, error: DiskFull) -> None:
        """The disk is full: what is closed waits for it."""
        with self.lock:
            self.no_room = str(error)

    def fall(self, error: TuttiError) -> None:
        """The spool cannot be used any more."""
        with self.lock:
            self.broken = self.broken or error
            self.roomy.notify_all()
        self.wake()

    def _note(self, store: Store) -> None:
        self._counts, self._used, self._progress = store.counts(), store.used, store.progress

    def await_end(self) -> None:
        """Wait until the delivery has ended, which does not take long: it looks whether the spool is broken."""
        with self.lock:
            while not self.ended:
                self.changed.wait(limits.POLL_US_MAX / 1e6)

    def leftovers(self) -> None:
        """The producer is over: what came too late for the delivery has its outcome, too."""
        lost = Failure(self.broken or self.stopped or Unknown("the producer ended"))
        # What ended the producer is the outcome, as of what was on its way; a lack of room is that of what is not on the disk.
        reason = self.stopped if self.broken is None or isinstance(self.broken, DiskFull) else self.broken
        if reason is None or isinstance(reason, UsageError):  # it was closed
            reason = Unknown(f"the producer ended before the record had an outcome: it stays in spool {self.path}")
        kept = Failure(reason)
        with self.lock:
            batches = [*self._late, *self.closed]
            self.closed.clear()
            self._late.clear()
            self.pending, self.buffered = 0, 0
            for batch in batches:
                batch.settle(OFFSET_UNKNOWN, lost if batch.place is None else kept)
        self.finished(batches)
        for batch in batches:
            batch.announce()

    def _held(self) -> list[Batch]:
        """Batches on the disk that somebody waits for."""
        return [*self._watched.values(), *self._live.values()]

    # -- the I/O thread

    def began(self, log: str, word: Word) -> None:
        """An epoch begins, with this word of the log: the spool is read from behind that.

        Raises:
            Refused: the two do not belong together.
        """
        with self.lock:
            place = judge(msgspec.structs.replace(self.state, known=self.known, done=self.done), word, self._counts)
            self.word, self.log, self.known = word, log, place
            self._move_done(place)
            self.go_back(self.done)
            for refused in [refused for refused in self.refusals if refused <= place]:
                del self.refusals[refused]
            self._recount()

    def reached(self) -> tuple[Place, Place]:
        """Up to where the log is known to hold the spool, and what is done with."""
        with self.lock:
            return self.known, self.done

    def _move_done(self, place: Place) -> None:
        """What lies before that place is committed, and what was refused behind it is done with."""
        self.done = reach(max(self.done, place), self._aside, self._counts)
        for before in [before for before, after in self._aside.items() if after <= self.done]:
            del self._aside[before]

    def go_back(self, place: Place) -> None:
        """The queue is what stands behind that place, to be read from the disk."""
        with self.lock:
            for batch in self.queue:
                self.ready_bytes -= batch.charge
                batch.body, batch.first_sequence = b"", 0
            self.queue.clear()
            self.turn += 1
            self.seek = place
            self.work.notify()

    def let_go(self, batches: Iterable[Batch]) -> None:
        """These were sent and did not commit: they come again from the disk."""
        with self.lock:
            for batch in batches:
                self.ready_bytes -= batch.charge
                batch.body = b""

    def finished(self, batches: Iterable[Batch], committed: Resume | None = None) -> None:
        """As `Feed.finished`: what committed is done with on the disk too."""
        with self.lock:
            if committed is not None:
                self.committed = committed
            for batch in batches:
                if batch.failure is None or self.ended:  # else it was put aside, and is not counted any more
                    self.pending_records = max(0, self.pending_records - batch.count)
                if batch.body and batch.place is not None:
                    self.ready_bytes -= batch.charge
                if batch.failure is not None:
                    self._remember(batch.failure)
                if batch.place is not None and not self.ended:
                    if batch.failure is None:
                        self.known = max(self.known, batch.place)
                        self._move_done(batch.place)
                    self._live.pop(batch.place, None)
                    self._watched.pop(batch.place, None)
                batch.finish()
            self.work.notify()
            self.roomy.notify_all()
            self.close_idle()
            self.changed.notify_all()

    def set_opened(self, opened: Resume | None) -> None:
        """As `Feed.set_opened`; the spool's thread has work then."""
        with self.lock:
            super().set_opened(opened)
            self.work.notify()

    def seize(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """As `Feed.seize`, for an end: what is closed is still written, by the spool's thread, and what it holds stays there."""
        with self.lock:
            self.stopped, self.ended = self.stopped if self.ended else stop, ended
            self.close_open()
            taken = {id(batch): batch for batch in (*self.queue, *self._held()) if not batch.settled}
            self.queue.clear()
            self.pending_records = 0  # what nobody holds a receipt of has no outcome to be waited for
            self.work.notify()
            self.changed.notify_all()
            self.roomy.notify_all()
            return list(taken.values())

    def close(self) -> None:
        """As `Feed.close`."""
        with self.lock:
            super().close()
            self.work.notify()

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """As `Feed.orphan`."""
        self.release()
        super().orphan([*batches, *self.closed, *self._held()], parent)
        self.work = threading.Condition(self.lock)
        self.closed.clear()
        self._live.clear()
        self._watched.clear()

    def _remember(self, failure: Failure) -> None:
        if type(failure.error) is not Unknown:  # what was not delivered is safe
            super()._remember(failure)


def _check_room(progress: bytes) -> None:
    if len(progress) > PROGRESS_ROOM:
        raise UsageError(f"progress has {len(progress)} bytes; with a spool at most {PROGRESS_ROOM} are taken")
