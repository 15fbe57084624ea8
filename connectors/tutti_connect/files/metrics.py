"""What the connector from files says of itself to Prometheus, collected when it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from tutti_connect.files.connector import Connector

_COUNTERS = (
    ("records", "Records committed by this instance."),
    ("bytes", "Bytes read of files, after decompression; of Parquet, rows."),
    ("files", "Files of which all is in the log."),
    ("failures", "Times that it had to begin again, or that a file could not be read."),
    ("changed", "Files that were found to be others than those that were taken."),
)


class Metrics(Collector):
    """Collector of one connector."""

    def __init__(self, connector: Connector) -> None:
        """Look at it from another thread; nothing is changed."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """All families."""
        one = self._connector
        labels = [one.config.name]
        for name, what in _COUNTERS:
            counter = CounterMetricFamily(f"tutti_files_{name}", what, labels=["connector"])
            counter.add_metric(labels, getattr(one, name))
            yield counter
        for name, what, value in (
            ("lag_bytes", "Bytes in the directory that were not taken at the last look.", one.waiting),
            ("flowing", "1 while it sends, 0 while it waits to begin again.", one.flowing),
            ("quarantined", "Rows and files in quarantine.", one.quarantine.count),
        ):
            gauge = GaugeMetricFamily(f"tutti_files_{name}", what, labels=["connector"])
            gauge.add_metric(labels, float(value))
            yield gauge
