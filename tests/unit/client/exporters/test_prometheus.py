"""Tests of the exporter for Prometheus, with the real library: names, labels, and the end of a client."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.client.fake_flight_server import ReadableGateway
from tests.unit.client.fake_gateway import FakeGateway
from tutti import Producer, Reader, UsageError
from tutti.aio import AsyncProducer, AsyncReader
from tutti.exporters.clients import METRICS
from tutti.exporters.prometheus import register


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Return the values of a scrape by name and label."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(one.name, one.labels["client"]): one.value for family in families for one in family.samples}


def test_the_metrics_of_a_producer(registry: CollectorRegistry) -> None:
    with FakeGateway() as gateway, Producer(gateway.url, producer="p") as p:
        register(p, registry)
        assert samples(registry)["tutti_client_producer_records_acknowledged_total", "p"] == 0
        p.send("t", b"1").result(10)
        p.flush(10)
        found, stats = samples(registry), p.stats()
    assert found["tutti_client_producer_records_acknowledged_total", "p"] == 1
    assert found["tutti_client_producer_bytes_sent_total", "p"] == stats.bytes_sent
    assert found["tutti_client_producer_connected", "p"] == 1
    assert found["tutti_client_producer_outage_seconds", "p"] == 0
    assert found["tutti_client_producer_epoch", "p"] == 1
    assert len(found) == len([metric for metric in METRICS if metric.role == "producer"])
    assert samples(registry) == {}  # the producer is closed


def test_several_clients_have_a_label_each(registry: CollectorRegistry) -> None:
    with (
        ReadableGateway(8) as gateway,
        Producer(gateway.url, producer="p") as p,
        Producer(gateway.url, producer="q") as q,
        Reader(gateway.url, start=3) as r,
    ):
        for client in (p, q, r):
            register(client, registry)
        register(p, registry)  # a second call changes nothing
        found = samples(registry)
        assert {name for metric, name in found if metric == "tutti_client_producer_epoch"} == {"p", "q"}
        assert found["tutti_client_reader_position", "reader"] == 3
        assert found["tutti_client_reader_lag_records", "reader"] == 5
        p.close()
        assert {name for _, name in samples(registry)} == {"q", "reader"}


def test_two_open_clients_cannot_share_a_label(registry: CollectorRegistry) -> None:
    with ReadableGateway(8) as gateway, Reader(gateway.url) as one:
        register(one, registry)
        with Reader(gateway.url) as other:
            with pytest.raises(UsageError, match=r"a reader with the name 'reader' .* register\(\.\.\., name=\.\.\.\)"):
                register(other, registry)
            register(other, registry, name="other")
            assert {name for _, name in samples(registry)} == {"reader", "other"}
        one.close()
        with Reader(gateway.url) as next_one:
            register(next_one, registry)
            assert {name for _, name in samples(registry)} == {"reader"}


def test_a_client_that_the_application_dropped_is_not_kept(registry: CollectorRegistry) -> None:
    with ReadableGateway(8) as gateway:
        r = Reader(gateway.url)
        register(r, registry)
        assert samples(registry)
        del r
        gc.collect()
        assert samples(registry) == {}


def test_the_default_is_the_registry_of_the_process() -> None:
    from prometheus_client import REGISTRY

    with FakeGateway() as gateway, Producer(gateway.url, producer="of-the-process") as p:
        register(p)
        assert REGISTRY.get_sample_value("tutti_client_producer_epoch", {"client": "of-the-process"}) == 1


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, registry: CollectorRegistry) -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(UsageError, match="prometheus"):
            register(p, registry)


def test_a_producer_without_a_name_has_the_same_label_after_each_start(registry: CollectorRegistry) -> None:
    """Its random name would begin new time series at each start."""
    with FakeGateway() as gateway:
        for _ in range(2):
            with Producer(gateway.url) as p:
                register(p, registry)
                assert {label for _, label in samples(registry)} == {"producer"}


def test_clients_of_asyncio(registry: CollectorRegistry) -> None:
    async def run(producing: FakeGateway, reading: ReadableGateway) -> None:
        async with AsyncProducer(producing.url, producer="p") as p, AsyncReader(reading.url, name="r") as r:
            assert sum([batch.num_rows async for batch in r]) == 5
            for client in (p, r):
                register(client, registry)
            await p.send("t", b"1")
            found = samples(registry)
            assert found["tutti_client_producer_records_acknowledged_total", "p"] == 1
            assert found["tutti_client_reader_records_read_total", "r"] == r.stats().records_read == 5
            assert (p.closed, r.closed) == (False, False)
            assert "'p'" in repr(p)
            assert "'r'" in repr(r)
        assert (p.closed, r.closed) == (True, True)

    with FakeGateway() as producing, ReadableGateway(records=5) as reading:
        asyncio.run(run(producing, reading))
    assert samples(registry) == {}
    with pytest.raises(UsageError, match="not open"):
        AsyncProducer("tutti://127.0.0.1:1").stats()
    with pytest.raises(UsageError, match="not open"):
        AsyncReader("tutti://127.0.0.1:1").stats()
