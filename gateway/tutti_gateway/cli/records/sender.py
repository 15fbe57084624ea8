"""Senders of `tutti produce`: `Sender` sends straight to a gateway, and `SpooledSender` sends through a spool on disk.

`Sender` commits with each batch its progress: the number and the hash of the input records up to the end of the batch. A second run
under the same producer name reads the committed progress from the log, and skips that many input records. If the hash of the
skipped records differs, the input has changed, and the run fails. After an abort, the run resends the buffered batches that did not
commit.

`SpooledSender` is for an input that cannot be read again, such as a pipe. `SpooledSender` needs no progress, because the spool
keeps the uncommitted records.
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
from tutti_gateway.cli.common.waiting import quiet_search
from tutti_gateway.cli.records.inputs import Batcher, Chunk, InputHash
from tutti_gateway.core import limits

if TYPE_CHECKING:
    from tutti.batching.receipt import Receipt

RECEIPT_WAIT_S = 130.0
SPOOL_DELIVERY_S = common_limits.REQUEST_TIMEOUT_US / 1e6
_SPOOL_GRACE_S = common_limits.EXIT_FLUSH_US / 1e6
#: Maximum number of record ranges in a printed sentence. The JSON report contains all ranges.
_RANGES_SHOWN_MAX = 8
_PROGRAM = "tutti produce"


def _is_not_receipt_error(record: logging.LogRecord) -> bool:
    """Logging filter that drops messages of the client about a record without a receipt, which the command reports itself."""
    return not (isinstance(record.args, tuple) and len(record.args) == 1 and isinstance(record.args[0], Aborted | Unknown))


#: First and last record number of a range. Records of the input are numbered from 1.
RecordRange = tuple[int, int]


class InputChanged(TuttiError):
    """The input differs from the input that was committed under the same producer name."""


class Report(NamedTuple):
    """Result of a run with `Sender`.

    Attributes:
        records: number of records that this run committed.
        skipped: number of records that earlier runs had committed.
        first, last: first and last offset of the committed records, or None if no record is committed or the offsets are unknown.
        complete: whether all records of the input are committed.
        undecided: number of sent records whose outcome is unknown.
        lanes: for unordered records, the first and the last offset in each lane.
        undecided_records: input numbers of the sent records whose outcome is unknown.
        uncommitted_records: input numbers of records that are not committed although a later record is, because one lane failed.
        uncommitted_from: for a run that ended early, the input number from which on no record is committed.
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
        """Return the report as a sentence. `wrong` is True if the input is invalid and must be corrected."""
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
        """Return a text that lists the numbers of the input records that are not committed, or whose outcome is unknown."""
        failed = f"{_ranges_text(self.uncommitted_records)} and " if self.uncommitted_records else ""
        unknown = (
            f"; the outcome of {_ranges_text(self.undecided_records)} is unknown, check these first"
            if self.undecided_records
            else ""
        )
        return f"that is {failed}all from record {self.uncommitted_from} of the input, counted from 1{unknown}"


def _ranges_text(ranges: Sequence[RecordRange]) -> str:
    """Return record ranges as text, for example "records 3-5, 9-9"."""
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
    """A batch without an outcome.

    Attributes:
        last: input number of the last record of the batch.
        maybe_sent: True if the producer may have the batch. The flag is set before the producer is called, because Ctrl-C may
            arrive after the producer has accepted the batch and before `receipt` is assigned.
    """

    last: int
    batch: pa.RecordBatch
    progress: bytes
    receipt: Receipt | None = None
    maybe_sent: bool = False

    @property
    def records(self) -> RecordRange:
        """Return the input numbers of the first and the last record of the batch."""
        return self.last - self.batch.num_rows + 1, self.last


class Sender:
    """Sends one input without a spool. Call `send` for each chunk and then `finish`, in a `with` block that closes the producer."""

    def __init__(
        self, url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool = False
    ) -> None:
        """Connect to a gateway.

        Args:
            url: URL of one or more gateways.
            topic: topic of the records.
            name: name of the producer, or None for a random name.
            settings: topic, format and key field, as text. The input hash includes this text, so changed options count as a
                changed input.
            rate: maximum number of records a second, or None for no limit.
            unordered: True to send to lanes. An unordered run skips no records, because lanes store no progress.

        Raises:
            InputChanged: a program other than `tutti produce` has used the producer name.
            Unavailable: no gateway answers.
        """
        from tutti.producer import Producer

        logging.getLogger("tutti.client").addFilter(_is_not_receipt_error)
        self._topic, self._name = topic, name
        with quiet_search():
            self._producer = Producer(url, producer=name)
        self._hash = InputHash(settings)
        self._in_flight: deque[_InFlight] = deque()
        self._skipped = 0
        self._committed_now = 0
        self._committed_to = 0  # number of the last input record up to which all records are committed
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
            self._producer.close()  # does not raise for a failed record, because `finish` has checked every receipt
        else:
            self._producer.__exit__(kind, error, trace)

    def send(self, chunk: Chunk) -> int:
        """Send the next records of the input, and return their number. Records that an earlier run committed are skipped."""
        for part in self._batcher.split(self._skip(chunk)):
            self._send_batch(part)
        return len(chunk.values)

    def finish(self) -> Report:
        """Wait for the last receipt, and return the report of the run.

        Raises:
            InputChanged: the input is shorter than the input that the producer has already committed.
            Unavailable: a record was not delivered in time, because no gateway answered.
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
        """Stop sending, close the producer, and report which records are committed.

        Before the producer is closed, wait up to `wait_s` seconds for the outcome of batches in flight.
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
                continue  # the batch is committed, but Ctrl-C arrived before it was removed from the queue
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
                failed.append(pending.records)  # after every other error, it is certain that the batch is not committed
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
        """Return the number of input records that the producer has committed, and the hash of these records."""
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
        """Return the records of the chunk that are not committed yet, and check the hash of the records that are committed."""
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
        """Wait for the outcome of the oldest batch. After an abort, resend all batches that did not commit."""
        oldest = self._in_flight[0]
        try:
            offset = oldest.receipt.result(timeout=RECEIPT_WAIT_S) if oldest.receipt is not None else OFFSET_UNKNOWN
        except Aborted as error:
            if oldest.receipt is not None and not oldest.receipt.left:
                raise Unavailable(str(error)) from error  # no gateway accepted the batch before its deadline
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
        elif offset != OFFSET_UNKNOWN:  # the offset of an old batch may be unknown, because its records were trimmed
            self._first = offset if self._first is None else self._first
            self._last = offset + pending.batch.num_rows - 1

    def _resend(self) -> None:
        """Wait for the next epoch after an abort, and resend all batches that are not committed, in order."""
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
    """Result of a run with `SpooledSender`.

    Attributes:
        records: number of input records that were read.
        safe: number of read records that are committed or on disk.
        in_spool: number of records on disk that are not committed, including records of earlier runs.
        refused: number of records that this run dead-lettered.
        first, last: first and last offset of this run's records, or None if unknown.
        complete: whether the input was read to its end.
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
        """Return the result as a sentence. `wrong` is True if the input is invalid and must be corrected."""
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
    """Sends one input through a spool. Call `send` for each chunk, then `finish` or `stop_early`, in a `with` block."""

    def __init__(self, url: str, topic: str, name: str, spool: str, rate: float | None) -> None:
        """Open the spool and start the producer. No gateway needs to answer.

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
        """Write the next records of the input to the spool, and return their number. Wait if the disk is slower than the input."""
        for part in self._batcher.split(chunk):
            batch = part.record_batch()
            self._last = self._producer.send_batch(self._topic, batch)
            self._first = self._first or self._last
            self._records += batch.num_rows
        return len(chunk.values)

    def finish(self) -> SpoolReport:
        """Wait until all records are on disk, wait a short time for commits, and return the result of the run.

        Raises:
            TuttiError: a record could not be written to the spool, or the log rejected a record.
        """
        if self._last is not None:
            self._last.spooled()
        self._safe = self._records
        self._producer.__exit__(None, None, None)  # raises the first rejection
        return self._report()

    def stop_early(self, wait_s: float) -> SpoolReport:
        """Stop the run, and return its result. Wait up to `wait_s` plus a grace period for records to reach the disk."""
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
