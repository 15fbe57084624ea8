"""OpenTelemetry spans around the sends of a producer. `Producer` itself does not depend on this module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tutti.batching.future import check_callback
from tutti.batching.receipt import Header, OnDelivery, Receipt
from tutti.errors import TuttiError, UsageError, install_remedy
from tutti.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_NAME = "tutti"


class TracedProducer(Producer):
    """A `Producer` that creates an OpenTelemetry span for each send.

    The span lasts from the call to the record's outcome. The parent is the current span of the thread that calls `send`. Record
    headers contain the context of the span (`traceparent`, and other configured headers). `context_of` returns the context of a
    received record. `send_batch` creates one span, and the records of a batch contain no context. If the record fails, the span
    contains the error.

    Args:
        url, producer, options: as in `Producer`.
        tracer: creates the spans; the default is the tracer that the program has configured.

    Raises:
        UsageError: OpenTelemetry is not installed. The extra `otel` contains it.
    """

    def __init__(
        self, url: str | None = None, producer: str | None = None, *, tracer: Tracer | None = None, **options: Any
    ) -> None:
        """Connect and begin an epoch."""
        try:
            from opentelemetry import propagate, trace  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise UsageError(f"a TracedProducer needs OpenTelemetry: {install_remedy('otel')}") from error
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
        """See `Producer.send`; adds a span."""
        span = self._start_span(topic, ordering)
        carrier: dict[str, str] = {}
        # Inject the context of this span, not of the current one, so that the receiver's spans become children of this span.
        self._inject(carrier, context=self._trace.set_span_in_context(span))
        # The trace headers follow the caller's headers.
        sent = [*headers, *((name, text.encode()) for name, text in carrier.items())]
        send = super().send
        return self._in_span(span, on_delivery, lambda ended: send(topic, value, key, timestamp, sent, progress, ended, ordering))

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """See `Producer.send_batch`; adds a span."""
        span = self._start_span(topic, ordering)
        # `record_batch` may have no `num_rows`, because only `send_batch` validates it.
        span.set_attribute("messaging.batch.message_count", getattr(record_batch, "num_rows", 0))
        send = super().send_batch
        return self._in_span(span, on_delivery, lambda ended: send(topic, record_batch, progress, ended, ordering))

    def _start_span(self, topic: str, ordering: str) -> Span:
        attributes = {
            "messaging.system": _NAME,
            "messaging.operation.type": "send",
            "messaging.destination.name": str(topic),
            "messaging.client.id": self.name,
            "tutti.ordering": str(ordering),
        }
        return self._tracer.start_span(f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes)

    def _in_span(self, span: Span, on_delivery: OnDelivery | None, send: Callable[[OnDelivery], Receipt]) -> Receipt:
        """Call `send`; end the span when the record has an outcome, or when the call raises."""

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
            # Check `on_delivery` here: `send` gets `ended` in its place, and accepts `ended` because it is callable.
            if on_delivery is not None:
                check_callback(on_delivery)
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
        """Return the context in a record's headers, to use as the parent of spans; an empty context if the headers have none.

        Raises:
            UsageError: OpenTelemetry is not installed.
        """
        try:
            from opentelemetry import propagate  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise UsageError(f"context_of needs OpenTelemetry: {install_remedy('otel')}") from error
        carrier = {name.lower(): value.decode("ascii", "replace") for name, value in headers or () if value is not None}
        return propagate.extract(carrier)
