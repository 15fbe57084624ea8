"""Prometheus metrics of the files connector, computed at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from tutti_connect.files.connector import Connector

_COUNTERS = (
    ("records", "Records committed by this instance."),
    ("bytes", "Bytes read from files, after decompression; rows for Parquet."),
    ("files", "Files that are completely in the log."),
    ("failures", "Restarts, and files that could not be read."),
    ("changed", "Files that differ from the content that was copied."),
)


class Metrics(Collector):
    """Metrics collector of one connector."""

    def __init__(self, connector: Connector) -> None:
        """Create the collector of `connector`, whose counters each scrape reads in another thread."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        one = self._connector
        labels = [one.config.name]
        for name, what in _COUNTERS:
            counter = CounterMetricFamily(f"tutti_files_{name}", what, labels=["connector"])
            counter.add_metric(labels, getattr(one, name))
            yield counter
        for name, what, value in (
            ("lag_bytes", "Bytes in the directory that were not copied yet at the last scan.", one.waiting),
            ("flowing", "1 while the connector sends, 0 while it waits for a restart.", one.flowing),
            ("quarantined", "Rows and files in quarantine.", one.quarantine.count),
        ):
            gauge = GaugeMetricFamily(f"tutti_files_{name}", what, labels=["connector"])
            gauge.add_metric(labels, float(value))
            yield gauge
