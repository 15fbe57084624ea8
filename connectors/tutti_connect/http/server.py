"""HTTP server of the connector: bounded connections, TLS, event loop, process life cycle."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus

import uvicorn

from tutti.data.member_address import Address
from tutti.errors import ConfigError, Unavailable
from tutti.runtime import malloc
from tutti.runtime.http_server import UVICORN_SETTINGS, BoundedProtocol, Server
from tutti.runtime.reserved_fds import raise_limit
from tutti.security.certificates import check_certificate
from tutti.security.user_files import file_stamp
from tutti.sources.flight import FlightSource
from tutti_connect.http import limits
from tutti_connect.http.authorization import Authorizer
from tutti_connect.http.config import Http
from tutti_connect.http.group_health import Health
from tutti_connect.http.handlers import Service
from tutti_connect.http.interface.application import application
from tutti_connect.http.produce.spool import Spool

LOG = logging.getLogger("tutti.http")


class Protocol(BoundedProtocol):
    """An HTTP connection with two time limits: for the head of a request, and for a peer that does not read the answer."""

    wrong_port = "this port accepts records over HTTP/1.1; {spoken} needs a port of a gateway"
    _send_timer: asyncio.TimerHandle | None = None

    def timeout_s(self) -> float:
        """Return the time limit for a request's head in seconds."""
        return limits.HEAD_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle parsed events."""
        super().handle_events()
        if not self.answered:
            self.disarm()  # the head is complete, so its time limit ends; body and answer have other time limits

    def pause_writing(self) -> None:
        """Start the time limit for a peer that does not read, because the send buffer is full."""
        super().pause_writing()
        self._send_timer = self.loop.call_later(limits.SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit for a peer that does not read: the peer has emptied the send buffer."""
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        super().resume_writing()

    def expired(self) -> None:
        """Handle the end of the time for a request's head: answer 408 if a request has begun, else close the idle connection."""
        if self._request_begun and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, f"the head of the request did not arrive within {limits.HEAD_S:g} s")
        else:
            self.transport.abort()


class Connector:
    """The connector process: `run` serves until SIGTERM or Ctrl-C."""

    def __init__(self, config: Http) -> None:
        """Bind the port, without answering requests yet.

        Raises:
            ConfigError: the certificate, its key or the token file is unreadable or invalid.
            Unavailable: the address cannot be bound.
        """
        self.config = config
        self._authorizer = Authorizer(config.tokens, config.name)
        self._listener = _listen(config)
        self._tls = Tls(config.tls.certificate, config.tls.key)
        # Uvicorn warns about each invalid request. Without this level, untrusted peers could flood the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    @property
    def address(self) -> str:
        """Return the URL of the bound address."""
        return f"http{'s' if self._tls.context else ''}://{Address(*self._listener.getsockname()[:2])}"

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Serve requests until `stop` is set; call `ready` when the port accepts requests.

        Raises:
            TuttiError: no gateway answers at the start, and the connector has no spool.
        """
        malloc.configure_allocator(arenas=limits.ARENAS_MAX)
        raise_limit()
        reads = FlightSource(self.config.gateways, limits.READ_S, limits.READ_S)
        health = Health(reads)
        try:
            health.start(needed=not self.config.spool)
            spool = Spool(self.config.spool, self.config.gateways, self.config.name) if self.config.spool else None
            asyncio.run(self._serve(stop, ready, Service(self.config, self._authorizer, reads, health, spool)))
        finally:
            health.stop()
            self._listener.close()
            reads.close()

    async def _serve(self, stop: threading.Event, ready: Callable[[], None], service: Service) -> None:
        config = uvicorn.Config(
            application(service),
            http=Protocol,
            **UVICORN_SETTINGS,
            backlog=limits.CONNECTIONS_MAX,
            timeout_keep_alive=int(limits.HEAD_S),
            timeout_graceful_shutdown=limits.STOP_S,
            h11_max_incomplete_event_size=limits.HEADER_BYTES_MAX,
        )
        config.load()
        config.ssl = self._tls.context
        server = Server(config, limits.CONNECTIONS_MAX, limits.HEAD_S)
        service.metrics.turned_away = Protocol.rejected
        waiting = threading.Thread(target=self._watch, args=(stop, server, service), daemon=True)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        waiting.start()
        ready()
        await serving
        stop.set()
        await service.shut_down()

    def _watch(self, stop: threading.Event, server: Server, service: Service) -> None:
        """Reload a renewed certificate and changed tokens until `stop` is set; then end the streams and the server."""
        while not stop.wait(limits.CERTIFICATE_POLL_S):
            self._tls.refresh()
            self._authorizer.refresh()
        service.end()
        server.end()


def _listen(config: Http) -> socket.socket:
    host, port = config.address
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Pass the protocol: otherwise asyncio does not set TCP_NODELAY, and each answer takes 40 ms longer.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise Unavailable(
            f"{config.listen} cannot be bound: {error.strerror or error}; "
            "stop the process that uses it, or choose another port for `listen`"
        ) from error
    return listener


class Tls:
    """The TLS certificate; `context` is None without a certificate."""

    def __init__(self, certificate: str, key: str) -> None:
        """Read both files.

        Raises:
            ConfigError: the files are unusable.
        """
        self._files = certificate, key
        self.context: ssl.SSLContext | None = None
        if certificate:
            check_certificate(certificate, key)
            self._stamps = self._file_stamps()
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.minimum_version = ssl.TLSVersion.TLSv1_2
            self.context.load_cert_chain(certificate, key)

    def refresh(self) -> None:
        """Reload changed files for new connections; keep the previous certificate if the new files are unusable."""
        if self.context is None or self._file_stamps() == self._stamps:
            return
        self._stamps = self._file_stamps()
        try:
            check_certificate(*self._files)
            self.context.load_cert_chain(*self._files)
        except (ConfigError, OSError) as error:
            LOG.error("the previous certificate stays in use: %s", error)
            self._stamps = ()
        else:
            LOG.info("a new certificate was loaded from %s", self._files[0])

    def _file_stamps(self) -> tuple[object, ...]:
        return tuple(file_stamp(file) for file in self._files)
