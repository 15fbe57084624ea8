"""Prometheus metrics of the ZeroMQ connectors, computed at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti_connect.zeromq.spooled_flow import SpooledFlow

if TYPE_CHECKING:
    from tutti_connect.zeromq.sink import Publisher
    from tutti_connect.zeromq.source import SourceConnector


def _family(kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, what: str, connector: str, value: float) -> Metric:
    family = kind(f"tutti_zeromq_{name}", what, labels=["connector"])
    family.add_metric([connector], float(value))
    return family


class InMetrics(Collector):
    """Metrics collector of zeromq-in."""

    def __init__(self, connector: SourceConnector) -> None:
        """Create the collector of `connector`, whose counters each scrape reads in another thread."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        one, flow = self._connector, self._connector.flow
        counter, gauge, name = CounterMetricFamily, GaugeMetricFamily, one.config.name
        yield _family(counter, "in_records", "Records committed by this instance.", name, flow.records)
        yield _family(counter, "in_messages", "Messages read from the socket.", name, one.messages)
        yield _family(counter, "in_bytes", "Bytes of the messages read from the socket.", name, one.bytes)
        yield _family(counter, "in_dropped", "Messages dropped because the buffer was full.", name, one.dropped)
        yield _family(counter, "in_failures", "Restarts of the producer.", name, flow.failures)
        yield _family(gauge, "in_waiting", "Records received but not committed yet.", name, flow.waiting)
        if isinstance(flow, SpooledFlow):
            yield _family(gauge, "in_spooled", "Waiting records that are on disk and survive a crash.", name, flow.spooled)
        yield _family(gauge, "in_flowing", "1 with an open producer, 0 while waiting for a restart.", name, flow.flowing)
        yield _family(gauge, "in_quarantined", "Messages in quarantine.", name, one.quarantine.count)
        what = "Rejected messages that did not fit in quarantine."
        yield _family(counter, "in_quarantine_dropped", what, name, one.quarantine.dropped)


class OutMetrics(Collector):
    """Metrics collector of zeromq-out."""

    def __init__(self, publisher: Publisher) -> None:
        """Create the collector of `publisher`, whose counters each scrape reads in another thread."""
        self._publisher = publisher

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        one = self._publisher
        counter, gauge, name = CounterMetricFamily, GaugeMetricFamily, one.config.name
        yield _family(counter, "out_records", "Records published by this instance, with or without subscribers.", name, one.records)
        yield _family(counter, "out_failures", "Failed requests to gateways, and restarts of the reader.", name, one.failures)
        yield _family(gauge, "out_offset", "Offset up to which the log is published.", name, one.position)
        yield _family(gauge, "out_subscriptions", "Prefixes with at least one subscriber.", name, one.subscriptions)
