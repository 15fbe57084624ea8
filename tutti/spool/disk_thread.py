"""Disk thread of a spool: writes, syncs, reads back and deletes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tutti import limits
from tutti.batching.receipt import outcome_thread
from tutti.data.frames.schema import compression_flags
from tutti.errors import DiskFailed, DiskFull, TuttiError
from tutti.spool.accumulator import SpooledAccumulator
from tutti.spool.store import SpoolStore

LOG = logging.getLogger("tutti.client")
US = 1e6


class DiskTask:
    """One task of the thread. On a full disk, a task may free the space that another one needs, so each is retried alone.

    Attributes:
        due: returns True if there is something to do. Called with the accumulator's lock.
        act: does it, or raises without effect.
        lack: the consequence of a failure, for the log.
        again: monotonic time of the next attempt after a full disk; 0 otherwise.
    """

    def __init__(self, due: Callable[[], bool], act: Callable[[], None], lack: str) -> None:
        self.due, self.act, self.lack = due, act, lack
        self.again = 0.0


class DiskThread:
    """Moves batches from the accumulator to the disk, and from the disk to the accumulator's queue."""

    def __init__(self, accumulator: SpooledAccumulator, store: SpoolStore) -> None:
        """Prepare; `start` runs the thread."""
        self._accumulator, self._store = accumulator, store
        self._flags = compression_flags(accumulator.options.compression)
        self._may_have_blocks = True  # True if the disk may have blocks to read
        self._steps = (
            DiskTask(lambda: bool(accumulator.closed), self._write, "records wait in memory"),
            DiskTask(self._may_read, self._read, "records wait in the spool"),
            DiskTask(self._may_prune, self._prune, "committed segments stay on the disk"),
        )
        self._turn = 0
        accumulator.release = store.close
        self._thread = threading.Thread(target=self._run, name=f"tutti-spool-{accumulator.state.producer}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread for it. The directory is closed.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._accumulator.release()
            raise

    def stop(self) -> None:
        """Wait until all accepted records are durable, or cannot be. The accumulator is closed already."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limits.STOP_US_MAX / US)

    # -- the thread

    def _run(self) -> None:
        outcome_thread.here = True
        accumulator = self._accumulator
        try:
            while not accumulator.broken and self._await_work():
                self._work()
        except TuttiError as error:
            accumulator.fall(error)
        except BaseException as error:  # whatever the error is, waiting threads must get an outcome
            LOG.exception("the spool's thread of producer %s ended with an internal error", accumulator.state.producer)
            accumulator.fall(DiskFailed(f"the spool's thread ended with an internal error: {error!r}"))
        finally:
            self._end()

    def _await_work(self) -> bool:
        """Wait until there is something to do. Return False at the end."""
        accumulator = self._accumulator
        with accumulator.lock:
            while True:
                if accumulator.ended:
                    return bool(accumulator.closed)
                now = time.monotonic()
                due = [step.again - now for step in self._steps if step.due()]
                if due and min(due) <= 0:
                    return True
                accumulator.work.wait(min([*due, limits.POLL_US_MAX / US]))

    def _may_read(self) -> bool:
        accumulator = self._accumulator
        if accumulator.opened is None or accumulator.ended:
            return False
        return accumulator.seek is not None or (
            self._may_have_blocks and accumulator.ready_bytes <= accumulator.options.buffer_bytes // 4
        )

    def _may_prune(self) -> bool:
        segments = self._store.segments
        first = segments[min(segments)] if len(segments) > 1 else None
        return first is not None and first.last <= self._accumulator.done

    def _work(self) -> None:
        for step in self._steps:
            if step.again > time.monotonic():
                continue
            try:
                step.act()
                step.again = 0.0
            except DiskFull as error:
                if not step.again:
                    LOG.warning("%s: %s until the disk has free space", error, step.lack)
                step.again = time.monotonic() + limits.SPOOL_RETRY_US / US
                if step.act == self._write:
                    self._accumulator.lacks_room(error)
                    if self._accumulator.ended:
                        raise

    def _prune(self) -> None:
        if self._store.prune(*self._accumulator.reached()):
            self._accumulator.pruned(self._store)

    def _write(self) -> None:
        accumulator, store = self._accumulator, self._store
        with accumulator.lock:
            batches = accumulator.group()
        if not batches:
            return
        places = store.append(batches, self._flags)
        try:
            self._mark_sent(places[-1][0].segment)
        except DiskFull:
            pass  # the batches are not queued, and are read back once the state can be written
        finally:
            accumulator.wrote(store, batches, places)  # runs once in every case, as the batches are on the disk
        self._may_have_blocks = not store.read_all

    def _mark_sent(self, segment: int) -> bool:
        """Note durably that records of that segment are sent. Return True if they may be sent."""
        accumulator, store = self._accumulator, self._store
        with accumulator.lock:
            if accumulator.opened is None or accumulator.ended:
                return False
            log, word = accumulator.log, accumulator.word
        if segment > store.state.sent:
            store.note_sent(segment, log, word)
        return True

    def _read(self) -> None:
        """Read back the next batches of the delivery. An unfinished block is the next block of the next call."""
        accumulator, store = self._accumulator, self._store
        with accumulator.lock:
            if not self._may_read():
                return
            if accumulator.seek is not None:
                store.seek(accumulator.seek)
                self._turn, accumulator.seek = accumulator.turn, None
            self._may_have_blocks = True
        size = 0
        while (block := store.next_block()) is not None:
            with accumulator.lock:
                if self._turn != accumulator.turn or accumulator.ended:
                    return
                failure = accumulator.refusals.get(block.place)
            if failure is not None and block.before not in store.aside:
                store.refuse(block, failure.error)
            if block.before in store.aside:
                store.note_aside(*accumulator.without(block))
                accumulator.put_aside(block)
                store.take()
                if failure is not None:
                    accumulator.refused(store, block, failure)
                continue
            if block.place <= accumulator.done:
                store.take()
                continue
            if not self._mark_sent(block.place.segment):
                return
            store.take()
            accumulator.read(block, self._turn)
            size += len(block.body)
            if not accumulator.has_space(len(block.body)) or (accumulator.closed and size >= limits.SPOOL_GROUP_BYTES):
                return
        self._may_have_blocks = False

    def _end(self) -> None:
        accumulator, store = self._accumulator, self._store
        accumulator.await_end()
        try:
            if not isinstance(accumulator.broken, DiskFailed | DiskFull):
                while accumulator.closed:  # accepted batches are written even if an earlier block is corrupt
                    self._write()
                try:
                    store.prune(*accumulator.reached(), closing=True)
                    if store.segments:
                        store.seal()
                except DiskFull as error:
                    LOG.warning("%s", error)  # the next run deletes the segments; accepted records are on the disk
        except TuttiError as error:
            LOG.warning("%s", error)
            accumulator.fall(error)
        finally:
            store.close()
            accumulator.leftovers()
