"""Session connection: moves messages between one sender and its current connection, to one address after another."""

from __future__ import annotations

import logging
from math import inf
from typing import Protocol

from tutti import limits
from tutti.common.address import Address
from tutti.common.credentials import Credentials
from tutti.data.client_protocol import Bye, encode_control
from tutti.data.frames.frame import Buffer
from tutti.delivery.sender import Sender
from tutti.delivery.session import State
from tutti.errors import ConfigError, FormatError
from tutti.io.endpoints import Endpoints
from tutti.io.port_probe import ProbeResult, explain_message
from tutti.io.port_probes import RunningProbe, start_probe
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection, connection_failure

LOG = logging.getLogger("tutti.client")
US = 1e6


class ConnectionWatch(Protocol):
    """What a session connection needs of the producer's I/O."""

    def watch(self, link: ZmtpConnection) -> None:
        """Watch a new connection, whose events need a turn."""

    def leave(self, link: ZmtpConnection) -> None:
        """Stop watching a connection that is about to be closed."""

    def wake(self) -> None:
        """Request a turn. Any thread."""


class _NoWatch:
    """Replaces the `ConnectionWatch` of a closed session connection, so that no reference cycle remains."""

    def watch(self, link: ZmtpConnection) -> None:
        """Do nothing."""

    def leave(self, link: ZmtpConnection) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""


class SessionConnection:
    """Used by one thread, which calls `hear`, lets the session work, then calls `speak`.

    Attributes:
        link: the current connection, or None.
        peeks: True if a silent address is probed before the next one is tried.
    """

    def __init__(self, sender: Sender, route: Endpoints, watch: ConnectionWatch, credentials: Credentials | None = None) -> None:
        """Prepare; `watch` gets the connections, and `credentials` authenticate them."""
        self.sender = sender
        self.session = sender.session
        self._credentials = credentials
        self.session.token = credentials.token if credentials is not None else ""
        self.link: ZmtpConnection | None = None
        self.peeks = True
        self._route = route
        self._pinned: Endpoints | None = None  # the endpoints of the only usable gateway
        self._watch: ConnectionWatch = watch
        self._probe: RunningProbe | None = None
        self._connect_at = 0.0
        self._connect_until = 0.0
        self._wrong_port = False  # True if a message showed that the address is not a client port

    @property
    def route(self) -> Endpoints:
        """The endpoints that are tried now."""
        return self._pinned or self._route

    @property
    def addresses(self) -> list[Address]:
        """The address of the current connection, or all addresses that may be tried."""
        return [self.link.address] if self.link is not None else self.route.addresses

    def hear(self, now: float) -> None:
        """Connect if it is time, and handle received messages."""
        if self._probe is not None and self._probe.seen is not None:
            self._next_address(self._probe.address, self._probe.seen, now)
        link = self.link
        if link is None and self._connect_at <= now:
            link = self._connect(now)
        if link is not None:
            if link.stirs or link.due() <= now:
                link.wait(0.0)
            self._handle_events(link, now)

    def _connect(self, now: float) -> ZmtpConnection | None:
        self._connect_until = now + limits.ADDRESS_TIMEOUT_US / US
        try:
            self.link = ZmtpConnection(self.route.present, self._credentials)
            self._watch.watch(self.link)
        except OSError as error:
            self._drop()
            self.session.trouble = connection_failure(error)
            self._connect_at = now + limits.RETRY_US_MAX / US
        return self.link

    def speak(self, now: float) -> None:
        """Drop the connection if the session asks for that; otherwise send the session's messages."""
        link, outbox = self.link, self.session.outbox
        if link is not None and self.session.drop:
            self._leave(link, self.session.drop, now)
            link = None
        while outbox:
            if link is None or not link.up or not link.send(outbox[0]):
                return
            outbox.popleft()

    def due(self) -> float:
        """Return the monotonic time of the next action if nothing arrives before."""
        if self.link is None:
            return 0.0 if self._probe is not None and self._probe.seen is not None else self._connect_at
        due = self.link.due()
        return due if self.link.up else min(due, self._connect_until)

    def bye(self) -> None:
        """Send Bye if connected, then close."""
        if self.link is not None and self.link.up:
            self.link.send([encode_control(Bye())])
        self.close()

    def close(self) -> None:
        """Drop the connection, with everything queued in it."""
        self._connect_at, self._probe = inf, None
        self._drop()
        self._watch = _NoWatch()

    def _drop(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            self._watch.leave(link)
            link.close()

    def _handle_events(self, link: ZmtpConnection, now: float) -> None:
        while link.has_news and (news := link.news()) is not None:
            if news is ConnectionEvent.UP:
                self.route.met("connected")
                self.session.connected(now)
                continue
            self._leave(link, link.trouble or ("the connection was lost" if link.was_up else None), now)
            return
        if not link.up and now >= self._connect_until:
            self._leave(link, link.trouble or None, now)
        elif link.readable:
            self._read(link, now)

    def _read(self, link: ZmtpConnection, now: float) -> None:
        data: Buffer | None = None
        try:
            for _ in range(limits.ANSWERS_A_TURN_MAX):
                data = link.receive()
                if data is None:
                    return
                self.sender.receive(data, now)
        except FormatError as error:
            self.session.drop, self._wrong_port = explain_message(data or b"", error, link.address)
            if not self._wrong_port:
                LOG.warning("%s: %s", link.address, error)

    def _leave(self, link: ZmtpConnection, reason: str | None, now: float) -> None:
        """Drop the connection. Without a reason, probe the address."""
        self._drop()
        session, route = self.session, self.route
        if session.state is State.OPEN:
            route.went_well()
        self.sender.disconnected()
        if session.welcome is not None:
            welcome = session.welcome
            self._route.learn(welcome.gateways, welcome.silent, welcome.state == "primary")
        wrong, self._wrong_port = self._wrong_port, False
        if reason is None and self.peeks:
            self._connect_at = inf
            self._probe = start_probe(link.address, self._watch.wake)
        else:
            self._next_address(link.address, ProbeResult(reason or "it did not answer", wrong), now)

    def _next_address(self, address: Address, sight: ProbeResult, now: float) -> None:
        """Change to the next address."""
        session, route = self.session, self.route
        self._probe = None
        session.trouble = f"{address}: {sight.text}"
        self._connect_at = now + route.move_on(sight.text, sight.wrong)
        self._pin(self.sender.only_gateway, address)
        if session.state is not State.ENDED and route.only_wrong_ports() and not self.sender.accepted:
            self.sender.end(ConfigError(route.told()))

    def _pin(self, gateway: tuple[str, str], address: Address) -> None:
        """Use only the given gateway (name and url), at its known or announced addresses; any gateway if the name is empty."""
        name, url = gateway
        if not name:
            self._pinned = None
            return
        if self._pinned is None:
            self._pinned = Endpoints([address])
        if url:
            self._pinned.learn({name: url})
