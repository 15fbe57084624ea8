"""The event loop of the socket thread: polls clients, other gateways, the disk threads and the clock, and runs the driver."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection

from structlog.typing import FilteringBoundLogger

from tutti.runtime import malloc
from tutti_gateway.core import limits
from tutti_gateway.node.clients.port import ClientPort, Message
from tutti_gateway.node.common import process_memory
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.disk.log_thread import LogThread
from tutti_gateway.node.driver import Driver, DriverInput
from tutti_gateway.transport.interface import Transport

US = 1_000_000
US_PER_MS = 1000
NS_PER_US = 1000
_HOUSEKEEPING_S = 1.0


class Loop:
    """Event loop of one driver, one client port and one transport."""

    def __init__(
        self,
        driver: Driver,
        port: ClientPort,
        transport: Transport,
        inbox: Mailbox[DriverInput],
        beat: Callable[[int], None],
        log: FilteringBoundLogger,
        every_second: Callable[[], None] = lambda: None,
        disk: LogThread | None = None,
    ) -> None:
        """Create the loop.

        Args:
            driver, port: the driver and the client port.
            transport: the transport that the driver sends with.
            inbox: queue of the events that other threads report.
            beat: publishes the time (us) to readers, as this thread's heartbeat.
            log: receives messages for the operator.
            every_second: logs changes that the operator must know; called about once a second.
            disk: the disk thread, if this loop may sync frames itself.
        """
        self._driver = driver
        self._port = port
        self._transport = transport
        self._inbox = inbox
        self._beat = beat
        self._log = log
        self._every_second = every_second
        self._disk = disk
        self._transport_sockets = frozenset(transport.descriptors())
        # Above the limits of undecided work, the loop uses the second poller, which does not report new client messages.
        self._poller, self._poller_without_clients = select.poll(), select.poll()
        for poller in (self._poller, self._poller_without_clients):
            for fd in (inbox.fd, *self._transport_sockets):
                poller.register(fd, select.POLLIN)
        self._poller.register(port.fd, select.POLLIN)
        self._poller_without_clients.register(port.writable_fd, select.POLLIN)
        self._housekeeping_at = 0.0
        self._last_message_at = time.monotonic()
        self._trimmed = False
        self._clients_closed = False  # True if the last call of `_free_memory` closed the client connections

    def run(self, done: Callable[[], bool]) -> bool:
        """Run until `done` returns True, or until the disk thread has taken the loop over. Return False in the second case.

        `done` is called at least twice a second. The disk thread takes the loop over if a sync of this thread lasts too long.
        """
        driver, port, inbox, transport, disk = self._driver, self._port, self._inbox, self._transport, self._disk
        ready: Collection[int] = (port.fd, *self._transport_sockets)
        hold_us = 0
        synced = False  # True from an inline sync until the next poll
        while not done():
            inputs = inbox.drain(limits.MAILBOX_DRAIN_ITEMS_MAX)
            # Messages of other gateways are always read, because their votes decide frames, which reopens the client port.
            if not self._transport_sockets.isdisjoint(ready):
                inputs += transport.drain(limits.MESH_DRAIN_MESSAGES_MAX, limits.MESH_DRAIN_BYTES_MAX, ready)
            if inputs:
                driver.run_once((), inputs)  # replies that are ready are sent before new client messages are read
            messages: list[Message] = []
            # The limits are checked again after the poll, because messages of other gateways may have filled the undecided window.
            # After a hold, the port is drained without a further poll, except if an inline sync came between.
            if (hold_us or port.fd in ready) and driver.accepts_messages and not driver.hold_us():
                messages = port.drain(limits.DRAIN_MESSAGES_MAX, limits.DRAIN_BYTES_MAX)
            elif port.writable_fd in ready:
                port.flush()  # replies are sent even if the port is not drained
            wait_us = driver.wait_us()
            # Without client messages, the stack needs a step only if a timer is due.
            if messages or not wait_us:
                driver.run_once(messages, ())
                wait_us = driver.wait_us()
            if transport.next_us() is not None:
                transport.flush()  # sends messages that waited for pacing or for space in a socket buffer
                wait_us = self._next_us()
            now = time.monotonic()
            if messages:
                self._last_message_at = now
                self._trimmed = False
            if now - self._housekeeping_at >= _HOUSEKEEPING_S:
                self._housekeeping_at = now
                self._housekeeping(now)
                wait_us = self._next_us()
            # All sends have left and no object is half changed, so another thread could continue here if this sync stalls.
            if disk is not None and disk.inline.due:
                if not disk.sync_inline(not (inbox or port.unread or transport.unread)):
                    return False
                synced = True
                # The vote leaves before the next poll, because the coordinator waits for the vote. Clients wait for that poll too:
                # if their records were read before it, one sync could follow the other without a poll of the other gateways.
                ready, hold_us = (), 0
                continue
            hold_us = driver.hold_us()
            ready = self._wait(driver.accepts_messages and not hold_us, min(wait_us, hold_us) if hold_us else wait_us)
            if synced:
                synced = False
                if disk is not None and port.fd in ready:
                    disk.inline.pause()  # the sync has delayed a client, so records arrive too fast for inline syncs
        return True

    def _next_us(self) -> int:
        """Return the microseconds until the next timer of the driver or the transport."""
        wait_us, transport_us = self._driver.wait_us(), self._transport.next_us()
        return wait_us if transport_us is None else min(wait_us, transport_us)

    def _wait(self, with_clients: bool, wait_us: int) -> Collection[int]:
        """Sleep until input arrives, for at most `wait_us`. Return the descriptors that are ready."""
        inbox = self._inbox
        # No descriptor signals the messages that this process has received but not drained, so the loop must not sleep then.
        unread = [self._port.fd] if with_clients and self._port.unread else []
        if self._transport.unread:
            unread += self._transport_sockets
        # Milliseconds are rounded up: with a timeout of 0 just before a timer, the loop would spin until the timer is due.
        timeout_ms = -(-wait_us // US_PER_MS) if inbox.begin_sleep() and not unread else 0
        ready = [fd for fd, _ in (self._poller if with_clients else self._poller_without_clients).poll(timeout_ms)]
        inbox.end_sleep(signalled=inbox.fd in ready)
        return ready + unread if unread else ready

    def _housekeeping(self, now: float) -> None:
        self._beat(time.time_ns() // NS_PER_US)
        self._every_second()
        self._driver.counters.connections_refused = self._port.refused
        for reason in self._port.maintain(reads=self._driver.accepts_messages):
            self._log.warning("problem at the client port", reason=reason)
        self._driver.network.log_troubles()
        self._driver.sweep()
        resident = process_memory.resident_bytes()
        if resident > limits.NODE_MEMORY_BYTES_MAX:
            self._free_memory(resident)
        # Trim the heap only once in each idle period, because an idle process frees no further memory.
        elif not self._trimmed and now - self._last_message_at > limits.TRIM_IDLE_US / US:
            malloc.release_free_memory()
            self._trimmed = True
        if resident <= limits.NODE_MEMORY_BYTES_MAX:
            self._clients_closed = False

    def _free_memory(self, resident: int) -> None:
        """Close the client connections to free memory.

        If memory is still above its limit at the next call, close the connections of the other gateways instead.
        """
        if not self._clients_closed:
            self._log.error("memory is above its limit: all client connections are closed", resident_bytes=resident)
            self._port.reopen()
            self._driver.drop_clients()
        else:
            self._log.error("memory is above its limit: all connections of other gateways are closed", resident_bytes=resident)
            self._transport.release_memory()
        self._clients_closed = not self._clients_closed
        # The next check measures resident memory, which falls only when glibc returns the free pages to the system.
        malloc.release_free_memory()
