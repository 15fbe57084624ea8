"""The socket thread: waits for clients, the disk and the clock, and gives the driver its turns."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq
from structlog.typing import FilteringBoundLogger

from gateway.core import limits
from gateway.node import memory
from gateway.node.driver import Driver, Happening
from gateway.node.mailbox import Mailbox
from gateway.node.port import ClientPort, Message

US = 1_000_000
US_PER_MS = 1000
NS_PER_US = 1000
_HOUSEKEEPING_S = 1.0


class Loop:
    """Runs one driver over one client port."""

    def __init__(
        self,
        driver: Driver,
        port: ClientPort,
        inbox: Mailbox[Happening],
        beat: Callable[[int], None],
        log: FilteringBoundLogger,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Put it together; `inbox` brings what the other threads report, `beat` tells readers the time (us) of this one's work, and
        `look` is called about once a second.
        """
        self._driver = driver
        self._port = port
        self._inbox = inbox
        self._beat = beat
        self._log = log
        self._look = look
        self._poller = self._make_poller()
        self._kept_at = 0.0
        self._heard_at = time.monotonic()
        self._trimmed = False

    def _make_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._port.socket, zmq.POLLIN)
        poller.register(self._inbox.fd, zmq.POLLIN)
        return poller

    def run(self, done: Callable[[], bool]) -> None:
        """Work until `done`, which is asked at least each half second."""
        driver, port, inbox = self._driver, self._port, self._inbox
        readable = True
        while not done():
            happenings = inbox.take(limits.MAILBOX_ITEMS_A_TURN_MAX)
            if happenings:
                driver.turn((), happenings)  # what the disk finished leaves before anything new is looked at
            messages: list[Message] = []
            if readable and driver.takes_messages:
                messages = port.drain(limits.DRAIN_MESSAGES_MAX, limits.DRAIN_BYTES_MAX)
            if messages or not driver.wait_us():
                driver.turn(messages, ())
            now = time.monotonic()
            if messages:
                self._heard_at = now
                self._trimmed = False
            if now - self._kept_at >= _HOUSEKEEPING_S:
                self._kept_at = now
                self._keep_house(now)
            readable = self._wait(driver.takes_messages)

    def _wait(self, open_: bool) -> bool:
        """Sleep until something comes in; whether that may be a message.

        ZeroMQ's poll asks the socket first: no wake-up that a send swallowed is missed.
        """
        timeout_ms = -(-self._driver.wait_us() // US_PER_MS)
        inbox = self._inbox
        if not open_:
            inbox.wait(timeout_ms)
            return True
        if not inbox.sleep_begins():
            return True
        ready = dict(self._poller.poll(timeout_ms))
        inbox.sleep_ended(signalled=inbox.fd in ready)
        return self._port.socket in ready

    def _keep_house(self, now: float) -> None:
        self._beat(time.time_ns() // NS_PER_US)
        self._look()
        self._driver.sweep()
        resident = memory.resident_bytes()
        if resident > limits.NODE_MEMORY_BYTES_MAX:
            self._log.error("memory is above its bound: all client connections are closed", resident_bytes=resident)
            self._port.reopen()
            self._poller = self._make_poller()
            self._driver.drop_clients()
            memory.trim()
        elif not self._trimmed and now - self._heard_at > limits.TRIM_IDLE_US / US:
            memory.trim()
            self._trimmed = True
