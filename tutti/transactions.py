"""Transactions: several processes stage records, and one process makes all of them visible together (design, section 3, TXN).

Each staging process has its own unnamed producer, so that an attempt never uses the batches of a failed attempt. The log drops the
batches of a failed attempt together with the state of their producer: either at once (`AdminClient.forget`) or after an idle day.
The committing process uses a named producer, so that a later instance fences an earlier one. The progress of the named producer
identifies the last transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from tutti import limits
from tutti.batching.encoder import check_progress, seal
from tutti.batching.receipt import Batch, Receipt
from tutti.common.credentials import Credentials
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import Kind
from tutti.errors import Refused, TuttiError, UsageError
from tutti.producer import Producer

SLICE_BYTES = 1 << 20  # size above which a staged batch is split: large enough to be efficient, far below the frame limit
_RECORDS_END = 1 << 32  # bound of the count field of a frame
_EMPTY_RECORD = pa.record_batch({"value": pa.array([b""], pa.binary())})


class StagedBatch(NamedTuple):
    """A staged batch: its log position, topic, number of records, and first and last timestamp in microseconds."""

    position: int
    topic: str
    records: int
    first_time: int
    last_time: int


class StagingProducer(Producer):
    """A `Producer` whose records stay invisible in the log until a transaction includes them; usually without a name."""

    staged = True

    @property
    def instance(self) -> bytes:
        """The instance id of the producer. A request to delete the producer's state must contain the instance id."""
        return self._delivery.session.identity.instance

    def stage(self, topic: str, records: pa.RecordBatch) -> list[Receipt]:
        """Send a record batch in slices of at most `SLICE_BYTES`, each as `send_batch` does."""
        return [self.send_batch(topic, part) for part in _slices(records)]

    @staticmethod
    def parts(receipts: Sequence[Receipt]) -> list[StagedBatch]:
        """Wait until staged batches are decided, and return the parts for a transaction.

        Raises:
            TuttiError: a batch is not staged, or its position is not known.
        """
        found = []
        for receipt in receipts:
            position, batch = receipt.result(), receipt.batch
            # A TXN frame names each batch by one position; the first records of a trimmed batch are at another, unknown position.
            if position == OFFSET_UNKNOWN or batch.trimmed:
                raise Refused(
                    f"{batch.count} records of topic {batch.topic!r} are staged at an unknown position: stage them again",
                    "staged",
                )
            found.append(StagedBatch(position, batch.topic, batch.count, batch.min_timestamp, batch.max_timestamp))
        return found


class Transactor(Producer):
    """A producer that makes staged records visible. The arguments are those of `Producer`."""

    def commit(self, parts: Sequence[StagedBatch], progress: bytes) -> Receipt:
        """Make staged batches visible, in this order and at consecutive offsets: all of them, or none.

        Args:
            parts: staged batches, at least one.
            progress: bytes that commit with the records and identify the transaction; `resume()` returns the last progress.

        Returns:
            The receipt, with the offset of the first record and the `count` of records.

        Raises:
            UsageError: `parts` is empty, or has too many batches or records.
        """
        records = sum(part.records for part in parts)
        if not 0 < len(parts) <= limits.STAGED_BATCHES_MAX or records >= _RECORDS_END:
            raise UsageError(
                f"a transaction of {len(parts)} batches with {records} records is not possible: the limits are 1 to "
                f"{limits.STAGED_BATCHES_MAX} batches and fewer than {_RECORDS_END} records; stage fewer, larger batches, or "
                "commit several transactions"
            )
        accumulator = self._check(parts[0].topic, None, "total", progress)
        batch = Batch(parts[0].topic, 0, time.monotonic() + accumulator.options.delivery_timeout, accumulator.query_wait)
        # One TXN frame lists all parts, so the parts become visible together or not at all.
        batch.kind, batch.atomic, batch.progress = int(Kind.TXN), True, check_progress(progress)
        batch.count = records
        batch.min_timestamp = min(part.first_time for part in parts)
        batch.max_timestamp = max(part.last_time for part in parts)
        body = encode_body(TxnBody(tuple(part.position for part in parts), tuple(part.records for part in parts)))
        seal(batch, body, 0)
        return accumulator.add_closed(batch)


def commit_progress(
    url: str,
    producer: str,
    topic: str,
    decide: Callable[[bytes], bytes],
    *,
    connect_timeout: float = limits.CONNECT_TIMEOUT_US / 1e6,
    credentials: Credentials | None = None,
) -> bytes:
    """Commit a named producer's progress without a visible record.

    The log stores a progress only with a record, so this function stages one record. The next epoch of the producer discards the
    staged record and keeps the progress. The call fences a running instance of the producer.

    Args:
        url: url of the gateways.
        producer: name of the producer.
        topic: a topic that the producer may write to; the topic gets no visible record.
        decide: function that gets the committed progress (`b""`: none) and returns the progress to commit (`b""`: commit nothing).
        connect_timeout: seconds to find a gateway and begin an epoch.
        credentials: as in `Producer`.

    Returns:
        The progress that `decide` returned, now durable.

    Raises:
        TuttiError: the progress is not committed (Aborted, Fenced, Unavailable), or its outcome is not known (Unknown).
    """
    with StagingProducer(url, producer=producer, connect_timeout=connect_timeout, credentials=credentials) as staging:
        progress = decide(staging.resume().progress)
        if progress:
            # The received-table stores the progress as soon as the record is staged, and keeps it when the record is discarded.
            staging.send_batch(topic, _EMPTY_RECORD, progress).result()
    if progress:
        with (
            contextlib.suppress(TuttiError),  # if this epoch fails, the next epoch of the producer discards the record
            Producer(url, producer=producer, connect_timeout=connect_timeout, credentials=credentials),
        ):
            pass
    return progress


def _slices(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the batch in halves until each slice has at most `SLICE_BYTES` or one record."""
    middle = records.num_rows // 2
    if not middle or records.nbytes <= SLICE_BYTES:
        yield records
        return
    yield from _slices(records.slice(0, middle))
    yield from _slices(records.slice(middle))
