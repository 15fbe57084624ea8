"""Metrics endpoint of connectors and the archiver, served by one thread.

The server limits the number of connections and the time for a request, because any client that reaches the port could keep
connections open.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import uvicorn
from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti import limits
from tutti.data.member_address import Address, is_loopback, parse_host_port
from tutti.errors import ConfigError, UsageError
from tutti.runtime.http_server import UVICORN_SETTINGS, BoundedProtocol, Server

US = 1_000_000


class _Protocol(BoundedProtocol):
    wrong_port = "this port serves metrics over HTTP/1.1; use {spoken} with a gateway's own ports"

    def timeout_s(self) -> float:
        """Return the time limit for a request and its answer in seconds."""
        return limits.METRICS_US_MAX / US


class _RejectedConnections(Collector):
    """Metric of the endpoint itself: its rejected connections."""

    def collect(self) -> Iterator[Metric]:
        """Yield the counts of rejected connections."""
        about = "Connections to the metrics endpoint that were closed without an answer, by status of the refusal, or crowded."
        family = CounterMetricFamily("tutti_page_turned_away", about, labels=["why"])
        for why, count in dict(_Protocol.rejected).items():
            family.add_metric([why], count)
        yield family


class MetricsEndpoint:
    """Metrics endpoint, served within the `with` block.

    Attributes:
        url: URL of the endpoint.
    """

    def __init__(self, listen: str, collector: Collector, *, insecure: bool) -> None:
        """Open the listening socket.

        Args:
            listen: address of the endpoint, as HOST:PORT; port 0 selects a free port.
            collector: returns the metrics; called in the thread of the endpoint.
            insecure: allow an address that other hosts can reach.

        Raises:
            ConfigError: the address is not available, or not permitted.
        """
        try:
            host, port = parse_host_port(listen, port_min=0)
        except UsageError as error:
            raise ConfigError(f"metrics: {error}") from None
        if not (insecure or is_loopback(host)):
            raise ConfigError(
                f"metrics is {listen!r}, which other hosts can reach without authentication: listen on 127.0.0.1, or set "
                f"insecure = true at the top of the file"
            )
        registry = CollectorRegistry()
        registry.register(collector)
        registry.register(_RejectedConnections())
        try:
            family, _, _, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._listener = socket.create_server(sockaddr[:2], family=family, backlog=limits.METRICS_CONNECTIONS_MAX)
        except OSError as error:
            raise ConfigError(f"metrics: cannot listen on {listen} ({error.strerror}): use another port") from error
        self.url = f"http://{Address(host, self._listener.getsockname()[1])}/metrics"
        config = uvicorn.Config(
            make_asgi_app(registry),
            http=_Protocol,
            **UVICORN_SETTINGS,
            log_level="error",  # uvicorn warns about each invalid request, so clients could fill the log
            backlog=limits.METRICS_CONNECTIONS_MAX,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=limits.METRICS_HEAD_BYTES_MAX,
        )
        self._server = Server(config, limits.METRICS_CONNECTIONS_MAX, limits.METRICS_US_MAX / US)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def __enter__(self) -> str:
        """Start serving, and return the URL of the endpoint."""
        self._thread.start()
        return self.url

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.end()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
