"""The spool's thread: the one that writes, syncs, reads back and deletes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tutti import limits
from tutti.batching.receipt import bringer
from tutti.data.frames.schema import compression_flags
from tutti.errors import DiskFailed, DiskFull, TuttiError
from tutti.spool.accumulator import SpooledFeed
from tutti.spool.store import Store

LOG = logging.getLogger("tutti.client")
US = 1e6


class Step:
    """Something that the thread does, on its own: where one finds no room another may make some.

    Attributes:
        due: whether there is something to do. Called with the feed's lock.
        act: does it, or raises with nothing done.
        lack: what it means that it is not done.
        again: when it is tried again on a disk that was full (monotonic); 0 if it was not.
    """

    def __init__(self, due: Callable[[], bool], act: Callable[[], None], lack: str) -> None:
        self.due, self.act, self.lack = due, act, lack
        self.again = 0.0


class Spooler:
    """Moves batches from the feed to the disk, and from the disk to the feed's queue."""

    def __init__(self, feed: SpooledFeed, store: Store) -> None:
        """Prepare; `start` begins."""
        self._feed, self._store = feed, store
        self._flags = compression_flags(feed.options.compression)
        self._behind = True  # whether something may be there to be read
        self._steps = (
            Step(lambda: bool(feed.closed), self._write, "records wait in memory"),
            Step(self._may_read, self._read, "records wait in the spool"),
            Step(self._may_prune, self._prune, "what is committed stays"),
        )
        self._turn = 0
        feed.release = store.close
        self._thread = threading.Thread(target=self._run, name=f"tutti-spool-{feed.state.producer}", daemon=True)

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: there is no thread for it. The directory is let go of.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._feed.release()
            raise

    def stop(self) -> None:
        """Wait until everything that was accepted is on the disk, or cannot be; the feed is closed already."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limits.STOP_US_MAX / US)

    # -- the thread

    def _run(self) -> None:
        bringer.here = True
        feed = self._feed
        try:
            while not feed.broken and self._await_work():
                self._work()
        except TuttiError as error:
            feed.fall(error)
        except BaseException as error:  # whatever it was, nobody else tells those who wait
            LOG.exception("the spool's thread of producer %s ended", feed.state.producer)
            feed.fall(DiskFailed(f"the spool's thread ended by a fault of its own: {error!r}"))
        finally:
            self._end()

    def _await_work(self) -> bool:
        """Wait until there is something to do; False at the end."""
        feed = self._feed
        with feed.lock:
            while True:
                if feed.ended:
                    return bool(feed.closed)
                now = time.monotonic()
                due = [step.again - now for step in self._steps if step.due()]
                if due and min(due) <= 0:
                    return True
                feed.work.wait(min([*due, limits.POLL_US_MAX / US]))

    def _may_read(self) -> bool:
        feed = self._feed
        if feed.opened is None or feed.ended:
            return False
        return feed.seek is not None or (self._behind and feed.ready_bytes <= feed.options.buffer_bytes // 4)

    def _may_prune(self) -> bool:
        segments = self._store.segments
        first = segments[min(segments)] if len(segments) > 1 else None
        return first is not None and first.last <= self._feed.done

    def _work(self) -> None:
        for step in self._steps:
            if step.again > time.monotonic():
                continue
            try:
                step.act()
                step.again = 0.0
            except DiskFull as error:
                if not step.again:
                    LOG.warning("%s: %s until there is room", error, step.lack)
                step.again = time.monotonic() + limits.SPOOL_RETRY_US / US
                if step.act == self._write:
                    self._feed.lacks_room(error)
                    if self._feed.ended:
                        raise

    def _prune(self) -> None:
        if self._store.prune(*self._feed.reached()):
            self._feed.pruned(self._store)

    def _write(self) -> None:
        feed, store = self._feed, self._store
        with feed.lock:
            batches = feed.group()
        if not batches:
            return
        places = store.append(batches, self._flags)
        try:
            self._mark_sent(places[-1][0].segment)
        except DiskFull:
            pass  # none is handed over then: they are read back when it can be written down
        finally:
            feed.wrote(store, batches, places)  # they are on the disk, whatever else: once
        self._behind = not store.read_all

    def _mark_sent(self, segment: int) -> bool:
        """Have it written down that records of that segment leave; whether they may."""
        feed, store = self._feed, self._store
        with feed.lock:
            if feed.opened is None or feed.ended:
                return False
            log, word = feed.log, feed.word
        if segment > store.state.sent:
            store.note_sent(segment, log, word)
        return True

    def _read(self) -> None:
        """Read back what the delivery is to have next. Where it stops a block that was not dealt with is the next one again."""
        feed, store = self._feed, self._store
        with feed.lock:
            if not self._may_read():
                return
            if feed.seek is not None:
                store.seek(feed.seek)
                self._turn, feed.seek = feed.turn, None
            self._behind = True
        size = 0
        while (block := store.next_block()) is not None:
            with feed.lock:
                if self._turn != feed.turn or feed.ended:
                    return
                failure = feed.refusals.get(block.place)
            if failure is not None and block.before not in store.aside:
                store.refuse(block, failure.error)
            if block.before in store.aside:
                store.note_aside(*feed.without(block))
                feed.put_aside(block)
                store.take()
                if failure is not None:
                    feed.refused(store, block, failure)
                continue
            if block.place <= feed.done:
                store.take()
                continue
            if not self._mark_sent(block.place.segment):
                return
            store.take()
            feed.read(block, self._turn)
            size += len(block.body)
            if not feed.has_space(len(block.body)) or (feed.closed and size >= limits.SPOOL_GROUP_BYTES):
                return
        self._behind = False

    def _end(self) -> None:
        feed, store = self._feed, self._store
        feed.await_end()
        try:
            if not isinstance(feed.broken, DiskFailed | DiskFull):
                while feed.closed:  # accepted, and so written, also where something before it is damaged
                    self._write()
                try:
                    store.prune(*feed.reached(), closing=True)
                    if store.segments:
                        store.seal()
                except DiskFull as error:
                    LOG.warning("%s", error)  # the next run does it; what was accepted is on the disk
        except TuttiError as error:
            LOG.warning("%s", error)
            feed.fall(error)
        finally:
            store.close()
            feed.leftovers()
