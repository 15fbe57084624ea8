"""What the command of each process beside the gateways does, a connector or the archiver.

Logs, signals, a page of metrics, the line that says that it is there, its end.
"""

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
from tutti.runtime.metrics_server import Page


class Worker(Protocol):
    """What runs until it is told to end."""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Bring records across until `stop`; what was taken is delivered before it returns, within a bound.

        Args:
            stop: set by SIGTERM and Ctrl-C.
            ready: to call once, when both sides have answered and nothing is known that keeps records from flowing.

        Raises:
            TuttiError: what trying again cannot mend; its exit code is the command's.
        """


def run(
    worker: Worker,
    told: Mapping[str, Any],
    metrics: str = "",
    collector: Collector | None = None,
    *,
    insecure: bool = False,
    file: str = "",
) -> int:
    """Run it as a command does; its exit code.

    Args:
        worker: prepared, nothing is connected yet.
        told: what the line on standard output says beside `"ready": true`: name, topics, addresses; looked at when it is said.
        metrics: HOST:PORT of the page for Prometheus, none without it; port 0 takes a free one, which the line names.
        collector: of what is on the page; it is asked from another thread.
        insecure: whether the page may be seen from beyond this host.
        file: where `metrics` stands, to be named where it is wrong.

    Raises:
        ConfigError: `metrics` cannot be listened on, or may not.
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
                page["metrics"] = stack.enter_context(Page(metrics, collector, insecure=insecure))
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}" if file else str(error)) from error
        stack.enter_context(_collector_spared())
        worker.run(stop, lambda: print(json.dumps({"ready": True, **told, **page}), flush=True))
    return 0


@contextlib.contextmanager
def _collector_spared() -> Iterator[None]:
    """What is loaded by now stays, and messages are let go of as they are committed: by default Python would look through all there
    is after each few thousand of them, 25 ms each time.
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
