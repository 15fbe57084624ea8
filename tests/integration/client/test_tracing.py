"""Tests of tracing: each send is a span from the call to the outcome, and its context is available where the record is read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.gateway_process import GatewayProcess
from tutti import Reader, Receipt, TooLarge, TracedProducer, UsageError


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


def about(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def test_from_send_to_read(gateway: GatewayProcess, spans: InMemorySpanExporter, tracer: trace.Tracer) -> None:
    told: list[Receipt] = []
    with tracer.start_as_current_span("request"), TracedProducer(gateway.url, producer="traced", tracer=tracer) as producer:
        plain = producer.send("flights", b"one", headers=[("a", b"b")])
        unordered = producer.send("flights", b"two", ordering="unordered", on_delivery=lambda _, receipt: told.append(receipt))
        batch = producer.send_batch("flights", pa.RecordBatch.from_pydict({"value": pa.array([b"x", b"y"], pa.binary())}))
        assert (plain.result(10), unordered.result(10), batch.result(10)) == (0, 0, 1)
        assert told == [unordered]
    finished: Sequence[ReadableSpan] = spans.get_finished_spans()
    request = next(span for span in finished if span.name == "request")
    sends = [span for span in finished if span.name == "send flights"]
    assert len(sends) == 3
    assert all(span.parent is not None and span.parent.span_id == ids(request)[1] for span in sends)
    ordered = next(span for span in sends if about(span)["tutti.offset"] == 0 and about(span)["tutti.ordering"] == "total")
    assert about(ordered)["messaging.client.id"] == "traced"
    assert {about(span).get("messaging.batch.message_count") for span in sends} == {None, 2}
    with Reader(gateway.url, topics=["flights"], start=0) as reader:
        records = list(reader.records())
    assert records[0].headers is not None
    assert records[0].headers[0] == ("a", b"b")
    found = trace.get_current_span(TracedProducer.context_of(records[0].headers)).get_span_context()
    assert (found.trace_id, found.span_id) == ids(ordered)
    assert not trace.get_current_span(TracedProducer.context_of(records[1].headers)).get_span_context().is_valid


def test_a_failure_is_recorded_on_its_span(gateway: GatewayProcess, spans: InMemorySpanExporter, tracer: trace.Tracer) -> None:
    with TracedProducer(gateway.url, tracer=tracer) as producer:
        with pytest.raises(TooLarge):
            producer.send("flights", b"x" * (9 << 20)).result(10)
        with pytest.raises(UsageError):
            producer.send("no such name!", b"x")
        with pytest.raises(UsageError, match="on_delivery must be a function"):
            producer.send("flights", b"x", on_delivery="log")  # type: ignore[arg-type]  # that is the mistake
    failed = spans.get_finished_spans()
    assert [span.status.status_code for span in failed] == [trace.StatusCode.ERROR] * 3
    assert all(span.events[0].name == "exception" for span in failed)


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[otel\]' in a checkout"):
        TracedProducer("tutti://127.0.0.1:1")
    with pytest.raises(UsageError, match=r"pip install '\.\[otel\]' in a checkout"):
        TracedProducer.context_of([])
