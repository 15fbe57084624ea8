"""Session connection: moves messages between one sender and its current connection. It tries one address after another."""

from __future__ import annotations

import logging
from math import inf
from typing import Protocol

from tutti import limits
from tutti.common.credentials import Credentials
from tutti.common.gateway_url import Address
from tutti.data.client_protocol import Bye, encode_control
from tutti.data.frames.frame import Buffer
from tutti.delivery.sender import Sender
from tutti.delivery.session import State
from tutti.errors import ConfigError, FormatError
from tutti.io.endpoints import Endpoints
from tutti.io.port_probe import ProbeResult, RunningProbe, explain_message, start_probe
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection, connection_failure

LOG = logging.getLogger("tutti.client")
US = 1e6


class ConnectionWatch(Protocol):
    """The part of the producer's I/O that a session connection uses."""

    def watch(self, connection: ZmtpConnection) -> None:
        """Watch a new connection; its events request a run."""

    def unwatch(self, connection: ZmtpConnection) -> None:
        """Stop watching a connection that is about to be closed."""

    def wake(self) -> None:
        """Request a run. May be called in any thread."""


class _NoWatch:
    """Replaces the `ConnectionWatch` of a closed session connection, so that no reference cycle remains."""

    def watch(self, connection: ZmtpConnection) -> None:
        """Do nothing."""

    def unwatch(self, connection: ZmtpConnection) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""


class SessionConnection:
    """Connection of one sender. Used by one thread, which calls `receive`, runs the sender, and then calls `send`.

    Attributes:
        connection: the current connection, or None.
        probes: True if a silent address is probed before the next address is tried.
    """

    def __init__(
        self, sender: Sender, endpoints: Endpoints, watch: ConnectionWatch, credentials: Credentials | None = None
    ) -> None:
        """Prepare without connecting. `watch` is informed of each connection; `credentials` authenticate the client."""
        self.sender = sender
        self.session = sender.session
        self._credentials = credentials
        self.session.token = credentials.token if credentials is not None else ""
        self.connection: ZmtpConnection | None = None
        self.probes = True
        self._endpoints = endpoints
        self._pinned: Endpoints | None = None  # the endpoints of the only usable gateway
        self._watch: ConnectionWatch = watch
        self._probe: RunningProbe | None = None
        self._connect_at = 0.0
        self._connect_until = 0.0
        self._wrong_port = False  # True if a message showed that the address is not a client port

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints that are currently in use."""
        return self._pinned or self._endpoints

    @property
    def addresses(self) -> list[Address]:
        """The address of the current connection, or all addresses that may be tried."""
        return [self.connection.address] if self.connection is not None else self.endpoints.addresses

    def receive(self, now: float) -> None:
        """Connect if it is time, and handle received messages."""
        if self._probe is not None and self._probe.result is not None:
            self._next_address(self._probe.address, self._probe.result, now)
        connection = self.connection
        if connection is None and self._connect_at <= now:
            connection = self._connect(now)
        if connection is not None:
            # Without an event there is nothing to read; returning here saves a system call in each run.
            if connection.is_ready or connection.due() <= now:
                connection.wait(0.0)
            self._handle_events(connection, now)

    def _connect(self, now: float) -> ZmtpConnection | None:
        self._connect_until = now + limits.ADDRESS_TIMEOUT_US / US
        try:
            self.connection = ZmtpConnection(self.endpoints.current, self._credentials)
            self._watch.watch(self.connection)
        except OSError as error:
            self._drop()
            self.session.trouble = connection_failure(error)
            self._connect_at = now + limits.RETRY_US_MAX / US
        return self.connection

    def send(self, now: float) -> None:
        """Drop the connection if the session requests that; otherwise send the session's messages."""
        connection, outbox = self.connection, self.session.outbox
        if connection is not None and self.session.drop:
            self._disconnect(connection, self.session.drop, now)
            connection = None
        while outbox:
            # The remaining messages stay in the outbox until the connection is up and has free space.
            if connection is None or not connection.up or not connection.send(outbox[0]):
                return
            outbox.popleft()

    def due(self) -> float:
        """Return the monotonic time of the next action if no message arrives before."""
        if self.connection is None:
            return 0.0 if self._probe is not None and self._probe.result is not None else self._connect_at
        due = self.connection.due()
        return due if self.connection.up else min(due, self._connect_until)

    def bye(self) -> None:
        """Send Bye if connected, then close."""
        if self.connection is not None and self.connection.up:
            self.connection.send([encode_control(Bye())])
        self.close()

    def close(self) -> None:
        """Drop the connection, with everything queued in it."""
        self._connect_at, self._probe = inf, None
        self._drop()
        # The producer I/O and this object refer to each other. Break the cycle, so that both are freed at once.
        self._watch = _NoWatch()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self._watch.unwatch(connection)
            connection.close()

    def _handle_events(self, connection: ZmtpConnection, now: float) -> None:
        while connection.has_events and (event := connection.next_event()) is not None:
            if event is ConnectionEvent.UP:
                # The session starts with Hello. The loop continues, because the end of the connection may already have been
                # reported.
                self.endpoints.record("connected")
                self.session.connected(now)
                continue
            self._disconnect(connection, connection.trouble or ("the connection was lost" if connection.was_up else None), now)
            return
        if not connection.up and now >= self._connect_until:
            self._disconnect(connection, connection.trouble or None, now)
        elif connection.readable:
            self._read(connection, now)

    def _read(self, connection: ZmtpConnection, now: float) -> None:
        data: Buffer | None = None
        try:
            # The number is bounded, so that one busy connection does not delay the other producers of the thread.
            for _ in range(limits.ANSWERS_A_TURN_MAX):
                data = connection.receive()
                if data is None:
                    return
                self.sender.receive(data, now)
        except FormatError as error:
            self.session.drop, self._wrong_port = explain_message(data or b"", error, connection.address)
            if not self._wrong_port:
                LOG.warning("%s: %s", connection.address, error)

    def _disconnect(self, connection: ZmtpConnection, reason: str | None, now: float) -> None:
        """Drop the connection. If `reason` is None, probe the address."""
        self._drop()
        session, endpoints = self.session, self.endpoints
        # The gateway worked, so the retry delay starts again at its minimum.
        if session.state is State.OPEN:
            endpoints.reset_delay()
        self.sender.disconnected()
        if session.welcome is not None:
            welcome = session.welcome
            self._endpoints.update(welcome.gateways, welcome.silent, welcome.state == "primary")
        wrong, self._wrong_port = self._wrong_port, False
        if reason is None and self.probes:
            # The probe wakes the I/O thread when it ends. The next address is tried only then.
            self._connect_at = inf
            self._probe = start_probe(connection.address, self._watch.wake)
        else:
            self._next_address(connection.address, ProbeResult(reason or "it did not answer", wrong), now)

    def _next_address(self, address: Address, result: ProbeResult, now: float) -> None:
        """Record the result at `address`, and connect to the next address after a delay."""
        session, endpoints = self.session, self.endpoints
        self._probe = None
        session.trouble = f"{address}: {result.text}"
        self._connect_at = now + endpoints.advance(result.text, result.wrong)
        self._pin(self.sender.only_gateway, address)
        if session.state is not State.ENDED and endpoints.only_wrong_ports() and not self.sender.accepted:
            self.sender.end(ConfigError(endpoints.summary()))

    def _pin(self, gateway: tuple[str, str], address: Address) -> None:
        """Use only the given gateway (name and url), at its known or announced addresses. An empty name allows any gateway."""
        name, url = gateway
        if not name:
            self._pinned = None
            return
        # Keep the endpoints across attempts, because they hold the results and the retry delay of this gateway.
        if self._pinned is None:
            self._pinned = Endpoints([address])
        if url:
            self._pinned.update({name: url})
