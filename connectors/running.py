"""What the command of every connector does: logs, signals, a page of metrics, the line that says that it is there, its end."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from connectors.config import host_and_port
from gateway.errors import ConfigError


class Connector(Protocol):
    """What runs until it is told to end."""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Bring records across until `stop`; what was taken is delivered before it returns, within a bound.

        Args:
            stop: set by SIGTERM and Ctrl-C.
            ready: to call once, when both sides have answered and nothing is known that keeps records from flowing.

        Raises:
            TuttiError: what trying again cannot mend; its exit code is the command's.
        """


def run(connector: Connector, told: Mapping[str, Any], metrics: str = "", collector: Collector | None = None) -> int:
    """Run a connector as a command does; its exit code.

    Args:
        connector: prepared, nothing is connected yet.
        told: what the line on standard output says beside `"ready": true`: name, topics, addresses; looked at when it is said.
        metrics: HOST:PORT of the page for Prometheus, none without it; port 0 takes a free one, which the line names.
        collector: of what is on the page; it is asked from other threads.

    Raises:
        ConfigError: `metrics` cannot be listened on.
        TuttiError: as `Connector.run`.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    page = {"metrics": _serve(metrics, collector)} if metrics and collector is not None else {}
    connector.run(stop, lambda: print(json.dumps({"ready": True, **told, **page}), flush=True))
    return 0


def _serve(listen: str, collector: Collector) -> str:
    place = host_and_port(listen)
    if place is None:
        raise ConfigError(f"metrics is {listen!r}: write HOST:PORT, as 127.0.0.1:9464")
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(place[1], place[0], registry)
    except OSError as error:
        raise ConfigError(f"metrics: {listen} cannot be listened on ({error.strerror}): name another port") from error
    return f"http://{listen.rpartition(':')[0]}:{server.server_port}/metrics"
