"""Transactions: records that several processes stage, and one makes visible together (design, section 3, TXN).

Whoever stages has a nameless producer of its own, so that what a failed attempt left behind is nobody else's: it is let go with its
producer, at once (`Control.forget`) or when that was idle for a day. Whoever commits has the named producer whose records they
become: a later instance fences it, and its progress says which transaction was the last.
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

SLICE_BYTES = 1 << 20  # of a staged batch, about: large enough to be cheap, well below what one may have
_RECORDS_END = 1 << 32  # what a frame's field holds
_EMPTY_RECORD = pa.record_batch({"value": pa.array([b""], pa.binary())})


class Part(NamedTuple):
    """A staged batch: its position, topic, records, and the range of their timestamps, us."""

    position: int
    topic: str
    records: int
    first_time: int
    last_time: int


class Staging(Producer):
    """A producer whose records are in the log and visible nowhere until a transaction names them: as `Producer`, without a name."""

    staged = True

    @property
    def instance(self) -> bytes:
        """What shows that the producer is one's own: who lets go of it has to know it."""
        return self._delivery.identity.instance

    def stage(self, topic: str, records: pa.RecordBatch) -> list[Receipt]:
        """Send a record batch as `send_batch` does, in slices of a good size, however unequal its records are."""
        return [self.send_batch(topic, part) for part in _slices(records)]

    @staticmethod
    def parts(receipts: Sequence[Receipt]) -> list[Part]:
        """What a transaction needs of staged batches, once they are decided: waits for that.

        Raises:
            TuttiError: one of them was not staged, or it is not known where.
        """
        found = []
        for receipt in receipts:
            position, batch = receipt.result(), receipt.batch
            if position == OFFSET_UNKNOWN or batch.cut:
                raise Refused(
                    f"{batch.count} records of topic {batch.topic!r} are staged, and it is not known where: stage them again",
                    "staged",
                )
            found.append(Part(position, batch.topic, batch.count, batch.min_timestamp, batch.max_timestamp))
        return found


class Transactor(Producer):
    """A producer that makes staged records visible. Arguments as `Producer`."""

    def commit(self, parts: Sequence[Part], progress: bytes) -> Receipt:
        """Make staged batches visible, all of them, in this order and in one place of the log, or none.

        Args:
            parts: staged batches, at least one.
            progress: commits with them and comes back by `resume()`: which transaction it was.

        Returns the receipt: offset of the first record, and `count`.

        Raises:
            UsageError: there are none, or too many.
        """
        records = sum(part.records for part in parts)
        if not 0 < len(parts) <= limits.STAGED_BATCHES_MAX or records >= _RECORDS_END:
            raise UsageError(
                f"a transaction of {len(parts)} batches with {records} records cannot be: it takes 1 to "
                f"{limits.STAGED_BATCHES_MAX} batches, and fewer than {_RECORDS_END} records: stage fewer, larger batches, or "
                "commit several transactions"
            )
        feed = self._check(parts[0].topic, None, "total", progress)
        batch = Batch(parts[0].topic, 0, time.monotonic() + feed.options.delivery_timeout, feed.passing)
        batch.kind, batch.whole, batch.progress = int(Kind.TXN), True, check_progress(progress)
        batch.count = records
        batch.min_timestamp = min(part.first_time for part in parts)
        batch.max_timestamp = max(part.last_time for part in parts)
        body = encode_body(TxnBody(tuple(part.position for part in parts), tuple(part.records for part in parts)))
        seal(batch, body, 0)
        return feed.add_closed(batch)


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

    A progress belongs to a record, so one record is staged. The producer's next epoch discards that record and keeps the progress.

    Args:
        url: of the gateways.
        producer: its name. A running instance of it is fenced.
        topic: that the producer may write to; it gets no record.
        decide: returns the progress to commit, given the committed one (`b""`: none); `b""` commits nothing.
        connect_timeout: seconds to find a gateway and begin an epoch.
        credentials: as of `Producer`.

    Returns the progress that `decide` returned; it is durable then.

    Raises:
        TuttiError: it is not committed (Aborted, Fenced, Unavailable), or it is not known whether it is (Unknown).
    """
    with Staging(url, producer=producer, connect_timeout=connect_timeout, credentials=credentials) as staging:
        progress = decide(staging.resume().progress)
        if progress:
            staging.send_batch(topic, _EMPTY_RECORD, progress).result()
    if progress:
        with (
            contextlib.suppress(TuttiError),  # the producer's next epoch discards it in any case
            Producer(url, producer=producer, connect_timeout=connect_timeout, credentials=credentials),
        ):
            pass
    return progress


def _slices(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in halves, and these again, until each has a good size or one record."""
    middle = records.num_rows // 2
    if not middle or records.nbytes <= SLICE_BYTES:
        yield records
        return
    yield from _slices(records.slice(0, middle))
    yield from _slices(records.slice(middle))
