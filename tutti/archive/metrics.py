"""What an archiver says of itself to Prometheus, collected when it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti.archive.archiver import Archiver


class Metrics(Collector):
    """Collector of one archiver; it is looked at from another thread, and nothing is changed."""

    def __init__(self, archiver: Archiver) -> None:
        """Of this one."""
        self._archiver = archiver

    def collect(self) -> Iterator[Metric]:
        """All families."""
        one = self._archiver
        lag = max(0, one.frontier - one.offset)
        yield GaugeMetricFamily("tutti_archive_offset", "All records below it are in the archive.", value=one.offset)
        yield GaugeMetricFamily("tutti_archive_lag_records", "Committed records that are not in it yet.", value=lag)
        yield GaugeMetricFamily(
            "tutti_archive_working", "0 while it waits for something that failed.", value=float(not one.trouble)
        )
        yield CounterMetricFamily("tutti_archive_ranges", "Ranges that this process added.", value=one.ranges)
        yield CounterMetricFamily("tutti_archive_records", "Records in them.", value=one.records)
        yield CounterMetricFamily("tutti_archive_bytes", "Bytes of these as readers get them.", value=one.bytes)
        yield CounterMetricFamily("tutti_archive_failures", "Times that it had to wait and try again.", value=one.failures)
