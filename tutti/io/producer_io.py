"""Producer I/O: sends and receives one producer's messages. The ordered delivery and each lane have separate connections.

An I/O thread, which several producers may share, runs the producer I/O.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from math import inf

from tutti import limits
from tutti.batching.accumulator import Accumulator, do_nothing
from tutti.batching.receipt import outcome_thread
from tutti.common.credentials import Credentials
from tutti.common.gateway_url import Address
from tutti.common.stats import ProducerStats
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.sender import Sender
from tutti.delivery.session import State
from tutti.delivery.unordered import UnorderedDelivery
from tutti.errors import TuttiError, Unavailable, Unknown
from tutti.io.endpoints import Endpoints
from tutti.io.io_thread import IOThread, run
from tutti.io.session_connection import SessionConnection
from tutti.io.zmtp_connection import ZmtpConnection, connection_failure
from tutti.spool.disk_thread import DiskThread

LOG = logging.getLogger("tutti.client")
US = 1e6
_POLL_S = limits.POLL_US_MAX / US


class ProducerIO:
    """Runs the ordered delivery of a producer over one connection at a time, and its lanes over parallel connections.

    `ThreadedIO` documents the attributes `io_thread`, `due` and `alarm`.
    """

    io_thread: IOThread | None = None

    def __init__(self, delivery: OrderedDelivery, addresses: list[Address], credentials: Credentials | None = None) -> None:
        """Prepare; call `start` to connect."""
        self.delivery = delivery
        self._credentials = credentials
        self.lanes: UnorderedDelivery | None = None
        self.disk_thread: DiskThread | None = None
        self.pid = os.getpid()
        self.due = self.alarm = inf
        self._addresses = addresses
        self._asleep = False
        self._run_requested = False  # True if a thread requested a run after the current run took its batches
        self._stopping = False
        self._released = False
        self._check_at = 0.0  # monotonic time of the next run for another reason than a receipt or a record
        self._finished = threading.Event()
        self._ordered_connection = SessionConnection(delivery, Endpoints(addresses), self, credentials)
        self._connections: dict[Sender, SessionConnection] = {delivery: self._ordered_connection}

    def start(self) -> None:
        """Start to connect.

        Raises:
            Unavailable: the process has no free descriptor or thread.
        """
        try:
            if self.disk_thread is not None:
                self.disk_thread.start()
            run(self)
        except (OSError, RuntimeError) as error:
            self.delivery.accumulator.close()
            self.stop()
            what = (
                connection_failure(error)
                if isinstance(error, OSError)
                else f"{error}: raise the thread limit, or use fewer threads"
            )
            raise Unavailable(what) from error

    def add_lanes(self, lanes: UnorderedDelivery) -> None:
        """Run these lanes too from now on. May be called in any thread."""
        # Set `wake` before the lanes become visible, so that their first record wakes the I/O thread.
        lanes.accumulator.wake = self.wake
        self.lanes = lanes
        self.wake()

    def wake(self) -> None:
        """Request a run. Callable in any thread, with or without the accumulator's lock."""
        # No request is lost: `wake` sets `_run_requested`, then reads `_asleep`; a run sets `_asleep`, then reads `_run_requested`.
        self._run_requested = True
        if self._asleep:
            self._asleep = False
            if self.io_thread is not None:
                self.io_thread.request_run(self)

    def stop(self) -> None:
        """Stop the producer. Records without an outcome fail, but spooled records stay in the spool."""
        self._stopping = True
        self.wake()
        # In a callback, do not wait: callbacks run in the I/O thread, which cannot wait for itself.
        if self.io_thread is not None and not getattr(outcome_thread, "here", False):
            self._finished.wait(limits.STOP_US_MAX / US)
        if self.disk_thread is not None:
            self.disk_thread.stop()

    def release(self) -> None:
        """Stop as soon as all records have outcomes, because the application dropped the producer."""
        self._released = True
        self.wake()

    def orphan(self) -> None:
        """In a forked child, fail all records, because the child has no I/O thread."""
        self._asleep = False
        self._finished.set()
        self.delivery.source.orphan(self.delivery.window, self.pid)
        if self.lanes is not None:
            self.lanes.accumulator.orphan(self.lanes.batches(), self.pid)
        self._detach()

    def report(self, seconds: float) -> str:
        """Return an error text with the last result at each address."""
        endpoints, trouble = self._ordered_connection.endpoints, self.delivery.session.trouble
        results = endpoints.summary()
        last = f"; last answer: {trouble}" if trouble and trouble not in results else ""
        return f"no gateway accepted producer {self.delivery.name!r} within {seconds:g} s: {results}{last}{endpoints.advice()}"

    @property
    def name(self) -> str:
        """The name of the producer."""
        return self.delivery.name

    @property
    def ended(self) -> bool:
        """True if the producer is closed, or has ended with an error."""
        return self.delivery.accumulator.ended

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints of the ordered delivery."""
        return self._ordered_connection.endpoints

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """The accumulators of the producer."""
        return (self.delivery.accumulator,) if self.lanes is None else (self.delivery.accumulator, self.lanes.accumulator)

    def stats(self) -> ProducerStats:
        """Return the producer's statistics, without those of its spool. May be called in any thread."""
        now, connection, session = time.monotonic(), self._ordered_connection, self.delivery.session
        # An accumulator ends first, so the statistics never show an ended producer as connected.
        end = self.delivery.accumulator.stopped if self.ended else None
        connected = connection.log.connected and end is None
        # The list of lanes is read before the total of ended lanes, so a lane that ends meanwhile is never missing from the sum.
        windows = [sender.window for sender in (self.delivery, *(self.lanes.senders if self.lanes is not None else ()))]
        resent = sum(window.records_resent for window in windows)
        resent += self.lanes.resent_by_ended_lanes if self.lanes is not None else 0
        sent = acknowledged = failed = (0, 0)
        buffered_records = buffered_bytes = 0
        for accumulator in self.accumulators:
            with accumulator.lock:
                totals, still_open = accumulator.totals, accumulator.open_records()
                sent = sent[0] + totals.sent[0] + still_open, sent[1] + totals.sent[1]
                acknowledged = acknowledged[0] + totals.acknowledged[0], acknowledged[1] + totals.acknowledged[1]
                failed = failed[0] + totals.failed[0], failed[1] + totals.failed[1]
                buffered_records += accumulator.pending_records + still_open
                buffered_bytes += accumulator.buffered
        return ProducerStats(
            name=self.name,
            gateway=str(connection.endpoints.current) if connected else "",
            last_error=session.trouble if end is None else str(end),
            connected=connected,
            outage=connection.log.outage(now),
            epoch=session.epoch,
            reconnects=connection.log.reconnects,
            failovers=connection.log.failovers,
            records_sent=sent[0],
            bytes_sent=sent[1],
            records_acknowledged=acknowledged[0],
            bytes_acknowledged=acknowledged[1],
            records_failed=failed[0],
            bytes_failed=failed[1],
            records_buffered=buffered_records,
            bytes_buffered=buffered_bytes,
            records_in_flight=sum(window.in_flight for window in windows),
            bytes_in_flight=sum(window.bytes_in_flight for window in windows),
            records_resent=resent,
            records_spooled=0,
            bytes_spooled=0,
        )

    def undelivered(self) -> int:
        """Return the number of records that have no outcome."""
        return sum(accumulator.undelivered() for accumulator in self.accumulators)

    def flush(self, timeout: float | None) -> int:
        """Wait up to `timeout` seconds for all outcomes. Return the number of records without an outcome.

        Raises:
            UsageError: called in `on_delivery`, in a signal handler that interrupted this producer, or in a forked child.
        """
        if self.pid != os.getpid():
            self.delivery.accumulator.check()  # raises in a forked child, which cannot wait for its parent's records
        deadline = None if timeout is None else time.monotonic() + timeout
        accumulators = self.accumulators
        for accumulator in accumulators[1:]:
            accumulator.flush(0.0)  # close the open unordered batch at once, before the wait for ordered batches
        return sum(
            accumulator.flush(None if deadline is None else max(0.0, deadline - time.monotonic())) for accumulator in accumulators
        )

    # -- in the I/O thread

    def watch(self, connection: ZmtpConnection) -> None:
        """Watch a new connection; its events request a run."""
        if self.io_thread is not None:
            self.io_thread.watch(connection, self)

    def unwatch(self, connection: ZmtpConnection) -> None:
        """Stop watching a connection that is about to be closed."""
        if self.io_thread is not None:
            self.io_thread.unwatch(connection)

    def run_once(self) -> bool:
        """Perform the actions that are due, without blocking. Return True if the producer has ended."""
        self._asleep = False
        if (self._stopping or self._released or self.delivery.session.state is State.ENDED) and self._end_if_due():
            self._close()
            return True
        now = time.monotonic()
        delivery, lanes = self.delivery, self.lanes
        # Callbacks that run while answers are handled may send records; `cork` collects these records in one batch.
        delivery.accumulator.cork()
        for connection in self._connections.values():
            connection.receive(now)
        delivery.accumulator.uncork()
        self._run_requested = False
        delivery.work(now)
        if lanes is not None and delivery.session.state is not State.ENDED:
            lanes.accumulator.cork()
            lanes.work(now)
            lanes.accumulator.uncork()
            self._update_connections(lanes)
        for connection in self._connections.values():
            if connection.session.outbox or connection.session.drop:
                connection.send(now)
        if delivery.session.state is State.ENDED:
            self.due = 0.0
            return False
        ordinary = self._is_ordinary(now)
        if not ordinary:
            for connection in self._connections.values():
                connection.report(now)
        self._asleep = True  # from here on, new records wake the thread
        if self._run_requested:
            self.due = 0.0
        elif ordinary:
            self._check_at = self.due = min(self._check_at, delivery.due_at)
        else:
            delivery.answered = False
            self._check_at = self.due = self._next_time(time.monotonic())
        return False

    def _is_ordinary(self, now: float) -> bool:
        """Return True if this run at most handled receipts and sent batches, so that `_check_at` is still valid.

        Receipts and batches in flight only postpone the next action, except for the delivery deadline of a batch (`due_at`). They
        also change nothing that `SessionConnection.report` logs while the client is connected.
        """
        delivery = self.delivery
        return (
            now < self._check_at
            and not self._stopping  # `run_once` may have cleared the run request of `stop`
            and self.lanes is None
            and not delivery.answered
            and not delivery.source.queue
            and delivery.accumulator.linger_until is None
            and self._ordered_connection.log.connected
            and not self._ordered_connection.has_messages
        )

    def fail(self, error: BaseException) -> None:
        """End the producer after an exception in `run_once`, so that all waiting threads get an error."""
        self._end(Unknown(f"the producer's I/O thread ended with an internal error: {error!r}"))
        self._close()

    def _close(self) -> None:
        self._ordered_connection.log.end(time.monotonic())
        for connection in self._connections.values():
            connection.close()
        self._asleep = False
        self._stopping = True
        self._detach()
        self._finished.set()

    def _detach(self) -> None:
        for accumulator in self.accumulators:
            accumulator.wake = do_nothing  # break the reference cycle

    def _end_if_due(self) -> bool:
        delivery = self.delivery
        if delivery.session.state is State.ENDED:
            self._end(delivery.accumulator.stopped or Unknown("the producer ended"))
            return True
        if self._stopping or (self._released and not self.undelivered()):
            for connection in self._connections.values():
                connection.bye()
            self._end(Unknown("the producer was closed before the record had an outcome"))
            return True
        return False

    def _end(self, error: TuttiError) -> None:
        if self.delivery.session.state is not State.ENDED:
            self.delivery.end(error)
        if self.lanes is not None:
            self.lanes.end(error)

    def _update_connections(self, lanes: UnorderedDelivery) -> None:
        """Keep one session connection for each current lane."""
        self._ordered_connection.probes = False  # the wait for a probe would delay the lanes
        for sender in [sender for sender in self._connections if sender is not self.delivery and sender not in lanes.senders]:
            self._connections.pop(sender).bye()
        for lane in lanes.senders:
            if lane not in self._connections:
                # A gateway whose lane waits for outcomes was unavailable recently, so a new lane tries this gateway last.
                waiting = {
                    address
                    for connection in self._connections.values()
                    if connection.sender.only_gateway[0]
                    for address in connection.addresses
                }
                endpoints = Endpoints(self._addresses, gateways=lanes.gateways, last=waiting)
                self._connections[lane] = connection = SessionConnection(lane, endpoints, self, self._credentials)
                connection.probes = False

    def _next_time(self, now: float) -> float:
        """Return the monotonic time of the next run if no message arrives before; 0 means at once."""
        delivery, lanes = self.delivery, self.lanes
        # New work may have come up since `work` ran, for example records that a callback sent.
        if self._stopping or delivery.accumulator.rejected or (delivery.source.queue and delivery.may_send(now)):
            return 0.0
        until = min(now + _POLL_S, delivery.next_time(now))
        if lanes is not None:
            if lanes.accumulator.rejected or lanes.may_work(now):
                return 0.0
            until = min(until, lanes.next_time(now))
        for connection in self._connections.values():
            until = min(until, connection.due())
        return until
