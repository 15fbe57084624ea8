"""Session connection: connects one sender to one gateway address after another, and passes on messages in both directions."""

from __future__ import annotations

import logging
import time
from math import inf
from typing import Protocol

from tutti import limits
from tutti.common.connection_log import ConnectionLog, Event
from tutti.common.credentials import Credentials
from tutti.common.gateway_url import Address
from tutti.data.client_protocol import Bye, encode_control
from tutti.delivery.sender import Sender
from tutti.delivery.session import State
from tutti.errors import ConfigError, FormatError
from tutti.io.endpoints import Endpoints
from tutti.io.port_probe import ProbeResult, RunningProbe, explain_message, start_probe
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection, connection_failure

LOG = logging.getLogger("tutti.client.producer")
US = 1e6
_STALLED_S = limits.WAIT_LOG_US_MIN / US
_STALL_CAUSES = "no error is known; the disk of a gateway may hang"

#: States in which the gateway of the current connection has sent a Welcome.
_WELCOMED = (State.OPENING, State.OPEN)


class ConnectionWatch(Protocol):
    """The part of the producer's I/O that a session connection uses."""

    def watch(self, connection: ZmtpConnection) -> None:
        """Watch a new connection, so that its events cause runs of the producer."""

    def unwatch(self, connection: ZmtpConnection) -> None:
        """Stop watching a connection that is about to be closed."""

    def wake(self) -> None:
        """Request a run. May be called in any thread."""


class _NoWatch:
    """Placeholder for the `ConnectionWatch` of a closed session connection, which breaks the reference cycle."""

    def watch(self, connection: ZmtpConnection) -> None:
        """Do nothing."""

    def unwatch(self, connection: ZmtpConnection) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""


class SessionConnection:
    """Connection of one sender. One thread calls `receive`, runs the sender, and then calls `send`.

    Attributes:
        connection: the current connection, or None.
        log: logs each change of the connection once.
        probes: True if a silent address is probed before the next address is tried.
        has_messages: True if the last `receive` left messages for the next one.
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
        self.log = ConnectionLog(LOG, sender.subject, time.monotonic())
        self.probes = True
        self.has_messages = False
        self._endpoints = endpoints
        self._pinned: Endpoints | None = None  # the endpoints of the only usable gateway
        self._watch: ConnectionWatch = watch
        self._probe: RunningProbe | None = None
        self._connect_at = 0.0
        self._connect_until = 0.0
        self._wrong_port = False  # True if a message from the peer shows that the address is not a client port
        self._without_quorum: set[Address] = set()  # addresses whose last Welcome came from outside of the primary view
        self._was_open = False  # True if the last connection ended with an open session
        self._check_at = 0.0  # time of the next check for outcomes
        self._quiet_since = 0.0  # no outcome has arrived since this time, and records were waiting all the time

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints in use: all of them, or only those of the pinned gateway."""
        return self._pinned or self._endpoints

    @property
    def addresses(self) -> list[Address]:
        """The address of the current connection; without a connection, all addresses to try."""
        return [self.connection.address] if self.connection is not None else self.endpoints.addresses

    def receive(self, now: float) -> None:
        """Connect if the retry delay is over, and handle received messages."""
        if self._probe is not None and self._probe.result is not None:
            self._next_address(self._probe.address, self._probe.result, now)
        connection = self.connection
        if connection is None and self._connect_at <= now:
            connection = self._connect(now)
        if connection is not None:
            # Poll the connection only after an event or a timeout, which saves a system call in most runs.
            if connection.is_ready or connection.due() <= now:
                lone = connection.handle(now)
                if lone is not None:
                    try:
                        self.sender.receive(lone, now)
                    except FormatError as error:
                        self._on_malformed(lone, error, connection)
                    return
            if connection.has_events or not connection.up:
                self._handle_events(connection, now)
            elif connection.readable:
                self._read(connection, now)

    def _connect(self, now: float) -> ZmtpConnection | None:
        self._connect_until = now + self.endpoints.begin_attempt()
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
            # Keep messages in the outbox until the connection is up and its send queue has space.
            if connection is None or not connection.up or not connection.send(outbox[0]):
                return
            outbox.popleft()

    def report(self, now: float) -> None:
        """Log the end of an outage, or that an outage lasts. Nothing is logged while records get their outcomes."""
        log, session = self.log, self.session
        if session.state is not State.OPEN:
            self._remind(now)
        elif not log.connected:
            # With records waiting, only an outcome ends the outage, because an open session may still refuse every record.
            # The end of a wait for a quota is certain, so a gateway that holds records for a quota ends the outage too.
            if not self.sender.pending or session.outcome_at > now - log.outage(now) or session.held_from:
                log.on(Event.CONNECTED, now, where=self._gateway)
            else:
                self._remind(now)
        elif now >= self._check_at:
            self._check_at = now + limits.STALL_POLL_US / US
            if session.held_from:
                self._quiet_since = now
                log.on(Event.THROTTLED, now, session.throttled)
            elif not self.sender.pending or session.outcome_at >= self._quiet_since:
                self._quiet_since = now
            elif now - self._quiet_since >= _STALLED_S:
                log.on(Event.STALLED, now, session.trouble or _STALL_CAUSES, since=self._quiet_since)

    def _remind(self, now: float) -> None:
        results = ""
        if now >= self.log.due:  # the text of the results is expensive
            trouble = self.session.trouble
            results = self.endpoints.summary()
            results = f"{results}; last error: {trouble}" if trouble and trouble not in results else results
        self.log.remind(now, self.sender.waiting, results)

    @property
    def _gateway(self) -> str:
        name = self.session.welcome.gateway if self.session.welcome is not None else ""
        return f"gateway {name} at {self.endpoints.current}"

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
        # Break the reference cycle with the producer I/O, so that both objects are freed at once.
        self._watch = _NoWatch()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self._watch.unwatch(connection)
            connection.close()

    def _handle_events(self, connection: ZmtpConnection, now: float) -> None:
        while connection.has_events and (event := connection.next_event()) is not None:
            if event is ConnectionEvent.UP:
                self.endpoints.record("connected")
                self.session.connected(now)
                continue  # the next event may already be the end of the connection
            self._disconnect(connection, connection.trouble or (connection.loss if connection.was_up else None), now)
            return
        if not connection.up and now >= self._connect_until:
            self._disconnect(connection, connection.trouble or self.endpoints.end_attempt() or None, now)
        elif connection.readable:
            self._read(connection, now)

    def _read(self, connection: ZmtpConnection, now: float) -> None:
        data: bytes | None = None
        self.has_messages = False
        try:
            # Limit the messages per run, so that a busy connection does not delay the other producers of the thread.
            for _ in range(limits.ANSWERS_A_TURN_MAX):
                data = connection.receive()
                if data is None:
                    return
                self.sender.receive(data, now)
                if not connection.readable:
                    return
            self.has_messages = True
        except FormatError as error:
            self._on_malformed(data or b"", error, connection)

    def _on_malformed(self, data: bytes, error: FormatError, connection: ZmtpConnection) -> None:
        self.session.drop, self._wrong_port = explain_message(data, error, connection.address)
        if not self._wrong_port:
            LOG.warning("%s: %s", connection.address, error)

    def _disconnect(self, connection: ZmtpConnection, reason: str | None, now: float) -> None:
        """Drop the connection and try the next address. If `reason` is None, probe the old address first."""
        self._drop()
        session, endpoints = self.session, self.endpoints
        # A gateway that opened an epoch worked, so the retry delay starts again at its minimum.
        self._was_open = session.state is State.OPEN
        if self._was_open:
            endpoints.reset_delay()
        welcomed = session.welcome if session.state in _WELCOMED else None
        self._without_quorum.discard(connection.address)
        if welcomed is not None and welcomed.state != "primary":
            self._without_quorum.add(connection.address)
        moved = session.redirected or (welcomed is not None and welcomed.state == "leaving")
        self.log.on(Event.REDIRECTED if moved else Event.LOST, now, reason or "it did not answer")
        self.sender.disconnected()
        if session.welcome is not None:
            welcome = session.welcome
            self._endpoints.update(welcome.gateways, welcome.silent, welcome.state == "primary")
        wrong, self._wrong_port = self._wrong_port, False
        if reason is None and self.probes:
            # Try the next address only after the probe, which wakes the I/O thread at its end.
            self._connect_at = inf
            self._probe = start_probe(connection.address, self._watch.wake)
        else:
            self._next_address(connection.address, ProbeResult(reason or "it did not answer", wrong), now)

    def _next_address(self, address: Address, result: ProbeResult, now: float) -> None:
        """Record the result at `address`, and schedule the connection to the next address."""
        session, endpoints = self.session, self.endpoints
        self._probe = None
        session.trouble = f"{address}: {result.text}"
        self._connect_at = now + endpoints.advance(result.text, result.wrong)
        # The end of an open session is no failed attempt, because the same gateway may be back already.
        if endpoints.rounds and not self._was_open and session.state is not State.ENDED:
            event = Event.NONE_ANSWERS if self._without_quorum.isdisjoint(endpoints.addresses) else Event.NONE_HAS_QUORUM
            self.log.on(event, now, endpoints.summary())
        self._pin(self.sender.only_gateway, address)
        if session.state is not State.ENDED and endpoints.only_wrong_ports() and not self.sender.accepted:
            self.sender.end(ConfigError(endpoints.summary()))

    def _pin(self, gateway: tuple[str, str], address: Address) -> None:
        """Use only the given gateway (name, url), at `address` or its url. An empty name allows any gateway."""
        name, url = gateway
        if not name:
            self._pinned = None
            return
        # Keep the endpoints of the gateway across attempts, because they contain its results and its retry delay.
        if self._pinned is None:
            self._pinned = Endpoints([address])
        if url:
            self._pinned.update({name: url})
