"""Prometheus metrics of an archiver, collected on request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti.archive.archiver import Archiver


class Metrics(Collector):
    """Metrics collector of one archiver; reads the archiver's counters in the thread that answers the scrape."""

    def __init__(self, archiver: Archiver) -> None:
        """Collect from `archiver`."""
        self._archiver = archiver

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        one = self._archiver
        lag = max(0, one.frontier - one.offset)
        yield GaugeMetricFamily("tutti_archive_offset", "All records below it are in the archive.", value=one.offset)
        yield GaugeMetricFamily("tutti_archive_lag_records", "Committed records that are not archived yet.", value=lag)
        yield GaugeMetricFamily(
            "tutti_archive_working", "0 while the archiver waits after a failure, else 1.", value=float(not one.trouble)
        )
        yield CounterMetricFamily("tutti_archive_ranges", "Ranges that this process added.", value=one.ranges)
        yield CounterMetricFamily("tutti_archive_records", "Records in the ranges that this process added.", value=one.records)
        yield CounterMetricFamily("tutti_archive_bytes", "Bytes of these records in memory.", value=one.bytes)
        yield CounterMetricFamily("tutti_archive_failures", "Waits and retries after a failure.", value=one.failures)
