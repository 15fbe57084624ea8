"""The listening port: connections with bounds, TLS, the event loop, the life of the process."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus

import uvicorn

from tutti.data.addresses import Address
from tutti.errors import ConfigError, Unavailable
from tutti.runtime import malloc
from tutti.runtime.http_server import PLAIN, BoundedProtocol, Server
from tutti.runtime.reserved_fds import raise_limit
from tutti.security.key_files import check_certificate, stamp
from tutti.sources.flight import Reads
from tutti_connect.http import limits
from tutti_connect.http.authorization import Guard
from tutti_connect.http.config import Http
from tutti_connect.http.health import Health
from tutti_connect.http.interface.application import application
from tutti_connect.http.produce.spool import Spool
from tutti_connect.http.service import Service

LOG = logging.getLogger("tutti.http")


class Protocol(BoundedProtocol):
    """A connection: its head has its time, the request bounds itself, and who takes nothing of an answer is cut."""

    wrong_port = "this port takes records over HTTP/1.1; {spoken} belongs to a gateway's own ports"
    _stuck: asyncio.TimerHandle | None = None

    def patience_s(self) -> float:
        """Seconds for a head."""
        return limits.HEAD_S

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """What the bytes say."""
        super().handle_events()
        if not self.answered:
            self.disarm()  # the head is there: what follows has times of its own

    def pause_writing(self) -> None:
        """The other side takes nothing more at this moment."""
        super().pause_writing()
        self._stuck = self.loop.call_later(limits.SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It takes what there is."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def expired(self) -> None:
        """The head did not come in its time: who has begun one is told so."""
        if self._begun and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, f"the head of the request was not there within {limits.HEAD_S:g} s")
        else:
            self.transport.abort()


class Connector:
    """The process: `run` serves until it is told to end."""

    def __init__(self, config: Http) -> None:
        """Listen; nothing is answered yet.

        Raises:
            ConfigError: the address cannot be listened on, or a file of keys or tokens is none.
        """
        self.config = config
        self._guard = Guard(config.tokens, config.name)
        self._listener = _listen(config)
        self._tls = Tls(config.tls.certificate, config.tls.key)
        # It warns of each request that is none: strangers would fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        return f"http{'s' if self._tls.context else ''}://{Address(*self._listener.getsockname()[:2])}"

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """As `tutti.runtime.worker.Worker`.

        Raises:
            TuttiError: no gateway answers at the start, and there is no spool.
        """
        malloc.tune(arenas=limits.ARENAS_MAX)
        raise_limit()
        reads = Reads(self.config.gateways, limits.READ_S, limits.READ_S)
        health = Health(reads)
        try:
            health.start(needed=not self.config.spool)
            spool = Spool(self.config.spool, self.config.gateways, self.config.name) if self.config.spool else None
            asyncio.run(self._serve(stop, ready, Service(self.config, self._guard, reads, health, spool)))
        finally:
            health.stop()
            self._listener.close()
            reads.close()

    async def _serve(self, stop: threading.Event, ready: Callable[[], None], service: Service) -> None:
        config = uvicorn.Config(
            application(service),
            http=Protocol,
            **PLAIN,
            backlog=limits.CONNECTIONS_MAX,
            timeout_keep_alive=int(limits.HEAD_S),
            timeout_graceful_shutdown=limits.STOP_S,
            h11_max_incomplete_event_size=limits.HEADER_BYTES_MAX,
        )
        config.load()
        config.ssl = self._tls.context
        server = Server(config, limits.CONNECTIONS_MAX, limits.HEAD_S)
        service.metrics.turned_away = Protocol.turned_away
        waiting = threading.Thread(target=self._watch, args=(stop, server, service), daemon=True)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        waiting.start()
        ready()
        await serving
        stop.set()
        await service.finish()

    def _watch(self, stop: threading.Event, server: Server, service: Service) -> None:
        """Until it is told to end; meanwhile a certificate that is renewed is taken for new connections, and tokens that change."""
        while not stop.wait(limits.CERTIFICATE_LOOK_S):
            self._tls.refresh()
            self._guard.look()
        service.end()
        server.end()


def _listen(config: Http) -> socket.socket:
    host, port = config.address
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)  # named: asyncio else leaves TCP_NODELAY off, 40 ms an answer
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        raise Unavailable(
            f"{config.listen} cannot be listened on: {error.strerror or error}; end what uses it, or give `listen` another port"
        ) from error
    return listener


class Tls:
    """The certificate. `context`: for the port, None without one."""

    def __init__(self, certificate: str, key: str) -> None:
        """Read both files.

        Raises:
            ConfigError: they cannot be used.
        """
        self._files = certificate, key
        self.context: ssl.SSLContext | None = None
        if certificate:
            check_certificate(certificate, key)
            self._stamps = self._seen()
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.minimum_version = ssl.TLSVersion.TLSv1_2
            self.context.load_cert_chain(certificate, key)

    def refresh(self) -> None:
        """Take files that have changed for new connections, if they can be used: else what was read before holds."""
        if self.context is None or self._seen() == self._stamps:
            return
        self._stamps = self._seen()
        try:
            check_certificate(*self._files)
            self.context.load_cert_chain(*self._files)
        except (ConfigError, OSError) as error:
            LOG.error("the certificate that was read before still holds: %s", error)
            self._stamps = ()
        else:
            LOG.info("a new certificate was read from %s", self._files[0])

    def _seen(self) -> tuple[object, ...]:
        return tuple(stamp(file) for file in self._files)
