"""The spool's thread: the one that writes, syncs, reads back and deletes."""

from __future__ import annotations

import logging
import threading
import time

from gateway.client.receipt import bringer
from gateway.client.spool.feed import SpooledFeed
from gateway.client.spool.store import Store
from gateway.core import limits
from gateway.data.schema import compression_flags
from gateway.errors import DiskFailed, DiskFull, TuttiError

LOG = logging.getLogger("tutti.client")
US = 1e6


class Spooler:
    """Moves batches from the feed to the disk, and from the disk to the feed's queue."""

    def __init__(self, feed: SpooledFeed, store: Store) -> None:
        """Prepare; `start` begins."""
        self._feed, self._store = feed, store
        self._flags = compression_flags(feed.options.compression)
        self._behind = True  # whether something may be there to be read
        self._retry_at = 0.0  # when a disk that was full is tried again
        self._turn = 0
        feed.release = store.close
        self._thread = threading.Thread(target=self._run, name=f"tutti-spool-{feed.state.producer}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

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
                until = self._retry_at - time.monotonic()
                if until <= 0 and (feed.closed or self._may_read() or self._may_prune()):
                    return True
                feed.work.wait(min(until, limits.POLL_US_MAX / US) if until > 0 else limits.POLL_US_MAX / US)

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
        feed, store = self._feed, self._store
        try:
            self._write()
            self._read()
            if store.prune(*feed.reached()):
                feed.pruned(store)
            self._retry_at = 0.0
        except DiskFull as error:
            feed.lacks_room(error)
            self._retry_at = time.monotonic() + limits.SPOOL_RETRY_US / US
            if feed.ended:
                raise

    def _write(self) -> None:
        feed, store = self._feed, self._store
        with feed.lock:
            batches = feed.group()
        if not batches:
            return
        places = store.append(batches, self._flags)
        self._mark_sent(places[-1][0].segment)
        feed.wrote(store, batches, places)
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
        """Read back what the delivery is to have next."""
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
            if failure is not None:
                store.refuse(block, failure.error)
            if failure is not None or block.before in store.aside:
                store.note_aside(*feed.put_aside(block))
            if failure is not None:
                feed.refused(store, block, failure)
            if block.before in store.aside or block.place <= feed.done:
                continue
            if not self._mark_sent(block.place.segment):
                return
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
                store.prune(*feed.reached(), closing=True)
                if store.segments:
                    store.seal()
        except TuttiError as error:
            LOG.warning("%s", error)
            feed.fall(error)
        finally:
            store.close()
            feed.leftovers()
