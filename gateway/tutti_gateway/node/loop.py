"""The event loop of the socket thread: polls clients, other gateways, the disk threads and the clock, and runs the driver."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection
from typing import Any

import zmq
from structlog.typing import FilteringBoundLogger

from tutti_gateway.core import limits
from tutti_gateway.node.clients.port import ClientPort, Message
from tutti_gateway.node.common import memory
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.driver import Driver, Happening
from tutti_gateway.transport.interface import Transport

US = 1_000_000
US_PER_MS = 1000
NS_PER_US = 1000
_HOUSEKEEPING_S = 1.0
_READABLE = int(zmq.POLLIN)  # select.POLLIN has the same value
_NONE_SEEN = -1  # a change count that never occurs, so that the pollers are made again and every socket is checked


class Loop:
    """Event loop of one driver, one client port and one transport."""

    def __init__(
        self,
        driver: Driver,
        port: ClientPort,
        transport: Transport,
        inbox: Mailbox[Happening],
        beat: Callable[[int], None],
        log: FilteringBoundLogger,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the loop.

        Args:
            driver, port: the driver and the client port.
            transport: the transport that the driver sends with.
            inbox: queue of the events that other threads report.
            beat: publishes the time (us) to readers as this thread's heartbeat.
            log: takes messages for the operator.
            look: called about once a second.
        """
        self._driver = driver
        self._port = port
        self._transport = transport
        self._inbox = inbox
        self._beat = beat
        self._log = log
        self._every_second = look
        self._make_pollers()
        self._housekeeping_at = 0.0
        self._last_message_at = time.monotonic()
        self._trimmed = False
        self._clients_closed = False  # True if closing the client connections has not freed enough memory

    def _make_pollers(self) -> None:
        """Make two pollers: one for all sockets, and one without client messages for the time when the port is not drained."""
        self._seen_changes = self._transport.changes
        sockets = self._transport.sockets()
        self._transport_sockets = frozenset(sockets)
        # The poller of ZeroMQ costs four times as much as `select.poll`.
        kind: Callable[[], Any] = select.poll if all(isinstance(one, int) for one in sockets) else zmq.Poller
        self._poller, self._poller_without_clients = kind(), kind()
        for poller in (self._poller, self._poller_without_clients):
            poller.register(self._inbox.fd, _READABLE)
            for socket in sockets:
                poller.register(socket, _READABLE)
        self._poller.register(self._port.fd, _READABLE)
        self._poller_without_clients.register(self._port.room_fd, _READABLE)

    def run(self, done: Callable[[], bool]) -> None:
        """Run turns until `done` returns True; it is called at least twice a second."""
        driver, port, inbox, transport = self._driver, self._port, self._inbox, self._transport
        ready = self._sockets()
        while not done():
            happenings = inbox.take(limits.MAILBOX_ITEMS_A_TURN_MAX)
            if not self._transport_sockets.isdisjoint(ready):
                happenings += transport.drain(limits.MESH_DRAIN_MESSAGES_MAX, limits.MESH_DRAIN_BYTES_MAX, ready)
            if happenings:
                driver.turn((), happenings)  # replies that are ready leave before new client messages are read
            messages: list[Message] = []
            if port.fd in ready and driver.takes_messages:
                messages = port.drain(limits.DRAIN_MESSAGES_MAX, limits.DRAIN_BYTES_MAX)
            elif port.room_fd in ready:
                port.flush()  # replies leave even while the port is not drained
            if messages or not driver.wait_us():
                driver.turn(messages, ())
            if transport.next_us() is not None:
                transport.flush()  # sends what waited for pacing or for free space in a socket buffer
            now = time.monotonic()
            if messages:
                self._last_message_at = now
                self._trimmed = False
            if now - self._housekeeping_at >= _HOUSEKEEPING_S:
                self._housekeeping_at = now
                self._housekeeping(now)
            ready = self._wait(driver.takes_messages)

    def _sockets(self) -> Collection[object]:
        return (self._port.fd, *self._transport.sockets())

    def _wait(self, open_: bool) -> Collection[object]:
        """Sleep until a socket is readable or a timer expires; return the readable sockets.

        The poller of ZeroMQ checks each socket before it sleeps, so it misses no message that arrived during a send. A bare
        ZeroMQ descriptor only signals messages that arrive after the socket was found empty. So new sockets are all checked once.
        """
        if self._seen_changes != self._transport.changes:
            self._make_pollers()
            return self._sockets()
        inbox = self._inbox
        unread: list[object] = [self._port.fd] if open_ and self._port.unread else []
        if self._transport.unread:
            unread += self._transport.sockets()
        timeout_ms = self._sleep_ms() if inbox.sleep_begins() and not unread else 0
        ready: dict[object, int] = dict((self._poller if open_ else self._poller_without_clients).poll(timeout_ms))
        inbox.sleep_ended(signalled=ready.pop(inbox.fd, None) is not None)
        ready.update(dict.fromkeys(unread, _READABLE))
        return ready

    def _sleep_ms(self) -> int:
        """Return the time until the next timer of the driver or the transport, ms."""
        wait_us, due_us = self._driver.wait_us(), self._transport.next_us()
        return -(-(wait_us if due_us is None else min(wait_us, due_us)) // US_PER_MS)

    def _housekeeping(self, now: float) -> None:
        self._beat(time.time_ns() // NS_PER_US)
        self._every_second()
        self._driver.meters.connections_refused = self._port.refused
        for reason in self._port.keep(reads=self._driver.takes_messages):
            self._log.warning("problem at the client port", reason=reason)
        self._driver.network.look()
        self._driver.sweep()
        resident = memory.resident_bytes()
        if resident > limits.NODE_MEMORY_BYTES_MAX:
            self._free_memory(resident)
        elif not self._trimmed and now - self._last_message_at > limits.TRIM_IDLE_US / US:
            memory.trim()
            self._trimmed = True
        if resident <= limits.NODE_MEMORY_BYTES_MAX:
            self._clients_closed = False

    def _free_memory(self, resident: int) -> None:
        """Free memory: close the client connections; if memory stays above its limit, close those of the other gateways."""
        if not self._clients_closed:
            self._log.error("memory is above its limit: all client connections are closed", resident_bytes=resident)
            self._port.reopen()
            self._driver.drop_clients()
        else:
            self._log.error("memory is above its limit: all connections of other gateways are closed", resident_bytes=resident)
            self._transport.relieve()
        self._clients_closed = not self._clients_closed
        self._seen_changes = _NONE_SEEN
        memory.trim()
