"""The part of a command that connectors and the archiver share: logs, signals, metrics endpoint, readiness line, exit."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from prometheus_client.registry import Collector

from tutti.errors import ConfigError
from tutti.runtime.garbage_collector import relaxed_gc
from tutti.runtime.metrics_server import MetricsEndpoint


class Worker(Protocol):
    """A task that runs until it is stopped."""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Transfer records until `stop` is set; then deliver the accepted records, within a time limit, and return.

        Args:
            stop: event that SIGTERM and Ctrl-C set.
            ready: callback to call once, when source and destination have answered.

        Raises:
            TuttiError: an error that a retry cannot resolve; the command exits with the exit code of the error.
        """


def run(
    worker: Worker,
    ready_fields: Mapping[str, Any],
    metrics: str = "",
    collector: Collector | None = None,
    *,
    insecure: bool = False,
    file: str = "",
) -> int:
    """Run a worker as a command, and return the exit code.

    Args:
        worker: the worker, not connected yet.
        ready_fields: additional fields of the readiness line (`"ready": true`) on standard output, read when the line is printed.
        metrics: address of the endpoint for Prometheus, as HOST:PORT (port 0 selects a free port), or empty to serve no metrics;
            the readiness line contains the url of the endpoint.
        collector: returns the metrics; called in another thread.
        insecure: allow other hosts to read the metrics.
        file: name of the configuration file that contains `metrics`, for error messages.

    Raises:
        ConfigError: the address in `metrics` is not available, or not permitted.
        TuttiError: as `Worker.run`.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    with contextlib.ExitStack() as stack:
        endpoint: dict[str, str] = {}
        if metrics and collector is not None:
            try:
                endpoint["metrics"] = stack.enter_context(MetricsEndpoint(metrics, collector, insecure=insecure))
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}" if file else str(error)) from error
        stack.enter_context(relaxed_gc())
        worker.run(stop, lambda: print(json.dumps({"ready": True, **ready_fields, **endpoint}), flush=True))
    return 0
