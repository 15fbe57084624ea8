"""Metrics of producers and readers for Prometheus (prometheus-client)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tutti.common.stats import COUNTER
from tutti.errors import UsageError, install_remedy
from tutti.exporters.clients import METRICS, Client, Clients, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _Collector] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def register(client: Client, registry: CollectorRegistry | None = None, *, name: str | None = None) -> None:
    """Export the statistics of a producer or a reader to Prometheus, until the client is closed.

    Each metric is named tutti_client_ROLE_FIELD and has the label `client`. A scrape reads `client.stats()`.

    Args:
        client: a `Producer`, a `Reader`, or their counterpart in `tutti.aio`.
        registry: the registry to export to; the default is the registry of the process.
        name: value of the label `client`; the default is the client's name, or its role, "producer" or "reader".

    Raises:
        UsageError: prometheus-client is not installed, `client` is not a client, or another open client has this name.
    """
    try:
        from prometheus_client import REGISTRY, core  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise UsageError(f"metrics for Prometheus need prometheus-client: {install_remedy('prometheus')}") from error
    registry = REGISTRY if registry is None else registry
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            # A registry accepts each metric name from one collector only, so all clients of a registry share a collector.
            collector = _Collector(core)
            registry.register(collector)
            _collectors[registry] = collector
    collector.clients.add(client, name)


class _Collector:
    """Collects the metrics of the clients of one registry."""

    def __init__(self, library: Any) -> None:
        """Begin without clients; `library` is the module `prometheus_client.core`."""
        self.clients = Clients()
        self._library = library

    def describe(self) -> Iterator[Family]:
        """Yield all metrics without values, so that the registry knows their names."""
        return map(self._family, METRICS)

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics of all open clients."""
        for metric, values in self.clients.values():
            family = self._family(metric)
            for name, value in values.items():
                family.add_metric([name], value)
            yield family

    def _family(self, metric: Metric) -> Any:
        unit = f"_{metric.unit}" if metric.unit and metric.unit not in metric.field else ""
        kind = self._library.CounterMetricFamily if metric.kind == COUNTER else self._library.GaugeMetricFamily
        return kind(f"tutti_client_{metric.role}_{metric.field}{unit}", metric.about, labels=["client"])
