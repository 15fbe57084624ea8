"""Prometheus metrics of the Kafka connectors, computed at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti_connect.kafka.source.partition_copy import State

if TYPE_CHECKING:
    from tutti_connect.kafka.sink.connector import SinkConnector
    from tutti_connect.kafka.source.connector import SourceConnector

_LABELS = ["connector", "topic", "partition"]


class SourceMetrics(Collector):
    """Metrics collector of kafka-in."""

    def __init__(self, connector: SourceConnector) -> None:
        """Create the collector of `connector`, whose counters each scrape reads in another thread."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        records = CounterMetricFamily("tutti_kafka_in_records", "Records committed by this instance.", labels=_LABELS)
        offset = GaugeMetricFamily(
            "tutti_kafka_in_offset", "Offset in Kafka up to which the partition is in the log.", labels=_LABELS
        )
        lag = GaugeMetricFamily("tutti_kafka_in_lag", "Messages in Kafka that are not in the log yet.", labels=_LABELS)
        up = GaugeMetricFamily("tutti_kafka_in_flowing", "1 while the partition is copied, 0 while it waits.", labels=_LABELS)
        failures = CounterMetricFamily("tutti_kafka_in_failures", "Restarts of the partition.", labels=_LABELS)
        name = self._connector.config.name
        for partition in list(self._connector.partitions.values()):
            labels = [name, partition.topic, str(partition.number)]
            records.add_metric(labels, partition.records)
            up.add_metric(labels, float(partition.state is State.FLOWING))
            failures.add_metric(labels, partition.failures)
            if partition.state is State.FLOWING:
                offset.add_metric(labels, partition.committed)
                if partition.high_watermark >= 0:
                    lag.add_metric(labels, max(0, partition.high_watermark - partition.committed))
        quarantined = GaugeMetricFamily("tutti_kafka_in_quarantined", "Records in quarantine.", labels=_LABELS[:1])
        quarantined.add_metric([name], self._connector.quarantine.count)
        yield from (records, offset, lag, up, failures, quarantined)


class SinkMetrics(Collector):
    """Metrics collector of kafka-out."""

    def __init__(self, connector: SinkConnector) -> None:
        """Create the collector of `connector`, whose counters each scrape reads in another thread."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        one, labels = self._connector, _LABELS[:1]
        counters = {
            "records": ("Records committed by this instance.", one.records),
            "transactions": ("Transactions committed by this instance.", one.transactions),
            "failures": ("Restarts of the connector.", one.failures),
        }
        for name, (about, value) in counters.items():
            family = CounterMetricFamily(f"tutti_kafka_out_{name}", about, labels=labels)
            family.add_metric([one.config.name], value)
            yield family
        gauges: dict[str, tuple[str, float]] = {
            "flowing": ("1 while records are copied, 0 while the connector waits.", float(one.flowing)),
            "quarantined": ("Records in quarantine.", one.quarantine.count),
        }
        next_offset, frontier = one.next, one.frontier
        if next_offset >= 0:
            gauges["offset"] = ("Offset up to which the log is in Kafka.", next_offset)
            gauges["lag"] = ("Records of the log, of all topics, that are not processed yet.", max(0, frontier - next_offset))
        for name, (about, level) in gauges.items():
            gauge = GaugeMetricFamily(f"tutti_kafka_out_{name}", about, labels=labels)
            gauge.add_metric([one.config.name], level)
            yield gauge
