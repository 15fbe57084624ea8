"""Metrics of producers and readers for OpenTelemetry, as observable instruments."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tutti.common.stats import COUNTER
from tutti.errors import UsageError, install_remedy
from tutti.exporters.clients import METRICS, Client, Clients, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, Observation

_UNITS = {"records": "{record}", "bytes": "By", "seconds": "s", "": "1"}
_exported: weakref.WeakKeyDictionary[Meter, Clients] = weakref.WeakKeyDictionary()
_default: list[Meter] = []  # the meter of the program's provider, from its first use
_lock = threading.Lock()


def register(client: Client, meter: Meter | None = None, *, name: str | None = None) -> None:
    """Export the statistics of a producer or a reader to OpenTelemetry, until the client is closed.

    Each instrument is named tutti.client.ROLE.FIELD, and its measurements have the attribute `client`. Each collection calls
    `client.stats()` once, so the measurements of one collection fit together.

    Args:
        client: a `Producer`, a `Reader`, or their counterpart in `tutti.aio`.
        meter: creates the instruments; the default is a meter of the provider that the program has configured.
        name: value of the attribute `client`; the default is the client's name, or its role, "producer" or "reader".

    Raises:
        UsageError: OpenTelemetry is not installed, `client` is not a client, or another open client has this name.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise UsageError(f"metrics for OpenTelemetry need its API: {install_remedy('otel')}") from error
    with _lock:
        if meter is None:
            _default[:] = _default or [metrics.get_meter("tutti")]
            meter = _default[0]
        clients = _exported.get(meter)
        if clients is None:
            # A meter accepts each instrument once, so all clients of a meter share the instruments.
            clients = _exported[meter] = Clients()
            collection = _Collection(clients)
            for metric in METRICS:
                create = meter.create_observable_counter if metric.kind == COUNTER else meter.create_observable_gauge
                instrument = f"tutti.client.{metric.role}.{metric.field}"
                create(instrument, [_callback(collection, metric, metrics.Observation)], _UNITS[metric.unit], metric.about)
    clients.add(client, name)


class _Collection:
    """The values of the current collection.

    OpenTelemetry calls one instrument after another, and does not report the start of a collection. A collection calls each
    instrument once. So a collection begins with the first call for a metric that has its value already.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._values: dict[Metric, dict[str, float]] = {}
        self._called = set(METRICS)  # metrics that have the values of this collection
        self._lock = threading.Lock()  # several readers of a meter may collect at the same time

    def values(self, metric: Metric) -> dict[str, float]:
        """Return the values of one metric by the names of the clients."""
        with self._lock:
            if metric in self._called:
                self._values, self._called = dict(self._clients.values()), set()
            self._called.add(metric)
            return self._values.get(metric, {})


def _callback(collection: _Collection, metric: Metric, observation: type[Observation]) -> Callable[[Any], Iterator[Observation]]:
    def observe(_: Any) -> Iterator[Observation]:
        return (observation(value, {"client": name}) for name, value in collection.values(metric).items())

    return observe
