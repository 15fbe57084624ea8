"""What a connector says of itself to Prometheus, collected when it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connectors.kafka.partition import State

if TYPE_CHECKING:
    from connectors.kafka.inflow import Connector

_LABELS = ["connector", "topic", "partition"]


class Metrics(Collector):
    """Collector of one connector."""

    def __init__(self, connector: Connector) -> None:
        """Look at it from another thread; nothing is changed."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """All families."""
        records = CounterMetricFamily("tutti_kafka_in_records", "Records committed by this instance.", labels=_LABELS)
        place = GaugeMetricFamily("tutti_kafka_in_offset", "Offset of Kafka up to which the log has the partition.", labels=_LABELS)
        lag = GaugeMetricFamily("tutti_kafka_in_lag", "Messages of Kafka that are not in the log yet.", labels=_LABELS)
        up = GaugeMetricFamily("tutti_kafka_in_flowing", "1 while the partition flows, 0 while it waits.", labels=_LABELS)
        failures = CounterMetricFamily("tutti_kafka_in_failures", "Times that a partition had to begin again.", labels=_LABELS)
        name = self._connector.config.name
        for partition in list(self._connector.partitions.values()):
            labels = [name, partition.topic, str(partition.number)]
            records.add_metric(labels, partition.records)
            up.add_metric(labels, float(partition.state is State.FLOWING))
            failures.add_metric(labels, partition.failures)
            if partition.state is State.FLOWING:
                place.add_metric(labels, partition.committed)
                if partition.high >= 0:
                    lag.add_metric(labels, max(0, partition.high - partition.committed))
        quarantined = GaugeMetricFamily("tutti_kafka_in_quarantined", "Records in quarantine.", labels=_LABELS[:1])
        quarantined.add_metric([name], self._connector.quarantine.count)
        yield from (records, place, lag, up, failures, quarantined)
