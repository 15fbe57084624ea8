"""The socket thread: waits for clients, other gateways, the disk and the clock, and gives the driver its turns."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection

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


class Loop:
    """Runs one driver over one client port and one transport."""

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
        """Put it together.

        Args:
            driver, port: what works, and the clients.
            transport: the one that the driver sends by.
            inbox: brings what the other threads report.
            beat: tells readers the time (us) of this thread's work.
            log: for the operator.
            look: called about once a second.
        """
        self._driver = driver
        self._port = port
        self._transport = transport
        self._inbox = inbox
        self._beat = beat
        self._log = log
        self._look = look
        self._mesh = frozenset(transport.sockets())
        # One for everything, and one without what clients say, for when nothing more is taken from them.
        self._all, self._others = select.poll(), select.poll()
        for poller in (self._all, self._others):
            for fd in (inbox.fd, *self._mesh):
                poller.register(fd, select.POLLIN)
        self._all.register(port.fd, select.POLLIN)
        self._others.register(port.room_fd, select.POLLIN)
        self._kept_at = 0.0
        self._heard_at = time.monotonic()
        self._trimmed = False
        self._shed_clients = False  # and memory was above its bound still

    def run(self, done: Callable[[], bool]) -> None:
        """Work until `done`, which is asked at least each half second."""
        driver, port, inbox, transport = self._driver, self._port, self._inbox, self._transport
        ready: Collection[int] = (port.fd, *self._mesh)
        while not done():
            happenings = inbox.take(limits.MAILBOX_ITEMS_A_TURN_MAX)
            if not self._mesh.isdisjoint(ready):
                happenings += transport.drain(limits.MESH_DRAIN_MESSAGES_MAX, limits.MESH_DRAIN_BYTES_MAX, ready)
            if happenings:
                driver.turn((), happenings)  # what the disk and the others finished leaves before anything new is looked at
            messages: list[Message] = []
            if port.fd in ready and driver.takes_messages:
                messages = port.drain(limits.DRAIN_MESSAGES_MAX, limits.DRAIN_BYTES_MAX)
            elif port.room_fd in ready:
                port.flush()  # nothing is taken: what is told leaves all the same
            if messages or not driver.wait_us():
                driver.turn(messages, ())
            if transport.next_us() is not None:
                transport.flush()  # what waits for its pace, or for room in the kernel, goes as far as it may
            now = time.monotonic()
            if messages:
                self._heard_at = now
                self._trimmed = False
            if now - self._kept_at >= _HOUSEKEEPING_S:
                self._kept_at = now
                self._keep_house(now)
            ready = self._wait(driver.takes_messages)

    def _wait(self, open_: bool) -> Collection[int]:
        """Sleep until something comes in; the descriptors that have something."""
        inbox = self._inbox
        unread = [self._port.fd] if open_ and self._port.unread else []
        if self._transport.unread:
            unread += self._mesh
        timeout_ms = self._sleep_ms() if inbox.sleep_begins() and not unread else 0
        ready = dict((self._all if open_ else self._others).poll(timeout_ms))
        inbox.sleep_ended(signalled=ready.pop(inbox.fd, None) is not None)
        ready.update(dict.fromkeys(unread, select.POLLIN))
        return ready

    def _sleep_ms(self) -> int:
        """How long neither the driver nor the transport has anything to do."""
        wait_us, due_us = self._driver.wait_us(), self._transport.next_us()
        return -(-(wait_us if due_us is None else min(wait_us, due_us)) // US_PER_MS)

    def _keep_house(self, now: float) -> None:
        self._beat(time.time_ns() // NS_PER_US)
        self._look()
        self._driver.meters.connections_refused = self._port.refused
        for reason in self._port.keep(reads=self._driver.takes_messages):
            self._log.warning("trouble at the client port", reason=reason)
        self._driver.network.look()
        self._driver.sweep()
        resident = memory.resident_bytes()
        if resident > limits.NODE_MEMORY_BYTES_MAX:
            self._shed(resident)
        elif not self._trimmed and now - self._heard_at > limits.TRIM_IDLE_US / US:
            memory.trim()
            self._trimmed = True
        if resident <= limits.NODE_MEMORY_BYTES_MAX:
            self._shed_clients = False

    def _shed(self, resident: int) -> None:
        """Drop what clients queued; where that was not it, what other gateways did, or who says it is one."""
        if not self._shed_clients:
            self._log.error("memory is above its bound: all client connections are closed", resident_bytes=resident)
            self._port.reopen()
            self._driver.drop_clients()
        else:
            self._log.error("memory is above its bound: all connections of other gateways are closed", resident_bytes=resident)
            self._transport.relieve()
        self._shed_clients = not self._shed_clients
        memory.trim()
