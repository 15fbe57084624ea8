"""What the connectors of ZeroMQ say of themselves to Prometheus, collected when they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti_connect.zeromq.spooled import SpooledFlow

if TYPE_CHECKING:
    from tutti_connect.zeromq.sink import Publisher
    from tutti_connect.zeromq.source import Connector


def _family(kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, what: str, connector: str, value: float) -> Metric:
    family = kind(f"tutti_zeromq_{name}", what, labels=["connector"])
    family.add_metric([connector], float(value))
    return family


class InMetrics(Collector):
    """Collector of zeromq-in."""

    def __init__(self, connector: Connector) -> None:
        """Look at it from another thread; nothing is changed."""
        self._connector = connector

    def collect(self) -> Iterator[Metric]:
        """All families."""
        one, flow = self._connector, self._connector.flow
        counter, gauge, name = CounterMetricFamily, GaugeMetricFamily, one.config.name
        yield _family(counter, "in_records", "Records committed by this instance.", name, flow.records)
        yield _family(counter, "in_messages", "Messages taken from the socket.", name, one.messages)
        yield _family(counter, "in_bytes", "Bytes of them.", name, one.bytes)
        yield _family(counter, "in_dropped", "Messages of them that there was no room for.", name, one.dropped)
        yield _family(counter, "in_failures", "Times that it had to begin again.", name, flow.failures)
        yield _family(gauge, "in_waiting", "Records that were taken and are not committed yet.", name, flow.waiting)
        if isinstance(flow, SpooledFlow):
            yield _family(gauge, "in_spooled", "Records of these that are on the disk, and survive a crash.", name, flow.spooled)
        yield _family(gauge, "in_flowing", "1 while it has a producer, 0 while it waits to begin again.", name, flow.flowing)
        yield _family(gauge, "in_quarantined", "Messages in quarantine.", name, one.quarantine.count)
        what = "Messages that no log takes, and that quarantine had no space for."
        yield _family(counter, "in_quarantine_dropped", what, name, one.quarantine.dropped)


class OutMetrics(Collector):
    """Collector of zeromq-out."""

    def __init__(self, publisher: Publisher) -> None:
        """Look at it from another thread; nothing is changed."""
        self._publisher = publisher

    def collect(self) -> Iterator[Metric]:
        """All families."""
        one = self._publisher
        counter, gauge, name = CounterMetricFamily, GaugeMetricFamily, one.config.name
        yield _family(counter, "out_records", "Records published by this instance, whoever got them.", name, one.records)
        yield _family(counter, "out_failures", "Times that no gateway answered, or that it had to begin again.", name, one.failures)
        yield _family(gauge, "out_offset", "Offset up to which the log was published.", name, one.position)
        yield _family(gauge, "out_subscriptions", "Prefixes that somebody subscribes to.", name, one.subscriptions)
