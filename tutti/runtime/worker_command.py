"""Common command of the worker processes (connectors and the archiver): logs, signals, metrics page, readiness line, exit."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.registry import Collector

from tutti.errors import ConfigError
from tutti.runtime.metrics_server import MetricsPage


class Worker(Protocol):
    """A task that runs until it is stopped."""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Transfer records until `stop` is set. Before returning, deliver the records that are already accepted, within a time
        limit.

        Args:
            stop: set by SIGTERM and Ctrl-C.
            ready: callback to call once, when both sides have answered and no obstacle is known.

        Raises:
            TuttiError: an error that a retry cannot resolve; its exit code becomes the command's.
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
        ready_fields: additional fields of the readiness line (`"ready": true`) on standard output; read when the line is printed.
        metrics: HOST:PORT of the page for Prometheus; empty for none. Port 0 selects a free port, and the readiness line contains
            the port.
        collector: metrics of the page; called from another thread.
        insecure: allow other hosts to read the page.
        file: configuration file with `metrics`, for error messages.

    Raises:
        ConfigError: the address in `metrics` is not available, or not permitted.
        TuttiError: as `Worker.run`.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    with contextlib.ExitStack() as stack:
        page: dict[str, str] = {}
        if metrics and collector is not None:
            try:
                page["metrics"] = stack.enter_context(MetricsPage(metrics, collector, insecure=insecure))
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}" if file else str(error)) from error
        stack.enter_context(_relaxed_gc())
        worker.run(stop, lambda: print(json.dumps({"ready": True, **ready_fields, **page}), flush=True))
    return 0


@contextlib.contextmanager
def _relaxed_gc() -> Iterator[None]:
    """Reduce the work of Python's garbage collector: freeze the loaded objects and raise the thresholds.

    Reference counting already frees committed messages. With the defaults, a full collection would take 25 ms after every few
    thousand messages.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
