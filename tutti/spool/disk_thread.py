"""Disk thread of a spool: writes and syncs batches, reads batches back, and deletes segments."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tutti import limits
from tutti.batching.receipt import outcome_thread
from tutti.data.frames.schema import compression_flags
from tutti.errors import DiskFailed, DiskFull, TuttiError
from tutti.spool.spool import Spool
from tutti.spool.store import SpoolStore

LOG = logging.getLogger("tutti.client")
US = 1e6


class DiskTask:
    """A task of the disk thread, with its own retry: on a full disk, one task may free the space that another task needs.

    Attributes:
        due: function that returns True if the task has work to do; called with the accumulator's lock.
        act: function that performs the task, or raises without effect.
        consequence: effect of a postponed task, as text for the log line about a full disk.
        retry_at: monotonic time of the next attempt after a full disk; 0 otherwise.
    """

    def __init__(self, due: Callable[[], bool], act: Callable[[], None], consequence: str) -> None:
        self.due, self.act, self.consequence = due, act, consequence
        self.retry_at = 0.0


class DiskThread:
    """Moves batches from the accumulator to the disk, and from the disk to the queue of the spool."""

    def __init__(self, spool: Spool, store: SpoolStore) -> None:
        """Create the thread; `start` runs it."""
        self._spool, self._store = spool, store
        self._accumulator = spool.accumulator
        self._flags = compression_flags(spool.accumulator.options.compression)
        self._may_have_blocks = True  # False if all blocks on the disk are read or in the queue
        self._steps = (
            DiskTask(spool.may_write, self._write, "records wait in memory"),
            DiskTask(self._may_read, self._read, "records wait in the spool"),
            DiskTask(self._may_prune, self._prune, "committed segments stay on the disk"),
        )
        self._restarts = 0
        spool.release = store.close
        self._thread = threading.Thread(target=self._run, name=f"tutti-spool-{spool.state.producer}", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system cannot start a thread. The directory is closed.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._spool.release()
            raise

    def stop(self) -> None:
        """Wait until all accepted records are durable or have failed. The caller must close the accumulator first."""
        self._spool.wake_disk_thread()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limits.STOP_US_MAX / US)

    # -- the thread

    def _run(self) -> None:
        outcome_thread.here = True
        spool = self._spool
        try:
            while not spool.broken and self._await_work():
                self._work()
        except TuttiError as error:
            spool.fail(error)
        except BaseException as error:  # includes SystemExit: threads that wait for outcomes must get an error
            LOG.exception("the spool's thread of producer %s ended with an internal error", spool.state.producer)
            spool.fail(DiskFailed(f"the spool's thread ended with an internal error: {error!r}"))
        finally:
            self._end()

    def _await_work(self) -> bool:
        """Wait until a task is due. Return False when the producer has ended and all closed batches are written."""
        spool = self._spool
        with self._accumulator.lock:
            while True:
                if self._accumulator.ended:
                    return spool.may_write()
                now = time.monotonic()
                due = [step.retry_at - now for step in self._steps if step.due()]
                if due and min(due) <= 0:
                    return True
                spool.work.wait(min([*due, limits.POLL_US_MAX / US]))

    def _may_read(self) -> bool:
        spool = self._spool
        if self._accumulator.opened is None or self._accumulator.ended:
            return False
        return spool.seek is not None or (
            self._may_have_blocks and spool.ready_bytes <= self._accumulator.options.buffer_bytes // 4
        )

    def _may_prune(self) -> bool:
        segments = self._store.segments
        first = segments[min(segments)] if len(segments) > 1 else None
        return first is not None and first.last <= self._spool.done

    def _work(self) -> None:
        for step in self._steps:
            if step.retry_at > time.monotonic():
                continue
            try:
                step.act()
                step.retry_at = 0.0
            except DiskFull as error:
                if not step.retry_at:
                    LOG.warning("%s: %s until the disk has free space", error, step.consequence)
                step.retry_at = time.monotonic() + limits.SPOOL_RETRY_US / US
                if step.act == self._write:
                    self._spool.set_disk_full(error)
                    if self._accumulator.ended:
                        raise

    def _prune(self) -> None:
        if self._store.prune(*self._spool.reached()):
            self._spool.pruned(self._store)

    def _write(self) -> None:
        spool, store = self._spool, self._store
        with self._accumulator.lock:
            batches = spool.group()
        if not batches:
            return
        # Write without the lock, so that `send` continues while the disk works.
        positions = store.append(batches, self._flags)
        try:
            self._mark_sent(positions[-1][0].segment)
        except DiskFull:
            pass  # `wrote` then queues no batch, and the thread reads the batches back when it can write the state
        finally:
            spool.wrote(store, batches, positions)  # also after an error, because the batches are on the disk
        self._may_have_blocks = not store.read_all

    def _mark_sent(self, segment: int) -> bool:
        """Record durably that records of a segment may be sent from now on. Return False if no epoch is open."""
        spool, store = self._spool, self._store
        with self._accumulator.lock:
            if self._accumulator.opened is None or self._accumulator.ended:
                return False
            log, start = spool.log, spool.epoch_start
        # After a restart, only records in segments up to `sent` can be in doubt (NOTES.md, rule 7), so raise `sent` before sending.
        if segment > store.state.sent:
            store.note_sent(segment, log, start)
        return True

    def _read(self) -> None:
        """Read back the next batches for the delivery. The next call continues at the first block that is not processed yet."""
        spool, store = self._spool, self._store
        with self._accumulator.lock:
            if not self._may_read():
                return
            if spool.seek is not None:
                store.seek(spool.seek)
                self._restarts, spool.seek = spool.restarts, None
            self._may_have_blocks = True
        size = 0
        while (block := store.next_block()) is not None:
            with self._accumulator.lock:
                if self._restarts != spool.restarts or self._accumulator.ended:
                    return
                failure = spool.refusals.get(block.position)
            if failure is not None and block.before not in store.aside:
                store.refuse(block, failure.error)
            if block.before in store.aside:
                # Record the refusal durably before a later batch is sent, so that the refused batch is not sent after a crash.
                store.note_aside(*spool.state_without(block))
                spool.skip_refused(block)
                store.advance()
                if failure is not None:
                    spool.refused(store, block, failure)
                continue
            if block.position <= spool.done:
                store.advance()
                continue
            # A return before `advance` makes the next call read this block again.
            if not self._mark_sent(block.position.segment):
                return
            store.advance()
            spool.read(block, self._restarts)
            size += len(block.body)
            # Stop reading when batches wait to be written, so that `send` does not wait for the end of a long backlog.
            if not spool.has_space(len(block.body)) or (self._accumulator.queue and size >= limits.SPOOL_GROUP_BYTES):
                return
        self._may_have_blocks = False

    def _end(self) -> None:
        spool, store = self._spool, self._store
        spool.await_end()
        try:
            if not isinstance(spool.broken, DiskFailed | DiskFull):
                while spool.may_write():  # write the accepted batches, even if an earlier block is corrupt
                    self._write()
                try:
                    # The segment of this run can also be deleted, because the next run writes a new one.
                    store.prune(*spool.reached(), closing=True)
                    if store.segments:
                        store.seal()
                except DiskFull as error:
                    # not a failure: accepted records are on the disk, and the next run deletes the segments
                    LOG.warning("%s", error)
        except TuttiError as error:
            LOG.warning("%s", error)
            spool.fail(error)
        finally:
            store.close()
            spool.fail_unsent()
