"""Prometheus metrics of the HTTP connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from tutti_connect.http.handlers import Service

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 25.0)


class Metrics:
    """Metrics of one process: counts posts and answers as they occur, and reads all other values at each scrape.

    Attributes:
        turned_away: number of rejected connections by reason, which `tutti.runtime.http_server` counts.
    """

    def __init__(self, service: Service) -> None:
        """Start with all counters at zero."""
        self._service = service
        self.turned_away: Mapping[str, int] = {}
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry, "labelnames": ["connector"]}
        name = service.name
        self.records = Counter("tutti_http_records", "Records committed by this process.", **options).labels(name)
        self.failures = Counter("tutti_http_failures", "Answers with status 500 or above.", **options).labels(name)
        self.posts = Histogram(
            "tutti_http_post_seconds", "Time to the answer of posts that wait for their outcome.", buckets=_SECONDS, **options
        ).labels(name)
        self.answers = Counter(
            "tutti_http_answers", "Answers by operation and status.", ["connector", "operation", "status"], registry=self._registry
        )
        self._registry.register(self)

    def answered(self, operation: str, status: int) -> None:
        """Count one answered request."""
        self.answers.labels(self._service.name, operation, str(status)).inc()
        if status >= 500:
            self.failures.inc()

    def page(self) -> bytes:
        """Return all metric families in Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are computed at each scrape."""
        service = self._service
        gauges = {
            "posts": (service.posts, "Posts in progress."),
            "body_bytes": (service.body_reader.reserved_bytes, "Bytes of posts with unknown outcome."),
            "receipts_pending": (service.receipts.pending, "Posts with wait=false that have no outcome yet."),
            "producers": (service.producers.opened, "Open producers with a name."),
            "streams": (service.streams.open, "Open streams."),
            "ready": (float(service.health.ready), "1 while posts can be committed."),
            "tokens_trouble": (
                float(bool(service.authorizer.trouble)),
                "1 while the token file cannot be read; the last valid content stays in use.",
            ),
        }
        for name, (value, about) in gauges.items():
            family = GaugeMetricFamily(f"tutti_http_{name}", about, labels=["connector"])
            family.add_metric([service.name], value)
            yield family
        counters = {
            "repeated": (service.producers.repeated, "Repeated posts that were already committed."),
            "taken_back": (service.producers.reclaimed, "Times that a producer was taken back from another process."),
        }
        for name, (value, about) in counters.items():
            counter = CounterMetricFamily(f"tutti_http_{name}", about, labels=["connector"])
            counter.add_metric([service.name], value)
            yield counter
        for name, about, label, counts in (
            (
                "turned_away",
                "Connections closed without an operation's answer, by reason.",
                "why",
                self.turned_away,
            ),
            ("tokens_refused", "Requests rejected for a wrong or missing token.", "reason", service.authorizer.refused),
        ):
            counter = CounterMetricFamily(f"tutti_http_{name}", about, labels=["connector", label])
            for why, count in dict(counts).items():
                counter.add_metric([service.name, why], count)
            yield counter
