"""Senders of `tutti produce`: `Sender` straight to a gateway, exactly once; `SpooledSender` through a spool on disk.

With `Sender`, each batch carries progress: the count and the hash of the input up to its last record. A run under a known name
queries the last committed progress and reads that many records without sending. It continues only if their hash is equal. After an
abort, the run does the same with the batches that it still buffers.

`SpooledSender` is for an input that cannot be read again. It needs no progress, because the spool keeps uncommitted records.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import orjson
import pyarrow as pa

from tutti import limits as common_limits
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.errors import Aborted, Fenced, TuttiError, Unavailable, Unknown
from tutti_gateway.cli.common.output import count_text
from tutti_gateway.cli.records.inputs import Batcher, Chunk, InputHash
from tutti_gateway.core import limits

if TYPE_CHECKING:
    from tutti.batching.receipt import Receipt

RECEIPT_WAIT_S = 130.0
SPOOL_DELIVERY_S = common_limits.REQUEST_TIMEOUT_US / 1e6
_SPOOL_GRACE_S = common_limits.EXIT_FLUSH_US / 1e6
#: Number of record ranges that a sentence lists; the JSON report has all of them.
_RANGES_SHOWN_MAX = 8
_PROGRAM = "tutti produce"


def _is_not_receipt_error(record: logging.LogRecord) -> bool:
    """True if the log record is not the `Unknown` error of a receipt, which the command reports at its end."""
    return not (isinstance(record.args, tuple) and len(record.args) == 1 and isinstance(record.args[0], Unknown))


#: First and last number of consecutive records in the input, from 1.
RecordRange = tuple[int, int]


class InputChanged(TuttiError):
    """The input differs from the one that was committed under the same producer name."""


class Report(NamedTuple):
    """Committed records of a run. `first` and `last` are their offsets; None if nothing is committed, or the offset is unknown.

    `complete`: True if all of the input is committed. `undecided`: number of sent records with unknown outcome. `lanes`: for
    unordered records, the first and the last offset in each lane; None for ordered ones.

    The last three fields hold record numbers of the input, for a run that ended early. `undecided_records`: the records that
    `undecided` counts. `uncommitted_records`: records that are in no log, although later records may be. `uncommitted_from`: from
    this record on, no record is in a log. All other records are committed. With unordered records, the committed ones need not be
    a prefix of the input, because one lane may fail while another continues.
    """

    topic: str
    producer: str | None
    records: int
    skipped: int
    first: int | None
    last: int | None
    seconds: float
    complete: bool = True
    undecided: int = 0
    lanes: dict[str, tuple[int, int]] | None = None
    undecided_records: Sequence[RecordRange] = ()
    uncommitted_records: Sequence[RecordRange] = ()
    uncommitted_from: int | None = None

    def fields(self) -> dict[str, object]:
        """Return the JSON fields of the report."""
        return {name: value for name, value in self._asdict().items() if name != "lanes" or value is not None}

    def sentence(self, *, wrong: bool = False) -> str:
        """Return the report as a sentence; `wrong` is True if the input cannot be sent as it is."""
        before = f"; {self.skipped:,} {_were(self.skipped)} committed before" if self.skipped else ""
        if not self.complete:
            return self._incomplete_sentence(before, wrong)
        if not self.records:
            return f"nothing to send to {self.topic}{before}"
        speed = f" in {self.seconds:.1f} s ({self.records / self.seconds:,.0f} a second)" if self.seconds > 0 else ""
        return f"{count_text(self.records, 'record')} committed to {self.topic}{speed}{before}"

    def _incomplete_sentence(self, before: str, wrong: bool) -> str:
        correct = "correct the input and " if wrong else ""
        undecided = f"; the outcome of {self.undecided:,} more is unknown" if self.undecided else ""
        if self.producer is not None:
            hint = f"{correct}run it again with the same --producer, which continues after them"
        elif self.records or self.undecided:
            name = "; with --producer NAME, a run can continue after an early end" if self.lanes is None else ""
            hint = f"another run sends them again: {correct}send only the rest, {self._uncommitted_text()}{name}"
        else:
            hint = f"{correct}run it again"
        return f"{count_text(self.records, 'record')} committed to {self.topic} before it stopped{undecided}{before}: {hint}"

    def _uncommitted_text(self) -> str:
        """Return which records of the input are not committed, or may not be."""
        failed = f"{_ranges_text(self.uncommitted_records)} and " if self.uncommitted_records else ""
        unknown = (
            f"; the outcome of {_ranges_text(self.undecided_records)} is unknown, check these first"
            if self.undecided_records
            else ""
        )
        return f"that is {failed}all from record {self.uncommitted_from} of the input, counted from 1{unknown}"


def _ranges_text(ranges: Sequence[RecordRange]) -> str:
    """Return ranges of record numbers as text, for example "records 3-5, 9-9"."""
    left = len(ranges) - _RANGES_SHOWN_MAX
    more = f" and {count_text(left, 'range')} more (--json has all)" if left > 0 else ""
    return "records " + ", ".join(f"{first}-{last}" for first, last in ranges[:_RANGES_SHOWN_MAX]) + more


def _merged(ranges: Iterable[RecordRange]) -> list[RecordRange]:
    """Merge adjacent ranges. `ranges` must be sorted."""
    joined: list[RecordRange] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


@dataclass(slots=True)
class _InFlight:
    """A batch in flight, and the input number of its last record.

    `maybe_sent`: True if the producer was called with the batch and raised no error. It is set before the call: Ctrl-C may arrive
    after the producer has the batch and before the receipt is assigned.
    """

    last: int
    batch: pa.RecordBatch
    progress: bytes
    receipt: Receipt | None = None
    maybe_sent: bool = False

    @property
    def records(self) -> RecordRange:
        """Return the first and last input number of the batch's records."""
        return self.last - self.batch.num_rows + 1, self.last


class Sender:
    """One run: `send` for each chunk, then `finish`. A context manager; leaving it closes the producer."""

    def __init__(
        self, url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool = False
    ) -> None:
        """Connect to a gateway.

        Args:
            url: gateways.
            topic: topic of the records.
            name: the producer's name, None for a random name.
            settings: topic, format and key field, as text. The hash of the input includes this text.
            rate: records a second, None for no limit.
            unordered: send to lanes. Such a run always sends the input from its first record.

        Raises:
            InputChanged: another program used the name.
            Unavailable: no gateway answers.
        """
        from tutti.producer import Producer

        logging.getLogger("tutti.client").addFilter(_is_not_receipt_error)
        self._topic, self._name = topic, name
        self._producer = Producer(url, producer=name)
        self._hash = InputHash(settings)
        self._in_flight: deque[_InFlight] = deque()
        self._skipped = 0
        self._committed_now = 0
        self._committed_to = 0  # all input records up to this number are committed
        self._aborts = 0
        self._first: int | None = None
        self._last: int | None = None
        self._batcher = Batcher(rate)
        self._lanes: dict[str, tuple[int, int]] | None = {} if unordered else None
        self._started_s = time.monotonic()
        self._committed, self._digest = self._resume() if not unordered else (0, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._producer.close()  # raises no error of a record, because every receipt was checked
        else:
            self._producer.__exit__(kind, error, trace)

    def send(self, chunk: Chunk) -> int:
        """Send the next records of the input except those committed before; return the number of records in the chunk."""
        for part in self._batcher.split(self._skip(chunk)):
            self._send_batch(part)
        return len(chunk.values)

    def finish(self) -> Report:
        """Wait for the last receipt, and return the report of the run.

        Raises:
            InputChanged: the input is shorter than the input committed under its name.
            Unavailable: no gateway answered within the delivery timeout of a record.
        """
        if self._hash.count < self._committed:
            raise InputChanged(
                f"the input has {count_text(self._hash.count, 'record')}, but {self._committed:,} {_were(self._committed)} "
                f"committed earlier by producer {self._name!r}: send the same input again, or choose another --producer"
            )
        while self._in_flight:
            self._await_oldest()
        return self._report()

    def stop_early(self, wait_s: float) -> Report:
        """Return the committed records of a run that ended early.

        Batches in flight get `wait_s` seconds, and then the time that closing a producer allows. Nothing is sent afterwards.
        """
        deadline_s = time.monotonic() + wait_s
        for pending in self._in_flight:
            if pending.receipt is not None:
                with suppress(TuttiError, TimeoutError):
                    pending.receipt.result(timeout=max(0.0, deadline_s - time.monotonic()))
        self.__exit__(TimeoutError, None, None)
        undecided: list[RecordRange] = []
        failed: list[RecordRange] = []
        reached = self._committed_to
        for pending in self._in_flight:
            if pending.last <= self._committed_to:
                continue  # Ctrl-C arrived before the batch was released
            try:
                if pending.receipt is None:
                    (undecided if pending.maybe_sent else failed).append(pending.records)
                    continue
                self._record_commit(pending, pending.receipt.result(timeout=0.0))
            except (Unknown, Fenced, TimeoutError):
                if pending.receipt is None or not pending.receipt.left:
                    failed.append(pending.records)
                    continue
                undecided.append(pending.records)
            except TuttiError:
                failed.append(pending.records)  # the record is in no log
                continue
            reached = pending.last
        return self._report()._replace(
            complete=False,
            undecided=sum(last - first + 1 for first, last in undecided),
            undecided_records=_merged(undecided),
            uncommitted_records=_merged(lost for lost in failed if lost[1] < reached),
            uncommitted_from=reached + 1,
        )

    def _report(self) -> Report:
        seconds = time.monotonic() - self._started_s
        return Report(
            self._topic, self._name, self._committed_now, self._skipped, self._first, self._last, seconds, lanes=self._lanes
        )

    def _resume(self) -> tuple[int, str]:
        """Return the number of records committed so far, and the hash of the input up to there."""
        sequence, progress = self._producer.resume()
        if sequence == 0:
            return 0, ""
        try:
            saved = orjson.loads(progress or b"null")
        except orjson.JSONDecodeError:
            saved = None
        if not isinstance(saved, dict) or saved.get("program") != _PROGRAM or saved.get("count") != sequence:
            raise InputChanged(
                f"producer {self._name!r} has sent {count_text(sequence, 'record')} through another program than `tutti produce`: "
                "choose another --producer"
            )
        return sequence, str(saved.get("sha256"))

    def _skip(self, chunk: Chunk) -> Chunk:
        """Return the records of the chunk that were not committed before. Check the hash of the committed ones."""
        missing = self._committed - self._hash.count
        if missing <= 0:
            return chunk
        known, rest = chunk.split(missing)
        self._hash.add(known.values)
        self._skipped += len(known.values)
        self._committed_to = self._hash.count
        if self._hash.count == self._committed and self._hash.hexdigest() != self._digest:
            raise InputChanged(
                f"the input does not begin with the {count_text(self._committed, 'record')} that producer {self._name!r} has "
                "committed (or --topic, --format or --key differs): send the same input again, or choose another --producer"
            )
        return rest

    def _send_batch(self, part: Chunk) -> None:
        self._hash.add(part.values)
        batch = part.record_batch()
        progress = orjson.dumps({"program": _PROGRAM, "count": self._hash.count, "sha256": self._hash.hexdigest()})
        while len(self._in_flight) >= limits.PRODUCE_BATCHES_MAX:
            self._await_oldest()
        self._in_flight.append(_InFlight(self._hash.count, batch, progress))
        try:
            self._send(self._in_flight[-1])
        except Aborted:
            self._resend()

    def _send(self, pending: _InFlight) -> None:
        pending.receipt, pending.maybe_sent = None, True
        try:
            if self._lanes is not None:
                pending.receipt = self._producer.send_batch(self._topic, pending.batch, ordering="unordered")
            else:
                pending.receipt = self._producer.send_batch(self._topic, pending.batch, progress=pending.progress)
        except TuttiError:
            pending.maybe_sent = False
            raise

    def _await_oldest(self) -> None:
        """Wait for the oldest batch; after an abort, resend the batches that did not commit."""
        oldest = self._in_flight[0]
        try:
            offset = oldest.receipt.result(timeout=RECEIPT_WAIT_S) if oldest.receipt is not None else OFFSET_UNKNOWN
        except Aborted:
            if self._aborts >= limits.PRODUCE_ABORTS_MAX or self._lanes is not None:
                raise
            self._resend()
            return
        except Unknown as error:
            raise Unavailable(str(error)) from error
        self._aborts = 0
        self._record_commit(oldest, offset)
        self._committed_to = oldest.last
        self._in_flight.popleft()

    def _record_commit(self, pending: _InFlight, offset: int) -> None:
        """Record a batch as committed."""
        self._committed_now += pending.batch.num_rows
        if offset != OFFSET_UNKNOWN and self._lanes is not None and pending.receipt is not None:
            first, last = self._lanes.get(pending.receipt.lane, (offset, 0))
            self._lanes[pending.receipt.lane] = first, max(last, offset + pending.batch.num_rows - 1)
        elif offset != OFFSET_UNKNOWN:  # the log no longer knows the offset of an old batch
            self._first = offset if self._first is None else self._first
            self._last = offset + pending.batch.num_rows - 1

    def _resend(self) -> None:
        """Resend, in order, the batches after the last committed sequence."""
        while True:
            self._aborts += 1
            sequence, _ = self._producer.resume()
            try:
                for pending in self._in_flight:
                    if pending.last > sequence:
                        self._send(pending)
            except Aborted:
                if self._aborts >= limits.PRODUCE_ABORTS_MAX:
                    raise
            else:
                return


class SpoolReport(NamedTuple):
    """Result of a run.

    `records` were read, and `safe` of them are committed or on disk. `in_spool` are on disk but not committed, including those of
    earlier runs. `refused`: records that this run dead-lettered. `complete`: True if the input was read to its end.
    """

    topic: str
    producer: str
    records: int
    safe: int
    in_spool: int
    refused: int
    first: int | None
    last: int | None
    seconds: float
    complete: bool = True
    lanes: None = None  # a spool has no unordered records

    def fields(self) -> dict[str, object]:
        """Return the JSON fields of the result."""
        return {name: value for name, value in self._asdict().items() if name != "lanes"}

    def sentence(self, *, wrong: bool = False) -> str:
        """Return the result as a sentence; `wrong` is True if the input cannot be sent as it is."""
        read = f"{count_text(self.records, 'record')} read for {self.topic} in {self.seconds:.1f} s"
        if not self.complete:
            read += f" before it {'failed' if wrong else 'stopped'}"
        if self.safe < self.records:
            read += f"; {self.records - self.safe:,} of them were not on disk at the end, and are lost unless sent again"
        dead_letters = f"; {count_text(self.refused, 'record')} dead-lettered in the spool's folder refused" if self.refused else ""
        if not self.in_spool:
            return f"{read}; all are committed{dead_letters}"
        return f"{read}; {self.in_spool:,} are in the spool, and the next run with this spool sends them{dead_letters}"


class SpooledSender:
    """One run: `send` for each chunk, then `finish` or `stop_early`. A context manager; leaving it closes the producer."""

    def __init__(self, url: str, topic: str, name: str, spool: str, rate: float | None) -> None:
        """Open the spool; this step needs no gateway.

        Raises:
            TuttiError: the spool cannot be used.
        """
        from tutti.producer import Producer

        self._topic, self._name = topic, name
        self._producer = Producer(url, producer=name, spool=spool, delivery_timeout=SPOOL_DELIVERY_S)
        self._batcher = Batcher(rate)
        self._records = self._safe = 0
        self._first: Receipt | None = None
        self._last: Receipt | None = None
        self._started_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._producer.close()

    def send(self, chunk: Chunk) -> int:
        """Take the next records of the input and return their number; wait while the disk is slower than the input."""
        for part in self._batcher.split(chunk):
            batch = part.record_batch()
            self._last = self._producer.send_batch(self._topic, batch)
            self._first = self._first or self._last
            self._records += batch.num_rows
        return len(chunk.values)

    def finish(self) -> SpoolReport:
        """Wait until all records are on disk, and briefly for commits; return the result of the run.

        Raises:
            TuttiError: a record is not on disk, or was rejected.
        """
        if self._last is not None:
            self._last.spooled()
        self._safe = self._records
        self._producer.__exit__(None, None, None)  # raises the first rejection
        return self._report()

    def stop_early(self, wait_s: float) -> SpoolReport:
        """Return the result of a run that ended early, after waiting `wait_s` and a grace period for the disk."""
        with suppress(TuttiError, TimeoutError):
            if self._last is not None:
                self._last.spooled(wait_s + _SPOOL_GRACE_S)
            self._safe = self._records
        with suppress(TuttiError):
            self._producer.__exit__(TimeoutError, None, None)
        return self._report()._replace(complete=False)

    def _report(self) -> SpoolReport:
        spool, seconds = self._producer.spool, time.monotonic() - self._started_s
        first, last = (receipt.offset if receipt is not None else None for receipt in (self._first, self._last))
        if last is not None and self._last is not None:
            last += self._last.count - 1
        return SpoolReport(self._topic, self._name, self._records, self._safe, spool.records, spool.refused, first, last, seconds)
