"""What the connector says of itself to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from tutti_connect.http.service import Service

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 25.0)


class Metrics:
    """Counts what happens, and looks at the rest when it is asked.

    Attributes:
        turned_away: that of the port's connections (`tutti.runtime.http_server`), once it is served.
    """

    def __init__(self, service: Service) -> None:
        """Nothing has happened."""
        self._service = service
        self.turned_away: Mapping[str, int] = {}
        self._registry = CollectorRegistry()
        of: dict[str, Any] = {"registry": self._registry, "labelnames": ["connector"]}
        name = service.name
        self.records = Counter("tutti_http_records", "Records committed by this process.", **of).labels(name)
        self.failures = Counter("tutti_http_failures", "Answers of 500 and above.", **of).labels(name)
        self.posts = Histogram("tutti_http_post_seconds", "Posts that wait, to their answer.", buckets=_SECONDS, **of).labels(name)
        self.answers = Counter(
            "tutti_http_answers", "Answers by operation and status.", ["connector", "operation", "status"], registry=self._registry
        )
        self._registry.register(self)

    def answered(self, operation: str, status: int) -> None:
        """One request was answered."""
        self.answers.labels(self._service.name, operation, str(status)).inc()
        if status >= 500:
            self.failures.inc()

    def page(self) -> bytes:
        """All families."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What is looked at."""
        service = self._service
        gauges = {
            "posts": (service.posts, "Posts in hand."),
            "body_bytes": (service.intake.held, "Bytes of posts whose outcome is not known."),
            "receipts_pending": (service.receipts.pending, "Posts that do not wait, without an outcome."),
            "producers": (service.producers.opened, "Producers by name that are open."),
            "streams": (service.streams.open, "Streams that are open."),
            "ready": (float(service.health.ready), "1 while posts can be committed."),
            "tokens_trouble": (
                float(bool(service.guard.trouble)),
                "1 while the file of tokens cannot be read: what it said holds.",
            ),
        }
        for name, (value, about) in gauges.items():
            family = GaugeMetricFamily(f"tutti_http_{name}", about, labels=["connector"])
            family.add_metric([service.name], value)
            yield family
        counters = {
            "repeated": (service.producers.repeated, "Posts that had been committed before."),
            "taken_back": (service.producers.taken_back, "Times that another process had taken a producer."),
        }
        for name, (value, about) in counters.items():
            counter = CounterMetricFamily(f"tutti_http_{name}", about, labels=["connector"])
            counter.add_metric([service.name], value)
            yield counter
        for name, about, label, counts in (
            (
                "turned_away",
                "Connections closed without an operation's answer: by the refusal, or crowded.",
                "why",
                self.turned_away,
            ),
            ("tokens_refused", "Times that somebody was refused by a token, or the lack of one.", "reason", service.guard.refused),
        ):
            counter = CounterMetricFamily(f"tutti_http_{name}", about, labels=["connector", label])
            for why, count in dict(counts).items():
                counter.add_metric([service.name, why], count)
            yield counter
