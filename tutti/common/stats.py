"""Statistics of producers and readers: counters and gauges that the client keeps anyway, as of one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COUNTER, GAUGE = "counter", "gauge"


def records_text(count: int) -> str:
    """Return a number of records as text for messages."""
    return f"{count} record{'' if count == 1 else 's'}"


def _text(about: str) -> Any:
    return field(metadata={"about": about})


def _counter(unit: str, about: str) -> Any:
    return field(metadata={"kind": COUNTER, "unit": unit, "about": about})


def _gauge(unit: str, about: str) -> Any:
    return field(metadata={"kind": GAUGE, "unit": unit, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStats:
    """Counters and gauges of a producer, from `Producer.stats`. Counters start at 0 with the producer and never decrease.

    Sizes count as `buffer_bytes` does: a record with its key, and a record batch as encoded. Ordered and unordered records count
    together. The fields `gateway`, `connected`, `outage`, `reconnects` and `failovers` describe the connection of ordered records.
    """

    name: str = _text("Name of the producer.")
    gateway: str = _text("Address of the current gateway, as HOST:P. Empty during an outage.")
    last_error: str = _text(
        "Last failure of a gateway or a connection. Empty if a receipt has arrived since. After the end of the producer, the "
        "reason for the end."
    )
    connected: bool = _gauge(
        "", "True if a gateway serves the producer. False during an outage, and after the end of the producer."
    )
    outage: float = _gauge(
        "seconds", "Time since the current outage began, or since the end of the producer. 0 while the producer is connected."
    )
    epoch: int = _gauge("", "Current epoch of the producer, or the last one if no epoch is open.")
    reconnects: int = _counter("", "Connections that ended an outage.")
    failovers: int = _counter("", "Reconnects to another gateway than before.")
    records_sent: int = _counter("records", "Records that `send` and `send_batch` accepted.")
    bytes_sent: int = _counter("bytes", "Size of the sent records, without the batch that is still open.")
    records_acknowledged: int = _counter("records", "Records that committed.")
    bytes_acknowledged: int = _counter("bytes", "Size of the records that committed.")
    records_failed: int = _counter("records", "Records whose receipt has failed.")
    bytes_failed: int = _counter("bytes", "Size of the records whose receipt has failed.")
    records_buffered: int = _gauge("records", "Records without an outcome, as `len(producer)`.")
    bytes_buffered: int = _gauge("bytes", "Memory of the buffer in use, without the batch that is still open.")
    records_in_flight: int = _gauge("records", "Buffered records that were passed to the connection.")
    bytes_in_flight: int = _gauge("bytes", "Encoded size of the records in flight.")
    records_resent: int = _counter("records", "Records that were sent again after a failure. The gateway removes duplicates.")
    records_spooled: int = _gauge("records", "Uncommitted records in the spool. 0 without a spool.")
    bytes_spooled: int = _gauge("bytes", "Size of the spool's directory. 0 without a spool.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
    """Counters and gauges of a reader, from `Reader.stats`. Counters start at 0 with the reader and never decrease.

    The fields about the gateway keep their first values if the reader reads files or an archive only.
    """

    name: str = _text("Name of the reader. Empty for a reader without a name.")
    gateway: str = _text("Address of the current gateway, as HOST:P. Empty during an outage.")
    last_error: str = _text(
        "Last failure of a gateway. Empty if a gateway has answered since. After `close`, the text `the reader is closed`."
    )
    connected: bool = _gauge("", "True if a gateway serves the reader. False during an outage, and after `close`.")
    outage: float = _gauge("seconds", "Time since the current outage began, or since `close`. 0 while the reader is connected.")
    reconnects: int = _counter("", "Connections that ended an outage.")
    failovers: int = _counter("", "Reconnects to another gateway than before.")
    records_read: int = _counter("records", "Records in the batches that the reader has fetched.")
    bytes_read: int = _counter("bytes", "Size of the Arrow buffers of these batches.")
    position: int | None = _gauge("", "Next offset to read. None for a reader of all lanes.")
    lag: int | None = _gauge(
        "records",
        "Offsets between the position and the highest frontier that the reader has seen. None if the reader has seen none.",
    )


class AccumulatorTotals:
    """Running totals of one accumulator: (records, bytes) that were sent, that committed, and that failed."""

    __slots__ = ("acknowledged", "failed", "sent")

    def __init__(self) -> None:
        """Begin at zero."""
        self.sent = self.acknowledged = self.failed = (0, 0)

    def add_sent(self, count: int, size: int) -> None:
        """Count a batch that was closed."""
        records, total = self.sent
        self.sent = records + count, total + size

    def add_outcome(self, count: int, size: int, *, failed: bool) -> None:
        """Count a batch that has its outcome."""
        records, total = self.failed if failed else self.acknowledged
        if failed:
            self.failed = records + count, total + size
        else:
            self.acknowledged = records + count, total + size
