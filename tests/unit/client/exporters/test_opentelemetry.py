"""Tests of the exporter for OpenTelemetry, with the real library: instruments, attributes, and the end of a client."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

from tests.unit.client.fake_flight_server import ReadableGateway
from tests.unit.client.fake_gateway import FakeGateway
from tutti import Producer, Reader, UsageError
from tutti.common.stats import ProducerStats
from tutti.exporters import opentelemetry
from tutti.exporters.clients import METRICS
from tutti.exporters.opentelemetry import register


@pytest.fixture
def collected() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(collected: InMemoryMetricReader) -> MeterProvider:
    return MeterProvider([collected], shutdown_on_exit=False)


def values(collected: InMemoryMetricReader) -> dict[tuple[str, str], float]:
    """Return the measurements of one collection by instrument and client."""
    data = collected.get_metrics_data()
    found: dict[tuple[str, str], float] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert point.attributes is not None
                    found[metric.name, str(point.attributes["client"])] = getattr(point, "value")  # noqa: B009 - a union of points
    return found


def test_the_instruments_of_two_producers_and_a_reader(provider: MeterProvider, collected: InMemoryMetricReader) -> None:
    meter = provider.get_meter("app")
    with (
        ReadableGateway(8) as gateway,
        Producer(gateway.url, producer="p") as p,
        Producer(gateway.url, producer="q") as q,
        Reader(gateway.url, name="loader", start=3) as r,
    ):
        for client in (p, q, r):
            register(client, meter)
        p.send("t", b"1").result(10)
        p.flush(10)
        found = values(collected)
        assert found["tutti.client.producer.records_acknowledged", "p"] == 1
        assert found["tutti.client.producer.records_acknowledged", "q"] == 0
        assert found["tutti.client.reader.position", "loader"] == 3
        assert found["tutti.client.reader.lag", "loader"] == 5
        assert len(found) == len(METRICS) + len([metric for metric in METRICS if metric.role == "producer"])
        p.close()
        assert {name for _, name in values(collected)} == {"q", "loader"}


def test_a_counter_is_monotone_and_has_its_unit(provider: MeterProvider, collected: InMemoryMetricReader) -> None:
    with FakeGateway() as gateway, Producer(gateway.url, producer="p") as p:
        register(p, provider.get_meter("app"))
        data = collected.get_metrics_data()
        assert data is not None
        found = {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}
    sent = found["tutti.client.producer.bytes_sent"]
    assert sent.unit == "By"
    assert isinstance(sent.data, Sum)
    assert sent.data.is_monotonic
    assert not isinstance(found["tutti.client.producer.outage"].data, Sum)
    assert found["tutti.client.producer.outage"].unit == "s"


def test_a_collection_reads_the_statistics_of_a_client_once(
    provider: MeterProvider, collected: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeGateway() as gateway, Producer(gateway.url, producer="p") as p:
        register(p, provider.get_meter("app"))
        read, calls = p.stats, []

        def stats() -> ProducerStats:
            calls.append(1)
            return replace(read(), records_sent=len(calls), records_acknowledged=len(calls))

        monkeypatch.setattr(p, "stats", stats)
        for number in (1, 2, 3):
            found = values(collected)
            assert found["tutti.client.producer.records_sent", "p"] == number
            assert found["tutti.client.producer.records_acknowledged", "p"] == number
        assert len(calls) == 3


def test_two_open_clients_cannot_share_a_name(provider: MeterProvider) -> None:
    meter = provider.get_meter("app")
    with ReadableGateway(8) as gateway, Reader(gateway.url) as one, Reader(gateway.url) as other:
        register(one, meter)
        with pytest.raises(UsageError, match="registered already"):
            register(other, meter)
        register(other, meter, name="other")


def test_the_default_is_a_meter_of_the_programs_provider(
    provider: MeterProvider, collected: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    monkeypatch.setattr(opentelemetry, "_default", [])
    with FakeGateway() as gateway, Producer(gateway.url, producer="p") as p, Producer(gateway.url, producer="q") as q:
        register(p)
        register(q)
        assert {name for _, name in values(collected)} == {"p", "q"}


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        with pytest.raises(UsageError, match="otel"):
            register(p)
