"""Spans of OpenTelemetry around what a producer sends, for who wants them: the plain `Producer` knows nothing of this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tutti.batching.receipt import Header, OnDelivery, Receipt
from tutti.errors import TuttiError, UsageError
from tutti.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_NAME = "tutti"


class TracedProducer(Producer):
    """A `Producer` of which each send is a span, from the call to the outcome, of OpenTelemetry (`pip install tutti-ingest[otel]`).

    The span is a child of the one that is current when `send` is called; its context travels in the record's headers
    (`traceparent`, and what else is configured), from which `context_of` takes it where the record is read. A batch of `send_batch`
    is one span, and its records carry no context. Spans end with the outcome: an error that a receipt would raise is the span's.

    Args:
        url, producer, options: as of `Producer`.
        tracer: makes the spans; without it the one that is configured for the whole program.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """

    def __init__(self, url: str, producer: str | None = None, *, tracer: Tracer | None = None, **options: Any) -> None:
        """Connect and begin an epoch."""
        try:
            from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError("a TracedProducer needs OpenTelemetry: pip install 'tutti-ingest[otel]'") from error
        self._trace, self._inject = trace, propagate.inject
        self._tracer = tracer or trace.get_tracer(_NAME)
        super().__init__(url, producer, **options)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        timestamp: Any = None,
        headers: Iterable[Header] = (),
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """As `Producer.send`, within a span."""
        span = self._begin(topic, ordering)
        carrier: dict[str, str] = {}
        self._inject(carrier, context=self._trace.set_span_in_context(span))
        told = [*headers, *((name, text.encode()) for name, text in carrier.items())]
        send = super().send
        return self._within(span, on_delivery, lambda ended: send(topic, value, key, timestamp, told, progress, ended, ordering))

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """As `Producer.send_batch`, within a span."""
        span = self._begin(topic, ordering)
        span.set_attribute("messaging.batch.message_count", getattr(record_batch, "num_rows", 0))
        send = super().send_batch
        return self._within(span, on_delivery, lambda ended: send(topic, record_batch, progress, ended, ordering))

    def _begin(self, topic: str, ordering: str) -> Span:
        attributes = {
            "messaging.system": _NAME,
            "messaging.operation.type": "send",
            "messaging.destination.name": str(topic),
            "messaging.client.id": self.name,
            "tutti.ordering": str(ordering),
        }
        return self._tracer.start_span(f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes)

    def _within(self, span: Span, on_delivery: OnDelivery | None, send: Callable[[OnDelivery], Receipt]) -> Receipt:
        """Send, and end the span with the outcome, or with why nothing was sent."""

        def ended(error: TuttiError | None, receipt: Receipt) -> None:
            if error is not None:
                self._fail(span, error)
            else:
                if receipt.offset is not None:
                    span.set_attribute("tutti.offset", receipt.offset)
                span.end()
            if on_delivery is not None:
                on_delivery(error, receipt)

        try:
            if on_delivery is not None and not callable(on_delivery):
                raise UsageError(f"on_delivery is a function of (error, receipt), not {type(on_delivery).__name__}")
            return send(ended)
        except BaseException as error:
            self._fail(span, error)
            raise

    def _fail(self, span: Span, error: BaseException) -> None:
        span.record_exception(error)
        span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end()

    @staticmethod
    def context_of(headers: Iterable[Header] | None) -> Context:
        """The context that a record's headers carry, to begin a span in that goes on with the producer's; empty if none is there.

        Raises:
            UsageError: OpenTelemetry is not installed.
        """
        try:
            from opentelemetry import propagate  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError("context_of needs OpenTelemetry: pip install 'tutti-ingest[otel]'") from error
        carrier = {name.lower(): value.decode("ascii", "replace") for name, value in headers or () if value is not None}
        return propagate.extract(carrier)
